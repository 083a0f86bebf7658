"""A model as OpenVINO reads it: what it says of itself, and how a configuration shapes it.

Sources: openvino_backend's ``AutoCompleteConfig``, ``ValidateInputs``, ``ValidateOutputs`` and
``CompareDimsSupported``; the texts are its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import openvino as ov
from numpy.typing import NDArray
from openvino import layout_helpers
from openvino.preprocess import PrePostProcessor

from workbench.backends._child.fitting import shape_text
from workbench.backends.base import TensorSpec
from workbench.backends.fit import config_datatype
from workbench.backends.openvino_config import ELEMENTS, PRECISION, Settings
from workbench.errors import BackendError, InternalError, InvalidRequest

VERSION = str(ov.__version__).partition("-")[0]

_CONFIG_TYPES = {("TYPE_" + wire): getattr(ov.Type, name) for name, wire in ELEMENTS.items()}


@contextmanager
def openvino_errors(doing: str, *, where: str = "", hint: str = "") -> Iterator[None]:
    """What OpenVINO raises becomes ``openvino error in DOING : ...`` (RETURN_IF_OPENVINO_ERROR).

    Raises:
        InternalError: instead of any RuntimeError.
    """
    try:
        yield
    except RuntimeError as error:
        raise InternalError(f"openvino error in {doing} : {error}", where=where, hint=hint) from error


def read_model(core: ov.Core, path: Path) -> ov.Model:
    """A model file: IR, ONNX, TFLite, PaddlePaddle, or the directory of a SavedModel.

    Raises:
        InternalError: it is none.
    """
    with openvino_errors("reading model", where=str(path)):
        return core.read_model(path)


def tensor_specs(ports: Sequence[Any], kind: str) -> tuple[TensorSpec, ...]:
    """Inputs or outputs (``kind``) as the engine describes tensors, -1 for every dimension that is not fixed.

    Raises:
        InternalError: one has no name, or no known number of dimensions.
    """
    found = []
    for port in ports:
        with openvino_errors(f"getting {kind} infos", hint=f"save the model with a name for each {kind}"):
            name = port.get_any_name()
        shape = port.get_partial_shape()
        if shape.rank.is_dynamic:
            raise InternalError(
                f"openvino error in retrieving original shapes from {kind} {name} : the number of dimensions is unknown"
            )
        found.append(TensorSpec(name, ELEMENTS.get(port.get_element_type().get_type_name(), ""), signed_shape(shape)))
    return tuple(found)


def signed_shape(shape: ov.PartialShape) -> tuple[int, ...]:
    """A shape with -1 for each dimension that is not fixed."""
    return tuple(dim.get_length() if dim.is_static else -1 for dim in shape)


def complete(
    config: Any, model: ov.Model, default_max_batch_size: int, tell: Callable[[Literal["info", "warning"], str], None]
) -> None:
    """Fills a configuration in place by the rules of Triton's backend.

    A model batches where the layout of each input and output has a batch axis, which few files say. Inputs and outputs
    are filled where there are none, with every dimension -1 as soon as one is not fixed: Triton's validation then
    refuses those that are, so that a model with a variable shape takes a written configuration.

    ``tell`` is given a level and a line for the log. That no layout has a batch axis, of which Triton warns always, is
    a warning only where something is completed: a configuration that gives its inputs and outputs says it all.
    """
    ports = (*model.inputs, *model.outputs)
    if all(layout_helpers.has_batch(layout_helpers.get_layout(port)) for port in ports):
        if config.max_batch_size == 0:
            config.max_batch_size = max(default_max_batch_size, 1)
            tell(
                "warning",
                f"autofilled max_batch_size to {config.max_batch_size} for model '{config.name}' since batching is "
                "supported but no max_batch_size is specified in model configuration. Must specify max_batch_size to "
                "utilize autofill with a larger max batch size",
            )
        if config.max_batch_size > 1 and config.WhichOneof("scheduling_choice") is None:
            config.dynamic_batching.SetInParent()
    elif config.max_batch_size != 0 and config.input and config.output:
        tell(
            "info",
            f"the file of model '{config.name}' says of no axis that it is the batch: it is the first, as the "
            "configuration has it (real Triton warns that the layout does not support batching, and does the same)",
        )
    elif config.max_batch_size != 0:
        tell(
            "warning",
            f"model layout for model {config.name} does not support batching while non-zero max_batch_size is "
            "specified",
        )
    for items, found, kind in ((config.input, model.inputs, "input"), (config.output, model.outputs, "output")):
        if items:
            continue
        for spec in tensor_specs(found, kind):
            item = items.add()
            item.name = spec.name
            types = item.DESCRIPTOR.fields_by_name["data_type"].enum_type.values_by_name
            item.data_type = types[f"TYPE_{spec.datatype or 'INVALID'}"].number
            dims = spec.dims if -1 not in spec.dims else [-1] * len(spec.dims)
            item.dims.extend(dims[1:] if config.max_batch_size > 0 else dims)


def fit(config: Any, model: ov.Model, settings: Settings) -> ov.Model:
    """The model in the shape and with the data types of the configuration, for its batch size.

    Data types are converted where they differ. With ``max_batch_size`` the batch is that many rows, always, unless
    ``settings.dynamic_batch`` leaves it open.

    Raises:
        WorkbenchError: they do not fit (Triton's texts).
    """
    model = _fit_inputs(config, model, settings)
    return _fit_outputs(config, model)


def _fit_inputs(config: Any, model: ov.Model, settings: Settings) -> ov.Model:
    ports = {spec.name: port for spec, port in zip(tensor_specs(model.inputs, "input"), model.inputs, strict=True)}
    if len(ports) != len(config.input):
        raise InvalidRequest(
            f"unable to load model '{config.name}', configuration expects {len(config.input)} inputs, model provides "
            f"{len(ports)}"
        )
    batching = config.max_batch_size > 0
    process = PrePostProcessor(model)
    for item in config.input:
        port, element = _find(item, ports, "input"), _element(config, item, "input")
        tensor = process.input(item.name).tensor()
        with openvino_errors(f"setting precision for {item.name}"):
            tensor.set_element_type(element)
        shape, dims = port.get_partial_shape(), _dims(item)
        if settings.reshape_io:
            with openvino_errors(f"setting shape for {item.name}"):
                tensor.set_shape(ov.PartialShape([*([shape[0]] if batching else []), *map(ov.Dimension, dims)]))
        else:
            _compare(config, item.name, shape, dims, exact=False)
        if batching:
            with openvino_errors(f"setting layout for {item.name}"):
                tensor.set_layout(ov.Layout("N..."))
    with openvino_errors("apply model input preprocessing"):
        model = process.build()
    if batching:
        batch = ov.Dimension.dynamic() if settings.dynamic_batch else ov.Dimension(config.max_batch_size)
        with openvino_errors("setting max batch size", hint="a model whose batch is fixed takes max_batch_size: 0"):
            ov.set_batch(model, batch)
    return model


def _fit_outputs(config: Any, model: ov.Model) -> ov.Model:
    ports = {spec.name: port for spec, port in zip(tensor_specs(model.outputs, "output"), model.outputs, strict=True)}
    process = PrePostProcessor(model)
    for item in config.output:
        port, element = _find(item, ports, "output"), _element(config, item, "output")
        with openvino_errors(f"setting precision for {item.name}"):
            process.output(item.name).tensor().set_element_type(element)
        _compare(config, item.name, port.get_partial_shape(), _dims(item), exact=True)
    with openvino_errors("apply model output preprocessing"):
        return process.build()


def _find(item: Any, ports: dict[str, Any], kind: str) -> Any:
    if item.name not in ports:
        raise InvalidRequest(
            f"unexpected inference {kind} '{item.name}', allowed {kind}s are: {', '.join(sorted(ports))}"
        )
    return ports[item.name]


def _element(config: Any, item: Any, kind: str) -> ov.Type:
    wanted = config_datatype(item)
    if wanted not in _CONFIG_TYPES:
        raise InternalError(f"unsupported datatype {wanted} for {kind} '{item.name}' for model '{config.name}'")
    return _CONFIG_TYPES[wanted]


def _dims(item: Any) -> tuple[int, ...]:
    return tuple(item.reshape.shape if item.HasField("reshape") else item.dims)


def _compare(config: Any, name: str, shape: ov.PartialShape, dims: tuple[int, ...], *, exact: bool) -> None:
    """Whether the dims of the configuration fit a shape of the model; ``exact`` compares variable ones, too."""
    head, batching = f"model '{config.name}', tensor '{name}': ", config.max_batch_size > 0
    if batching and not len(shape):
        raise InvalidRequest(f"{head}for the model to support batching the shape should have at least 1 dimension")
    full = (config.max_batch_size, *dims) if batching else dims
    fits = len(full) == len(shape)
    for index, (own, wanted) in enumerate(zip(shape, full, strict=False)):
        if exact or not batching or (index and wanted != -1):
            fits = fits and _matches(own, wanted)
    if fits:
        return
    text = (
        f"{head}the model expects {len(shape)} dimensions (shape {shape_text(signed_shape(shape))}) but the model "
        f"configuration specifies {len(full)} dimensions ("
    )
    if batching:
        text += (
            "an initial batch dimension because max_batch_size > 0 followed by the explicit tensor shape, making "
            "complete "
        )
    hint = ""
    if -1 in dims and -1 in signed_shape(shape):
        hint = (
            "write dims as the model has them: where the configuration gives none, all of them are completed as -1 "
            "as soon as one is variable, in real Triton, too"
        )
    raise InvalidRequest(f"{text}shape {shape_text(full)})", hint=hint)


def _matches(own: ov.Dimension, wanted: int) -> bool:
    """``doesMatch``: a dimension with an upper bound excludes its bounds, and -1 with them."""
    if own.is_static:
        return bool(own.get_length() == wanted)
    most = own.get_max_length()
    return bool(most == -1 or own.get_min_length() < wanted < most)


def compile_model(core: ov.Core, model: ov.Model, device: str, properties: Mapping[str, Any]) -> ov.CompiledModel:
    """A model, ready to run on a device.

    Raises:
        InternalError: OpenVINO cannot (Triton's text); the hint names the devices there are.
    """
    with openvino_errors("loading model", hint=f"devices here: {', '.join(core.available_devices)}"):
        return core.compile_model(model, device, dict(properties))


def describe_compiled(compiled: ov.CompiledModel, device: str) -> dict[str, str]:
    """What a compiled model runs on and how: what it says itself, not what was asked of it."""
    found = {"engine": f"OpenVINO {VERSION}", "device": device}
    for about, key in (
        ("precision", PRECISION),
        ("streams", "NUM_STREAMS"),
        ("threads", "INFERENCE_NUM_THREADS"),
        ("performance hint", "PERFORMANCE_HINT"),
    ):
        try:
            value = compiled.get_property(key)
        except RuntimeError:  # not every device has every property
            continue
        found[about] = value.get_type_name() if isinstance(value, ov.Type) else str(value)
    return found


def give_tensor(request: ov.InferRequest, name: str, array: NDArray[Any]) -> NDArray[Any]:
    """Hands an input over and gives the array whose memory OpenVINO reads: to be kept until the inference is over.

    That is ``array`` itself, without a copy, where it may be written to: OpenVINO shares no other.

    Raises:
        InternalError: shape or type do not fit.
    """
    if not (array.flags.c_contiguous and array.flags.writeable):
        array = array.copy()
    with openvino_errors("setting tensor data"):
        request.set_tensor(name, ov.Tensor(array, shared_memory=True))
    return array


def check_all_given(model: str, inputs: Iterable[str], given: Mapping[str, Any]) -> None:
    """Refuses a batch that lacks an input: the request would read the memory that the last one left there.

    Raises:
        BackendError: an input (an optional one, say) is not there.
    """
    missing = [name for name in inputs if name not in given]
    if missing:
        raise BackendError(
            f"input '{missing[0]}' of model '{model}' is missing: OpenVINO has no optional inputs",
            hint=f"send it, and leave out optional: true of '{missing[0]}' in config.pbtxt",
        )


def run_request(request: ov.InferRequest) -> None:
    """One inference on the calling thread; the GIL is released meanwhile.

    Triton's backend starts it and waits, which hands each batch to a thread of OpenVINO and back: some 2 % of a batch
    of 10 ms.

    Raises:
        InternalError: it failed.
    """
    with openvino_errors("running inference - wait"):
        request.infer(None, share_outputs=True)
