"""Clients that mean harm: slow, endless, enormous, deaf. Memory stays bounded, each is answered and closed cleanly."""

from __future__ import annotations

import contextlib
import gzip
import json
import socket
import struct
import threading
import time
from collections.abc import Iterator

import pytest
from bystander import GOOD, Bystander, bystander, over_http
from fuzzed_server import MAX_INPUT, FuzzedServer, fuzzed_server
from http_answers import Answer, read_answer
from http_cases import post

LIMIT_S = 2
INFER = "/v2/models/echo/infer"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FuzzedServer]:
    limits = (f"--http-head-timeout-secs={LIMIT_S}", f"--http-body-timeout-secs={LIMIT_S}")
    with fuzzed_server(tmp_path_factory.mktemp("hostile"), *limits) as made:
        yield made


@pytest.fixture(autouse=True)
def other(server: FuzzedServer) -> Iterator[Bystander]:
    """Somebody else, who is served whatever a test does, while memory stays bounded."""
    with over_http(server) as ask, bystander(server, ask, 150 << 20) as one:
        yield one


def connect(server: FuzzedServer) -> socket.socket:
    host, _, port = server.address.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=30)


def ask(server: FuzzedServer, data: bytes) -> Answer:
    with connect(server) as client, client.makefile("rb") as stream:
        sending = threading.Thread(target=_push, args=(client, data))
        sending.start()
        answer = read_answer(stream)
        assert answer is not None
        if answer.last:
            assert stream.read() == b"", "closed behind the answer"
        sending.join()
        return answer


def _push(client: socket.socket, data: bytes) -> None:
    with contextlib.suppress(OSError):
        client.sendall(data)


def refused(answer: Answer, status: int, text: str) -> None:
    assert answer.status == status, answer
    assert text in answer.document()["error"]


@pytest.mark.full
@pytest.mark.parametrize(
    ("start", "status"),
    [
        (b"GET /v2 HTTP/1.1\r\nX: " + b"a" * 60_000, 408),
        (b"POST /v2/models/echo/infer HTTP/1.1\r\nContent-Length: 1000000\r\n\r\n" + b"[" * 1000, 408),
        (b"POST /v2/models/echo/infer HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n10000\r\n" + b"[" * 1000, 408),
    ],
    ids=["heads", "bodies", "chunks"],
)
def test_hundreds_that_begin_and_do_not_go_on(
    server: FuzzedServer, other: Bystander, start: bytes, status: int
) -> None:
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(connect(server)) for _ in range(300)]
        for client in clients:
            client.sendall(start)
        other.goes_on()
        assert server.grown() < 100 << 20
        for client in clients:
            stream = stack.enter_context(client.makefile("rb"))
            answer = read_answer(stream)
            assert answer is not None
            assert (answer.status, answer.last) == (status, True)
            assert stream.read() == b""


def test_heads_that_are_too_large(server: FuzzedServer) -> None:
    for head in (b"X: " + b"a" * 70_000, b"".join(b"h%d: v\r\n" % number for number in range(10_000))):
        refused(ask(server, b"GET /v2 HTTP/1.1\r\n" + head + b"\r\n\r\n"), 431, "request head exceeds 65536 bytes")
    refused(ask(server, b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\n\r\n"), 431, "request head exceeds 65536 bytes")


def test_bodies_that_are_too_large(server: FuzzedServer) -> None:
    text = f"exceeds the maximum allowed input size of {MAX_INPUT} bytes. Use --http-max-input-size"
    body = b" " * (MAX_INPUT + 1)
    refused(ask(server, post(INFER, body)), 400, text)
    chunks = b"10000\r\n" + b" " * 65536 + b"\r\n"
    chunked = f"POST {INFER} HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n".encode() + chunks * 100
    refused(ask(server, chunked), 400, text)
    many = f"POST {INFER} HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n".encode() + b"1\r\n \r\n" * 65_537
    refused(ask(server, many), 400, "Chunked request body exceeds maximum of 65536 non-empty chunks.")


def test_bombs_stop_at_the_limit(server: FuzzedServer) -> None:
    bomb = gzip.compress(bytes(100 << 20), 9)  # 100 KB
    answers: list[Answer] = []
    data = post(INFER, bomb, (("Content-Encoding", "gzip"),))
    threads = [threading.Thread(target=lambda: answers.append(ask(server, data))) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(answers) == 20
    for answer in answers:
        refused(answer, 400, f"Decompressed data size exceeds the maximum allowed value of {MAX_INPUT} bytes.")
    assert server.grown() < 100 << 20


@pytest.mark.parametrize("unit", [b"[", b'{"a":', b'[{"a":', b'{"inputs":[', b'"\\', b"{"])
def test_json_without_a_floor(server: FuzzedServer, unit: bytes) -> None:
    for count in (1000, 1_000_000 // len(unit)):
        answer = ask(server, post(INFER, unit * count))
        assert answer.status in (400, 500)
    closed = b'{"inputs":' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    assert ask(server, post(INFER, closed)).status in (400, 500)


@pytest.mark.parametrize(
    "shape",
    [
        "[-1,4]", "[4611686018427387904,4611686018427387904]", "[9223372036854775807]", "[18446744073709551615,4]",
        "[18446744073709551616]", "[1e9,4]", "[3037000500,3037000500]", "[2147483648,4]", "[0,9223372036854775807]",
        "[" + ",".join(["1"] * 100_000) + "]", "[" + ",".join(["2"] * 64) + "]", "[1" + "0" * 5000 + "]", "[[4]]", "[]",
    ],
    ids=range(14),
)  # fmt: skip
@pytest.mark.parametrize("binary", [False, True])
def test_shapes_beyond_measure(server: FuzzedServer, shape: str, binary: bool) -> None:
    data = '"parameters":{"binary_data_size":16}' if binary else '"data":[1,2,3,4]'
    head = f'{{"inputs":[{{"name":"INPUT0","datatype":"FP32","shape":{shape},{data}}}]}}'.encode()
    headers = (("Inference-Header-Content-Length", str(len(head))),) if binary else ()
    assert ask(server, post(INFER, head + bytes(16) if binary else head, headers)).status in (400, 500)


@pytest.mark.parametrize("size", [-1, 2**31, 2**63 - 1, 2**64 - 1, 2**64, 1e300])
def test_parts_larger_than_the_body(server: FuzzedServer, size: float) -> None:
    for model, datatype, shape in (("echo", "FP32", [1, 4]), ("texts", "BYTES", [1, 2**60])):
        entry = {"name": "INPUT0", "datatype": datatype, "shape": shape, "parameters": {"binary_data_size": size}}
        head = json.dumps({"inputs": [entry]}).encode()
        answer = ask(
            server,
            post(f"/v2/models/{model}/infer", head + bytes(16), (("Inference-Header-Content-Length", str(len(head))),)),
        )
        assert answer.status in (400, 500)


@pytest.mark.parametrize("whole", [False, True], ids=["reset", "end"])
def test_bodies_that_stop_half_way(server: FuzzedServer, other: Bystander, whole: bool) -> None:
    """Hundreds announce a large body, send half of it and go."""
    start = f"POST {INFER} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {MAX_INPUT}\r\n\r\n".encode()
    for _ in range(10):
        with contextlib.ExitStack() as stack:
            clients = [stack.enter_context(connect(server)) for _ in range(30)]
            for client in clients:
                client.sendall(start + bytes(MAX_INPUT // 4))
            other.goes_on(1)
            for client in clients:
                if whole:
                    client.shutdown(socket.SHUT_WR)
                    with contextlib.suppress(ConnectionError):
                        while client.recv(65536):
                            pass
                else:
                    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    other.goes_on()


@pytest.mark.parametrize("length", ["-1", "0x10", "1e3", "+5", "5x", "", "99999999", "9" * 30, "1 2", "²"])
def test_header_lengths_that_are_wrong(server: FuzzedServer, length: str) -> None:
    body = json.dumps(GOOD).encode()
    data = post(INFER, body + bytes(16), (("Inference-Header-Content-Length", length),))
    answer = ask(server, data)
    assert answer.status in (400, 500)
    assert answer.document()["error"]


@pytest.mark.parametrize("length", [-1, 0, 1])
def test_header_lengths_that_are_off_by_some(server: FuzzedServer, length: int) -> None:
    entry = GOOD["inputs"][0] | {"parameters": {"binary_data_size": 16}}
    entry.pop("data")
    head = json.dumps({"inputs": [entry]}).encode()
    data = post(INFER, head + bytes(16), (("Inference-Header-Content-Length", str(len(head) + length)),))
    assert ask(server, data).status == (200 if not length else 400 if length > 0 else ask(server, data).status)


@pytest.mark.full
def test_a_flood_that_reads_no_answer(server: FuzzedServer, other: Bystander) -> None:
    """Pipelined requests are not even read while the answers before them are not taken."""
    body = json.dumps({"inputs": [GOOD["inputs"][0] | {"shape": [8, 4], "data": [0.1] * 32}]}).encode()
    flood = (post(INFER, body) + b"GET /v2/models/stats HTTP/1.1\r\n\r\n") * 20_000
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(connect(server)) for _ in range(16)]
        for client in clients:
            threading.Thread(target=_push, args=(client, flood), daemon=True).start()
        peak = 0
        for _ in range(100):
            time.sleep(0.05)
            peak = max(peak, server.grown())
        assert peak < 150 << 20, f"{peak >> 20} MiB"
        other.goes_on()
