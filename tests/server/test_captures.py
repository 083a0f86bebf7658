"""What real clients send over each front end is captured byte for byte, and answered the same when it is sent again."""

from __future__ import annotations

import http.client
import json
import queue
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as tg
import tritonclient.http as th
from captured_models import TYPES, write_summing
from tritonclient.utils import triton_to_np_dtype

import workbench as wb
from workbench.errors import NotFound
from workbench.session.remote import WorkbenchServer

KINDS = [kind for kind in TYPES if kind != "STRING"]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorkbenchServer]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        with wb.serve(write_summing(tmp_path_factory.mktemp("captures"))) as server:
            assert isinstance(server, WorkbenchServer)
            yield server


@pytest.fixture(params=["http", "grpc"])
def client(request: pytest.FixtureRequest, served: WorkbenchServer) -> Iterator[tuple[Any, Any]]:
    """A real client and its module."""
    module = th if request.param == "http" else tg
    address = (served.url if request.param == "http" else served.grpc_url).partition("://")[2]
    with module.InferenceServerClient(address) as opened:
        yield opened, module


def drawn(kind: str, shape: tuple[int, ...], seed: int) -> np.ndarray[Any, Any]:
    rng = np.random.default_rng(seed)
    if kind == "STRING":
        out = np.empty(shape, np.object_)
        out.reshape(-1)[:] = [rng.bytes(int(size)) for size in rng.integers(0, 20, out.size)]
        return out
    return rng.integers(0, 2 if kind == "BOOL" else 100, shape).astype(triton_to_np_dtype(kind))


def given(module: Any, values: dict[str, np.ndarray[Any, Any]], **how: bool) -> list[Any]:
    inputs = []
    for kind, value in values.items():
        inputs.append(module.InferInput(kind, list(value.shape), "BYTES" if kind == "STRING" else kind))
        inputs[-1].set_data_from_numpy(value, **how)
    return inputs


def test_all_that_a_client_says_is_captured_and_answered_the_same_again(
    served: WorkbenchServer, client: tuple[Any, Any]
) -> None:
    opened, module = client
    sent, answers = [], []
    with served.capture("sums") as capture:
        for at in range(12):
            rows, wide = 1 + at % 3, at  # ragged: each row as long as the request says, also of no elements
            values = {kind: drawn(kind, (rows, wide), at) for kind in (TYPES[at % 13], "STRING", "FP32")}
            fields = {"request_id": f"r{at}", "priority": at % 4, "timeout": 1000 * at + 10**7}
            parameters = {"at": at, "text": "größer", "yes": at % 2 == 0}
            wanted = [module.InferRequestedOutput("SUM"), module.InferRequestedOutput("PARAMETERS")]
            answer = opened.infer(
                "sums", given(module, values), outputs=wanted if at % 2 else None, parameters=parameters, **fields
            )
            sent.append((values, fields, parameters))
            answers.append(answer)
    found = capture.requests()
    assert len(found) == len(capture) == 12
    assert [at for at, _ in found] == sorted(at for at, _ in found)
    for (values, fields, parameters), (_, request) in zip(sent, found, strict=True):
        assert (request.id, request.priority, request.timeout) == tuple(fields.values())
        assert dict(request.parameters) == parameters
        assert {each.name: each.data.tolist() for each in request.inputs} == {
            kind: value.tolist() for kind, value in values.items()
        }
        assert [each.datatype for each in request.inputs] == ["BYTES" if k == "STRING" else k for k in values]
    assert {request.front for _, request in found} == {"http" if module is th else "grpc"}
    assert [[each.name for each in request.outputs] for _, request in found[:2]] == [[], ["SUM", "PARAMETERS"]]
    for answer, (_, request) in zip(answers, found, strict=True):
        again = served.infer(
            "sums", {each.name: each for each in request.inputs}, parameters=dict(request.parameters),
            priority=request.priority, timeout=request.timeout,
        )  # fmt: skip
        for name in ("SUM", "PARAMETERS"):
            assert again[name].tolist() == answer.as_numpy(name).tolist()


def test_json_large_and_compressed_bodies_and_typed_contents(served: WorkbenchServer) -> None:
    values = {"INT64": drawn("INT64", (2, 40_000), 1) + 10**12, "STRING": drawn("STRING", (2, 5000), 2)}
    with (
        served.capture("sums") as capture,
        th.InferenceServerClient(served.url.partition("://")[2]) as opened,
    ):
        for how in ({"binary_data": True}, {"binary_data": False}):
            text = {"STRING": np.array([["ä", "b"]] * 2, np.object_)} if not how["binary_data"] else {}
            opened.infer("sums", given(th, values | text, **how))
            opened.infer("sums", given(th, values | text, **how), request_compression_algorithm="gzip")
    found = [{each.name: each.data.tolist() for each in request.inputs} for _, request in capture.requests()]
    assert [each["INT64"] for each in found] == [values["INT64"].tolist()] * 4
    assert [each["STRING"] for each in found[:2]] == [values["STRING"].tolist()] * 2
    assert [each["STRING"] for each in found[2:]] == [[["ä".encode(), b"b"]] * 2] * 2


def test_sequences_and_streams_and_generate(served: WorkbenchServer) -> None:
    answers: queue.Queue[Any] = queue.Queue()
    x = np.ones((1, 1), np.int32)
    with served.capture("steps") as capture, tg.InferenceServerClient(served.grpc_url.partition("://")[2]) as opened:
        opened.start_stream(lambda result, error: answers.put(error or result))
        for step in range(3):
            for id in (7, "eight"):
                opened.async_stream_infer(
                    "steps", given(tg, {"INT32": x * step}), sequence_id=id, sequence_start=step == 0,
                    sequence_end=step == 2,
                )  # fmt: skip
        assert all(isinstance(answers.get(timeout=10), tg.InferResult) for _ in range(6))
        opened.stop_stream()
    found = [
        (request.sequence_id, request.sequence_start, request.sequence_end, request.front)
        for _, request in capture.requests()
    ]
    assert found == [
        (id, step == 0, step == 2, "stream") for step in range(3) for id in (7, "eight")
    ]  # fmt: skip
    trace = capture.trace
    assert trace.sequence_of.tolist() == [1, 2] * 3
    assert trace.flags.tolist() == [1, 1, 0, 0, 2, 2]
    assert all(kind.streaming for kind in trace.classes)
    host = served.url.partition("://")[2]
    with served.capture("sums") as asked:
        for path in ("generate", "generate_stream"):
            connection = http.client.HTTPConnection(host, timeout=10)
            connection.request("POST", f"/v2/models/sums/{path}", json.dumps({"INT32": [3], "k": "v"}))
            assert connection.getresponse().status == 200
            connection.close()
    assert [request.front for _, request in asked.requests()] == ["generate", "generate_stream"]
    assert [dict(request.parameters) for _, request in asked.requests()] == [{"k": "v"}] * 2
    assert [kind.streaming for kind in asked.trace.classes] == [False, True]


def test_the_control_plane_gives_captures_to_who_has_the_token_and_says_what_is_wrong(served: WorkbenchServer) -> None:
    connection = http.client.HTTPConnection(served.url.partition("://")[2], timeout=10)
    token = {"Authorization": f"Bearer {served.token}"}

    def ask(method: str, path: str, body: Any = None, headers: dict[str, str] = token) -> tuple[int, Any]:
        connection.request(method, f"/v2/workbench/{path}", None if body is None else json.dumps(body), headers)
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())

    begin = {"limit": 1 << 20, "keep": "first", "for_s": 10}
    assert ask("POST", "models/sums/capture", begin, {})[0] == 401
    assert ask("GET", "captures", None, {})[0] == 401
    assert ask("GET", "models/sums/capture", None)[0] == 405
    for wrong in ([], {"limit": "1"}, {**begin, "limit": True}, {**begin, "for_s": None}, {**begin, "keep": []}):
        assert ask("POST", "models/sums/capture", wrong)[0] == 400
    assert ask("POST", "models/nobody/capture", begin)[0] == 404
    status, made = ask("POST", "models/sums/capture", begin)
    assert status == 200
    assert [each["id"] for each in ask("GET", "captures")[1]] == [made["id"]]
    assert ask("GET", f"captures/{made['id']}/requests?after=0")[0] == 400  # it goes on
    assert ask("POST", f"captures/{made['id']}/stop")[1]["ended_by"] == "stop"
    assert ask("GET", f"captures/{made['id']}/requests?after=-1")[0] == 400
    assert ask("POST", f"captures/{made['id']}/drop")[0] == 200
    assert ask("GET", f"captures/{made['id']}")[0] == 404
    with pytest.raises(NotFound, match="no capture"):
        served.control.end_capture(made["id"])
    connection.close()
