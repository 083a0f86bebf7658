"""``server.logs()``: what models log, print and raise, with the requests, their response times and their ends."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import workbench as wb
from workbench.errors import InternalError, InvalidRequest, Unsupported, WorkbenchError
from workbench.session.logs import LogLine, LogLines
from workbench.session.server import Server

CONFIG = """
name: "{name}" backend: "python" max_batch_size: 8
input [ {{ name: "x" data_type: TYPE_FP32 dims: [ 1 ] }} ]
output [ {{ name: "y" data_type: TYPE_FP32 dims: [ 1 ] }} ]
{more}
"""
TALKS = """import sys
import time

import triton_python_backend_utils as pb_utils


def inverse(x):
    return 1 / x


class TritonPythonModel:
    def initialize(self, args):
        pb_utils.Logger.log_info("hello")

    def execute(self, requests):
        answers = []
        for request in requests:
            x = pb_utils.get_input_tensor_by_name(request, "x").as_numpy()
            value = float(x[0, 0])
            pb_utils.Logger.log_warn(f"asked for {value:g}")
            pb_utils.Logger.log_verbose("in detail")
            print("printed", value)
            print("without an end", end="", file=sys.stderr)
            time.sleep(max(0, value) / 1000)
            try:
                inverse(value)
            except ZeroDivisionError as error:
                raise ValueError("nothing by nothing") from error
            answers.append(pb_utils.InferenceResponse([pb_utils.Tensor("y", x)]))
        return answers
"""
ASKS = """import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        answers = []
        for request in requests:
            pb_utils.Logger.log_info("asking")
            x = pb_utils.get_input_tensor_by_name(request, "x")
            nested = pb_utils.InferenceRequest(model_name="talks", requested_output_names=["y"], inputs=[x])
            y = pb_utils.get_output_tensor_by_name(nested.exec(), "y")
            answers.append(pb_utils.InferenceResponse([y]))
        return answers
"""
QUIET = """import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        x = [pb_utils.get_input_tensor_by_name(request, "x") for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("y", each.as_numpy())]) for each in x]
"""
DECOUPLED = """import threading

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            threading.Thread(target=self.answer, args=[request]).start()

    def answer(self, request):
        pb_utils.Logger.log_info("from a thread")
        request.get_response_sender().send(
            pb_utils.InferenceResponse([pb_utils.Tensor("y", request.inputs()[0].as_numpy())]),
            flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL,
        )
"""
WAIT = "dynamic_batching { max_queue_delay_microseconds: 400000 preferred_batch_size: [ 3 ] }"
LATE = """dynamic_batching {
  max_queue_delay_microseconds: 400000 preferred_batch_size: [ 3 ]
  default_queue_policy { timeout_action: REJECT default_timeout_microseconds: 1000 }
}"""
STREAMS = "model_transaction_policy { decoupled: true }"


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("logs") / "models"
    for name, code, more in (
        ("talks", TALKS, ""), ("batches", TALKS, WAIT), ("asks", ASKS, ""), ("quiet", QUIET, ""),
        ("streams", DECOUPLED, STREAMS), ("late", QUIET, LATE),
    ):  # fmt: skip
        (root / name / "1").mkdir(parents=True)
        (root / name / "1" / "model.py").write_text(code)
        (root / name / "config.pbtxt").write_text(CONFIG.format(name=name, more=more))
    return root


@pytest.fixture(scope="module", params=["thread", "process", "background"])
def server(request: pytest.FixtureRequest, models: Path, module_state: None) -> Iterator[Server]:
    if request.param == "background":
        with wb.serve(models, name="logs") as served:
            yield served
        return
    with wb.Engine(models, python_execution=request.param) as engine:
        yield engine


_ids = (f"r{number}" for number in itertools.count())


def ask(server: Server, model: str, value: float) -> str:
    """Asks and gives the request's id; what a model raises is in the log."""
    id = next(_ids)
    try:
        server.infer(model, {"x": np.array([[value]], np.float32)}, id=id)
    except WorkbenchError:
        assert value == 0
    return id


def until(read: Callable[[], LogLines], holds: Callable[[LogLines], Any]) -> LogLines:
    """Reads until something holds: the end of a request is recorded while its answer is on its way."""
    for _ in range(400):
        lines = read()
        if holds(lines):
            return lines
        threading.Event().wait(0.05)
    raise AssertionError(lines)


def of_request(server: Server, id: str) -> LogLines:
    return until(lambda: server.logs(request=id), lambda lines: any(line.source == "request" for line in lines))


def test_a_requests_lines_come_with_their_place_its_number_and_its_response_time(server: Server) -> None:
    id = ask(server, "talks", 30)
    lines = of_request(server, id)
    said = [(line.level, line.source, line.where, line.text) for line in lines[:-1]]
    assert said == [
        ("warning", "logger", "model.py:20", "asked for 30"),
        ("info", "stdout", "model.py:22", "printed 30.0"),
        ("warning", "stderr", said[2][2], "without an end"),
    ]
    record = server.records()
    record = record[record["request_id"] == id].iloc[0]
    took = (record["end"] - record["arrival"]) / 1e6
    for line in lines:
        assert line.seqs == (record["seq"],)
        assert line.request_ids == (id,)
        assert (line.model, line.version, line.instance) == ("talks", 1, "talks_0")
        assert line.batch_seq == record["batch_seq"]
        assert line.response_ms == pytest.approx(took)
        assert line.status == "ok"
    assert took >= 30
    assert lines[-1].text.startswith(f"ok in {took:.1f} ms (queue ")
    assert id in repr(lines)
    assert "asked for 30" in repr(lines)
    frame = lines.to_frame()
    assert list(frame["text"]) == [line.text for line in lines]
    assert str(frame["time"].dt.tz) == "UTC"


def test_an_error_carries_the_python_traceback_with_the_models_lines(server: Server) -> None:
    id = ask(server, "talks", 0)
    lines = of_request(server, id)
    (error,) = [line for line in lines if line.source == "error"]
    assert error.level == "error"
    assert error.where == "model.py:28"
    assert "message: ValueError: nothing by nothing" in error.text
    assert error.status == "BACKEND"
    trace = error.traceback
    assert trace.startswith("Traceback (most recent call last):\n")
    assert 'model.py", line 8, in inverse\n    return 1 / x' in trace
    assert "ZeroDivisionError: float division by zero" in trace
    assert 'model.py", line 28, in execute\n    raise ValueError("nothing by nothing") from error' in trace
    assert "runner.py" not in trace, "the workbench's own frames are not shown"
    assert lines[-1].text.startswith("failed after ")
    assert lines[-1].level == "error"
    assert 'raise ValueError("nothing by nothing") from error' in repr(lines)
    # and from there to the record, and to the request itself
    (kept,) = [row for row in server.captured() if row.seq == error.seqs[0]]
    assert kept.why == "failed"


def test_lines_of_a_batch_belong_to_all_of_its_requests(server: Server) -> None:
    with_ids: list[str] = []
    threads = [threading.Thread(target=lambda: with_ids.append(ask(server, "batches", 5))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    lines = of_request(server, with_ids[0])
    assert set(lines[0].request_ids) == set(with_ids)
    assert len(lines[0].seqs) == 3
    assert [line.text for line in lines].count("asked for 5") == 3
    assert lines[-1].seqs == server.logs(request=with_ids[0], last=1)[0].seqs, "its own end alone"
    assert lines[-1].text.startswith("ok in ")
    together = until(lambda: server.logs(model="batches"), lambda found: found[-1].source == "request")
    assert together[-1].text.startswith("3 requests ok in ")
    assert together[-1].response_ms == lines[0].response_ms


def test_a_requests_lines_include_those_of_the_requests_made_for_it(server: Server) -> None:
    lines = of_request(server, ask(server, "asks", 7))
    lines = until(lambda: server.logs(request=lines[0].seqs[0]), lambda found: len(found) == 6)
    assert [(line.model, line.text.split(" (")[0]) for line in lines if line.source != "request"] == [
        ("asks", "asking"), ("talks", "asked for 7"), ("talks", "printed 7.0"), ("talks", "without an end")
    ]  # fmt: skip
    assert [line.model for line in lines if line.source == "request"] == ["talks", "asks"]


def test_lines_of_a_decoupled_models_threads_find_their_request(server: Server) -> None:
    if isinstance(server, wb.Engine):
        answers = list(server.engine.infer_stream(_request("streams", "streamed")))
        assert answers
        lines = until(lambda: server.logs(model="streams", text="from a thread"), len)
        assert lines[0].where == "model.py:12"
        if server.engine.options.python_execution == "process":
            assert lines[0].request_ids == ("streamed",)


def _request(model: str, id: str) -> Any:
    from workbench.protocol.tensors import InferenceRequest, Tensor

    return InferenceRequest(model, [Tensor("x", "FP32", (1, 1), np.ones((1, 1), np.float32))], id=id)


def test_filters(server: Server) -> None:
    quick, slow, failed = ask(server, "talks", 1), ask(server, "talks", 80), ask(server, "talks", 0)
    quiet = ask(server, "quiet", 1)
    for id in (quick, slow, failed, quiet):
        of_request(server, id)
    texts = [line.text for line in server.logs(slower_than_ms=75)]
    assert "asked for 80" in texts
    assert "asked for 1" not in texts
    assert {line.level for line in server.logs(level="error")} == {"error"}
    assert {line.model for line in server.logs(model="quiet")} == {"quiet"}
    assert not [line for line in server.logs(model="quiet") if line.source == "request"], (
        "it was quick and said nothing"
    )
    assert [line.source for line in server.logs(request=quiet)] == ["request"]
    assert [line.source for line in server.logs(model="quiet", slower_than_ms=0) if line.seqs][-1] == "request"
    assert all("NOTHING BY".lower() in (line.text + line.traceback).lower() for line in server.logs(text="NOTHING by"))
    assert len(server.logs(text="NOTHING by")) >= 1
    assert len(server.logs(last=2)) == 2
    assert len(server.logs(request="no such id")) == 0
    assert repr(server.logs(request="no such id")) == "no lines"
    cursor = server.logs().cursor
    again = ask(server, "talks", 2)
    lines = until(lambda: server.logs(after=cursor), lambda found: any(line.source == "request" for line in found))
    assert {line.request_ids for line in lines if line.seqs} == {(again,)}
    with pytest.raises(InvalidRequest, match="no level 'loud'"):
        server.logs(level="loud")
    wrongs: list[Any] = [1.5, True, [1]]
    for wrong in wrongs:
        with pytest.raises(InvalidRequest, match="request is the number of a record or an id"):
            server.logs(request=wrong)
    number: Any = np.int64(10**9)  # as a row of records() has it
    assert len(server.logs(request=number)) == 0


def test_lines_are_followed_as_they_come(server: Server) -> None:
    got: list[LogLine] = []
    begun, ended = threading.Event(), threading.Event()

    def follow() -> None:
        for line in server.logs(follow=True, model="talks", last=1):
            got.append(line)
            begun.set()
            if line.source == "request" and got[0] is not line:
                break
        ended.set()

    ask(server, "talks", 1)
    reader = threading.Thread(target=follow, daemon=True)
    reader.start()
    assert begun.wait(20)
    id = ask(server, "talks", 3)
    assert ended.wait(20)
    new = [line for line in got[1:] if line.request_ids == (id,)]
    assert [line.text for line in new][:2] == ["asked for 3", "printed 3.0"]
    assert new[-1].text.startswith("ok in ")


def test_each_of_many_ends_that_are_alike_is_followed(server: Server) -> None:
    got: list[LogLine] = []
    heard = threading.Condition()
    enough = threading.Event()

    def follow() -> None:
        for line in server.logs(follow=True, model="late"):
            if line.source == "request":
                with heard:
                    got.append(line)
                    heard.notify_all()
            if enough.is_set():
                break

    reader = threading.Thread(target=follow, daemon=True)
    reader.start()
    for number in range(3):
        with pytest.raises(WorkbenchError, match="Request timeout expired"):
            server.infer("late", {"x": np.ones((1, 1), np.float32)}, id=f"late{number}")
        enough.set() if number == 2 else None
        with heard:
            assert heard.wait_for(lambda: any(f"late{number}" in line.request_ids for line in got), 60)  # noqa: B023
    reader.join(60)
    assert [line.request_ids for line in got] == [("late0",), ("late1",), ("late2",)]
    assert not reader.is_alive()


def test_verbose_lines_and_levels_follow_the_log_settings(server: Server) -> None:
    before = server.log_settings()
    assert list(before) == [
        "log_file", "log_info", "log_warning", "log_error", "log_verbose_level", "log_format"
    ]  # fmt: skip
    quiet = of_request(server, ask(server, "talks", 4))
    assert "in detail" not in [line.text for line in quiet]
    try:
        assert server.log_settings(log_verbose_level=1, log_warning=False)["log_verbose_level"] == 1
        loud = of_request(server, ask(server, "talks", 4))
        assert [(line.level, line.text) for line in loud[:-1]] == [("verbose", "in detail"), ("info", "printed 4.0")]
    finally:
        server.log_settings(log_verbose_level=0, log_warning=True)
    assert server.log_settings() == before
    with pytest.raises(InvalidRequest, match="no log setting 'log_verbos'"):
        server.log_settings(log_verbos=1)
    with pytest.raises(InternalError, match="attempt to access JSON non-boolean as boolean"):
        server.log_settings(log_info=3)


def test_a_remote_triton_says_in_words_what_it_cannot(remote: Server, process: Server) -> None:
    with pytest.raises(Unsupported, match="tells no log lines over its connection") as caught:
        remote.logs()
    assert "read its own log" in caught.value.hint
    panel = remote.panel("logs")
    assert "tells no log lines over its connection" in panel._head.value
    assert "docker logs" in panel._head.value
    panel.close()
    assert remote.log_settings(log_verbose_level=2)["log_verbose_level"] == 2
    assert process.log_settings(log_verbose_level=0)["log_verbose_level"] == 0
