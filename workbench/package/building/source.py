"""What is built from: a model of a repository, a model file, or a torch module."""

from __future__ import annotations

import copy
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from workbench.backends.onnx_file import read_onnx
from workbench.backends.onnxruntime import with_inferred_outputs
from workbench.config import ConfigDocument, complete_backend, normalize, to_json
from workbench.errors import InvalidRequest, NotFound, Unsupported, WorkbenchError
from workbench.package.made import Wish
from workbench.package.onnx_model import file_signature, from_onnx
from workbench.package.onnx_model import run as run_onnx
from workbench.package.tensors import Feed, Signature, Tensor, as_feeds
from workbench.protocol.datatypes import BY_CONFIG, BY_WIRE
from workbench.repository.example_inputs import FILE_NAME, inputs_of, load_example_inputs
from workbench.repository.models import find_model, find_versions

Form = Literal["onnx", "torchscript", "exported", "module"]

_FORMS: dict[str, Form] = {".onnx": "onnx", ".pt": "torchscript", ".pt2": "exported"}
_FILES = {"onnxruntime": "model.onnx", "pytorch": "model.pt"}
_MADE = dict.fromkeys(
    ("openvino", "tensorrt"),
    "it is such a form itself: build from what it was made of (1/build.json says of what, where workbench built it)",
)
VERIFY_COUNT = 4
"""Requests on which a result is held against its source."""
VERIFY_ROWS = 4
USUAL_BATCH_SIZE = 32
"""``max_batch_size`` of a file or module that batches, unless it is given."""


@dataclass(frozen=True, slots=True)
class Source:
    """A model to build from.

    ``thing`` is the ONNX file, or a ``TorchThing``; ``files`` are what it was read from. ``signature`` is what its
    framework sees (``reshape`` applied). ``requests(count)`` gives example requests with the batch axis. ``title`` is
    how texts call it. ``directory`` and ``document`` are the model directory and its configuration, where there is one.
    ``calibration`` are requests for int8, where other ones than the examples are given. ``drawn``: the requests are
    random numbers, for there are no examples. ``exemplified`` is the signature with no more sizes open than differ
    among the examples, where the file says that others are open, too.
    """

    name: str
    form: Form
    thing: Any
    signature: Signature
    requests: Callable[[int], Iterator[Feed]]
    max_batch_size: int
    title: str
    files: tuple[Path, ...] = ()
    directory: Path | None = None
    document: ConfigDocument | None = None
    calibration: Sequence[Feed] | None = None
    drawn: bool = False
    exemplified: Signature | None = None

    def verify_requests(self) -> list[Feed]:
        """The requests on which results are held against it: some, and where rows batch, one row alone."""
        found = list(self.requests(VERIFY_COUNT))
        if self.signature.batching and len(next(iter(found[0].values()))) > 1:
            found.append({name: array[:1] for name, array in found[0].items()})
        return found

    def calibration_requests(self, count: int) -> Iterator[Feed]:
        """The requests that int8 is calibrated on: those given for it, else examples."""
        return self.requests(count) if self.calibration is None else iter(self.calibration)

    def apart(self) -> Source:
        """The same to be run: what a module of torch changes of itself then is not in what is made of this one."""
        if self.form == "onnx":
            return self
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # torch's of its own parts
                return replace(self, thing=replace(self.thing, call=copy.deepcopy(self.thing.call)))
        except Exception:  # it holds what cannot be copied (a lock, code of C++): few of those have a state
            return self

    def run(self, feed: Feed) -> Feed:
        """What the source itself answers."""
        if self.form == "onnx":
            return run_onnx(self.thing, self.signature, feed)
        answer: Feed = torch_forms().run(self, feed)
        return answer


def torch_forms() -> Any:
    """The module for models of torch, which imports torch.

    Raises:
        Unsupported: torch is not installed.
    """
    try:
        from workbench.package.building import torch_forms as found
    except ImportError as error:
        raise Unsupported(f"torch cannot be imported: {error}", hint="pip install torch (the extra torch)") from error
    return found


def open_source(model: Any, repository: Path, examples: Any, name: str | None, max_batch_size: int | None) -> Source:
    """Finds a model and what it takes.

    Args:
        model: a name in the repository, a model directory, a file (``.onnx``, ``.pt`` TorchScript, ``.pt2``
            torch.export), or a torch module.
        repository: where names are looked up.
        examples: example inputs, as ``package`` takes them; a model directory has its own.
        name: what texts and the result are called after, where a module has none.
        max_batch_size: of a file or module; 0 for no batching, None tries it.

    Raises:
        NotFound: there is no such model.
        InvalidRequest: it cannot be read, or examples are needed.
        Unsupported: nothing can be built from a model of this kind.
    """
    torch: Any = sys.modules.get("torch")
    if torch is not None and isinstance(model, torch.nn.Module):
        form: Form = "torchscript" if isinstance(model, torch.jit.ScriptModule) else "module"
        made: Source = torch_forms().open_torch(model, form, name or type(model).__name__, examples, max_batch_size)
        return made
    if not isinstance(model, str | Path):
        raise InvalidRequest(
            f"nothing can be built from a {type(model).__module__}.{type(model).__qualname__}",
            hint="give a model's name, a file (.onnx, .pt, .pt2) or a torch module",
        )
    path = Path(model).expanduser()
    if path.suffix in _FORMS and path.is_file():
        return _from_file(path, _FORMS[path.suffix], examples, max_batch_size)
    if (path / "config.pbtxt").is_file():
        return _from_directory(path.resolve(), examples)
    if path.exists() and (path.is_file() or len(path.parts) > 1):
        raise InvalidRequest(f"nothing can be built from {path}", hint=f"known are {', '.join(_FORMS)}")
    if not repository.is_dir():
        raise NotFound(f"no model repository at {repository}", hint="--model-repository DIR names another")
    try:
        directory = find_model([repository], str(model))
    except NotFound as error:
        there = sorted(each.name for each in repository.iterdir() if each.is_dir() and each.name[:1] != ".")
        raise NotFound(
            f"no model '{model}' in {repository}",
            hint=f"there are {', '.join(there) or 'none'}; --model-repository DIR names another repository",
        ) from error
    return _from_directory(directory, examples)


def _from_file(path: Path, form: Form, examples: Any, max_batch_size: int | None) -> Source:
    if form != "onnx":
        opened: Source = torch_forms().open_torch(path, form, path.stem, examples, max_batch_size)
        return opened
    batching = None if max_batch_size is None else max_batch_size > 0
    made = from_onnx(path, Wish("", examples, batching=batching))
    return Source(
        path.stem, form, path, made.signature, repeated(made.feeds), batch_of(made.signature, max_batch_size),
        path.name, (path,), drawn=examples is None,
    )  # fmt: skip


def batch_of(signature: Signature, wanted: int | None) -> int:
    """``max_batch_size`` of a model that has no configuration yet."""
    return (wanted or USUAL_BATCH_SIZE) if signature.batching else 0


def repeated(feeds: Sequence[Feed]) -> Callable[[int], Iterator[Feed]]:
    """The given requests, once each, at most so many."""
    return lambda count: iter(feeds[:count])


def _from_directory(directory: Path, examples: Any) -> Source:
    config_path = directory / "config.pbtxt"
    data = config_path.read_bytes() if config_path.is_file() else f'name: "{directory.name}"\n'.encode()
    document = ConfigDocument.parse(data, path=str(config_path))
    versions, _ = find_versions(directory)
    if not versions:
        raise NotFound(f"model '{directory.name}' has no version", where=str(directory), hint="workbench models build")
    version = versions[max(versions)]
    message = complete_backend(document.message, directory.name, [path.name for path in version.iterdir()])
    file = version / (message.default_model_filename or _FILES.get(message.backend, ""))
    if message.backend not in _FILES:
        kind = f"is of backend '{message.backend}'" if message.backend else "is an ensemble"
        raise Unsupported(
            f"model '{directory.name}' {kind}: nothing can be built from it",
            where=str(directory),
            hint=_MADE.get(
                message.backend,
                "build from ONNX, TorchScript or torch.export; of a Python model, from its "
                "module (wb.build); of an ensemble, from the models in it",
            ),
        )
    if message.backend == "pytorch" and not file.exists() and (version / "model.pt2").exists():
        file = version / "model.pt2"
    if file.is_dir():
        file = file / "model.onnx"
    if not file.is_file():
        raise NotFound(f"unable to find '{file}'", where=str(version), hint="workbench models build, or git lfs pull")
    form = _FORMS.get(file.suffix, "onnx")
    config = normalize(message)
    if form == "onnx" and not (config.input and config.output):
        document, config = _completed(document, config, file)
    if not config.input or not config.output:
        raise InvalidRequest(
            f"the configuration of '{directory.name}' names no inputs and outputs, and TorchScript does not say them",
            where=str(config_path),
        )
    batching = config.max_batch_size > 0
    kept, unsent = _unsent(config)
    found = Signature((*_specs(config.input), *unsent), (*_specs(config.output), *kept), batching)
    described = to_json(config)

    def own(count: int) -> Iterator[Feed]:
        inputs, optional = inputs_of(described)
        rows = min(VERIFY_ROWS, config.max_batch_size)
        try:
            feeds = load_example_inputs(directory, inputs, batch_size=rows, count=count, optional=optional)
        except WorkbenchError as error:
            hint = f"{error.hint}; or give others: --example-inputs FILE (example_inputs=)".removeprefix("; or ")
            raise InvalidRequest(error.message, where=error.where, hint=hint) from error
        for feed in feeds:
            sent = {item.name: _reshaped(feed[item.name], item, batching) for item in config.input if item.name in feed}
            yield _with_zeros(sent, unsent, rows if batching else None)

    requests: Callable[[int], Iterator[Feed]] = own
    if examples is not None:
        given = fitted(examples, _specs(config.input), batching, what=f"the example inputs of '{directory.name}'")
        sizes = [len(next(iter(feed.values()))) if batching else None for feed in given]
        requests = repeated([_with_zeros(feed, unsent, rows) for feed, rows in zip(given, sizes, strict=True)])
    thing: Any = file if form == "onnx" else torch_forms().load(file, form)
    return Source(
        directory.name, form, thing, found, requests, config.max_batch_size, f"model '{directory.name}'", (file,),
        directory, document, drawn=examples is None and not (directory / FILE_NAME).is_file(),
    )  # fmt: skip


def _unsent(config: Any) -> tuple[list[Tensor], list[Tensor]]:
    """What a model of sequences gives and takes besides its outputs and inputs: its states, and what is said of where
    in a sequence a request stands."""
    names = {item.name for item in (*config.input, *config.output)}
    kept, taken = [], []
    for state in config.sequence_batching.state:
        datatype = _wire(state)
        taken.append(Tensor(state.input_name, datatype, tuple(state.dims)))
        kept.append(Tensor(state.output_name, datatype, tuple(state.dims)))
    for item in config.sequence_batching.control_input:
        control = item.control[0]
        kind = "FP32" if control.fp32_false_true else "INT32" if control.int32_false_true else "BOOL"
        taken.append(Tensor(item.name, _wire(control) if control.data_type else kind, (1,)))
    return [each for each in kept if each.name not in names], [each for each in taken if each.name not in names]


def fitted(examples: Any, specs: Sequence[Tensor], batching: bool, *, what: str) -> list[Feed]:
    """Example inputs in the forms that ``package`` takes, of the types that the inputs have.

    Raises:
        InvalidRequest: an input is missing or unknown, or its type or number of dimensions is another.
    """
    names = [spec.name for spec in specs]
    found = []
    for place, feed in enumerate(as_feeds(examples, names, what=what)):
        where = f"{what}, example {place}"
        if unknown := [name for name in feed if name not in names]:
            raise InvalidRequest(f"there is no input '{unknown[0]}'", where=where, hint=f"inputs: {', '.join(names)}")
        for spec in specs:
            if spec.name in feed:
                feed = {**feed, spec.name: _fitted(feed[spec.name], spec, batching, where)}
        found.append(feed)
    return found


def _fitted(array: NDArray[Any], spec: Tensor, batching: bool, where: str) -> NDArray[Any]:
    wanted, rank = BY_WIRE[spec.datatype].numpy, len(spec.dims) + batching
    if array.ndim != rank:
        axes = f"{rank} dimensions" + (", the batch first" if batching else "")
        raise InvalidRequest(f"input '{spec.name}' has {axes}; given is the shape {list(array.shape)}", where=where)
    if array.dtype == wanted or spec.datatype == "BYTES":
        return array
    # 3 for 3.0 and wider or narrower numbers of a kind are meant well; 3.5 for a number of a token is not
    both_whole = array.dtype.kind in "iu" and wanted.kind in "iu"
    if array.dtype == np.bool_ or not (both_whole or np.can_cast(array.dtype, wanted, "same_kind")):
        raise InvalidRequest(f"input '{spec.name}' is {spec.datatype}; given are numbers of {array.dtype}", where=where)
    return array.astype(wanted)


def _with_zeros(feed: Feed, unsent: Sequence[Tensor], rows: int | None) -> Feed:
    """An example as the model's file takes it: at the start of a sequence, states are zero."""
    batch = () if rows is None else (rows,)
    zeros = {
        each.name: np.zeros((*batch, *(abs(dim) for dim in each.dims)), BY_WIRE[each.datatype].numpy) for each in unsent
    }
    return {**feed, **zeros}


def _wire(item: Any) -> str:
    kind = item.DESCRIPTOR.fields_by_name["data_type"].enum_type.values_by_number[item.data_type].name
    return str(BY_CONFIG[kind].wire)


def _completed(document: ConfigDocument, config: Any, file: Path) -> tuple[ConfigDocument, Any]:
    """A configuration that says less than Triton needs to know, completed from the ONNX file."""
    from workbench.config import Edit

    graph = with_inferred_outputs(read_onnx(file), file)
    batching = config.max_batch_size > 0 or (graph.batching and "max_batch_size" not in document.text)
    found = file_signature(graph, batching)
    edits = []
    if batching and not config.max_batch_size:
        edits.append(Edit("max_batch_size", "set", 4))  # Triton's --backend-config=default-max-batch-size
    for field, specs, given in (("input", found.inputs, config.input), ("output", found.outputs, config.output)):
        if not given:
            value = [
                {
                    "name": spec.name,
                    "data_type": BY_WIRE[spec.datatype].config,
                    "dims": list(spec.dims),
                }
                for spec in specs
            ]
            edits.append(Edit(field, "set", value))
    document = document.edit(edits)
    return document, normalize(document.message)


def _specs(items: Any) -> tuple[Tensor, ...]:
    specs = []
    for item in items:
        dims = tuple(item.reshape.shape if item.HasField("reshape") else item.dims)
        specs.append(Tensor(item.name, _wire(item), dims))
    return tuple(specs)


def _reshaped(array: NDArray[Any], item: Any, batching: bool) -> NDArray[Any]:
    if not item.HasField("reshape"):
        return array
    return np.ascontiguousarray(
        array.reshape((*array.shape[:1], *item.reshape.shape) if batching else item.reshape.shape)
    )


def variable_sizes(source: Source) -> Mapping[str, list[tuple[int, ...]]]:
    """The shapes of each input in the example requests."""
    shapes: dict[str, list[tuple[int, ...]]] = {}
    for feed in source.requests(64):
        for name, array in feed.items():
            shapes.setdefault(name, []).append(array.shape)
    return shapes
