"""ModelInfer and ModelStreamInfer: from a call to the engine and back, on the loop (Triton's infer_handler.cc,
stream_infer_handler.cc).

In a stream non-decoupled requests are answered in their order, decoupled ones as their responses come (16.6). While a
client does not take what it is sent, decoupled models are held back; while too many requests of a stream are not
answered, no more are taken.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from tritonclient.grpc import service_pb2 as pb

from workbench.errors import BackendError, Unsupported, WorkbenchError
from workbench.protocol.tensors import InferenceResponse
from workbench.server.grpc_asked import Asked, Requests
from workbench.server.grpc_call import Call, Hold
from workbench.server.grpc_codec import of_stream
from workbench.server.grpc_message import LARGE, OK, STOPPING, UNAVAILABLE, status_number
from workbench.server.grpc_options import GrpcOptions

if TYPE_CHECKING:
    from workbench.server.kserve import KServeApi

DECOUPLED = "ModelInfer RPC doesn't support models with decoupled transaction policy"


class InferCalls:
    """Handles the two calls.

    Args:
        api: engine, shared memory, counts and threads, which both front ends have in common.
        options: see ``GrpcOptions``.
    """

    def __init__(self, api: KServeApi, options: GrpcOptions) -> None:
        self.api = api
        self.limits = options.limits
        self.requests = Requests(api, options.header_forward_pattern)
        self._level = options.compression_level

    def close(self) -> None:
        """Hears no more of the engine."""
        self.requests.close()

    def unary(self, call: Call) -> _Unary:
        """Begins a ModelInfer."""
        self._begin(call)
        return _Unary(self, call)

    def stream(self, call: Call) -> _Stream:
        """Begins a ModelStreamInfer."""
        self._begin(call)
        return _Stream(self, call)

    def _begin(self, call: Call) -> None:
        if self.api.exiting:
            call.finish(UNAVAILABLE, STOPPING)
        self._choose_compression(call)

    def _choose_compression(self, call: Call) -> None:
        """By level, of what the client takes: gzip counts as the quicker one, deflate as the smaller (gRPC core)."""
        if self._level == "none":
            return
        taken = call.headers.get(b"grpc-accept-encoding", b"").decode("latin-1").replace(" ", "").split(",")
        found = [name for name in ("gzip", "deflate") if name in taken]
        if found:
            call.wanted = found[{"low": 0, "medium": len(found) // 2, "high": -1}[self._level]]


class _Unary:
    """A ModelInfer."""

    __slots__ = ("_asked", "_call", "_calls")

    def __init__(self, calls: InferCalls, call: Call) -> None:
        self._calls = calls
        self._call = call
        self._asked: Asked | None = None

    def message(self, data: memoryview) -> None:
        """The request; a second one does not count, as in gRPC's core."""
        if self._asked is not None:
            self._call.pass_over(data.nbytes)
            return
        asked = self._asked = Asked(self._calls.requests, data)
        call = self._call
        if asked.look_up(call).decoupled:
            raise Unsupported(DECOUPLED)
        if asked.takes_long():
            self._calls.api.infer.off_loop(call, lambda: asked.read(call), lambda _: self._submit(asked))
        else:
            asked.read(call)
            self._submit(asked)

    def half_closed(self) -> None:
        """No request at all reads as none that can be parsed."""
        if self._asked is None:
            self.message(memoryview(b"\xff"))

    def gone(self) -> None:
        """The client has gone: the request is cancelled."""
        if self._asked is not None and self._asked.ticket is not None:
            self._asked.ticket.cancel()

    def drained(self) -> None:
        """Nothing is held back."""

    def stopping(self) -> None:
        """A request that is not here would be refused."""
        if self._asked is None:
            self._call.finish(UNAVAILABLE, STOPPING)

    def _submit(self, asked: Asked) -> None:
        call = self._call
        if call.ended:
            return
        asked.request.front = "grpc"
        ticket = self._calls.api.engine.submit(asked.request, self._respond)
        if not call.ended:
            asked.ticket = ticket

    def _respond(self, response: InferenceResponse) -> None:
        call, asked = self._call, self._asked
        if call.ended or asked is None:
            return
        asked.ticket = None
        if response.error is not None:
            call.fail(response.error)
            return
        if not response.outputs and not response.model_name:
            call.fail(BackendError(f"model '{asked.request.model_name}' ended the request without a response"))
            return
        try:
            if asked.answer_takes_long(call, response):
                self._calls.api.infer.off_loop(call, lambda: call.frame(asked.encode(response)), self._reply)
            else:
                parts = asked.encode(response)
                if call.wanted or all(len(part) < LARGE for part in parts):
                    self._reply(call.frame(parts))
                else:
                    self._count(call.reply_apart(parts))
        except Exception as error:  # an answer that cannot be written is an error to the client, not to the loop
            call.fail(error)

    def _reply(self, data: bytes) -> None:
        self._count(len(data))
        self._call.reply(data)

    def _count(self, size: int) -> None:
        if self._asked is not None and self._asked.count is not None:
            self._asked.count.sent += size


class _Turn:
    """A request of a stream and what it has been answered so far."""

    __slots__ = ("asked", "done", "owed", "ready")

    def __init__(self, asked: Asked | None) -> None:
        self.asked = asked
        self.ready: list[bytes] = []  # answers that wait for their turn
        self.done = False
        self.owed = 0  # responses that a decoupled model has not been told to be taken


class _Stream:
    """A ModelStreamInfer."""

    __slots__ = ("_asked", "_busy", "_call", "_calls", "_closing", "_inbox", "_open", "_order", "_stopping", "_strict")

    def __init__(self, calls: InferCalls, call: Call) -> None:
        self._calls = calls
        self._call = call
        self._inbox: deque[memoryview] = deque()
        self._busy = False  # a thread reads a request: those behind it wait
        self._open: set[_Turn] = set()
        self._order: deque[_Turn] = deque()  # non-decoupled requests, as they came
        self._closing = False
        self._stopping = False
        self._strict = call.headers.get(b"triton_grpc_error") == b"true"

    # -- requests -----------------------------------------------------------------------------------------------------

    def message(self, data: memoryview) -> None:
        """A request."""
        self._call.keep(data.nbytes)
        self._inbox.append(data)
        if len(self._open) + len(self._inbox) >= self._calls.limits.requests:
            self._call.hold(Hold.REQUESTS)
        self._work()

    def half_closed(self) -> None:
        """No more requests: the call ends when all are answered."""
        self._closing = True
        self._end_when_done()

    def gone(self) -> None:
        """The client has gone: its requests are cancelled."""
        self._inbox.clear()
        self._order.clear()
        turns, self._open = self._open, set()
        for turn in turns:
            if turn.asked is not None and turn.asked.ticket is not None:
                turn.asked.ticket.cancel()

    def _work(self) -> None:
        while self._inbox and not self._busy and not self._call.ended:
            data = self._inbox.popleft()
            try:
                asked = Asked(self._calls.requests, data)
            except WorkbenchError:
                # what cannot be read ends the stream, once all before it is answered, and well: so does gRPC's core
                self._inbox.clear()
                self._call.receiver = None
                self._closing = True
                self._end_when_done()
                return
            self._take(asked)

    def _take(self, asked: Asked) -> None:
        turn = _Turn(asked)
        self._open.add(turn)
        try:
            if not asked.look_up(self._call).decoupled:
                self._order.append(turn)
            if asked.takes_long():
                self._busy = True
                self._calls.api.infer.off_loop(self._call, lambda: asked.attempt(self._call), self._read(turn))
                return
            asked.read(self._call)
            self._submit(turn, asked)
        except WorkbenchError as error:
            self._refuse(turn, error)

    def _read(self, turn: _Turn) -> Callable[[WorkbenchError | None], None]:
        def then(refusal: WorkbenchError | None) -> None:
            self._busy = False
            if self._call.ended:
                return
            assert turn.asked is not None
            try:
                if refusal is not None:
                    raise refusal
                self._submit(turn, turn.asked)
            except WorkbenchError as error:
                self._refuse(turn, error)
            self._work()
            self._end_when_done()

        return then

    def _submit(self, turn: _Turn, asked: Asked) -> None:
        asked.request.front = "stream"
        ticket = self._calls.api.engine.submit(asked.request, lambda response: self._respond(turn, response))
        if turn.done:
            return
        asked.ticket = ticket
        ticket.by_hand = asked.model is not None and asked.model.decoupled
        if self._call.backlogged:
            ticket.hold()

    def _refuse(self, turn: _Turn, error: WorkbenchError) -> None:
        """Answers a request that was not taken: the text, and the id so that the client knows which (16.5)."""
        asked = turn.asked
        assert asked is not None
        model = asked.model
        if (model is None or not model.decoupled) and turn not in self._order:
            self._order.append(turn)
        message = pb.ModelStreamInferResponse(error_message=error.message)
        message.infer_response.id = asked.id
        self._answer(turn, self._call.frame([message.SerializeToString()]), final=True)

    # -- responses ----------------------------------------------------------------------------------------------------

    def _respond(self, turn: _Turn, response: InferenceResponse) -> None:
        asked, call = turn.asked, self._call
        if call.ended or asked is None or asked.model is None:
            return
        final = response.final
        data: bytes | None = None
        error = response.error
        if error is None and (response.outputs or response.parameters or not (final and asked.model.decoupled)):
            try:
                data = call.frame(of_stream(asked.encode(response, final)))
            except WorkbenchError as refused:
                error = refused
        if error is not None:
            if self._strict:
                call.break_off(status_number(error.code), error.message)
                return
            data = call.frame([self._of_request(asked, final, error.message)])
        elif data is None and asked.empty_final:
            data = call.frame([self._of_request(asked, final)])
        self._answer(turn, data, final=final)
        ticket = asked.ticket
        if ticket is None or final or not asked.model.decoupled:
            return
        if call.backlogged:
            if not turn.owed:
                ticket.hold()
            turn.owed += 1
        elif ticket.flow is not None:
            ticket.flow.take()

    @staticmethod
    def _of_request(asked: Asked, final: bool, error: str = "") -> bytes:
        """An answer that says nothing but which request it is for, and perhaps why that failed."""
        message = pb.ModelStreamInferResponse(error_message=error)
        answer = message.infer_response
        answer.id = asked.id
        answer.model_name = asked.model_name
        answer.model_version = asked.version
        answer.parameters["triton_final_response"].bool_param = final
        return bytes(message.SerializeToString())

    def _answer(self, turn: _Turn, data: bytes | None, *, final: bool) -> None:
        asked = turn.asked
        if data is not None and asked is not None and asked.count is not None:
            asked.count.sent += len(data)
        turn.done = turn.done or final
        order = self._order
        if asked is None or (asked.model is not None and asked.model.decoupled):
            if data is not None:
                self._call.send(data)
        else:
            if data is not None:
                turn.ready.append(data)
            while order and (order[0].ready or order[0].done):
                head = order[0]
                ready, head.ready = head.ready, []
                for each in ready:
                    self._call.send(each)
                if not head.done:
                    break
                order.popleft()
        if final:
            self._over(turn)

    def _over(self, turn: _Turn) -> None:
        self._open.discard(turn)
        asked, turn.asked = turn.asked, None
        if asked is not None:
            asked.ticket = None
            self._call.let_go(asked.size)
        if len(self._open) + len(self._inbox) < self._calls.limits.requests:
            self._call.resume(Hold.REQUESTS)
        self._end_when_done()

    def _end_when_done(self) -> None:
        if self._open or self._inbox or self._busy:
            return
        if self._closing:
            self._call.finish(OK)
        elif self._stopping:
            self._call.finish(UNAVAILABLE, STOPPING)

    def stopping(self) -> None:
        """Ends the stream, which a client may keep open for good, when its requests are answered."""
        self._stopping = True
        self._end_when_done()

    def drained(self) -> None:
        """The client has taken what it was sent: decoupled models go on."""
        for turn in tuple(self._open):
            ticket = None if turn.asked is None else turn.asked.ticket
            if ticket is None or not turn.owed:
                continue
            owed, turn.owed = turn.owed, 0
            ticket.resume()
            for _ in range(owed):
                if ticket.flow is not None:
                    ticket.flow.take()
