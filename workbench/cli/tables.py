"""Tables for a terminal: as wide as it is, so that no row is broken."""

from __future__ import annotations

import os
import re
import shutil
import sys
import textwrap
from collections.abc import Sequence
from string import ascii_uppercase
from typing import Any

_WHOLE = 10_000
"""Whoever reads a pipe wants whole lines, however long."""
_HEAD = 12
"""So wide are the lines of a head that is broken."""


def columns_shown() -> int:
    """The width of the terminal; of a pipe what ``COLUMNS`` says, else plenty."""
    if sys.stdout.isatty() or os.environ.get("COLUMNS", "").isdecimal():
        return shutil.get_terminal_size().columns
    return _WHOLE


def print_table(
    headers: Sequence[str],
    rows: Sequence[Sequence[Any]],
    *,
    title: str = "",
    least: Sequence[str] = (),
    long: Sequence[str] = (),
    elsewhere: str = "--json has them",
) -> None:
    """Prints a table; floats with four significant digits or as whole numbers, numbers to the right.

    Where it is too wide, long heads are broken, then columns are left out, and at last texts are replaced by letters
    that stand below. What is left out is said.

    Args:
        headers: names of the columns.
        rows: their cells.
        title: above it.
        least: columns that may be left out, the least important one first.
        long: columns of texts that may stand below the table.
        elsewhere: where to find what was left out, in words.
    """
    room = columns_shown()
    grid = _Grid(headers, rows, title)
    grid.fit(
        room, [name for name in dict.fromkeys(least) if name in headers], [name for name in long if name in headers]
    )
    grid.print(room)
    for line in grid.legend:
        say(f"  {line}")
    if grid.left_out:
        say(f"  left out at {room} columns: {', '.join(grid.left_out)}; {elsewhere}")


def say(text: str) -> None:
    """Prints a text; on a terminal in lines no wider than it is, those that go on set in by two more."""
    room = columns_shown()
    for line in text.split("\n"):
        if len(line) > room:
            blanks = " " * (len(line) - len(line.lstrip()) + 2)
            # a command or a path that is broken at its hyphens cannot be copied
            line = textwrap.fill(
                line, room, subsequent_indent=blanks, break_on_hyphens=False, break_long_words=False
            )  # fmt: skip
        print(line)


class Doubtful(float):
    """A number that is shown with a question mark."""


class _Grid:
    """A table on its way to the width that there is."""

    def __init__(self, headers: Sequence[str], rows: Sequence[Sequence[Any]], title: str) -> None:
        self._names = list(headers)
        self._heads = list(headers)
        self._numeric = [bool(rows) and all(_is_number(row[index]) for row in rows) for index in range(len(headers))]
        self._cells = [[_cell(value) for value in row] for row in rows]
        self._title = title
        self._shown = list(range(len(headers)))
        self.legend: list[str] = []
        self.left_out: list[str] = []

    def fit(self, room: int, least: Sequence[str], long: Sequence[str]) -> None:
        """Makes it no wider than ``room``, as far as that goes."""
        if self._width() <= room:
            return
        for index, head in enumerate(self._heads):
            self._heads[index] = _broken(head, max((len(row[index]) for row in self._cells), default=0))
        gone: list[int] = []
        for name in least:
            if self._width() <= room:
                break
            gone.append(self._names.index(name))
            self._shown.remove(gone[-1])
        for name in sorted(long, key=lambda name: -self._widest(self._names.index(name))):
            if self._width() <= room:
                break
            self._letter(self._names.index(name))
        for index in reversed(gone):  # what was left out for nothing
            before, self._shown = self._shown, sorted([*self._shown, index])
            if self._width() > room:
                self._shown = before
        self.left_out = [self._names[index] for index in range(len(self._names)) if index not in self._shown]

    def _letter(self, index: int) -> None:
        """Puts a column's texts below the table, where that makes it narrower."""
        values = list(dict.fromkeys(row[index] for row in self._cells))
        if len(values) > len(ascii_uppercase) or index not in self._shown:
            return
        letters = dict(zip(values, ascii_uppercase, strict=False))
        for row in self._cells:
            row[index] = letters[row[index]]
        self.legend += [f"{self._names[index]} {letter}: {value}" for value, letter in letters.items()]

    def _widest(self, index: int) -> int:
        return max(len(line) for line in [*self._heads[index].split("\n"), *(r[index] for r in self._cells)])

    def _width(self) -> int:
        from rich.cells import cell_len

        widths = [
            max(cell_len(text) for text in [*self._heads[index].split("\n"), *(row[index] for row in self._cells)])
            for index in self._shown
        ]
        return sum(widths) + _GAP * (len(widths) - 1)

    def print(self, room: int) -> None:
        """Prints it."""
        from rich import box
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text

        if self._title:
            print(self._title)
        table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, _GAP - 1, 0, 0))
        for index in self._shown:
            justify: Any = "right" if self._numeric[index] else "left"
            table.add_column(Text(self._heads[index]), justify=justify, overflow="fold")
        for row in self._cells:
            table.add_row(*(Text(row[index]) for index in self._shown))
        Console(width=room).print(table)


_GAP = 2
"""Between two columns: a blank, and the place of a line."""


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _broken(head: str, room: int) -> str:
    """A head in lines, broken after underscores, dots and blanks; no narrower than its column's cells."""
    lines = [""]
    for part in re.findall(r"[^_. ]+[_. ]?|[_. ]", head):
        if lines[-1] and len(lines[-1] + part.rstrip()) > max(_HEAD, room):
            lines.append("")
        lines[-1] += part
    return "\n".join(line.rstrip() for line in lines)


def _cell(value: Any) -> str:
    if isinstance(value, float):
        text = "-" if value != value else f"{value:.0f}" if abs(value) >= 9999.5 else f"{value:.4g}"
        return f"{text}?" if isinstance(value, Doubtful) else text
    return "" if value is None else str(value)


def print_text(text: str, least: Sequence[str] = (), elsewhere: str = "a wider terminal has them") -> None:
    """Prints a text; tables in it, in columns two blanks apart, are made as wide as the terminal is.

    Args:
        text: any.
        least: columns of its tables that may be left out, the least important one first.
        elsewhere: where to find what was left out, in words.
    """
    lines, at, room = text.split("\n"), 0, columns_shown()
    while at < len(lines):
        table = _table_at(lines[at:])
        if table and max(map(len, lines[at : at + len(table)])) > room:
            print_table(table[0], table[1:], least=least, elsewhere=elsewhere)
            at += len(table)
        else:
            say(lines[at])
            at += 1


def _table_at(lines: Sequence[str]) -> list[list[str]]:
    """The rows of the table that begins there, its heads first; none where none does."""
    starts = [found.start() for found in re.finditer(r"(?:(?<=  )|^)\S", lines[0])]
    if len(starts) < 3 or starts[0]:
        return []
    rows = []
    for line in lines:
        if not line or line[0] == " " or any(line[start - 2 : start].strip() for start in starts[1:]):
            break
        rows.append([line[start:end].strip() for start, end in zip(starts, [*starts[1:], None], strict=True)])
    return rows if len(rows) > 1 else []
