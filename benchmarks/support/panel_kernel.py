"""The notebook's side of ``support/panel.py``: blocks of one measurer with the panel ``live`` in the page and without.

It runs in the notebook's kernel. A block ends in a line of the rows' file, so that nobody has to ask the page.
"""

from __future__ import annotations

import contextlib
import json
import time
from pathlib import Path
from typing import Any

import psutil
from IPython.display import clear_output, display

import workbench as wb
from support.paired import stolen_s
from workbench.clock import monotonic_ns, sleep
from workbench.profiling import Load, Measurer
from workbench.session.measuring import SessionTarget

_PATIENCE_S = 60.0
_SETTLED_S = 1.0
MODEL = "steady"


class Blocks:
    """Measures blocks at concurrency 8; ``browser`` are the processes of the browser."""

    def __init__(self, rows: Path, seconds: float, browser: list[int]) -> None:
        self._rows = rows
        self._server: Any = wb.serve("panel_repository")
        self._load = Load.closed(8, duration_s=seconds, max_duration_s=seconds, warmup_s=0.3, max_warmup_s=0.3)
        self._browser = [psutil.Process(pid) for pid in browser]

    def run(self, pairs: int, told: bool) -> None:
        """Pairs of blocks in the order ABBA; ``told`` as ``server.profile`` measures, so that the session knows."""
        session = self._server.session
        with Measurer(SessionTarget(self._server), MODEL) as measurer:
            measurer.measure(self._load)  # the generator starts
            for pair in range(pairs):
                for opened in (True, False) if pair % 2 else (False, True):
                    panel = self._open() if opened else None
                    sleep(_SETTLED_S)  # after one that went, too: its page is drawn anew
                    with session.measuring_window() if told else contextlib.nullcontext():
                        row = self._block(measurer)
                    row |= {"told": told, "opened": opened, "watchers": session.watchers}
                    if panel is not None:
                        panel.close()
                        clear_output()  # type: ignore[no-untyped-call]
                        self._until(0)
                    with self._rows.open("a") as file:
                        file.write(json.dumps(row) + "\n")

    def close(self) -> None:
        """Ends the server."""
        self._server.close()

    def _open(self) -> Any:
        """A panel that is in the page."""
        panel = self._server.panel("live", model=MODEL)
        display(panel)  # type: ignore[no-untyped-call]
        self._until(1)
        return panel

    def _until(self, watchers: int) -> None:
        deadline = monotonic_ns() + int(_PATIENCE_S * 1e9)
        while self._server.session.watchers != watchers:
            if monotonic_ns() > deadline:
                raise RuntimeError(f"the page does not have {watchers} panels")
            sleep(0.05)

    def _block(self, measurer: Measurer) -> dict[str, Any]:
        start, kernel, browser, stolen = monotonic_ns(), time.process_time(), self._browser_s(), stolen_s()
        point = measurer.measure(self._load)
        seconds = (monotonic_ns() - start) / 1e9
        return {
            "throughput": point.throughput,
            "p50_ms": point.p50_ms,
            "failed": point.failed,
            "said": [*point.notes, *point.reasons],
            "kernel": (time.process_time() - kernel) / seconds,
            "browser": (self._browser_s() - browser) / seconds,
            "stolen_s": stolen_s() - stolen,
        }

    def _browser_s(self) -> float:
        """CPU seconds of the browser so far."""
        total = 0.0
        for process in self._browser:
            with contextlib.suppress(psutil.NoSuchProcess):
                times = process.cpu_times()
                total += times.user + times.system
        return total
