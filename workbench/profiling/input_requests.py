"""The requests of a class from its inputs: example inputs, rows of tables and files, arrays as they are given."""

from __future__ import annotations

import contextlib
import itertools
import json
import tempfile
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from workbench.errors import ConfigError, InvalidRequest, NotFound
from workbench.profiling.class_requests import Inputs, Made, Models, length_of
from workbench.profiling.input_files import TABLES, is_table, rows_of, typed
from workbench.profiling.load import Load
from workbench.profiling.target import directory_of
from workbench.profiling.trace import Trace
from workbench.protocol.datatypes import BY_CONFIG, BY_WIRE
from workbench.protocol.tensors import InferenceRequest, Tensor
from workbench.repository.example_inputs import (
    FILE_NAME,
    Example,
    InputSpec,
    inputs_of,
    load_example_inputs,
    load_streams,
    take,
)

EXAMPLES = 16
"""How many different requests are sent in rotation."""

RANDOM_INPUTS = "the inputs are random numbers of small range"
"""How the note of a point begins that was measured without example inputs."""

_MAX_BYTES = 64 * 2**20
_MOST_BYTES = 512 * 2**20


def requests_of(models: Models, load: Load, inputs: Inputs) -> Made:
    """The requests of one class of a load, or of a load without classes.

    Raises:
        ConfigError: the example inputs cannot be read, or shapes are not known.
        NotFound: there is no such file of inputs.
        InvalidRequest: the load's batch size does not fit the model, or inputs do not.
    """
    model = load.model or models.model
    config, largest = models.config(load.model), models.largest(load.model)
    sequences = length_of(load, models) > 0
    if isinstance(inputs, Trace):
        return _captured(model, largest, inputs)
    if inputs is not None and not isinstance(inputs, str | Path) and not is_table(inputs):
        one = isinstance(inputs, Mapping) or not isinstance(inputs, Iterable)
        listed: list[Any] = [inputs] if one else list(inputs)
        if not all(isinstance(example, Mapping) for example in listed):
            raise InvalidRequest(
                f"inputs must be arrays by name, a list of these, a DataFrame or a file, got {inputs!r:.80}",
                where=f"model '{model}'",
            )
        examples = [dict(example) for example in listed]
        if not examples:
            raise InvalidRequest("no inputs were given", where=f"model '{model}'")
        return _given(model, config, largest, examples)
    if (largest == 0 or sequences) and load.batch_size > 1:
        why = "its requests are of sequences" if largest else "max_batch_size is 0"
        raise InvalidRequest(
            f"model '{model}' takes no batches ({why}), but the load sends {load.batch_size} rows",
            hint="use batch_size 1" + ("" if largest else ", or set max_batch_size"),
        )
    rows = load.batch_size if largest > 0 else 0
    specs, optional = inputs_of(config)
    if is_table(inputs) or _is_rows(inputs):
        found = rows_of(inputs, specs, optional)
        source = "a DataFrame" if is_table(inputs) else Path(inputs).name
        return _of_rows(model, found, rows, load.seed, source, in_order=sequences)
    file = Path(inputs).expanduser() if inputs is not None else None
    if file is not None and file.suffix == ".npz":  # which is no table: it is a trace
        from workbench.profiling.trace_files import read_trace

        return _captured(model, largest, read_trace(file))
    return _examples_of(models, model, load, file, rows, sequences=sequences)


def _is_rows(inputs: Inputs) -> bool:
    """Whether a path is a directory or a table, and no trace."""
    if not isinstance(inputs, str | Path):
        return False
    path = Path(inputs).expanduser()
    if path.suffix == ".npz" and path.is_file():
        with contextlib.suppress(Exception), np.load(path, allow_pickle=False) as arrays:
            return "head" not in arrays
        return True  # reading its rows says what is wrong with it
    return path.is_dir() or path.suffix in TABLES


def _examples_of(models: Models, model: str, load: Load, file: Path | None, rows: int, *, sequences: bool) -> Made:
    """From example inputs, perf_analyzer's JSON, or drawn at random."""
    specs, optional = inputs_of(models.config(load.model))
    if file is not None and str(file) in ("zero", "random") and not file.exists():
        source, directory = str(file), None
    elif file is not None and not file.is_file():
        raise NotFound("there is no such file of inputs", where=str(file))
    else:
        source, directory = (file.name if file else str(FILE_NAME)), file or directory_of(models.target, model)
    notes: list[str] = []
    if file is None and (directory is None or not (directory / FILE_NAME).is_file()):
        place = "its directory is not on this machine" if directory is None else f"it has no {FILE_NAME}"
        notes.append(f"{RANDOM_INPUTS}: {place}; give inputs=FILE (--input-data FILE)")
        source = "random"
    elif sequences and directory is not None:
        streams = load_streams(directory, specs, optional=optional)
        if streams:
            found = [row for stream in streams for row in stream]
            made = _of_rows(model, found, rows, load.seed, source, in_order=True)
            ends = list(itertools.accumulate(map(len, streams)))
            spans = [tuple(range(end - len(stream), end)) for end, stream in zip(ends, streams, strict=True)]
            made.streams = tuple(spans) if len(streams) > 1 else ()
            return made
    try:
        with tempfile.TemporaryDirectory() as empty:
            drawn = _examples(directory or Path(empty), specs, load.seed, rows, optional)
    except ConfigError as error:
        if directory is None and not error.hint:
            error.hint = "give inputs={name: array}"
        raise
    if source == "zero":
        drawn = [{name: _zeros(array) for name, array in example.items()} for example in drawn[:1]]
    return Made([_request(model, example, specs) for example in drawn], max(1, rows), source, tuple(notes))


def _check_not_empty(file: Path) -> None:
    """Numbers are drawn only where the file says from what: one without any data is not what somebody means to send."""
    if json.loads(file.read_text()).get("ranges"):
        return
    raise InvalidRequest(
        "the file of inputs has no data", where=str(file), hint='write {"data": [{"INPUT": [...]}]}, or send random'
    )


def _zeros(array: NDArray[Any]) -> NDArray[Any]:
    return np.full(array.shape, b"", np.object_) if array.dtype == np.object_ else np.zeros_like(array)


def _examples(
    directory: Path, specs: Sequence[InputSpec], seed: int, rows: int, optional: Collection[str]
) -> list[Example]:
    first = load_example_inputs(directory, specs, seed=seed, count=1, batch_size=rows, optional=optional)
    literal = sum(map(len, load_streams(directory, specs, optional=optional)))
    if not literal and directory.is_file():
        _check_not_empty(directory)
    count = _how_many(first[0], literal)
    return load_example_inputs(directory, specs, seed=seed, count=count, batch_size=rows, optional=optional)


def _how_many(example: Example, rows: int) -> int:
    """How many requests like that one are kept encoded: one that begins with each row, and not only a few."""
    size = max(1, sum(_size(array) for array in example.values()))
    return max(1, min(max(EXAMPLES, rows), (_MAX_BYTES if rows <= EXAMPLES else _MOST_BYTES) // size))


def _of_rows(model: str, found: Sequence[Example], rows: int, seed: int, source: str, *, in_order: bool) -> Made:
    """Requests of rows; every row is sent in turn, those of sequences in the order of the file."""
    if in_order:
        examples = [{name: _batched(array, rows) for name, array in row.items()} for row in found]
    else:
        first = next(take(found, seed, rows))
        examples = list(itertools.islice(take(found, seed, rows), _how_many(first, len(found))))
    notes: tuple[str, ...] = ()
    if len(examples) < len(found):
        notes = (f"only {len(examples)} of the {len(found)} rows are sent: more do not fit into memory at once",)
    return Made([_request(model, example, ()) for example in examples], max(1, rows), source, notes)


def _batched(array: NDArray[Any], rows: int) -> NDArray[Any]:
    return array[np.newaxis] if rows else array


def _request(model: str, example: Example, specs: Sequence[InputSpec]) -> InferenceRequest:
    """With the data types as the model declares them (numpy cannot tell a string from bytes, say)."""
    wire = {name: BY_CONFIG[kind].wire if kind in BY_CONFIG else kind for name, kind, _ in specs}
    request = InferenceRequest(model, [Tensor.from_numpy(name, array) for name, array in example.items()])
    for tensor in request.inputs:
        tensor.datatype = wire.get(tensor.name, tensor.datatype)
    return request


def _size(array: NDArray[Any]) -> int:
    if array.dtype == np.object_:
        return sum(len(item) + 4 for item in array.flat)
    return int(array.nbytes)


def _given(model: str, config: Mapping[str, Any], largest: int, examples: list[dict[str, Any]]) -> Made:
    specs, optional = inputs_of(config)
    known = {name: (kind, [int(dim) for dim in dims]) for name, kind, dims in specs}
    requests = []
    for index, example in enumerate(examples):
        where = f"model '{model}', request {index} of the inputs"
        _check_names(known, optional, example, where)
        tensors = []
        for name, value in example.items():
            kind, dims = known.get(name, ("", []))
            row = BY_CONFIG.get(kind) or BY_WIRE.get(kind)
            array = np.asarray(value) if row is None else typed(value, row, f"input '{name}'", where)
            if row is not None:
                _check_shape(name, array.shape, dims, largest, where)
            tensors.append(Tensor.from_numpy(name, array))
        requests.append(InferenceRequest(model, tensors))
    rows = {request.inputs[0].shape[0] if largest and request.inputs[0].shape else 1 for request in requests}
    if len(rows) > 1:
        raise InvalidRequest(
            f"the inputs have different numbers of rows: {sorted(rows)}", hint="give each request the same batch size"
        )
    if rows == {0}:
        raise InvalidRequest("the inputs have no rows", where=f"model '{model}'", hint="a request has one at least")
    return Made(requests, rows.pop(), "given")


def _check_names(known: Collection[str], optional: Collection[str], given: Collection[str], where: str) -> None:
    if not known:  # the server does not tell
        return
    hint = f"its inputs are: {', '.join(known)}"
    for name in given:
        if name not in known:
            raise InvalidRequest(f"the model has no input '{name}'", where=where, hint=hint)
    for name in known:
        if name not in given and name not in optional:
            raise InvalidRequest(f"input '{name}' is missing", where=where, hint=hint)


def _check_shape(name: str, shape: tuple[int, ...], dims: Sequence[int], largest: int, where: str) -> None:
    own = shape[1:] if largest else shape
    rank = len(dims) + (1 if largest else 0)
    if len(shape) == rank and all(dim in (-1, size) for size, dim in zip(own, dims, strict=True)):
        return
    wanted = [-1, *dims] if largest else list(dims)
    raise InvalidRequest(
        f"input '{name}' has shape {list(shape)}, the model takes {wanted}", where=where,
        hint="give the batch dimension too" if largest and len(shape) == len(dims) else "",
    )  # fmt: skip


def _captured(model: str, largest: int, trace: Trace) -> Made:
    """The inputs of a trace in rotation, whenever they came."""
    if not trace.inputs:
        raise InvalidRequest("the trace has no inputs", where=trace.source)
    requests = [InferenceRequest(model, list(tensors)) for tensors in trace.inputs[:4096]]
    shapes = [request.inputs[0].shape for request in requests]
    rows = float(np.mean([shape[0] if largest and shape else 1 for shape in shapes]))
    return Made(requests, rows, trace.source or "a trace")
