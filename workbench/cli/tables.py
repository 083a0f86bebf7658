"""Tables for a terminal."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any


def print_table(headers: Sequence[str], rows: Sequence[Sequence[Any]], *, title: str = "") -> None:
    """Prints a table; floats with four significant digits, numbers to the right."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title or None, box=box.SIMPLE_HEAD, title_justify="left", pad_edge=False)
    for index, header in enumerate(headers):
        numeric = bool(rows) and all(
            isinstance(row[index], int | float) and not isinstance(row[index], bool) for row in rows
        )
        table.add_column(header, justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        table.add_row(*(_cell(value) for value in row))
    # Whoever reads a pipe wants whole lines, however long.
    Console(width=None if sys.stdout.isatty() else 400).print(table)


def _cell(value: Any) -> str:
    from rich.markup import escape

    if isinstance(value, float):
        return "-" if value != value else f"{value:.4g}"
    return escape("" if value is None else str(value))
