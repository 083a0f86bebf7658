"""A sweep that is interrupted while the server takes its configuration: what was there is put back all the same."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from asking import wait_until

from workbench.errors import ConnectionFailed, NotReady
from workbench.profiling import SweepResult
from workbench.session.remote import TritonServer, WorkbenchServer

DELAY = "dynamic_batching.max_queue_delay_microseconds"
QUICK: dict[str, Any] = {"duration_s": 0.1, "warmup_s": 0.01, "min_requests": 1, "store": None, "show_progress": False}


class Interrupted:
    """Stands before a server that takes one load after the other: the sender of the first one is interrupted, or gets
    no answer for another reason, and it is done only when somebody has asked what is loaded."""

    def __init__(self, load: Callable[..., None], config: Callable[[str], dict[str, Any]], why: BaseException) -> None:
        self._load, self._config, self._why = load, config, why
        self._turn = threading.Lock()
        self._asked = threading.Event()
        self.late: threading.Thread | None = None

    def load(self, model: str, config: Any = None, **more: Any) -> None:
        if self.late is None:
            self._turn.acquire()
            self._asked.clear()
            self.late = threading.Thread(target=self._do_late, args=(model, config))
            self.late.start()
            raise self._why
        with self._turn:
            self._load(model, config=config, **more)

    def _do_late(self, model: str, config: Any) -> None:
        try:
            self._asked.wait(30)
            self._load(model, config=config)
        finally:
            self._turn.release()

    def model_config(self, model: str) -> dict[str, Any]:
        found = self._config(model)
        if self.late is not None:
            self._asked.set()
        return found


@pytest.mark.parametrize(
    ("why", "status"),
    [(KeyboardInterrupt(), "stopped"), (NotReady("HTTP status 504"), "done"), (ConnectionFailed("cut off"), "failed")],
    ids=["interrupted", "a gateway", "no connection"],
)
def test_a_load_that_is_still_under_way_when_the_sweep_ends_is_undone(
    foreign: TritonServer, monkeypatch: pytest.MonkeyPatch, why: BaseException, status: str
) -> None:
    before = foreign.model_config("double")
    client = foreign._client
    between = Interrupted(client.load, client.model_config, why)
    with monkeypatch.context() as patch:
        patch.setattr(client, "load", between.load)
        patch.setattr(client, "model_config", between.model_config)
        result = foreign.sweep("double", {DELAY: [70]}, concurrency=1, **QUICK)
        assert between.late is not None
        between.late.join(30)
    assert isinstance(result, SweepResult)
    assert (result.status, result.restored) == (status, True), result.error
    assert foreign.model_config("double") == before


@pytest.mark.skipif(sys.platform == "win32", reason="no such signals there")
@pytest.mark.parametrize("sent", ["SIGINT", "SIGTERM"])
def test_a_profile_that_is_stopped_says_so(process: WorkbenchServer, tmp_path: Path, sent: str) -> None:
    """As a sweep does: before, the table of what there was, and exit code 1 as of a point that is not valid."""
    command = [sys.executable, "-m", "workbench.cli", "profile", "double", "-u", process.url, "--runs", str(tmp_path)]
    command += ["--concurrency", "1,2,3", "-p", "60000", "--warmup", "0"]

    def answered() -> int:
        return int(process.statistics("double")["model_stats"][0]["inference_stats"]["success"]["count"])

    before = answered()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        wait_until(lambda: running.poll() is not None or answered() > before + 50, 60.0)
        running.send_signal(getattr(signal, sent))
        _, said = running.communicate(timeout=60)
    assert running.returncode == 130, said
    assert " of 3 points" in said
    assert process.control.leases() == []
