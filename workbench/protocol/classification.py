"""The classification extension: an output as its best N classes.

Source: Triton's ``classification.cc`` and ``FinalizeResponse``: a BYTES tensor of shape ``[batch?, min(N, elements)]``,
each element ``value:index[:label]`` with the value as C++ ``std::to_string`` prints it (six decimals for floats).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from workbench.errors import InvalidRequest
from workbench.protocol.binary import bytes_array
from workbench.protocol.tensors import Tensor

MAX_ELEMENTS = 1_000_000
"""Triton's limit of elements per batch entry."""

_SUPPORTED = ("UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64", "FP32", "FP64")


def classify(tensor: Tensor, classes: int, *, batched: bool, labels: Sequence[str] = ()) -> Tensor:
    """The ``classes`` largest elements of each batch entry; equal values keep their order.

    Args:
        tensor: an output of integers, FP32 or FP64.
        classes: how many to give; fewer when there are fewer elements.
        batched: the first dimension is the batch.
        labels: names by element index, from the output's ``label_filename``; missing ones are left out.

    Raises:
        InvalidRequest: another data type, or more than a million elements per entry.
    """
    if tensor.datatype not in _SUPPORTED:
        raise InvalidRequest(f"class result not available for output due to unsupported type '{tensor.datatype}'")
    batch = tensor.shape[0] if batched and tensor.shape else 0
    rows = tensor.data.reshape(batch, -1) if batch else tensor.data.reshape(1, -1)
    if rows.shape[1] > MAX_ELEMENTS:
        raise InvalidRequest("classification output tensor too large")
    count = min(classes, rows.shape[1])
    items: list[bytes] = []
    for row in rows:
        descending = np.argsort(_negated(row), kind="stable")
        for index in descending[:count].tolist():
            value = row[index]
            text = f"{value:.6f}" if row.dtype.kind == "f" else str(value)
            label = f":{labels[index]}" if index < len(labels) and labels[index] else ""
            items.append(f"{text}:{index}{label}".encode())
    shape = (batch, count) if batch else (count,)
    return Tensor(tensor.name, "BYTES", shape, bytes_array(items, shape, tensor.name))


def _negated(row: np.ndarray) -> np.ndarray:
    """Keys that sort ascending where the row sorts descending, without overflow."""
    return ~row if row.dtype.kind in "ui" else -row
