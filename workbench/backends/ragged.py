"""Batch inputs and batch outputs: what a ragged batch tells its model, and how the output is dealt out.

Requests whose shapes differ run as one batch with ``allow_ragged_batch``: their elements follow each other in one
1-D tensor. Kinds and shapes: model_config.proto (``BatchInput``, ``BatchOutput``) and Triton's backend utilities.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from workbench.backends.fit import config_datatype
from workbench.errors import BackendError
from workbench.protocol.tensors import InferenceRequest, Tensor


def batch_inputs(config: Any, requests: Sequence[InferenceRequest]) -> dict[str, NDArray[Any]]:
    """The tensors of ``batch_input`` for one batch, by target name; INT32 or FP32 as configured.

    Shapes for n requests: ``BATCH_ELEMENT_COUNT`` and ``BATCH_ACCUMULATED_ELEMENT_COUNT`` [n], the latter
    ``..._WITH_ZERO`` [n + 1], ``BATCH_MAX_ELEMENT_COUNT_AS_SHAPE`` [most elements of a request] (its content means
    nothing), ``BATCH_ITEM_SHAPE`` [rows, rank], ``BATCH_ITEM_SHAPE_FLATTEN`` [rows * rank].
    """
    made: dict[str, NDArray[Any]] = {}
    for item in config.batch_input:
        kind = item.Kind.Name(item.kind)
        shapes = [_input(request, item.source_input[0]).shape for request in requests]
        dtype = np.float32 if config_datatype(item) == "TYPE_FP32" else np.int32
        array = _describe(kind, shapes).astype(dtype)
        made.update(dict.fromkeys(item.target_name, array))
    return made


def _describe(kind: str, shapes: Sequence[Sequence[int]]) -> NDArray[Any]:
    counts = [math.prod(shape) for shape in shapes]
    if kind == "BATCH_ELEMENT_COUNT":
        return np.array(counts)
    if kind == "BATCH_ACCUMULATED_ELEMENT_COUNT":
        return np.cumsum(counts)
    if kind == "BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO":
        return np.concatenate([[0], np.cumsum(counts)])
    if kind == "BATCH_MAX_ELEMENT_COUNT_AS_SHAPE":
        return np.zeros(max(counts))
    # the shape without its batch axis, once for each row
    items = np.array([shape[1:] for shape in shapes for _ in range(shape[0])])
    return items if kind == "BATCH_ITEM_SHAPE" else items.reshape(-1)


def batch_outputs(config: Any) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Outputs of ``batch_output``: name -> (source input, shape as configured with the batch axis, -1 for variable)."""
    outputs = {item.name: item for item in config.output}
    made = {}
    for item in config.batch_output:
        for name in item.target_name:
            output = outputs[name]
            dims = tuple(output.reshape.shape) if output.HasField("reshape") else tuple(output.dims)
            made[name] = (item.source_input[0], (-1, *dims) if config.max_batch_size else dims)
    return made


def scatter(
    name: str,
    array: NDArray[Any],
    source: str,
    shape: Sequence[int],
    requests: Sequence[InferenceRequest],
) -> list[NDArray[Any]]:
    """Deals a batch output out to its requests (``BATCH_SCATTER_WITH_INPUT_SHAPE``), as views of ``array``.

    Each request's part has the configured ``shape`` with every variable dimension as in its ``source`` input.

    Raises:
        BackendError: the output does not have as many elements as that takes.
    """
    shapes = [
        tuple(own if dim == -1 else dim for dim, own in zip(shape, _input(request, source).shape, strict=False))
        for request in requests
    ]
    counts = [math.prod(each) for each in shapes]
    if any(len(each) != len(shape) for each in shapes) or sum(counts) != array.size:
        raise BackendError(
            f"output tensor '{name}' has {array.size} elements, its batch of {len(requests)} takes {sum(counts)}",
            hint=f"batch_output gives '{name}' the variable dimensions of '{source}'",
        )
    flat, ends = array.reshape(-1), np.cumsum(counts)
    return [flat[end - count : end].reshape(each) for end, count, each in zip(ends, counts, shapes, strict=True)]


def _input(request: InferenceRequest, name: str) -> Tensor:
    return next(tensor for tensor in request.inputs if tensor.name == name)
