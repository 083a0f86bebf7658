"""Requests arrive in whatever pieces the network makes: the answers are those of the same bytes in one piece."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import tracemalloc
from collections.abc import Iterator

import pytest
import uvloop
from http_app import Running, read_answer
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from workbench.server.http import HttpLimits


@pytest.fixture(params=["uvloop", "asyncio"], scope="module")
def running(request: pytest.FixtureRequest) -> Iterator[Running]:
    new_loop = uvloop.new_event_loop if request.param == "uvloop" else asyncio.new_event_loop
    made = Running(HttpLimits(head_s=30.0, pause_s=30.0), new_loop)
    yield made
    made.close()


def post(path: bytes, body: bytes, more: bytes = b"") -> bytes:
    return b"POST %b HTTP/1.1\r\nHost: h\r\n%bContent-Length: %d\r\n\r\n%b" % (path, more, len(body), body)


def answers(running: Running, pieces: list[tuple[bytes, int]]) -> list[bytes]:
    """Sends each piece when as many answers as stand beside the one before it have come."""
    found = []
    with running.connect() as client, client.makefile("rb") as stream:
        for piece, count in pieces:
            client.sendall(piece)
            found += [read_answer(stream)[2] for _ in range(count)]
    return found


def test_a_head_that_begins_behind_another_request_is_not_taken_for_its_end(running: Running) -> None:
    one, rest = post(b"/one", b"1"), post(b"/x", b"abc").partition(b"\r\n")[2]
    lines = b"POST /first HTTP/1.1\r\n", b"POST /second HTTP/1.1\r\n"
    found = answers(running, [(one + lines[0], 1), (rest, 1), (one + lines[1], 1), (rest, 1), (one, 1)])
    assert found == [b"POST /one 1", b"POST /first abc", b"POST /one 1", b"POST /second abc", b"POST /one 1"]


def test_an_end_of_a_head_alone_is_no_request(running: Running) -> None:
    one, rest = post(b"/one", b"1"), post(b"/x", b"abc").partition(b"\r\n")[2]
    with running.connect() as client, client.makefile("rb") as stream:
        for piece in (one + b"POST /first HTTP/1.1\r\n", rest):
            client.sendall(piece)
            assert read_answer(stream)[0] == 200
        client.sendall(rest)
        assert read_answer(stream)[0] == 400


def test_a_request_in_the_body_of_another_is_none(running: Running) -> None:
    known = post(b"/known", b"abc")
    outer = post(b"/outer", b"x" + known)
    cut = len(outer) - len(known)
    found = answers(running, [(known, 1), (known + outer[:cut], 1), (outer[cut:], 1), (known, 1)])
    assert found == [b"POST /known abc", b"POST /known abc", b"POST /outer x" + known, b"POST /known abc"]


def test_who_waits_behind_others_is_told_nothing_before_them(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """An interim answer would be taken for one to the request before."""
    monkeypatch.setattr("workbench.server.http_turns._TURN_NS", -1)  # others have their turn after each request
    head = post(b"/e", b"hi", b"Expect: 100-continue\r\n").removesuffix(b"hi")
    with running.connect() as client, client.makefile("rb") as stream:
        client.sendall(post(b"/a", b"") + head)
        assert read_answer(stream)[::2] == (200, b"POST /a ")
        client.sendall(b"hi")
        assert read_answer(stream)[::2] == (200, b"POST /e hi")


def test_a_body_that_looks_like_the_end_of_a_head(running: Running) -> None:
    one = post(b"/one", b"1")
    odd = post(b"/odd", b"abc\r\n\r\n")
    for cut in range(1, len(odd)):
        assert answers(running, [(one + odd[:cut], 1), (odd[cut:], 1), (odd, 1)]) == [
            b"POST /one 1", b"POST /odd abc\r\n\r\n", b"POST /odd abc\r\n\r\n",
        ]  # fmt: skip


def test_each_head_has_the_same_limit(running: Running) -> None:
    """Also one that comes in pieces behind another request."""
    long = post(b"/long", b"1", b"".join(b"X-%d: %b\r\n" % (number, b"y" * 8000) for number in range(9)))
    with running.connect() as client, client.makefile("rb") as stream:
        client.sendall(post(b"/one", b"1"))
        assert read_answer(stream)[0] == 200
        client.sendall(long[:60_000])
        assert answers(running, [(post(b"/two", b"2"), 1)]) == [b"POST /two 2"]  # the piece has been read meanwhile
        client.sendall(long[60_000:])
        assert read_answer(stream)[0] == 431


def test_each_request_that_waits_for_permission_gets_it(running: Running) -> None:
    head, mark, body = post(b"/e", b"hi", b"Expect: 100-continue\r\n").partition(b"\r\n\r\n")
    with running.connect() as client, client.makefile("rb") as stream:
        client.sendall(head + mark + body)
        assert [stream.readline() for _ in range(2)] == [b"HTTP/1.1 100 Continue\r\n", b"\r\n"]
        assert read_answer(stream)[2] == b"POST /e hi"
        for _ in range(2):
            client.sendall(head + mark)
            assert [stream.readline() for _ in range(2)] == [b"HTTP/1.1 100 Continue\r\n", b"\r\n"]
            client.sendall(body)
            assert read_answer(stream)[2] == b"POST /e hi"


bodies = st.sampled_from([b"a", b"bc", b"\r\n\r\n", post(b"/in", b"a"), b"q" + post(b"/a", b"bc")])
requests = st.builds(post, st.sampled_from([b"/a", b"/b"]), bodies, st.sampled_from([b"", b"X: y\r\n"]))


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(requests, min_size=2, max_size=8), st.data())
def test_requests_cut_anywhere(running: Running, sent: list[bytes], data: st.DataObject) -> None:
    whole = b"".join(sent)
    ends = [sum(map(len, sent[: count + 1])) for count in range(len(sent))]
    near = [cut for end in ends for cut in (end - 1, end, end + 1, end + 22) if 0 < cut < len(whole)]
    inside = [at + cut for at in (0, *ends) for cut in (whole[at:].find(b"\r\n\r\n") + 4,) if at + cut < len(whole)]
    cuts = sorted(data.draw(st.sets(st.sampled_from(near + inside) | st.integers(1, len(whole) - 1), max_size=12)))
    pieces = [
        (whole[begin:end], sum(begin < each <= end for each in ends))
        for begin, end in zip([0, *cuts], [*cuts, len(whole)], strict=True)
    ]
    expected = []
    for each in sent:
        head, _, body = each.partition(b"\r\n\r\n")
        expected.append(b"POST %b %b" % (head.split()[1], body))
    assert answers(running, pieces) == expected


def test_an_idle_connection_keeps_nothing_of_what_it_has_sent(running: Running) -> None:
    count, request = 50, post(b"/large", bytes(60_000))
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(running.connect()) for _ in range(count)]
        tracemalloc.start()
        stack.callback(tracemalloc.stop)
        for client in clients:
            client.sendall(request)
            with client.makefile("rb") as stream:
                assert read_answer(stream)[0] == 200
        gc.collect()
        assert tracemalloc.get_traced_memory()[0] < count * len(request) // 2
