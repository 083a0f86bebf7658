"""What ``server.timeline`` and ``server.waterfall`` give: records to look at, as text, table, chart and file."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from workbench.records.perfetto import write_perfetto
from workbench.records.timeline import TimelineData, timeline_of
from workbench.records.waiting import groups
from workbench.records.waterfall import WaterfallData, ms, waterfall_of
from workbench.session.results import _table

if TYPE_CHECKING:
    import pandas as pd

    from workbench.charts.style import Chart
    from workbench.records import RecordColumns

_STILL_BARS = 600


class Timeline:
    """The requests and batches of some seconds: who waited for whom, on which instance, why each batch left the queue.

    Shown in a notebook it is a chart; ``data`` has the columns (``requests``, ``batches``, ``waits``).
    """

    def __init__(self, data: TimelineData, columns: RecordColumns) -> None:
        self.data = data
        self._columns = columns  # all: what is left out may have been waited for

    @classmethod
    def of_records(
        cls, columns: RecordColumns, *, model: str | None = None, last: float | None = None, now_ns: int | None = None
    ) -> Timeline:
        """A timeline of records that were kept: ``Timeline.of_records(run.records(point))``.

        Args:
            columns: requests and batches.
            model: one model and what was made for it; None is all.
            last: seconds before ``now_ns``; None is all.
            now_ns: the time that counts as now; None takes the newest record's end.

        Raises:
            NotFound: ``model`` has no record there.
        """
        if now_ns is None:
            now_ns = int(columns.requests["end"].max(initial=0))
        return cls(timeline_of(columns, now_ns, model=model, last_s=last), columns)

    def frame(self) -> pd.DataFrame:
        """One row a request: its batch, how long it waited, on which instance, behind which batch; times in ms.

        ``waited_ms`` is from the queue to the forming of its batch: in ``busy_ms`` of it the instance that took it
        executed other batches, of which ``behind`` was the last; in ``free_ms`` it did not. ``reason`` is why its batch
        left the queue, ``ahead`` how many batches of its model were formed while it waited. ``arrival_ms`` counts from
        the first stamp of the timeline.
        """
        frame: pd.DataFrame = self.data.frame()
        return frame

    def instances(self) -> pd.DataFrame:
        """One row an instance: ``batches``, ``requests``, ``mean_rows``, ``busy`` (share of the time), ``reasons``."""
        import pandas as pd

        batches, (begin, end) = self.data.batches, self.data.span_ns
        rows = []
        for which in groups(batches, ("model", "instance")):
            busy = int((batches["done"][which] - np.maximum(batches["acquired"][which], begin)).sum())
            names, counts = np.unique(batches["reason"][which].astype(str), return_counts=True)
            common = sorted(zip(counts.tolist(), names.tolist(), strict=True), reverse=True)
            rows.append(
                {
                    "model": batches["model"][which[0]], "instance": batches["instance"][which[0]],
                    "batches": len(which), "requests": int(batches["requests"][which].sum()),
                    "mean_rows": float(batches["rows"][which].mean()), "busy": busy / max(1, end - begin),
                    "reasons": ", ".join(f"{name} {count}" for count, name in common),
                }
            )  # fmt: skip
        columns = ["model", "instance", "batches", "requests", "mean_rows", "busy", "reasons"]
        return pd.DataFrame(rows, columns=columns).sort_values(["model", "instance"], ignore_index=True)

    def waterfall(self, request: int | str) -> Waterfall:
        """One request, as the records were when this timeline was made; see ``Server.waterfall``.

        Raises:
            NotFound: it had no record then.
        """
        return Waterfall(waterfall_of(self._columns, request))

    def chart(self) -> Chart:
        """Bokeh figures with one time axis: latency of each request, batches of each instance, requests waiting.

        ``figure, sources = timeline.chart()``; of very many batches the newest are drawn.
        """
        from workbench.charts.timeline import draw_timeline, timeline_info

        return draw_timeline(timeline_info(self.data))

    def perfetto(self, path: str | Path) -> Path:
        """Writes a trace that https://ui.perfetto.dev opens (Chrome's trace-event JSON; ``.gz`` compresses it).

        Raises:
            InvalidRequest: it cannot be written there.
        """
        return write_perfetto(self.data, path)

    def __len__(self) -> int:
        return len(self.data.requests["seq"])

    def __repr__(self) -> str:
        data, waits = self.data, self.data.waits
        begin, end = data.span_ns
        head = f"Timeline{f' of {data.model}' if data.model else ''}: {len(self):,} requests, "
        head += f"{len(data.batches['done']):,} batches in {(end - begin) / 1e9:.2f} s"
        lines = [head]
        if len(self):
            whole = waits.busy + waits.free
            text = f"a request waited {ms(whole.mean())} on average, {ms(whole.max())} at most"
            if whole.sum():
                text += (
                    f": {waits.busy.sum() / whole.sum():.0%} of it for an instance that was busy, "
                    f"{waits.free.sum() / whole.sum():.0%} for its batch to be formed"
                )
            lines.append(text)
            slowest = int(np.argmax(data.requests["end"] - data.requests["arrival"]))
            lines.append(f"slowest: waterfall({data.requests['seq'][slowest]})")
        known: Any = self.instances().itertuples(index=False)
        rows = [
            (str(row.instance), f"{row.batches:,}", f"{row.requests:,}", f"{row.mean_rows:.2f}", f"{row.busy:.0%}",
             str(row.reasons))
            for row in known
        ]  # fmt: skip
        if rows:
            lines += ["", _table(("instance", "batches", "requests", "mean rows", "busy", "why batches left"), rows)]
        if data.lost:
            lines.append(f"{data.lost:,} older records are no longer kept")
        return "\n".join(lines)

    def _repr_mimebundle_(self, **options: Any) -> Any:
        from workbench.charts.timeline import draw_timeline, timeline_info

        panels = importlib.import_module("workbench.panels")  # the late binding of the house
        still = timeline_info(self.data, limit=_STILL_BARS)
        return panels.chart_bundle(draw_timeline, timeline_info(self.data), repr(self), still)


class Waterfall:
    """Where the time of one request went; text in a terminal, a chart in a notebook.

    ``sentence`` says it in words; ``data`` has the bars.
    """

    def __init__(self, data: WaterfallData) -> None:
        self.data = data

    @property
    def sentence(self) -> str:
        """Where the time went."""
        return self.data.sentence

    def chart(self) -> Chart:
        """A Bokeh figure: ``figure, sources = waterfall.chart()``."""
        from workbench.charts.waterfall import draw_waterfall

        return draw_waterfall(self.data)

    def frame(self) -> pd.DataFrame:
        """One row a phase of each bar: ``kind``, ``seq``, ``model``, ``instance``, ``phase``, ``start_ms``, ``ms``."""
        import pandas as pd

        begin = min((start for bar in self.data.bars for _, start, _ in bar.phases), default=0)
        rows = [
            {
                "kind": bar.kind, "seq": bar.seq, "model": bar.model, "instance": bar.instance,
                "batch_seq": bar.batch_seq, "phase": name, "start_ms": (start - begin) / 1e6,
                "ms": (stop - start) / 1e6,
            }
            for bar in self.data.bars
            for name, start, stop in bar.phases
        ]  # fmt: skip
        return pd.DataFrame(rows)

    def __repr__(self) -> str:
        return self.data.to_text()

    def _repr_mimebundle_(self, **options: Any) -> Any:
        from workbench.charts.waterfall import draw_waterfall

        panels = importlib.import_module("workbench.panels")
        return panels.chart_bundle(draw_waterfall, self.data, repr(self))
