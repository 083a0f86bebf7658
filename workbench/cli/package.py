"""``workbench package``: a model file or a function becomes a model directory."""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from workbench.cli.targets import told_with
from workbench.errors import InvalidRequest, NotFound
from workbench.repository.written_numbers import HINT, LargeNumber, read_json

SUMMARY = "Makes a model directory with config, warm-up and example inputs out of a model file or a function."
EXAMPLE = "workbench package score.py:score --example-inputs examples.npz --to model_repository"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``package``."""
    parser.add_argument(
        "file",
        metavar="FILE",
        help=".onnx; .joblib, .pkl or .ubj (an estimator; reading the first two runs what is in them); .json, .txt or "
        ".tl (a forest); or FILE.py:FUNCTION",
    )
    parser.add_argument("--to", required=True, metavar="REPOSITORY", help="the model repository")
    parser.add_argument("--name", metavar="NAME", help="of the model (default: the file's or the function's)")
    parser.add_argument(
        "--example-inputs",
        metavar="FILE",
        help=".npz or .npy (arrays with the batch axis), a .csv (a table, for an estimator), or a .json as "
        "perf_analyzer's --input-data (rows)",
    )
    parser.add_argument(
        "--output", action="append", default=[], metavar="NAME", help="an output's name; may be repeated"
    )
    parser.add_argument(
        "--inputs",
        choices=("one", "columns", "dtypes"),
        help="of a table: all columns in one, one for each column, or one for each data type",
    )
    parser.add_argument(
        "--backend", choices=("fil",), default="", help="a forest is served by Triton's FIL backend, not by a model.py"
    )
    parser.add_argument("--max-batch-size", type=int, metavar="N", help="0 for none (default: tried on the examples)")
    parser.add_argument("--force", action="store_true", help="replace the model of this name")
    parser.add_argument("--json", action="store_true", help="what was written as JSON")


def run(args: argparse.Namespace) -> int:
    """Packages and says what came of it."""
    from workbench.package import package

    file, _, function = args.file.partition(".py:")
    thing: Any = args.file
    name = args.name or function or Path(args.file).stem
    if function:
        thing = _function(Path(f"{file}.py"), function)
    made = package(
        thing, name, example_inputs=read_examples(args.example_inputs), to=args.to, outputs=args.output,
        max_batch_size=args.max_batch_size, inputs=args.inputs, backend=args.backend, overwrite=args.force,
    )  # fmt: skip
    if args.json:
        tensors = {
            key: [{**asdict(spec), "dims": list(spec.dims or (1,))} for spec in getattr(made.signature, key)]
            for key in ("inputs", "outputs")
        }
        about = {"name": made.name, "directory": str(made.directory), "backend": made.backend}
        print(json.dumps({**about, "max_batch_size": made.max_batch_size, **tensors, "needs": list(made.needs)}))
    else:
        print(told_with(made, made.name, made.directory))
    return 0


def _function(path: Path, name: str) -> Any:
    spec = importlib.util.spec_from_file_location(path.stem, path) if path.is_file() else None
    if spec is None or spec.loader is None:
        raise NotFound(f"no Python file at {path}", where=str(path))
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module  # where its functions are looked up
    sys.path.insert(0, str(path.parent.resolve()))
    spec.loader.exec_module(module)
    found = getattr(module, name, None)
    if found is None:
        raise NotFound(f"there is no '{name}' in {path}", where=str(path))
    return found


def read_examples(path: str | None) -> Any:
    """Example inputs from a file (.npz, .npy, .csv, .json), None where none is named.

    Raises:
        NotFound: there is no such file.
        InvalidRequest: it is none of these, or cannot be read.
    """
    if path is None:
        return None
    if not Path(path).is_file():
        raise NotFound(f"no example inputs at {path}", where=path)
    try:
        return _examples(path)
    except (OSError, EOFError, ValueError, TypeError, RecursionError, zipfile.BadZipFile, zlib.error) as error:
        raise InvalidRequest(f"example inputs cannot be read: {error}", where=path) from error


def _examples(path: str) -> Any:
    if path.endswith(".npz"):
        with np.load(path) as arrays:
            return dict(arrays)
    if path.endswith(".npy"):
        return np.load(path)
    if path.endswith(".csv"):
        import pandas as pd

        return pd.read_csv(path)
    if not path.endswith(".json"):
        raise InvalidRequest(f"example inputs are read from .npz, .npy, .csv or .json, not from {path}")
    found = read_json(Path(path).read_text(encoding="utf-8"))
    rows = found.get("data") if isinstance(found, Mapping) else None
    if not isinstance(rows, list) or not all(isinstance(row, Mapping) for row in rows):
        raise InvalidRequest(
            "example inputs have no rows",
            where=path,
            hint='write them as perf_analyzer does: {"data": [{"x": [1, 2]}]}',
        )
    return [{name: _row(value)[None] for name, value in row.items()} for row in rows]


def _row(value: Any) -> Any:
    """One tensor of one row, as the file has it: a list, or ``content`` with ``shape``."""
    shape = None
    if isinstance(value, Mapping):
        if "content" not in value:
            raise InvalidRequest("example inputs for packaging are lists or {content, shape}", where=f"{value!r:.80}")
        value, shape = value["content"], value.get("shape")
    array = np.array(value)
    if array.dtype.kind == "f" and np.isinf(array).any():
        for each in np.array(value, np.object_).ravel():
            if isinstance(each, LargeNumber):
                raise InvalidRequest(f"{each} is too large for a number", hint=HINT)
    return array if shape is None else array.reshape(shape)
