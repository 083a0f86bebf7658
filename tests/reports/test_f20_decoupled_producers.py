"""A fast decoupled step in front of a slow one: ``max_inflight_requests`` really holds it (server#8458)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import report_models as models
from asking import Asker, wait_until
from ensembles import step
from gate_backend import Gate

from workbench.backends._child.wire import RESPONSE_WINDOW
from workbench.engine import InferenceEngine
from workbench.protocol.tensors import InferenceRequest, Tensor

PRODUCER = """
class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            for number in range(int(pb_utils.get_input_tensor_by_name(request, "COUNT").as_numpy()[0])):
                if request.is_cancelled():
                    break
                stamp = np.array([number, time.monotonic_ns()] + [0] * WIDTH, np.int64)
                sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("STAMP", stamp)]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
PRODUCER_CONFIG = """backend: "python"
input { name: "COUNT" data_type: TYPE_INT64 dims: 1 }
output { name: "STAMP" data_type: TYPE_INT64 dims: -1 }
instance_group { kind: KIND_CPU }
model_transaction_policy { decoupled: true }
"""
LEAD = RESPONSE_WINDOW + 8
"""How far a producer may be ahead of the step behind it, beyond the limit itself."""


def slow(ms: float) -> str:
    """An ``identity`` of INT64 that takes so long."""
    return models.identity(size=0, ms=int(ms), dims="-1", batching="").replace("TYPE_FP32", "TYPE_INT64")


def ensemble(first: str, second: str, limit: int, names: tuple[str, str] = ("INPUT0", "OUTPUT0")) -> str:
    steps = step(first, "X", "t", names=("COUNT", "STAMP")) + step(second, "t", "Y", names=names)
    bound = f"max_inflight_requests: {limit}" if limit else ""
    return f"""platform: "ensemble"
input {{ name: "X" data_type: TYPE_INT64 dims: 1 }}
output {{ name: "Y" data_type: TYPE_INT64 dims: -1 }}
ensemble_scheduling {{ {steps} {bound} }}
"""


def add_chain(root: Path, limit: int, *, ms: float = 1, width: int = 0) -> None:
    models.add(root, "fast", PRODUCER_CONFIG, PRODUCER.replace("WIDTH", str(width)))
    models.add(root, "slow", slow(ms))
    models.add(root, "chain", ensemble("fast", "slow", limit))


def ask(count: int, model: str = "chain", **fields: Any) -> InferenceRequest:
    return InferenceRequest(model, [Tensor.from_numpy("X", np.array([count], np.int64))], **fields)


def stamps(engine: InferenceEngine, count: int, model: str = "chain") -> np.ndarray[Any, Any]:
    """Number and time of sending of each response, in the order in which they come."""
    rows = [response.as_numpy("Y")[:2] for response in engine.infer_stream(ask(count, model)) if response.outputs]
    return np.array(rows)


def lead(engine: InferenceEngine, sent: np.ndarray[Any, Any]) -> int:
    """The greatest number of responses that were sent and not yet executed by the step behind."""
    columns = engine.records.read().requests
    begun = np.sort(columns["compute_start"][columns["model"] == "slow"])
    return int(max(np.searchsorted(sent, at) - index for index, at in enumerate(begun)))


@pytest.mark.rule("5.7b")
@pytest.mark.parametrize(("execution", "limit"), [("process", 8), ("thread", 8), ("thread", 1)])
def test_f20_server_8458_the_producer_is_held_and_the_order_is_kept(
    root: Path, make_engine: Any, execution: str, limit: int
) -> None:
    """Hundreds of responses at once into a slow step: memory grew with all that were not yet taken."""
    add_chain(root, limit)
    engine = make_engine(root, python_execution=execution)
    got = stamps(engine, 250)
    assert got[:, 0].tolist() == list(range(250))
    assert lead(engine, got[:, 1]) <= limit + LEAD
    wait_until(lambda: models.nothing_left(engine))


@models.THREAD_OR_FULL
def test_f20_server_8458_without_the_limit_all_wait_in_the_queue_of_the_step(
    root: Path, make_engine: Any, execution: str
) -> None:
    """Without the field nothing is held, as in Triton: what was sent waits in the next step's queue, and is told."""
    add_chain(root, 0)
    engine = make_engine(root, python_execution=execution)
    got = stamps(engine, 250)
    assert got[:, 0].tolist() == list(range(250))
    assert lead(engine, got[:, 1]) > LEAD, "this would be held: then the field does nothing"


@pytest.mark.rule("5.7a")
@models.THREAD_OR_FULL
def test_f20_server_8458_several_requests_share_the_limit(root: Path, make_engine: Any, execution: str) -> None:
    """Per step over all requests (r26.04): each keeps its order, none starves."""
    add_chain(root, 2)
    (root / "fast" / "config.pbtxt").write_text(PRODUCER_CONFIG.replace("KIND_CPU", "KIND_CPU count: 3"))
    engine = make_engine(root, python_execution=execution)
    asked = Asker(engine).send([ask(60) for _ in range(5)])
    for each in asked:
        each.wait(20)
        assert each.error is None
        numbers = [int(response.as_numpy("Y")[0]) for response in each.responses if response.outputs]
        assert numbers == list(range(60))
    columns = engine.records.read().requests
    mine = columns["model"] == "slow"
    waited = columns["compute_start"][mine] - columns["queue_start"][mine]
    assert len(waited) == 300
    wait_until(lambda: models.nothing_left(engine))


@pytest.mark.parametrize("execution", ["process", "thread"])
def test_a_producer_whose_responses_nobody_takes_goes_on_when_its_request_is_cancelled(
    root: Path, make_engine: Any, execution: str
) -> None:
    """A client that has stopped reading goes away: its instance is there for the next one."""
    models.add(root, "fast", PRODUCER_CONFIG, PRODUCER.replace("WIDTH", "0"))
    engine = make_engine(root, python_execution=execution)
    asker = Asker(engine)

    def count(number: int) -> InferenceRequest:
        return InferenceRequest("fast", [Tensor.from_numpy("COUNT", np.array([number], np.int64))])

    (asked,) = asker.send([count(1_000_000)], by_hand=True)
    wait_until(lambda: len(asked.responses) >= RESPONSE_WINDOW)
    assert not asked.ended.wait(0.2)
    assert len(asked.responses) == RESPONSE_WINDOW, "it is not held"
    ticket = asked.ticket
    assert ticket is not None
    engine.loop.call_soon_threadsafe(ticket.cancel)
    asked.wait(20)
    (after,) = asker.send([count(3)])
    after.wait(20)
    assert len([each for each in after.responses if each.outputs]) == 3
    wait_until(lambda: models.nothing_left(engine))


@pytest.mark.rule("5.7d")
@pytest.mark.parametrize("execution", ["process", "thread"])
@pytest.mark.parametrize("end", ["leaves", "fails", "stops"])
def test_f20_server_8458_a_held_producer_is_let_go_when_its_request_ends(
    root: Path, make_engine: Any, gate: Gate, execution: str, end: str
) -> None:
    """The client goes away, the step behind fails, or the server stops, while the producer is held."""
    models.add(root, "fast", PRODUCER_CONFIG, PRODUCER.replace("WIDTH", "0"))
    config = models.gate(size=0, batching="").replace("TYPE_FP32 dims: 4", "TYPE_INT64 dims: -1")
    models.add(root, "gate", config)
    models.add(root, "chain", ensemble("fast", "gate", 2, names=("x", "y")))
    engine = make_engine(root, python_execution=execution)
    fields = {"parameters": {"do": "error"}} if end == "fails" else {}
    count = 200 if end == "fails" else 1_000_000  # a step that is under way is not cancelled by a failure (5.6)
    (asked,) = Asker(engine).send([ask(count, **fields)])
    wait_until(lambda: engine.snapshot().version("gate").pending == 1)
    assert asked.ticket is not None
    if end == "stops":
        engine.stop(0.2)
        assert asked.wait().error is not None
        return
    if end == "leaves":
        engine.loop.call_soon_threadsafe(asked.ticket.cancel)
    gate.open.set()
    assert asked.wait().error is not None
    wait_until(lambda: models.nothing_left(engine), 30)
    assert models.stats(engine, "gate")["inference_count"] <= 3, "a step was started after the end"
    assert len(list(engine.infer_stream(ask(3)))) in (3, 4), "the instance is still held"


@models.THREAD_OR_FULL
def test_f20_server_8458_an_ensemble_inside_holds_its_own_producers(
    root: Path, make_engine: Any, execution: str
) -> None:
    """The slow step stands behind an ensemble whose step it is that sends."""
    models.add(root, "fast", PRODUCER_CONFIG, PRODUCER.replace("WIDTH", "0"))
    models.add(root, "quick", slow(0))
    models.add(root, "slow", slow(1))
    models.add(root, "inner", ensemble("fast", "quick", 4))
    outer = ensemble("inner", "slow", 4).replace('"COUNT"', '"X"').replace('"STAMP"', '"Y"')
    models.add(root, "outer", outer)
    engine = make_engine(root, python_execution=execution)
    got = stamps(engine, 300, "outer")
    assert got[:, 0].tolist() == list(range(300))
    assert lead(engine, got[:, 1]) <= 8 + 2 * LEAD


def test_f20_server_8458_a_model_behind_itself_does_not_wait_for_itself(root: Path, make_engine: Any) -> None:
    """The producer's only instance is also the step behind it: to hold it would end in a deadlock."""
    echo = PRODUCER.replace("WIDTH", "0").replace("int(pb_utils", "min(1000, int(pb_utils").replace("[0])):", "[0]))):")
    twice = PRODUCER_CONFIG.replace("dims: 1 ", "dims: -1 ")
    models.add(root, "fast", twice, echo)
    models.add(root, "chain", ensemble("fast", "fast", 1, names=("COUNT", "STAMP")))
    engine = make_engine(root, python_execution="process")
    got = [response for response in engine.infer_stream(ask(40)) if response.outputs]
    assert len(got) == sum(range(40))
    wait_until(lambda: models.nothing_left(engine))


def test_f20_server_8458_a_producer_that_is_held_too_long_goes_on(
    root: Path, make_engine: Any, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After Triton's limit (300 s, here 1) it goes on and the log says so; nothing is lost or out of order."""
    monkeypatch.setattr("workbench.engine.ensemble.HOLD_LIMIT_S", 1)
    models.add(root, "fast", PRODUCER_CONFIG, PRODUCER.replace("WIDTH", "0"))
    models.add(root, "gate", models.gate(size=0, batching="").replace("TYPE_FP32 dims: 4", "TYPE_INT64 dims: -1"))
    models.add(root, "chain", ensemble("fast", "gate", 2, names=("x", "y")))
    engine = make_engine(root, python_execution="thread")
    (asked,) = Asker(engine).send([ask(200)])
    text = (
        "ensemble 'chain': step 0 ('fast') was held for 1 s by max_inflight_requests of the steps behind it; it goes on"
    )
    wait_until(lambda: text in [event.text for event in engine.events.after() if event.level == "error"])
    gate.open.set()
    asked.wait()
    assert [int(each.as_numpy("Y")[0]) for each in asked.responses if each.outputs] == list(range(200))


CALLS_BACK = """
class TritonPythonModel:
    def execute(self, requests):
        answers = []
        for request in requests:
            given = pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy()
            nested = pb_utils.InferenceRequest(model_name="fast", requested_output_names=["STAMP"],
                                               inputs=[pb_utils.Tensor("COUNT", np.array([1], np.int64))])
            seen = [each for each in nested.exec(decoupled=True) if len(each.output_tensors())]
            assert len(seen) == 1
            answers.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", given)]))
        return answers
"""


@models.THREAD_OR_FULL
def test_f20_server_8458_a_step_that_calls_its_held_producer_does_not_hang(
    root: Path, make_engine: Any, execution: str
) -> None:
    """The step behind asks the producer's only instance, which is held for that step: the watchdog lets it go on."""
    models.add(root, "fast", PRODUCER_CONFIG, PRODUCER.replace("WIDTH", "0"))
    config = slow(0).replace('"identity"', '"python"')
    models.add(root, "slow", config, CALLS_BACK)
    models.add(root, "chain", ensemble("fast", "slow", 1))
    engine = make_engine(root, python_execution=execution, nested_wait_report_s=0.1)
    got = stamps(engine, 100)
    assert got[:, 0].tolist() == list(range(100))
    assert any("while a nested call waits for its instance" in event.text for event in engine.events.after())
    wait_until(lambda: models.nothing_left(engine))


@pytest.mark.full
@pytest.mark.parametrize(("execution", "many"), [("process", 10_000), ("thread", 3_000)])
def test_f20_server_8458_ten_thousand_large_responses_do_not_grow_memory(
    root: Path, make_engine: Any, execution: str, many: int
) -> None:
    """10,000 responses of 64 KiB: 640 MB if they were kept."""
    add_chain(root, 8, ms=1, width=8192)
    engine = make_engine(root, python_execution=execution)
    process = psutil.Process()
    stream = engine.infer_stream(ask(many))
    for _ in range(500):
        next(stream)
    before, most, count = process.memory_info().rss, 0, 500
    for response in stream:
        if response.outputs:
            assert response.as_numpy("Y")[0] == count
            count += 1
            if count % 100 == 0:
                most = max(most, process.memory_info().rss)
    assert count == many
    assert most - before < 100 * 2**20, f"{(most - before) / 2**20:.0f} MiB more"
