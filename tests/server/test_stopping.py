"""How a server stops: all ports at once, and what waits for nothing does not hold it."""

from __future__ import annotations

import contextlib
import signal
import socket
import ssl
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from queue import Queue
from typing import Any

import grpc
import ngh2
import pytest
from asking import wait_until
from certificates import write_certificates
from grpc_models import WAITS, Wire, framed, put, request, values_of, write_models
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc import service_pb2_grpc

from workbench.server import RunningServer, ServerOptions
from workbench.server.arguments import parse
from workbench.server.grpc_arguments import grpc_options

LONG_S = 60.0
"""An exit timeout that no test waits for."""

REFLECTION = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"
STOPPING = "GRPC server is shutting down and has stopped accepting new requests."


class Waiting:
    """A server whose model ``waits`` answers once it may."""

    def __init__(self, server: RunningServer, root: Path) -> None:
        self.server = server
        self._gate = root / "gate"

    def begun(self) -> None:
        """Waits until the model has a request."""
        wait_until(Path(f"{self._gate}.begun").exists)

    def let_go(self) -> None:
        self._gate.touch()


@pytest.fixture
def waiting(tmp_path: Path, start: Any) -> Iterator[Waiting]:
    root = write_models(tmp_path / "models")
    put(root, "waits", WAITS)
    with start(root, ServerOptions(name="stopping", exit_timeout_s=LONG_S)) as server:
        made = Waiting(server, root)
        try:
            yield made
        finally:
            made.let_go()


class Talk:
    """A ModelStreamInfer that a client keeps open."""

    def __init__(self, stub: Any) -> None:
        self._requests: Queue[Any] = Queue()
        self.call = stub.ModelStreamInfer(iter(self._requests.get, None))

    def ask(self, *values: float, model: str = "echo") -> None:
        self._requests.put(request(model, *values))

    def answer(self) -> list[float]:
        return values_of(next(self.call).infer_response)

    def end(self) -> tuple[Any, str]:
        """How the server has ended it."""
        with pytest.raises(grpc.RpcError) as ended:
            next(self.call)
        self._requests.put(None)
        return ended.value.code(), ended.value.details()


def messages(body: bytes) -> list[Any]:
    """The answers on a stream."""
    found = []
    while body:
        size = int.from_bytes(body[1:5], "big")
        found.append(pb.ModelStreamInferResponse.FromString(body[5 : 5 + size]))
        body = body[5 + size :]
    return found


@contextmanager
def stub_of(server: RunningServer) -> Iterator[Any]:
    with grpc.insecure_channel(server.grpc_url.removeprefix("grpc://")) as channel:
        yield service_pb2_grpc.GRPCInferenceServiceStub(channel)


def test_an_idle_stream_ends_at_once(waiting: Waiting) -> None:
    with stub_of(waiting.server) as stub:
        used, unused = Talk(stub), Talk(stub)
        used.ask(1, 2)
        assert used.answer() == [1, 2]
        assert waiting.server.close(LONG_S), "nothing was cut"
        for talk in (used, unused):
            assert talk.end() == (grpc.StatusCode.UNAVAILABLE, STOPPING)


def test_a_stream_ends_when_what_it_has_asked_is_answered(waiting: Waiting) -> None:
    with stub_of(waiting.server) as stub, ThreadPoolExecutor(1) as pool:
        talk, idle = Talk(stub), Talk(stub)
        talk.ask(1.0, model="waits")
        waiting.begun()
        closed = pool.submit(waiting.server.close, LONG_S)
        assert idle.end()[0] == grpc.StatusCode.UNAVAILABLE
        assert not closed.done()
        waiting.let_go()
        assert talk.answer() == [1.0]
        assert talk.end() == (grpc.StatusCode.UNAVAILABLE, STOPPING)
        assert closed.result(20)


def test_what_a_stream_asks_while_it_ends_is_refused_in_words(waiting: Waiting) -> None:
    with Wire(waiting.server.grpc_url) as wire, stub_of(waiting.server) as stub, ThreadPoolExecutor(1) as pool:
        idle = Talk(stub)
        stream = wire.call("ModelStreamInfer", request("waits", 1).SerializeToString(), end=False)
        waiting.begun()
        closed = pool.submit(waiting.server.close, LONG_S)
        idle.end()
        wire.h2.send_data(stream, framed(request("echo", 2, id="late").SerializeToString()))
        assert wire.answer(wire.call("ServerLive", b""))[0] == 0, "it has been heard"
        waiting.let_go()
        status, text, body = wire.answer(stream)
        assert (status, text) == (14, STOPPING)
        first, second = messages(body)
        assert values_of(first.infer_response) == [1.0]
        assert (second.error_message, second.infer_response.id) == (STOPPING, "late")
        assert closed.result(20)


def test_a_stream_that_its_client_has_ended_ends_well(waiting: Waiting) -> None:
    with stub_of(waiting.server) as stub, ThreadPoolExecutor(1) as pool:
        call = stub.ModelStreamInfer(iter([request("waits", 5)]))
        idle = Talk(stub)
        waiting.begun()
        closed = pool.submit(waiting.server.close, LONG_S)
        idle.end()
        waiting.let_go()
        assert [values_of(each.infer_response) for each in call] == [[5.0]]
        assert call.code() == grpc.StatusCode.OK
        assert closed.result(20)


@pytest.mark.parametrize("sent", [b"", b"\0\0\0\1\0half"], ids=["nothing", "half"])
@pytest.mark.parametrize("method", ["ModelInfer", "ModelStreamInfer", "ServerLive", "ModelMetadata"])
def test_calls_that_have_not_asked_end_at_once(waiting: Waiting, method: str, sent: bytes) -> None:
    with Wire(waiting.server.grpc_url) as wire:
        stream = wire.call(method, end=False)
        if sent:
            wire.h2.send_data(stream, sent)
            wire.flush()
        assert wire.answer(wire.call("ServerLive", b""))[0] == 0
        assert waiting.server.close(LONG_S), "nothing was cut"
        assert wire.answer(stream)[:2] == (14, STOPPING)
        wire.until_closed()


@pytest.mark.parametrize("method", ["ServerLive", REFLECTION, "ModelInfer", "ModelStreamInfer"])
def test_calls_that_begin_while_it_stops_and_ask_nothing_do_not_hold_it(waiting: Waiting, method: str) -> None:
    with Wire(waiting.server.grpc_url) as wire, stub_of(waiting.server) as stub, ThreadPoolExecutor(1) as pool:
        idle = Talk(stub)
        first = wire.call("ModelInfer", request("waits", 1).SerializeToString())
        waiting.begun()
        closed = pool.submit(waiting.server.close, 10.0)
        idle.end()
        late = wire.call(method, end=False)
        assert wire.answer(late)[:2] == (14, STOPPING)
        waiting.let_go()
        assert wire.answer(first)[0] == 0
        assert closed.result(20), "nothing was cut"


@pytest.mark.parametrize("sent", [b"", b"G", b"GET /v2 HTTP/1.1\r\nHost: loc", b"GET /v2 HTTP/1.1\r\n\r\nPOST /v2"])
def test_who_has_not_said_what_he_wants_does_not_hold_it(waiting: Waiting, sent: bytes) -> None:
    server = waiting.server
    with contextlib.ExitStack() as stack:
        for url in (server.http_url, server.metrics_url.removesuffix("/metrics"), server.grpc_url):
            host, _, port = url.partition("://")[2].rpartition(":")
            client = stack.enter_context(socket.create_connection((host, int(port)), timeout=20))
            client.sendall(sent if url != server.grpc_url else b"PRI * HTTP/2.0\r\n")
        wait_until(lambda: all(each.connections for each in server._listeners))  # type: ignore[attr-defined]
        assert server.close(LONG_S), "nothing was cut"


def test_a_request_whose_body_is_coming_is_waited_for(waiting: Waiting) -> None:
    body = b'{"inputs": [{"name": "IN", "datatype": "FP32", "shape": [1], "data": [3]}]}'
    head = b"POST /v2/models/echo/infer HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body)
    host, _, port = waiting.server.http_url.partition("://")[2].rpartition(":")
    with stub_of(waiting.server) as stub, ThreadPoolExecutor(1) as pool:
        idle = Talk(stub)
        with socket.create_connection((host, int(port)), timeout=20) as client:
            client.sendall(head + body[:10])
            idle.ask(1)
            idle.answer()
            wait_until(lambda: any(each.busy for each in waiting.server._listeners[0].connections))  # type: ignore[attr-defined]
            closed = pool.submit(waiting.server.close, LONG_S)
            idle.end()
            client.sendall(body[10:])
            assert client.recv(4096).startswith(b"HTTP/1.1 200")
            assert closed.result(20)


def test_a_handshake_that_ends_late_ends_nowhere(tmp_path: Path, repository: Path, start: Any) -> None:
    """Nobody looks after the connection any more: it is closed."""
    folder = write_certificates(tmp_path)
    flags = [f"--grpc-server-{name}={folder / f'server.{end}'}" for name, end in (("cert", "pem"), ("key", "key"))]
    options = grpc_options(parse(["--model-repository=.", *flags, "--grpc-use-ssl=true", "--grpc-port=0"]))
    context = ssl.create_default_context(cafile=str(folder / "root.pem"))
    context.set_alpn_protocols(["h2"])
    with start(repository, ServerOptions(name="late", exit_timeout_s=5.0, grpc=options)) as server:
        host, _, port = server.grpc_url.partition("://")[2].rpartition(":")
        with socket.create_connection((host, int(port)), timeout=10) as client:
            wait_until(lambda: len(server._listeners[1]._coming) == 1)
            assert server.close(LONG_S)
            with contextlib.suppress(ConnectionError, ssl.SSLError):
                over_tls = context.wrap_socket(client, server_hostname="localhost")
                while over_tls.recv(4096):
                    pass


def test_the_ports_stop_together(waiting: Waiting) -> None:
    """While HTTP has a request to answer gRPC ends what waits for nothing; the metrics can be read till the end."""
    url = waiting.server.http_url + "/v2/models/waits/infer"
    body = b'{"inputs": [{"name": "IN", "datatype": "FP32", "shape": [1], "data": [3]}]}'

    def ask() -> bytes:
        with urllib.request.urlopen(urllib.request.Request(url, body), timeout=30) as answer:
            return bytes(answer.read())

    with stub_of(waiting.server) as stub, ThreadPoolExecutor(2) as pool:
        idle = Talk(stub)
        idle.ask(1)
        idle.answer()
        asked = pool.submit(ask)
        waiting.begun()
        closed = pool.submit(waiting.server.close, LONG_S)
        assert idle.end()[0] == grpc.StatusCode.UNAVAILABLE
        assert not closed.done()
        with urllib.request.urlopen(waiting.server.metrics_url, timeout=20) as metrics:
            assert b"nv_inference_count" in metrics.read()
        with pytest.raises(urllib.error.URLError):
            urllib.request.urlopen(waiting.server.http_url + "/v2/health/live", timeout=20)
        waiting.let_go()
        assert b"[3.0]" in asked.result(20)
        assert closed.result(20)


def test_the_time_is_shared(waiting: Waiting) -> None:
    """Neither a call nor a request ends: together they have the timeout once."""
    url = waiting.server.http_url + "/v2/models/waits/infer"
    body = b'{"inputs": [{"name": "IN", "datatype": "FP32", "shape": [1], "data": [3]}]}'
    loop = waiting.server.engine.loop
    with stub_of(waiting.server) as stub, ThreadPoolExecutor(2) as pool:
        call = stub.ModelInfer.future(request("waits", 1))
        asked = pool.submit(lambda: urllib.request.urlopen(urllib.request.Request(url, body), timeout=30))
        version = "waits"
        wait_until(
            lambda: (
                waiting.server.engine.snapshot().version(version).pending
                + waiting.server.engine.snapshot().version(version).running
                == 2
            )
        )
        began = loop.time()
        assert not waiting.server.close(1.0), "both were cut"
        assert loop.time() - began < 1.9
        with pytest.raises(grpc.RpcError):
            call.result(20)
        with pytest.raises(OSError):  # noqa: PT011 - reset, or closed without a word
            asked.result(20)


def test_an_open_stream_does_not_hold_the_process(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "workbench.server", f"--model-repository={write_models(tmp_path / 'models')}"]
    command += ["--http-port=0", "--grpc-port=0", "--metrics-port=0", "--exit-timeout-secs=600"]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        assert child.stdout is not None
        with Wire(child.stdout.readline().partition("grpc=")[2].split()[0]) as wire:
            stream = wire.call("ModelStreamInfer", request("echo", 4).SerializeToString(), end=False)
            body = b""
            while not body:
                body = b"".join(each.data for each in wire.read() if isinstance(each, ngh2.DataReceived))
            child.send_signal(signal.SIGTERM)
            assert wire.answer(stream)[:2] == (14, STOPPING)
            assert child.wait(30) == 0
    finally:
        child.kill()
        child.communicate()
