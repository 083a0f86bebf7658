"""Panels without a kernel: a page that needs no network, and a still picture for a notebook."""

from __future__ import annotations

from collections.abc import Sequence

from bokeh.embed import components
from bokeh.resources import INLINE

from workbench.charts.picture import to_svg
from workbench.charts.style import Chart
from workbench.panels.html import escape

SIGNS = {"line": "━", "dotted": "┅", "dashed": "╍", "box": "■"}


def header_html(chart: Chart) -> str:
    """Title, note and legend of a chart as HTML."""
    legend = "".join(
        f'<span class="wb-chart-entry"><i style="color:{escape(e.colour)}">{escape(SIGNS.get(e.mark, e.mark))}</i> '
        f"{escape(e.label)}</span> "
        for e in chart.legend
    )
    note = f'<span class="wb-chart-note"> {escape(chart.note)}</span>'
    title = f'<div class="wb-chart-title"><b>{escape(chart.title)}</b>{note}</div>'
    return f'<div class="wb-chart-header">{title}<div class="wb-chart-legend">{legend}</div></div>'


def render_blocks(blocks: Sequence[str | Chart]) -> tuple[str, str]:
    """Body and head of a page: Bokeh's own library is inlined, so the page works without a network."""
    charts = [block for block in blocks if isinstance(block, Chart)]
    script, places = components([chart.figure for chart in charts]) if charts else ("", [])
    figures = iter(f"<div>{header_html(chart)}{place}</div>" for chart, place in zip(charts, places, strict=True))
    head = f"{INLINE.render()}" if charts else ""
    return _arranged(blocks, [next(figures) for _ in charts]) + script, head


def picture(blocks: Sequence[str | Chart]) -> str:
    """The blocks with still pictures of the charts: small, and without a script."""
    drawn = [f"<div>{header_html(block)}{to_svg(block)}</div>" for block in blocks if isinstance(block, Chart)]
    style = "font: 13px/1.45 system-ui, sans-serif"
    return f'<div class="wb-panel" style="{style}">{_arranged(blocks, drawn)}</div>'


def _arranged(blocks: Sequence[str | Chart], drawn: Sequence[str]) -> str:
    """Charts that follow each other stand beside each other where there is room."""
    rest = iter(drawn)
    out: list[str] = []
    inside = False
    for block in blocks:
        is_chart = isinstance(block, Chart)
        if is_chart != inside:
            out.append('<div class="wb-figures">' if is_chart else "</div>")
            inside = is_chart
        out.append(next(rest) if isinstance(block, Chart) else f"<div>{block}</div>")
    return "".join(out) + ("</div>" if inside else "")
