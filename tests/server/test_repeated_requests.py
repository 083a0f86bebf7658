"""A client that sends the same head and the same form of request again and again: the answers are those of the first.

The same requests, each on a connection of its own to a server that has not seen their like, say what is right.
"""

from __future__ import annotations

import json
import socket
import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from grpc_models import Wire
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2 as pb

from workbench.config import Edit
from workbench.server import RunningServer, ServerOptions

DATA = np.arange(8, dtype=np.float32)
PATH = "/v2/models/echo/infer"
BINARY = {"name": "OUTPUT0", "parameters": {"binary_data": True}}


def head_of(request_id: str | None, rows: int, outputs: Any = (BINARY,), **more: Any) -> bytes:
    made: dict[str, Any] = {} if request_id is None else {"id": request_id}
    made |= more
    made["inputs"] = [
        {"name": "INPUT0", "shape": [rows, 4], "datatype": "FP32", "parameters": {"binary_data_size": 16 * rows}}
    ]
    if outputs:
        made["outputs"] = list(outputs)
    return json.dumps(made, separators=(",", ":")).encode()


def http(head: bytes, data: bytes, path: str = PATH, *headers: str) -> bytes:
    lines = [
        f"POST {path} HTTP/1.1", "Host: 127.0.0.1", *headers, f"Inference-Header-Content-Length: {len(head)}",
        f"Content-Length: {len(head) + len(data)}", "", "",
    ]  # fmt: skip
    return "\r\n".join(lines).encode() + head + data


def rows_of(count: int, first: float = 0) -> bytes:
    return (np.arange(count * 4, dtype=np.float32) + np.float32(first)).tobytes()


REQUESTS = [
    http(head_of("1", 1), rows_of(1)),
    http(head_of("2", 1), rows_of(1, 7)),
    http(head_of("a longer id", 1), rows_of(1, 3)),
    http(head_of('with "quotes" \\ and Ünïcode 中', 1), rows_of(1)),
    http(head_of("", 1), rows_of(1)),
    http(head_of(None, 1), rows_of(1)),
    http(head_of("8", 2), rows_of(2)),
    http(head_of("9", 1, outputs=()), rows_of(1)),
    http(head_of("9", 1, outputs=(), parameters={"binary_data_output": True}), rows_of(1)),
    http(head_of("9", 1, parameters={"priority": 1, "mine": "x"}), rows_of(1)),
    http(head_of("9", 1, outputs=({"name": "OUTPUT0"},)), rows_of(1)),
    http(head_of("9", 1, outputs=({"name": "OUTPUT0", "parameters": {"classification": 2}},)), rows_of(1)),
    http(head_of("9", 1, outputs=(BINARY, BINARY)), rows_of(1)),
    http(head_of("9", 1, outputs=({"name": "nobody", "parameters": {"binary_data": True}},)), rows_of(1)),
    http(head_of("9", 9), rows_of(9)),
    http(head_of("9", 0), b""),
    http(head_of("9", 1), rows_of(1)[:-1]),
    http(head_of("9", 1), rows_of(1) + b"x"),
    http(head_of("1", 1)[:-1] + b',"id":"late"}', rows_of(1)),
    http(b'{"id":"1",' + head_of("2", 1)[1:], rows_of(1)),
    http(head_of("1", 1)[:-1] + b',"id":"1"}', rows_of(1)),
    http(head_of("2", 1)[:-1] + b',"id":"1"}', rows_of(1)),
    http(head_of("2", 1)[:-1] + b',"\\u0069d":"1"}', rows_of(1)),
    http(head_of("1", 1)[:-1] + b',"\\u0069d":"1"}', rows_of(1)),
    http(head_of(None, 1)[1:], rows_of(1)),
    http(b'{"id":"1",' + head_of(None, 1), rows_of(1)),
    http(head_of("1", 1), rows_of(1), "/v2/models/echo/versions/1/infer"),
    http(head_of("1", 1), rows_of(1), "/v2/models/nobody/infer"),
    http(head_of("1", 1), rows_of(1), PATH, "Accept-Encoding: gzip"),
    http(head_of("1", 1), rows_of(1), PATH, "Origin: http://evil.example"),
    b'POST /v2/models/echo/infer HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n',
    b"GET /v2/health/live HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
]  # fmt: skip


class Line:
    """A connection."""

    def __init__(self, server: RunningServer) -> None:
        host, _, port = server.http_url.removeprefix("http://").rpartition(":")
        self.socket = socket.create_connection((host, int(port)), timeout=20)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.stream = self.socket.makefile("rb")

    def answer(self) -> tuple[bytes, list[bytes], bytes]:
        status = self.stream.readline()
        headers = []
        while line := self.stream.readline().strip():
            headers.append(line)
        size = next((int(line.split()[1]) for line in headers if line.lower().startswith(b"content-length:")), 0)
        return status, headers, self.stream.read(size)

    def close(self) -> None:
        self.stream.close()
        self.socket.close()


@pytest.fixture(scope="module")
def right(start: Callable[..., Any], repository: Any) -> list[Any]:
    """What a server that has seen nothing like it answers to each request."""
    found = []
    for request in REQUESTS:
        with start(repository, control_mode="none") as fresh:
            line = Line(fresh)
            line.socket.sendall(request)
            found.append(line.answer())
            line.close()
    return found


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.integers(0, len(REQUESTS) - 1), min_size=1, max_size=12), st.data())
def test_answers_do_not_depend_on_what_came_before(
    server: RunningServer, right: list[Any], numbers: list[int], data: Any
) -> None:
    line = Line(server)
    try:
        for number in (each for each in numbers for _ in range(2)):
            request = REQUESTS[number]
            head = request.index(b"\r\n\r\n") + 4
            cut = data.draw(st.sampled_from([len(request), head, 0, 1, 20, head - 1, head + 1, len(request) - 1]))
            line.socket.sendall(request[:cut])
            if cut < len(request):
                line.socket.sendall(request[cut:])
            answer = line.answer()
            assert answer == right[number]
            if b"Connection: close" in answer[1]:
                line.close()
                line = Line(server)
    finally:
        line.close()


def test_each_request_behind_each_other(server: RunningServer, right: list[Any]) -> None:
    """Whatever the server has learned of the one must not change its answer to the other."""
    line = Line(server)
    numbers = range(len(REQUESTS))
    for number in (*numbers, *numbers, *reversed(numbers), *numbers):
        line.socket.sendall(REQUESTS[number])
        answer = line.answer()
        assert answer == right[number], REQUESTS[number]
        if b"Connection: close" in answer[1]:
            line.close()
            line = Line(server)
    line.close()


def test_json_above_the_limit_is_refused_though_its_form_is_known(start: Callable[..., Any], repository: Any) -> None:
    with start(repository, ServerOptions(name="test", max_input_size=1000), control_mode="none") as served:
        line = Line(served)
        for size, status in ((10, b"200"), (10, b"200"), (2000, b"400"), (10, b"200")):
            line.socket.sendall(http(head_of("x" * size, 1), rows_of(1)))
            assert line.answer()[0].split()[1] == status
        line.close()


def test_pipelined_requests_of_one_head(server: RunningServer, right: list[Any]) -> None:
    line = Line(server)
    line.socket.sendall(REQUESTS[0])
    assert line.answer() == right[0]
    line.socket.sendall(REQUESTS[0] + REQUESTS[1] + REQUESTS[0])
    assert [line.answer() for _ in range(3)] == [right[0], right[1], right[0]]
    head = REQUESTS[0].index(b"\r\n\r\n") + 4
    line.socket.sendall(REQUESTS[0][:head])
    line.socket.sendall(REQUESTS[0][head:] + REQUESTS[1])
    assert [line.answer() for _ in range(2)] == [right[0], right[1]]
    line.close()


def test_a_body_that_does_not_come_after_a_known_head(server: RunningServer, right: list[Any]) -> None:
    line = Line(server)
    line.socket.sendall(REQUESTS[0])
    assert line.answer() == right[0]
    line.socket.sendall(REQUESTS[0][: REQUESTS[0].index(b"\r\n\r\n") + 4])
    line.socket.shutdown(socket.SHUT_WR)
    assert line.stream.read() == b""
    line.close()
    other = Line(server)
    other.socket.sendall(REQUESTS[1])
    assert other.answer() == right[1]
    other.close()


def test_a_known_form_is_checked_again_when_the_model_changes(
    start: Callable[..., Any], tmp_path: Any, write: Callable[..., None], right: list[Any]
) -> None:
    write(tmp_path, "echo", "FP32", [4])
    with start(tmp_path, control_mode="none") as served:
        line = Line(served)
        for batch, text in ((8, ""), (1, "inference request batch-size must be <= 1 for 'echo'"), (8, "")):
            served.engine.configure("echo", [Edit("max_batch_size", "set", batch)])
            for _ in range(2):
                line.socket.sendall(REQUESTS[6])
                answer = line.answer()
                assert answer == right[6] if not text else text in answer[2].decode()
        line.close()


def test_a_known_message_is_checked_again_when_the_model_changes(
    start: Callable[..., Any], tmp_path: Any, write: Callable[..., None]
) -> None:
    """What is known of gRPC's messages outlasts a model's configuration."""
    write(tmp_path, "echo", "FP32", [4])
    asked = pb.ModelInferRequest(model_name="echo", raw_input_contents=[rows_of(2)])
    asked.inputs.add(name="INPUT0", datatype="FP32", shape=[2, 4])
    with start(tmp_path, control_mode="none") as served, Wire(served.grpc_url) as wire:
        for batch, text in ((8, ""), (1, "inference request batch-size must be <= 1 for 'echo'"), (8, "")):
            served.engine.configure("echo", [Edit("max_batch_size", "set", batch)])
            for _ in range(3):
                status, told, answer = wire.answer(wire.call("ModelInfer", asked.SerializeToString()))
                assert text in told
                assert status == (3 if text else 0)
                assert answer.endswith(rows_of(2)) or text


def test_a_form_that_is_refused_once_is_refused_again(server: RunningServer) -> None:
    line = Line(server)
    wrong = http(head_of("1", 1).replace(b"FP32", b"INT8").replace(b"16}", b"4}"), bytes(4))
    texts = []
    for _ in range(3):
        line.socket.sendall(wrong)
        texts.append(json.loads(line.answer()[2])["error"])
    assert len(set(texts)) == 1
    assert "data-type is 'INT8', but model 'echo' expects 'FP32'" in texts[0]
    line.close()


def test_more_forms_than_are_kept(server: RunningServer) -> None:
    """Memory does not grow with the forms that clients think of."""
    line = Line(server)
    tracemalloc.start()
    begun = 0
    try:
        for number in range(3000):
            head = head_of("1", 1)[:-1] + b',"x":"%0*d"}' % (1700, number)
            line.socket.sendall(http(head, rows_of(1, number)))
            status, _, body = line.answer()
            assert status.startswith(b"HTTP/1.1 200")
            assert body.endswith(rows_of(1, number))
            if number == 1000:
                begun = tracemalloc.get_traced_memory()[0]
        assert tracemalloc.get_traced_memory()[0] - begun < 2_000_000
    finally:
        tracemalloc.stop()
    line.close()


def test_more_forms_of_messages_than_are_kept(server: RunningServer) -> None:
    tracemalloc.start()
    begun = 0
    try:
        with Wire(server.grpc_url) as wire:
            for number in range(3000):
                asked = pb.ModelInferRequest(model_name="echo", raw_input_contents=[rows_of(1, number)])
                tensor = asked.inputs.add(name="INPUT0", datatype="FP32", shape=[1, 4])
                tensor.MergeFromString(b"\x72\xa4\x0d" + b"%01700d" % number)  # a field that nobody knows
                status, _, answer = wire.answer(wire.call("ModelInfer", asked.SerializeToString()))
                assert status == 0
                assert answer.endswith(rows_of(1, number))
                if number == 1000:
                    begun = tracemalloc.get_traced_memory()[0]
        assert tracemalloc.get_traced_memory()[0] - begun < 2_000_000
    finally:
        tracemalloc.stop()


def test_more_heads_of_calls_than_are_kept(server: RunningServer) -> None:
    tracemalloc.start()
    begun = 0
    try:
        with Wire(server.grpc_url) as wire:
            for number in range(300):
                assert wire.answer(wire.call("ServerLive", b"", headers={"x": f"{number:08000}"}))[0] == 0
                if number == 100:
                    begun = tracemalloc.get_traced_memory()[0]
            assert tracemalloc.get_traced_memory()[0] - begun < 500_000, "of a connection that is still there"
    finally:
        tracemalloc.stop()
