"""Calls gone wrong, by seed: all of Triton's RPCs, health and reflection; messages spoiled by field, on the wire, in
their framing; headers, compression, streams of several messages.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from fuzzed_server import CONFIGS, MODELS, REGION_BYTES, SPARE
from google.protobuf.descriptor import FieldDescriptor as Field
from grpc_bytes import mutated, rewritten
from http_cases import STRINGS
from tritonclient.grpc import service_pb2 as pb

from workbench.server.grpc_protos import protos

SERVICE = "/inference.GRPCInferenceService"
HEALTH = "/grpc.health.v1.Health/Check"
REFLECTION = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"
METHODS = tuple(method.name for method in pb.DESCRIPTOR.services_by_name["GRPCInferenceService"].methods)
"""The 20 of Triton."""
KINDS = {
    **{f"{SERVICE}/{name}": (getattr(pb, method.input_type.name), getattr(pb, method.output_type.name))
       for name, method in pb.DESCRIPTOR.services_by_name["GRPCInferenceService"].methods_by_name.items()},
    HEALTH: (protos().health_request, protos().health_response),
    REFLECTION: (protos().reflection_request["v1"], protos().reflection_response["v1"]),
}  # fmt: skip
"""Path -> the types of a request and of an answer."""
STREAMS = (f"{SERVICE}/ModelStreamInfer", REFLECTION)
WIDTHS = {"FP32": 4, "INT64": 8, "FP16": 2}
_ALWAYS_RIGHT = {"ServerLive", "ServerReady", "ServerMetadata", "RepositoryIndex", "ModelReady", "LogSettings"}

INTS = (
    0,
    1,
    -1,
    2,
    4,
    127,
    128,
    255,
    2**31 - 1,
    -(2**31),
    2**31,
    2**32 - 1,
    2**53,
    2**62,
    2**63 - 1,
    -(2**63),
    2**64 - 1,
)
PARAMETERS = (
    "sequence_id", "sequence_start", "sequence_end", "priority", "timeout", "triton_enable_empty_final_response",
    "triton_final_response", "classification", "shared_memory_region", "shared_memory_offset",
    "shared_memory_byte_size", "binary_data_size", "config", "unload_dependents", "file:1/model.onnx", "file:../../x",
    "trace_level", "trace_rate", "trace_count", "log_frequency", "log_info", "log_verbose_level", "log_format", "k", "",
)  # fmt: skip
HEADERS = (
    (b"grpc-timeout", (b"1n", b"5m", b"10S", b"x", b"", b"999999999S", b"99999999H", b"-1S", b"1", b"S")),
    (b"grpc-encoding", (b"gzip", b"deflate", b"br", b"", b"identity", b"\xff")),
    (b"grpc-accept-encoding", (b"gzip", b"identity,deflate", b",,,", b"", b"a" * 500)),
    (b"content-type", (b"application/grpc", b"application/grpc+proto", b"application/json", b"", b"application/grpcx")),
    (b"te", (b"trailers", b"gzip", b"")),
    (b"user-agent", (b"x" * 4000, b"", b"\xc3\xa9")),
    (b"triton_grpc_error", (b"true", b"false", b"1")),
    (b"origin", (b"http://localhost", b"https://evil.example", b"null", b"", b"\xff")),
    (b"authorization", (b"Bearer x", b"")),
    (b"x-bin", (b"AAAA", b"!!!!", b"=" * 100)),
    (b"connection", (b"close",)),
    (b"upper-Case", (b"v",)),
    (b"content-length", (b"0", b"5", b"-1", b"9" * 20)),
    (b"host", (b"evil.example", b"localhost")),
    (b"expect", (b"100-continue",)),
    (b"cookie", (b"a=b", b"a\x00b", b"a\nb")),
    (b"a" * 300, (b"v" * 3000,)),
)  # fmt: skip
PATHS = (
    b"",
    b"/",
    b"*",
    SERVICE.encode(),
    f"{SERVICE}/Nothing".encode(),
    b"/%ff",
    b"/other.Service/Call",
    b"\xff",
    b"/" * 999,
)


@dataclass
class Case:
    """A call. ``data``: its frames' contents; ``sent``: the messages that are in them, where they can be told.

    ``good``: nothing is wrong with it. ``odd_head``: the headers are not right, so no gRPC answer is due.
    """

    kind: str
    path: str
    head: list[tuple[bytes, bytes]]
    data: list[bytes] = field(default_factory=list)
    sent: list[bytes] | None = None
    good: bool = False
    odd_head: bool = False
    reset: bool = False


def framed(message: bytes, packed: int = 0) -> bytes:
    """A message as gRPC frames it."""
    return bytes((packed,)) + len(message).to_bytes(4, "big") + message


class Maker:
    """Makes calls, the same ones for the same seed. ``region``: the key of shared memory that exists."""

    def __init__(self, seed: int, region: str) -> None:
        self.random = random.Random(seed)
        self.region = region

    def case(self) -> Case:
        """The next one."""
        chance = self.random
        path = chance.choices(
            [f"{SERVICE}/ModelInfer", f"{SERVICE}/ModelStreamInfer", f"{SERVICE}/{chance.choice(METHODS)}",
             chance.choice([HEALTH, REFLECTION])],
            [50, 22, 24, 4],
        )[0]  # fmt: skip
        spoil = chance.choices(
            [self.nothing, self.by_field, self.on_the_wire, self.in_bytes, self.framing, self.packing, self.head],
            [25, 35, 15, 8, 7, 4, 6],
        )[0]
        count = chance.choice([1, 1, 2, 3, 6]) if path in STREAMS else 1
        made = [self.good(path) for _ in range(count)]
        case = Case(spoil.__name__, path, self.headers(path))
        spoil(case, made)
        if spoil not in (self.nothing, self.framing) and chance.random() < 0.02:
            case.data = case.data * chance.choice([0, 2, 5])
            case.sent = None
        if chance.random() < 0.02:
            case.reset, case.good = True, False
        return case

    def sentinel(self) -> Case:
        """A call that must be answered well."""
        message = self.inference("echo")
        case = Case("sentinel", f"{SERVICE}/ModelInfer", self.headers(f"{SERVICE}/ModelInfer"))
        self.nothing(case, [message])
        case.good = True
        return case

    @staticmethod
    def headers(path: str) -> list[tuple[bytes, bytes]]:
        """What a gRPC client sends."""
        return [
            (b":method", b"POST"), (b":scheme", b"http"), (b":path", path.encode()), (b":authority", b"localhost"),
            (b"te", b"trailers"), (b"content-type", b"application/grpc"),
        ]  # fmt: skip

    # ---- good messages

    def good(self, path: str) -> Any:
        """A message that the call takes."""
        name = path.rpartition("/")[2]
        chance = self.random
        made = KINDS[path][0]()
        if name in ("ModelInfer", "ModelStreamInfer"):
            streamed = name == "ModelStreamInfer" and chance.random() < 0.4
            return self.inference("repeat" if streamed else chance.choice([*MODELS]))
        if name == "RepositoryModelLoad":
            made.model_name = chance.choices([SPARE, "nobody"], [1, 9])[0]  # a load takes its time
            if chance.random() < 0.7:
                made.parameters["config"].string_param = chance.choice(CONFIGS)
        elif name == "RepositoryModelUnload":
            made.model_name = chance.choice([SPARE, "nobody"])
            if chance.random() < 0.5:
                made.parameters["unload_dependents"].bool_param = True
        elif name == "SystemSharedMemoryRegister":
            made.name, made.key, made.byte_size = chance.choice(["r", "s"]), self.region, REGION_BYTES
        elif name == "CudaSharedMemoryRegister":
            made.name, made.raw_handle, made.byte_size = "r", bytes(64), 8
        elif name == "TraceSetting":
            made.settings["trace_rate"].value.append("7")
        elif name == "LogSettings":
            made.settings["log_info"].bool_param = True
        elif name == "ServerReflectionInfo":
            made.list_services = ""
        elif "name" in made.DESCRIPTOR.fields_by_name:
            made.name = "" if "SharedMemory" in name else chance.choice([*MODELS, "repeat"])
        return made

    def inference(self, model: str) -> Any:
        """A request that the model takes: raw or typed contents."""
        chance = self.random
        made = pb.ModelInferRequest(model_name=model, id=chance.choice(["", "1", "é", "x" * 300]))
        made.model_version = chance.choice(["", "", "1"])
        if model == "repeat":
            made.inputs.add(name="COUNT", datatype="INT32", shape=[1])
            made.raw_input_contents.append(chance.randrange(6).to_bytes(4, "little"))
            if chance.random() < 0.3:
                made.parameters["triton_enable_empty_final_response"].bool_param = True
            return made
        datatype, dim = MODELS[model]
        rows, width = chance.randint(1, 8), dim if dim > 0 else chance.randint(1, 5)
        count = rows * width
        item = made.inputs.add(name="INPUT0", datatype=datatype, shape=[rows, width])
        texts = [chance.choice(("", "a", "模型", "x" * 60)).encode() for _ in range(count)]
        if datatype != "FP16" and chance.random() < 0.4:
            if datatype == "BYTES":
                item.contents.bytes_contents.extend(texts)
            elif datatype == "INT64":
                item.contents.int64_contents.extend(chance.randint(-(2**63), 2**63 - 1) for _ in range(count))
            else:
                item.contents.fp32_contents.extend(float(chance.randint(-9, 9)) for _ in range(count))
        elif datatype == "BYTES":
            made.raw_input_contents.append(b"".join(len(text).to_bytes(4, "little") + text for text in texts))
        else:
            made.raw_input_contents.append(chance.randbytes(count * WIDTHS[datatype]))
        return made

    # ---- what is done to them; each fills a case

    def nothing(self, case: Case, messages: list[Any]) -> None:
        """They go as they are."""
        case.sent = [message.SerializeToString() for message in messages]
        case.data = [framed(message) for message in case.sent]
        name = case.path.rpartition("/")[2]
        case.good = name in _ALWAYS_RIGHT or name in ("ModelInfer", "ModelStreamInfer", "ServerReflectionInfo", "Check")

    def by_field(self, case: Case, messages: list[Any]) -> None:
        """Fields of one are changed, gone, doubled or new: what comes is a message of the right type."""
        one = self.random.choice(messages)
        for _ in range(self.random.choice((1, 1, 2, 4))):
            self.spoil(one)
        case.sent = [message.SerializeToString() for message in messages]
        case.data = [framed(message) for message in case.sent]

    def on_the_wire(self, case: Case, messages: list[Any]) -> None:
        """Fields of one are written as no library would write them."""
        case.sent = [message.SerializeToString() for message in messages]
        at = self.random.randrange(len(messages))
        case.sent[at] = rewritten(case.sent[at], self.random)
        case.data = [framed(message) for message in case.sent]

    def in_bytes(self, case: Case, messages: list[Any]) -> None:
        """Bytes of all are changed."""
        case.sent = [mutated(message.SerializeToString(), self.random) for message in messages]
        case.data = [framed(message) for message in case.sent]

    def framing(self, case: Case, messages: list[Any]) -> None:
        """They are cut into other pieces, or their framing is wrong."""
        chance = self.random
        plain = [message.SerializeToString() for message in messages]
        data = b"".join(framed(message) for message in plain)
        draw = chance.randrange(5)
        if draw == 0:
            data = data[: chance.randrange(len(data) + 1)]
        elif draw == 1:
            data = (
                chance.choice((b"\0\xff\xff\xff\xff", b"\1\x7f\xff\xff\xff", b"\7\0\0\0\1", b"\xff" * 5, b"\0")) + data
            )
        elif draw == 2:
            data += chance.randbytes(chance.randint(1, 9))
        elif draw == 3:
            data = mutated(data[:5], chance) + data[5:]
        else:
            case.sent = plain
        step = chance.choice((1, 2, 5, 7, 100))
        case.data = [data[at : at + step] for at in range(0, min(len(data), 60 * step), step)]
        if case.sent is not None:
            case.data.append(data[60 * step :])

    def packing(self, case: Case, messages: list[Any]) -> None:
        """They are compressed, well or not."""
        chance = self.random
        name, bits = chance.choice(((b"gzip", 31), (b"deflate", 15)))
        case.head.append((b"grpc-encoding", name if chance.random() < 0.8 else chance.choice(HEADERS[1][1])))
        case.odd_head = True  # the name may be no value that a header has
        plain = [message.SerializeToString() for message in messages]
        for message in plain:
            packer = zlib.compressobj(1, wbits=bits)
            content = packer.compress(message) + packer.flush()
            if chance.random() < 0.4:
                content = mutated(content, chance)
            case.data.append(framed(content, 1 if chance.random() < 0.9 else 0))

    def head(self, case: Case, messages: list[Any]) -> None:
        """Headers are odd, twice, missing."""
        chance = self.random
        case.odd_head = True
        for _ in range(chance.randint(1, 3)):
            draw = chance.random()
            at = chance.randrange(len(case.head))
            if draw < 0.6:
                name, values = chance.choice(HEADERS)
                case.head.append((name, chance.choice(values)))
            elif draw < 0.7:
                del case.head[at]
            elif draw < 0.8:
                case.head.insert(at, chance.choice(case.head))
            elif draw < 0.9:
                case.head[at] = (case.head[at][0], mutated(case.head[at][1], chance))
            else:
                case.head = [(n, chance.choice(PATHS) if n == b":path" else v) for n, v in case.head]
        case.data = [framed(message.SerializeToString()) for message in messages]

    # ---- one field of a message

    def spoil(self, message: Any) -> None:
        """Changes one field, of the message or of one that it holds."""
        chance = self.random
        fields = message.DESCRIPTOR.fields
        if not fields:
            return
        present = [each for each, _ in message.ListFields()]
        chosen = chance.choice(present) if present and chance.random() < 0.75 else chance.choice(fields)
        if chosen.message_type is not None and chosen.message_type.GetOptions().map_entry:
            self.spoil_map(message, chosen)
        elif chosen.is_repeated:
            self.spoil_list(message, chosen)
        elif chosen.message_type is not None:
            if chance.random() < 0.15:
                message.ClearField(chosen.name)
            else:
                self.spoil(getattr(message, chosen.name))
        elif chance.random() < 0.15:
            message.ClearField(chosen.name)
        else:
            setattr(message, chosen.name, self.value(chosen))

    def spoil_map(self, message: Any, chosen: Any) -> None:
        entries = getattr(message, chosen.name)
        keys = sorted(entries)
        key = self.random.choice(keys) if keys and self.random.random() < 0.6 else self.random.choice(PARAMETERS)
        if keys and self.random.random() < 0.1:
            del entries[self.random.choice(keys)]
        elif chosen.message_type.fields_by_name["value"].message_type is not None:
            self.spoil(entries[key])
        else:
            entries[key] = self.value(chosen.message_type.fields_by_name["value"])

    def spoil_list(self, message: Any, chosen: Any) -> None:
        chance = self.random
        items = getattr(message, chosen.name)
        draw = chance.random()
        if draw < 0.1:
            message.ClearField(chosen.name)
        elif draw < 0.2 and len(items):
            del items[chance.randrange(len(items))]
        elif chosen.message_type is not None:
            if draw < 0.8 and len(items):
                self.spoil(chance.choice(items))
            elif len(items) and chance.random() < 0.5:
                items.append(chance.choice(items))
            else:
                self.spoil(items.add())
        elif draw < 0.6 and len(items):
            items[chance.randrange(len(items))] = self.value(chosen)
        elif draw < 0.95:
            items.append(self.value(chosen))
        else:
            items.extend([self.value(chosen)] * chance.choice((3, 30, 1000)))

    def value(self, chosen: Any) -> Any:
        """Something that the field's type can hold."""
        chance = self.random
        kind = chosen.cpp_type
        if kind == Field.CPPTYPE_BOOL:
            return chance.random() < 0.5
        if kind in (Field.CPPTYPE_DOUBLE, Field.CPPTYPE_FLOAT):
            return chance.choice((0.0, -1.5, 1e38, float("nan"), float("inf"), float("-inf")))
        if kind == Field.CPPTYPE_STRING:
            if chosen.type == Field.TYPE_BYTES:
                return chance.choice(
                    (b"", b"\xff\xfe", bytes(64), chance.randbytes(chance.randint(1, 40)), b"x" * 5000)
                )
            if chosen.name == "model_name":
                models = (SPARE,) if "Repository" in chosen.full_name else (*MODELS, "repeat")
                return chance.choice((*models, "nobody", "", "模型"))
            if chosen.name == "datatype":
                return chance.choice(("FP32", "INT64", "BYTES", "FP16", "BF16", "BOOL", "UINT8", "FP8", "", "fp32"))
            if chosen.name == "string_param" and chance.random() < 0.3:
                return mutated(chance.choice(CONFIGS).encode(), chance).decode("ascii", "ignore")
            return chance.choice((*STRINGS[:17], *STRINGS[18:])).encode("utf-8", "ignore").decode()
        low, high = {
            Field.CPPTYPE_INT32: (-(2**31), 2**31 - 1), Field.CPPTYPE_INT64: (-(2**63), 2**63 - 1),
            Field.CPPTYPE_UINT32: (0, 2**32 - 1), Field.CPPTYPE_UINT64: (0, 2**64 - 1),
            Field.CPPTYPE_ENUM: (0, 2**31 - 1),
        }[kind]  # fmt: skip
        return chance.choice([number for number in INTS if low <= number <= high])


Spoiler = Callable[[Case, list[Any]], None]
