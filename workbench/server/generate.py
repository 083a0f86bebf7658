"""``generate`` and ``generate_stream``: one JSON answer, or a server-sent event for each response."""

from __future__ import annotations

from typing import TYPE_CHECKING

from workbench.errors import InvalidRequest, WorkbenchError
from workbench.protocol.generate import decode_generate, encode_generate
from workbench.protocol.http_codec import DecodeOptions
from workbench.protocol.tensors import InferenceResponse
from workbench.server.exchange import Exchange, Stream, error_body
from workbench.server.http import JSON

if TYPE_CHECKING:
    from workbench.engine import InferenceEngine
    from workbench.engine.ticket import Ticket

EVENT_STREAM = "text/event-stream; charset=utf-8"
NOT_ONE = (
    "generate expects model to produce exactly 1 response, use generate stream for model that generates various number "
    "of responses"
)


class GenerateEndpoint:
    """``POST /v2/models/M[/versions/V]/generate`` and ``.../generate_stream``."""

    def __init__(self, engine: InferenceEngine, max_input_size: int) -> None:
        self.engine = engine
        self.max_input_size = max_input_size

    def handle(self, exchange: Exchange, model: str, version: int, *, streaming: bool) -> None:
        """Reads the request, hands it to the engine, answers as responses come.

        Raises:
            WorkbenchError: the request is refused.
        """
        inputs = self.engine.model_metadata(model, version)["inputs"]
        if exchange.headers.get(b"content-encoding", b"identity") not in (b"", b"identity"):
            raise InvalidRequest("Unsupported content-encoding, only 'identity' is supported.")
        options = DecodeOptions(model, version, exchange.client, self.max_input_size)
        request = decode_generate(exchange.body, inputs, options)
        request.front = "generate_stream" if streaming else "generate"
        exchange.body = b""
        call = _Streamed(exchange) if streaming else _Collected(exchange)
        ticket = self.engine.submit(request, call)
        if not exchange.answered:
            exchange.on_gone = ticket.cancel
        call.begun(ticket)


def _message(response: InferenceResponse) -> tuple[int, bytes] | None:
    """Status and JSON of a response; None for one that only says that there are no more.

    An error that comes as a response has the status 400 whatever its code (http_server.cc, GenerateRequestClass).
    """
    error = response.error
    if error is None:
        if response.final and not response.outputs and not response.parameters:
            return None
        try:
            return 200, encode_generate(response)
        except WorkbenchError as refused:
            error = refused
    return 400, error_body(error.message)


class _Collected:
    """Waits for the end: one response is the answer."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self._messages: list[tuple[int, bytes]] = []
        self._count = 0

    def begun(self, ticket: Ticket) -> None:
        """The request is accepted."""

    def __call__(self, response: InferenceResponse) -> None:
        message = _message(response)
        if message is not None:
            self._count += 1
            self._messages = self._messages or [message]
        if not response.final:
            return
        if self._count == 1:
            status, body = self._messages[0]
            self._exchange.respond(status, body, JSON)
        else:  # as in Triton the status is that of the first response
            status = self._messages[0][0] if self._messages else 200
            self._exchange.respond(status, error_body(NOT_ONE), JSON)


class _Streamed:
    """Sends every response as an event. The status is that of the first; later errors are events.

    While the client does not take them a decoupled model is held back (``engine.flow``): nothing piles up here.
    """

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self._stream: Stream | None = None
        self._ticket: Ticket | None = None
        self._owed = 0  # responses that the client has not taken

    def begun(self, ticket: Ticket) -> None:
        """The request is accepted."""
        if self._stream is None or not self._stream.closed:
            self._ticket = ticket
            ticket.by_hand = True

    def __call__(self, response: InferenceResponse) -> None:
        message = _message(response)
        if self._stream is None:
            if self._exchange.gone:
                return
            self._exchange.on_gone = None
            self._stream = self._exchange.stream(EVENT_STREAM, 200 if message is None else message[0])
            self._stream.on_close = self._closed
            self._stream.on_drain = self._drained
            self._stream.patient = True
        if message is not None:
            self._stream.write(b"data: " + message[1] + b"\n\n")
        if response.final:
            self._ticket = None
            self._stream.end()
        elif self._ticket is not None:
            self._owed += 1
            if self._stream.full:
                self._ticket.hold()
            else:
                self._take()

    def _drained(self) -> None:
        self._take()
        if self._ticket is not None:
            self._ticket.resume()

    def _take(self) -> None:
        ticket = self._ticket
        while self._owed and ticket is not None:
            self._owed -= 1
            if ticket.flow is not None:
                ticket.flow.take()

    def _closed(self) -> None:
        ticket, self._ticket = self._ticket, None
        if ticket is not None:
            ticket.cancel()
