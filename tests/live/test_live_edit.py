"""An edit and a reload while requests come in: what the user is promised, seen at the server and at the clients."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import numpy as np
import psutil
import pytest
from live_edit import LoadInBackground, check_live_edit, served
from onnx_models import scale

from workbench.clock import monotonic_ns, sleep
from workbench.session.remote import WorkbenchServer


def instance_processes(server: WorkbenchServer) -> list[psutil.Process]:
    return psutil.Process(server.pid).children(recursive=True)


def kill_in_the_middle_of_a_batch(server: WorkbenchServer) -> None:
    """Halts the model's process, waits until a batch is in it, then kills it."""
    (child,) = instance_processes(server)
    os.kill(child.pid, signal.SIGSTOP)
    end = monotonic_ns() + 5_000_000_000
    while monotonic_ns() < end:
        (version,) = [each for each in server.state()["versions"] if each["model"] == "tokenizer"]
        if any(instance["busy"] for instance in version["instances"]) and version["pending"] > 1:
            break
        sleep(0.01)
    os.kill(child.pid, signal.SIGKILL)


def test_an_edit_under_load_takes_effect_within_a_second_and_loses_nothing(server: WorkbenchServer) -> None:
    assert len(instance_processes(server)) == 1  # the tokenizer runs in a process of its own
    verdict = check_live_edit(server, "tokenizer")
    print(verdict)
    assert verdict.ok, verdict.complaints
    assert verdict.sent > 600


def test_the_check_goes_red_when_an_instance_process_is_killed(server: WorkbenchServer) -> None:
    verdict = check_live_edit(server, "tokenizer", lambda: kill_in_the_middle_of_a_batch(server))
    print(verdict)
    assert not verdict.ok
    assert any("failed at the client" in text for text in verdict.complaints), verdict.complaints
    assert any("failed at the server" in text for text in verdict.complaints), verdict.complaints
    # It took its own batch with it and nothing else; a new process serves.
    assert 0 < verdict.failed < 40
    assert verdict.answered == verdict.server_successes
    assert len(instance_processes(server)) == 1
    assert server.infer("tokenizer", {"TEXT": [["still here"]]})["input_ids"].shape == (1, 4)


@pytest.mark.parametrize("times", [3])
def test_a_reload_of_the_tokenizer_under_load_loses_nothing(server: WorkbenchServer, times: int) -> None:
    weights = server.repository_paths[0] / "tokenizer" / "1" / "tokenizer.json"
    last = server.record_columns().last_seq
    seen = {child.pid for child in instance_processes(server)}
    with LoadInBackground(server, "tokenizer", duration_s=3.0) as load:
        for _ in range(times):
            sleep(0.3)
            _replace(weights, weights.read_bytes())
            server.load("tokenizer")
            seen |= {child.pid for child in instance_processes(server)}
        samples = load.finish()
    assert len(seen) >= times + 1  # a new process each time
    assert samples.errors() == {}
    assert samples.ok.all()
    assert len(samples.sent) > 400
    assert served(server, "tokenizer", last) == (len(samples.sent), 0)


def test_a_reload_of_onnx_weights_under_load_loses_nothing_and_changes_the_answers(server: WorkbenchServer) -> None:
    weights = server.repository_paths[0] / "double" / "1" / "model.onnx"
    last = server.record_columns().last_seq
    row = np.ones((1, 4), np.float32)
    answers = []
    with LoadInBackground(server, "double", duration_s=2.0) as load:
        for factor in (3.0, 4.0, 5.0):
            sleep(0.2)
            _replace(weights, scale(factor))
            server.load("double")
            answers.append(float(server.infer("double", {"x": row})["y"][0, 0]))
        samples = load.finish()
    assert answers == [3.0, 4.0, 5.0]
    assert samples.errors() == {}
    assert samples.ok.all()
    assert len(samples.sent) > 300
    assert served(server, "double", last) == (len(samples.sent) + 3, 0)


def test_a_failed_reload_under_load_keeps_the_old_weights_serving(server: WorkbenchServer) -> None:
    weights = server.repository_paths[0] / "double" / "1" / "model.onnx"
    with LoadInBackground(server, "double", duration_s=1.5) as load:
        sleep(0.2)
        _replace(weights, b"no model at all")
        with pytest.raises(Exception, match=r"failed to load|load failed"):
            server.load("double")
        assert server.infer("double", {"x": np.ones((1, 4), np.float32)})["y"][0, 0] == 2.0
        samples = load.finish()
    assert samples.errors() == {}
    assert samples.ok.all()


def _replace(path: Path, data: bytes) -> None:
    new = path.with_name(path.name + ".new")
    new.write_bytes(data)
    new.replace(path)
