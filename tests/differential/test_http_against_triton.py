"""HTTP on both sides: what a head may say, JSON's corners, packing, shared memory, headers that go on or are asked for.

Texts out of Triton's JSON parser are cut off: only that it refuses is compared. Not asked here, because 2.51 closes the
connection or ends: extensions and trailers of chunks (served here), arrays 100,000 deep and shapes of exabytes (refused
here).
"""

from __future__ import annotations

import gzip
import json
import re
import secrets
import socket
import zlib
from pathlib import Path
from typing import IO, Any

from harness import HEAVY, Case, Sides, Talk, Topic
from models import put

pytestmark = HEAVY
TOPIC = Topic(
    "http",
    "HTTP",
    options=(
        "--disable-auto-complete-config", "--http-header-forward-pattern=(?i)^x-|^priority$",
        "--http-restricted-api=trace,model-config:Pass-Word=s3cret",
    ),
)  # fmt: skip
case = TOPIC.case

PARSER = "failed to parse the request JSON buffer"
ECHO = """import triton_python_backend_utils as pb


class TritonPythonModel:
    def execute(self, requests):
        given = [pb.get_input_tensor_by_name(request, "IN").as_numpy() for request in requests]
        return [pb.InferenceResponse([pb.Tensor("OUT", array)]) for array in given]
"""
TELL = """import json

import numpy as np
import triton_python_backend_utils as pb


class TritonPythonModel:
    def execute(self, requests):
        answers = []
        for request in requests:
            told = json.dumps(sorted(json.loads(request.parameters()).items()))
            answers.append(pb.InferenceResponse([pb.Tensor("OUT", np.array([told], dtype=object))]))
        return answers
"""
ODD_NAMES = ECHO.replace('"IN"', '"输入 :/a"').replace('"OUT"', '"out:put/ 一"')
TYPES = ("FP32", "FP64", "INT8", "UINT8", "INT16", "UINT16", "INT32", "UINT32", "INT64", "UINT64", "BOOL", "STRING")


def tensor(way: str, name: str, kind: str, dims: str = "-1", more: str = "") -> str:
    return f'{way} {{ name: "{name}" data_type: TYPE_{kind} dims: [ {dims} ] {more} }}\n'


def build(root: Path) -> None:
    for kind in TYPES:
        given, answered = tensor("input", "IN", kind), tensor("output", "OUT", kind)
        put(root, f"t_{kind.lower()}", inputs=given, outputs=answered, source=ECHO)
    put(
        root,
        "echo",
        inputs=tensor("input", "IN", "FP32", "4"),
        outputs=tensor("output", "OUT", "FP32", "4"),
        source=ECHO,
    )
    given, told = tensor("input", "IN", "INT32", "1"), tensor("output", "OUT", "STRING", "1")
    put(root, "tell", size=0, inputs=given, outputs=told, source=TELL)
    given, answered = tensor("input", "输入 :/a", "FP32", "2"), tensor("output", "out:put/ 一", "FP32", "2")
    put(root, "names", inputs=given, outputs=answered, source=ODD_NAMES)
    put(root, "labels", inputs=tensor("input", "IN", "FP32", "4"),
        outputs=tensor("output", "OUT", "FP32", "4", 'label_filename: "labels.txt"'), source=ECHO)  # fmt: skip
    (root / "labels" / "labels.txt").write_text("zero\none é\n\ntwo")


# ---- raw requests


def answers(talk: Talk, data: bytes, count: int = 1) -> list[tuple[int, dict[str, str], bytes]]:
    """Sends bytes; status, headers and body of so many answers."""
    host, _, port = talk.side.at.http.removeprefix("http://").rpartition(":")
    with socket.create_connection((host, int(port)), timeout=20) as client, client.makefile("rb") as stream:
        client.sendall(data)
        return [_read(stream) for _ in range(count)]


def _read(stream: IO[bytes]) -> tuple[int, dict[str, str], bytes]:
    line = stream.readline()
    if not line:
        return 0, {}, b"closed"
    status = int(line.split()[1])
    headers: dict[str, str] = {}
    while (line := stream.readline().strip()) != b"":
        name, _, value = line.decode("latin-1").partition(":")
        headers[name.lower()] = value.strip()
    if status == 100:
        return _read(stream)
    if headers.get("transfer-encoding") == "chunked":
        body = b""
        while size := int(stream.readline(), 16):
            body += stream.read(size)
            stream.readline()
        stream.readline()
    elif "content-length" in headers:
        body = stream.read(int(headers["content-length"]))
    else:
        body = stream.read()
    packing = headers.get("content-encoding", "")
    return status, headers, zlib.decompress(body, 47) if packing in ("gzip", "deflate") else body


def post(path: str, body: Any, headers: dict[str, str] | None = None) -> bytes:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = "".join(f"{name}: {value}\r\n" for name, value in (headers or {}).items())
    return f"POST {path} HTTP/1.1\r\nHost: localhost\r\n{lines}Content-Length: {len(data)}\r\n\r\n".encode() + data


def plain(body: bytes) -> Any:
    text = body.decode("utf-8", "surrogateescape")
    if PARSER in text:
        return PARSER
    try:
        return repr(json.loads(text))
    except ValueError:
        return text


def say(talk: Talk, label: str, data: bytes, *shown: str, count: int = 1) -> None:
    """Notes status and body of the answers, and those headers of them."""
    for number, (status, headers, body) in enumerate(answers(talk, data, count)):
        where = f"{label} {number}" if count > 1 else label
        talk.note(where, (status, *(headers.get(name, "") for name in shown), plain(body)))


def infer(model: str, data: str | bytes, datatype: str = "FP32", shape: str = "[1,4]", more: str = "") -> bytes:
    """A request whose ``data`` is text as it stands."""
    text = data if isinstance(data, bytes) else data.encode()
    head = f'{{"inputs":[{{"name":"IN","datatype":"{datatype}","shape":{shape},"data":['.encode()
    return post(f"/v2/models/{model}/infer", head + text + b"]}]" + more.encode() + b"}")


# ---- cases

GOOD = {"inputs": [{"name": "IN", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}]}
PATH = "/v2/models/echo/infer"


@case(
    "http-01 methods, versions, targets, bodies in chunks, several requests in one piece",
    differs={
        "target %": "percent-encoded paths are decoded here, as clients mean them",
        "strict": "requests that proxies and servers read in different ways are refused (RFC 9112)",
    },
)
def heads(talk: Talk) -> None:
    talk.load("echo")
    host = b"Host: localhost\r\n\r\n"
    for method in (b"GET", b"OPTIONS", b"PUT", b"DELETE", b"PATCH", b"POST"):
        say(talk, method.decode(), method + b" /v2/health/live HTTP/1.1\r\nContent-Length: 0\r\n" + host)
    for line in (b"GET /v2/health/live HTTP/1.0", b"GET http://localhost:1/v2/health/live HTTP/1.1"):
        say(talk, line.decode(), line + b"\r\n" + (b"\r\n" if line.endswith(b"1.0") else host))
    for path in (b"/v2/health/live/", b"//v2/health/live", b"/v2/x/../health/live", b"/v2/health/live?a=b", b"/v2#x"):
        say(talk, f"target {path.decode()}", b"GET " + path + b" HTTP/1.1\r\n" + host)
    say(talk, "target %65", b"GET /v2/models/%65cho/ready HTTP/1.1\r\n" + host)
    body = json.dumps(GOOD).encode()
    start = f"POST {PATH} HTTP/1.1\r\n".encode()
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(body[at : at + 7]), body[at : at + 7]) for at in range(0, len(body), 7))
    chunked = start + b"Transfer-Encoding: chunked\r\n" + host + chunks
    say(talk, "chunks", chunked + b"0\r\n\r\n")
    say(talk, "continue", start + b"Expect: 100-continue\r\nContent-Length: %d\r\n" % len(body) + host + body)
    say(talk, "pipelined", b"".join(post(PATH, GOOD | {"id": each}) for each in "abc"), count=3)
    say(talk, "strict space", b"GET /v2/health/live HTTP/1.1\r\nHost : localhost\r\n\r\n")
    both = b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n"
    say(talk, "strict lengths", start + both + host + b"2\r\n{}\r\n0\r\n\r\n")


@case(
    "http-02 numbers in JSON, in and out",
    differs={
        **dict.fromkeys(
            ("INT8 128", "INT8 -129", "UINT8 256", "INT16 32768", "UINT16 65536", "INT32 2147483648", "UINT32 42949"),
            "2.51 wraps integers that do not fit",
        ),
        "FP64 123456789.123456789": "RapidJSON reads and writes the last digit of some doubles differently",
    },
)  # fmt: skip
def numbers(talk: Talk) -> None:
    table = {
        "FP32": "NaN Infinity -Infinity Inf -Inf -NaN nan +1 1. .5 1e400 1e-400 01 0x1 1e5 -0 -0.0 3.4028236e38 null",
        "FP64": "1.7976931348623157e308 1e309 5e-324 0.1 1e16 1e22 100000000000000000000 1e-7 123456789.123456789 NaN",
        "INT64": "9007199254740993 -9223372036854775808 9223372036854775807 9223372036854775808 1.0 1e2 NaN true",
        "UINT64": "18446744073709551615 18446744073709551616 -1 -0", "INT8": "127 128 -129 1.5",
        "UINT8": "255 256 -1 1e1",
        "INT16": "-32768 32768", "UINT16": "65535 65536 -1", "INT32": '2147483647 2147483648 "1"',
        "UINT32": "4294967295 4294967296", "BOOL": 'true false 1 0 2 "true" null',
    }  # fmt: skip
    for datatype, values in table.items():
        talk.load(f"t_{datatype.lower()}")
        for value in values.split():
            say(talk, f"{datatype} {value}", infer(f"t_{datatype.lower()}", value, datatype, "[1,1]"))


@case(
    "http-03 JSON's corners: strings, what comes twice, nesting, what stands around",
    differs={
        "twice": "of a key that comes twice the last counts here, as in every other reader (RFC 8259 leaves it open)",
        "deep": "later sources stop at 100 levels, 2.51 at the end of its stack",
        "NUL id": "2.51 cuts the id at a NUL",
    },
)
def corners(talk: Talk) -> None:
    talk.load("echo")
    talk.load("t_string")
    for label, text in {
        "text": '"é", "日本"', "escapes": r'"\u0000a\n\"\\\/", "\ud83d\ude00"', "low surrogate": r'"\ude00", ""',
        "high surrogate": r'"\ud83d", ""', "bad escape": r'"\x", ""', "control": '"a\x01", ""', "no string": '1, "a"',
    }.items():  # fmt: skip
        say(talk, label, infer("t_string", text, "BYTES", "[1,2]"))
    say(talk, "no UTF-8", infer("t_string", b'"\xff\xfe", "a"', "BYTES", "[1,2]"))
    say(talk, "no UTF-8 name", post(PATH, b'{"inputs":[{"name":"\xff","datatype":"FP32","shape":[1],"data":[1]}]}'))
    good = json.dumps(GOOD).encode()
    for label, body in {
        "BOM": b"\xef\xbb\xbf" + good, "NUL behind": good + b"\0", "more behind": good + b"x",
        "comment": b"/**/" + good,
        "spaces": b" \r\n\t" + good + b"\r\n ", "UTF-16": good.decode().encode("utf-16"),
        "unknown keys": good[:-1] + b',"x":{"y":[1,{}]}}', "twice": good[:-1] + b',"inputs":[]}',
        "NUL id": good[:-1] + b',"id":"a\\u0000b"}', "id": good[:-1] + b',"id":"\xe4\xb8\x80 :/"}',
    }.items():  # fmt: skip
        say(talk, label, post(PATH, body))
    for depth in (2, 50, 98):
        say(talk, f"nested {depth}", infer("echo", "[" * (depth - 1) + "1,2,3,4" + "]" * (depth - 1)))
    for depth in (100, 300):
        say(talk, f"deep {depth}", infer("echo", "[" * (depth - 1) + "1,2,3,4" + "]" * (depth - 1)))


@case(
    "http-04 names of tensors with colons, slashes, spaces and Chinese",
    differs={
        "path 模型": "a path is ASCII (RFC 3986): clients percent-encode it, which 2.51 does not decode and this does"
    },
)
def names(talk: Talk) -> None:
    talk.load("names")
    talk.call("GET", "/v2/models/names")
    given = {"name": "输入 :/a", "datatype": "FP32", "shape": [1, 2], "data": [1, 2]}
    path = "/v2/models/names/infer"
    say(talk, "JSON", post(path, {"inputs": [given], "outputs": [{"name": "out:put/ 一"}]}))
    say(talk, "UTF-8", post(path, json.dumps({"inputs": [given]}, ensure_ascii=False).encode()))
    say(talk, "generate", post("/v2/models/names/generate", {"输入 :/a": [1, 2]}))
    say(talk, "other", post(path, {"inputs": [given | {"name": "输入"}]}))
    for name in ("no such/model", "模型", "a:b"):
        say(
            talk,
            f"path {name}",
            f"GET /v2/models/{name.replace(' ', '_')}/ready HTTP/1.1\r\nHost: localhost\r\n\r\n".encode(),
        )


@case(
    "http-05 packed bodies and answers",
    differs={
        "given broken": "2.51 takes a broken body for an empty one",
        "given deflate without its head": "2.51 takes a broken body for an empty one",
        "given nothing": "an empty Content-Encoding is none here, in later sources too",
    },
)
def packing(talk: Talk) -> None:
    talk.load("echo")
    talk.load("t_int64")
    for accept in (
        "gzip", "deflate", "gzip, deflate", "deflate, gzip", "br", "gzip;q=0.1, deflate;q=0.5", "gzip;q=0", "*", "GZIP",
        "identity;q=1, gzip;q=0.5", "gzip;q=x", " gzip", "gzip ;q=1", "gzip;q=1e5, deflate;q=2", "", "gzip;q=-1",
        "gzip; q=1", "gzip;q=0.5,deflate;q=0.5",
    ):  # fmt: skip
        say(talk, f"accept {accept}", post(PATH, GOOD, {"Accept-Encoding": accept}), "content-encoding")
    many = {"inputs": [{"name": "IN", "datatype": "INT64", "shape": [1, 500], "data": list(range(500))}]}
    many |= {"outputs": [{"name": "OUT", "parameters": {"binary_data": True}}]}
    ((status, headers, body),) = answers(talk, post("/v2/models/t_int64/infer", many, {"Accept-Encoding": "gzip"}))
    talk.note("binary", (status, headers["content-encoding"], headers["inference-header-content-length"], body))
    text = json.dumps(GOOD).encode()
    for label, (kind, packed) in {
        "gzip": ("gzip", gzip.compress(text)), "deflate": ("deflate", zlib.compress(text)),
        "zlib as gzip": ("gzip", zlib.compress(text)), "gzip as deflate": ("deflate", gzip.compress(text)),
        "identity": ("identity", text), "nothing": ("", text), "GZIP": ("GZIP", gzip.compress(text)),
        "two": ("gzip, deflate", gzip.compress(text)), "br": ("br", text),
        "more behind": ("gzip", gzip.compress(text) + b"x"), "broken": ("gzip", gzip.compress(text)[:-12]),
        "deflate without its head": ("deflate", zlib.compress(text)[2:-4]), "empty": ("gzip", b""),
    }.items():  # fmt: skip
        say(talk, f"given {label}", post(PATH, packed, {"Content-Encoding": kind}), "accept-encoding")
    head = json.dumps({"inputs": [{"name": "IN", "datatype": "FP32", "shape": [1, 4],
                                   "parameters": {"binary_data_size": 16}}]}).encode()  # fmt: skip
    length = {"Content-Encoding": "gzip", "Inference-Header-Content-Length": str(len(head))}
    say(talk, "given binary", post(PATH, gzip.compress(head + bytes(16)), length))
    say(talk, "given raw", post(PATH, gzip.compress(bytes(16)), length | {"Inference-Header-Content-Length": "0"}))
    say(talk, "given to generate", post("/v2/models/echo/generate", gzip.compress(b"{}"), {"Content-Encoding": "gzip"}))


@case(
    "http-06 headers that go on to the model",
    differs={"reserved": "2.51 passes headers with the names of Triton's own parameters on; later sources refuse them"},
)
def forwarded(talk: Talk) -> None:
    talk.load("tell")
    body = {
        "inputs": [{"name": "IN", "datatype": "INT32", "shape": [1], "data": [1]}],
        "parameters": {"own": 1, "flag": True, "share": 0.5, "text": "x"},
    }
    for label, headers in {
        "two": {"X-One": "1", "x-two": "zwei", "Other": "3"}, "none": {"Y-One": "1"}, "partly": {"Ax-one": "1"},
        "over a parameter": {"X-Own": "0"}, "reserved": {"priority": "1"},
    }.items():  # fmt: skip
        say(talk, label, post("/v2/models/tell/infer", body, headers))
    say(talk, "generate", post("/v2/models/tell/generate", {"IN": 1, "k": "v"}, {"X-One": "1"}))


@case("http-07 APIs that ask for a header")
def restricted(talk: Talk) -> None:
    talk.load("echo")
    for path in ("/v2/trace/setting", "/v2/models/echo/trace/setting", "/v2/models/echo/config"):
        for headers in (b"", b"pass-word: s3cret\r\n", b"Pass-Word: s3cre\r\n", b"Pass-Word: S3CRET\r\n"):
            data = f"GET {path} HTTP/1.1\r\nHost: localhost\r\n".encode() + headers + b"\r\n"
            ((status, _, body),) = answers(talk, data)
            talk.note(f"{path} {headers.decode()}", (status, plain(body) if status != 200 else ""))
    talk.call("GET", "/v2/models/echo")


@case("http-08 classes with their labels")
def classes(talk: Talk) -> None:
    talk.load("labels")
    for count in (1, 2, 4, 9):
        for binary in (False, True):
            parameters = {"classification": count, "binary_data": binary}
            body = {
                "inputs": [
                    {"name": "IN", "datatype": "FP32", "shape": [2, 4], "data": [1, 7, -2, 7, 0.5, -0.5, 1e6, 3]}
                ],
                "outputs": [{"name": "OUT", "parameters": parameters}],
            }
            ((status, _, answered),) = answers(talk, post("/v2/models/labels/infer", body))
            talk.note(f"{count} {binary}", (status, answered))


REGION = "/v2/systemsharedmemory"


@case(
    "http-09 system shared memory: regions, inputs, outputs",
    differs={
        "register reserved key": "2.51 has no reserved keys; later sources have",
        "status ": "the region with a reserved key",
        "cuda register": "this 2.51 is built for GPUs; here the text is that of a Triton without",
    },
)
def shared_memory(talk: Talk) -> None:
    talk.load("echo")
    objects: list[Path] = []

    def fresh(prefix: str = "workbench-test-") -> Path:
        """A shared memory object of its own: 2.51 fails to register one for the second time."""
        objects.append(Path("/dev/shm") / (prefix + secrets.token_hex(6)))
        objects[-1].write_bytes(bytes(range(64)) * 128)
        return objects[-1]

    def told(label: str, data: bytes) -> None:
        ((status, _, body),) = answers(talk, data)
        talk.note(label, (status, re.sub(r"-[0-9a-f]{12}|(?<=region_)[0-9a-f]{12}", "KEY", body.decode())))

    def register(name: str, label: str, **fields: Any) -> None:
        if fields.get("key") == "fresh":
            fields["key"] = f"/{fresh().name}"
        told(f"register {label}", post(f"{REGION}/region/{name}/register", fields))

    try:
        path, page = fresh(), fresh()
        told("status of none", f"GET {REGION}/status HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        register("r", "r", key=f"/{path.name}", offset=0, byte_size=8192)
        register("r", "again", key="fresh", offset=0, byte_size=16)
        register("page", "page", key=f"/{page.name}", offset=4096, byte_size=4096)
        register("x", "too large", key="fresh", offset=0, byte_size=8193)
        register("x", "too far", key="fresh", offset=8192, byte_size=1)
        register("x", "between pages", key="fresh", offset=16, byte_size=16)
        register("x", "nothing", key="fresh", offset=0, byte_size=0)
        register("x", "no object", key="/workbench-no-such-object", offset=0, byte_size=1)
        register("x", "outside", key="/../etc/passwd", offset=0, byte_size=1)
        register("x", "reserved key", key=f"/{fresh('triton_python_backend_shm_region_').name}", byte_size=16)
        register("x", "no key", offset=0, byte_size=16)
        register("x", "no size", key="fresh")
        register("x", "negative", key="fresh", offset=-1, byte_size=16)
        register("x", "text", key="fresh", offset="0", byte_size=16)
        told("register without a name", post(f"{REGION}/register", {"key": "/k", "byte_size": 16}))
        for name in ("", "/region/r", "/region/nobody"):
            told(f"status {name}", f"GET {REGION}{name}/status HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        told("cuda", b"GET /v2/cudasharedmemory/region/r/status HTTP/1.1\r\nHost: localhost\r\n\r\n")
        told("cuda register", post("/v2/cudasharedmemory/region/g/register", {}))
        for label, given, asked in (
            ("in", ("r", 0, 16), None), ("in further", ("r", 16, 16), None), ("in page", ("page", 0, 16), None),
            ("in and out", ("r", 0, 16), ("r", 1024, 16)), ("out larger", ("r", 0, 16), ("page", 64, 64)),
            ("in too far", ("r", 8192, 16), None), ("in over the end", ("r", 8190, 16), None),
            ("in unknown", ("nobody", 0, 16), None), ("in too small", ("r", 0, 12), None),
            ("out too small", ("r", 0, 16), ("r", 0, 15)), ("out too far", ("r", 0, 16), ("r", 9000, 16)),
            ("out unknown", ("r", 0, 16), ("nobody", 0, 16)),
        ):  # fmt: skip
            body: dict[str, Any] = {
                "inputs": [{"name": "IN", "datatype": "FP32", "shape": [1, 4], "parameters": place(*given)}]
            }
            if asked is not None:
                body["outputs"] = [{"name": "OUT", "parameters": place(*asked)}]
            say(talk, label, post(PATH, body))
        talk.note("written", (path.read_bytes()[1024:1040], page.read_bytes()[4096 + 64 : 4096 + 80]))
        for name in ("/region/r", "/region/nobody", ""):
            told(f"unregister {name}", post(f"{REGION}{name}/unregister", {}))
            told(f"status then {name}", f"GET {REGION}/status HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    finally:
        for each in objects:
            each.unlink()


def place(region: str, offset: int, size: int) -> dict[str, Any]:
    return {"shared_memory_region": region, "shared_memory_offset": offset, "shared_memory_byte_size": size}


@case(
    "http-10 where JSON ends, and requests without any",
    differs={
        "length ": "2.51 reads a length as C's atoi does; later sources refuse what is no number",
    },
)
def lengths(talk: Talk) -> None:
    talk.load("echo")
    good = json.dumps(GOOD).encode()
    for length in ("0x10", "", "99999999999"):
        say(talk, f"length {length}", post(PATH, good, {"Inference-Header-Content-Length": length}))
    for length in ("-1", str(len(good) + 1), "5", f"+{len(good)}", f"{len(good)}x", f" {len(good)}"):
        say(talk, f"in range {length}", post(PATH, good, {"Inference-Header-Content-Length": length}))
    for size in (16, 15, 17, 0, 32):
        say(talk, f"raw {size}", post(PATH, bytes(size), {"Inference-Header-Content-Length": "0"}))


@TOPIC.each_case
def test_case(each: Case, sides: Sides) -> None:
    assert re.fullmatch(r"http-\d\d", each.id)
    sides.compare(each)
