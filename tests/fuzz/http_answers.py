"""Reading HTTP answers strictly: whatever a server sends is well formed, or an assertion says what is not."""

from __future__ import annotations

import json
import re
import zlib
from dataclasses import dataclass
from typing import IO, Any

_STATUS = re.compile(rb"HTTP/1\.1 (\d{3}) [A-Za-z ]+\r\n")
_HEADER = re.compile(rb"([A-Za-z-]+): ([^\r\n\0]*)\r\n")
HEADER_LENGTH = "inference-header-content-length"


class Broken(AssertionError):
    """What came is no well-formed answer."""


@dataclass(frozen=True)
class Answer:
    """One answer. ``body`` is unpacked; ``last``: the connection is closed behind it."""

    status: int
    headers: dict[str, str]
    body: bytes
    last: bool

    def document(self) -> Any:
        """The JSON that it is or begins with."""
        length = self.headers.get(HEADER_LENGTH)
        return parse(self.body if length is None else self.body[: int(length)])


def parse(text: bytes) -> Any:
    """JSON as Triton writes it: NaN, Infinity, any bytes in strings."""
    try:
        return json.loads(text.decode("utf-8", "surrogateescape"))
    except ValueError as error:
        raise Broken(f"no JSON: {error}: {text[:300]!r}") from None


def read_answer(stream: IO[bytes], *, to_head: bool = False) -> Answer | None:
    """The next answer; None at the end of the connection. ``to_head``: it answers a HEAD request."""
    while True:
        line = stream.readline(1000)
        if not line:
            return None
        found = _STATUS.fullmatch(line)
        if not found:
            raise Broken(f"status line {line!r}")
        status, headers = int(found[1]), _read_headers(stream)
        if status != 100:
            break
        if headers:
            raise Broken(f"100 with {headers}")
    last = headers.get("connection") == "close"
    if to_head:
        return Answer(status, headers, b"", last)
    if headers.get("transfer-encoding") == "chunked":
        body = _read_chunks(stream)
    elif "content-length" in headers:
        body = _read(stream, int(headers["content-length"]))
    elif last:
        body = stream.read()
    else:
        raise Broken(f"an answer without an end: {headers}")
    packing = headers.get("content-encoding")
    if packing is not None:
        body = zlib.decompress(body, {"gzip": 31, "deflate": 15}[packing])
    answer = Answer(status, headers, body, last)
    check(answer)
    return answer


def _read_headers(stream: IO[bytes]) -> dict[str, str]:
    headers: dict[str, str] = {}
    while (line := stream.readline(100_000)) != b"\r\n":
        found = _HEADER.fullmatch(line)
        if not found:
            raise Broken(f"header {line!r}")
        name = found[1].decode().lower()
        if name in headers:
            raise Broken(f"header {name} twice")
        headers[name] = found[2].decode("latin-1")
    return headers


def _read(stream: IO[bytes], size: int) -> bytes:
    body = stream.read(size)
    if len(body) != size:
        raise Broken(f"{len(body)} bytes of a body of {size}")
    return body


def _read_chunks(stream: IO[bytes]) -> bytes:
    pieces = []
    while True:
        line = stream.readline(100)
        if not re.fullmatch(rb"[0-9a-f]+\r\n", line):
            raise Broken(f"chunk {line!r}")
        pieces.append(_read(stream, int(line, 16)))
        if stream.read(2) != b"\r\n":
            raise Broken("a chunk without its end")
        if not pieces[-1]:
            return b"".join(pieces)


def check(answer: Answer) -> None:
    """The body is what status and headers say."""
    kind, body = answer.headers.get("content-type", ""), answer.body
    if answer.status >= 400 and body:
        document = parse(body)
        if not isinstance(document, dict) or set(document) != {"error"} or not isinstance(document["error"], str):
            raise Broken(f"{answer.status} {body[:300]!r}")
        if document["error"].startswith("internal error"):
            raise Broken(f"nobody meant this error: {document['error']}")
    elif kind == "application/octet-stream":
        head = answer.document()
        rest = len(body) - int(answer.headers[HEADER_LENGTH])
        sizes = [each["parameters"]["binary_data_size"] for each in head["outputs"] if "parameters" in each]
        if sum(sizes) != rest:
            raise Broken(f"{rest} bytes behind the JSON, {sizes} said")
    elif kind == "application/json" and body:
        parse(body)
    elif kind.startswith("text/event-stream"):
        for event in body.split(b"\n\n")[:-1]:
            if not event.startswith(b"data: "):
                raise Broken(f"event {event!r}")
            parse(event[6:])
    elif body and kind not in ("application/json", "text/plain; version=0.0.4; charset=utf-8"):
        raise Broken(f"{kind!r}: {body[:100]!r}")
