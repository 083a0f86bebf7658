"""Whether a configuration fits what a model's file says of itself: Triton's texts. No framework is needed.

Source: onnxruntime_backend's ``ValidateInputs``, ``ValidateOutputs`` and ``CompareDimsSupported``.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from workbench.backends._child.fitting import datatype_problem, dims_problem, shape_text
from workbench.backends.base import TensorSpec
from workbench.errors import InternalError, InvalidRequest
from workbench.protocol import datatypes


def check_fit(
    config: Any,
    inputs: Sequence[TensorSpec],
    overridable: Sequence[TensorSpec],
    outputs: Sequence[TensorSpec],
    *,
    inferred: bool = True,
    shapeless: Collection[str] = (),
) -> None:
    """Compares the configuration with the model file, whose dims have -1 where they are variable.

    ``overridable`` are inputs that need not be given (ONNX: initializers). Where outputs are not ``inferred``, they are
    as the file has them: what it leaves open is found out when it is loaded. Of those in ``shapeless`` it has nothing.

    Raises:
        InvalidRequest: they do not fit (texts of 10.43 and of ``CompareDimsSupported``).
    """
    sequence = config.sequence_batching
    made = [item.name for item in sequence.control_input] + [item.input_name for item in sequence.state]
    expected = len(config.input) + len(made) + len(config.batch_input)
    names = {spec.name for spec in overridable}
    required = sum(item.name not in names for item in config.input) + expected - len(config.input)
    if len(inputs) != required:
        raise InvalidRequest(
            f"unable to load model '{config.name}', configuration expects {required} inputs, "
            f"model provides {len(inputs)}"
        )
    by_name = {spec.name: spec for spec in (*overridable, *inputs)}
    for item in sequence.control_input:
        if item.name not in by_name:
            raise InvalidRequest(
                f"configuration specified sequence control '{item.name}', but model does not provide that input"
            )
    for state in sequence.state:
        find_spec(state.input_name, by_name, "input")
    for item in config.input:
        if item.optional and config.max_batch_size != 0:
            raise InvalidRequest(
                f"unable to load model '{config.name}', optional input '{item.name}' is not supported for models that "
                "support batching"
            )
        spec = find_spec(item.name, by_name, "input")
        check_datatype(config, item, spec, "input")
        if item.allow_ragged_batch:
            check_ragged(config, item, spec)
        else:
            check_dims(config, item, spec, exact=False)
    by_name = {spec.name: spec for spec in outputs}
    for state in sequence.state:
        find_spec(state.output_name, by_name, "output")
    scattered = {name for item in config.batch_output for name in item.target_name}
    for item in config.output:
        spec = find_spec(item.name, by_name, "output")
        check_datatype(config, item, spec, "output")
        # Triton compares no shapes of what is scattered: the batch's output may be flat
        if item.name not in scattered and item.name not in shapeless:
            check_dims(config, item, spec, exact=inferred)


def find_spec(name: str, by_name: Mapping[str, TensorSpec], kind: str) -> TensorSpec:
    """The tensor of a name; ``kind`` is ``input`` or ``output``.

    Raises:
        InvalidRequest: the model has none.
    """
    spec = by_name.get(name)
    if spec is None:
        raise InvalidRequest(f"unexpected inference {kind} '{name}', allowed {kind}s are: {', '.join(sorted(by_name))}")
    return spec


def config_datatype(item: Any) -> str:
    """The ``TYPE_...`` name of a configured tensor."""
    field = item.DESCRIPTOR.fields_by_name["data_type"]
    return str(field.enum_type.values_by_number[item.data_type].name)


def check_datatype(config: Any, item: Any, spec: TensorSpec, kind: str) -> None:
    """Whether the configured data type is the model's.

    Raises:
        WorkbenchError: it is not.
    """
    wanted = config_datatype(item)
    row = datatypes.BY_CONFIG.get(wanted)
    if row is None:
        raise InternalError(f"unsupported datatype {wanted} for {kind} '{item.name}' for model '{config.name}'")
    problem = datatype_problem(config.name, kind, item.name, wanted, spec.datatype)
    if problem:
        raise InvalidRequest(problem)


def check_ragged(config: Any, item: Any, spec: TensorSpec) -> None:
    """Whether the model takes a ragged input as it is configured.

    Raises:
        InvalidRequest: it does not.
    """
    if item.optional:
        raise InvalidRequest(
            f"unable to load model '{config.name}', configuration expects model provides input with shape [-1] for "
            f"ragged input '{item.name}', which is not supported for optional input"
        )
    if spec.dims != (-1,):
        raise InvalidRequest(
            f"unable to load model '{config.name}', configuration expects model provides input with shape [-1]  for "
            f"ragged input '{item.name}', model provides {shape_text(spec.dims)}"
        )


def check_dims(config: Any, item: Any, spec: TensorSpec, *, exact: bool) -> None:
    """Whether the configured dims are the model's; unless ``exact``, a variable dimension of the model fits all.

    Raises:
        InvalidRequest: they are not.
    """
    dims = tuple(item.reshape.shape) if item.HasField("reshape") else tuple(item.dims)
    batching = config.max_batch_size > 0
    problem = dims_problem(config.name, item.name, dims, spec.dims, batching=batching, exact=exact)
    if problem:
        raise InvalidRequest(problem)
