"""ModelInfer and ModelStreamInfer: from a call to the engine and back, on the loop (Triton's infer_handler.cc,
stream_infer_handler.cc).

In a stream non-decoupled requests are answered in their order, decoupled ones as their responses come (16.6). While a
client does not take what it is sent, decoupled models are held back; while too many requests of a stream are not
answered, no more are taken.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from tritonclient.grpc import service_pb2 as pb

from workbench.errors import BackendError, NotReady, Unsupported, WorkbenchError
from workbench.protocol.binary import Buffer
from workbench.protocol.http_request import DecodedRequest
from workbench.protocol.tensors import InferenceResponse, Tensor
from workbench.server.forwarding import HeaderForwarding
from workbench.server.grpc_call import Call, Hold
from workbench.server.grpc_codec import (
    encode_response,
    of_stream,
    parse_infer,
    read_metadata,
    read_tensors,
    version_number,
)
from workbench.server.grpc_message import OK, status_number
from workbench.server.grpc_options import GrpcOptions
from workbench.server.infer import OFF_LOOP_BYTES
from workbench.server.labels import classified

if TYPE_CHECKING:
    from workbench.engine import Ticket
    from workbench.records import Event
    from workbench.server.kserve import KServeApi
    from workbench.server.traffic import WireCount

DECOUPLED = "ModelInfer RPC doesn't support models with decoupled transaction policy"
STOPPING = "GRPC server is shutting down and has stopped accepting new requests."

_OFF_LOOP_ELEMENTS = 64 * 1024
_PACKED_ON_LOOP = 128 * 1024


class _Model(NamedTuple):
    """What the engine has said of a model, until it tells of a change."""

    config: Any
    decoupled: bool


class InferCalls:
    """Handles the two calls.

    Args:
        api: engine, shared memory, counts and threads, which both front ends have in common.
        options: see ``GrpcOptions``.
    """

    def __init__(self, api: KServeApi, options: GrpcOptions) -> None:
        self.api = api
        self.limits = options.limits
        self.forwarding = HeaderForwarding(options.header_forward_pattern, "grpc-header-forward-pattern")
        self._level = options.compression_level
        self._known: dict[tuple[str, int], _Model] = {}
        self._unsubscribe = api.engine.events.subscribe(self._forget)

    def close(self) -> None:
        """Hears no more of the engine."""
        self._unsubscribe()

    def _forget(self, event: Event) -> None:
        if event.kind != "log":
            self._known.clear()

    def model(self, name: str, version: int) -> _Model:
        """What is known of a model.

        Raises:
            NotFound, NotReady: it does not serve.
        """
        known = self._known.get((name, version))
        if known is None:
            config = self.api.engine.model_config(name, version)
            known = self._known[(name, version)] = _Model(config, config.model_transaction_policy.decoupled)
        return known

    def unary(self, call: Call) -> _Unary:
        """Begins a ModelInfer."""
        self._choose_compression(call)
        return _Unary(self, call)

    def stream(self, call: Call) -> _Stream:
        """Begins a ModelStreamInfer."""
        self._choose_compression(call)
        return _Stream(self, call)

    def _choose_compression(self, call: Call) -> None:
        """By level, of what the client takes: gzip counts as the quicker one, deflate as the smaller (gRPC core)."""
        if self._level == "none":
            return
        taken = call.headers.get(b"grpc-accept-encoding", b"").decode("latin-1").replace(" ", "").split(",")
        found = [name for name in ("gzip", "deflate") if name in taken]
        if found:
            call.wanted = found[{"low": 0, "medium": len(found) // 2, "high": -1}[self._level]]

    def classify(self, config: Any) -> Callable[[Tensor, int], Tensor]:
        """What makes classes of a model's outputs."""
        return lambda tensor, classes: classified(self.api.engine, config, tensor, classes)


class _Asked:
    """One request, in a call of its own or in a stream."""

    __slots__ = ("calls", "count", "empty_final", "message", "model", "raws", "request", "size", "ticket")

    def __init__(self, calls: InferCalls, data: memoryview) -> None:
        self.calls = calls
        self.size = data.nbytes
        self.ticket: Ticket | None = None
        self.empty_final = False
        self.model: _Model | None = None
        self.count: WireCount | None = None
        self.request = DecodedRequest("", [])
        self.message, self.raws = parse_infer(data)

    def look_up(self, call: Call) -> _Model:
        """Which model it is for, and its parameters.

        Raises:
            WorkbenchError: with Triton's texts.
        """
        message, calls = self.message, self.calls
        if calls.api.exiting:
            raise NotReady(STOPPING)
        request = self.request
        request.model_name = message.model_name
        request.model_version = version_number(message.model_version)
        request.client = call.client
        self.count = calls.api.wire.begin(request.model_name, self.size)
        self.model = calls.model(request.model_name, request.model_version)
        return self.model

    def read(self, call: Call) -> None:
        """Its parameters, inputs and requested outputs. On any thread.

        Raises:
            WorkbenchError: with Triton's texts.
        """
        self.empty_final = read_metadata(self.message, self.request)
        if self.calls.forwarding:
            pairs = [(name.decode("latin-1"), value.decode("utf-8", "replace")) for name, value in call.headers.items()]
            self.calls.forwarding.add(self.request, [pair for pair in pairs if not pair[0].startswith(":")])
        read_tensors(self.message, self.raws, self.request, self.calls.api.memory)
        self.raws = []

    def takes_long(self) -> bool:
        """Whether reading it would hold the loop: many strings or typed contents, or much shared memory."""
        if self.calls.api.memory.largest > OFF_LOOP_BYTES and any(item.parameters for item in self.message.inputs):
            return True
        return self.size > OFF_LOOP_BYTES and any(
            item.datatype == "BYTES" or item.HasField("contents") for item in self.message.inputs
        )

    def answer_takes_long(self, call: Call, response: InferenceResponse) -> bool:
        """Whether writing a response would hold the loop: strings, classes, shared memory, compression."""
        for tensor in response.outputs:
            if tensor.data.size > _OFF_LOOP_ELEMENTS and (
                tensor.datatype == "BYTES" or self.request.outputs or self.request.targets
            ):
                return True
            if call.wanted and tensor.data.nbytes > _PACKED_ON_LOOP:
                return True
        return False

    def encode(self, response: InferenceResponse, final: bool | None = None) -> list[Buffer]:
        """A response as a ``ModelInferResponse``."""
        assert self.model is not None
        return encode_response(response, self.request, self.calls.classify(self.model.config), final=final)


class _Unary:
    """A ModelInfer."""

    __slots__ = ("_asked", "_call", "_calls")

    def __init__(self, calls: InferCalls, call: Call) -> None:
        self._calls = calls
        self._call = call
        self._asked: _Asked | None = None

    def message(self, data: memoryview) -> None:
        """The request; a second one does not count, as in gRPC's core."""
        if self._asked is not None:
            return
        asked = self._asked = _Asked(self._calls, data)
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

    def _submit(self, asked: _Asked) -> None:
        call = self._call
        if call.ended:
            return
        ticket = self._calls.api.engine.submit(asked.request, self._respond)
        asked.message = None
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
                self._reply(call.frame(asked.encode(response)))
        except Exception as error:  # an answer that cannot be written is an error to the client, not to the loop
            call.fail(error)

    def _reply(self, data: bytes) -> None:
        assert self._asked is not None
        if self._asked.count is not None:
            self._asked.count.sent += len(data)
        self._call.reply(data)


class _Turn:
    """A request of a stream and what it has been answered so far."""

    __slots__ = ("asked", "done", "owed", "ready")

    def __init__(self, asked: _Asked | None) -> None:
        self.asked = asked
        self.ready: list[bytes] = []  # answers that wait for their turn
        self.done = False
        self.owed = 0  # responses that a decoupled model has not been told to be taken


class _Stream:
    """A ModelStreamInfer."""

    __slots__ = ("_asked", "_busy", "_call", "_calls", "_closing", "_inbox", "_open", "_order", "_strict")

    def __init__(self, calls: InferCalls, call: Call) -> None:
        self._calls = calls
        self._call = call
        self._inbox: deque[memoryview] = deque()
        self._busy = False  # a thread reads a request: those behind it wait
        self._open: set[_Turn] = set()
        self._order: deque[_Turn] = deque()  # non-decoupled requests, as they came
        self._closing = False
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
                asked = _Asked(self._calls, data)
            except WorkbenchError:
                # what cannot be read ends the stream, once all before it is answered, and well: so does gRPC's core
                self._inbox.clear()
                self._call.receiver = None
                self._closing = True
                self._end_when_done()
                return
            self._take(asked)

    def _take(self, asked: _Asked) -> None:
        turn = _Turn(asked)
        self._open.add(turn)
        try:
            if not asked.look_up(self._call).decoupled:
                self._order.append(turn)
            if asked.takes_long():
                self._busy = True
                self._calls.api.infer.off_loop(self._call, lambda: _attempt(asked, self._call), self._read(turn))
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

    def _submit(self, turn: _Turn, asked: _Asked) -> None:
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
        message.infer_response.id = asked.message.id
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
                self.gone()
                call.finish(status_number(error.code), error.message)
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
    def _of_request(asked: _Asked, final: bool, error: str = "") -> bytes:
        """An answer that says nothing but which request it is for, and perhaps why that failed."""
        message = pb.ModelStreamInferResponse(error_message=error)
        answer = message.infer_response
        answer.id = asked.request.id
        answer.model_name = asked.message.model_name
        answer.model_version = asked.message.model_version
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
        if self._closing and not self._open and not self._inbox and not self._busy:
            self._call.finish(OK)

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


def _attempt(asked: _Asked, call: Call) -> WorkbenchError | None:
    try:
        asked.read(call)
    except WorkbenchError as error:
        return error
    return None
