"""A chart as a still SVG, drawn without a browser: what a saved notebook, a mail or a code host can show.

It reads the Bokeh figure itself, so it shows the same data, colours and axes. It knows the glyphs that the charts of
this room use, and draws nothing for others.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import numpy as np
from bokeh.core.property.vectorization import Expr, Field, Value
from bokeh.models import Column, FactorRange

from workbench.charts.style import FONT, Chart, models

WIDTH = 560
LEFT, RIGHT, TOP, BOTTOM = 62, 14, 10, 52
_HALF_A_MARK = 3
TEXT, LINE, GRID = "#52606d", "#9aa5b1", "#e4e7eb"
DASHES = {"dotted": "2 3", "dashed": "6 4", "solid": "none"}


@dataclass(frozen=True, slots=True)
class _Scale:
    """From data to pixels along one axis."""

    to_pixel: Callable[[Any], float]
    ticks: tuple[tuple[float, str], ...]
    step: float = 0.0
    groups: tuple[tuple[float, str], ...] = ()


def to_svg(chart: Chart, width: int = WIDTH) -> str:
    """The chart as one ``<svg>`` element, with its words where it has no data."""
    figures = getattr(chart.figure, "children", None)
    parts = [item[0] if isinstance(item, tuple) else item for item in figures] if figures else [chart.figure]
    if isinstance(chart.figure, Column):
        heights: list[Any] = [fig.height for fig in parts]
        tops = [int(sum(heights[:i])) for i in range(len(parts))]
        drawn = [_figure(fig, width, 0, top) for fig, top in zip(parts, tops, strict=True)]
    else:
        each = width // len(parts)
        drawn = [_figure(fig, each, i * each, 0) for i, fig in enumerate(parts)]
    height = chart.height
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        f'role="img" aria-label="{escape(chart.title)}" font-family="{escape(FONT)}" font-size="11">'
        f"{''.join(drawn)}</svg>"
    )


def _figure(fig: Any, width: int, offset: int, top: int) -> str:
    left, bottom = max(LEFT, int(fig.min_border_left or 0)), BOTTOM if fig.xaxis[0].visible else TOP
    height = fig.height
    renderers = [r for r in fig.renderers if isinstance(r, models.GlyphRenderer)]
    x = _x_scale(fig.x_range, renderers, left, width - RIGHT)
    log = type(fig.y_scale).__name__ == "LogScale"
    y = _y_scale(fig.y_range, renderers, height - bottom, TOP, log)
    named = fig.yaxis[0].major_label_overrides
    if named:  # rows with names instead of a scale
        y = _Scale(y.to_pixel, tuple((y.to_pixel(at), text) for at, text in named.items()))
    out = [f'<g transform="translate({offset} {top})">']
    for at, text in y.ticks:
        out.append(f'<path d="M{left} {at:.1f}H{width - RIGHT}" stroke="{GRID}"/>')
        out.append(f'<text x="{left - 7}" y="{at + 4:.1f}" text-anchor="end" fill="{TEXT}">{escape(text)}</text>')
    for at, text in x.ticks if fig.xaxis[0].visible else ():
        out.append(
            f'<text x="{at:.1f}" y="{height - bottom + 17}" text-anchor="middle" fill="{TEXT}">{escape(text)}</text>'
        )
    for at, text in x.groups:
        out.append(f'<text x="{at:.1f}" y="{height - bottom + 29}" text-anchor="middle" fill="{TEXT}" ')
        out.append(f'font-weight="600">{escape(text)}</text>')
    glyphs = "".join(_glyph(renderer, x, y) for renderer in renderers)
    out.append(_cut(glyphs, left, width - RIGHT, height) if _is_fixed(fig.x_range) else glyphs)
    for item in fig.center:
        if type(item).__name__ == "Span" and item.visible:
            at = y.to_pixel(item.location)
            out.append(
                f'<path d="M{left} {at:.1f}H{width - RIGHT}" stroke="{item.line_color}" stroke-width="1.5" '
                f'stroke-dasharray="6 4"/>'
            )
        if type(item).__name__ == "Label" and item.visible:
            middle = f'x="{(left + width - RIGHT) / 2}" y="{(TOP + height - bottom) / 2}"'
            out.append(f'<text {middle} text-anchor="middle" fill="{TEXT}">{escape(item.text)}</text>')
    out.append(f'<path d="M{left} {TOP}V{height - bottom}H{width - RIGHT}" fill="none" stroke="{LINE}"/>')
    middle_x = (left + width - RIGHT) / 2
    middle_y = (TOP + height - bottom) / 2
    if fig.xaxis[0].visible:
        out.append(
            f'<text x="{middle_x}" y="{height - 8}" text-anchor="middle" fill="{TEXT}">'
            f"{escape(fig.xaxis[0].axis_label)}</text>"
        )
    out.append(
        f'<text transform="translate(14 {middle_y}) rotate(-90)" text-anchor="middle" fill="{TEXT}">'
        f"{escape(fig.yaxis[0].axis_label)}</text></g>"
    )
    return "".join(out)


def _cut(glyphs: str, left: int, right: int, height: int) -> str:
    """What lies beside a range that does not go by its data is not to be seen; half a mark on its edge is."""
    start, wide = left - _HALF_A_MARK, right - left + 2 * _HALF_A_MARK
    box = f'x="{start}" y="0" width="{wide}" height="{height}" viewBox="{start} 0 {wide} {height}"'
    return f'<svg {box} overflow="hidden">{glyphs}</svg>'


# ---------------------------------------------------------------- scales


def _x_scale(x_range: Any, renderers: Sequence[Any], start: float, end: float) -> _Scale:
    if isinstance(x_range, FactorRange):
        factors = list(x_range.factors)
        step = (end - start) / max(1, len(factors))
        place = {factor: start + (i + 0.5) * step for i, factor in enumerate(factors)}
        names = [(place[f], str(f[-1]) if isinstance(f, tuple) else str(f)) for f in factors]
        stride = max(1, len(names) // 12)
        return _Scale(lambda v: place.get(v, start), tuple(names[::stride]), step, _groups(place))
    low, high = _limits(x_range, _data_limits(renderers, ("x", "xs")))
    return _linear(low, high, start, end)


def _groups(place: dict[Any, float]) -> tuple[tuple[float, str], ...]:
    """The names of groups of factors, each in the middle of its group."""
    found: dict[str, list[float]] = {}
    for factor, at in place.items():
        if isinstance(factor, tuple):
            found.setdefault(str(factor[0]), []).append(at)
    return tuple((sum(places) / len(places), name) for name, places in found.items())


def _y_scale(y_range: Any, renderers: Sequence[Any], start: float, end: float, log: bool) -> _Scale:
    limits = _data_limits(renderers, ("y", "ys", "top", "y2"))
    if log and limits[0] > 0:
        return _logarithmic(limits[0], limits[1], start, end)
    return _linear(*_limits(y_range, limits), start, end)


def _limits(model_range: Any, data: tuple[float, float]) -> tuple[float, float]:
    fixed = _is_fixed(model_range)
    low = float(model_range.start) if fixed or _is_number(model_range.start) else data[0]
    high = float(model_range.end) if fixed else data[1] * 1.08
    return low, high if high > low else low + 1.0


def _is_fixed(model_range: Any) -> bool:
    return type(model_range).__name__ == "Range1d"


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def _data_limits(renderers: Iterable[Any], names: Sequence[str]) -> tuple[float, float]:
    found: list[float] = []
    for renderer in renderers:
        for name in names:
            if hasattr(renderer.glyph, name):
                for value in _column(renderer, name):
                    items = value if isinstance(value, list | tuple | np.ndarray) else (value,)
                    found += [float(item) for item in items if _is_number(float(item))]
    return (min(found), max(found)) if found else (0.0, 1.0)


def _linear(low: float, high: float, start: float, end: float) -> _Scale:
    raw = (high - low) / 5
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(m * power for m in (1, 2, 5, 10) if m * power >= raw)
    values = np.arange(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1) * step

    def to_pixel(value: Any) -> float:
        return start + (float(value) - low) / (high - low) * (end - start)

    return _Scale(to_pixel, tuple((to_pixel(v), f"{v:,.10g}") for v in values))


def _logarithmic(low: float, high: float, start: float, end: float) -> _Scale:
    bottom, top = math.log10(low / 1.2), math.log10(high * 1.2)

    def to_pixel(value: Any) -> float:
        at = math.log10(float(value)) if float(value) > 0 else bottom
        return start + (at - bottom) / (top - bottom) * (end - start)

    powers = range(math.floor(bottom), math.ceil(top) + 1)
    values = [m * 10.0**p for p in powers for m in ((1, 2, 5) if top - bottom < 2 else (1,))]
    shown = [value for value in values if bottom <= math.log10(value) <= top]
    return _Scale(to_pixel, tuple((to_pixel(value), f"{value:,.10g}") for value in shown))


# ---------------------------------------------------------------- glyphs


def _length(renderer: Any) -> int:
    data: Any = renderer.data_source.data
    return max((len(column) for column in data.values()), default=0)


def _column(renderer: Any, name: str) -> list[Any]:
    """One value for each row: of a field, a constant, or a stack of fields."""
    spec = getattr(renderer.glyph, name)
    data: Any = renderer.data_source.data
    count = _length(renderer)
    if isinstance(spec, Field):
        spec = spec.field
    if isinstance(spec, Value):
        return [spec.value] * count
    if isinstance(spec, Expr):
        stack: Any = spec.expr
        fields = stack.fields
        return [sum(float(data[field][i]) for field in fields) for i in range(count)]
    if isinstance(spec, str) and spec in data:
        return list(data[spec])
    return [spec] * count


def _path(xs: Sequence[Any], ys: Sequence[Any], x: _Scale, y: _Scale) -> str:
    out, pen = [], "M"
    for a, b in zip(xs, ys, strict=True):
        if not _is_number(float(b)):
            pen = "M"
            continue
        out.append(f"{pen}{x.to_pixel(a):.1f} {y.to_pixel(b):.1f}")
        pen = "L"
    return "".join(out)


def _glyph(renderer: Any, x: _Scale, y: _Scale) -> str:
    drawer = _DRAWERS.get(type(renderer.glyph).__name__)
    return drawer(renderer, x, y) if drawer is not None else ""


def _draw_line(renderer: Any, x: _Scale, y: _Scale) -> str:
    glyph: Any = renderer.glyph
    if glyph.line_alpha == 0:
        return ""
    path = _path(_column(renderer, "x"), _column(renderer, "y"), x, y)
    return f'<path d="{path}" fill="none" stroke="{_only(glyph.line_color)}" stroke-width="2"/>'


def _draw_multi_line(renderer: Any, x: _Scale, y: _Scale) -> str:
    columns = [_column(renderer, name) for name in ("xs", "ys", "line_color", "line_dash", "line_width")]
    return "".join(
        f'<path d="{_path(xs, ys, x, y)}" fill="none" stroke="{colour}" stroke-width="{width}" '
        f'stroke-dasharray="{DASHES.get(dash, "none") if isinstance(dash, str) else "none"}"/>'
        for xs, ys, colour, dash, width in zip(*columns, strict=True)
    )


def _draw_scatter(renderer: Any, x: _Scale, y: _Scale) -> str:
    columns = [_column(renderer, name) for name in ("x", "y", "line_color", "fill_alpha", "size")]
    return "".join(
        f'<circle cx="{x.to_pixel(a):.1f}" cy="{y.to_pixel(b):.1f}" r="{size / 2}" stroke="{colour}" '
        f'stroke-width="1.5" fill="{colour}" fill-opacity="{alpha}"/>'
        for a, b, colour, alpha, size in zip(*columns, strict=True)
        if _is_number(float(b))
    )


def _draw_vbar(renderer: Any, x: _Scale, y: _Scale) -> str:
    columns = [_column(renderer, name) for name in ("x", "bottom", "top", "fill_color")]
    width = x.step * 0.78
    return "".join(
        f'<rect x="{x.to_pixel(a) - width / 2:.1f}" y="{y.to_pixel(top):.1f}" width="{width:.1f}" '
        f'height="{max(0.0, y.to_pixel(bottom) - y.to_pixel(top)):.1f}" fill="{colour}"/>'
        for a, bottom, top, colour in zip(*columns, strict=True)
    )


def _draw_hbar(renderer: Any, x: _Scale, y: _Scale) -> str:
    columns = [_column(renderer, name) for name in ("y", "left", "right", "height", "fill_color", "fill_alpha")]
    return "".join(
        f'<rect x="{x.to_pixel(left):.1f}" y="{y.to_pixel(at + height / 2):.1f}" '
        f'width="{max(0.5, x.to_pixel(right) - x.to_pixel(left)):.1f}" '
        f'height="{y.to_pixel(at - height / 2) - y.to_pixel(at + height / 2):.1f}" fill="{colour}" '
        f'fill-opacity="{alpha}"/>'
        for at, left, right, height, colour, alpha in zip(*columns, strict=True)
    )


def _draw_varea(renderer: Any, x: _Scale, y: _Scale) -> str:
    glyph: Any = renderer.glyph
    xs, low, high = (_column(renderer, name) for name in ("x", "y1", "y2"))
    if not xs:
        return ""
    path = _path([*xs, *reversed(xs)], [*high, *reversed(low)], x, y)
    return f'<path d="{path}Z" fill="{_only(glyph.fill_color)}" fill-opacity="0.9"/>'


def _only(spec: Any) -> str:
    return str(spec.value if isinstance(spec, Value) else spec)


_DRAWERS: dict[str, Callable[[Any, _Scale, _Scale], str]] = {
    "Line": _draw_line,
    "MultiLine": _draw_multi_line,
    "Scatter": _draw_scatter,
    "HBar": _draw_hbar,
    "VBar": _draw_vbar,
    "VArea": _draw_varea,
}
