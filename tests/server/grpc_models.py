"""Models for the gRPC tests: small Python models, and calls made frame by frame."""

from __future__ import annotations

import contextlib
import socket
from pathlib import Path
from typing import Any

import ngh2
import numpy as np
from tritonclient.grpc import service_pb2 as pb

SERVICE = "/inference.GRPCInferenceService"

HEAD = "import os\nimport time\n\nimport numpy as np\nimport triton_python_backend_utils as pb\n\n\n"

ECHO = (
    HEAD
    + """class TritonPythonModel:
    def execute(self, requests):
        return [
            pb.InferenceResponse([pb.Tensor("OUT", pb.get_input_tensor_by_name(request, "IN").as_numpy())])
            for request in requests
        ]
"""
)

SLOW = (
    HEAD
    + """class TritonPythonModel:
    def execute(self, requests):
        time.sleep(0.3)
        return [
            pb.InferenceResponse([pb.Tensor("OUT", pb.get_input_tensor_by_name(request, "IN").as_numpy())])
            for request in requests
        ]
"""
)

WAITS = (
    HEAD
    + """class TritonPythonModel:
    def initialize(self, args):
        self.gate = os.path.join(os.path.dirname(args["model_repository"]), "gate")

    def execute(self, requests):
        open(self.gate + ".begun", "w").close()
        while not os.path.exists(self.gate):
            time.sleep(0.01)
        return [
            pb.InferenceResponse([pb.Tensor("OUT", pb.get_input_tensor_by_name(request, "IN").as_numpy())])
            for request in requests
        ]
"""
)
"""Answers once there is a file ``gate`` in the repository."""

LARGE_ANSWERS = (
    HEAD
    + """class TritonPythonModel:
    def execute(self, requests):
        sizes = [int(pb.get_input_tensor_by_name(request, "IN").as_numpy()[0]) for request in requests]
        return [pb.InferenceResponse([pb.Tensor("OUT", np.zeros(size, np.float32))]) for size in sizes]
"""
)

FAILS = (
    HEAD
    + """class TritonPythonModel:
    def execute(self, requests):
        raise ValueError("boom")
"""
)

REPEAT = (
    HEAD
    + """class TritonPythonModel:
    def initialize(self, args):
        self.log = os.path.join(os.path.dirname(args["model_repository"]), "sent")

    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            values = pb.get_input_tensor_by_name(request, "IN").as_numpy().ravel()
            size = int(values[1]) if len(values) > 1 else 1
            if values[0] < 0:
                error = pb.InferenceResponse(error=pb.TritonError("no"))
                sender.send(error, flags=pb.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
                continue
            for number in range(int(values[0])):
                if request.is_cancelled():
                    break
                sender.send(pb.InferenceResponse([pb.Tensor("OUT", np.full(size, number, np.float32))]))
                if size > 1:
                    open(self.log, "a").write(".")
            sender.send(flags=pb.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
        return None
"""
)


def put(root: Path, name: str, source: str, extra: str = "", kind: str = "FP32") -> None:
    """A Python model with an input IN and an output OUT of any number of elements."""
    (root / name / "1").mkdir(parents=True)
    (root / name / "1" / "model.py").write_text(source)
    config_type = "TYPE_STRING" if kind == "BYTES" else f"TYPE_{kind}"
    (root / name / "config.pbtxt").write_text(
        f'backend: "python"\n{extra}\n'
        f'input [ {{ name: "IN" data_type: {config_type} dims: [ -1 ] }} ]\n'
        f'output [ {{ name: "OUT" data_type: {config_type} dims: [ -1 ] }} ]\n'
        "instance_group [ { count: 1 kind: KIND_CPU } ]\n"
    )


def write_models(root: Path) -> Path:
    """``echo``, ``slow`` and ``fails`` answer once, ``repeat`` as often as its first value says."""
    put(root, "echo", ECHO)
    put(root, "slow", SLOW)
    put(root, "fails", FAILS)
    put(root, "repeat", REPEAT, "model_transaction_policy { decoupled: true }")
    return root


def request(model: str, *values: float, id: str = "", **fields: Any) -> Any:
    """A ``ModelInferRequest`` with raw contents."""
    made = pb.ModelInferRequest(model_name=model, id=id, **fields)
    made.inputs.add(name="IN", datatype="FP32", shape=[len(values)])
    made.raw_input_contents.append(np.array(values, np.float32).tobytes())
    return made


def values_of(answer: Any) -> list[float]:
    """The first output of a ``ModelInferResponse``."""
    return np.frombuffer(answer.raw_output_contents[0], np.float32).tolist()


def framed(message: bytes) -> bytes:
    """A message as gRPC frames it."""
    return b"\0" + len(message).to_bytes(4, "big") + message


class Wire:
    """A connection whose frames the test makes itself."""

    def __init__(self, url: str, *, window: int = 1 << 20, first: bytes = b"") -> None:
        host, _, port = url.partition("://")[2].rpartition(":")
        self.socket = socket.create_connection((host, int(port)), timeout=20)
        self.h2 = ngh2.Connection(
            ngh2.Role.CLIENT,
            ngh2.Configuration(
                auto_window_update=False, peer_max_concurrent_streams=10_000, max_send_header_block_length=1 << 20
            ),
        )
        self.h2.initiate_connection({ngh2.Setting.INITIAL_WINDOW_SIZE: window})
        if first:
            self.socket.sendall(first)
        self.flush()
        self.closed = False

    def flush(self) -> None:
        """Sends what is to be sent."""
        data = self.h2.data_to_send()
        if data:
            self.socket.sendall(data)

    def call(self, method: str, *messages: bytes, end: bool = True, headers: dict[str, str] | None = None) -> int:
        """Begins a call; gives its stream."""
        fields = {
            ":method": "POST", ":scheme": "http", ":path": method if "/" in method else f"{SERVICE}/{method}",
            ":authority": "localhost", "te": "trailers", "content-type": "application/grpc",
        } | (headers or {})  # fmt: skip
        stream: int = self.h2.send_request([(name.encode(), value.encode()) for name, value in fields.items()])
        for message in messages:
            self.h2.send_data(stream, framed(message))
        if end:
            self.h2.end_stream(stream)
        self.flush()
        return stream

    def read(self) -> list[Any]:
        """The events of what comes next; none when the server has closed."""
        try:
            data = self.socket.recv(1 << 20)
        except ConnectionError:
            data = b""
        if not data:
            self.closed = True
            return []
        self.h2.receive_data(data)
        events: list[Any] = self.h2.events()
        with contextlib.suppress(ConnectionError):  # it has said why, and closed
            self.flush()
        return events

    def answer(self, stream: int) -> tuple[int, str, bytes]:
        """Status, text and messages of a call, when it has ended."""
        head: dict[bytes, bytes] = {}
        body = b""
        while not self.closed:
            for event in self.read():
                if getattr(event, "stream_id", 0) != stream:
                    continue
                if isinstance(event, ngh2.ResponseReceived | ngh2.TrailersReceived):
                    head |= dict(event.headers)
                elif isinstance(event, ngh2.DataReceived):
                    body += event.data
                    with contextlib.suppress(ngh2.NGH2Error, OSError):  # the server has gone
                        self.h2.acknowledge_received_data(len(event.data), stream)
                        self.flush()
                elif isinstance(event, ngh2.StreamClosed):
                    status = head.get(b"grpc-status", b"-1")
                    return int(status), head.get(b"grpc-message", b"").decode(), body
        return -2, "closed", body

    def http_status(self, stream: int) -> bytes:
        """``:status`` of a call."""
        while not self.closed:
            for event in self.read():
                if isinstance(event, ngh2.ResponseReceived) and event.stream_id == stream:
                    return dict(event.headers)[b":status"]
        return b""

    def until_closed(self) -> None:
        """Reads until the server has closed the connection."""
        while not self.closed:
            self.read()

    def __enter__(self) -> Wire:
        return self

    def __exit__(self, *exc: object) -> None:
        self.socket.close()
