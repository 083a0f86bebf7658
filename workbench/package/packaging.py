"""``package``: which kind a thing is, the directory that it becomes, and the check that it answers as it did."""

from __future__ import annotations

import shlex
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FunctionType
from typing import Any

import numpy as np

from workbench.backends.base import ModelContext
from workbench.backends.python_replay import ReplayHost, replay
from workbench.config import ConfigDocument, complete_backend, normalize, to_json, validate
from workbench.errors import AlreadyExists, InvalidRequest, NotFound, Unsupported, WorkbenchError
from workbench.package.forest import from_forest, is_forest_file
from workbench.package.layout import config_text, over_the_wire, write
from workbench.package.made import Made, Wish
from workbench.package.table import WAYS, Inputs
from workbench.package.tensors import Feed, Signature, alike, said
from workbench.protocol.json_data import dumps
from workbench.protocol.tensors import InferenceRequest, InferenceResponse, Tensor
from workbench.repository.example_inputs import inputs_of, load_example_inputs
from workbench.repository.models import check_name

PICKLES = (".joblib", ".pkl")
"""Files that joblib reads."""

MAX_BATCH_SIZE = 32
"""``max_batch_size`` of a model whose requests can share a batch, unless it is given."""


@dataclass(frozen=True, slots=True)
class Packaged:
    """A model directory that was written.

    ``needs`` are the requirements of its model.py; empty for ONNX.
    """

    name: str
    directory: Path
    backend: str
    signature: Signature
    max_batch_size: int
    needs: tuple[str, ...] = ()

    def __repr__(self) -> str:
        def tensors(specs: Sequence[Any]) -> str:
            return ", ".join(
                f"{spec.name} {spec.datatype} {list(spec.dims or (1,))}{' optional' * spec.optional}" for spec in specs
            )

        batching = f"max_batch_size {self.max_batch_size}" if self.max_batch_size else "no batching"
        if self.signature.why:
            batching += f": {self.signature.why}"
        lines = [
            f"packaged as {self.directory}",
            f"  {self.backend}, {batching}",
            f"  inputs   {tensors(self.signature.inputs)}",
            f"  outputs  {tensors(self.signature.outputs)}",
        ]
        lines += [f"  needs    {', '.join(self.needs)}"] if self.needs else []
        return "\n".join([*lines, f"  serve it: server.load({self.name!r})"])


def package(
    thing: Any,
    name: str,
    *,
    example_inputs: Any = None,
    to: str | Path,
    outputs: Sequence[str] = (),
    max_batch_size: int | None = None,
    inputs: Inputs | None = None,
    backend: str = "",
    overwrite: bool = False,
) -> Packaged:
    """Writes a model directory: config.pbtxt, sources and weights, warm-up, example inputs. Real Triton loads it.

    An ONNX file is served by ONNX Runtime; so is a torch module where torch's exporter manages (package onnxscript),
    else its exported program behind a model.py. An estimator of scikit-learn or XGBoost and a plain function get a
    model.py. What is written is run once on the examples and must answer as the thing itself does.

    Args:
        thing: a path (``.onnx``; ``.joblib``, ``.pkl``, ``.ubj``: an estimator; ``.json``, ``.txt``, ``.tl``: a
            forest), a ``torch.nn.Module``, an
            estimator that is fitted, or a function of arrays.
        name: of the model.
        example_inputs: one request or a list of several, as name -> array with the batch axis; one array for a thing
            with one input; a table for an estimator; a tuple in the order of the inputs. An ONNX file whose sizes are
            fixed needs none. What differs in size from one example to the other is variable (-1); a function's
            parameter that has a default, and that not all examples have, is an optional input.
        to: the model repository.
        outputs: their names, where a thing gives several or the one is not to be called ``output``.
        max_batch_size: 0 for a thing that takes no batch; None tries it on the examples.
        inputs: how a table (a pandas DataFrame, for an estimator) becomes inputs: ``one``, ``columns`` (one for each,
            by its name) or ``dtypes`` (one for each data type, by its name: ``float64``, ``int64``, ``bool``,
            ``text``). None is ``one`` where all columns have the same data type, else ``columns``.
        backend: ``fil`` for a forest (an estimator, booster or file of XGBoost, LightGBM, scikit-learn): Triton's FIL
            backend instead of a Python model.
        overwrite: replace the model of this name, its tuned configuration included.

    Raises:
        InvalidRequest: the thing cannot be packaged, or the examples do not fit it; the text says what is in the way.
        AlreadyExists: there is a model of this name.
        NotFound: there is no such repository or file.
    """
    check_name(name)
    repository = Path(to).expanduser().resolve()
    if not repository.is_dir():
        raise NotFound(f"no model repository at {to}", where=str(repository), hint="make the directory first")
    directory = repository / name
    if directory.exists() and not (overwrite and directory.is_dir()):
        raise AlreadyExists(
            f"there is a model '{name}' already", where=str(directory), hint="another name, or overwrite=True (--force)"
        )
    if max_batch_size is not None and max_batch_size < 0:
        raise InvalidRequest(f"max_batch_size is {max_batch_size}", hint="0 for no batching")
    if inputs is not None and inputs not in WAYS:
        raise InvalidRequest(f"inputs is {inputs!r}", hint=f"one of: {', '.join(WAYS)}")
    batching = None if max_batch_size is None else max_batch_size > 0
    if backend not in ("", "fil"):
        raise InvalidRequest(f"backend is {backend!r}", hint="fil, for forests; else the kind of model decides")
    made = _make(thing, Wish(name, example_inputs, tuple(outputs), batching, inputs, backend))
    size = (max_batch_size or made.usual_batch_size or MAX_BATCH_SIZE) if made.signature.batching else 0
    text = config_text(
        name, made.backend, made.signature, made.feeds[0], max_batch_size=size, comment=made.comment,
        reshapes=made.backend != "python", parameters=made.parameters,
    )  # fmt: skip
    with tempfile.TemporaryDirectory(prefix=f".{name}-", dir=repository) as scratch:
        written = Path(scratch) / name
        write(written, text, made.version, made.feeds, made.signature)
        _check(written, made)
        if directory.exists():
            directory.rename(Path(scratch) / "old")
        written.rename(directory)
    return Packaged(name, directory, made.backend, made.signature, size, made.needs)


def _make(thing: Any, wish: Wish) -> Made:
    if isinstance(thing, str | Path):
        path = Path(thing).expanduser()
        if not path.is_file():
            raise NotFound(f"no model file at {thing}", where=str(path))
        if path.suffix == ".onnx":
            from workbench.package.onnx_model import from_onnx

            return from_onnx(path, wish)
        if is_forest_file(path) or (wish.backend == "fil" and path.suffix not in PICKLES):
            return from_forest(path, wish)
        thing = _read(path)
    if wish.backend == "fil":
        return from_forest(thing, wish)
    torch: Any = sys.modules.get("torch")
    if torch is not None and isinstance(thing, torch.nn.Module):
        from workbench.package.torch_module import from_module

        return from_module(thing, wish)
    from workbench.package.estimator import from_estimator, is_estimator

    if is_estimator(thing):
        return from_estimator(thing, wish)
    if isinstance(thing, FunctionType):
        from workbench.package.function import from_function

        return from_function(thing, wish)
    if isinstance(thing, type):
        raise InvalidRequest(
            f"{thing.__qualname__} is a class: it has no weights yet",
            hint="give an object of it, trained or loaded; on the command line FILE.py:NAME of a variable",
        )
    raise InvalidRequest(
        f"a {type(thing).__module__}.{type(thing).__qualname__} cannot be packaged",
        hint="give an ONNX file, a torch module, a fitted estimator or a function; or write its model.py",
    )


def _read(path: Path) -> Any:
    """The estimator or program in a file. Reading one by joblib runs what is in it.

    Raises:
        InvalidRequest: it cannot be read, or is of a kind that is not known.
        Unsupported: a package that it needs is not installed.
    """
    try:
        if path.suffix in PICKLES:
            import joblib

            return joblib.load(path)
        if path.suffix == ".ubj":
            import xgboost

            return xgboost.Booster(model_file=path)
    except Exception as error:  # what a pickle runs raises what it likes
        if isinstance(error, ImportError) and error.name in ("joblib", "xgboost", "lightgbm", "sklearn"):
            raise Unsupported(f"the package '{error.name}', which reads {path.name}, is not installed") from error
        raise InvalidRequest(
            f"{path.name} cannot be read: {said(error)}",
            where=str(path),
            hint="one that is damaged or cut off is to be saved again"
            + (
                " (by joblib.dump); what its classes are of must be importable, in the version that saved it"
                if path.suffix in PICKLES
                else ""
            ),
        ) from error
    if path.suffix in (".pt", ".pt2"):
        raise InvalidRequest(
            f"{path.name} is a file of torch: workbench build makes a model directory of it",
            hint=f"workbench build {shlex.quote(str(path))} --to onnx --into REPOSITORY --example-inputs FILE",
        )
    raise InvalidRequest(
        f"{path.name}: which kind of model is that?",
        hint="known are .onnx, .joblib, .pkl, .ubj, and of forests .json, .txt and .tl",
    )


def _check(directory: Path, made: Made) -> None:
    """What was written is read again and run: examples, configuration, and each answer.

    Raises:
        InvalidRequest: the packaged model does not answer as the thing did.
    """
    document = ConfigDocument.parse((directory / "config.pbtxt").read_bytes(), path=str(directory / "config.pbtxt"))
    config = normalize(
        complete_backend(document.message, directory.name, [path.name for path in (directory / "1").iterdir()])
    )
    validate(config)
    described = to_json(config)
    inputs, optional = inputs_of(described)
    load_example_inputs(directory, inputs, batch_size=config.max_batch_size and 1, optional=optional)
    if made.backend != "python":
        return
    with ReplayHost(_asks_nobody, print) as host:
        context = ModelContext(
            directory.name,
            1,
            config,
            dumps(described).decode(),
            directory,
            directory / "1",
            host,
            python_execution="thread",
        )
        for feed, answer in zip(made.feeds, made.answers, strict=True):
            got = _run(context, over_the_wire(feed, made.signature))
            for name, array in over_the_wire(answer, made.signature).items():
                if not alike(array, got[name]):
                    raise InvalidRequest(
                        f"packaged, it answers differently: '{name}' was {array!r:.200}, is {got[name]!r:.200}",
                        hint="does it depend on something that changes from call to call? Seed it in the function",
                    )


def _run(context: ModelContext, feed: Feed) -> Feed:
    tensors = [Tensor.from_numpy(name, np.ascontiguousarray(array)) for name, array in feed.items()]
    try:
        (answer,) = replay(context, InferenceRequest(context.name, tensors), 60.0)
    except WorkbenchError:
        raise
    except Exception as error:
        raise InvalidRequest(
            f"packaged, it fails: {type(error).__name__}: {error}", where="its model.py, run on the first example"
        ) from error
    return {tensor.name: tensor.data for tensor in answer.outputs}


def _asks_nobody(request: InferenceRequest) -> list[InferenceResponse]:
    raise Unsupported(f"model '{request.model_name}' is not there while a function is packaged")
