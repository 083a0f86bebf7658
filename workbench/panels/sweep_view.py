"""What a sweep shows in words: the table of its points, the best one, how it ended, what it would cost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from workbench.charts.rows import PointRow
from workbench.errors import WorkbenchError
from workbench.panels.html import chip, escape, number, table_of, table_row
from workbench.panels.sweep_form import Plan, settings_label
from workbench.panels.views import flat_histogram
from workbench.tuning import Choice, advise_batching

if TYPE_CHECKING:
    from workbench.profiling import Point, SweepResult

HEADERS = (
    "configuration", "load", "infer/s", "p50 (ms)", "p90 (ms)", "p99 (ms)", "mean batch", "queue (ms)", "infer (ms)",
    "requests", "verdict",
)  # fmt: skip


def point_row(point: Point) -> PointRow:
    """A measured point as charts and tables show it."""
    load = point.load
    plain = load.kind != "mixed" and load.distribution in ("poisson", "constant")
    label = load.label if not plain else str(load.concurrency) if load.kind == "closed" else f"{load.rate:g}/s"
    counts = point.batch_reasons or {"unknown": point.batch_rows}
    return PointRow(
        configuration=settings_label(point.settings),
        load=label if load.batch_size == 1 or not plain else f"{label} × {load.batch_size}",
        throughput=point.throughput,
        p50_ms=point.p50_ms,
        p90_ms=point.p90_ms,
        p95_ms=point.p95_ms,
        p99_ms=point.p99_ms,
        mean_batch=point.mean_batch,
        queue_ms=point.queue_ms,
        compute_input_ms=point.compute_input_ms,
        compute_infer_ms=point.compute_infer_ms,
        compute_output_ms=point.compute_output_ms,
        n=point.n,
        failures=point.failed,
        valid=point.valid and not point.error,
        why_not=point.error or "; ".join(point.reasons),
        note="" if point.stable else "not stable: " + "; ".join(point.reasons),
        histogram=flat_histogram(counts),
    )


def points_table(points: Sequence[Point], rows: Sequence[PointRow], best: PointRow | None, run_id: str = "") -> str:
    """All points, newest last; the best one marked, those that are not valid greyed, with the reason below."""
    lines = []
    told = ""
    for point, row in zip(points, rows, strict=True):
        kind = "wb-chosen" if row is best else "" if row.valid else "wb-invalid"
        lines.append(table_row(_cells(point, row, row is best), kind=f"wb-point {kind}"))
        if not row.valid and row.why_not != told:
            text = f'<td class="wb-left" colspan="{len(HEADERS)}">↳ {escape(row.why_not)}</td>'
            lines.append(f'<tr class="wb-invalid wb-reason">{text}</tr>')
        told = row.why_not if not row.valid else ""
    run = f'<div class="wb-muted">Stored as run <span class="wb-mono">{escape(run_id)}</span></div>' if run_id else ""
    return f'<div class="wb-scroll">{table_of(HEADERS, lines)}</div>{run}'


def _cells(point: Point, row: PointRow, best: bool) -> list[str]:
    verdict = chip("valid", "ok") if row.valid else chip("not valid", "bad", row.why_not)
    if row.valid and row.note:
        verdict = chip("not stable", "warn", row.note)
    failed = f" ({point.failed:,} failed)" if point.failed else ""
    return [
        escape(row.configuration),
        escape(row.load),
        number(row.throughput),
        number(row.p50_ms, 2),
        number(row.p90_ms, 2),
        number(row.p99_ms, 2),
        number(row.mean_batch, 2),
        number(row.queue_ms, 2),
        number(row.compute_infer_ms, 2),
        f"{point.n:,}{failed}",
        (chip("best", "ok") + " " if best else "") + verdict,
    ]


def duration(seconds: float) -> str:
    """A time that people read: seconds, from 90 on minutes."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.1f} min"


def best_html(choice: Choice, points: Sequence[Point], goal_p99_ms: float | None) -> str:
    """The best point in a sentence, and what the measured curve says about batching."""
    try:
        advice = advise_batching(points, p99_ms=goal_p99_ms).text
    except WorkbenchError:
        advice = ""  # the grid does not hold both kinds
    more = f'<br><span class="wb-muted">{escape(advice)}</span>' if advice else ""
    point = choice.point
    tied = f" · {len(choice.tied)} more too close to call" if choice.tied else ""
    tied += "" if point.stable else " · not stable: measure it for longer before you rely on it"
    return (
        f'<span class="wb-best"><b>{escape(settings_label(point.settings))}</b></span> at {escape(point.load.label)}: '
        f"<b>{number(point.throughput)}</b> infer/s, p99 <b>{number(point.p99_ms, 2)}</b> ms{escape(tied)}{more}"
    )


def status_tone(result: SweepResult) -> str:
    """How well a sweep ended, as the tone of a chip."""
    return {"done": "ok", "stopped": "warn"}.get(result.status, "bad")


def status_html(result: SweepResult) -> str:
    """How a sweep ended."""
    restored = "configuration restored" if result.restored else "configuration NOT restored"
    text = f"{len(result.points)} of {result.total} points · {restored} {result.error}"
    return f'{chip(result.status, status_tone(result))} <span class="wb-muted">{escape(text)}</span>'


def estimate_html(plan: Plan) -> str:
    """What a sweep would cost."""
    loads = plan.points // max(1, plan.configurations)
    text = (
        f"{plan.configurations} configurations × {loads} loads = {plan.points} points, about {duration(plan.seconds)}"
    )
    return f'<span class="wb-muted">{escape(text)}</span>'
