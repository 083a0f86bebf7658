"""Requests kept in little memory, and many of them as one piece of bytes: what a client sent, to be sent again.

Clients send the same again and again but for ids and data. What else a request says (its *head*) is kept once; a
packed request is a plain tuple of it, of the id and of the tensors as they go on the wire, which no garbage collector
looks at.

One piece (``encode_packed``) is JSON: ``version``, ``model``, the distinct ``heads``, ``ids`` where there are any, and
how many requests (``n``); then, little-endian, ``arrivals`` (int64, nanoseconds), the number of each request's head
(int32), the bytes of each tensor (int64, request by request), and the tensors' bytes.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from workbench.errors import InvalidRequest
from workbench.protocol.binary import Buffer, from_buffer, to_buffer
from workbench.protocol.tensors import InferenceRequest, RequestedOutput, Tensor

VERSION = 1

_LITTLE = sys.byteorder == "little"

Head = tuple[Any, ...]
"""Version asked for, outputs, parameters, priority, timeout, sequence id, start, end, client, front end, inputs."""

PackedRequest = tuple[int, Head, str, tuple[bytes, ...], int, bool]
"""When it came (ns), its head, its id, its tensors' bytes, about how much memory it takes (bytes), and whether its head
is counted in that: of requests that share it one bears it."""

_REQUEST_BYTES, _TENSOR_BYTES, _HEAD_BYTES, _ITEM_BYTES = 224, 64, 512, 160


def head_of(request: InferenceRequest) -> Head:
    """What a request says besides its id and data."""
    form, outputs, parameters = request.form, request.outputs, request.parameters
    return (
        request.model_version,
        tuple([(each.name, tuple(each.parameters.items())) for each in outputs]) if outputs else (),
        tuple(parameters.items()) if parameters else (),
        request.priority,
        request.timeout,
        request.sequence_id,
        request.sequence_start,
        request.sequence_end,
        request.client,
        request.front,
        tuple([(each.name, each.datatype, each.shape) for each in request.inputs]) if form is None else form.kinds,
    )


def data_of(request: InferenceRequest) -> tuple[bytes, ...]:
    """The bytes of its tensors: a copy, whatever becomes of the arrays."""
    return tuple([_bytes_of(each) for each in request.inputs])


def _bytes_of(tensor: Tensor) -> bytes:
    array = tensor.data
    if tensor.datatype != "BYTES" and _LITTLE and array.dtype.isnative:
        return array.tobytes()
    return bytes(to_buffer(tensor))


def head_bytes(head: Head) -> int:
    """About how much memory a head takes."""
    texts = sum(len(value) for _, value in head[2] if isinstance(value, str))
    return _HEAD_BYTES + texts + _ITEM_BYTES * (len(head[1]) + len(head[2]) + len(head[-1]))


def packed_bytes(id: str, data: Sequence[bytes]) -> int:
    """About how much memory a packed request takes besides its head."""
    return _REQUEST_BYTES + (len(id) + 56 if id else 0) + sum(map(len, data)) + _TENSOR_BYTES * len(data)


def unpack(model: str, head: Head, id: str, data: Sequence[Buffer]) -> InferenceRequest:
    """The request; its tensors are views of ``data`` where they can be.

    Raises:
        InvalidRequest: bytes that do not fit the head.
    """
    version, outputs, parameters, priority, timeout, sequence, start, end, client, front, inputs = head
    return InferenceRequest(
        model,
        [
            from_buffer(name, datatype, shape, memoryview(part))
            for (name, datatype, shape), part in zip(inputs, data, strict=True)
        ],
        [RequestedOutput(name, dict(own)) for name, own in outputs],
        version, id, dict(parameters), priority, timeout, sequence, start, end, client, front=front,
    )  # fmt: skip


def encode_packed(model: str, requests: Sequence[PackedRequest]) -> tuple[bytes, list[bytes]]:
    """Requests as one piece: its JSON and the buffers behind it."""
    from workbench.protocol import json_data as js

    numbers: dict[Head, int] = {}
    codes = np.fromiter(
        (numbers.setdefault(head, len(numbers)) for _, head, *_ in requests), dtype="<i4", count=len(requests)
    )
    ids = [id for _, _, id, *_ in requests]
    parts = [part for _, _, _, data, *_ in requests for part in data]
    header = {
        "version": VERSION,
        "model": model,
        "n": len(requests),
        "heads": list(numbers),
        "ids": ids if any(ids) else [],
    }
    arrivals = np.fromiter((each[0] for each in requests), dtype="<i8", count=len(requests))
    sizes = np.fromiter(map(len, parts), dtype="<i8", count=len(parts))
    # slow: numbers that are not finite, and texts that are no UTF-8, come back as they are
    return js.dumps_slow(header), [arrivals.tobytes(), codes.tobytes(), sizes.tobytes(), *parts]


def decode_packed(header: Buffer, body: Buffer) -> list[tuple[int, InferenceRequest]]:
    """What ``encode_packed`` made of requests: when each came (ns) and what it was, views of ``body``.

    Raises:
        InvalidRequest: header and buffers do not fit each other, or are of another version.
    """
    from workbench.protocol import json_data as js

    described = js.loads(header)
    try:
        if described["version"] != VERSION:
            raise InvalidRequest(f"packed requests of version {described['version']}, this reads {VERSION}")
        count, model = int(described["n"]), str(described["model"])
        heads = [_frozen(each) for each in described["heads"]]
        ids = described["ids"] or [""] * count
        view = memoryview(body)
        arrivals = np.frombuffer(view, "<i8", count)
        codes = np.frombuffer(view, "<i4", count, 8 * count)
        at = 12 * count
        of_each = [len(heads[code][-1]) for code in codes.tolist()]
        sizes = np.frombuffer(view, "<i8", sum(of_each), at).tolist()
        at += 8 * len(sizes)
        if at + sum(sizes) != view.nbytes or len(ids) != count:
            raise InvalidRequest("packed requests end too early, or too late")
        found: list[tuple[int, InferenceRequest]] = []
        parts = iter(sizes)
        for arrival, code, id in zip(arrivals.tolist(), codes.tolist(), ids, strict=True):
            head, data = heads[code], []
            for _ in head[-1]:
                size = next(parts)
                data.append(view[at : at + size])
                at += size
            found.append((arrival, unpack(model, head, id, data)))
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise InvalidRequest(f"cannot read packed requests: {type(error).__name__}: {error}") from error
    return found


def _frozen(value: Any) -> Any:
    return tuple(map(_frozen, value)) if isinstance(value, list) else value
