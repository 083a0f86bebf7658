"""HTTP/1.1 itself: order, limits, dawdling and vanishing clients; a small application instead of models."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import uvloop
from http_app import Running, read_answer, until
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from workbench.server.http import HttpLimits


@pytest.fixture(params=["uvloop", "asyncio"])
def running(request: pytest.FixtureRequest) -> Iterator[Running]:
    new_loop = uvloop.new_event_loop if request.param == "uvloop" else asyncio.new_event_loop
    made = Running(HttpLimits(head_s=30.0, pause_s=30.0, linger_s=0.2), new_loop)
    yield made
    made.close()


@pytest.fixture
def impatient() -> Iterator[Running]:
    made = Running(HttpLimits(head_s=0.3, pause_s=0.3, linger_s=0.1))
    yield made
    made.close()


def test_a_connection_is_kept(running: Running) -> None:
    with running.connect() as client, client.makefile("rb") as stream:
        for number in range(3):
            client.sendall(b"POST /x%d HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\nab" % number)
            assert read_answer(stream)[2] == b"POST /x%d ab" % number


def test_pipelined_requests_are_answered_in_order(running: Running) -> None:
    with running.connect() as client, client.makefile("rb") as stream:
        paths = [b"/late/60", b"/a", b"/late/20", b"/b", b"/error", b"/c"]
        client.sendall(b"".join(b"GET %b HTTP/1.1\r\nHost: h\r\n\r\n" % path for path in paths))
        answers = [read_answer(stream) for _ in paths]
        assert [body for _, _, body in answers if body[:3] == b"GET"] == [
            b"GET %b " % path for path in paths if path != b"/error"
        ]
        assert answers[4][0] == 400
        assert answers[4][2] == b'{"error":"no"}'


def test_thousands_of_pipelined_requests(running: Running) -> None:
    with running.connect() as client, client.makefile("rb") as stream:
        threading.Thread(target=client.sendall, args=(b"GET /p HTTP/1.1\r\n\r\n" * 5000,), daemon=True).start()
        for _ in range(5000):
            assert read_answer(stream)[0] == 200


def test_chunked_bodies(running: Running) -> None:
    with running.connect() as client, client.makefile("rb") as stream:
        client.sendall(b"POST /c HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n")
        client.sendall(b"3\r\ncde\r\n0\r\n\r\n")
        assert read_answer(stream)[2] == b"POST /c abcde"
        client.sendall(b"GET /again HTTP/1.1\r\nHost: h\r\n\r\n")
        assert read_answer(stream)[0] == 200


def test_a_large_body_arrives_whole(running: Running) -> None:
    body = bytes(range(256)) * 3900
    with running.connect() as client, client.makefile("rb") as stream:
        client.sendall(b"POST /l HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        assert read_answer(stream)[2] == b"POST /l " + body


def test_expect_continue(running: Running) -> None:
    with running.connect() as client, client.makefile("rb") as stream:
        client.sendall(b"POST /e HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n")
        assert stream.readline() == b"HTTP/1.1 100 Continue\r\n"
        assert stream.readline() == b"\r\n"
        client.sendall(b"hi")
        assert read_answer(stream)[2] == b"POST /e hi"


def test_old_clients(running: Running) -> None:
    with running.connect() as client, client.makefile("rb") as stream:
        client.sendall(b"GET /k HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
        assert read_answer(stream)[1]["connection"] == "keep-alive"
        client.sendall(b"GET /o HTTP/1.0\r\n\r\n")
        status, headers, _ = read_answer(stream)
        assert (status, headers["connection"]) == (200, "close")
        assert stream.read() == b""


def test_connection_close_is_honoured(running: Running) -> None:
    with running.connect() as client, client.makefile("rb") as stream:
        client.sendall(b"GET /o HTTP/1.1\r\nConnection: close\r\n\r\nGET /after HTTP/1.1\r\n\r\n")
        assert read_answer(stream)[1]["connection"] == "close"
        assert stream.read() == b""


def test_an_offer_to_upgrade_is_ignored(running: Running) -> None:
    with running.connect() as client, client.makefile("rb") as stream:
        client.sendall(
            b"POST /u HTTP/1.1\r\nHost: h\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n"
            b"HTTP2-Settings: AAMAAABkAAQAAP__\r\nContent-Length: 4\r\n\r\nbody"
        )
        assert read_answer(stream)[2] == b"POST /u body"
        client.sendall(b"GET /next HTTP/1.1\r\nHost: h\r\n\r\n")
        assert read_answer(stream)[2] == b"GET /next "


def test_an_absolute_target(running: Running) -> None:
    with running.connect() as client, client.makefile("rb") as stream:
        client.sendall(b"GET http://localhost:1/a/b?c=d HTTP/1.1\r\nHost: localhost:1\r\n\r\n")
        assert read_answer(stream)[2] == b"GET /a/b "


def test_head_has_no_body(running: Running) -> None:
    with running.connect() as client, client.makefile("rb") as stream:
        client.sendall(b"HEAD /h HTTP/1.1\r\nHost: h\r\n\r\nGET /g HTTP/1.1\r\nHost: h\r\n\r\n")
        assert stream.readline() == b"HTTP/1.1 200 OK\r\n"
        while stream.readline() != b"\r\n":
            pass
        assert read_answer(stream)[2] == b"GET /g "


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400),
        (b"GET / HTTP/1.1\r\nContent-Length: x\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nContent-Length: -5\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nContent-Length: 99999999999999999999999\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nContent-Length: 3000000000\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", 400),
        (b"POST / HTTP/1.1\r\nContent-Length: 1000001\r\nExpect: 100-continue\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nX: " + b"a" * 70_000, 431),
        (b"GET /" + b"a" * 70_000, 431),
        (b"CONNECT x:1 HTTP/1.1\r\nHost: h\r\n\r\n", 405),
        (b"GET /bug HTTP/1.1\r\nConnection: close\r\n\r\n", 500),
    ],
)
def test_bad_input_gets_an_error_and_a_clean_close(running: Running, data: bytes, status: int) -> None:
    with running.connect() as client, client.makefile("rb") as stream:
        client.sendall(data)
        got, headers, body = read_answer(stream)
        assert got == status
        assert headers["connection"] == "close"
        assert body.startswith(b'{"error":')
        assert stream.read() == b""
    until(lambda: running.count() == 0)


def test_a_refused_client_that_goes_on_sending_still_gets_its_answer(running: Running) -> None:
    with running.connect() as client, client.makefile("rb") as stream:
        client.sendall(b"POST / HTTP/1.1\r\nContent-Length: 1500000\r\n\r\n" + bytes(1_500_000))
        status, _, body = read_answer(stream)
        assert (status, body) == (400, b'{"error":"1500000 bytes are too many"}')


def test_a_chunked_body_without_end_is_cut(running: Running) -> None:
    with running.connect() as client, client.makefile("rb") as stream:
        client.sendall(b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n")
        piece = b"%x\r\n%b\r\n" % (100_000, bytes(100_000))
        for _ in range(11):
            client.sendall(piece)
        assert read_answer(stream)[0] == 400


def test_trailers_are_no_headers(running: Running) -> None:
    with running.connect() as client, client.makefile("rb") as stream:
        client.sendall(
            b"POST /c HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n"
            b"2;name=value\r\nab\r\n0\r\nHost: other\r\nAuthorization: Bearer x\r\n\r\n"
        )
        assert read_answer(stream)[2] == b"POST /c ab"
        client.sendall(b"GET /next HTTP/1.1\r\n\r\n")
        assert read_answer(stream)[2] == b"GET /next "


@pytest.mark.parametrize(
    ("start", "more"),
    [
        pytest.param(b"0\r\n", b"t: " + b"v" * 1000 + b"\r\n", id="many trailers"),
        pytest.param(b"0\r\nt: ", b"v" * 1000, id="one trailer without end"),
        pytest.param(b"2;", b"x" * 1000, id="a chunk extension without end"),
    ],
)
def test_what_is_beside_a_chunked_body_is_bounded(running: Running, start: bytes, more: bytes) -> None:
    with running.connect() as client, client.makefile("rb") as stream:
        client.sendall(b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n" + start)
        with contextlib.suppress(OSError):
            for _ in range(200):
                client.sendall(more)
        assert read_answer(stream)[0] == 431


def test_too_many_chunks(running: Running) -> None:
    with running.connect() as client, client.makefile("rb") as stream:
        client.sendall(b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n" + b"1\r\na\r\n" * 65_540)
        status, _, body = read_answer(stream)
        assert status == 400
        assert b"Chunked request body exceeds maximum of 65536 non-empty chunks." in body


def test_a_refusal_waits_for_the_answers_before_it(running: Running) -> None:
    with running.connect() as client, client.makefile("rb") as stream:
        client.sendall(b"GET /late/50 HTTP/1.1\r\n\r\n\x00\x01broken\r\n\r\n")
        assert read_answer(stream)[2] == b"GET /late/50 "
        assert read_answer(stream)[0] == 400


def test_a_client_that_vanishes_is_noticed(running: Running) -> None:
    client = running.connect()
    client.sendall(b"GET /never HTTP/1.1\r\nHost: h\r\n\r\n")
    assert running.app.arrived.wait(5)
    client.close()
    assert running.app.gone.wait(5)


def test_a_half_closed_client_gets_what_it_asked_for(running: Running) -> None:
    with running.connect() as client, client.makefile("rb") as stream:
        client.sendall(b"GET /late/50 HTTP/1.1\r\n\r\nGET /b HTTP/1.1\r\n\r\n")
        client.shutdown(socket.SHUT_WR)
        assert read_answer(stream)[2] == b"GET /late/50 "
        assert read_answer(stream)[2] == b"GET /b "
        assert stream.read() == b""


def test_a_body_that_stops_half_way(running: Running) -> None:
    with running.connect() as client:
        client.sendall(b"POST /x HTTP/1.1\r\nContent-Length: 10\r\n\r\nabc")
        client.shutdown(socket.SHUT_WR)
        assert client.recv(100) == b""
    until(lambda: running.count() == 0)


@pytest.mark.parametrize(
    "start", [b"G", b"GET / HTTP/1.1\r\nA: b\r\n", b"POST / HTTP/1.1\r\nContent-Length: 9\r\n\r\n"]
)
def test_a_dawdling_client_is_cut_off(impatient: Running, start: bytes) -> None:
    with impatient.connect() as client, client.makefile("rb") as stream:
        client.sendall(start)
        assert read_answer(stream)[0] == 408
        assert stream.read() == b""


def test_slow_drops_do_not_keep_a_head_open(impatient: Running) -> None:
    with impatient.connect() as client:
        client.settimeout(0.05)
        received = b""
        for _ in range(60):
            try:
                client.sendall(b"A: b\r\n" if received or _ else b"GET / HTTP/1.1\r\n")
                received += client.recv(1000)
            except TimeoutError:
                continue
            except OSError:
                break
            if received:
                break
        assert received.startswith(b"HTTP/1.1 408 ")


def test_an_idle_connection_is_left_alone(impatient: Running) -> None:
    with impatient.connect() as client, client.makefile("rb") as stream:
        threading.Event().wait(0.8)
        client.sendall(b"GET /i HTTP/1.1\r\n\r\n")
        assert read_answer(stream)[0] == 200


def test_a_client_that_does_not_read_is_cut_off_and_memory_stays_bounded(impatient: Running) -> None:
    with impatient.connect() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.sendall(b"GET /big HTTP/1.1\r\n\r\n" * 50)

        async def buffered() -> int:
            return sum(
                connection.transport.get_write_buffer_size()
                for connection in impatient.server.connections
                if connection.transport is not None
            )

        assert impatient.run(buffered()) <= 24_001_000, "further answers are not begun while one is not taken"
        until(lambda: impatient.count() == 0)


def read_chunks(stream: Any) -> list[bytes]:
    pieces = []
    while (size := int(stream.readline(), 16)) > 0:
        pieces.append(stream.read(size))
        assert stream.readline() == b"\r\n"
    assert stream.readline() == b"\r\n"
    return pieces


def read_head(stream: Any) -> list[bytes]:
    lines = []
    while (line := stream.readline().strip()) != b"":
        lines.append(line)
    return lines


def test_a_connection_outlives_an_answer_in_pieces(running: Running) -> None:
    with running.connect() as client, client.makefile("rb") as stream:
        client.sendall(
            b"".join(b"GET %b HTTP/1.1\r\n\r\n" % path for path in (b"/stream/2", b"/a", b"/stream/0", b"/b"))
        )
        head = read_head(stream)
        assert head[0] == b"HTTP/1.1 200 OK"
        assert b"Connection: close" not in head
        assert read_chunks(stream) == [b"piece 0;", b"piece 1;"]
        assert read_answer(stream)[2] == b"GET /a "
        read_head(stream)
        assert read_chunks(stream) == []
        assert read_answer(stream)[2] == b"GET /b "


@pytest.mark.parametrize(
    ("request_", "framed"),
    [
        (b"GET /stream/2 HTTP/1.0\r\nConnection: keep-alive\r\n\r\n", False),
        (b"GET /stream/2 HTTP/1.1\r\nConnection: close\r\n\r\n", True),
    ],
)
def test_an_answer_in_pieces_ends_with_its_connection(running: Running, request_: bytes, framed: bool) -> None:
    with running.connect() as client, client.makefile("rb") as stream:
        client.sendall(request_)
        head = read_head(stream)
        assert b"Connection: close" in head
        assert (b"Transfer-Encoding: chunked" in head) is framed
        if framed:
            assert read_chunks(stream) == [b"piece 0;", b"piece 1;"]
            assert stream.read() == b""
        else:
            assert stream.read() == b"piece 0;piece 1;"


def test_a_body_that_drips_is_cut_off(impatient: Running) -> None:
    with impatient.connect() as client:
        client.sendall(b"POST /x HTTP/1.1\r\nContent-Length: 1000\r\n\r\n")
        client.settimeout(0.05)
        received = b""
        for _ in range(200):
            with contextlib.suppress(TimeoutError):
                client.sendall(b"a")
                received = client.recv(1000)
            if received:
                break
        assert received.startswith(b"HTTP/1.1 408 ")


def test_a_slow_upload_that_gets_on_is_served(impatient: Running) -> None:
    piece = bytes(20_000)
    with impatient.connect() as client, client.makefile("rb") as stream:
        client.sendall(b"POST /x HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % (16 * len(piece)))
        for _ in range(16):  # 0.8 s in all, where a pause may take 0.3
            threading.Event().wait(0.05)
            client.sendall(piece)
        assert read_answer(stream)[0] == 200


def test_a_reader_that_drips_is_cut_off(impatient: Running) -> None:
    with impatient.connect() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.sendall(b"GET /big HTTP/1.1\r\n\r\n")
        for _ in range(500):
            try:
                if not client.recv(1):
                    break
            except OSError:
                break
            threading.Event().wait(0.01)
            if impatient.count() == 0:
                break
        until(lambda: impatient.count() == 0)


def test_closing_waits_for_what_is_in_flight(running: Running) -> None:
    with running.connect() as client, client.makefile("rb") as stream, running.connect():
        client.sendall(b"GET /late/200 HTTP/1.1\r\n\r\n")
        assert running.app.arrived.wait(5)
        assert running.run(running.server.close(5.0)) is True
        status, headers, _ = read_answer(stream)
        assert (status, headers["connection"]) == (200, "close")
    with pytest.raises(OSError, match="refused"):
        running.connect()


def test_closing_cuts_what_takes_too_long(running: Running) -> None:
    with running.connect() as client:
        client.sendall(b"GET /never HTTP/1.1\r\n\r\n")
        assert running.app.arrived.wait(5)
        assert running.run(running.server.close(0.1)) is False


@pytest.mark.parametrize("size", [4, 900_000])
@pytest.mark.parametrize("framing", ["length", "chunked"])
def test_closing_waits_for_the_rest_of_a_body(running: Running, size: int, framing: str) -> None:
    body = b"x" * size
    sized, sent = b"Content-Length: %d" % size, body
    if framing == "chunked":
        sized, sent = b"Transfer-Encoding: chunked", b"%x\r\n%b\r\n0\r\n\r\n" % (size, body)
    with running.connect() as client, client.makefile("rb") as stream:
        client.sendall(b"POST /x HTTP/1.1\r\n%b\r\nExpect: 100-continue\r\n\r\n" % sized + sent[: size // 2])
        assert read_answer(stream)[0] == 100
        closed = asyncio.run_coroutine_threadsafe(running.server.close(10.0), running.loop)
        until(lambda: running.server.closing)
        assert running.count() == 1, "what has begun to come is in flight"
        client.sendall(sent[size // 2 :])
        status, headers, answer = read_answer(stream)
        assert (status, headers["connection"], answer) == (200, "close", b"POST /x " + body)
        assert closed.result(10) is True


def test_closing_cuts_a_body_that_does_not_come(running: Running) -> None:
    with running.connect() as client, client.makefile("rb") as stream:
        client.sendall(b"POST /x HTTP/1.1\r\nContent-Length: 4\r\nExpect: 100-continue\r\n\r\nab")
        assert read_answer(stream)[0] == 100
        assert running.run(running.server.close(0.1)) is False


@pytest.fixture(scope="module")
def fuzzed() -> Iterator[Running]:
    made = Running(HttpLimits(head_s=30.0, pause_s=30.0, linger_s=0.01))
    yield made
    made.close()


pieces = st.sampled_from(
    [
        b"GET / HTTP/1.1\r\n", b"POST /x HTTP/1.1\r\n", b"Host: h\r\n", b"Content-Length: 3\r\n", b"\r\n", b"abc",
        b"Transfer-Encoding: chunked\r\n", b"3\r\nabc\r\n", b"0\r\n\r\n", b"Expect: 100-continue\r\n", b"\x00", b"\r",
        b"Connection: Upgrade\r\nUpgrade: h2c\r\n", b"Content-Length: 5\r\n", b"HTTP/1.0", b" ",
    ]
)  # fmt: skip


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(pieces | st.binary(max_size=20), max_size=10))
def test_whatever_arrives_the_server_stays_up(fuzzed: Running, parts: list[bytes]) -> None:
    with fuzzed.connect() as client:
        try:
            for part in parts:
                client.sendall(part)
            client.shutdown(socket.SHUT_WR)
        except OSError:
            pass
        received = b""
        try:
            while data := client.recv(65536):
                received += data
        except ConnectionResetError:
            pass
        assert not received or received.startswith(b"HTTP/1.1 ")
    with fuzzed.connect() as client, client.makefile("rb") as stream:
        client.sendall(b"GET /alive HTTP/1.1\r\n\r\n")
        assert read_answer(stream)[2] == b"GET /alive "


@pytest.mark.parametrize("size", [65_536, 300_000, 999_999])
def test_large_bodies_one_behind_the_other(running: Running, size: int) -> None:
    """A large body is read past the parser: what follows it, in the same piece even, is a request again."""
    body = bytes(range(256)) * (size // 256 + 1)
    one = b"POST /x HTTP/1.1\r\nContent-Length: %d\r\n\r\n%b" % (size, body[:size])
    with running.connect() as client, client.makefile("rb") as stream:
        sender = threading.Thread(target=client.sendall, args=(one * 3 + b"GET /last HTTP/1.1\r\n\r\n" + one,))
        sender.start()
        for expected in (b"POST /x " + body[:size],) * 3 + (b"GET /last ",) + (b"POST /x " + body[:size],):
            status, _, answer = read_answer(stream)
            assert (status, answer) == (200, expected)
        sender.join()


def test_a_large_body_that_stops_half_way(impatient: Running) -> None:
    with impatient.connect() as client, client.makefile("rb") as stream:
        client.sendall(b"POST /x HTTP/1.1\r\nContent-Length: 900000\r\n\r\n" + bytes(500_000))
        status, headers, _ = read_answer(stream)
        assert (status, headers["connection"]) == (408, "close")
        client.sendall(bytes(100_000))  # too late: it is thrown away
        assert stream.read() == b""
    assert not impatient.app.arrived.is_set()


def test_a_client_that_goes_in_the_middle_of_a_large_body(running: Running) -> None:
    client = running.connect()
    client.sendall(b"POST /x HTTP/1.1\r\nContent-Length: 900000\r\n\r\n" + bytes(500_000))
    client.shutdown(socket.SHUT_WR)
    assert client.recv(100) == b""
    client.close()
    until(lambda: running.count() == 0)
    assert not running.app.arrived.is_set()
