"""Iterative sequences of one request (server#8167), decoupled models over plain infer (server#2168, #8021,
tensorrtllm_backend#177), and the end of a decoupled request (server#5936, backend#90)."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import report_models as models
from asking import Asker, wait_until

import workbench as wb
from workbench.errors import WorkbenchError
from workbench.protocol.tensors import InferenceRequest, Tensor
from workbench.server import ServerOptions, serve_engine

COUNTDOWN = """backend: "iterative_sequence"
max_batch_size: %d
input { name: "INPUT" data_type: TYPE_INT32 dims: 1 }
output { name: "OUTPUT" data_type: TYPE_INT32 dims: 1 }
instance_group { kind: KIND_CPU }
model_transaction_policy { decoupled: true }
parameters { key: "execute_delay_ms" value { string_value: "1" } }
sequence_batching { iterative_sequence: true %s max_sequence_idle_microseconds: 60000000 }
"""
AGAIN = """
class TritonPythonModel:
    def initialize(self, args):
        self.left = {}

    def execute(self, requests):
        for request in requests:
            key = request.correlation_id()
            if request.flags() & pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_START:
                self.left[key] = int(pb_utils.get_input_tensor_by_name(request, "INPUT").as_numpy().ravel()[0])
            self.left[key] -= 1
            left = self.left[key]
            out = pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT", np.array([[left]], np.int32))])
            flags = 0
            if left > 0:
                request.set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)
            else:
                flags = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
            request.get_response_sender().send(out, flags)
"""


def countdown(number: int, **fields: Any) -> InferenceRequest:
    return InferenceRequest("count", [Tensor.from_numpy("INPUT", np.array([[number]], np.int32))], **fields)


OLDEST = "oldest { max_candidate_sequences: 4 }"


@pytest.mark.parametrize(
    ("backend", "strategy", "name"),
    [
        ("example", "direct { }", 7),
        ("example", OLDEST, "seven"),
        ("python in a process", OLDEST, 7),
        ("python on a thread", "direct { }", "seven"),
        ("python on a thread", OLDEST, 7),
    ],
)
def test_f35_server_8167_start_and_end_in_one_request_get_all_responses(
    root: Path, make_engine: Any, backend: str, strategy: str, name: int | str
) -> None:
    """START and END together, given back three times: an error about START, and the client waits for ever."""
    config = COUNTDOWN % (1 if "direct" in strategy else 4, strategy)
    if backend != "example":
        config = config.replace('"iterative_sequence"', '"python"', 1)
    models.add(root, "count", config, AGAIN if backend != "example" else "")
    engine = make_engine(root, python_execution="thread" if "thread" in backend else "process")
    fields = {"sequence_id": name, "sequence_start": True, "sequence_end": True}
    for _ in range(2):  # the same id again: the first one has really ended
        (asked,) = Asker(engine).send([countdown(4, **fields)])
        asked.wait()
        assert asked.error is None
        assert [int(each.as_numpy("OUTPUT")[0, 0]) for each in asked.responses if each.outputs] == [3, 2, 1, 0]
        assert [each.final for each in asked.responses].count(True) == 1
    wait_until(lambda: models.nothing_left(engine))
    assert not [event.text for event in engine.events.after() if event.level in ("warning", "error")]


def test_f35_server_8167_several_at_once_and_without_an_id(root: Path, make_engine: Any) -> None:
    """With ids of their own and without any: each gets its own responses, none is frozen."""
    models.add(root, "count", COUNTDOWN % (4, OLDEST))
    engine = make_engine(root)
    both = {"sequence_start": True, "sequence_end": True}
    requests = [countdown(n, sequence_id=n + 10, **both) for n in range(1, 6)] + [countdown(n) for n in range(1, 6)]
    asked = Asker(engine).send(requests)
    for number, each in zip([*range(1, 6)] * 2, asked, strict=True):
        each.wait()
        seen = [int(response.as_numpy("OUTPUT")[0, 0]) for response in each.responses if response.outputs]
        assert seen == list(range(number - 1, -1, -1))
    wait_until(lambda: models.nothing_left(engine))


MANY = """
class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            count = int(pb_utils.get_input_tensor_by_name(request, "IN").as_numpy().ravel()[0])
            for number in range(count):
                last = LAST and number == count - 1
                out = pb_utils.Tensor("OUT", np.full((4,), number, np.float32))
                flags = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL if last else 0
                sender.send(pb_utils.InferenceResponse([out]), flags)
            if not (LAST and count):
                sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
DECOUPLED = "model_transaction_policy { decoupled: true }"


def add_many(root: Path, last: bool) -> None:
    models.add(root, "many", models.python(size=0, more=DECOUPLED), MANY.replace("LAST", str(last)))


@pytest.mark.parametrize("execution", ["process", "thread"])
@pytest.mark.parametrize("last", [False, True])
def test_f38_server_5936_it_is_known_when_a_decoupled_request_is_over(
    root: Path, make_engine: Any, execution: str, last: bool
) -> None:
    """0, 1 and several responses, the final flag on the last one or after it: one final each, each a success."""
    add_many(root, last)
    engine = make_engine(root, python_execution=execution)
    for total, count in enumerate((0, 1, 5, 0), start=1):
        (asked,) = Asker(engine).send([models.ask("many", name="IN", rows=0, value=count)])
        asked.wait()
        assert asked.error is None
        assert sum(bool(each.outputs) for each in asked.responses) == count
        assert [each.final for each in asked.responses] == [False] * (len(asked.responses) - 1) + [True]
        assert len(asked.responses) == count + (not (last and count))
        assert models.stats(engine, "many")["inference_stats"]["success"]["count"] == total
    assert models.nothing_left(engine)


def post(url: str, path: str, body: dict[str, Any]) -> tuple[int, str]:
    request = urllib.request.Request(url + path, data=json.dumps(body).encode(), method="POST")
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_f37_server_2168_a_decoupled_model_over_http(root: Path, make_engine: Any) -> None:
    """infer is refused in Triton's words, whatever the request; /generate_stream works, also for no response at all."""
    add_many(root, False)
    engine = make_engine(root, python_execution="thread")
    server = serve_engine(engine, ServerOptions())
    tensor = {"name": "IN", "datatype": "FP32", "shape": [4], "data": [3, 3, 3, 3]}
    for body in ({"inputs": [tensor]}, {"inputs": []}):
        status, text = post(server.http_url, "/v2/models/many/infer", body)
        assert status == 501
        words = "HTTP end point doesn't support models with decoupled transaction policy"
        assert json.loads(text) == {"error": words}
    for count in (3, 0):
        status, text = post(server.http_url, "/v2/models/many/generate_stream", {"IN": [count] * 4})
        assert status == 200
        events = [json.loads(line.removeprefix("data: ")) for line in text.splitlines() if line]
        assert [event["OUT"] for event in events] == [[float(n)] * 4 for n in range(count)]
    assert models.stats(engine, "many")["inference_stats"]["success"]["count"] == 2
    server.close(5)


def test_f37_server_8021_the_exception_names_what_streams(root: Path, make_engine: Any, over_http: Any) -> None:
    """The Python exception says where to go instead."""
    add_many(root, False)
    client, _ = over_http(make_engine(root, python_execution="thread"))
    with pytest.raises(WorkbenchError) as caught:
        client.infer("many", {"IN": np.zeros(4, np.float32)})
    assert caught.value.code.http_status == 501
    assert "/v2/models/many/generate_stream" in caught.value.hint
    assert "ModelStreamInfer" in caught.value.hint
    assert "infer_stream" in caught.value.hint


def test_f37_tensorrtllm_backend_177_in_the_kernel_no_response_is_dropped_in_silence(root: Path) -> None:
    """``infer`` of a model that may answer several times gives one answer, or says what gives them all."""
    add_many(root, False)
    with wb.Engine(root) as server:
        with pytest.raises(WorkbenchError) as caught:
            server.infer("many", {"IN": np.full(4, 3, np.float32)})
        assert "decoupled transaction policy" in caught.value.message
        assert "infer_stream" in caught.value.hint
        request = models.ask("many", name="IN", rows=0, value=3)
        assert len([each for each in server.engine.infer_stream(request) if each.outputs]) == 3
