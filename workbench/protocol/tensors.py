"""Requests, responses and tensors, free of any transport.

A request is answered by a stream of responses, the last one marked ``final``; a model that answers once sends one
response with ``final=True``, so decoupled models are no special case.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from workbench.errors import InvalidRequest, WorkbenchError
from workbench.protocol import datatypes

if TYPE_CHECKING:
    from workbench.protocol.forms import Form

Parameter = str | int | float | bool
"""What a request or response parameter may hold."""


@dataclass(slots=True)
class Tensor:
    """A named tensor.

    ``data`` is an array of exactly ``shape``; BYTES are object arrays whose elements are ``bytes``, BF16 uses
    ``ml_dtypes.bfloat16``. The array may be a read-only view of the buffer that it arrived in and keeps that alive.
    """

    name: str
    datatype: str
    shape: tuple[int, ...]
    data: NDArray[Any]

    @classmethod
    def from_numpy(cls, name: str, array: NDArray[Any]) -> Tensor:
        """A tensor around an array (no copy, except that strings become an object array of UTF-8 bytes).

        Raises:
            InvalidRequest: the dtype has no v2 name.
        """
        row = datatypes.from_numpy(array.dtype)
        if row.wire == "BYTES":
            array = as_bytes_array(array)
        return cls(name, row.wire, tuple(array.shape), array)


def as_bytes_array(array: NDArray[Any]) -> NDArray[np.object_]:
    """An object array of ``bytes`` with the same shape; ``str`` elements are encoded as UTF-8.

    Raises:
        InvalidRequest: a text has no UTF-8 form.
    """
    if array.dtype == np.object_ and all(type(item) is bytes for item in array.flat):
        return array
    out = np.empty(array.shape, dtype=np.object_)
    flat = out.reshape(-1)
    for index, item in enumerate(array.flat):
        try:
            flat[index] = bytes(item) if isinstance(item, bytes | bytearray | memoryview) else str(item).encode()
        except UnicodeEncodeError as error:
            raise InvalidRequest(
                f"string {index} has no UTF-8 form: {error.reason}",
                where=f"{item!r:.80}",
                hint="give its bytes instead",
            ) from None
    return out


@dataclass(slots=True)
class RequestedOutput:
    """An output that the client asks for, with its parameters (``binary_data``, ``classification``)."""

    name: str
    parameters: Mapping[str, Parameter] = field(default_factory=dict)


@dataclass(slots=True)
class InferenceRequest:
    """One inference request.

    ``model_version`` -1 means the latest ready one. No ``outputs`` means all of them. ``timeout`` is in microseconds
    (Triton's request parameter), 0 is none. ``parent_seq`` is the record of the request that made this one (ensemble,
    BLS), or -1. ``form`` is what all requests like this one have in common, None where that is not known. ``front`` is
    how it came: ``http``, ``generate``, ``generate_stream``, ``grpc``, ``stream`` (of gRPC), or empty where no socket
    was between.
    """

    model_name: str
    inputs: list[Tensor]
    outputs: Sequence[RequestedOutput] = ()
    model_version: int = -1
    id: str = ""
    parameters: Mapping[str, Parameter] = field(default_factory=dict)
    priority: int = 0
    timeout: int = 0
    sequence_id: int | str = 0
    sequence_start: bool = False
    sequence_end: bool = False
    client: str = ""
    parent_seq: int = -1
    form: Form | None = None
    front: str = ""


@dataclass(slots=True)
class InferenceResponse:
    """One response. Either ``outputs`` or ``error`` is meaningful; an empty final response has neither."""

    model_name: str
    model_version: int
    id: str = ""
    outputs: list[Tensor] = field(default_factory=list)
    parameters: Mapping[str, Parameter] = field(default_factory=dict)
    error: WorkbenchError | None = None
    final: bool = True

    def as_numpy(self, name: str) -> NDArray[Any]:
        """The array of an output.

        Raises:
            KeyError: there is no such output.
        """
        for tensor in self.outputs:
            if tensor.name == name:
                return tensor.data
        raise KeyError(name)
