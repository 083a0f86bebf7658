"""The traffic of perf_analyzer's client: many small calls on one connection, windows told all the time, and pauses. The
server must never end such a connection.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Iterator
from typing import Any

import grpc
import ngh2
import pytest
from grpc_models import LARGE_ANSWERS, Wire, put, request, values_of
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc import service_pb2_grpc

from workbench.server import RunningServer, ServerOptions
from workbench.server.grpc_frames import window_update

CALLS = 1000
"""In each of two bursts; with the windows below more updates than a flood has."""
WINDOWS = 8
"""Updates that follow each answer."""
PAUSE_S = 0.3


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, write: Any, start: Any) -> Iterator[RunningServer]:
    root = tmp_path_factory.mktemp("traffic")
    write(root, "echo", "FP32", [4])
    put(root, "large", LARGE_ANSWERS)
    with start(root, ServerOptions(name="traffic", exit_timeout_s=5.0), "none") as server:
        yield server


def small(number: int) -> Any:
    made = pb.ModelInferRequest(model_name="echo", id=str(number))
    made.inputs.add(name="INPUT0", datatype="FP32", shape=[1, 4])
    made.raw_input_contents.append(struct.pack("<4f", number, 1, 2, 3))
    return made


class Traffic:
    """Calls, so many at a time, on a connection whose frames are made here."""

    def __init__(self, wire: Wire, concurrency: int) -> None:
        self.wire = wire
        self.concurrency = concurrency
        self._bodies: dict[int, bytes] = {}
        self._numbers: dict[int, int] = {}
        self._is_pinged = False  # it measures its link with one ping at a time, after data
        self._settled = 0

    def burst(self, count: int) -> None:
        begun = done = 0
        while done < count:
            while len(self._numbers) < self.concurrency and begun < count:
                self._numbers[self.wire.call("ModelInfer", small(begun).SerializeToString())] = begun
                begun += 1
            events = self.wire.read()
            assert not self.wire.closed, f"closed after {done} calls"
            for event in events:
                assert not isinstance(event, ngh2.GoAwayReceived)
                done += self._heard(event)
            self.wire.flush()

    def _heard(self, event: Any) -> bool:
        wire = self.wire
        if isinstance(event, ngh2.DataReceived):
            stream = event.stream_id
            self._bodies[stream] = self._bodies.get(stream, b"") + event.data
            wire.h2.acknowledge_received_data(len(event.data), stream)
            # of the call, too, though it may be over by now
            wire.socket.sendall((window_update(0, 1) + window_update(stream, 1)) * (WINDOWS // 2))
            if not self._is_pinged:
                self._is_pinged = True
                wire.h2.ping()
        elif isinstance(event, ngh2.PingAcknowledged):
            self._is_pinged = False
            self._settled += 1
            wire.h2.update_settings({ngh2.Setting.INITIAL_WINDOW_SIZE: 65_535 + self._settled % 3 * 100_000})
        elif isinstance(event, ngh2.StreamClosed):
            answer = pb.ModelInferResponse.FromString(self._bodies.pop(event.stream_id)[5:])
            assert values_of(answer)[0] == self._numbers.pop(event.stream_id)
            return True
        return False

    def pause(self) -> None:
        """Nothing is asked, and the client goes on saying how much it takes."""
        for _ in range(10):
            self.wire.socket.sendall(window_update(0, 1) * 30)
            threading.Event().wait(PAUSE_S / 10)


@pytest.mark.parametrize("is_large", [False, True], ids=["small", "after_large"])
@pytest.mark.parametrize("concurrency", [8, 64])
def test_a_busy_connection_is_never_closed(served: RunningServer, concurrency: int, is_large: bool) -> None:
    with Wire(served.grpc_url, window=1 << 20) as wire:
        wire.h2.set_local_window_size(1 << 24)
        for _ in range(2 * is_large):  # from then on the server sends without the library
            assert wire.answer(wire.call("ModelInfer", request("large", 60_000).SerializeToString()))[0] == 0
        traffic = Traffic(wire, concurrency)
        for _ in range(2):
            traffic.burst(CALLS)
            traffic.pause()
        assert wire.answer(wire.call("ServerLive", b""))[0] == 0


@pytest.mark.parametrize("is_large", [False, True], ids=["small", "after_large"])
def test_a_busy_channel_of_grpc_is_never_closed(served: RunningServer, is_large: bool) -> None:
    """gRPC's own core, on which perf_analyzer's client is built."""
    states: list[grpc.ChannelConnectivity] = []
    with grpc.insecure_channel(served.grpc_url.removeprefix("grpc://")) as channel:
        grpc.channel_ready_future(channel).result(20)
        channel.subscribe(states.append)
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        for _ in range(2 * is_large):
            assert len(values_of(stub.ModelInfer(request("large", 60_000), timeout=20))) == 60_000
        for concurrency in (8, 64):
            free = threading.Semaphore(concurrency)
            calls = []
            for number in range(CALLS // 2):
                free.acquire(timeout=20)
                call = stub.ModelInfer.future(small(number), timeout=20)
                call.add_done_callback(lambda _, free=free: free.release())
                calls.append(call)
            assert [values_of(call.result())[0] for call in calls] == list(range(CALLS // 2))
            threading.Event().wait(PAUSE_S)
        channel.unsubscribe(states.append)
    assert set(states) == {grpc.ChannelConnectivity.READY}
