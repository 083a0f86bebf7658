"""Completing inputs, outputs and batching of a configuration from what a model file says of itself (section 9)."""

from __future__ import annotations

from typing import Any

from workbench.backends.base import ModelDescription, TensorSpec
from workbench.config import DEFAULT_MAX_BATCH_SIZE
from workbench.errors import InvalidRequest
from workbench.protocol import datatypes


def complete_from_description(
    config: Any, described: ModelDescription, default_max_batch_size: int = DEFAULT_MAX_BATCH_SIZE
) -> None:
    """Fills inputs, outputs, max_batch_size and the batcher in place from what the file says (9.4, ONNX Runtime).

    Nothing happens when both inputs and outputs are given.

    Raises:
        InvalidRequest: max_batch_size is set, but the file cannot batch.
    """
    has_inputs = bool(config.input) or bool(config.batch_input)
    if has_inputs and config.output:
        return
    if described.batching:
        if config.max_batch_size == 0:
            config.max_batch_size = max(default_max_batch_size, 0)
        if config.max_batch_size > 1 and config.WhichOneof("scheduling_choice") is None:
            config.dynamic_batching.SetInParent()
    elif config.max_batch_size != 0:
        raise InvalidRequest(
            f"autofill failed for model '{config.name}': model does not support batching while non-zero "
            "max_batch_size is specified"
        )
    batching = config.max_batch_size > 0
    if not has_inputs:
        for spec in described.inputs:
            _fill(config.input.add(), spec, batching)
    if not config.output:
        for spec in described.outputs:
            _fill(config.output.add(), spec, batching)


def _fill(item: Any, spec: TensorSpec, batching: bool) -> None:
    item.name = spec.name
    row = datatypes.BY_WIRE.get(spec.datatype)
    item.data_type = (
        item.DESCRIPTOR.fields_by_name["data_type"]
        .enum_type.values_by_name[row.config if row else "TYPE_INVALID"]
        .number
    )
    dims = spec.dims[1:] if batching else spec.dims
    if dims:
        item.dims.extend(dims)
        return
    item.dims.append(1)
    if batching:
        item.reshape.SetInParent()
