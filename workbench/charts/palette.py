"""One colour for one quantity, everywhere.

The colours are those of Okabe and Ito (2008), which people with any of the common colour deficiencies can tell apart,
with the yellow left out: it is too pale on white. They read on a white and on a dark page.
"""

from __future__ import annotations

ORANGE, SKY, GREEN, BLUE, VERMILION, PURPLE, GREY = (
    "#E69F00",
    "#56B4E9",
    "#009E73",
    "#0072B2",
    "#D55E00",
    "#CC79A7",
    "#8A94A0",
)

QUANTITY: dict[str, str] = {
    "throughput": BLUE,
    "p50": GREEN,
    "p90": SKY,
    "p95": ORANGE,
    "p99": VERMILION,
    "mean": SKY,
    "queue": ORANGE,
    "compute_input": SKY,
    "compute_infer": BLUE,
    "compute_output": PURPLE,
    "cpu": BLUE,
    "server_cpu": SKY,
    "memory": GREEN,
    "gpu": ORANGE,
    "gpu_memory": PURPLE,
    "pending": GREY,
    "failures": VERMILION,
    "goal": VERMILION,
    "before": GREY,
    "after": BLUE,
}
"""Colour of each measured quantity."""

REASON: dict[str, str] = {
    "full": BLUE,
    "preferred": SKY,
    "delay": ORANGE,
    "no_delay": GREY,
    "direct": "#B9C2CB",
    "shapes": PURPLE,
    "inputs": VERMILION,
    "sequence": GREEN,
    "drain": "#6B4C9A",
    "inline": "#D8DEE4",
    "unknown": "#7A8594",
}
"""Colour of each reason for which a batch is formed."""

REASON_LABEL: dict[str, str] = {
    "full": "full: max_batch_size reached",
    "preferred": "preferred size reached",
    "delay": "queue delay over",
    "no_delay": "no delay set: took what waited",
    "direct": "no dynamic batching",
    "shapes": "next request has another shape",
    "inputs": "next request has other inputs",
    "sequence": "sequence",
    "drain": "queue drained",
    "inline": "in-kernel call, ran at once where it was asked for",
    "unknown": "reason not told by this server",
}
"""The reason in words, as the legend has it."""

CONFIGURATION: tuple[str, ...] = (BLUE, VERMILION, GREEN, PURPLE, ORANGE, SKY, "#6B4C9A", GREY)
"""Colours of configurations, in the order in which they were measured; repeats after eight, with another marker."""

MARKERS: tuple[str, ...] = ("circle", "square", "triangle", "diamond", "inverted_triangle", "hex")
"""Markers of configurations: the second sign beside the colour."""


MARKER_SIGN: dict[str, str] = {
    "circle": "●",
    "square": "■",
    "triangle": "▲",
    "diamond": "◆",
    "inverted_triangle": "▼",
    "hex": "⬢",
}
"""The marker as a letter, for the legend."""


def configuration_style(index: int) -> tuple[str, str]:
    """Colour and marker of the configuration with this index (from 0)."""
    return (
        CONFIGURATION[index % len(CONFIGURATION)],
        MARKERS[(index % len(CONFIGURATION) + index // len(CONFIGURATION)) % len(MARKERS)],
    )
