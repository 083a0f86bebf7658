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
        exchange.body = b""
        call = _Streamed(exchange) if streaming else _Collected(exchange)
        ticket = self.engine.submit(request, call)
        if not exchange.answered:
            exchange.on_gone = ticket.cancel
        call.cancel = ticket.cancel


def _message(response: InferenceResponse) -> tuple[int, bytes] | None:
    """Status and JSON of a response; None for one that only says that there are no more."""
    error = response.error
    if error is None:
        if response.final and not response.outputs and not response.parameters:
            return None
        try:
            return 200, encode_generate(response)
        except WorkbenchError as refused:
            error = refused
    return error.code.http_status, error_body(error.message)


class _Collected:
    """Waits for the end: one response is the answer."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self._messages: list[tuple[int, bytes]] = []
        self._count = 0
        self.cancel = _nothing

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
    """Sends every response as an event. The status is that of the first; later errors are events."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self._stream: Stream | None = None
        self.cancel = _nothing

    def __call__(self, response: InferenceResponse) -> None:
        message = _message(response)
        if self._stream is None:
            if self._exchange.gone:
                return
            self._exchange.on_gone = None
            self._stream = self._exchange.stream(EVENT_STREAM, 200 if message is None else message[0])
            self._stream.on_close = self._closed
        if message is not None:
            self._stream.write(b"data: " + message[1] + b"\n\n")
        if response.final:
            self.cancel = _nothing
            self._stream.end()

    def _closed(self) -> None:
        self.cancel()


def _nothing() -> None:
    pass
