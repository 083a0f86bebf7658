"""Triton's checks of inputs, outputs, batch inputs and batch outputs (ValidateModelIOConfig, ValidateBatchIO)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod
from typing import Any

from workbench.config.problem import Problem
from workbench.config.schema import Message, enum_name, pb

WILDCARD = -1
"""A dimension of any size."""

_DIMENSION = f"must be integer >= 1, or {WILDCARD} to indicate a variable-size dimension"


def io_problems(message: Message) -> Iterator[Problem]:
    """What Triton refuses about the tensors of a configuration, in its order."""
    end = f" for {message.name}"
    trt = message.platform == "tensorrt_plan"
    for kind in ("input", "output"):
        for index, tensor in enumerate(getattr(message, kind)):
            place = f"{kind}[{index}]"
            for problem in _tensor(tensor, message.max_batch_size, kind, place, trt):
                yield Problem(problem.path, problem.message + end)
    yield from _batch_inputs(message)
    yield from _batch_outputs(message)


def _tensor(tensor: Any, max_batch_size: int, kind: str, place: str, trt: bool) -> Iterator[Problem]:
    yield from _shape(tensor, max_batch_size, kind, place)
    formats = pb().ModelInput
    if kind == "input" and tensor.format in (formats.FORMAT_NHWC, formats.FORMAT_NCHW) and len(tensor.dims) != 3:
        yield Problem(f"{place}.format", "model input NHWC/NCHW require 3 dims")
    if tensor.is_shape_tensor and not trt:
        yield Problem(f"{place}.is_shape_tensor", "shape tensors are only supported for TensorRT platform")
    if tensor.is_non_linear_format_io and not trt:
        text = "Non-linear IO format is only supported for the TensorRT platform"
        yield Problem(f"{place}.is_non_linear_format_io", text)


def _shape(tensor: Any, max_batch_size: int, kind: str, place: str) -> Iterator[Problem]:
    if not tensor.name:
        yield Problem(place, f"model {kind} must specify 'name'")
        return
    intro = f"model {kind} '{tensor.name}'"
    if tensor.data_type == pb().TYPE_INVALID:
        yield Problem(place, f"{intro} must specify 'data_type'")
    if not tensor.dims:
        yield Problem(place, f"{intro} must specify 'dims'")
    reshaped = tensor.HasField("reshape")
    if reshaped and not tensor.reshape.shape and max_batch_size == 0:
        text = f"{intro} cannot have empty reshape for non-batching model as scalar tensors are not supported"
        yield Problem(f"{place}.reshape", text)
    bad = False
    for index, dim in enumerate(tensor.dims):
        if dim < 1 and dim != WILDCARD:
            bad = True
            yield Problem(f"{place}.dims[{index}]", f"{intro} dimension {_DIMENSION}")
    if not reshaped:
        return
    for index, dim in enumerate(tensor.reshape.shape):
        if dim < 1 and dim != WILDCARD:
            bad = True
            yield Problem(f"{place}.reshape.shape[{index}]", f"{intro} reshape dimensions {_DIMENSION}")
    if not bad:
        yield from _reshape(list(tensor.dims), list(tensor.reshape.shape), intro, f"{place}.reshape")


def _count(dims: Sequence[int]) -> int:
    """Triton's GetElementCount: -1 with a variable dimension, 0 without dimensions."""
    if WILDCARD in dims:
        return WILDCARD
    return prod(dims) if dims else 0


def _runs(dims: Sequence[int]) -> list[int]:
    """Element counts of the runs between variable dimensions."""
    runs = [1]
    for dim in dims:
        if dim == WILDCARD:
            runs.append(1)
        else:
            runs[-1] *= dim
    return runs


def _reshape(dims: list[int], shape: list[int], intro: str, place: str) -> Iterator[Problem]:
    different = f"{intro} has different size for dims and reshape"
    count, reshaped = _count(dims), _count(shape)
    if count != reshaped and (reshaped != 0 or count != 1):
        yield Problem(place, different)
    elif count == WILDCARD:
        before, after = _runs(dims), _runs(shape)
        if len(before) != len(after):
            text = f"{intro} has different number of variable-size dimensions for dims and reshape"
            yield Problem(place, text)
        elif before != after:
            yield Problem(place, different)


def _batch_inputs(message: Message) -> Iterator[Problem]:
    names = {tensor.name for tensor in message.input}
    for index, batch in enumerate(message.batch_input):
        place = f"batch_input[{index}]"
        if len(batch.source_input) != 1:
            kind = enum_name(pb().BatchInput.Kind, batch.kind)
            yield Problem(place, f"batch input kind '{kind}' expects 1 source input, got {len(batch.source_input)}")
        if batch.data_type not in (pb().TYPE_INT32, pb().TYPE_FP32):
            yield Problem(f"{place}.data_type", "batch input data type must be TYPE_INT32 or TYPE_FP32")
        yield from _sources(batch, names, place)


def _sources(batch: Any, names: set[str], place: str) -> Iterator[Problem]:
    for index, source in enumerate(batch.source_input):
        if source not in names:
            yield Problem(f"{place}.source_input[{index}]", f"unknown source input name '{source}'")


def _batch_outputs(message: Message) -> Iterator[Problem]:
    inputs = {tensor.name for tensor in message.input}
    outputs = {tensor.name for tensor in message.output}
    targets: set[str] = set()
    for index, batch in enumerate(message.batch_output):
        place = f"batch_output[{index}]"
        if len(batch.source_input) != 1:
            kind = enum_name(pb().BatchOutput.Kind, batch.kind)
            yield Problem(place, f"batch output kind '{kind}' expects 1 source input, got {len(batch.source_input)}")
        yield from _sources(batch, inputs, place)
        for inner, target in enumerate(batch.target_name):
            where = f"{place}.target_name[{inner}]"
            if target not in outputs:
                yield Problem(where, f"unknown target output name '{target}'")
            if target in targets:
                yield Problem(where, f"target output name '{target}' can only be specified once")
            targets.add(target)
