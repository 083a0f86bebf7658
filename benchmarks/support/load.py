"""One load point of perf_analyzer against a server, with the server's CPU time and batches meanwhile."""

from __future__ import annotations

import csv
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from support.servers import Server


@dataclass(frozen=True, slots=True)
class Measured:
    """Requests/s, latencies in µs, CPU microseconds of the server for a request, requests in a batch."""

    rate: float
    p50_us: float
    p99_us: float
    cpu_us: float
    batch: float


@dataclass(frozen=True, slots=True)
class LoadClient:
    """perf_analyzer, with three windows of ``window_s`` a point."""

    oracle: Path
    window_s: float

    def measure(
        self, server: Server, model: str, protocol: str, concurrency: int, window_s: float | None = None
    ) -> Measured:
        """One closed-loop point over ``http`` or ``grpc``.

        perf_analyzer keeps the tensors of all requests until its end: with large ones ``window_s`` must be short.

        Raises:
            RuntimeError: perf_analyzer failed.
        """
        requests, batches = server.counts(model)
        cpu = server.cpu_s()
        row = self._row(server, model, protocol, concurrency, window_s or self.window_s)
        cpu = server.cpu_s() - cpu
        answered, executed = server.counts(model)
        count = max(1, answered - requests)
        return Measured(
            float(row["Inferences/Second"]),
            float(row["p50 latency"]),
            float(row["p99 latency"]),
            cpu * 1e6 / count,
            count / max(1, executed - batches),
        )

    def _row(self, server: Server, model: str, protocol: str, concurrency: int, shortest_s: float) -> dict[str, str]:
        """perf_analyzer's row; where a window holds too few answers of a slow model it is made longer."""
        text = ""
        with tempfile.TemporaryDirectory() as folder:
            table = Path(folder) / "point.csv"
            for window_s in (shortest_s, shortest_s * 3, shortest_s * 9):
                command = [
                    "timeout", "-s", "KILL", "120", str(self.oracle / "perf-analyzer"), "-m", model, "-i", protocol,
                    "-u", server.http if protocol == "http" else server.grpc, "--async", "--concurrency-range",
                    str(concurrency), "-p", str(int(window_s * 1000)), "-s", "999", "-r", "3", "-f", str(table),
                ]  # fmt: skip
                done = subprocess.run(command, capture_output=True, text=True, check=False)
                if not done.returncode and table.exists():
                    return next(csv.DictReader(table.open()))
                text = f"exit {done.returncode} with windows of {window_s:g} s: {done.stdout + done.stderr}"
        raise RuntimeError(f"perf_analyzer failed: {' '.join(text.split())[:400]}")
