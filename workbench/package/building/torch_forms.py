"""Models of torch: opened, run, and turned into TorchScript, AOTInductor packages and ONNX files."""

from __future__ import annotations

import copy
import inspect
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch

from workbench.backends.base import TensorSpec
from workbench.backends.pytorch_archive import archive_kind, describe_export
from workbench.errors import InvalidRequest, Unsupported
from workbench.package.building.source import Form, Source, batch_of, repeated
from workbench.package.tensors import Feed, Signature, as_array, as_feeds, named, said, signature
from workbench.package.tensors import Tensor as Described  # TorchScript reads Tensor in this module as torch's
from workbench.package.torch_module import export_program, write_onnx

_INDEXED = re.compile(r".+__(\d+)$")


@dataclass(frozen=True, slots=True)
class TorchThing:
    """A model of torch in memory: what is called, the names of its arguments in order, how many go by position.

    ``program`` is the exported program, where it comes from one.
    """

    call: Callable[..., Any]
    arguments: tuple[str, ...]
    positional: int = 0
    program: Any = None

    def __call__(self, arrays: Sequence[Any]) -> Any:
        """The answer to arrays in the order of ``arguments``."""
        tensors = [torch.from_numpy(np.array(array)) for array in arrays]
        by_name = dict(zip(self.arguments[self.positional :], tensors[self.positional :], strict=False))
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return self.call(*tensors[: self.positional], **by_name)


def load(thing: Any, form: Form) -> TorchThing:
    """A module, or a file of TorchScript or torch.export, on the CPU and in evaluation mode.

    Raises:
        InvalidRequest: the file cannot be read as that.
    """
    if form == "module":
        module = copy.deepcopy(thing).cpu().eval()
        return TorchThing(module, tuple(inspect.signature(module.forward).parameters))
    path = thing if isinstance(thing, Path) else None
    if path is not None and form == "exported" and archive_kind(path) == "aoti":
        raise InvalidRequest(
            f"{path.name} is a package of AOTInductor: compiled code, of which nothing can be built",
            where=str(path),
            hint="build from what it was compiled from: the torch module, or the .pt2 of torch.export.save",
        )
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if form == "torchscript":
                jit: Any = torch.jit
                scripted: Any = jit.load(str(path), map_location="cpu") if path else copy.deepcopy(thing).cpu()
                scripted.eval()
                return TorchThing(scripted, tuple(each.name for each in scripted.forward.schema.arguments[1:]))
            program = torch.export.load(str(path))
            args, kwargs = program.call_spec.in_spec.children()
            names = (*inspect.signature(program.module().forward).parameters,)[: len(args.children())]
            names = (*(names or program.graph_signature.user_inputs[: len(args.children())]), *(kwargs.context or ()))
            return TorchThing(program.module(), tuple(map(str, names)), len(args.children()), program)
    except Exception as error:  # torch raises what it likes at a file that is something else
        kind = "TorchScript" if form == "torchscript" else "a program of torch.export"
        raise InvalidRequest(
            f"{path} cannot be read as {kind}: {said(error)}",
            hint="TorchScript (.pt) is written by torch.jit.save, a program (.pt2) by torch.export.save",
        ) from error


def open_torch(thing: Any, form: Form, name: str, examples: Any, max_batch_size: int | None) -> Source:
    """A source whose inputs and outputs are what it does with the examples; the sizes that an exported program leaves
    open are open, whether or not they differ among the examples.

    Raises:
        InvalidRequest: it cannot be read, the examples do not fit it, or it takes fewer rows than are asked for.
    """
    loaded = load(thing, form)
    what = thing.name if isinstance(thing, Path) else f"the torch module {type(thing).__name__}"
    feeds = as_feeds(examples, loaded.arguments, what=what)
    if not set(feeds[0]) <= set(loaded.arguments):
        raise InvalidRequest(
            f"{what} takes {', '.join(loaded.arguments)}, the examples have {', '.join(feeds[0])}",
            hint="name the examples as forward does, or give them without names: example_inputs=array",
        )
    feeds = [{name: feed[name] for name in loaded.arguments if name in feed} for feed in feeds]

    def call(feed: Feed) -> Feed:
        return named(_results(loaded(list(feed.values()))), ())

    batching = None if max_batch_size is None else max_batch_size > 0
    exemplified, _ = signature(call, feeds, batching=batching, what=what)
    found = _opened(exemplified, thing) if form == "exported" and isinstance(thing, Path) else exemplified
    files = (thing,) if isinstance(thing, Path) else ()
    rows, most = batch_of(found, max_batch_size), _most_rows(loaded.program)
    if most is not None and (max_batch_size or 0) > most:
        raise InvalidRequest(
            f"max_batch_size is {max_batch_size}, {what} takes {most} rows at most",
            hint=f"--max-batch-size {most}, or export it with a larger bound of the batch (torch.export.Dim)",
        )
    return Source(
        name, form, loaded, found, repeated(feeds), min(rows, most or rows), what, files, exemplified=exemplified
    )


def _most_rows(program: Any) -> int | None:
    """The largest first dimension that an exported program was made for; None where there is no bound."""
    bounds = []
    for node in program.graph.nodes if program is not None else ():
        value = node.meta.get("val") if node.name in program.graph_signature.user_inputs else None
        if isinstance(value, torch.Tensor) and value.ndim and isinstance(value.shape[0], torch.SymInt):
            bound = program.range_constraints.get(value.shape[0].node.expr)
            if bound is not None and str(bound.upper).isdigit():  # else infinity
                bounds.append(int(bound.upper))
    return min(bounds, default=None)


def _opened(found: Signature, path: Path) -> Signature:
    """The signature with -1 for each size that is symbolic in the program."""
    try:
        program = describe_export(path)
    except InvalidRequest:  # results in containers that only torch takes apart: the sizes are the examples'
        program = None
    if program is None:
        return found

    def opened(specs: tuple[Described, ...], declared: tuple[TensorSpec, ...]) -> tuple[Described, ...]:
        skip = 1 if found.batching else 0
        ranks = [(len(one.dims) + skip, len(other.dims)) for one, other in zip(specs, declared, strict=False)]
        if len(specs) != len(declared) or any(one != other for one, other in ranks):
            return specs  # inputs that a default stands for, or results that are no tensors
        pairs = zip(specs, declared, strict=True)
        return tuple(
            replace(
                one,
                dims=tuple(-1 if -1 in sizes else sizes[0] for sizes in zip(one.dims, other.dims[skip:], strict=True)),
            )
            for one, other in pairs
        )

    return replace(found, inputs=opened(found.inputs, program.inputs), outputs=opened(found.outputs, program.outputs))


def run(source: Source, feed: Feed) -> Feed:
    """What a source of torch answers."""
    return answers(source.thing, source.signature, feed)


def answers(thing: TorchThing, found: Signature, feed: Feed) -> Feed:
    """What a model of torch answers; its outputs take the signature's names, in order."""
    names = [spec.name for spec in found.inputs if spec.name in feed]
    if not set(names) <= set(thing.arguments):
        names = by_index(names)
    else:
        names = [name for name in thing.arguments if name in names]
    value = _results(thing([feed[name] for name in names]))
    if isinstance(value, dict):
        return {str(name): as_array(str(name), item) for name, item in value.items()}
    values = list(value) if isinstance(value, tuple) else [value]
    outputs = by_index([spec.name for spec in found.outputs])
    return {name: as_array(name, item) for name, item in zip(outputs, values, strict=False)}


def _results(value: Any) -> Any:
    """The tensors that a model gave, as the forms have them that torch.export leads to: one after the other, whatever
    tuples and lists they lie in. A dictionary or named tuple of tensors keeps its names."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, tuple) else (None,)
    if all(isinstance(each, torch.Tensor) for each in inner):
        return value  # also a named tuple
    texts = isinstance(value, list) and all(isinstance(each, str) for each in value)
    return tuple(_leaves(value)) if isinstance(value, list | tuple | dict) and not texts else value


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple) and not all(isinstance(each, str) for each in value):
        for each in value:
            yield from _leaves(each)
    else:
        yield value


def by_index(names: Sequence[str]) -> list[str]:
    """Names in the order that Triton's NAME__INDEX gives, as they are where one is not of that form."""
    found = [_INDEXED.match(name) for name in names]
    if not all(found):
        return list(names)
    return [
        name for _, name in sorted(zip((int(cast("re.Match[str]", each)[1]) for each in found), names, strict=True))
    ]


def write_torchscript(source: Source, requests: Sequence[Feed], target: Path) -> str:
    """Writes a TorchScript file; gives how it was made.

    A module is compiled (``torch.jit.script``) where its source allows, else traced on the first request: then what its
    Python code decides by the values or shapes of a request is fixed. A dictionary of results, which Triton does not
    take, becomes a tuple of them in the order of the signature.

    Raises:
        InvalidRequest: torch can neither compile nor trace it.
    """
    thing: TorchThing = source.thing
    names = [spec.name for spec in source.signature.outputs]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if source.form == "torchscript":
            torch.jit.save(_as_tuple(cast(Any, thing.call), names), str(target))
            return "as it was"
        scripted: Any = None
        if source.form == "module":
            try:
                scripted = torch.jit.script(cast(Any, thing.call))
            except Exception:  # whatever its source has that TorchScript lacks
                scripted = None
        how = "torch.jit.script"
        if scripted is None:
            scripted, how = _trace(source, thing, requests[0]), "torch.jit.trace"
        torch.jit.save(_as_tuple(scripted, names), str(target))
    return how


def _as_tuple(scripted: Any, names: Sequence[str]) -> Any:
    """A module of TorchScript that gives a tuple, of one that gives a dictionary of tensors; another one as it is."""
    arguments, (result,) = scripted.forward.schema.arguments[1:], scripted.forward.schema.returns
    if str(result.type.kind()) != "DictType":
        _check_flat(result.type)
        return scripted
    holder = torch.nn.Module()
    holder.module = scripted
    around: Any = cast(Any, torch.jit).script(holder)
    taken = ", ".join(f"{each.name}: {each.type.annotation_str}" for each in arguments)
    given = ", ".join(each.name for each in arguments)
    parts = ", ".join(f"results[{name!r}]" for name in names)
    around.define(f"def forward(self, {taken}):\n    results = self.module({given})\n    return ({parts},)\n")
    return around.eval()


def _check_flat(result: Any) -> None:
    """Refuses results that no configuration can name.

    Raises:
        InvalidRequest: tensors lie in a list or in tuples within each other.
    """
    parts = result.elements() if str(result.kind()) == "TupleType" else [result]
    for each in parts:
        if each.annotation_str not in ("Tensor", "List[str]"):
            raise InvalidRequest(
                f"as TorchScript it gives a {each.annotation_str}, and Triton takes tensors and lists of str only",
                hint="return a tuple of tensors; --to onnx and --to aoti take the others apart themselves",
            )


def _trace(source: Source, thing: TorchThing, feed: Feed) -> Any:
    tensors = [torch.from_numpy(np.array(feed[name])) for name in thing.arguments if name in feed]
    names = [name for name in thing.arguments if name in feed]
    by_name = dict(zip(names, tensors, strict=True))
    given: dict[str, Any] = (
        {"example_inputs": tuple(tensors)} if thing.positional else {"example_kwarg_inputs": by_name}
    )
    # a trace runs the module, and shares its buffers: what they were is what is written
    before = [(buffer, buffer.clone()) for buffer in cast(Any, thing.call).buffers()]
    try:
        with torch.no_grad():
            # not strict: it may give a dictionary
            traced = cast(Any, torch.jit).trace(thing.call, check_trace=False, strict=False, **given)
            for buffer, value in before:
                buffer.copy_(value)
            return traced
    except Exception as error:
        raise InvalidRequest(
            f"torch can neither compile nor trace {source.title}: {said(error)}",
            hint="--to onnx or --to aoti go by torch.export instead",
        ) from error


def program_of(source: Source, requests: Sequence[Feed]) -> Any:
    """A module, or what torch.export made of one, as a program.

    Raises:
        InvalidRequest: torch cannot export it.
    """
    if source.form == "exported":
        return source.thing.program
    return export_program(source.thing.call, source.signature, requests)


def write_aoti(source: Source, requests: Sequence[Feed], target: Path) -> None:
    """Writes an AOTInductor package; takes a C++ compiler, and from ten seconds to minutes.

    Raises:
        InvalidRequest: torch cannot export or compile it.
    """
    program = program_of(source, requests)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch._inductor.aoti_compile_and_package(program, package_path=str(target))
    except Exception as error:
        raise InvalidRequest(
            f"AOTInductor cannot compile {source.title}: {said(error)}",
            hint="it needs a C++ compiler (g++) on the path",
        ) from error


def load_aoti(path: Path, arguments: Sequence[str], positional: int) -> TorchThing:
    """A package that was written, to be run."""
    return TorchThing(torch._inductor.aoti_load_package(str(path)), tuple(arguments), positional)


def write_onnx_of(source: Source, requests: Sequence[Feed], target: Path) -> None:
    """Writes a source of torch as an ONNX file.

    Raises:
        InvalidRequest: torch cannot export it.
        Unsupported: the exporter is not installed.
    """
    try:
        if source.form == "torchscript":
            _torchscript_to_onnx(source, requests[0], target)
        else:
            write_onnx(program_of(source, requests), source.signature, target)
    except ImportError as error:
        raise Unsupported(str(error), hint="pip install onnxscript (the extra torch)") from error
    except (RuntimeError, torch.onnx.errors.OnnxExporterError) as error:
        raise InvalidRequest(
            f"torch cannot export {source.title} to ONNX: {said(error)}",
            hint="its exporters take torch modules and programs of torch.export (.pt2) best"
            + (", and some TorchScript not at all: build from the module" if source.form == "torchscript" else ""),
        ) from error


@contextmanager
def _no_graphs_printed() -> Iterator[None]:
    """Where its exporter of TorchScript fails, torch prints the whole graph to the standard output.

    It has a switch against that, and turns it on itself at each export (2.13).
    """
    core: Any = torch._C
    before = core._jit_onnx_log
    core._jit_onnx_log = lambda *parts: None
    try:
        yield
    finally:
        core._jit_onnx_log = before


def _torchscript_to_onnx(source: Source, feed: Feed, target: Path) -> None:
    inputs, outputs = [spec.name for spec in source.signature.inputs], [spec.name for spec in source.signature.outputs]
    axes: dict[str, dict[int, str]] = {}
    shift = 1 if source.signature.batching else 0
    for spec in (*source.signature.inputs, *source.signature.outputs):
        axes[spec.name] = {0: "batch"} if shift else {}
        axes[spec.name] |= {axis + shift: f"{spec.name}_{axis}" for axis, size in enumerate(spec.dims) if size == -1}
    tensors = tuple(torch.from_numpy(np.array(feed[name])) for name in by_index(inputs))
    with warnings.catch_warnings(), _no_graphs_printed():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            source.thing.call, tensors, str(target), dynamo=False, input_names=by_index(inputs),
            output_names=by_index(outputs), dynamic_axes=axes,
        )  # fmt: skip
