"""What all clients together may take: connections, bodies and messages that stay half sent, and the flags for it."""

from __future__ import annotations

import contextlib
import json
import logging
import resource
import selectors
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import ngh2
import numpy as np
import psutil
import pytest
import tritonclient.grpc as triton
from certificates import write_certificates
from grpc_models import SERVICE, Wire, framed
from test_process import process
from tritonclient.grpc import service_pb2 as pb
from tritonclient.utils import InferenceServerException

from workbench.errors import InvalidRequest
from workbench.server import RunningServer, ServerOptions, runtime
from workbench.server.arguments import parse
from workbench.server.grpc_arguments import grpc_options
from workbench.server.grpc_options import GrpcLimits, GrpcOptions
from workbench.server.http import HttpLimits
from workbench.server.listener import connection_limit
from workbench.server.main import main

OPTIONS = ServerOptions(name="limits", exit_timeout_s=5.0)
CLIENTS = 200
LIVE = framed(pb.ServerLiveResponse(live=True).SerializeToString())


# -- connections -----------------------------------------------------------------------------------------------------


def connect(server: RunningServer) -> HTTPConnection:
    return HTTPConnection(server.http_url.removeprefix("http://"), timeout=20)


def ask(connection: HTTPConnection, path: str = "/v2/health/live") -> tuple[int, bytes]:
    connection.request("GET", path)
    answer = connection.getresponse()
    return answer.status, answer.read()


def test_http_connections_beyond_the_limit_are_told_so(
    repository: Path, start: Any, caplog: pytest.LogCaptureFixture
) -> None:
    options = replace(OPTIONS, limits=HttpLimits(connections=3))
    with caplog.at_level(logging.WARNING, "workbench.server"), start(repository, options) as server:
        with contextlib.ExitStack() as stack:
            kept = [stack.enter_context(contextlib.closing(connect(server))) for _ in range(3)]
            assert [ask(connection) for connection in kept] == [(200, b"")] * 3
            for _ in range(20):
                status, body = ask(connect(server))
                assert status == 503
                assert "too many connections" in json.loads(body)["error"]
            assert [ask(connection) for connection in kept] == [(200, b"")] * 3, "those that were there are served"
            kept[0].close()
            until(lambda: ask(connect(server))[0] == 200)
        told = [record.getMessage() for record in caplog.records if "refused" in record.getMessage()]
        assert told == ["HTTPService: 1 connection refused: 3 are open, the most that it takes"]


def test_grpc_connections_beyond_the_limit_are_closed(
    repository: Path, start: Any, caplog: pytest.LogCaptureFixture
) -> None:
    options = replace(OPTIONS, grpc=GrpcOptions(limits=GrpcLimits(connections=2)))
    with caplog.at_level(logging.WARNING, "workbench.server"), start(repository, options) as server:
        with Wire(server.grpc_url) as first, Wire(server.grpc_url) as second:
            for wire in (first, second):
                assert wire.answer(wire.call("ServerLive", b""))[0] == 0
            for _ in range(10):
                with Wire(server.grpc_url) as third:
                    assert third.read() == []
                    assert third.closed
            client = triton.InferenceServerClient(server.grpc_url.removeprefix("grpc://"))
            with pytest.raises(InferenceServerException) as caught:
                client.is_server_live()
            assert caught.value.status() == "StatusCode.UNAVAILABLE"
            client.close()
            assert second.answer(second.call("ServerLive", b""))[0] == 0, "those that were there are served"

        def is_served() -> bool:
            with Wire(server.grpc_url) as wire:
                return wire.answer(wire.call("ServerLive", b"")) == (0, "", LIVE)

        until(is_served)
        told = [record.getMessage() for record in caplog.records if "refused" in record.getMessage()]
        assert told == ["GRPCInferenceService: 1 connection refused: 2 are open, the most that it takes"]


def test_who_stops_in_the_handshake_of_tls_has_a_place_for_its_time(
    repository: Path, start: Any, tmp_path: Path
) -> None:
    folder = write_certificates(tmp_path)
    flags = [f"--grpc-server-{name}={folder / f'server.{end}'}" for name, end in (("cert", "pem"), ("key", "key"))]
    limits = ("--grpc-use-ssl=true", "--grpc-port=0", "--grpc-max-connections=2", "--grpc-hello-timeout-secs=1")
    options = grpc_options(parse(["--model-repository=.", *flags, *limits]))
    with start(repository, replace(OPTIONS, grpc=options)) as server:
        host, _, port = server.grpc_url.partition("://")[2].rpartition(":")

        def is_served() -> bool:
            client = triton.InferenceServerClient(
                f"{host}:{port}", ssl=True, root_certificates=str(folder / "root.pem")
            )
            with contextlib.closing(client), contextlib.suppress(InferenceServerException):
                return bool(client.is_server_live(client_timeout=5.0))
            return False

        assert is_served()
        listener = server._listeners[1]
        until(lambda: not listener.connections)  # type: ignore[attr-defined]
        with contextlib.ExitStack() as stack:
            silent = [stack.enter_context(socket.create_connection((host, int(port)), timeout=20)) for _ in range(2)]
            until(lambda: len(listener._coming) == 2)  # type: ignore[attr-defined]
            assert not is_served()
            assert listener.refused > 0  # type: ignore[attr-defined]
            for each in silent:
                with contextlib.suppress(ConnectionError):
                    while each.recv(4096):  # until it is cut off
                        pass
            until(is_served)


def test_clients_that_come_and_go_are_not_counted(repository: Path, start: Any) -> None:
    options = replace(OPTIONS, limits=HttpLimits(connections=2), grpc=GrpcOptions(limits=GrpcLimits(connections=2)))
    with start(repository, options) as server:

        def is_free() -> bool:
            with contextlib.closing(connect(server)) as connection:
                return ask(connection)[0] == 200

        for _ in range(30):
            until(is_free)


def test_the_limit_leaves_files_for_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (1000, 1000))
    assert connection_limit(4096) == 250
    assert connection_limit(100) == 100
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert connection_limit(4096) == 4096


def test_a_server_process_may_open_files_for_its_connections(repository: Path) -> None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]

    def few() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (300, hard))

    flags = ("--model-control-mode=explicit", "--log-info=false")
    with process(repository, *flags, preexec_fn=few) as (child, _):
        soft = psutil.Process(child.pid).rlimit(psutil.RLIMIT_NOFILE)[0]
    assert soft == 16384 or (hard != resource.RLIM_INFINITY and soft == min(16384, hard))


def until(condition: Callable[[], bool]) -> None:
    for _ in range(500):
        if condition():
            return
        threading.Event().wait(0.01)
    raise AssertionError("it did not happen within 5 s")


# -- bodies and messages ---------------------------------------------------------------------------------------------


def body(size: int) -> tuple[bytes, str]:
    """A request of ``size`` bytes of INT64 in binary, and the length of its head."""
    entry = {"name": "INPUT0", "datatype": "INT64", "shape": [1, size // 8], "parameters": {"binary_data_size": size}}
    outputs = [{"name": "OUTPUT0", "parameters": {"classification": 1}}]
    head = json.dumps({"inputs": [entry], "outputs": outputs}).encode()
    return head + bytes(size), str(len(head))


def request(size: int, chunked: bool) -> bytes:
    data, length = body(size)
    head = f"POST /v2/models/ints/infer HTTP/1.1\r\nHost: localhost\r\nInference-Header-Content-Length: {length}\r\n"
    if not chunked:
        return head.encode() + b"Content-Length: %d\r\n\r\n" % len(data) + data
    pieces = [data[at : at + 65536] for at in range(0, len(data), 65536)]
    return (
        head.encode()
        + b"Transfer-Encoding: chunked\r\n\r\n"
        + b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces)
        + b"0\r\n\r\n"
    )


class Crowd:
    """Many clients that send as much as is taken of them, on one thread, until the test ends."""

    def __init__(self, address: str, count: int) -> None:
        host, _, port = address.rpartition(":")
        self.sockets = [socket.create_connection((host, int(port)), timeout=20) for _ in range(count)]
        self.selector = selectors.DefaultSelector()
        self.left: dict[socket.socket, memoryview] = {}
        self.answers: dict[socket.socket, bytes] = dict.fromkeys(self.sockets, b"")
        for each in self.sockets:
            each.setblocking(False)

    def send(self, parts: Sequence[bytes]) -> None:
        """Sends each client's part; ends when nothing has been taken, and nothing has come, for a second."""
        for each, part in zip(self.sockets, parts, strict=True):
            self.left[each] = memoryview(part)
            self.selector.register(each, selectors.EVENT_READ | selectors.EVENT_WRITE)
        while self.left and (ready := self.selector.select(1.0)):
            for key, events in ready:
                self._serve(key.fileobj, events)
        for each in self.sockets:
            with contextlib.suppress(KeyError):
                self.selector.unregister(each)

    def _serve(self, each: Any, events: int) -> None:
        if events & selectors.EVENT_WRITE and self.left[each]:
            with contextlib.suppress(BlockingIOError):
                self.left[each] = self.left[each][each.send(self.left[each][:262144]) :]
        if events & selectors.EVENT_READ:
            self.answers[each] += each.recv(1 << 20)
        if not self.left[each]:
            self.selector.modify(each, selectors.EVENT_READ)
        if not self.left[each] and (b"\r\n\r\n" in self.answers[each]):
            del self.left[each]
            self.selector.unregister(each)

    def close(self) -> None:
        for each in self.sockets:
            each.close()
        self.selector.close()


@pytest.fixture
def small(repository: Path, request: pytest.FixtureRequest) -> Iterator[tuple[Any, str, str]]:
    """A server process with 8 MiB for bodies and for messages: itself, its HTTP and its gRPC address."""
    flags = ("--http-body-memory=8388608", "--grpc-message-memory=8388608", "--model-control-mode=explicit")
    with process(repository, *flags, "--load-model=ints", "--log-info=false") as (child, ready):
        assert child.stderr is not None
        threading.Thread(target=child.stderr.read, daemon=True).start()  # a full pipe would stop the server
        yield child, ready[1].removeprefix("http://"), runtime.read(ready[3])["grpc"]


def grown(child: Any, before: int) -> int:
    return (int(psutil.Process(child.pid).memory_info().rss) - before) >> 20


@pytest.mark.full
@pytest.mark.timeout(300)
@pytest.mark.parametrize("chunked", [False, True])
def test_half_sent_bodies_of_many_wait_and_are_all_served(small: tuple[Any, str, str], chunked: bool) -> None:
    child, address, _ = small
    whole = request(4 << 20, chunked)
    with contextlib.closing(HTTPConnection(address, timeout=20)) as connection:
        assert ask(connection)[0] == 200
        before = psutil.Process(child.pid).memory_info().rss
        with contextlib.closing(Crowd(address, CLIENTS)) as crowd:
            half = len(whole) // 2
            taken = whole[:half]
            crowd.send([taken] * CLIENTS)
            assert grown(child, before) < 120, "of 400 MiB that were sent"
            assert ask(connection)[0] == 200, "others are served meanwhile"
            rest = [bytes(crowd.left[each]) + whole[half:] for each in crowd.sockets]
            crowd.send(rest)
            assert all(answer.startswith(b"HTTP/1.1 200") for answer in crowd.answers.values())
            assert grown(child, before) < 120


def test_a_body_larger_than_all_the_memory_is_served_alone(repository: Path, start: Any, http: Any) -> None:
    with start(repository, replace(OPTIONS, limits=HttpLimits(memory=1 << 20))) as server:
        data, length = body(3 << 20)
        for _ in range(2):
            answer = http(server, "POST", "/v2/models/ints/infer", data, {"Inference-Header-Content-Length": length})
            assert answer.status == 200
        host, _, port = server.http_url.removeprefix("http://").rpartition(":")
        whole = request(3 << 20, chunked=False)
        with (
            socket.create_connection((host, int(port)), timeout=20) as first,
            socket.create_connection((host, int(port)), timeout=20) as second,
        ):
            first.sendall(whole[: len(whole) - 5])
            until(lambda: server._listeners[0].bodies.used > 0)  # type: ignore[attr-defined]
            sender = threading.Thread(target=second.sendall, args=(whole,))
            sender.start()
            first.sendall(whole[-5:])
            for each in (first, second):
                assert each.recv(1 << 20).startswith(b"HTTP/1.1 200")
            sender.join(20)
        until(lambda: server._listeners[0].bodies.used == 0)  # type: ignore[attr-defined]


@pytest.mark.parametrize("wrong", [b"\r\n\r\nnonsense", b""])
def test_who_leaves_or_errs_half_way_gives_the_memory_back(repository: Path, start: Any, wrong: bytes) -> None:
    with start(repository, replace(OPTIONS, limits=HttpLimits(memory=1 << 20))) as server:
        bodies = server._listeners[0].bodies
        host, _, port = server.http_url.removeprefix("http://").rpartition(":")
        whole = request(1 << 20, chunked=bool(wrong))
        half = whole[: 1 << 19]
        for _ in range(3):
            with contextlib.ExitStack() as stack:
                made = [stack.enter_context(socket.create_connection((host, int(port)), timeout=20)) for _ in range(3)]
                for each in made:
                    each.sendall(half + wrong)
                until(lambda: bodies.used > 0 or bool(wrong))
        until(lambda: bodies.used == 0)
        with contextlib.closing(connect(server)) as connection:
            data, length = body(1 << 20)
            connection.request("POST", "/v2/models/ints/infer", data, {"Inference-Header-Content-Length": length})
            assert connection.getresponse().status == 200


@pytest.mark.full
@pytest.mark.timeout(300)
@pytest.mark.parametrize(("streams", "size"), [(1, 4 << 20), (100, 60_000)])
def test_half_sent_messages_of_many_wait(small: tuple[Any, str, str], streams: int, size: int) -> None:
    child, _, url = small
    message = pb.ModelInferRequest(model_name="ints")
    message.inputs.add(name="INPUT0", datatype="INT64", shape=[1, size // 8])
    message.raw_input_contents.append(np.zeros(size // 8, np.int64).tobytes())
    whole = framed(message.SerializeToString())
    with Wire(url) as other:
        assert other.answer(other.call("ServerLive", b""))[0] == 0
        before = psutil.Process(child.pid).memory_info().rss
        with contextlib.closing(Callers(url.partition("://")[2], streams, whole[: len(whole) - 1000])) as crowd:
            crowd.send([b""] * CLIENTS)
            assert grown(child, before) < 150, f"of {CLIENTS * streams * len(whole) >> 20} MiB that were to come"
            assert other.answer(other.call("ServerLive", b""))[0] == 0, "others are served meanwhile"
    with Wire(url) as again:
        stream = again.call("ModelInfer", message.SerializeToString())
        assert again.answer(stream)[0] == 0, "what the others held is free"


class Callers(Crowd):
    """Clients that send a part of a message on each of their streams, and hear what the server says of windows."""

    def __init__(self, address: str, streams: int, part: bytes) -> None:
        super().__init__(address, CLIENTS)
        self.h2 = {each: caller(streams, part) for each in self.sockets}

    def _serve(self, each: Any, events: int) -> None:
        h2 = self.h2[each]
        if events & selectors.EVENT_READ:
            if not (data := each.recv(1 << 20)):
                self.selector.unregister(each)
                return
            h2.receive_data(data)
            h2.events()
        if not self.left[each]:
            self.left[each] = memoryview(h2.data_to_send(262144))
        if self.left[each]:
            with contextlib.suppress(BlockingIOError):
                self.left[each] = self.left[each][each.send(self.left[each]) :]
        wants = selectors.EVENT_WRITE if self.left[each] or h2.want_write else 0
        self.selector.modify(each, selectors.EVENT_READ | wants)


def caller(streams: int, part: bytes) -> Any:
    """A connection on which calls have begun, with a part of a message each."""
    made = ngh2.Connection(ngh2.Role.CLIENT, ngh2.Configuration(auto_window_update=False))
    made.initiate_connection({})
    for _ in range(streams):
        fields = {
            ":method": "POST", ":scheme": "http", ":path": f"{SERVICE}/ModelInfer", ":authority": "localhost",
            "te": "trailers", "content-type": "application/grpc",
        }  # fmt: skip
        stream = made.send_request([(name.encode(), value.encode()) for name, value in fields.items()])
        made.send_data(stream, part)
    return made


# -- flags -----------------------------------------------------------------------------------------------------------


def test_every_limit_has_a_flag() -> None:
    args = parse(
        ["--model-repository=.", "--grpc-max-connections=2", "--grpc-max-concurrent-streams=3",
         "--grpc-call-window=4096", "--grpc-message-memory=5", "--grpc-max-stream-requests=6",
         "--grpc-response-backlog=7", "--grpc-hello-timeout-secs=8.5", "--grpc-message-timeout-secs=9"]
    )  # fmt: skip
    assert grpc_options(args).limits == GrpcLimits(2, 3, 4096, 5, 6, 7, 8.5, 9)
    assert grpc_options(parse(["--model-repository=."])).limits == GrpcLimits()


@pytest.mark.parametrize(
    ("flag", "text"),
    [
        ("--http-max-connections=0", "'0' is no number from 1 on"),
        ("--http-answer-memory=0", "'0' is no number from 1 on"),
        ("--http-body-memory=many", "'many' is no number from 1 on"),
        ("--grpc-max-connections=-1", "'-1' is no number from 1 on"),
        ("--grpc-max-concurrent-streams=2147483648", "is no number from 1 to 2147483647"),
        ("--grpc-call-window=1000", "'1000' is no number from 1024 to 2147483647"),
        ("--grpc-message-memory=0", "'0' is no number from 1 on"),
        ("--grpc-max-stream-requests=1.5", "'1.5' is no number from 1 on"),
        ("--grpc-response-backlog=", "'' is no number from 1 on"),
        ("--grpc-hello-timeout-secs=0", "'0' is no number of seconds above 0"),
        ("--grpc-message-timeout-secs=inf", "'inf' is no number of seconds above 0"),
        ("--grpc-keepalive-time=-1", "'-1' is no number from 0 on"),
        ("--grpc-max-connection=3", "unrecognized option '--grpc-max-connection' (did you mean --grpc-max-connections"),
    ],
)
def test_a_wrong_limit_is_said_in_words(flag: str, text: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["--model-repository=.", flag]) == 2
    assert text in capfd.readouterr().err
    with pytest.raises(InvalidRequest):
        parse(["--model-repository=.", flag])
