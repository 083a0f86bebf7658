"""A TensorFlow model's inputs and outputs: whether a configuration fits them, and how they complete one.

Sources: tensorflow_backend's ``ValidateTRITONTFModel`` (of GraphDef and of SavedModel) and ``AutoCompleteHelper``; the
texts are its own. No framework is needed here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from workbench.backends.base import TensorSpec
from workbench.backends.fit import check_datatype, check_dims, check_ragged, config_datatype, find_spec
from workbench.errors import InternalError, InvalidRequest
from workbench.protocol import datatypes
from workbench.scheduling.sequence_settings import ControlTensor, sequence_settings_from_config


@dataclass(frozen=True, slots=True)
class Signature:
    """What a model takes and gives, by the names that a configuration uses.

    Dims have -1 where they are variable and are empty where they are not known. Of a GraphDef only names are known:
    its inputs are all placeholders, its outputs all other nodes, and ``exact`` is False.
    """

    inputs: Mapping[str, TensorSpec]
    outputs: Mapping[str, TensorSpec]
    exact: bool = True


def check_signature(config: Any, signature: Signature) -> None:
    """Compares the configuration with the model.

    Raises:
        WorkbenchError: they do not fit.
    """
    if not signature.exact:
        _check_names(config, signature)
        return
    expected = len(config.input) + len(config.batch_input)
    for control in _controls(config):
        expected += 1
        _check_control(config, control, signature)
    for item in config.input:
        find_spec(item.name, signature.inputs, "input")
    if len(signature.inputs) != expected:
        raise InvalidRequest(
            f"unable to load model '{config.name}', configuration expects {expected} inputs, model provides "
            f"{len(signature.inputs)}"
        )
    for item in config.input:
        spec = signature.inputs[item.name]
        if spec.dims and item.allow_ragged_batch:
            check_ragged(config, item, spec)
        elif spec.dims:
            check_dims(config, item, spec, exact=False)
        check_datatype(config, item, spec, "input")
    scattered = {name for item in config.batch_output for name in item.target_name}
    for item in config.output:
        spec = find_spec(item.name, signature.outputs, "output")
        if spec.dims and item.name not in scattered:
            check_dims(config, item, spec, exact=True)
        check_datatype(config, item, spec, "output")


def _check_names(config: Any, signature: Signature) -> None:
    if len(signature.inputs) < len(config.input):
        raise InvalidRequest(
            f"unable to load model '{config.name}', configuration expects {len(config.input)} inputs, model provides "
            f"at most {len(signature.inputs)}"
        )
    for control in _controls(config):
        _control_spec(control, signature)
    for item in config.input:
        find_spec(item.name, signature.inputs, "input")
    for item in config.output:
        find_spec(item.name, signature.outputs, "output")


def _controls(config: Any) -> tuple[ControlTensor, ...]:
    return sequence_settings_from_config(config).controls if config.HasField("sequence_batching") else ()


def _control_spec(control: ControlTensor, signature: Signature) -> TensorSpec:
    spec = signature.inputs.get(control.name)
    if spec is None:
        raise InternalError(
            f"configuration specified sequence control '{control.name}', but model does not provide that input"
        )
    return spec


def _check_control(config: Any, control: ControlTensor, signature: Signature) -> None:
    """A control is one element a row."""
    spec = _control_spec(control, signature)
    head = f"unable to load model '{config.name}', sequence control '{control.name}': "
    item = type(config)().input.add()
    item.name = control.name
    item.dims.append(1)
    try:
        check_dims(config, item, spec, exact=True)
    except InvalidRequest as error:
        raise InvalidRequest(head + error.message) from error
    if spec.datatype != control.datatype:
        raise InvalidRequest(
            f"{head}the model expects TYPE_{spec.datatype} but the model configuration specifies data-type "
            f"{datatypes.BY_WIRE[control.datatype].config}"
        )


def complete_from_signature(
    config: Any, signature: Signature, default_max_batch_size: int, warn: Callable[[str], None]
) -> None:
    """Fills batching, inputs and outputs of a configuration in place from a SavedModel's signature.

    A model batches where every first dimension is variable, unless the dims that the configuration gives have the batch
    dimension among them. All inputs are filled in, outputs only where there are none.

    Raises:
        WorkbenchError: they contradict each other, or the signature does not say enough.
    """
    batches = _fix_batching(config, signature, default_max_batch_size, warn)
    missing = dict(signature.inputs)
    for item in config.input:
        spec = missing.pop(item.name, None)
        if spec is not None:
            _fill(config, item, spec, batches)
    made = [name for item in config.batch_input for name in item.target_name]
    for name in (*made, *(item.name for item in config.sequence_batching.control_input)):
        missing.pop(name, None)
    for spec in missing.values():
        _fill(config, config.input.add(), spec, batches)
    if config.output:
        for item in config.output:
            spec = signature.outputs.get(item.name)
            if spec is not None and (spec.dims or item.dims):
                _fill(config, item, spec, batches)
        return
    for spec in signature.outputs.values():
        if not spec.dims:
            raise InvalidRequest(
                f"Unable to autofill for '{config.name}': the rank of model tensor '{spec.name}' is 0 which is not "
                "supported"
            )
        _fill(config, config.output.add(), spec, batches)


def _fix_batching(config: Any, signature: Signature, default: int, warn: Callable[[str], None]) -> bool:
    """Sets ``max_batch_size`` and the batcher; gives whether the dims that are filled in lack the batch dimension."""
    specs = (*signature.inputs.values(), *signature.outputs.values())
    possible = all(not spec.dims or spec.dims[0] == -1 for spec in specs)
    if not possible and config.max_batch_size > 0:
        raise InternalError(
            f"unable to autofill for '{config.name}', configuration specified max-batch {config.max_batch_size} but "
            "model signature does not support batching"
        )
    batches = possible and default > 0 and _batch_hint(config, signature)
    if config.max_batch_size == 0 and batches:
        config.max_batch_size = default
        warn(
            f"autofilled max_batch_size to {default} for model '{config.name}' since batching is supported but no "
            "max_batch_size is specified in model configuration. Must specify max_batch_size to utilize autofill with "
            "a larger max batch size"
        )
    if config.max_batch_size > 1 and config.WhichOneof("scheduling_choice") is None:
        config.dynamic_batching.SetInParent()
    return batches


def _batch_hint(config: Any, signature: Signature) -> bool:
    """Whether the dims of the configuration speak for a batch dimension in front of them."""
    if not config.input and not config.output:
        return True
    hint, sure = False, ""
    for items, specs in ((config.input, signature.inputs), (config.output, signature.outputs)):
        for item in items:
            if getattr(item, "allow_ragged_batch", False):
                return True
            spec = specs.get(item.name)
            if spec is None or not spec.dims:
                continue
            dims = item.reshape.shape if item.HasField("reshape") else item.dims
            if not dims:
                hint = hint or not sure
                continue
            says = "batch" if len(dims) == len(spec.dims) - 1 else "none"
            if sure not in ("", says):
                raise InternalError(
                    f"unable to autofill for '{config.name}', model tensor configurations are contradicting each other "
                    "in terms of whether batching is supported"
                )
            sure, hint = says, says == "batch"
    return hint


def _fill(config: Any, item: Any, spec: TensorSpec, batches: bool) -> None:
    item.name = spec.name
    if config_datatype(item) == "TYPE_INVALID":
        types = item.DESCRIPTOR.fields_by_name["data_type"].enum_type.values_by_name
        item.data_type = types[datatypes.BY_WIRE[spec.datatype].config].number
    if item.dims:
        return
    if not spec.dims:
        raise InvalidRequest(
            f"Unable to autofill for '{config.name}': the rank of model tensor '{spec.name}' is 0 and dimensions are "
            "not defined"
        )
    item.dims.extend(spec.dims[1:] if batches else spec.dims)
    if not item.dims:
        item.dims.append(1)
        item.reshape.SetInParent()
