"""Single requests with large tensors, over HTTP with binary data and over gRPC with raw contents."""

from __future__ import annotations

import http.client
import json

import numpy as np

from support.servers import Server
from support.wire_models import TENSOR_FLOATS


def ask_large(server: Server, protocol: str, model: str, count: int) -> None:
    """Asks ``sink`` or ``source`` (also on threads), one request after the other.

    Raises:
        RuntimeError: an answer is not what it should be.
    """
    floats = TENSOR_FLOATS if model.startswith("sink") else 1
    data = np.ones(floats, np.float32)
    ask = _ask_http if protocol == "http" else _ask_grpc
    for _ in range(count):
        got = ask(server, model, data)
        if got != 4 * (TENSOR_FLOATS + 1 - floats):
            raise RuntimeError(f"{model} answered {got} bytes over {protocol}")


def _ask_http(server: Server, model: str, data: np.ndarray) -> int:
    tensor = {
        "name": "INPUT0", "datatype": "FP32", "shape": [len(data)], "parameters": {"binary_data_size": data.nbytes}
    }  # fmt: skip
    head = json.dumps({"inputs": [tensor], "parameters": {"binary_data_output": True}}).encode()
    connection = http.client.HTTPConnection(server.http, timeout=30)
    headers = {"Inference-Header-Content-Length": str(len(head))}
    connection.request("POST", f"/v2/models/{model}/infer", head + data.tobytes(), headers)
    answer = connection.getresponse()
    body = answer.read()
    size = len(body) - int(answer.headers.get("Inference-Header-Content-Length", len(body)))
    connection.close()
    return size


def _ask_grpc(server: Server, model: str, data: np.ndarray) -> int:
    import tritonclient.grpc as triton

    with triton.InferenceServerClient(server.grpc) as client:
        given = triton.InferInput("INPUT0", [len(data)], "FP32")
        given.set_data_from_numpy(data)
        output = client.infer(model, [given]).as_numpy("OUTPUT0")
        return 0 if output is None else int(output.nbytes)
