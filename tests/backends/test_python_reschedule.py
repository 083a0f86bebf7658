"""Python models that give requests back to be executed again (iterative sequences), in processes and on threads."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1] / "engine"))
from asking import Asked, Asker
from python_host import HEADER

from workbench.engine import InferenceEngine
from workbench.errors import Code
from workbench.protocol.tensors import InferenceRequest, InferenceResponse, Tensor

CONFIG = """backend: "python"
max_batch_size: 4
input { name: "IN" data_type: TYPE_FP32 dims: 1 }
output { name: "OUT" data_type: TYPE_STRING dims: 1 }
instance_group { kind: KIND_CPU }
"""
AGAIN = '''
class TritonPythonModel:
    """Gives a request back as often as IN says; answers with what it has seen of it."""

    def initialize(self, args):
        self.decoupled = pb_utils.using_decoupled_model_transaction_policy(json.loads(args["model_config"]))
        self.seen = {}

    def execute(self, requests):
        return [self.one(request) for request in requests] if not self.decoupled else self.stream(requests)

    def look(self, request):
        times = int(pb_utils.get_input_tensor_by_name(request, "IN").as_numpy().ravel()[0])
        seen = self.seen.setdefault(request.request_id(), [])
        seen.append(request.flags())
        text = json.dumps([seen, bool(request.correlation_id())])
        answer = pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([[text]], dtype=np.object_))])
        if len(seen) <= times:
            request.set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)
            return answer, False
        del self.seen[request.request_id()]
        return answer, True

    def one(self, request):
        answer, last = self.look(request)
        if request.request_id() == "error":
            raise ValueError("after the flag")
        return answer if last or request.request_id() == "both" else None

    def stream(self, requests):
        for request in requests:
            answer, last = self.look(request)
            flags = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL if last else 0
            request.get_response_sender().send(answer, flags=flags)
'''
DECOUPLED = "model_transaction_policy { decoupled: true }"


@pytest.fixture(params=["process", "thread"])
def serve(
    request: pytest.FixtureRequest, tmp_path: Path, make_engine: Callable[..., InferenceEngine]
) -> Callable[[str], InferenceEngine]:
    def serve(extra: str) -> InferenceEngine:
        (tmp_path / "again" / "1").mkdir(parents=True)
        (tmp_path / "again" / "config.pbtxt").write_text(CONFIG + extra)
        (tmp_path / "again" / "1" / "model.py").write_text(HEADER + AGAIN)
        return make_engine(tmp_path, python_execution=request.param)

    return serve


def ask(times: int, id: str = "q", **fields: Any) -> InferenceRequest:
    return InferenceRequest("again", [Tensor.from_numpy("IN", np.full((1, 1), times, np.float32))], id=id, **fields)


def told(response: InferenceResponse) -> Any:
    assert response.error is None, response.error
    return json.loads(response.as_numpy("OUT")[0, 0])


def all_of(asked: Asked) -> list[Any]:
    asked.wait()
    return [told(response) for response in asked.responses]


@pytest.mark.rule("3.11a", "3.11b")
def test_requests_are_executed_until_they_are_not_given_back(serve: Callable[[str], InferenceEngine]) -> None:
    engine = serve("sequence_batching { iterative_sequence: true }")
    asked = Asker(engine).send([ask(times, f"r{times}") for times in (3, 0, 1)])
    for each, flags in zip(asked, ([1, 0, 0, 0], [1], [1, 0]), strict=True):
        assert told(each.wait()) == [flags, True]
    counts = engine.statistics("again")["model_stats"][0]
    assert counts["inference_stats"]["success"]["count"] == counts["inference_count"] == 7, "once each execution"
    assert counts["inference_stats"]["fail"]["count"] == 0
    assert engine.snapshot().version("again").running == 0


@pytest.mark.rule("3.11b")
@pytest.mark.parametrize("fields", [{}, {"sequence_id": 5, "sequence_start": True, "sequence_end": True}])
def test_a_decoupled_model_answers_in_every_execution(
    serve: Callable[[str], InferenceEngine], fields: dict[str, Any]
) -> None:
    engine = serve("sequence_batching { iterative_sequence: true }" + DECOUPLED)
    first = 3 if fields else 1
    asked = Asker(engine).send([ask(3, **fields)])[0]
    assert all_of(asked) == [[[first, 0, 0, 0][: n + 1], True] for n in range(4)]


@pytest.mark.rule("3.11c")
@pytest.mark.parametrize("scheduler", ["dynamic_batching { }", "", "sequence_batching { direct { } }"])
@pytest.mark.parametrize("decoupled", ["", DECOUPLED])
def test_other_models_may_not_give_requests_back(
    serve: Callable[[str], InferenceEngine], scheduler: str, decoupled: str
) -> None:
    engine = serve(scheduler + decoupled)
    asked = Asker(engine).send([ask(1, sequence_id=1, sequence_start=True)])[0]
    error = asked.wait().error
    assert error is not None
    assert error.code is Code.INVALID_ARG
    assert error.message == (
        "Request is released with TRITONSERVER_REQUEST_RELEASE_RESCHEDULE, while the model is not configured to handle "
        "such a flag."
    )


def test_what_is_given_back_has_no_response_and_no_error(serve: Callable[[str], InferenceEngine]) -> None:
    engine = serve("sequence_batching { iterative_sequence: true }")
    both, raised = Asker(engine).send([ask(1, "both")])[0], Asker(engine).send([ask(1, "error")])[0]
    error = both.wait().error
    assert error is not None
    assert "Expected a None object in the execute function return list for reschduled request" in error.message
    error = raised.wait().error
    assert error is not None
    assert "ValueError: after the flag" in error.message
    assert told(Asker(engine).send([ask(1, "next")])[0].wait()) == [[1, 0], True], "its instance does not serve on"


def test_a_cancelled_request_is_not_executed_again(serve: Callable[[str], InferenceEngine]) -> None:
    engine = serve("sequence_batching { iterative_sequence: true }")
    asked = Asker(engine).send([ask(10**6)])[0]
    assert asked.ticket is not None
    engine.loop.call_soon_threadsafe(asked.ticket.cancel)
    error = asked.wait().error
    assert error is not None
    assert error.code is Code.CANCELLED
    assert told(Asker(engine).send([ask(0, "next")])[0].wait()) == [[1], True]
