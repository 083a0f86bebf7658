"""An edit and a reload while requests come in: what the user is promised, seen at the server and at the clients."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import numpy as np
import psutil
import pytest
from live_edit import DELAY, LoadInBackground, check_live_edit, served
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


@pytest.mark.parametrize(
    ("model", "edits"),
    [
        pytest.param(
            "tokenizer",
            [
                ("instance_group[0].count=3", "instances"),
                ("dynamic_batching.preferred_batch_size=[4, 8]", "live"),
                ("dynamic_batching.priority_levels=3", "live"),
                ("dynamic_batching.default_priority_level=2", "live"),
                ("instance_group[0].count=1", "instances"),
                ('parameters["max_length"].string_value="64"', "reload"),
                ("max_batch_size=32", "reload"),
            ],
            id="python",
        ),
        pytest.param(
            "double",
            [
                ("instance_group[0].count=2", "instances"),
                ("max_batch_size=16", "live"),
                ("instance_group[0].count=1", "instances"),
                ('parameters["intra_op_thread_count"].string_value="2"', "reload"),
            ],
            id="onnx",
        ),
    ],
)
def test_every_class_of_change_under_load_loses_nothing(
    server: WorkbenchServer, model: str, edits: list[tuple[str, str]]
) -> None:
    last = server.record_columns().last_seq
    steps = [
        # What cannot stand without the other goes together.
        (edit, *(["dynamic_batching.default_priority_level=2"] if "priority_levels" in edit else []))
        for edit, _ in edits
    ]
    with LoadInBackground(server, model, duration_s=4.0) as load:
        for (_, kind), step in zip(edits, steps, strict=True):
            sleep(0.15)
            result = server.configure(model, *step)
            assert result.change_class in (kind, "none"), result
            if kind == "live":
                assert result.took_ms < 100
        server.revert(model)
        samples = load.finish()
    assert samples.errors() == {}
    assert samples.ok.all()
    assert served(server, model, last) == (len(samples.sent), 0)
    assert not server.config(model).dirty


def test_killing_the_server_in_a_sweep_leaves_the_files_and_takes_the_models_with_it(server: WorkbenchServer) -> None:
    folder = server.repository_paths[0]
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    children = instance_processes(server)
    assert children
    job = server.session.start_sweep(
        "tokenizer", {DELAY: [1000, 2000, 3000]}, concurrency=4, duration_s=5.0, warmup_s=0.1, store=None
    )
    assert until(lambda: server.config("tokenizer").dirty)
    os.kill(server.pid, signal.SIGKILL)
    result = job.wait(60)
    assert result is not None
    assert "no server answers" in result.error or "closed the connection" in result.error
    assert not result.restored
    assert result.status == "failed"
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before
    assert until(lambda: not any(child.is_running() for child in children))


def until(condition: Callable[[], bool], timeout_s: float = 10.0) -> bool:
    """Whether it becomes true in time."""
    end = monotonic_ns() + int(timeout_s * 1e9)
    while not condition():
        if monotonic_ns() > end:
            return False
        sleep(0.02)
    return True


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
