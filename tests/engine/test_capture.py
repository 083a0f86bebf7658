"""What clients send to a model is captured as it is, within bounds, and nothing that is served notices."""

from __future__ import annotations

import gc
import threading
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from asking import Asker, wait_until
from gate_backend import CONFIG, Gate
from onnx_models import add_model, identity, request

from workbench.engine import InferenceEngine, capture
from workbench.errors import InvalidRequest, NotFound, NotReady, QueueFull
from workbench.protocol.packed import decode_packed
from workbench.protocol.tensors import InferenceRequest, RequestedOutput, Tensor
from workbench.records.capture import Keep

MB = 1 << 20
STEP = """\
platform: "ensemble"
max_batch_size: 8
input { name: "x" data_type: TYPE_FP32 dims: 4 }
output { name: "y" data_type: TYPE_FP32 dims: 4 }
ensemble_scheduling { step {
  model_name: 'double' model_version: -1
  input_map { key: "x" value: "x" } output_map { key: "y" value: "y" }
} }
"""


def begin(engine: InferenceEngine, model: str = "double", *, limit: int = MB, keep: Keep = "first") -> str:
    return engine.begin_capture(model, limit=limit, keep=keep, for_s=600.0).id


def fetch(engine: InferenceEngine, id: str) -> list[tuple[int, InferenceRequest]]:
    """Ends a capture and gives all that it has, part by part."""
    engine.end_capture(id)
    found: list[tuple[int, InferenceRequest]] = []
    while True:
        header, buffers = engine.captured_part(id, len(found))
        part = decode_packed(header, b"".join(buffers))
        if not part:
            return found
        found += part


def add_texts(root: Path) -> Path:
    """A repository with ``texts``, which gives strings back."""
    config = CONFIG.replace("gate", "texts").replace("FP32 dims: [ 4 ]", "STRING dims: [ -1 ]")
    config = config.replace('backend: "texts"', 'backend: "onnxruntime"')
    add_model(root, "texts", config=config, model=identity("BYTES", ("b", "n")))
    return root


def texts(count: int) -> InferenceRequest:
    """A request of so many short strings for ``texts``."""
    array = np.array([[b"%d" % number for number in range(count)]], dtype=np.object_)
    return InferenceRequest("texts", [Tensor.from_numpy("x", array)])


def values(found: list[tuple[int, InferenceRequest]]) -> list[float]:
    return [float(each.inputs[0].data[0, 0]) for _, each in found]


def test_requests_are_captured_with_all_they_say_and_when_they_came(
    make_engine: Callable[..., InferenceEngine], repository: Path
) -> None:
    engine = make_engine(repository)
    engine.infer(request(value=0.0), 10)  # before it
    id = begin(engine)
    array = np.full((3, 4), 7, np.float32)
    full = InferenceRequest(
        "double", [Tensor.from_numpy("x", array)], [RequestedOutput("y")], 1, "seven", {"k": "v"}, 3, 60_000_000,
        client="here",
    )  # fmt: skip
    engine.infer(full, 10)
    array[:] = 0  # the caller's again
    engine.infer(request(value=8.0), 10)
    assert engine.capture_status(id).requests == 2
    found = fetch(engine, id)
    engine.infer(request(value=9.0), 10)  # after it
    status = engine.capture_status(id)
    assert (status.requests, status.missed, status.refused, status.ended_by) == (2, 0, 0, "stop")
    (first, kept), (second, _) = found
    assert status.started <= first < second <= status.ended
    assert values(found) == [7.0, 8.0]
    assert kept.inputs[0].data.tolist() == np.full((3, 4), 7).tolist()
    assert (kept.model_version, kept.id, dict(kept.parameters), kept.priority) == (1, "seven", {"k": "v"}, 3)
    assert (kept.timeout, kept.client, [each.name for each in kept.outputs]) == (60_000_000, "here", ["y"])
    engine.drop_capture(id)
    assert engine.captures() == []
    with pytest.raises(NotFound, match="no capture"):
        engine.capture_status(id)


@pytest.mark.parametrize("inline", [True, False])
def test_of_the_first_or_of_the_newest_as_many_stay_as_the_limit_allows(
    make_engine: Callable[..., InferenceEngine], repository: Path, inline: bool
) -> None:
    engine = make_engine(repository, inline=inline)
    first, last = begin(engine, limit=1 << 16), begin(engine, limit=1 << 16, keep="last")
    # each with a head of its own, which takes memory, too
    for at in range(400):
        engine.infer(request(value=float(at), parameters={"n": at}), 10)
    for id in (first, last):
        found = values(fetch(engine, id))
        status = engine.capture_status(id)
        assert 20 < len(found) < 400
        assert len(found) + status.missed == 400
        assert status.requests == len(found)
        assert 0 < status.full_ns < status.ended - status.started
        assert status.size <= 1 << 16
        begins = 0 if id == first else 400 - len(found)
        assert found == list(range(begins, begins + len(found)))


def test_the_limit_is_one_of_memory(make_engine: Callable[..., InferenceEngine], repository: Path) -> None:
    engine = make_engine(repository)
    many = [request(value=1.0, id=f"request {at}", parameters={"n": at} if at % 2 else {}) for at in range(4000)]
    gc.collect()  # empties the interpreter's lists of free objects, too: what is taken from those is not traced
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        id = begin(engine, limit=64 * MB)
        for each in many:
            engine.infer(each, 10)
        gc.collect()
        took = tracemalloc.get_traced_memory()[0] - before
        engine.drop_capture(id)
        gc.collect()
        rest = tracemalloc.get_traced_memory()[0] - before  # of records, say
    finally:
        tracemalloc.stop()
    begin(engine, limit=64 * MB)
    for each in many:
        engine.infer(each, 10)
    (status,) = engine.captures()
    assert status.requests == 4000
    assert 0.9 * (took - rest) < status.size < 2 * (took - rest)


def test_what_a_full_queue_turned_away_is_part_of_the_load_and_what_does_not_fit_is_counted(
    make_engine: Callable[..., InferenceEngine], tmp_path: Path, gate: Gate
) -> None:
    limited = "dynamic_batching { default_queue_policy { max_queue_size: 1 } }"
    add_model(tmp_path, "gate", config=CONFIG.replace("dynamic_batching { }", limited))
    engine = make_engine(tmp_path)
    id = begin(engine, "gate")
    asker = Asker(engine)
    (running,) = asker.send([request("gate", value=0.0, rows=8)])
    assert gate.started.acquire(timeout=10)
    asked = asker.send([request("gate", value=1.0), request("gate", value=2.0), request("gate", rows=9)])
    assert isinstance(asked[1].refused, QueueFull)
    assert isinstance(asked[2].refused, InvalidRequest)
    gate.open.set()
    running.wait()
    assert asked[0].wait().error is None
    assert values(fetch(engine, id)) == [0.0, 1.0, 2.0]
    assert engine.capture_status(id).refused == 1


def test_what_an_ensemble_asks_its_steps_is_not_sent_by_a_client(
    make_engine: Callable[..., InferenceEngine], repository: Path
) -> None:
    add_model(repository, "whole", config=STEP, model=b"")
    engine = make_engine(repository)
    whole, step = begin(engine, "whole"), begin(engine, "double")
    engine.infer(request("whole", value=3.0), 10)
    engine.infer(request("double", value=4.0), 10)
    assert values(fetch(engine, whole)) == [3.0]
    assert values(fetch(engine, step)) == [4.0]


@pytest.mark.parametrize("backlog", [64 * MB, 0])
def test_many_strings_are_captured_in_their_order(
    make_engine: Callable[..., InferenceEngine], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, backlog: int
) -> None:
    monkeypatch.setattr(capture, "BACKLOG_BYTES", backlog)
    monkeypatch.setattr(capture, "PART_BYTES", 100_000)
    engine = make_engine(add_texts(tmp_path))
    id = begin(engine, "texts", limit=64 * MB)
    sent = [[b"%d" % (at * number) for number in range(size)] for at, size in enumerate([20_000, 1, 9_000, 3, 20_000])]
    for items in sent:
        array = np.array([items], dtype=np.object_)
        engine.infer(InferenceRequest("texts", [Tensor.from_numpy("x", array)]), 10)
        array[:] = b""
    assert [each.inputs[0].data[0].tolist() for _, each in fetch(engine, id)] == sent


def test_what_waits_to_be_packed_is_bounded_in_bytes_however_few_the_strings(
    make_engine: Callable[..., InferenceEngine], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Strings of 2 KB, 5,000 in a request: ten requests are few elements, and 100 MB."""
    monkeypatch.setattr(capture, "BACKLOG_BYTES", 24 * MB)
    engine = make_engine(add_texts(tmp_path))
    id = begin(engine, "texts", limit=256 * MB)
    real, go_on, waiting = capture.data_of, threading.Event(), list[int]()

    def held_up(request: InferenceRequest) -> tuple[bytes, ...]:
        if threading.current_thread().name.startswith("workbench-capture"):
            waiting.append(1)
            assert go_on.wait(30)
        return real(request)

    monkeypatch.setattr(capture, "data_of", held_up)
    array = np.array([[b"x" * 2000 + b"%d" % number for number in range(5000)]], dtype=np.object_)
    try:
        for _ in range(10):
            engine.infer(InferenceRequest("texts", [Tensor.from_numpy("x", array)]), 10)
        # 10 MB each: two wait, one of them at the thread, the others have been packed on the way
        assert engine.capture_status(id).requests == 8
    finally:
        go_on.set()
    assert len(fetch(engine, id)) == 10
    assert len(waiting) == 2


def test_a_request_larger_than_what_may_wait_is_packed_on_the_thread_all_the_same(
    make_engine: Callable[..., InferenceEngine], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(capture, "BACKLOG_BYTES", 1 << 16)
    engine = make_engine(add_texts(tmp_path))
    id = begin(engine, "texts", limit=64 * MB)
    real, threads = capture.data_of, list[str]()

    def seen(request: InferenceRequest) -> tuple[bytes, ...]:
        threads.append(threading.current_thread().name)
        return real(request)

    monkeypatch.setattr(capture, "data_of", seen)
    engine.infer(texts(5000), 10)
    assert len(fetch(engine, id)) == 1
    assert [name.startswith("workbench-capture") for name in threads] == [True]


@pytest.mark.parametrize("where", ["copy", "pack"])
def test_a_request_that_there_is_no_memory_for_takes_no_place_of_others(
    make_engine: Callable[..., InferenceEngine], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """It is missed, and what comes after it is packed on the thread as ever."""
    monkeypatch.setattr(capture, "BACKLOG_BYTES", MB)
    engine = make_engine(add_texts(tmp_path))
    id = begin(engine, "texts", limit=64 * MB)
    real, threads = capture.data_of, list[str]()

    def no_memory(*args: object) -> Any:
        raise MemoryError("no memory")

    def seen(request: InferenceRequest) -> tuple[bytes, ...]:
        threads.append(threading.current_thread().name)
        return real(request)

    for _ in range(4):  # of 0.25 MB each
        with monkeypatch.context() as patch:
            patch.setattr(*{"copy": (capture, "Tensor"), "pack": (capture, "data_of")}[where], no_memory)
            missed = engine.capture_status(id).missed
            engine.infer(texts(5000), 10)
            wait_until(lambda missed=missed: engine.capture_status(id).missed > missed)
    monkeypatch.setattr(capture, "data_of", seen)
    engine.infer(texts(5000), 10)
    assert len(fetch(engine, id)) == 1
    assert [name.startswith("workbench-capture") for name in threads] == [True]
    texts_of = [event.text for event in engine.events.after(-1)]
    assert texts_of.count("a request was not captured: MemoryError: no memory") == 4


def test_a_request_that_cannot_be_kept_is_served_all_the_same(
    make_engine: Callable[..., InferenceEngine], repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_memory(request: InferenceRequest) -> tuple[bytes, ...]:
        raise MemoryError

    engine = make_engine(repository)
    id = begin(engine)
    with monkeypatch.context() as patch:
        patch.setattr(capture, "data_of", no_memory)
        assert engine.infer(request(value=2.0), 10).as_numpy("y").tolist() == [[4.0] * 4]
    engine.infer(request(value=3.0), 10)
    assert values(fetch(engine, id)) == [3.0]
    assert engine.capture_status(id).missed == 1
    assert "a request was not captured: MemoryError: " in [event.text for event in engine.events.after(-1)]


def test_bounds_are_kept_and_said(
    make_engine: Callable[..., InferenceEngine], repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make_engine(repository)
    wrong: list[dict[str, Any]] = [
        {"keep": "all"}, {"limit": 0}, {"limit": 1 << 60}, {"for_s": 0.0}, {"for_s": float("nan")}, {"for_s": 1e9},
    ]  # fmt: skip
    for options in wrong:
        with pytest.raises(InvalidRequest):
            engine.begin_capture("double", **{"limit": MB, "keep": "first", "for_s": 1.0, **options})
    with pytest.raises(NotFound, match="no model 'doubel'"):
        begin(engine, "doubel")
    ids = [begin(engine) for _ in range(capture.AT_A_TIME)]
    with pytest.raises(NotReady, match="4 captures"):
        begin(engine)
    with pytest.raises(InvalidRequest, match="goes on"):
        engine.captured_part(ids[0], 0)
    for id in ids:
        engine.drop_capture(id)
    # it ends by itself, and what nobody fetches is let go
    monkeypatch.setattr(capture, "FETCH_S", 0.05)
    engine.begin_capture("double", limit=MB, keep="first", for_s=0.05)
    wait_until(lambda: not engine.captures())
    kinds = [event.text for event in engine.events.after(-1) if event.kind == "capture"]
    assert kinds[-2:] == [
        "what is sent to 'double' is captured from now on, inputs included",
        "capture of 'double' has ended: 0 requests",
    ]


def test_an_engine_that_stops_lets_captures_go(
    make_engine: Callable[..., InferenceEngine], repository: Path, own_threads: Callable[[], list[Any]]
) -> None:
    engine = make_engine(repository)
    begin(engine)
    engine.infer(request(), 10)
    engine.stop()
    assert own_threads() == []
