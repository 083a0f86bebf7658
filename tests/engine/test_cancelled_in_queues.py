"""A request whose client goes away, or whose deadline passes, leaves whatever queue it is in and is never executed."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from asking import Asker, wait_until
from ensembles import add_ensemble, step
from gate_backend import Gate

from workbench.engine import InferenceEngine
from workbench.errors import Code, TimedOut, WorkbenchError
from workbench.protocol.tensors import InferenceRequest, InferenceResponse, Tensor
from workbench.server import ServerOptions, serve_engine

GATE = """backend: "gate"
max_batch_size: 1
input { name: "x" data_type: TYPE_FP32 dims: 4 }
output { name: "y" data_type: TYPE_FP32 dims: 4 }
instance_group { kind: KIND_CPU %s }
%s
"""
LEVELS = "dynamic_batching { priority_levels: 3 default_priority_level: 2 }"
DELAYED = """dynamic_batching { default_queue_policy {
  timeout_action: DELAY default_timeout_microseconds: 1000 } }"""
R = 'rate_limiter { resources { name: "R" count: 1 global: true } }'


def ask(model: str = "gate", name: str = "x", **fields: Any) -> InferenceRequest:
    return InferenceRequest(model, [Tensor.from_numpy(name, np.zeros((1, 4), np.float32))], **fields)


@dataclass
class Place:
    """A queue: the models, what keeps the victim in it, the victim, and in which model's queue it waits."""

    models: dict[str, str]
    before: list[InferenceRequest]
    victim: Callable[[], InferenceRequest]
    queue: str = "gate"
    waiting: int = 1
    counted: str = "gate"
    options: dict[str, Any] = field(default_factory=dict)
    reason: str = "CANCELED"


def in_sequence(name: int, id: str, *, start: bool = False, end: bool = False) -> InferenceRequest:
    return ask(id=id, sequence_id=name, sequence_start=start, sequence_end=end)


def sequences(strategy: str) -> dict[str, str]:
    return {"gate": GATE % ("", f"sequence_batching {{ {strategy} max_sequence_idle_microseconds: 60000000 }}")}


def level(number: int) -> Place:
    return Place({"gate": GATE % ("", LEVELS)}, [ask(id="first")], lambda: ask(id="victim", priority=number))


def ensemble(extra: str = "", *, counted: str = "chain") -> dict[str, Any]:
    return {"counted": counted, "options": {"ensemble": extra}, "reason": "OTHER"}


ONE = "oldest { max_candidate_sequences: 1 }"
PLACES = {
    "dynamic": Place({"gate": GATE % ("", "dynamic_batching { }")}, [ask(id="first")], lambda: ask(id="victim")),
    "direct": Place({"gate": GATE % ("", "")}, [ask(id="first")], lambda: ask(id="victim")),
    "delay": Place(
        {"gate": GATE.replace("max_batch_size: 1", "max_batch_size: 8")
         % ("", "dynamic_batching { max_queue_delay_microseconds: 60000000 }")},
        [], lambda: ask(id="victim"),
    ),
    "level 1": level(1),
    "level 2": level(2),
    "level 3": level(3),
    "put back": Place({"gate": GATE % ("", DELAYED)}, [ask(id="first")], lambda: ask(id="victim")),
    "preserve_ordering": Place(
        {"gate": GATE % ("", "dynamic_batching { preserve_ordering: true }")}, [ask(id="first")],
        lambda: ask(id="victim"),
    ),
    "sequence slot, direct": Place(
        sequences("direct { }"), [in_sequence(1, "first", start=True)], lambda: in_sequence(1, "victim", end=True)
    ),
    "sequence slot, oldest": Place(
        sequences(ONE), [in_sequence(1, "first", start=True)], lambda: in_sequence(1, "victim", end=True)
    ),
    "sequence backlog, direct": Place(
        sequences("direct { }"), [in_sequence(1, "first", start=True, end=True), in_sequence(2, "second", start=True)],
        lambda: in_sequence(3, "victim", start=True, end=True), waiting=2,
    ),
    "sequence backlog, oldest": Place(
        sequences(ONE), [in_sequence(1, "first", start=True)], lambda: in_sequence(2, "victim", start=True, end=True)
    ),
    "rate limiter": Place(
        {"gate": GATE % (R, "dynamic_batching { }"), "other": GATE % (R, "")}, [ask("other", id="first")],
        lambda: ask(id="victim"), options={"rate_limit": "execution_count"},
    ),
    "step of an ensemble": Place(
        {"gate": GATE % ("", "dynamic_batching { }")}, [ask("chain", "X", id="first")],
        lambda: ask("chain", "X", id="victim"), **ensemble(),
    ),
    "between steps": Place(
        {"gate": GATE % ("", "dynamic_batching { }")}, [ask("chain", "X", id="first")],
        lambda: ask("chain", "X", id="victim"), waiting=0, **ensemble("max_inflight_requests: 1"),
    ),
}  # fmt: skip


def leave(engine: InferenceEngine, request: InferenceRequest, go: threading.Event) -> WorkbenchError | None:
    """The client goes away."""
    answers: list[InferenceResponse] = []
    done = threading.Event()

    def take(response: InferenceResponse) -> None:
        answers.append(response)
        done.set()

    cancel = engine.post(request, take)
    assert go.wait(10)
    cancel()
    assert done.wait(10), "no answer"
    threading.Event().wait(0.01)
    assert len(answers) == 1
    return answers[0].error


def miss_deadline(engine: InferenceEngine, request: InferenceRequest, go: threading.Event) -> WorkbenchError | None:
    """Whoever asks waits only so long."""
    with pytest.raises(TimedOut):
        engine.infer(request, 0.15)
    return None


def close_connection(engine: InferenceEngine, request: InferenceRequest, go: threading.Event) -> WorkbenchError | None:
    """An HTTP client closes its connection."""
    server = serve_engine(engine, ServerOptions())
    parameters: dict[str, Any] = {"priority": request.priority}
    if request.sequence_id:
        parameters |= {
            "sequence_id": request.sequence_id,
            "sequence_start": request.sequence_start,
            "sequence_end": request.sequence_end,
        }
    tensor = {"name": request.inputs[0].name, "datatype": "FP32", "shape": [1, 4], "data": [0, 0, 0, 0]}
    body = json.dumps({"id": request.id, "inputs": [tensor], "parameters": parameters}).encode()
    host, _, port = server.http_url.removeprefix("http://").rpartition(":")
    try:
        with socket.create_connection((host, int(port))) as connection:
            head = f"POST /v2/models/{request.model_name}/infer HTTP/1.1\r\nHost: {host}\r\n"
            connection.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
            assert go.wait(10)
        wait_until(lambda: engine.snapshot().version(request.model_name).failures[CANCELLED_AS[request.model_name]] > 0)
    finally:
        server.close(5)
    return None


CANCELLED_AS = {"gate": "CANCELED", "chain": "OTHER"}


def quiet(engine: InferenceEngine) -> bool:
    return all(each.pending == 0 and each.running == 0 for each in engine.snapshot().versions)


@pytest.mark.rule("1.17a", "1.17b")
@pytest.mark.parametrize("way", [leave, miss_deadline, close_connection])
@pytest.mark.parametrize("name", list(PLACES))
def test_a_cancelled_request_leaves_its_queue(
    tmp_path: Path, make_engine: Any, gate: Gate, name: str, way: Callable[..., WorkbenchError | None]
) -> None:
    place = PLACES[name]
    options = dict(place.options)
    extra = options.pop("ensemble", None)
    for model, config in place.models.items():
        (tmp_path / model / "1").mkdir(parents=True)
        (tmp_path / model / "config.pbtxt").write_text(config)
    if extra is not None:
        add_ensemble(tmp_path, "chain", [step("gate", "X", "t"), step("gate", "t", "Y")], size=1, extra=extra)
    engine = make_engine(tmp_path, **options)
    asker = Asker(engine)
    before = [each for request in place.before for each in asker.send([request])]
    if before:
        assert gate.started.acquire(timeout=10)
    go = threading.Event()
    errors: list[WorkbenchError | None] = []
    waiter = threading.Thread(target=lambda: errors.append(way(engine, place.victim(), go)))
    waiter.start()
    if way is not miss_deadline:
        if place.waiting:
            wait_until(lambda: engine.snapshot().version(place.queue).pending == place.waiting)
        else:
            wait_until(lambda: engine.snapshot().version("chain").running == len(before) + 1)
        if name == "put back":
            threading.Event().wait(0.02)  # its timeout passes
    go.set()
    waiter.join(20)
    assert not waiter.is_alive()
    assert len(errors) == 1, "the client's thread failed"
    if errors[0] is not None:
        assert errors[0].code is Code.CANCELLED
        assert errors[0].message == ("in ensemble 'chain', " if extra is not None else "")
    wait_until(lambda: engine.snapshot().version(place.counted).failures[place.reason] == 1)
    wait_until(lambda: engine.snapshot().version(place.queue).pending == max(0, place.waiting - 1))
    gate.open.set()
    for each in before:
        assert each.wait().error is None
    if "backlog, direct" in name:  # the slot's sequence has not ended
        asker.send([in_sequence(2, "last", end=True)])[0].wait()
    wait_until(lambda: quiet(engine))
    assert "victim" not in {id for batch in gate.batches for id in batch}, "it was executed"
    columns = engine.records.read().requests
    mine = columns["request_id"] == "victim"
    assert set(columns["status"][mine & (columns["model"] == place.counted)]) == {place.reason}
    assert set(columns["compute_start"][mine & (columns["model"] != "chain")]) <= {0}
