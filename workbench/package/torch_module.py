"""A torch module: an ONNX file where its exporter manages, else an exported program behind a model.py."""

from __future__ import annotations

import copy
import importlib.util
import inspect
import io
import logging
import tempfile
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from workbench.errors import InvalidRequest, WorkbenchError
from workbench.package.made import Made, Wish
from workbench.package.model_py import render
from workbench.package.onnx_model import from_onnx, run
from workbench.package.source import requirements
from workbench.package.tensors import Feed, Signature, alike, as_feeds, named, signature

LARGE_BYTES = 1 << 30
"""Weights above this lie beside the ONNX file: a protobuf message holds 2 GiB."""


def from_module(module: torch.nn.Module, wish: Wish) -> Made:
    """The module in evaluation mode on the CPU; a copy of it is exported.

    Raises:
        InvalidRequest: an example does not fit the module, or torch cannot export it.
    """
    module = copy.deepcopy(module).cpu().eval()
    names = list(inspect.signature(module.forward).parameters)
    feeds = as_feeds(wish.examples, names, what=f"the module {type(module).__name__}")
    if not set(feeds[0]) <= set(names):
        raise InvalidRequest(
            f"the module's forward takes {', '.join(names)}, the examples have {', '.join(feeds[0])}",
            hint="name the examples as forward does, or give them without names: example_inputs=array",
        )
    feeds = [{name: feed[name] for name in names if name in feed} for feed in feeds]

    def call(feed: Feed) -> Feed:
        with torch.no_grad():
            values = module(**{name: torch.from_numpy(np.array(array)) for name, array in feed.items()})
        return named(tuple(values) if isinstance(values, list) else values, wish.outputs)

    what = f"the module {type(module).__name__}"
    found, answers = signature(call, feeds, batching=wish.batching, what=what)
    program = export_program(module, found, feeds)
    title = f"The torch module {type(module).__name__}."
    try:
        return _onnx(program, found, feeds, answers, title)
    except (WorkbenchError, RuntimeError, ImportError, torch.onnx.errors.OnnxExporterError) as error:
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
    buffer = io.BytesIO()
    torch.export.save(program, buffer)
    needs = requirements({"torch", "numpy"})
    model = render(
        title, found, feeds, answers, imports=["import torch"], needs=needs,
        load='self.model = torch.export.load(os.path.join(here, "model.pt2")).module()',
        call="with torch.no_grad():\n"
        "    return self.model(**{name: torch.from_numpy(_np.array(array)) for name, array in feed.items()})",
    )  # fmt: skip
    comment = f"{title} It needs {', '.join(needs)}.\nNot as ONNX: {reason[:200]}"
    version: dict[str, bytes | Path] = {"model.py": model, "model.pt2": buffer.getvalue()}
    return Made("python", found, feeds, answers, version, comment, tuple(needs))


def export_program(module: torch.nn.Module, found: Signature, feeds: Sequence[Feed]) -> Any:
    """The module as a program whose batch, and whatever differs from one example to the other, is variable.

    Raises:
        InvalidRequest: torch cannot export it.
    """
    batch = torch.export.Dim("batch")
    arrays, shapes = {}, {}
    for spec in found.inputs:
        array = feeds[0][spec.name]
        # a size of 1 would be taken for a constant
        if found.batching and len(array) == 1:
            array = np.concatenate([array, array])
        arrays[spec.name] = torch.from_numpy(np.array(array))
        dims: dict[int, Any] = {0: batch} if found.batching else {}
        shift = 1 if found.batching else 0
        dims |= {axis + shift: torch.export.Dim.AUTO for axis, size in enumerate(spec.dims) if size == -1}
        shapes[spec.name] = dims
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return torch.export.export(module, (), kwargs=arrays, dynamic_shapes=shapes)
    except Exception as error:
        raise InvalidRequest(
            f"torch cannot export {type(module).__name__}: {str(error).splitlines()[0] if str(error) else error!r}",
            where="torch.export.export",
            hint="write its model.py yourself (%%triton_model), or give max_batch_size=0 if the batch is in the way",
        ) from error


def _onnx(program: Any, found: Signature, feeds: Sequence[Feed], answers: Sequence[Feed], title: str) -> Made:
    """The program as ONNX, where that answers the examples alike.

    Raises:
        ImportError: the exporter's package is not installed.
        InvalidRequest: it answers differently, or has lost its variable batch.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        write_onnx(program, found, path)
        made = from_onnx(path, Wish("", list(feeds), batching=found.batching))
        for feed, answer in zip(feeds, answers, strict=True):
            got = run(path, made.signature, feed)
            if not all(name in got and alike(array, got[name]) for name, array in answer.items()):
                raise InvalidRequest("the ONNX file answers the examples differently")
        version: dict[str, bytes | Path] = {
            name: Path(file).read_bytes() for name, file in made.version.items() if isinstance(file, Path)
        }
    return Made(
        "onnxruntime", made.signature, feeds, answers, version, f"{title} Exported by torch {torch.__version__}."
    )


def write_onnx(program: Any, found: Signature, path: Path) -> None:
    """An exported program as an ONNX file, its inputs and outputs named as in the signature.

    Raises:
        ImportError: the exporter's package is not installed.
        RuntimeError: it cannot export the program (torch's own error).
    """
    if importlib.util.find_spec("onnxscript") is None:
        raise ImportError("the package onnxscript, which exports to ONNX, is not installed")
    log = logging.getLogger("torch.onnx")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.onnx.export(
                program, (), path, dynamo=True, verbose=False,
                external_data=sum(each.nbytes for each in program.state_dict.values()) > LARGE_BYTES,
                input_names=[spec.name for spec in found.inputs],
                output_names=[spec.name for spec in found.outputs],
            )  # fmt: skip
    finally:
        log.setLevel(level)
