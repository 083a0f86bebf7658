"""Auto-completion: what Triton fills into a configuration from what a model file declares, as a pure function.

The backend reads the file and describes the model with ``ModelTensor``; this decides. Source: ``onnxruntime.cc``
(AutoCompleteConfig and the validation of inputs and outputs), core ``model_config_utils.cc``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from workbench.config.normalization import DEFAULT_MAX_BATCH_SIZE
from workbench.config.schema import Message, pb
from workbench.errors import ConfigError


@dataclass(frozen=True, slots=True)
class ModelTensor:
    """An input or output as the model file declares it: data type (``TYPE_FP32``), whole shape, -1 for variable."""

    name: str
    data_type: str
    shape: tuple[int, ...]
    optional: bool = False


def can_batch(inputs: Sequence[ModelTensor], outputs: Sequence[ModelTensor]) -> bool:
    """Whether every input and output begins with a variable dimension."""
    tensors = [*inputs, *outputs]
    return bool(tensors) and all(tensor.shape[:1] == (-1,) for tensor in tensors)


def complete_io(
    message: Message,
    inputs: Sequence[ModelTensor],
    outputs: Sequence[ModelTensor],
    *,
    batching: bool | None = None,
    default_max_batch_size: int = DEFAULT_MAX_BATCH_SIZE,
) -> Message:
    """A copy with inputs, outputs, max_batch_size and dynamic batching filled in as the ONNX Runtime backend does.

    Nothing is filled in where both inputs and outputs are given.

    Args:
        message: the configuration after ``complete_backend``.
        inputs: what the model file declares.
        outputs: likewise.
        batching: whether the model can batch; from the shapes where not given.
        default_max_batch_size: the backend-config setting of that name.

    Raises:
        ConfigError: the configuration batches and the model cannot.
    """
    out = pb().ModelConfig()
    out.CopyFrom(message)
    if out.input and out.output:
        return out
    batches = can_batch(inputs, outputs) if batching is None else batching
    if batches:
        if out.max_batch_size == 0:
            out.max_batch_size = max(default_max_batch_size, 0)
    elif out.max_batch_size > 0:
        raise ConfigError(
            f"autofill failed for model '{out.name}': model does not support batching while non-zero max_batch_size is "
            "specified",
            hint="set max_batch_size to 0, or export the model with a variable first dimension",
        )
    if out.max_batch_size > 1 and out.WhichOneof("scheduling_choice") is None:
        out.dynamic_batching.SetInParent()
    if not out.input:
        for tensor in inputs:
            _add(out.input.add(optional=tensor.optional), tensor, out.max_batch_size)
    if not out.output:
        for tensor in outputs:
            _add(out.output.add(), tensor, out.max_batch_size)
    return out


def _add(target: Any, tensor: ModelTensor, max_batch_size: int) -> None:
    target.name = tensor.name
    target.data_type = pb().DataType.Value(tensor.data_type)
    dims = tensor.shape[1:] if max_batch_size > 0 else tensor.shape
    if dims:
        target.dims.extend(dims)
    else:  # a scalar: [1] outside, [] inside
        target.dims.append(1)
        target.reshape.SetInParent()


def check_io(message: Message, inputs: Sequence[ModelTensor], outputs: Sequence[ModelTensor]) -> None:
    """Compares a completed configuration with the model file.

    Raises:
        ConfigError: with Triton's text for a wrong count, name, data type or shape.
    """
    required = [tensor for tensor in inputs if not tensor.optional]
    given = len(message.input)
    if not len(required) <= given <= len(inputs):
        expected = f"configuration expects {given} inputs, model provides {len(inputs)}"
        raise ConfigError(f"unable to load model '{message.name}', {expected}", where="input")
    for kind, declared, configured in (("input", inputs, message.input), ("output", outputs, message.output)):
        known = {tensor.name: tensor for tensor in declared}
        for index, tensor in enumerate(configured):
            _check(message, kind, tensor, known, f"{kind}[{index}]")


def _check(message: Message, kind: str, tensor: Any, known: dict[str, ModelTensor], where: str) -> None:
    found = known.get(tensor.name)
    if found is None:
        allowed = ", ".join(sorted(known))
        text = f"unexpected inference {kind} '{tensor.name}', allowed {kind}s are: {allowed}"
        raise ConfigError(text, where=where)
    configured = pb().DataType.Name(tensor.data_type)
    if configured != found.data_type:
        text = (
            f"unable to load model '{message.name}', configuration expects datatype {configured} for {kind} "
            f"'{tensor.name}', model provides {found.data_type}"
        )
        raise ConfigError(text, where=f"{where}.data_type")
    text = compare_dims(message, tensor, found.shape)
    if text:
        raise ConfigError(text, where=f"{where}.dims")


def compare_dims(
    message: Message, tensor: Any, shape: Sequence[int], *, exact: Literal["model", "both"] = "model"
) -> str:
    """Triton's CompareDimsSupported: the text where a configured shape does not fit the model's, else "".

    Args:
        message: the configuration (its name and max_batch_size).
        tensor: an entry of its ``input`` or ``output``.
        shape: the model's whole shape.
        exact: ``model``: a variable dimension of the model fits anything, one of the configuration fits nothing but
            that; ``both``: a variable dimension on either side fits.
    """
    dims = list(tensor.reshape.shape) if tensor.HasField("reshape") else list(tensor.dims)
    whole = [-1, *dims] if message.max_batch_size > 0 else dims
    fits = len(whole) == len(shape) and all(
        a == -1 or a == b or (exact == "both" and b == -1) for a, b in zip(shape, whole, strict=True)
    )
    if message.max_batch_size > 0 and not (len(shape) and shape[0] == -1):
        need = "for the model to support batching the shape should have at least 1 dimension and the first dimension"
        intro = f"model '{message.name}', tensor '{tensor.name}': {need} must be -1"
        return f"{intro}; but shape expected by the model is {_shape(shape)}"
    if fits:
        return ""
    intro = f"model '{message.name}', tensor '{tensor.name}': the model expects {len(shape)} dimensions (shape"
    if message.max_batch_size > 0:
        return (
            f"{intro} {_shape(shape)}) but the model configuration specifies {len(whole)} dimensions (an initial batch "
            "dimension because max_batch_size > 0 followed by the explicit tensor shape, making complete shape "
            f"{_shape(whole)})"
        )
    return (
        f"{intro} {_shape(shape)}) but the model configuration specifies {len(dims)} dimensions (shape {_shape(dims)})"
    )


def _shape(dims: Sequence[int]) -> str:
    return "[" + ",".join(str(dim) for dim in dims) + "]"
