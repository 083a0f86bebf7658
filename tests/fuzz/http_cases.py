"""Requests gone wrong, by seed: JSON, binary parts, heads, chunks, pipelines, compressed bodies, of every endpoint."""

from __future__ import annotations

import gzip
import json
import random
import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from fuzzed_server import CONFIGS, MAX_INPUT, MODELS, REGION_BYTES, SPARE

INFER = "/v2/models/{}/infer"


@dataclass(frozen=True)
class Case:
    """Bytes to send. ``answers``: how many must come (None: any number, then the end of the connection).

    ``body`` is the JSON of an inference request to ``model``, where it is one and nothing else is wrong with it; with
    ``good`` nothing is wrong with it either. ``pieces`` is into how many it is cut on its way.
    """

    kind: str
    data: bytes
    answers: int | None = 1
    model: str = ""
    body: bytes = b""
    to_head: bool = False
    good: bool = False
    pieces: int = 1


class Raw(str):
    """A piece of JSON that is written as it is."""


class Pairs(list[tuple[str, Any]]):
    """An object whose keys may come twice."""


def render(value: Any) -> str:
    """JSON text; strings may hold surrogates, which stand for bytes that are no UTF-8."""
    if isinstance(value, Raw):
        return str(value)
    if isinstance(value, Pairs | dict):
        items = value if isinstance(value, Pairs) else value.items()
        return "{" + ",".join(f"{render(key)}:{render(item)}" for key, item in items) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(render, value)) + "]"
    return json.dumps(value, ensure_ascii=False)


def encode(value: Any) -> bytes:
    """The bytes of ``render``."""
    return render(value).encode("utf-8", "surrogateescape")


def nested(depth: int, inner: str = "1", opening: str = "[", closing: str = "]") -> Raw:
    """A value inside many arrays or objects."""
    return Raw(opening * depth + inner + closing * depth)


NUMBERS = (
    "0", "1", "-1", "-0", "1.5", "1e2", "1E+400", "-1e999", "NaN", "Infinity", "-Infinity", "Inf", "-NaN", "nan", "01",
    "2147483648", "9007199254740993", "9223372036854775807", "9223372036854775808", "-9223372036854775808",
    "-9223372036854775809", "18446744073709551615", "18446744073709551616", "1" * 400, "3.4028236e38", "5e-324",
    "4611686018427387904", "0.1", "127", "256", "1.", ".5", "+1", "0x10", "1_0",
)  # fmt: skip
STRINGS = (
    "", "a", "INPUT0", "OUTPUT0", "FP32", "INT64", "BYTES", "BF16", "FP16", "BOOL", "a:b/c d", "模型 一",
    "../../etc/passwd",    "\udcff\udcfe", "é" * 300, "x" * 5000, "\0", "a\0b", "%2e%2e%2f", "sequence_id",
    "triton_x", "'\"\\", "\u2028",
)  # fmt: skip
WORDS = (
    "null",
    "true",
    "false",
    "[]",
    "{}",
    "[[]]",
    "[1,2,3,4]",
    '""',
    "[null]",
    '{"a":1}',
    "tru",
    "",
    '"',
    "[1,",
    "{",
    "}",
)
KEYS = (
    "id", "inputs", "outputs", "parameters", "name", "datatype", "shape", "data", "binary_data_size", "binary_data",
    "classification", "sequence_id", "sequence_start", "sequence_end", "priority", "timeout", "binary_data_output",
    "shared_memory_region", "shared_memory_offset", "shared_memory_byte_size", "triton_enable_empty_final_response", "",
    "ready", "unload_dependents", "config", "file:1/model.py", "trace_level", "trace_rate", "trace_count", "trace_file",
    "log_frequency", "log_info", "log_file", "log_format", "key", "offset", "byte_size", "raw_handle", "COUNT",
    "INPUT0",
)  # fmt: skip
PATHS = (
    "/v2", "/v2/", "/v2/health/live", "/v2/health/ready", "/v2/models/echo", "/v2/models/echo/ready",
    "/v2/models/stats",    "/v2/models/echo/config", "/v2/models/echo/stats", "/v2/models/echo/versions/1/stats",
    "/v2/models/echo/versions/1",
    "/v2/models/echo/versions/99999999999999999999", "/v2/models/nobody", "/v2/repository/index", "/v2/logging",
    "/v2/repository/models/spare/load", "/v2/repository/models/spare/unload", "/v2/repository/x/index",
    "/v2/repository/models/..%2f..%2fetc/load", "/v2/trace/setting", "/v2/models/echo/trace/setting",
    "/v2/systemsharedmemory/status", "/v2/systemsharedmemory/region/r/register", "/v2/systemsharedmemory/unregister",
    "/v2/systemsharedmemory/region/r/unregister", "/v2/cudasharedmemory/status",
    "/v2/cudasharedmemory/region/r/register",    "/v2/models/repeat/generate", "/v2/models/repeat/generate_stream",
    "/v2/models/texts/generate",
    "/v2/models/echo/generate_stream", "/v2/models/echo/infer", "/v2/models/repeat/infer", "/v2/models/%65cho/infer",
    "/v2/workbench", "/v2/workbench/records?after=1", "/v2/workbench/shutdown", "/", "*", "//", "/v2/../v2", "/v2?a=b",
    "/%ff%fe", "/v2/models/%E6%A8%A1/infer", "http://localhost/v2", "http://", "/v2/models/" + "a" * 3000,
)  # fmt: skip
ROUTES: tuple[tuple[str, dict[str, Any] | None], ...] = (
    ("/v2", None), ("/v2/health/live", None), ("/v2/health/ready", None), ("/v2/models/stats", None),
    ("/v2/models/{model}{version}", None), ("/v2/models/{model}{version}/ready", None),
    ("/v2/models/{model}{version}/config", None), ("/v2/models/{model}{version}/stats", None),
    ("/v2/models/{model}{version}/infer", {}), ("/v2/models/{model}{version}/generate", {}),
    ("/v2/models/{model}{version}/generate_stream", {}), ("/v2/models/{model}/trace/setting", None),
    ("/v2/models/{model}/trace/setting", {"trace_rate": "7"}), ("/v2/trace/setting", None),
    ("/v2/trace/setting", {"trace_count": "5"}), ("/v2/logging", None), ("/v2/logging", {"log_info": True}),
    ("/v2/repository/index", {"ready": True}), ("/v2/repository/models/{load}/load", {}),
    ("/v2/repository/models/{spare}/unload", {"parameters": {"unload_dependents": True}}),
    ("/v2/systemsharedmemory/status", None), ("/v2/systemsharedmemory/region/{region}/status", None),
    ("/v2/systemsharedmemory/region/{region}/register", {"offset": 0, "byte_size": REGION_BYTES}),
    ("/v2/systemsharedmemory/region/{region}/unregister", {}), ("/v2/systemsharedmemory/unregister", {}),
    ("/v2/cudasharedmemory/status", None), ("/v2/cudasharedmemory/region/{region}/status", None),
    ("/v2/cudasharedmemory/region/{region}/register",
     {"raw_handle": {"b64": "AAAA"}, "device_id": 0, "byte_size": 8}),
    ("/v2/cudasharedmemory/region/{region}/unregister", {}), ("/v2/cudasharedmemory/unregister", {}),
)  # fmt: skip
"""Every route with what it takes by POST; None: by GET."""
HEADERS = (
    ("Content-Length", ("0", "-1", "5", "+5", "0x5", "5, 5", "9" * 20, "3000000000", " ", "5 5", "2097152")),
    ("Transfer-Encoding", ("chunked", "gzip, chunked", "chunked, gzip", "identity", "CHUNKED", "x", "")),
    ("Inference-Header-Content-Length", ("0", "-1", "5", "99999", "+5", "5x", "", "1e3", "9" * 30, "²")),
    ("Content-Encoding", ("gzip", "deflate", "identity", "br", "", "gzip, deflate", "\xff")),
    ("Accept-Encoding", ("gzip", "deflate;q=0.5, gzip;q=0.1", "*", "gzip;q=x", ";q=", "gzip;q=1e999", ",,", "a" * 999)),
    ("Connection", ("close", "keep-alive", "Upgrade", "Upgrade, HTTP2-Settings", "x")),
    ("Upgrade", ("h2c", "websocket", "TLS/1.0")),
    ("Expect", ("100-continue", "200-ok")),
    ("Host", ("localhost", "evil.example", "", "[::1]:8000", "a" * 600, "127.0.0.1", "\xff")),
    ("Origin", ("http://localhost", "null", "https://evil.example", "")),
    ("Authorization", ("Bearer x", "Basic eDp5", "Bearer " + "y" * 2000)),
    ("X-Long", ("z" * 8000, "z" * 70_000)),
    ("", ("", "v")),
    ("Bad Name", ("v",)),
    ("X\x00Y", ("v",)),
    ("Cookie", ("\x7f\x01", "a\rb", "a\nb", "\t")),
)  # fmt: skip
METHODS = (
    "GET",
    "POST",
    "PUT",
    "HEAD",
    "OPTIONS",
    "DELETE",
    "PATCH",
    "TRACE",
    "CONNECT",
    "get",
    "PRI",
    "",
    "G\0T",
    "M-SEARCH",
)


def post(path: str, body: bytes, headers: tuple[tuple[str, str], ...] = (), length: int | None = None) -> bytes:
    """A POST in one piece."""
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers)
    size = len(body) if length is None else length
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\n{lines}Content-Length: {size}\r\n\r\n"
    return head.encode("latin-1") + body


class Maker:
    """Makes cases, the same ones for the same seed. ``region``: the key of shared memory that exists."""

    def __init__(self, seed: int, region: str = "") -> None:
        self.random = random.Random(seed)
        self.region = region
        self._kinds: tuple[tuple[int, Callable[[], Case]], ...] = (
            (30, self.json), (14, self.bytes), (14, self.binary), (6, self.compressed), (9, self.endpoint),
            (9, self.route),
            (8, self.head), (6, self.raw), (6, self.chunked), (4, self.pipelined),
        )  # fmt: skip

    def case(self) -> Case:
        """The next one."""
        (made,) = self.random.choices([kind for _, kind in self._kinds], [weight for weight, _ in self._kinds])
        found = made()
        return replace(found, pieces=self.random.randint(2, 5)) if self.random.random() < 0.2 else found

    # ---- documents

    def request(self, model: str) -> dict[str, Any]:
        """A good inference request in JSON."""
        datatype, dim = MODELS.get(model, ("FP32", 4))
        rows, width = self.random.randint(1, 8), dim if dim > 0 else self.random.randint(1, 5)
        count = rows * width
        if datatype == "BYTES":
            data: list[Any] = [self.random.choice(STRINGS) for _ in range(count)]
        elif datatype == "INT64":
            data = [self.random.randint(-(2**63), 2**63 - 1) for _ in range(count)]
        else:
            data = [
                self.random.choice((self.random.uniform(-1e9, 1e9), self.random.randint(-9, 9))) for _ in range(count)
            ]
        made: dict[str, Any] = {
            "inputs": [{"name": "INPUT0", "datatype": datatype, "shape": [rows, width], "data": data}]
        }
        if self.random.random() < 0.4:
            made["id"] = self.random.choice(STRINGS)
        if self.random.random() < 0.3:
            made["parameters"] = {
                self.random.choice(KEYS): self.random.choice((1, True, "x", 0.5, 2**70)) for _ in range(2)
            }
        if self.random.random() < 0.3:
            parameters = {self.random.choice(KEYS[8:20]): self.random.choice((True, 1, "r"))}
            made["outputs"] = [{"name": "OUTPUT0", "parameters": parameters}]
        return made

    def value(self) -> Any:
        """Something that has no business where it will stand."""
        draw = self.random.random()
        if draw < 0.4:
            return Raw(self.random.choice(NUMBERS))
        if draw < 0.7:
            return self.random.choice(STRINGS)
        if draw < 0.93:
            return Raw(self.random.choice(WORDS))
        depth = self.random.choice((2, 99, 100, 101, 1000, 20_000))
        return nested(depth) if self.random.random() < 0.6 else nested(depth, "1", '{"a":', "}")

    def spoil(self, value: Any) -> Any:
        """The document with one thing changed somewhere in it."""
        if isinstance(value, dict | Pairs) and value and self.random.random() < 0.85:
            pairs = Pairs(value if isinstance(value, Pairs) else value.items())
            index = self.random.randrange(len(pairs))
            name, item = pairs[index]
            draw = self.random.random()
            if draw < 0.65:
                pairs[index] = (name, self.spoil(item))
            elif draw < 0.75:
                del pairs[index]
            elif draw < 0.85:
                pairs.append((name, self.value() if self.random.random() < 0.5 else item))
            elif draw < 0.95:
                pairs.append((self.random.choice(KEYS), self.value()))
            else:
                pairs[index] = (self.random.choice(KEYS), item)
            return pairs
        if isinstance(value, list) and value and self.random.random() < 0.8:
            items = list(value)
            index = self.random.randrange(len(items))
            draw = self.random.random()
            if draw < 0.6:
                items[index] = self.spoil(items[index])
            elif draw < 0.75:
                del items[index]
            elif draw < 0.9:
                items.insert(index, self.value())
            else:
                items = [items]
            return items
        return self.value()

    def spoiled(self, value: Any) -> bytes:
        """A document spoiled once or more, or not at all."""
        for _ in range(self.random.choice((0, 0, 1, 1, 1, 2))):
            value = self.spoil(value)
        return encode(value)

    # ---- kinds of cases

    def json(self) -> Case:
        """An inference request whose JSON is not as it should be."""
        model = self.random.choice(tuple(MODELS))
        request = self.request(model)
        body = self.spoiled(request)
        good = body == encode(request) and not {"parameters", "outputs"} & request.keys() and model != "halves"
        good = good and b"\xff" not in body  # which is no text for ONNX Runtime
        return Case("json", post(INFER.format(model), body), model=model, body=body, good=good)

    def bytes(self) -> Case:
        """A good JSON body with bytes changed, cut or put in."""
        model = self.random.choice(tuple(MODELS))
        body = bytearray(encode(self.request(model)))
        for _ in range(self.random.randint(1, 4)):
            at = self.random.randrange(len(body) + 1)
            draw = self.random.random()
            if draw < 0.5 and at < len(body):
                body[at] = self.random.randrange(256)
            elif draw < 0.7:
                del body[at : at + self.random.randint(1, 9)]
            elif draw < 0.9:
                body[at:at] = self.random.choice(
                    (b"[", b"]", b"{", b"}", b'"', b",", b"\xff", b"\0", b"9" * 30, b"\\u")
                )
            else:
                del body[at:]
        return Case("bytes", post(INFER.format(model), bytes(body)), model=model, body=bytes(body))

    def binary(self) -> Case:
        """Inputs as raw bytes, whose sizes, shapes, lengths and bytes may be wrong."""
        model = self.random.choice(tuple(MODELS))
        datatype = MODELS[model][0]
        request = self.request(model)
        (entry,) = request["inputs"]
        texts = [item.encode("utf-8", "surrogateescape") for item in entry.pop("data") if isinstance(item, str)]
        count = entry["shape"][0] * entry["shape"][1]
        tail = b"".join(len(text).to_bytes(4, "little") + text for text in texts)
        if datatype != "BYTES":
            tail = self.random.randbytes(count * {"FP32": 4, "INT64": 8, "FP16": 2}[datatype])
        size = len(tail)
        draw = self.random.random()
        if draw < 0.15:
            tail = tail[: self.random.randrange(size + 1)]
        elif draw < 0.3:
            tail += self.random.randbytes(self.random.randint(1, 9))
        elif draw < 0.5 and tail:
            at = self.random.randrange(len(tail))
            tail = tail[:at] + self.random.randbytes(4) + tail[at + 4 :]
        elif draw < 0.6:
            size = self.random.choice((0, 1, size + 1, 2**31, 2**63, 2**64 - 1))
        entry["parameters"] = {"binary_data_size": size}
        head = encode(request) if self.random.random() < 0.6 else self.spoiled(request)
        length = len(head)
        if self.random.random() < 0.15:
            length = self.random.choice((0, 1, length - 1, length + 1, length + len(tail), 10**6))
        headers = (("Inference-Header-Content-Length", str(length)),)
        if self.random.random() < 0.1:  # a raw request
            return Case("raw binary", post(INFER.format(model), tail, (("Inference-Header-Content-Length", "0"),)))
        return Case("binary", post(INFER.format(model), head + tail, headers))

    def compressed(self) -> Case:
        """A packed body, whole or broken; one that unpacks to more than the server takes."""
        model = self.random.choice(tuple(MODELS))
        text = encode(self.request(model))
        if self.random.random() < 0.1:
            text = text + b" " * (2 * MAX_INPUT)
        packed = bytearray(gzip.compress(text, 1) if self.random.random() < 0.5 else zlib.compress(text, 1))
        draw = self.random.random()
        if draw < 0.3:
            packed[self.random.randrange(len(packed))] ^= 1 << self.random.randrange(8)
        elif draw < 0.5:
            del packed[self.random.randrange(len(packed)) :]
        elif draw < 0.6:
            packed += b"more"
        headers = [("Content-Encoding", self.random.choice(("gzip", "deflate", "gzip", "deflate", "br", "identity")))]
        if self.random.random() < 0.5:
            headers.append(("Accept-Encoding", self.random.choice(HEADERS[4][1])))
        if self.random.random() < 0.2:
            headers.append(("Inference-Header-Content-Length", str(self.random.choice((0, 5, len(text), 10**6)))))
        return Case("compressed", post(INFER.format(model), bytes(packed), tuple(headers)))

    def endpoint(self) -> Case:
        """Another endpoint with a document that may be spoiled."""
        path = self.random.choice(PATHS[:-4] if self.random.random() < 0.9 else PATHS).replace("*", "/")
        good: dict[str, Any] = {
            self.random.choice(KEYS): self.random.choice((1, True, "x", [1], None, ["OFF"], "7")) for _ in range(3)
        }
        good.pop("log_file", None)
        if self.random.random() < 0.4:
            good = {"INPUT0": [1, 2, 3, 4], "COUNT": self.random.randint(-1, 30), "parameters": good}
        if self.random.random() < 0.3:
            good = {"key": self.random.choice(STRINGS), "offset": 0, "byte_size": self.random.choice((0, 1, 2**63))}
        if "models/texts" in path:
            good["INPUT0"] = self.random.choice(STRINGS)
        body = self.spoiled(good)
        if self.random.random() < 0.3:
            return Case("endpoint", f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode("latin-1"))
        return Case("endpoint", post(path, body))

    def route(self) -> Case:
        """A route with what it takes, which may be spoiled."""
        chance = self.random
        model = chance.choice((*MODELS, "repeat"))
        version = chance.choice(("", "", "/versions/1"))
        load = chance.choices((SPARE, "nobody"), (1, 9))[0]  # a load takes its time
        name, good = chance.choice(ROUTES)
        path = name.format(model=model, version=version, load=load, spare=SPARE, region=chance.choice("rs"))
        if good is None:
            return Case(f"GET {name}", f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        if name.endswith("/load"):
            good = {"parameters": {"config": chance.choice(CONFIGS)}} if chance.random() < 0.7 else {}
        elif name.endswith("/register"):
            good = good | {"key": self.region}
        elif "{model}" in name and "generate" in name:
            path = path.replace(f"/{model}/", "/repeat/")
            good = {"COUNT": [chance.randint(0, 5)], "id": chance.choice(STRINGS[:8])}
        elif name.endswith("/infer"):
            good = self.request(model)
            if chance.random() < 0.3:
                (entry,) = good["inputs"]
                entry.pop("data")
                entry["parameters"] = {
                    "shared_memory_region": "r",
                    "shared_memory_byte_size": chance.choice((16, 4096)),
                }
        return Case(f"POST {name}", post(path, self.spoiled(good)))

    def head(self) -> Case:
        """A head that may be anything."""
        body = encode(self.request("echo"))
        method = (
            self.random.choice(("GET", "POST", "POST")) if self.random.random() < 0.7 else self.random.choice(METHODS)
        )
        version = "HTTP/1.1" if self.random.random() < 0.8 else self.random.choice(
            ("HTTP/1.0", "HTTP/2.0", "HTTP/0.9", "HTTP/9", "http/1.1", "", "HTTP/1.1.1", "X")
        )  # fmt: skip
        lines = [f"{method} {self.random.choice(PATHS)} {version}"]
        for _ in range(self.random.randint(0, 5)):
            name, values = self.random.choice(HEADERS)
            lines.append(f"{name}{self.random.choice((': ', ':', ' : ', ''))}{self.random.choice(values)}")
        end = self.random.choice(("\r\n", "\r\n", "\r\n", "\n", "\r"))
        data = (end.join(lines) + end * 2).encode("latin-1", "replace")
        return Case("head", data + (body if self.random.random() < 0.5 else b""), None, to_head=method == "HEAD")

    def raw(self) -> Case:
        """Bytes of a good request changed anywhere, or none of one at all."""
        if self.random.random() < 0.2:
            return Case("raw", self.random.randbytes(self.random.randint(1, 200)), None)
        data = bytearray(post(INFER.format("echo"), encode(self.request("echo"))))
        for _ in range(self.random.randint(1, 5)):
            at = self.random.randrange(min(len(data), 150) if self.random.random() < 0.8 else len(data))
            if self.random.random() < 0.6:
                data[at] = self.random.randrange(256)
            else:
                del data[at : at + self.random.randint(1, 20)]
        return Case("raw", bytes(data), None)

    def chunked(self) -> Case:
        """A chunked body, cut anyhow, with extensions and trailers; its framing may be wrong."""
        request = self.request("echo")
        body = encode(request)
        pieces, at = [], 0
        while at < len(body):
            size = self.random.choice((1, 2, 7, 50, 1000))
            piece = body[at : at + size]
            at += size
            extension = self.random.choice((b"", b"", b";a=b", b';q="\xff"'))
            pieces.append(b"%x%b\r\n%b\r\n" % (len(piece), extension, piece))
        trailer = self.random.choice((b"", b"", b"X-T: 1\r\n", b"Content-Length: 5\r\n"))
        data = b"".join(pieces) + b"0\r\n" + trailer + b"\r\n"
        head = b"POST /v2/models/echo/infer HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
        if self.random.random() < 0.6:
            if trailer.startswith(b"Content") or b';q="' in data:
                return Case("chunked", head + data, None)
            good = not {"parameters", "outputs"} & request.keys()
            return Case("chunked", head + data, model="echo", body=body, good=good)
        broken = bytearray(data)
        at = self.random.randrange(len(broken))
        broken[at : at + 1] = self.random.choice((b"", b"z", b"\r\n", b"-", b"fffffffffffffffff", b"0\r\n\r\n"))
        return Case("chunked", head + bytes(broken), None)

    def pipelined(self) -> Case:
        """Several requests in one piece, one after the other."""
        many = [self.json() if self.random.random() < 0.7 else self.binary() for _ in range(self.random.randint(2, 12))]
        data = b"".join(each.data for each in many)
        if self.random.random() < 0.3:
            return Case("pipelined", data + self.raw().data, None)
        return Case("pipelined", data, len(many))
