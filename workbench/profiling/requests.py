"""From inputs to the requests that a load sends, and the plan of which of them is sent when."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import tempfile
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from workbench.errors import ConfigError, InvalidRequest, NotFound
from workbench.profiling.input_files import TABLES, is_table, rows_of, typed
from workbench.profiling.load import Load
from workbench.profiling.plan import DEFAULT_LENGTH, ID_FROM, VARIANTS, ClassPlan, Plan
from workbench.profiling.target import Target, directory_of
from workbench.profiling.trace import END, START, Trace
from workbench.profiling.trace_files import trace_of
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
from workbench.repository.files import sha256_of

Inputs = Any
"""What to send: one request's arrays by name, or several requests' in rotation, as they are sent, so with the batch
dimension where the model has one; or rows of inputs: a pandas DataFrame, or the path of a file (perf_analyzer's
--input-data, ``.csv``, ``.parquet``, ``.npy``, ``.npz``) or directory; or a ``Trace``, whose inputs are sent; of a load
of several classes also a mapping of these by class. None takes the model's example inputs."""

EXAMPLES = 16
"""How many different requests are sent in rotation."""

RANDOM_INPUTS = "the inputs are random numbers of small range"
"""How the note of a point begins that was measured without example inputs."""

NO_PRIORITIES = "priorities change nothing"
"""How the note of a point begins whose requests have a priority, of a model without levels."""

_LONGEST_ID = 256  # every message of a replay has room for the longest id
_MAX_BYTES = 64 * 2**20
_MOST_BYTES = 512 * 2**20


def identity(inputs: Inputs) -> Any:
    """What tells inputs apart in the keys of points: hashes of files and tables, arrays as they are."""
    if isinstance(inputs, str | Path):
        with contextlib.suppress(OSError, ValueError):  # a text that is no path
            path = Path(inputs).expanduser()
            if path.is_dir():
                files = sorted(each for each in path.rglob("*") if each.is_file())
                return {str(each.relative_to(path)): sha256_of(each) for each in files}
            if path.is_file():
                return sha256_of(path)
        return str(inputs)
    if isinstance(inputs, Trace):
        return hashlib.sha256(inputs.to_bytes()).hexdigest()
    if is_table(inputs):
        text = inputs.to_json(orient="split", default_handler=str)
        return hashlib.sha256(text.encode()).hexdigest()
    if isinstance(inputs, Mapping):
        return {str(name): identity(value) for name, value in inputs.items()}
    return inputs


@dataclass(frozen=True, slots=True)
class Prepared:
    """Requests as the plan has them. ``rows`` is the number of inferences in one (of several classes the first's);
    ``source`` says where the inputs came from."""

    requests: tuple[InferenceRequest, ...]
    rows: float
    source: str
    notes: tuple[str, ...] = ()
    plan: Plan = field(default_factory=lambda: Plan(()))


def prepare(target: Target, model: str, config: Mapping[str, Any], load: Load, inputs: Inputs = None) -> Prepared:
    """The requests for a load point.

    Args:
        target: the server.
        model: the model that is measured.
        config: its configuration.
        load: what to send; its classes may go to other models.
        inputs: what to send in them.

    Raises:
        ConfigError: the example inputs cannot be read, or shapes are not known.
        NotFound: there is no such file of inputs.
        InvalidRequest: the load's batch size does not fit the model, or inputs do not.
    """
    if load.trace:
        return _of_trace(_Models(target, model, config), load, inputs)
    models = _Models(target, model, config)
    names = [name for name, _ in load.mix] or [""]
    by_class = bool(load.mix) and isinstance(inputs, Mapping) and bool(inputs) and set(inputs) <= set(names)
    requests: list[InferenceRequest] = []
    classes: list[ClassPlan] = []
    sources: list[str] = []
    notes: list[str] = []
    for name, part in zip(names, load.parts, strict=True):
        given = part.inputs or (inputs.get(name) if by_class else inputs)
        made = _class_of(models, part, given)
        classes.append(made.plan(name, len(requests), part, models))
        requests += made.expanded(part, models)
        sources.append(made.source)
        notes += [*made.notes, *models.without_priorities(part)]
    plan = Plan(tuple(classes))
    source = ", ".join(dict.fromkeys(sources))
    return Prepared(tuple(requests), classes[0].rows, source, tuple(dict.fromkeys(notes)), plan)


class _Models:
    """The configurations of the models that a load goes to."""

    def __init__(self, target: Target, model: str, config: Mapping[str, Any]) -> None:
        self.target = target
        self.model = model
        self._known = {model: config}

    def config(self, model: str) -> Mapping[str, Any]:
        name = model or self.model
        if name not in self._known:
            self._known[name] = self.target.model_config(name)
        return self._known[name]

    def largest(self, model: str) -> int:
        return int(self.config(model).get("max_batch_size", 0) or 0)

    def streaming(self, model: str, asked: bool) -> bool:
        return asked or bool((self.config(model).get("model_transaction_policy") or {}).get("decoupled"))

    def sequences(self, model: str) -> bool:
        """Whether the model wants sequences: an iterative one makes them itself."""
        batching = self.config(model).get("sequence_batching")
        return batching is not None and not batching.get("iterative_sequence")

    def without_priorities(self, load: Load) -> list[str]:
        """A note where a load has a priority that its model does not go by; an ensemble hands it to its steps."""
        config = self.config(load.model)
        levels = (config.get("dynamic_batching") or {}).get("priority_levels", 0)
        if not load.priority or int(levels or 0) or config.get("ensemble_scheduling"):
            return []
        return [f"{NO_PRIORITIES}: '{load.model or self.model}' has no dynamic_batching.priority_levels"]

    def id_is_text(self, model: str) -> bool:
        """Whether its correlation ids are texts."""
        for entry in (self.config(model).get("sequence_batching") or {}).get("control_input", ()):
            for control in entry.get("control", ()):
                if control.get("kind") == "CONTROL_SEQUENCE_CORRID":
                    return str(control.get("data_type")) == "TYPE_STRING"
        return False


@dataclass(slots=True)
class _Made:
    """The requests of one class; ``streams`` has the places of those that make up each sequence, if that is known."""

    requests: list[InferenceRequest]
    rows: float
    source: str
    notes: tuple[str, ...] = ()
    streams: tuple[tuple[int, ...], ...] = ()

    def plan(self, name: str, first: int, load: Load, models: _Models) -> ClassPlan:
        length = _length(load, models)
        streams = tuple(tuple(first + VARIANTS * place for place in steps) for steps in self.streams) if length else ()
        return ClassPlan(
            first, len(self.requests), name, load.model, self.rows, models.streaming(load.model, load.streaming),
            length, streams,
        )  # fmt: skip

    def expanded(self, load: Load, models: _Models) -> list[InferenceRequest]:
        """With what the load says of its requests; those of sequences once for each combination of flags."""
        made = [
            replace(
                request,
                priority=load.priority,
                timeout=round(load.timeout_s * 1e6),
                parameters={**request.parameters, **load.parameters},
            )
            for request in self.requests
        ]
        return with_flags(made, models.id_is_text(load.model)) if _length(load, models) else made


def _length(load: Load, models: _Models) -> int:
    wanted = load.sequence_length or DEFAULT_LENGTH
    return wanted if load.sequence_length or models.sequences(load.model) else 0


def with_flags(requests: Sequence[InferenceRequest], id_is_text: bool) -> list[InferenceRequest]:
    """Each request with no flag, START, END and both, and a correlation id to be put in the place of."""
    number: int | str = str(ID_FROM) if id_is_text else ID_FROM
    return [
        replace(request, sequence_id=number, sequence_start=bool(flags & START), sequence_end=bool(flags & END))
        for request in requests
        for flags in range(VARIANTS)
    ]


def _class_of(models: _Models, load: Load, inputs: Inputs) -> _Made:
    model = load.model or models.model
    config, largest = models.config(load.model), models.largest(load.model)
    sequences = _length(load, models) > 0
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


def _examples_of(models: _Models, model: str, load: Load, file: Path | None, rows: int, *, sequences: bool) -> _Made:
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
    return _Made([_request(model, example, specs) for example in drawn], max(1, rows), source, tuple(notes))


def _zeros(array: NDArray[Any]) -> NDArray[Any]:
    return np.full(array.shape, b"", np.object_) if array.dtype == np.object_ else np.zeros_like(array)


def _examples(
    directory: Path, specs: Sequence[InputSpec], seed: int, rows: int, optional: Collection[str]
) -> list[Example]:
    first = load_example_inputs(directory, specs, seed=seed, count=1, batch_size=rows, optional=optional)
    literal = sum(map(len, load_streams(directory, specs, optional=optional)))
    count = _how_many(first[0], literal)
    return load_example_inputs(directory, specs, seed=seed, count=count, batch_size=rows, optional=optional)


def _how_many(example: Example, rows: int) -> int:
    """How many requests like that one are kept encoded: one that begins with each row, and not only a few."""
    size = max(1, sum(_size(array) for array in example.values()))
    return max(1, min(max(EXAMPLES, rows), (_MAX_BYTES if rows <= EXAMPLES else _MOST_BYTES) // size))


def _of_rows(model: str, found: Sequence[Example], rows: int, seed: int, source: str, *, in_order: bool) -> _Made:
    """Requests of rows; every row is sent in turn, those of sequences in the order of the file."""
    if in_order:
        examples = [{name: _batched(array, rows) for name, array in row.items()} for row in found]
    else:
        first = next(take(found, seed, rows))
        examples = list(itertools.islice(take(found, seed, rows), _how_many(first, len(found))))
    notes: tuple[str, ...] = ()
    if len(examples) < len(found):
        notes = (f"only {len(examples)} of the {len(found)} rows are sent: more do not fit into memory at once",)
    return _Made([_request(model, example, ()) for example in examples], max(1, rows), source, notes)


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


def _given(model: str, config: Mapping[str, Any], largest: int, examples: list[dict[str, Any]]) -> _Made:
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
    return _Made(requests, rows.pop(), "given")


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


# Captured traffic -------------------------------------------------------------------------------------------------


def _captured(model: str, largest: int, trace: Trace) -> _Made:
    """The inputs of a trace in rotation, whenever they came."""
    if not trace.inputs:
        raise InvalidRequest("the trace has no inputs", where=trace.source)
    requests = [InferenceRequest(model, list(tensors)) for tensors in trace.inputs[:4096]]
    shapes = [request.inputs[0].shape for request in requests]
    rows = float(np.mean([shape[0] if largest and shape else 1 for shape in shapes]))
    return _Made(requests, rows, trace.source or "a trace")


def _of_trace(models: _Models, load: Load, inputs: Inputs) -> Prepared:
    trace = trace_of(load)
    load, redirected = _to_whom(trace, load, models.model)
    sequence_of, flags = trace.sequence_of.tolist(), _whole_flags(trace)
    requests: list[InferenceRequest] = []
    classes, notes, message_of = [], [*trace.notes, *redirected], np.zeros(len(trace), np.int64)
    for index, kind in enumerate(trace.classes):
        model = load.model or kind.model
        part = replace(
            load, model=model, priority=load.priority or kind.priority,
            timeout_s=load.timeout_s or kind.timeout / 1e6, parameters={**kind.parameters, **load.parameters},
        )  # fmt: skip
        mine = np.flatnonzero(trace.class_of == index)
        used = np.unique(trace.input_of[mine])
        base: list[InferenceRequest] = []
        place: dict[int, int] = {}
        for number in used[used >= 0].tolist():
            place[number] = len(base)
            base.append(replace(trace.request(index, number), model_name=model or models.model))
        replaced = _class_of(models, part, inputs) if -1 in used else None
        if replaced is not None:
            notes += replaced.notes
            start = len(base)
            base += replaced.requests
        wants = models.sequences(model)
        made = _Made(base, 1.0, "").expanded(replace(part, sequence_length=1 if wants else 0), models)
        step = VARIANTS if wants else 1
        first = len(requests)
        for turn, row in enumerate(mine.tolist()):
            number = int(trace.input_of[row])
            at = place[number] if number >= 0 else start + turn % len(replaced.requests) if replaced else 0
            message_of[row] = first + step * at
        rows = _mean_rows(base, message_of[mine], first, step, models.largest(model))
        # HTTP's generate_stream has no sequences and priorities; what answers once is asked as it is without a stream
        bare = kind.front == "stream" and models.target.protocol == "http"
        streaming = models.streaming(model, load.streaming or (kind.streaming and not bare))
        other = model if model != models.model else ""
        classes.append(ClassPlan(first, len(base), kind.name, other, rows, streaming, 1 if wants else 0))
        requests += made
        notes += models.without_priorities(part)
    wanted = [bool(classes[int(kind)].length) for kind in trace.class_of]
    plan = Plan(
        tuple(classes), trace.class_of.tolist(), message_of.tolist(),
        [number if wants else 0 for number, wants in zip(sequence_of, wanted, strict=True)], flags,
        request_ids=tuple(each if len(each) <= _LONGEST_ID else "" for each in trace.ids),
    )  # fmt: skip
    left_out = sum(len(each) > _LONGEST_ID for each in trace.ids)
    if left_out:
        notes.append(f"{left_out} requests are sent without their id, which is longer than {_LONGEST_ID} characters")
    lost = sum(wants and not number for wants, number in zip(wanted, sequence_of, strict=True))
    if lost:
        notes.append(f"{lost} requests to a model with a sequence batcher are of no sequence: it refuses them")
    return Prepared(tuple(requests), classes[0].rows, trace.source or "a trace", tuple(dict.fromkeys(notes)), plan)


def _to_whom(trace: Trace, load: Load, model: str) -> tuple[Load, list[str]]:
    """A replay goes where its requests went. If none of them went to the model that is measured, they are meant for it.

    Raises:
        InvalidRequest: they went to several other models.
    """
    went = sorted({kind.model for kind in trace.classes})
    if load.model or not went or model in went or "" in went:
        return load, []
    if len(went) > 1:
        text = f"the trace has no request to '{model}', its requests went to {', '.join(went)}"
        raise InvalidRequest(text, hint=f"measure one of those, or send it all: Load.replay(FILE, model='{model}')")
    return replace(load, model=model), [f"what went to '{went[0]}' when it was captured is sent to '{model}'"]


def _mean_rows(
    base: Sequence[InferenceRequest], messages: NDArray[np.int64], first: int, step: int, largest: int
) -> float:
    if not largest or not len(messages):
        return 1.0
    rows = np.array(
        [request.inputs[0].shape[0] if request.inputs and request.inputs[0].shape else 1 for request in base]
    )
    return float(rows[(messages - first) // step].mean())


def _whole_flags(trace: Trace) -> list[int]:
    """Flags by which every sequence begins and ends, also where the recording began or ended within it."""
    flags = trace.flags.copy()
    numbers, first = np.unique(trace.sequence_of, return_index=True)
    _, last = np.unique(trace.sequence_of[::-1], return_index=True)
    flags[first[numbers > 0]] |= START
    flags[len(flags) - 1 - last[numbers > 0]] |= END
    return [int(flag) for flag in flags]
