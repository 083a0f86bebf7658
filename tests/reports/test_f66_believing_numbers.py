"""Can the measured numbers be believed? (server#3113; perf_analyzer#393, client#114, client#116, server#7436)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import report_models as models

import workbench as wb
from workbench.cli import main

STALLS = """
class TritonPythonModel:
    def initialize(self, args):
        self.begun = time.monotonic()
        self.stalls = 0

    def execute(self, requests):
        every, stall = {every}, {stall}
        if time.monotonic() - self.begun > (self.stalls + 1) * every:
            self.stalls += 1
            time.sleep(stall)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.ones((1, 1), np.float32))]) for _ in requests]
"""
SLOW_MS = 450
ONCE: dict[str, Any] = {"warmup_s": 0.0, "min_requests": 1}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[wb.Server]:
    root = tmp_path_factory.mktemp("believe") / "models"
    models.add(root, "stalls", models.python(), STALLS.format(every=2.0, stall=0.2))
    models.add(root, "slow", models.identity(ms=SLOW_MS, size=1))
    models.add(root, "quick", models.identity(ms=2, size=1))
    with wb.serve(root, name="believe") as opened:
        yield opened


def test_f66_server_3113_a_stall_shows_in_latency_from_the_planned_time(server: wb.Server) -> None:
    """Stalled for a tenth of the time: a twentieth of the requests waits for more than half of a stall."""
    point = server.profile(
        "stalls", rate=100, distribution="constant", duration_s=4.0, max_duration_s=4.0, warmup_s=0.0
    )
    assert point.n == pytest.approx(400, abs=30)
    assert point.p50_ms < 60
    assert 120 < point.p99_ms < 400


@pytest.mark.full
def test_f66_server_3113_a_second_in_ten_at_50_a_second(root: Path) -> None:
    models.add(root, "stalls", models.python(), STALLS.format(every=10.0, stall=1.0))
    with wb.serve(root) as server:
        point = server.profile("stalls", rate=50, distribution="constant", duration_s=20.0, max_duration_s=20.0)
    assert 0.85 < point.p99_ms / 1000 < 1.2
    assert point.p50_ms < 100


def test_f66_perf_analyzer_393_requests_are_counted_by_their_end_in_the_window(server: wb.Server) -> None:
    """perf_analyzer was seen to count 7 where 2 fit."""
    window_s = 2.2 * SLOW_MS / 1000
    point = server.profile("slow", concurrency=1, duration_s=window_s, max_duration_s=window_s, **ONCE)
    assert point.n in (2, 3)
    assert point.throughput == pytest.approx(1000 / SLOW_MS, rel=0.4)


def test_f66_client_114_throughput_and_latency_fit_together_and_it_is_printed(server: wb.Server) -> None:
    point = server.profile("quick", concurrency=4, duration_s=1.0)
    assert point.littles_law == pytest.approx(1.0, abs=0.05)
    assert f"Little's law {point.littles_law:.2f}" in repr(point)
    assert point.throughput * point.mean_ms / 1000 == pytest.approx(4, rel=0.06)


def test_f66_server_7436_one_window_is_reported_as_measured_and_the_exit_code_says_what_it_is_worth(
    server: wb.Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """perf_analyzer gives up: `Failed to obtain stable measurement within 1 measurement windows`."""
    window = ["-p", "1000", "--warmup", "0", "--runs", str(tmp_path / "runs"), "--json"]
    code = main(["profile", "slow", "--server", "believe", "--concurrency", "1", *window])
    (point,) = json.loads(capsys.readouterr().out)["points"]
    assert point["n"] >= 1
    assert point["mean_ms"] == pytest.approx(SLOW_MS, rel=0.3)
    assert not point["stable"]
    assert point["reasons"]
    assert code == 1
