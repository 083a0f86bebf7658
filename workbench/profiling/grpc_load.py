"""Sending requests over gRPC: serialised messages through grpc.aio, so that encoding costs nothing during a run."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import grpc
import grpc.aio
from tritonclient.grpc import service_pb2 as pb

from workbench.client.grpc_client import OPTIONS, grpc_target
from workbench.client.grpc_codec import SERVICE
from workbench.profiling.recorder import Recorder

_CONNECT_S = 10.0
_CALL_S = 120.0


def _same(raw: bytes) -> bytes:
    return raw


class GrpcTransport:
    """Calls on one or a few channels; a channel takes any number of calls at once."""

    def __init__(
        self,
        url: str,
        recorder: Recorder,
        on_done: Callable[[int, str | None], None],
    ) -> None:
        self.spare = 0
        self.unreachable = ""
        self._target, self._tls = grpc_target(url)
        self._recorder = recorder
        self._on_done = on_done
        self._channels: list[Any] = []
        self._calls: list[Any] = []
        self._streams: list[Any] = []
        self._tasks: set[asyncio.Task[None]] = set()

    async def open(self, connections: int) -> None:
        """Connects.

        Raises:
            OSError: the server cannot be reached.
        """
        # A channel of its own for each 64 calls: HTTP/2 servers commonly allow 100 streams on one connection.
        for index in range(max(1, (connections + 63) // 64)):
            options = (*OPTIONS, ("grpc.use_local_subchannel_pool", 1), ("workbench.channel", index))
            if self._tls:
                channel = grpc.aio.secure_channel(self._target, grpc.ssl_channel_credentials(), options=options)
            else:
                channel = grpc.aio.insecure_channel(self._target, options=options)
            self._channels.append(channel)
            try:
                await asyncio.wait_for(channel.channel_ready(), _CONNECT_S)
            except TimeoutError:
                raise OSError(f"no gRPC server at {self._target} within {_CONNECT_S:g} s") from None
            same: dict[str, Any] = {"request_serializer": _same, "response_deserializer": _same}
            self._calls.append(channel.unary_unary(f"{SERVICE}/ModelInfer", **same))
            self._streams.append(channel.stream_stream(f"{SERVICE}/ModelStreamInfer", **same))

    def send(self, number: int, message: bytes, streaming: bool) -> None:
        """Sends a request."""
        task = asyncio.get_running_loop().create_task(self._one(number, message, streaming))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _one(self, number: int, message: bytes, streaming: bool) -> None:
        self._recorder.sent[number] = self._recorder.clock()
        error: str | None = None
        channel = number % len(self._calls)
        try:
            if streaming:
                error = await self._stream(self._streams[channel], number, message)
            else:
                await self._calls[channel](message, timeout=_CALL_S)
            self.unreachable = ""
        except grpc.aio.AioRpcError as problem:
            error = problem.details() or problem.code().name
            # The server's own UNAVAILABLE (a full queue, say) comes over a channel that stands.
            lost = self._channels[channel].get_state() is grpc.ChannelConnectivity.TRANSIENT_FAILURE
            self.unreachable = error if lost else ""
        except asyncio.CancelledError:
            return
        except Exception as problem:
            error = f"{type(problem).__name__}: {problem}"
        self._on_done(number, error)

    async def _stream(self, call: Any, number: int, message: bytes) -> str | None:
        """One request on a stream of its own, which the server ends behind its last response; gives its error."""
        error: str | None = None
        async for response in call(iter((message,)), timeout=_CALL_S):
            now = self._recorder.clock()
            said = pb.ModelStreamInferResponse.FromString(response).error_message
            if not said:
                self._recorder.respond(number, now)
            error = error or said or None
        return error

    async def close(self) -> None:
        """Hangs up."""
        for task in list(self._tasks):
            task.cancel()
        for channel in self._channels:
            await channel.close()

    @property
    def connections(self) -> int:
        """How many channels are open."""
        return len(self._channels)
