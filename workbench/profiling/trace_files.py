"""Traces from files: our own, Triton's trace files, perf_analyzer's request intervals.

Triton's (the trace extension, ``--trace-config``): a JSON array; an entry with ``model_name`` opens a trace, entries of
the same ``id`` bring its ``timestamps``. A request came at its first timestamp of the front end (``HTTP_RECV_START``,
``GRPC_WAITREAD_START``), else at ``REQUEST_START`` or ``QUEUE_START``. What ensembles and BLS sent to their models
(``parent_id``) is left out: the replay of the request brings it about again. Where the level ``TENSORS`` was on, the
inputs are taken from ``TENSOR_QUEUE_INPUT``, those of numbers; texts are not, as their bounds are not in the file. A
sampled trace (``trace_rate`` n) has every n-th request only: replay it at factor n for the whole load.

perf_analyzer's (``--request-intervals``): a whole number a line, the microseconds between one request and the next.
"""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from workbench.errors import InvalidRequest, NotFound
from workbench.profiling.trace import Trace
from workbench.protocol.datatypes import BY_WIRE
from workbench.protocol.tensors import InferenceRequest, Tensor
from workbench.repository.files import sha256_of

if TYPE_CHECKING:
    from workbench.profiling.load import Load

HOME = Path("runs") / "traces"
"""Where traces go that were not saved by whoever made them: beside the runs that are measured with them."""

_CAME = ("HTTP_RECV_START", "GRPC_WAITREAD_START", "REQUEST_START", "QUEUE_START")


def read_trace(path: str | Path) -> Trace:
    """A trace from a file of ours, of Triton's trace extension, or of perf_analyzer's intervals, told by its content.

    Raises:
        NotFound: there is no such file.
        InvalidRequest: it is none of them, or has no request.
    """
    file = Path(path).expanduser()
    if not file.is_file():
        raise NotFound("there is no such trace", where=str(file))
    with file.open("rb") as stream:
        start = stream.read(64).lstrip()
    if start.startswith(b"PK"):
        return Trace.load(file)
    if start.startswith((b"[", b"{")):
        return _triton(file)
    return _intervals(file)


class HasTrace(Protocol):
    """What can be replayed as a trace: a capture."""

    @property
    def trace(self) -> Trace:
        """The trace."""


def kept(trace: Trace | HasTrace | str | Path) -> tuple[Path, str, Trace]:
    """A trace's file, the file's hash, and the trace; one that has no file is written into ``HOME``."""
    if isinstance(trace, str | Path):
        path = Path(trace).expanduser().resolve()
        read = read_trace(path)
        return path, sha256_of(path), read
    if not isinstance(trace, Trace):
        if not hasattr(trace, "trace"):
            raise InvalidRequest(
                f"what is replayed is a trace, a capture or a file, got {trace!r:.80}", hint="Load.replay(FILE)"
            )
        trace = trace.trace
    data = trace.to_bytes()
    digest = hashlib.sha256(data).hexdigest()
    name = re.sub(r"[^a-z0-9]+", "-", trace.source.partition(" at ")[0].lower())[:40].strip("-") or "trace"
    path = (HOME / f"{name}-{digest[:12]}.trace.npz").resolve()
    try:
        if not path.is_file():
            trace.save(path)
    except OSError as error:
        raise InvalidRequest(
            f"the trace cannot be kept for the replay: {error.strerror or error}",
            where=str(path),
            hint="save it where that is possible, and replay the file: trace.save(FILE)",
        ) from error
    return path, digest, trace


def trace_of(load: Load) -> Trace:
    """The trace that a load replays.

    Raises:
        NotFound: its file is not there any more.
        InvalidRequest: it is another one now.
    """
    path = Path(load.trace)
    trace = read_trace(path)
    if load.trace_sha256 and sha256_of(path) != load.trace_sha256:
        raise InvalidRequest(
            "the trace's file is another one now", where=load.trace, hint="make the load again: Load.replay(FILE)"
        )
    return trace


def _intervals(file: Path) -> Trace:
    gaps = []
    try:
        lines = file.read_text().splitlines()
    except UnicodeDecodeError:
        raise InvalidRequest("this is no trace", where=str(file), hint="one number of microseconds a line") from None
    for number, line in enumerate(lines, start=1):
        text = line.strip()
        if not text:
            continue
        try:
            gap = float(text)
        except ValueError:
            gap = -1.0
        if not 0 <= gap < 1e12:
            raise InvalidRequest(
                f"'{text[:40]}' is no number of microseconds", where=f"{file}, line {number}",
                hint="one interval a line, as perf_analyzer's --request-intervals",
            )  # fmt: skip
        gaps.append(gap)
    if not gaps:
        raise InvalidRequest("there are no intervals", where=str(file))
    times = np.cumsum([0.0, *gaps])[:-1] * 1000
    source = f"request intervals of {file.name}"
    return Trace.at(times.astype(np.int64), source=source, length_ns=int(sum(gaps) * 1000))


def _triton(file: Path) -> Trace:
    try:
        text = file.read_text()
        entries = json.loads(text)
        if isinstance(entries, dict):
            entries = [entries]
        if not isinstance(entries, list) or not all(isinstance(entry, dict) and "id" in entry for entry in entries):
            raise ValueError("not an array of objects with an id")
    except (ValueError, UnicodeDecodeError) as error:
        raise InvalidRequest(
            f"this is no trace file of Triton: {error}", where=str(file), hint="the file of --trace-config triton,file="
        ) from None
    requests: dict[Any, dict[str, Any]] = {}
    for entry in entries:
        known = requests.setdefault(entry["id"], {"times": {}, "tensors": []})
        known |= {key: entry[key] for key in ("model_name", "model_version", "parent_id") if key in entry}
        for stamp in entry.get("timestamps", ()):
            known["times"].setdefault(stamp["name"], int(stamp["ns"]))
        if entry.get("activity") == "TENSOR_QUEUE_INPUT":
            known["tensors"].append(entry["tensor"])
    found, children, unknown = [], 0, 0
    for known in requests.values():
        when = next((known["times"][name] for name in _CAME if name in known["times"]), None)
        if known.get("parent_id"):
            children += 1
        elif "model_name" in known and when is not None:
            tensors = [_tensor(each) for each in known["tensors"]]
            whole = [each for each in tensors if each is not None]
            unknown += len(whole) != len(tensors)
            inputs = whole if len(whole) == len(tensors) else []
            found.append((when, InferenceRequest(known["model_name"], inputs)))
    if not found:
        raise InvalidRequest(
            "no request in this trace file has a timestamp", where=str(file), hint="trace with level TIMESTAMPS"
        )
    notes = [f"{children} requests of ensembles and BLS to their models are left out"] if children else []
    notes += [f"of {unknown} requests the inputs cannot be read from the file"] if unknown else []
    return Trace.of(found, source=f"Triton's trace {file.name}", notes=notes)


def _tensor(value: dict[str, Any]) -> Tensor | None:
    """An input as the trace has it: numbers with commas between; None for what cannot be told apart."""
    row = BY_WIRE.get(str(value.get("dtype")))
    if row is None or row.wire == "BYTES":
        return None
    try:
        shape = tuple(int(part) for part in re.findall(r"-?\d+", str(value["shape"])))
        numbers = [part for part in str(value["data"]).split(",") if part]
        kind = row.numpy if row.numpy.kind in "iu" else np.dtype(np.float64)
        return Tensor(str(value["name"]), row.wire, shape, np.array(numbers, kind).astype(row.numpy).reshape(shape))
    except (KeyError, ValueError):
        return None
