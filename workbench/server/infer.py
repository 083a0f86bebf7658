"""The inference endpoint: from an exchange to the engine and back, on the loop, without a task or a future.

Only what would hold the loop goes to a thread: JSON bodies above 1 MiB, large JSON answers, large compressed bodies.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar

from workbench.engine.validation import DECOUPLED
from workbench.errors import BackendError, InternalError, InvalidRequest, NotReady, Unsupported
from workbench.protocol.binary import Buffer
from workbench.protocol.forms import LARGEST, Forms, encode_plain
from workbench.protocol.http_codec import (
    HEADER_LENGTH,
    DecodedRequest,
    DecodeOptions,
    decode_request,
    encode_response,
    raw_request,
)
from workbench.protocol.tensors import InferenceResponse, Tensor
from workbench.server.exchange import Answered
from workbench.server.forwarding import HeaderForwarding
from workbench.server.http import Exchange
from workbench.server.labels import classified
from workbench.server.shared_memory import SharedMemory
from workbench.server.unpacking import AT_ONCE, EITHER, STEP, Broken, Unpacking

if TYPE_CHECKING:
    from workbench.engine import InferenceEngine
    from workbench.records import Event

T = TypeVar("T")

OFF_LOOP_BYTES = 1024 * 1024
"""Bodies of JSON above this are read and written on a thread (DESIGN 3)."""

OCTETS = "application/octet-stream"
_MOST_RATIO = 1032  # no byte unpacks to more
_COMPRESS_ON_LOOP = 128 * 1024
_OFF_LOOP_ELEMENTS = 64 * 1024


class InferEndpoint:
    """``POST /v2/models/M[/versions/V]/infer``."""

    def __init__(
        self, engine: InferenceEngine, max_input_size: int, memory: SharedMemory, forwarding: HeaderForwarding
    ) -> None:
        self.engine = engine
        self.max_input_size = max_input_size
        self.memory = memory
        self._forwarding = forwarding
        self._forwards = bool(forwarding)
        self._largest = min(LARGEST, max_input_size)  # JSON above the limit is refused, whatever its form
        self.threads = ThreadPoolExecutor(2, thread_name_prefix="workbench-json")
        # Asking the engine copies a message; what it said holds until it tells of a change.
        self._known: dict[tuple[str, int], tuple[Any, DecodeOptions, Forms]] = {}
        self._unsubscribe = engine.events.subscribe(self._forget)

    def _forget(self, event: Event) -> None:
        if event.kind != "log":
            self._known.clear()

    def _look_up(self, model: str, version: int) -> tuple[Any, DecodeOptions, Forms]:
        config = self.engine.model_config(model, version)
        if config.model_transaction_policy.decoupled:
            raise Unsupported(DECOUPLED)
        known = self._known[(model, version)] = (
            config,
            DecodeOptions(model, version, "", self.max_input_size, self.memory),
            Forms(),
        )
        return known

    def close(self) -> None:
        """Ends the threads."""
        self._unsubscribe()
        self.threads.shutdown(wait=False, cancel_futures=True)

    def handle(self, exchange: Exchange, model: str, version: int) -> None:
        """Reads the request, hands it to the engine, answers when its response comes.

        Raises:
            WorkbenchError: the request is refused.
        """
        known = self._known.get((model, version)) or self._look_up(model, version)
        headers, body = exchange.headers, exchange.body
        length = headers.get(b"inference-header-content-length")
        size = len(body)  # of bytes: memoryviews here are of bytes, too
        number = size if length is None else int(length) if length.isdigit() and len(length) < 10 else 0
        if (
            0 < number <= size
            and number <= OFF_LOOP_BYTES
            and b"content-encoding" not in headers
            and (size <= OFF_LOOP_BYTES or not _holds_strings(body, number))
            and self.memory.largest <= OFF_LOOP_BYTES
            and not self._forwards
        ):
            forms = known[2]
            plain = size <= self._largest
            request = forms.decode(body, number, known[1]) if plain else None
            new = request is None
            if request is None:
                request = decode_request(body, None if length is None else number, known[1])
            request.client, request.front = exchange.client, "http"
            exchange.body = b""
            ticket = self.engine.submit(request, _Call(self, exchange, request, known[0]))
            if not exchange.answered:
                exchange.on_gone = ticket.cancel
            if new and plain:
                forms.learn(body, number, request)
        else:
            self._handle_unusual(exchange, known[0], known[1])

    def _handle_unusual(self, exchange: Exchange, config: Any, options: DecodeOptions) -> None:
        """Compressed, raw, large and wrong requests; those that share memory, or whose headers go on."""
        headers = exchange.headers
        encoding = headers.get(b"content-encoding", b"").decode("latin-1")
        if encoding not in ("", "identity", "gzip", "deflate"):
            body = b'{"error":"Unsupported compression type"}'
            exchange.respond(501, body, "application/json", (("Accept-Encoding", "gzip, deflate"),))
            return
        packed = encoding in ("gzip", "deflate")
        length = headers.get(b"inference-header-content-length")

        unpacking = Unpacking(exchange.body, EITHER) if packed else None

        def read() -> DecodedRequest:
            body = exchange.body if unpacking is None else self._unpacked(unpacking, exchange)
            json_length = None if length is None else header_length(length, body)
            if json_length == 0 or (json_length is None and not body):
                return raw_request(body, config, options)
            return decode_request(body, json_length, options)

        def submit(request: DecodedRequest) -> None:
            if exchange.gone:
                return
            if unpacking is not None and is_long:
                exchange.unpacked(unpacking.size)
            request.client, request.front = exchange.client, "http"
            self._forwarding.add(request, exchange.named_headers)
            self._submit(exchange, request, config)

        is_long = len(exchange.body) > (AT_ONCE if packed else OFF_LOOP_BYTES)
        if unpacking is not None and not is_long:
            is_long = not is_small(unpacking)
        if unpacking is not None and is_long:
            most = min(self.max_input_size + 1, _MOST_RATIO * len(exchange.body))
            exchange.unpack(most, lambda: self.off_loop(exchange, read, submit))
        elif is_long or (self.memory.largest > OFF_LOOP_BYTES and b'"shared_memory_region"' in bytes(exchange.body)):
            self.off_loop(exchange, read, submit)
        else:
            submit(read())

    def _unpacked(self, unpacking: Unpacking, exchange: Exchange) -> bytes:
        if not exchange.body:
            raise InvalidRequest("nothing to be decompressed")
        return decompress(unpacking, self.max_input_size, lambda: not exchange.gone)

    def off_loop(self, exchange: Answered, work: Callable[[], T], then: Callable[[T], None]) -> None:
        """Does ``work`` on a thread and ``then`` with its result on the loop; what either raises is the answer."""

        def done(future: Future[T]) -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(finish, future)

        def finish(future: Future[T]) -> None:
            try:
                then(future.result())
            except Exception as error:  # as in HttpConnection._begin: the answer, whatever it is
                exchange.fail(error)

        loop = exchange.loop
        try:
            future = self.threads.submit(work)
        except RuntimeError:  # it has waited for memory until nobody works any more
            exchange.fail(NotReady("the server stops"))
            return
        future.add_done_callback(done)

    def _submit(self, exchange: Exchange, request: DecodedRequest, config: Any) -> None:
        exchange.body = b""
        ticket = self.engine.submit(request, _Call(self, exchange, request, config))
        if not exchange.answered:
            exchange.on_gone = ticket.cancel


class _Call:
    """An accepted request: takes the engine's response and answers."""

    __slots__ = ("_config", "_endpoint", "_exchange", "_request")

    def __init__(self, endpoint: InferEndpoint, exchange: Exchange, request: DecodedRequest, config: Any) -> None:
        self._endpoint = endpoint
        self._exchange = exchange
        self._request = request
        self._config = config

    def __call__(self, response: InferenceResponse) -> None:
        exchange = self._exchange
        if exchange.answered:
            return
        if response.error is not None:
            exchange.fail(response.error)
            return
        if not response.outputs and not response.model_name:
            exchange.fail(BackendError(f"model '{self._request.model_name}' ended the request without a response"))
            return
        accept = exchange.headers.get(b"accept-encoding")
        if accept is None and self._request.form is not None:
            plain = encode_plain(response, self._request)
            if plain is not None:
                exchange.respond(200, plain, OCTETS, ((HEADER_LENGTH, str(len(plain[0]))),))
                return
        packing = compression(accept.decode("latin-1")) if accept is not None else ""
        try:
            if self._is_long(response):
                self._endpoint.off_loop(exchange, lambda: self._encode(response, packing), self._send)
            elif packing:
                self._send(self._encode(response, packing))
            else:
                headers, buffers = encode_response(response, self._request, self._classify)
                self._reply(headers, buffers)
        except Exception as error:  # an answer that cannot be written is an error to the client, not to the loop
            exchange.fail(error)

    def _is_long(self, response: InferenceResponse) -> bool:
        for tensor in response.outputs:
            if tensor.data.size > _OFF_LOOP_ELEMENTS:
                return bool(self._request.targets) or not self._all_binary(response)
        return False

    def _all_binary(self, response: InferenceResponse) -> bool:
        request = self._request
        if not request.outputs:
            return request.binary_data_output and all(tensor.datatype != "BYTES" for tensor in response.outputs)
        return all(
            output.parameters.get("binary_data") and not output.parameters.get("classification")
            for output in request.outputs
        ) and all(tensor.datatype != "BYTES" for tensor in response.outputs)

    def _encode(self, response: InferenceResponse, packing: str) -> tuple[dict[str, str], list[Buffer], str]:
        headers, buffers = encode_response(response, self._request, self._classify)
        return headers, buffers, packing

    def _classify(self, tensor: Tensor, classes: int) -> Tensor:
        return classified(self._endpoint.engine, self._config, tensor, classes)

    def _send(self, encoded: tuple[dict[str, str], list[Buffer], str]) -> None:
        headers, buffers, packing = encoded
        if not packing:
            self._reply(headers, buffers)
            return
        size = sum(part.nbytes if isinstance(part, memoryview) else len(part) for part in buffers)
        if size <= _COMPRESS_ON_LOOP:
            self._reply({**headers, "Content-Encoding": packing}, [compress(buffers, packing)])
        else:
            self._endpoint.off_loop(
                self._exchange,
                lambda: compress(buffers, packing),
                lambda body: self._reply({**headers, "Content-Encoding": packing}, [body]),
            )

    def _reply(self, headers: dict[str, str], buffers: list[Buffer]) -> None:
        kind = headers.pop("Content-Type")
        self._exchange.respond(200, buffers, kind, tuple(headers.items()))


def _holds_strings(body: Buffer, json_length: int) -> bool:
    """Whether a request has BYTES among its tensors: reading those takes a step per element."""
    return b'"BYTES"' in bytes(body[:json_length])


def header_length(value: bytes, body: Buffer) -> int:
    """``Inference-Header-Content-Length`` as a number within the body.

    Raises:
        InvalidRequest: no number, or outside the body; Triton's texts.
    """
    text = value.decode("latin-1").strip()
    size = body.nbytes if isinstance(body, memoryview) else len(body)
    digits = text.lstrip("+-")
    if not digits[:1].isdigit():
        raise InvalidRequest(f"Unable to parse Inference-Header-Content-Length, got: {text}")
    number = ""
    for char in digits[:20]:  # as C++ stoi: what follows the digits is ignored
        if char not in "0123456789":
            break
        number += char
    if not number:
        raise InvalidRequest(f"Unable to parse Inference-Header-Content-Length, got: {text}")
    parsed = -int(number) if text.startswith("-") else int(number)
    if not -(2**31) <= parsed < 2**31:
        raise InvalidRequest(
            "Unable to parse Inference-Header-Content-Length, value is out of range [ -2147483648, 2147483647 ], got: "
            + text
        )
    if not 0 <= parsed <= size:
        raise InvalidRequest(f"inference header size should be in range (0, {size}), got: {text}")
    return parsed


def is_small(unpacking: Unpacking) -> bool:
    """Whether a packed body is unpacked in a moment; then it has been. What is wrong with it ``decompress`` says."""
    try:
        return unpacking.step(AT_ONCE)
    except Broken:
        return True


def decompress(unpacking: Unpacking, limit: int, wanted: Callable[[], bool]) -> bytes:
    """A gzip or deflate body unpacked, or what is left of it (which of the two is found out, as in Triton).

    Args:
        unpacking: the body.
        limit: bytes that it may unpack to.
        wanted: asked now and then whether it still is.

    Raises:
        InvalidRequest: larger than ``limit`` bytes when unpacked, or not wanted any more.
        InternalError: broken.
    """
    try:
        while not unpacking.step(max(1, min(STEP, limit + 1 - unpacking.size))):
            if not wanted():
                raise InvalidRequest("nobody waits for the answer")
            if unpacking.size > limit:
                break
    except Broken:
        raise InternalError("encountered inconsistent stream state during decompression") from None
    if unpacking.size > limit:
        raise InvalidRequest(
            f"Decompressed data size exceeds the maximum allowed value of {limit} bytes. "
            "Use --http-max-input-size to increase the limit."
        )
    return unpacking.plain


def compress(buffers: list[Buffer], packing: str) -> bytes:
    """Buffers packed as ``gzip`` or ``deflate`` (zlib's format), fast rather than small."""
    packer = zlib.compressobj(1, wbits=zlib.MAX_WBITS | 16 if packing == "gzip" else zlib.MAX_WBITS)
    return b"".join([*(packer.compress(part) for part in buffers), packer.flush()])


def compression(accept: str) -> str:
    """What ``Accept-Encoding`` asks for, by weight: ``gzip``, ``deflate`` or, for identity, an empty text."""
    best, weight = "identity", 0.0
    for entry in accept.split(","):
        kind, found, value = entry.strip().partition(";q=")
        try:
            own = float(value) if found else 1.0
        except ValueError:
            continue
        if kind in ("identity", "deflate", "gzip") and own > weight:
            best, weight = kind, own
    return "" if best == "identity" else best
