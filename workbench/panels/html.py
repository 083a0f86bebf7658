"""Small pieces of HTML for the panels: everything shown is escaped here, and styled by one sheet."""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Sequence
from pathlib import Path

STYLE = Path(__file__).with_name("panels.css").read_text(encoding="utf-8")
"""The sheet of all panels."""

TONES = {"READY": "ok", "LOADING": "busy", "UNLOADING": "busy", "UNAVAILABLE": "bad"}
NONE = "–"


def escape(text: object) -> str:
    """Text that may hold anything, made safe."""
    return html.escape(str(text))


def number(value: float | None, digits: int = 1) -> str:
    """A figure with thousands separated; a dash where there is none."""
    if value is None or not math.isfinite(value):
        return NONE
    return f"{value:,.{digits}f}"


def chip(text: str, tone: str, title: str = "") -> str:
    """A small coloured label: tone is ok, busy, bad, off or warn."""
    hover = f' title="{escape(title)}"' if title else ""
    return f'<span class="wb-chip wb-{tone}"{hover}>{escape(text)}</span>'


def state_chip(state: str) -> str:
    """The state of a model version."""
    return chip(state or "not loaded", TONES.get(state, "off"))


def cells(texts: Iterable[tuple[str, bool]]) -> str:
    """Cells of a grid line, each as (HTML, is a figure)."""
    return "".join(
        f'<span class="wb-num">{text}</span>' if figure else f"<span>{text}</span>" for text, figure in texts
    )


def note(text: object, tone: str = "muted") -> str:
    """A line of quiet text; tone bad or ok colours it."""
    return f'<span class="wb-muted">{escape(text)}</span>' if tone == "muted" else chip(str(text), tone)


def table(headers: Sequence[str], rows: Iterable[Sequence[str]], *, left: int = 1) -> str:
    """A table of cells that are HTML already; the first ``left`` columns stand to the left."""
    return table_of(headers, [table_row(row, left=left) for row in rows], left=left)


def table_of(headers: Sequence[str], lines: Sequence[str], *, left: int = 1) -> str:
    """A table of lines that ``table_row`` has made."""
    head = table_row([escape(text) for text in headers], left=left, tag="th")
    return f'<table class="wb-table"><thead>{head}</thead><tbody>{"".join(lines)}</tbody></table>'


def table_row(cells_of: Sequence[str], *, left: int = 1, kind: str = "", tag: str = "td") -> str:
    """One line of a table; ``kind`` is its class."""
    sides = [' class="wb-left"' if index < left else "" for index in range(len(cells_of))]
    line = "".join(f"<{tag}{side}>{text}</{tag}>" for side, text in zip(sides, cells_of, strict=True))
    return f'<tr class="{kind}">{line}</tr>'


def diff_html(diff: str) -> str:
    """A unified diff, coloured; the two lines with file names are left out."""
    lines = []
    for line in diff.splitlines():
        if line.startswith(("---", "+++")):
            continue
        kind = {"+": "wb-add", "-": "wb-del", "@": "wb-hunk"}.get(line[:1], "")
        lines.append(f'<span class="{kind}">{escape(line)}</span>')
    return f'<div class="wb-source">{chr(10).join(lines)}</div>' if lines else ""


def bullet_list(items: Sequence[str]) -> str:
    """Sentences as a list."""
    return '<ul class="wb-hints">' + "".join(f"<li>{escape(item)}</li>" for item in items) + "</ul>" if items else ""


def page(title: str, body: str, head: str = "") -> str:
    """A whole HTML page that needs nothing from elsewhere."""
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f"<style>{STYLE}{PAGE_STYLE}</style>{head}</head><body>"
        f'<div class="wb-panel">{body}</div></body></html>'
    )


PAGE_STYLE = """
body { margin: 16px; max-width: 1180px; background: #fff; }
.wb-chart-title b { font-size: 13px; } .wb-chart-note { margin-left: 10px; color: #52606d; }
.wb-chart-legend { display: flex; flex-wrap: wrap; column-gap: 14px; }
.wb-chart-entry { display: inline-flex; align-items: center; gap: 5px; }
.wb-chart-entry i { font-style: normal; }
.wb-figures { display: grid; grid-template-columns: repeat(auto-fit, minmax(460px, 1fr)); gap: 10px 16px; }
"""
