"""What a client does when the other side is missing, silent, or something else."""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from workbench.client import ControlClient, HttpClient, connect
from workbench.client.http_pool import HttpPool
from workbench.errors import ConnectionFailed, InternalError, InvalidRequest, NotReady


@contextmanager
def listener(handle: Callable[[socket.socket], None]) -> Iterator[str]:
    """Something on a port that does with each connection what it is told."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()

        def accept() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                threading.Thread(target=handle, args=(connection,), daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        yield f"127.0.0.1:{server.getsockname()[1]}"
        server.shutdown(socket.SHUT_RDWR)


def closed_port() -> int:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        port: int = server.getsockname()[1]
        return port


def read_request(connection: socket.socket) -> bytes:
    data = b""
    while b"\r\n\r\n" not in data:
        part = connection.recv(65536)
        if not part:
            return b""
        data += part
    return data


def answer(status: int, body: bytes, extra: str = "") -> bytes:
    return f"HTTP/1.1 {status} X\r\nContent-Length: {len(body)}\r\n{extra}\r\n".encode() + body


@pytest.mark.parametrize("scheme", ["http", "grpc"])
def test_nobody_there(scheme: str) -> None:
    client = connect(f"{scheme}://127.0.0.1:{closed_port()}")
    assert not client.is_live()
    assert not client.is_ready()
    assert not client.is_model_ready("m")
    with pytest.raises(ConnectionFailed, match="no server answers at") as failed:
        client.server_metadata()
    assert failed.value.where == client.url
    assert failed.value.hint
    client.close()


def test_a_silent_server_is_given_up() -> None:
    with listener(lambda connection: (read_request(connection), time.sleep(30))[0] and None) as address:
        pool = HttpPool(f"http://{address}")
        begin = time.monotonic()
        with pytest.raises(ConnectionFailed, match=r"no answer from .* within 0\.2 s"):
            pool.request("GET", "/v2", timeout_s=0.2)
        assert time.monotonic() - begin < 5


def test_a_server_that_dies_during_a_request() -> None:
    def die(connection: socket.socket) -> None:
        read_request(connection)
        connection.close()

    with listener(die) as address, pytest.raises(ConnectionFailed, match="closed the connection before it answered"):
        HttpClient(address).server_metadata()


def test_something_that_does_not_speak_http() -> None:
    def shout(connection: socket.socket) -> None:
        connection.sendall(b"\x00\x00\x12\x04\x00\x00\x00\x00\x00 settings")
        read_request(connection)
        connection.close()

    with listener(shout) as address, pytest.raises(ConnectionFailed, match="does not speak HTTP"):
        HttpClient(address).server_metadata()


def test_a_kept_connection_that_was_closed_meanwhile_is_replaced() -> None:
    served: list[int] = []

    def once(connection: socket.socket) -> None:
        read_request(connection)
        served.append(1)
        connection.sendall(answer(200, b'{"name": "x"}'))
        connection.close()  # without saying so

    with listener(once) as address, HttpClient(address) as client:
        for _ in range(3):
            assert client.server_metadata() == {"name": "x"}
    assert len(served) == 3


def test_a_request_whose_answer_had_begun_is_not_sent_again() -> None:
    asked: list[bytes] = []

    def serve(connection: socket.socket) -> None:
        asked.append(read_request(connection))
        connection.sendall(answer(200, b'{"name": "x"}'))
        asked.append(read_request(connection))
        # so much that the client must be reading the body by the end of it; then a reset, not an orderly end
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 99999999\r\n\r\n" + bytes(32 * 2**20))
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.close()

    with listener(serve) as address, HttpClient(address) as client:
        client.server_metadata()
        with pytest.raises(ConnectionFailed):
            client.load("m")
    assert len(asked) == 2


@pytest.mark.parametrize(("call", "times"), [("metadata", 2), ("load", 1)])
def test_only_what_changes_nothing_is_sent_again(call: str, times: int) -> None:
    """The server crashes in the second request of a kept connection; it must not get an inference or a load twice."""
    asked: list[bytes] = []

    def serve(connection: socket.socket) -> None:
        read_request(connection)
        connection.sendall(answer(200, b'{"name": "x"}'))
        asked.append(read_request(connection))
        connection.close()

    def serve_and_crash(connection: socket.socket) -> None:
        if asked:
            asked.append(read_request(connection))
            connection.close()
        else:
            serve(connection)

    with listener(serve_and_crash) as address, HttpClient(address) as client:
        client.server_metadata()
        with pytest.raises(ConnectionFailed, match="closed the connection before it answered"):
            client.load("m") if call == "load" else client.server_metadata()
    assert len(asked) == times


def test_an_inference_after_the_server_closed_an_idle_connection_goes_over_a_new_one() -> None:
    closed = threading.Event()
    loads: list[bytes] = []

    def serve(connection: socket.socket) -> None:
        request = read_request(connection)
        if request.startswith(b"POST"):
            loads.append(request)
        connection.sendall(answer(200, b"{}"))
        connection.close()
        closed.set()

    with listener(serve) as address, HttpClient(address) as client:
        client.server_metadata()
        assert closed.wait(10)
        client.load("m")
    assert len(loads) == 1


def test_connections_are_kept() -> None:
    accepted: list[int] = []

    def serve(connection: socket.socket) -> None:
        accepted.append(1)
        while read_request(connection):
            connection.sendall(answer(200, b"{}"))

    with listener(serve) as address, HttpClient(address) as client:
        for _ in range(5):
            client.server_metadata()
    assert len(accepted) == 1


def test_error_answers_keep_their_text_and_kind() -> None:
    def refuse(connection: socket.socket) -> None:
        while read_request(connection):
            connection.sendall(answer(503, b'{"error":"Exceeds maximum queue size"}'))

    with listener(refuse) as address, HttpClient(address) as client, pytest.raises(NotReady) as refused:
        client.model_metadata("m")
    assert refused.value.message == "Exceeds maximum queue size"


def test_an_answer_that_is_not_json() -> None:
    def garble(connection: socket.socket) -> None:
        while read_request(connection):
            connection.sendall(answer(200, b"<html>"))

    with listener(garble) as address, HttpClient(address) as client, pytest.raises(InternalError, match="not JSON"):
        client.server_metadata()


def test_a_token_and_a_prefix_are_sent() -> None:
    heard: list[bytes] = []

    def note(connection: socket.socket) -> None:
        while request := read_request(connection):
            heard.append(request)
            connection.sendall(answer(200, b"{}"))

    with listener(note) as address:
        HttpClient(f"http://{address}/gateway/", token="t0k").server_metadata()
        ControlClient(f"http://{address}", "t1k").state()
    assert heard[0].startswith(b"GET /gateway/v2 HTTP/1.1")
    assert b"Authorization: Bearer t0k" in heard[0]
    assert heard[1].startswith(b"GET /v2/workbench/state HTTP/1.1")
    assert b"Authorization: Bearer t1k" in heard[1]


@pytest.mark.parametrize("url", ["ftp://x:1", "http://", "http://x:notaport", "grpc://", "grpc://x:notaport"])
def test_addresses_that_are_none(url: str) -> None:
    with pytest.raises(InvalidRequest):
        connect(url)
