"""Mutated calls and frames against a live gRPC port: it stays up, and each call ends with a status.

A wrong message must not cost the connection; wrong frames may, cleanly.
"""

from __future__ import annotations

import contextlib
import random
import socket
from collections import Counter
from pathlib import Path
from typing import Any

import ngh2
import pytest
from fuzzed_server import MODELS, SIZE, fuzzed_server
from tritonclient.grpc import service_pb2 as pb

SERVICE = "/inference.GRPCInferenceService"
WIDTHS = {"FP32": 4, "INT64": 8, "FP16": 2}
STATUSES = {b"%d" % number for number in range(17)}
AT_ONCE = 16
PLAIN = (
    "ServerLive", "ServerReady", "ModelReady", "ServerMetadata", "ModelMetadata", "ModelConfig", "ModelStatistics",
    "RepositoryIndex", "RepositoryModelLoad", "RepositoryModelUnload", "SystemSharedMemoryStatus",
    "SystemSharedMemoryRegister", "SystemSharedMemoryUnregister", "CudaSharedMemoryStatus",
    "CudaSharedMemoryRegister", "CudaSharedMemoryUnregister", "TraceSetting", "LogSettings", "Nothing",
)  # fmt: skip


def inference(chance: random.Random) -> bytes:
    """A request that is right, or nearly."""
    model = chance.choice([*MODELS, "repeat", "nobody"])
    datatype, dim = MODELS.get(model, ("INT32", 1))
    count = dim if dim > 0 else chance.randint(0, 5)
    made = pb.ModelInferRequest(model_name=model, id=chance.choice(["", "é", "x" * 300]))
    made.model_version = chance.choice(["", "", "1", "-1", "x", "99"])
    rows = chance.choice([1, 1, 1, 0, 2, 9, -1, 2**62])
    shape = [rows, count] if model != "repeat" else [1]
    item = made.inputs.add(name="COUNT" if model == "repeat" else "INPUT0", datatype=datatype, shape=shape)
    data = (
        b"\x01\0\0\0a" * count if datatype == "BYTES" else bytes(WIDTHS.get(datatype, 4) * count * max(1, min(rows, 3)))
    )
    if chance.random() < 0.8:
        made.raw_input_contents.append(data)
    elif chance.random() < 0.5:
        item.contents.fp32_contents.extend([1.0] * count)
    if chance.random() < 0.2:
        output = made.outputs.add(name=chance.choice(["OUTPUT0", "NUMBER", "Z"]))
        output.parameters["classification"].int64_param = chance.choice([1, 0, -1, 2**40])
    if chance.random() < 0.2:
        key = chance.choice(
            ["sequence_id", "priority", "timeout", "triton_enable_empty_final_response", "k", "triton_k"]
        )
        setattr(made.parameters[key], chance.choice(["int64_param", "uint64_param"]), chance.choice([0, 1, 2**63 - 1]))
    if chance.random() < 0.1:
        item.parameters["shared_memory_region"].string_param = "r"
        item.parameters["shared_memory_byte_size"].int64_param = chance.choice([0, 8, -1])
    return made.SerializeToString()


def mutated(data: bytes, chance: random.Random) -> bytes:
    """The bytes with some of them changed, gone, doubled or new."""
    out = bytearray(data)
    for _ in range(chance.choice([0, 0, 1, 1, 2, 8])):
        at = chance.randint(0, len(out))
        kind = chance.randrange(4)
        if kind == 0 and at < len(out):
            out[at] = chance.randrange(256)
        elif kind == 1:
            del out[at : at + chance.randint(1, 9)]
        elif kind == 2:
            out[at:at] = chance.randbytes(chance.randint(1, 9))
        else:
            out[at:at] = out[at : at + chance.randint(1, 30)]
    return bytes(out)


def framed(message: bytes, chance: random.Random) -> bytes:
    head = b"\0" + len(message).to_bytes(4, "big")
    if chance.random() < 0.05:
        head = mutated(head, chance)
    return head + message


class Client:
    """A connection with several calls at a time."""

    def __init__(self, address: str, chance: random.Random) -> None:
        host, _, port = address.rpartition(":")
        self.socket = socket.create_connection((host, int(port)), timeout=30)
        self.h2 = ngh2.Connection(ngh2.Role.CLIENT, ngh2.Configuration(peer_max_concurrent_streams=100))
        self.h2.initiate_connection()
        self.chance = chance
        self.heads: dict[int, dict[bytes, bytes]] = {}

    def begin(self) -> None:
        """One call, right or wrong."""
        chance = self.chance
        method = chance.choices(["ModelInfer", "ModelStreamInfer", chance.choice(PLAIN)], [6, 3, 2])[0]
        kind = getattr(pb, f"{method}Request", pb.ModelReadyRequest)
        fields = {
            ":method": "POST", ":scheme": "http", ":path": f"{SERVICE}/{method}", ":authority": "localhost",
            "te": "trailers", "content-type": "application/grpc",
        }  # fmt: skip
        if chance.random() < 0.1:
            fields["grpc-timeout"] = chance.choice(["1n", "5m", "10S", "x", "", "999999999S"])
        if chance.random() < 0.1:
            fields["grpc-encoding"] = chance.choice(["gzip", "deflate", "br", ""])
        if chance.random() < 0.05:
            fields["triton_grpc_error"] = "true"
        stream = self.h2.send_request([(name.encode(), value.encode()) for name, value in fields.items()])
        self.heads[stream] = {}
        for _ in range(chance.choice([0, 1, 1, 1, 1, 2, 5])):
            if method in ("ModelInfer", "ModelStreamInfer"):
                message = mutated(inference(chance), chance)
            else:
                message = mutated(kind(**({"name": "echo"} if "name" in kind.DESCRIPTOR.fields_by_name else {}))
                                  .SerializeToString(), chance)  # fmt: skip
            self.h2.send_data(stream, framed(message, chance))
        if chance.random() < 0.03:
            self.h2.reset_stream(stream)
        else:
            self.h2.end_stream(stream)

    def finish(self) -> Counter[str]:
        """Waits for all; fails when one does not end with a status, or the connection ends."""
        found: Counter[str] = Counter()
        self.flush()
        while self.heads:
            data = self.socket.recv(1 << 18)
            assert data, "a wrong message has cost the connection"
            self.h2.receive_data(data)
            for event in self.h2.events():
                if isinstance(event, ngh2.ResponseReceived | ngh2.TrailersReceived) and event.stream_id in self.heads:
                    self.heads[event.stream_id] |= dict(event.headers)
                elif isinstance(event, ngh2.StreamClosed):
                    found[self.status(event)] += 1
            self.flush()
            for event in self.h2.events():
                if isinstance(event, ngh2.StreamClosed):
                    found[self.status(event)] += 1
        return found

    def status(self, event: Any) -> str:
        head = self.heads.pop(event.stream_id, {})
        if b"grpc-status" not in head:
            assert event.error_code, f"a call has ended without a status: {head}"
            return "reset"
        assert head[b"grpc-status"] in STATUSES
        assert head.get(b"grpc-message", b"").isascii()
        return head[b"grpc-status"].decode()

    def flush(self) -> None:
        data = self.h2.data_to_send()
        if data:
            self.socket.sendall(data)


def frames(address: str, chance: random.Random) -> None:
    """A connection with wrong frames, which the server may close."""
    h2 = ngh2.Connection(ngh2.Role.CLIENT)
    h2.initiate_connection()
    stream = h2.send_request(
        [(b":method", b"POST"), (b":scheme", b"http"), (b":path", f"{SERVICE}/ModelInfer".encode()),
         (b":authority", b"localhost"), (b"content-type", b"application/grpc")]
    )  # fmt: skip
    h2.send_data(stream, framed(inference(chance), chance), end_stream=True)
    h2.ping()
    data = h2.data_to_send()
    hello, rest = data[:24], data[24:]
    host, _, port = address.rpartition(":")
    with contextlib.suppress(OSError), socket.create_connection((host, int(port)), timeout=30) as made:
        made.sendall(mutated(hello, chance) if chance.random() < 0.1 else hello)
        made.sendall(mutated(rest + chance.randbytes(chance.choice([0, 9, 40])), chance))
        made.shutdown(socket.SHUT_WR)
        while made.recv(1 << 16):
            pass


def run(root: Path, count: int, seed: int) -> None:
    chance = random.Random(seed)
    found: Counter[str] = Counter()
    with fuzzed_server(root) as server:
        address = server.at("grpc").removeprefix("grpc://")
        sent = 0
        while sent < count:
            client = Client(address, chance)
            for _ in range(20):
                for _ in range(AT_ONCE):
                    client.begin()
                found += client.finish()
                sent += AT_ONCE
            client.socket.close()
            for _ in range(40):
                frames(address, chance)
            sent += 40
        print(dict(found), f"{server.grown() / 2**20:.0f} MiB more than at the start")
        assert sum(found.values()) >= count * 2 // 3
        assert found["0"] > count // 10, "many are right after all"
        server.check()


def test_a_sample_of_the_fuzz(tmp_path: Path) -> None:
    run(tmp_path, 1000, seed=1)


@pytest.mark.full
@pytest.mark.soak
@pytest.mark.timeout(3000)
def test_the_long_fuzz(tmp_path: Path) -> None:
    run(tmp_path, SIZE, seed=2)
