"""Sweeps of one server that begin at the same moment, through several of its addresses: one of them has the model."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from asking import wait_until
from onnx_models import add_model
from real_triton import real_triton
from served_echo import write_repository

import workbench as wb
from workbench.clock import monotonic_ns
from workbench.errors import NotReady, WorkbenchError
from workbench.records.holder import Holder
from workbench.session.journal import JournalDesk
from workbench.session.remote import TritonServer, WorkbenchServer

DELAY = "dynamic_batching.max_queue_delay_microseconds"
HOLDER = Holder.this_process("sweep of 'double'").to_json()
SWEEPER = """
import sys
import workbench as wb
url, model = sys.argv[1:]
server = wb.connect(url)
print("here", flush=True)
sys.stdin.readline()
try:
    result = server.sweep(model, {"dynamic_batching.max_queue_delay_microseconds": [70, 80]}, concurrency=1,
                          duration_s=2, warmup_s=0.1, max_warmup_s=0.1, min_requests=1, store=None,
                          show_progress=False)
    print("swept", len(result), all(not point.error for point in result), result.restored, repr(result.error))
except wb.errors.NotReady as error:
    print("refused", error.message)
"""


def swept_at_once(urls: Sequence[str], model: str) -> list[str]:
    """What sweeps in processes of their own say that were told to begin together."""
    with contextlib.ExitStack() as stack:
        running = [
            stack.enter_context(
                subprocess.Popen(
                    [sys.executable, "-c", SWEEPER, url, model],
                    stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                )
            )
            for url in urls
        ]  # fmt: skip
        for process in running:
            stack.callback(process.kill)
        for process in running:
            assert process.stdout is not None
            assert process.stdout.readline() == "here\n", process.communicate()
        for process in running:
            assert process.stdin is not None
            process.stdin.write("\n")
            process.stdin.flush()
        said = [process.communicate(timeout=120) for process in running]
    return sorted(out.strip() or error[-2000:] for out, error in said)


def one_has_it(said: Sequence[str]) -> None:
    refused, swept = said[:-1], said[-1]
    assert swept == "swept 2 True True ''", said
    assert refused
    assert all(text.startswith("refused '") and "is being swept by process" in text for text in refused), said


def addresses(server: WorkbenchServer) -> list[str]:
    """Of one server: two names of the HTTP port, and the gRPC port."""
    return [server.url, server.url.replace("127.0.0.1", "localhost"), server.grpc_url]


def test_sweeps_through_several_addresses_that_begin_at_once_are_kept_apart(
    foreign_process: WorkbenchServer, foreign: TritonServer
) -> None:
    before = foreign.model_config("double")
    one_has_it(swept_at_once(addresses(foreign_process), "double"))
    assert foreign.model_config("double") == before


@pytest.mark.full
def test_so_they_are_of_a_real_triton(oracle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    root = write_repository(tmp_path / "models")
    options = ("--model-control-mode=explicit", "--load-model=*")
    with real_triton(oracle, root, tmp_path / "log", options) as triton, wb.connect(triton.http) as server:
        before = server.model_config("echo")
        one_has_it(swept_at_once([triton.http, f"grpc://{triton.grpc}"], "echo"))
        assert server.model_config("echo") == before


class Slow(TritonServer):
    """Gives its configuration when it is told to: a sweep is held between looking and writing down that it has it."""

    def __init__(self, url: str) -> None:
        super().__init__(wb.client.connect(url), url=url)
        self.asked, self.go = threading.Event(), threading.Event()

    def model_config(self, model: str) -> dict[str, Any]:
        self.asked.set()
        self.go.wait(1.0)  # for good where the other one waits for this
        return super().model_config(model)


@pytest.fixture(scope="module")
def unasked(module_state: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorkbenchServer]:
    """One as ``foreign_process`` is, which has answered nothing yet: not to be asked anything."""
    root = tmp_path_factory.mktemp("unasked")
    for model in ("double", "spare"):
        add_model(root, model)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("elsewhere")))
        server = wb.serve(root)
    with server:
        yield server


def test_who_looks_while_another_one_takes_the_model_waits_for_it(
    unasked: WorkbenchServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both looked, and neither found a journal: two had the model."""
    monkeypatch.setattr("workbench.session.journal._LOOKING_S", 0.3)
    taken: list[str] = []
    foreign = wb.connect(unasked.url)
    assert isinstance(foreign, TritonServer)
    slow, desk = Slow(unasked.grpc_url), JournalDesk(foreign)
    first = JournalDesk(slow)
    thread = threading.Thread(target=lambda: taken.append(first.lease("spare", HOLDER, 15.0)))
    thread.start()
    try:
        assert slow.asked.wait(30)
        with pytest.raises(NotReady) as caught:
            desk.lease("spare", HOLDER, 15.0)
    finally:
        slow.go.set()
        thread.join(30)
        first.release_lease("spare", *taken)
        slow.close()
        foreign.close()
    assert f"'spare' is being swept by {Holder.from_json(HOLDER)} at {slow.url}" in caught.value.message
    assert "it cannot be told whether that is this server" in caught.value.message, "it has answered nothing yet"
    assert caught.value.hint == "wait for it or stop it"


def test_one_that_has_answered_but_keeps_its_statistics_to_itself_is_not_said_to_have_answered_nothing(
    module_state: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workbench.session.journal._LOOKING_S", 0.3)
    (tmp_path / "models").mkdir()
    add_model(tmp_path / "models", "spare")
    with monkeypatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path / "elsewhere"))
        options = {"http_restricted_api": "statistics:key=word"}
        served = wb.serve(tmp_path / "models", control_mode="explicit", options=options)
    with served, wb.connect(served.url) as by_http, wb.connect(served.grpc_url) as by_grpc:
        assert isinstance(by_http, TritonServer)
        assert isinstance(by_grpc, TritonServer)
        by_http.infer("spare", {"x": [[1.0, 2.0, 3.0, 4.0]]})
        first = JournalDesk(by_grpc)
        lease = first.lease("spare", HOLDER, 15.0)
        with pytest.raises(NotReady) as caught:
            JournalDesk(by_http).lease("spare", HOLDER, 15.0)
        first.release_lease("spare", lease)
    assert caught.value.message.endswith(
        "it cannot be told whether that is this server: what it has counted does not say"
    )


FAILING = """
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [pb_utils.InferenceResponse(error=pb_utils.TritonError("never")) for _ in requests]
"""
ITS_CONFIG = """
backend: "python"
max_batch_size: 4
input [ { name: "x" data_type: TYPE_FP32 dims: [ 1 ] } ]
output [ { name: "y" data_type: TYPE_FP32 dims: [ 1 ] } ]
"""


def test_a_model_that_has_only_failed_does_not_tell_servers_apart(
    module_state: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workbench.session.journal._LOOKING_S", 0.3)
    (tmp_path / "models" / "failing" / "1").mkdir(parents=True)
    (tmp_path / "models" / "failing" / "config.pbtxt").write_text(ITS_CONFIG)
    (tmp_path / "models" / "failing" / "1" / "model.py").write_text(FAILING)
    with monkeypatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path / "elsewhere"))
        served = wb.serve(tmp_path / "models", control_mode="explicit")
    with served, wb.connect(served.url) as by_http, wb.connect(served.grpc_url) as by_grpc:
        assert isinstance(by_http, TritonServer)
        assert isinstance(by_grpc, TritonServer)
        for _ in range(3):
            with pytest.raises(WorkbenchError, match="never"):
                by_http.infer("failing", {"x": [[1.0]]})
        first = JournalDesk(by_grpc)
        lease = first.lease("failing", HOLDER, 15.0)
        with pytest.raises(NotReady, match="it cannot be told whether that is this server"):
            JournalDesk(by_http).lease("failing", HOLDER, 15.0)
        first.release_lease("failing", lease)


def test_one_that_cannot_be_told_apart_is_waited_for_until_it_ends(unasked: WorkbenchServer) -> None:
    with wb.connect(unasked.url) as foreign, wb.connect(unasked.grpc_url) as other:
        assert isinstance(foreign, TritonServer)
        assert isinstance(other, TritonServer)
        desk, first = JournalDesk(foreign), JournalDesk(other)
        lease, taken = first.lease("spare", HOLDER, 15.0), []
        thread = threading.Thread(target=lambda: taken.append(desk.lease("spare", HOLDER, 15.0)))
        thread.start()
        thread.join(0.3)
        assert not taken
        first.release_lease("spare", lease)
        wait_until(lambda: bool(taken), 20.0)
        thread.join(10)
        desk.release_lease("spare", *taken)


def test_a_model_that_has_counted_nothing_is_told_by_what_others_on_the_server_have(
    foreign_process: WorkbenchServer, foreign: TritonServer, unasked: WorkbenchServer
) -> None:
    """Another server of the host was waited for, and refused in the end; the same server by its other port, too."""
    foreign_process.infer("double", {"x": [[1.0, 2.0, 3.0, 4.0]]})
    first = JournalDesk(foreign)
    lease = first.lease("spare", HOLDER, 15.0)
    try:
        with wb.connect(unasked.url) as second, wb.connect(foreign_process.grpc_url) as by_grpc:
            assert isinstance(second, TritonServer)
            assert isinstance(by_grpc, TritonServer)
            begun = monotonic_ns()
            desk = JournalDesk(second)
            desk.release_lease("spare", desk.lease("spare", HOLDER, 15.0))
            with pytest.raises(NotReady, match=f"'spare' is being swept by .* at {foreign.url}: its configuration"):
                JournalDesk(by_grpc).lease("spare", HOLDER, 15.0)
            assert monotonic_ns() - begun < 10e9, "neither was waited for"
    finally:
        first.release_lease("spare", lease)


def test_sweeps_of_two_servers_of_one_host_do_not_wait_for_each_other_for_good(
    foreign_process: WorkbenchServer, foreign: TritonServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path / "elsewhere"))
        second = wb.serve(foreign_process.repository_paths[0], name="second")
    with second:
        said = swept_at_once([foreign_process.url, second.url], "double")
    assert said == ["swept 2 True True ''"] * 2
