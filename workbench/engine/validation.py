"""Request validation: Triton's texts in Triton's order (infer_request.cc ``Normalize``).

Order: requested outputs, number of inputs, names and batch dimensions, batch size, then for each input data type, shape
and byte size. Every text of ``Normalize`` itself starts with ``[request id: ID] ``.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple

import numpy as np

from workbench.errors import InvalidRequest, NotReady, QueueFull, WorkbenchError
from workbench.protocol import datatypes
from workbench.protocol.tensors import InferenceRequest, Tensor
from workbench.scheduling.interface import RejectedItem

DECOUPLED = "HTTP end point doesn't support models with decoupled transaction policy"
"""Why a model that may answer a request any number of times is refused where one answer is wanted (15.17)."""

_NOTE = (
    "NOTE: Setting a non-zero max_batch_size in the model config requires a batch dimension to be prepended to each "
    "input shape. If you want to specify the full shape including the batch dim in your input dims config, try setting "
    "max_batch_size to zero. See the model configuration docs for more info on max_batch_size."
)


def id_prefix(request: InferenceRequest) -> str:
    """``[request id: ID] `` as Triton's ``LogRequest`` writes it."""
    return f"[request id: {request.id or '<id_unknown>'}] "


def config_type(item: Any) -> str:
    """The ``TYPE_...`` name of a configured tensor."""
    return str(item.DESCRIPTOR.fields_by_name["data_type"].enum_type.values_by_number[item.data_type].name)


class Checked(NamedTuple):
    """An accepted request: its rows, what must be equal to share a batch, its inputs (reshaped where configured)."""

    rows: int
    shape_key: Hashable
    input_set: Hashable
    inputs: list[Tensor]


class _Input:
    """What the configuration says of one input, in the form that the check needs."""

    __slots__ = ("checks_shape", "datatype", "dims", "itemsize", "name", "numpy", "optional", "reshape", "variable")

    def __init__(self, item: Any) -> None:
        self.name: str = item.name
        row = datatypes.BY_CONFIG[config_type(item)]
        self.datatype = row.wire
        self.itemsize = row.itemsize
        self.numpy = row.numpy
        self.dims = tuple(item.dims)
        self.optional: bool = item.optional
        self.reshape: tuple[int, ...] | None = tuple(item.reshape.shape) if item.HasField("reshape") else None
        self.variable = -1 in self.dims
        # Triton compares shapes only of inputs that can differ and that may not be ragged (1.11).
        self.checks_shape = self.variable and not item.allow_ragged_batch

    def fits(self, shape: tuple[int, ...]) -> bool:
        dims = self.dims
        if shape == dims:
            return True
        return len(shape) == len(dims) and all(want in (-1, got) for want, got in zip(dims, shape, strict=True))

    def reshaped(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        assert self.reshape is not None
        variable = iter([got for want, got in zip(self.dims, shape, strict=True) if want == -1])
        return tuple(next(variable) if dim == -1 else dim for dim in self.reshape)


class RequestValidator:
    """Checks requests against one configuration. Made anew when ``max_batch_size`` changes."""

    def __init__(self, config: Any) -> None:
        self._name: str = config.name
        self._max: int = config.max_batch_size
        self._inputs = {item.name: _Input(item) for item in config.input}
        self._outputs = frozenset(item.name for item in config.output)
        self._order = [item.name for item in config.input]
        self._required = sum(not item.optional for item in config.input)
        self._any_optional = self._required != len(self._inputs)
        self._any_reshape = any(item.reshape is not None for item in self._inputs.values())
        self._plain = () if self._any_optional or self._any_reshape else tuple(self._inputs.values())

    def check(self, request: InferenceRequest) -> Checked:
        """Accepts a request.

        Raises:
            InvalidRequest: with Triton's text.
        """
        form = request.form
        if form is not None and form.checked_by is self:
            return Checked(form.rows, form.shape_key, form.input_set, request.inputs)
        if request.outputs:
            self._check_outputs(request)
        checked = self._check_plain(request.inputs) or self._check_inputs(request)
        if form is not None and checked.inputs is request.inputs:  # nothing was looked at but what the form says
            form.rows, form.shape_key, form.input_set = checked[:3]
            form.checked_by = self
        return checked

    def _check_plain(self, inputs: list[Tensor]) -> Checked | None:
        """Accepts what most requests are: all inputs in the configuration's order, and nothing out of the ordinary."""
        plain, limit = self._plain, self._max
        if not plain or len(inputs) != len(plain):
            return None
        rows = 0
        key: list[tuple[int, ...]] = []
        for tensor, spec in zip(inputs, plain, strict=True):
            full, data = tensor.shape, tensor.data
            if tensor.name != spec.name or tensor.datatype != spec.datatype or data.shape != full:
                return None
            shape = full
            if limit > 0:
                if not full or not 0 < full[0] <= limit or (rows and full[0] != rows):
                    return None
                rows, shape = full[0], full[1:]
            if shape != spec.dims and not spec.fits(shape):
                return None
            if spec.itemsize and data.itemsize != spec.itemsize:
                return None
            if spec.checks_shape:
                key.append(shape)
        return Checked(rows or 1, tuple(key) if key else None, None, inputs)

    def _check_inputs(self, request: InferenceRequest) -> Checked:
        inputs = request.inputs
        self.check_count(request)
        rows = self._batch_size(request)
        if rows > self._max:
            raise InvalidRequest(
                f"{id_prefix(request)}inference request batch-size must be <= {self._max} for '{self._name}'"
            )
        batching = self._max > 0
        key: list[tuple[int, ...]] = []
        specs = self._inputs
        for tensor in inputs:
            spec = specs[tensor.name]
            shape = tensor.shape[1:] if batching else tensor.shape
            if tensor.datatype != spec.datatype:
                raise self._wrong_datatype(request, tensor, spec)
            if shape != spec.dims and not spec.fits(shape):
                raise self._wrong_shape(request, tensor, spec)
            data = tensor.data
            if not rows and batching:
                self._check_empty(request, tensor, spec)
            if data.shape != tensor.shape or (spec.itemsize and data.itemsize != spec.itemsize):
                self._check_bytes(request, tensor, spec)
            if spec.checks_shape:
                key.append(shape)
        if self._any_reshape:
            inputs = [self._reshape(tensor) for tensor in inputs]
        if len(key) > 1 and len(inputs) > 1:
            # the order in which a client sends its inputs must not matter
            shapes = {tensor.name: tensor.shape for tensor in request.inputs}
            start = 1 if batching else 0
            key = [shapes[name][start:] for name in self._order if name in shapes and specs[name].checks_shape]
        names = frozenset(tensor.name for tensor in inputs) if self._any_optional else None
        return Checked(rows or 1, tuple(key) if key else None, names, inputs)

    def check_count(self, request: InferenceRequest) -> None:
        """Whether all required inputs are there, and no more than there are.

        Raises:
            InvalidRequest: with Triton's text.
        """
        if not self._required <= len(request.inputs) <= len(self._inputs):
            raise self._wrong_number(request)

    def _check_outputs(self, request: InferenceRequest) -> None:
        seen = set()
        for output in request.outputs:
            if output.name not in self._outputs:
                raise InvalidRequest(f"unexpected inference output '{output.name}' for model '{self._name}'")
            if output.name in seen:
                raise InvalidRequest(f"output '{output.name}' already exists in request")
            seen.add(output.name)

    def _wrong_number(self, request: InferenceRequest) -> InvalidRequest:
        duplicate = _duplicate(request.inputs)
        if duplicate is not None:
            return InvalidRequest(f"input '{duplicate}' already exists in request")
        given = {tensor.name for tensor in request.inputs}
        missing = [f"'{name}'" for name in self._order if name not in given and not self._inputs[name].optional]
        got = ",".join(f"'{tensor.name}'" for tensor in request.inputs)
        # Triton removes the last character whether or not anything was written, so none missing reads "]".
        missing_text = f"[{','.join(missing)}]" if missing else "]"
        total, required = len(self._inputs), self._required
        expected = (
            f"expected number of inputs between {required} and {total} but"
            if self._any_optional
            else f"expected {total} inputs but"
        )
        return InvalidRequest(
            f"{id_prefix(request)}{expected} got {len(request.inputs)} inputs for model '{self._name}'. Got input(s) "
            f"[{got}], but missing required input(s) {missing_text}. Please provide all required input(s)."
        )

    def _batch_size(self, request: InferenceRequest) -> int:
        rows = 0
        specs, inputs = self._inputs, request.inputs
        if len(inputs) > 1 and len({tensor.name for tensor in inputs}) != len(inputs):
            raise InvalidRequest(f"input '{_duplicate(inputs)}' already exists in request")
        for tensor in inputs:
            if tensor.name not in specs:
                raise InvalidRequest(f"unexpected inference input '{tensor.name}' for model '{self._name}'")
            if self._max <= 0:
                continue
            if not tensor.shape:
                raise InvalidRequest(
                    f"{id_prefix(request)}input '{tensor.name}' has no shape but model requires batch dimension for "
                    f"'{self._name}'"
                )
            if rows == 0:
                rows = tensor.shape[0]
            elif tensor.shape[0] != rows:
                raise InvalidRequest(
                    f"{id_prefix(request)}input '{tensor.name}' batch size does not match other inputs for "
                    f"'{self._name}'"
                )
        return rows

    def _wrong_datatype(self, request: InferenceRequest, tensor: Tensor, spec: _Input) -> InvalidRequest:
        return InvalidRequest(
            f"{id_prefix(request)}inference input '{tensor.name}' data-type is '{tensor.datatype}', but model "
            f"'{self._name}' expects '{spec.datatype}'"
        )

    def _wrong_shape(self, request: InferenceRequest, tensor: Tensor, spec: _Input) -> InvalidRequest:
        batching = self._max > 0
        full = (-1, *spec.dims) if batching else spec.dims
        return InvalidRequest(
            f"{id_prefix(request)}unexpected shape for input '{tensor.name}' for model '{self._name}'. Expected "
            f"{shape_text(full)}, got {shape_text(tensor.shape)}. {_NOTE if batching else ''}"
        )

    def _check_empty(self, request: InferenceRequest, tensor: Tensor, spec: _Input) -> None:
        """A batch of no rows: Triton then leaves the batch dimension out of the size that it expects."""
        inner = math.prod(tensor.shape[1:])
        if not inner:
            return
        if spec.datatype == "BYTES":
            raise InvalidRequest(
                f"{id_prefix(request)}expected {inner} string elements for inference input '{tensor.name}' for "
                f"model '{self._name}', got 0"
            )
        raise InvalidRequest(
            f"{id_prefix(request)}input byte size mismatch for input '{tensor.name}' for model '{self._name}'. "
            f"Expected {inner * spec.itemsize}, got 0"
        )

    def _check_bytes(self, request: InferenceRequest, tensor: Tensor, spec: _Input) -> None:
        """The array has another shape than the tensor: right if it holds as many elements."""
        count = math.prod(tensor.shape)
        if spec.datatype == "BYTES":
            if tensor.data.size != count:
                raise InvalidRequest(
                    f"{id_prefix(request)}expected {count} string elements for inference input '{tensor.name}' for "
                    f"model '{self._name}', got {tensor.data.size}"
                )
        elif tensor.data.nbytes != count * spec.itemsize:
            raise InvalidRequest(
                f"{id_prefix(request)}input byte size mismatch for input '{tensor.name}' for model '{self._name}'. "
                f"Expected {count * spec.itemsize}, got {tensor.data.nbytes}"
            )
        data = tensor.data
        if data.size != count:  # raw bytes of the right length
            data = np.ascontiguousarray(data).reshape(-1).view(spec.numpy)
        tensor.data = data.reshape(tensor.shape)

    def _reshape(self, tensor: Tensor) -> Tensor:
        spec = self._inputs[tensor.name]
        if spec.reshape is None:
            return tensor
        batching = self._max > 0
        inner = tensor.shape[1:] if batching else tensor.shape
        shape = (*tensor.shape[:1], *spec.reshaped(inner)) if batching else spec.reshaped(inner)
        return Tensor(tensor.name, tensor.datatype, shape, tensor.data.reshape(shape))


def refusal(request: InferenceRequest, answer: RejectedItem) -> WorkbenchError:
    """The error of a request that its scheduler has not taken."""
    text = id_prefix(request) + answer.message if answer.id_prefix else answer.message
    if answer.kind == "invalid":
        return InvalidRequest(text)
    return QueueFull(text) if answer.kind == "queue_full" else NotReady(text)


class OutputReshaper:
    """Gives outputs with a ``reshape`` the shape that the configuration promises (``Output::Reshape``)."""

    def __init__(self, config: Any) -> None:
        self._batching = config.max_batch_size > 0
        self._dims = {
            item.name: (tuple(item.dims), tuple(item.reshape.shape))
            for item in config.output
            if item.HasField("reshape")
        }

    def __bool__(self) -> bool:
        return bool(self._dims)

    def apply(self, tensor: Tensor) -> Tensor:
        """The tensor in the shape that clients see; unchanged where its shape is not what ``reshape`` says."""
        entry = self._dims.get(tensor.name)
        if entry is None:
            return tensor
        dims, reshape = entry
        head, inner = (tensor.shape[:1], tensor.shape[1:]) if self._batching else ((), tensor.shape)
        if len(inner) != len(reshape):
            return tensor
        variable = iter([got for want, got in zip(reshape, inner, strict=True) if want == -1])
        shape = (*head, *(next(variable, 1) if dim == -1 else dim for dim in dims))
        if math.prod(shape) != tensor.data.size:
            return tensor
        return Tensor(tensor.name, tensor.datatype, shape, tensor.data.reshape(shape))


def shape_text(dims: Sequence[int]) -> str:
    """``[-1,16]``, as Triton writes shapes."""
    return "[" + ",".join(map(str, dims)) + "]"


def _duplicate(inputs: Sequence[Tensor]) -> str | None:
    seen: set[str] = set()
    for tensor in inputs:
        if tensor.name in seen:
            return tensor.name
        seen.add(tensor.name)
    return None
