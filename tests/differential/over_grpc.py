"""A request over gRPC whose client may cancel it; answers in the form that HTTP gives them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tritonclient.grpc as triton

GONE = (0, "gone")
"""The answer to a request whose client has gone away."""

HTTP = {
    "StatusCode.INTERNAL": 500, "StatusCode.NOT_FOUND": 404, "StatusCode.INVALID_ARGUMENT": 400,
    "StatusCode.UNAVAILABLE": 503, "StatusCode.UNIMPLEMENTED": 501, "StatusCode.CANCELLED": 400,
}  # fmt: skip
OWN = ("sequence_id", "sequence_start", "sequence_end", "priority", "timeout")


def send(
    address: str, model: str, body: dict[str, Any], on_answer: Callable[[tuple[int, Any]], None]
) -> Callable[[], None]:
    """Sends a request with FP32 inputs; gives what cancels it. ``on_answer`` gets a status and an answer."""
    client = triton.InferenceServerClient(address)
    inputs = []
    for each in body["inputs"]:
        tensor = triton.InferInput(each["name"], each["shape"], each["datatype"])
        tensor.set_data_from_numpy(np.array(each["data"], np.float32).reshape(each["shape"]))
        inputs.append(tensor)
    cancelled = []

    def answered(result: Any, error: Any) -> None:
        if cancelled:
            on_answer(GONE)
        elif error is not None:
            on_answer((HTTP[error.status()], {"error": error.message()}))
        else:
            on_answer((200, _as_http(result)))

    parameters = body.get("parameters", {})
    call = client.async_infer(
        model, inputs, answered, request_id=body.get("id", ""),
        parameters={name: value for name, value in parameters.items() if name not in OWN},
        **{name: value for name, value in parameters.items() if name in OWN},
    )  # fmt: skip

    def cancel() -> None:
        cancelled.append(True)
        call.cancel()

    return cancel


def _as_http(result: Any) -> dict[str, Any]:
    response = result.get_response()
    made = {"id": response.id, "model_name": response.model_name, "model_version": response.model_version}
    outputs = [
        {"name": each.name, "datatype": each.datatype, "shape": list(each.shape)}
        | {"data": result.as_numpy(each.name).ravel().tolist()}
        for each in response.outputs
    ]
    return made | ({"outputs": outputs} if outputs else {})
