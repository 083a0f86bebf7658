"""An ONNX file, served by ONNX Runtime."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from workbench.backends.base import TensorSpec
from workbench.backends.onnx_file import OnnxGraph, read_onnx
from workbench.backends.onnxruntime import run_once, with_inferred_outputs
from workbench.errors import InvalidRequest
from workbench.package.made import Made, Wish
from workbench.package.tensors import Feed, Signature, Tensor, answered, as_feeds
from workbench.protocol.datatypes import BY_WIRE
from workbench.repository.example_inputs import load_example_inputs

DRAWN = 4
"""Examples that are drawn where none are given."""


def from_onnx(path: Path, wish: Wish) -> Made:
    """The file as it is, with what it says of its inputs and outputs.

    Raises:
        InvalidRequest: it is no ONNX file, or the examples do not fit it; none are given and a size is variable.
    """
    graph = with_inferred_outputs(read_onnx(path), path)
    if wish.batching and not graph.batching:
        raise InvalidRequest(
            f"{path.name} cannot batch: the first dimension of an input or output is fixed",
            hint="export it with a variable batch axis, or give max_batch_size=0",
        )
    batching = graph.batching if wish.batching is None else wish.batching
    why = "" if batching or (graph.batching is False and wish.batching is False) else "its first dimension is fixed"
    found = file_signature(graph, batching, why)
    feeds = _feeds(path, found, graph, wish.examples)
    takes = ", ".join(f"{spec.name} {spec.datatype} {list(spec.dims)}" for spec in found.inputs)
    hint = f"it takes {takes}{', the batch first' * batching}"
    answers = answered(lambda feed: run(path, found, feed), feeds, f"{path.name} fails", hint)
    version: dict[str, bytes | Path] = {"model.onnx": path}
    for name in graph.external:
        beside = (path.parent / name).resolve()
        if not beside.is_relative_to(path.parent.resolve()) or not beside.is_file() or Path(name).name != name:
            raise InvalidRequest(f"the weights of {path.name} are in '{name}', which is not beside it", where=str(path))
        version[name] = beside
    return Made("onnxruntime", found, feeds, answers, version, f"The ONNX file {path.name}.")


def file_signature(graph: OnnxGraph, batching: bool, why: str = "") -> Signature:
    """What a file says of inputs and outputs, without the batch axis where it has one.

    Raises:
        InvalidRequest: it does not say a data type.
    """
    return Signature(_tensors(graph.inputs, batching), _tensors(graph.outputs, batching), batching, why)


def run(path: Path, found: Signature, feed: Feed) -> Feed:
    """One call of the file.

    Raises:
        InternalError: ONNX Runtime refuses the file or the inputs.
    """
    names = [spec.name for spec in found.outputs]
    return dict(zip(names, run_once(path, feed), strict=True))


def _tensors(specs: Sequence[TensorSpec], batching: bool) -> tuple[Tensor, ...]:
    unknown = [spec.name for spec in specs if not spec.datatype]
    if unknown:
        raise InvalidRequest(f"the file does not say of which data type '{unknown[0]}' is")
    return tuple(Tensor(spec.name, spec.datatype, spec.dims[1:] if batching else spec.dims) for spec in specs)


def _feeds(path: Path, found: Signature, graph: OnnxGraph, examples: Any) -> list[Feed]:
    names = [spec.name for spec in graph.inputs]
    if examples is None:
        if any(-1 in spec.dims for spec in found.inputs):
            raise InvalidRequest(
                f"{path.name} has inputs of variable size: "
                + ", ".join(f"{spec.name} {list(spec.dims)}" for spec in found.inputs),
                hint="give example_inputs={...} of a size that is usual",
            )
        with tempfile.TemporaryDirectory() as empty:
            inputs = [(spec.name, spec.datatype, spec.dims) for spec in found.inputs]
            rows = DRAWN if found.batching else 0
            return [dict(each) for each in load_example_inputs(Path(empty), inputs, batch_size=rows)]
    feeds = as_feeds(examples, names, what=path.name)
    if set(feeds[0]) != set(names):
        raise InvalidRequest(f"{path.name} takes {', '.join(names)}, the examples have {', '.join(feeds[0])}")
    return [{spec.name: _cast(feed[spec.name], spec) for spec in found.inputs} for feed in feeds]


def _cast(array: Any, spec: Tensor) -> Any:
    """Python's numbers are of 64 bits; the file says what it takes."""
    return array if spec.datatype == "BYTES" else array.astype(BY_WIRE[spec.datatype].numpy, copy=False)
