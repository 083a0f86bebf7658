"""Clients whose bytes cost much to read: others have their turn in between."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from counting_client import DATA, END_STREAM, PADDED, Counting, frame
from grpc_models import Wire, write_models

from workbench.server import RunningServer, ServerOptions

COUNT = 300_000
"""Frames: what is read of them before anybody else is looked at, where nothing is done about it, takes seconds."""


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, start: Any) -> Iterator[RunningServer]:
    with start(
        write_models(tmp_path_factory.mktemp("turns")), ServerOptions(name="turns", exit_timeout_s=5.0)
    ) as server:
        yield server


@pytest.mark.parametrize("padded", [False, True])
def test_others_are_answered_amid_frames_of_a_byte(served: RunningServer, padded: bool) -> None:
    count = COUNT // 2 if padded else COUNT
    one = frame(DATA, PADDED, 1, b"\0x") if padded else frame(DATA, 0, 1, b"x")
    with Counting(served.grpc_url) as client, Wire(served.grpc_url) as other:
        client.settled()
        client.call(1, "ModelInfer", end=False)
        client.socket.sendall(frame(DATA, 0, 1, b"\0" + count.to_bytes(4, "big") + b"x"))
        while client.room.get(1, 0) < count - 65_535:  # until it may send all of it
            client.read()
        flood = one * (count - 2) + frame(DATA, END_STREAM, 1, b"x")
        sending = threading.Thread(target=client.socket.sendall, args=(flood,))
        sending.start()
        answered = 0
        while not client.may_read(0) or client.read() not in (1, 3):  # the server refuses what it has read
            assert other.answer(other.call("ServerLive", b""))[0] == 0
            answered += 1
        sending.join()
        client.answered(1)
        assert answered >= 25
        assert not client.gone_away
