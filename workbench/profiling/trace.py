"""Recorded traffic: when requests came, of which class, with which inputs; a file that whoever captures writes.

The file is a zip of numpy arrays (``numpy.load`` reads it, without pickle; by habit ``NAME.trace.npz``):

- ``offsets_ns``, int64[n]: when each request came, from the first one's 0, ascending;
- ``class_of``, int32[n]: which of the classes it is of;
- ``input_of``, int32[n]: which of the inputs it carried; -1 where that was not kept (the model's example inputs are
  sent in its place);
- ``sequence_of``, int64[n]: the number of its sequence, from 1; 0 for a request of none. Correlation ids are not kept:
  a replay makes new ones, so that it does not meddle with sequences that are under way;
- ``flags``, uint8[n]: 1 starts its sequence, 2 ends it, 3 both;
- ``data``, uint8: the bytes of all inputs one after the other, each tensor as the v2 binary extension has it (little
  endian; an element of BYTES after its length in 4 bytes);
- ``head``, uint8: UTF-8 JSON::

    {
      "form": "workbench-trace", "version": 1, "source": "capture of http://127.0.0.1:8000", "notes": [],
      "length_ns": 60000000000,
      "classes": [{"name": "m", "model": "m", "model_version": -1, "priority": 0, "timeout": 0, "parameters": {},
                   "outputs": [], "streaming": false, "front": "http", "output_parameters": {}}],
      "inputs": [[{"name": "X", "datatype": "FP32", "shape": [1, 16], "size": 64}]]
    }

A class is everything that requests have in common beside time and tensors; ``model`` is empty for whichever model is
measured, ``timeout`` is in microseconds, as Triton's request parameter, ``outputs`` names the outputs asked for (empty:
all), ``front`` is how they came, as ``InferenceRequest`` has it (empty: not known), ``output_parameters`` what was
asked of which output (``{"Y": {"classification": 3}}``). ``ids``, where any request had one, has the id of each (empty:
none). ``inputs`` lists the tensors of each input, in the order of
their bytes in ``data``. Equal inputs are kept once.
``length_ns`` is how long the recording lasted, 0 where that is not known. ``Trace.of`` builds all this from requests.
"""

from __future__ import annotations

import errno
import hashlib
import io
import json
import os
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from workbench.errors import InvalidRequest, NotFound, WorkbenchError
from workbench.protocol.binary import from_buffer, to_buffer
from workbench.protocol.tensors import InferenceRequest, Parameter, RequestedOutput, Tensor

START, END = 1, 2
"""Flags of a request of a sequence."""

_FORM, _VERSION = "workbench-trace", 1
_COLUMNS = {
    "offsets_ns": np.int64,
    "class_of": np.int32,
    "input_of": np.int32,
    "sequence_of": np.int64,
    "flags": np.uint8,
}


@dataclass(frozen=True, slots=True)
class TraceClass:
    """What requests of a trace have in common beside time and tensors; ``timeout`` in microseconds, 0 for none."""

    name: str
    model: str
    model_version: int = -1
    priority: int = 0
    timeout: int = 0
    parameters: Mapping[str, Parameter] = field(default_factory=dict)
    outputs: tuple[str, ...] = ()
    streaming: bool = False
    front: str = ""
    output_parameters: Mapping[str, Mapping[str, Parameter]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class Trace:
    """Requests in the order in which they came; columns as the module's text describes them.

    Raises:
        InvalidRequest: columns that do not fit each other.
    """

    offsets_ns: NDArray[np.int64]
    class_of: NDArray[np.int32]
    input_of: NDArray[np.int32]
    sequence_of: NDArray[np.int64]
    flags: NDArray[np.uint8]
    classes: tuple[TraceClass, ...]
    inputs: tuple[tuple[Tensor, ...], ...] = ()
    source: str = ""
    notes: tuple[str, ...] = ()
    length_ns: int = 0
    """How long it lasts; 0: to its last request, and a mean gap more."""
    ids: tuple[str, ...] = ()
    """What each request called itself; none where none did."""

    def __post_init__(self) -> None:
        n = len(self.offsets_ns)
        lengths = {name: len(getattr(self, name)) for name in _COLUMNS}
        if self.ids:
            lengths["ids"] = len(self.ids)
        if set(lengths.values()) != {n}:
            raise InvalidRequest(f"the columns of a trace have different lengths: {lengths}")
        if n == 0:
            raise InvalidRequest("a trace without requests", where=self.source)
        if (np.diff(self.offsets_ns) < 0).any() or self.offsets_ns[0] < 0:
            raise InvalidRequest("the offsets of a trace do not ascend from 0", where=self.source)
        for name, known in (("class_of", len(self.classes)), ("input_of", len(self.inputs))):
            column = getattr(self, name)
            if column.min() < (0 if name == "class_of" else -1) or column.max() >= known:
                raise InvalidRequest(f"{name} of a trace names what it does not have", where=self.source)

    def __len__(self) -> int:
        return len(self.offsets_ns)

    @property
    def length_s(self) -> float:
        """How long it lasts, in seconds: behind its last request a gap is left, so that it can be repeated."""
        last = int(self.offsets_ns[-1])
        if self.length_ns > last:
            return self.length_ns / 1e9
        gap = last / (len(self) - 1) if len(self) > 1 else 1e9
        return (last + max(gap, 1.0)) / 1e9

    @classmethod
    def of(
        cls,
        requests: Iterable[tuple[int, InferenceRequest]],
        *,
        streaming: Iterable[bool] | None = None,
        source: str = "",
        notes: Sequence[str] = (),
        length_ns: int = 0,
    ) -> Trace:
        """A trace of requests, each with when it came (ns, of any one clock), in any order.

        Args:
            requests: (when, request); a request with a correlation id is of a sequence.
            streaming: for each, whether it was sent to an endpoint that streams; none were where it is not said.
            source: where it comes from, in words.
            notes: what else to know of it.
            length_ns: how long the recording lasted.

        Raises:
            InvalidRequest: there are none.
        """
        given = list(requests)
        streamed = list(streaming) if streaming is not None else [False] * len(given)
        order = sorted(range(len(given)), key=lambda index: given[index][0])
        book = _Book()
        for index in order:
            book.add(given[index][1], streamed[index])
        begin = given[order[0]][0] if order else 0
        return cls(
            np.array([given[index][0] - begin for index in order], np.int64),
            np.array(book.class_of, np.int32),
            np.array(book.input_of, np.int32),
            np.array(book.sequence_of, np.int64),
            np.array(book.flags, np.uint8),
            book.classes(),
            tuple(book.inputs),
            source,
            tuple(notes),
            length_ns,
            tuple(book.ids) if any(book.ids) else (),
        )

    @classmethod
    def at(cls, offsets_ns: NDArray[np.int64], *, source: str = "", length_ns: int = 0) -> Trace:
        """A trace that knows only when requests came; they go to whichever model is measured."""
        n = len(offsets_ns)
        columns: dict[str, Any] = {name: np.zeros(n, kind) for name, kind in _COLUMNS.items()}
        columns["offsets_ns"] = np.asarray(offsets_ns, np.int64)
        columns["input_of"] -= 1
        return cls(**columns, classes=(TraceClass("requests", ""),), source=source, length_ns=length_ns)

    def request(self, class_index: int, input_index: int) -> InferenceRequest:
        """A request of a class with one of the inputs (-1: with none)."""
        kind = self.classes[class_index]
        return InferenceRequest(
            kind.model,
            list(self.inputs[input_index]) if input_index >= 0 else [],
            [RequestedOutput(name, dict(kind.output_parameters.get(name, {}))) for name in kind.outputs],
            model_version=kind.model_version,
            parameters=dict(kind.parameters),
            priority=kind.priority,
            timeout=kind.timeout,
            front=kind.front,
        )

    # -- the file -----------------------------------------------------------------------------------------------------

    def to_bytes(self) -> bytes:
        """The file's bytes; equal traces give equal bytes."""
        buffers, inputs = [], []
        for tensors in self.inputs:
            entries = []
            for tensor in tensors:
                raw = bytes(to_buffer(tensor))
                buffers.append(raw)
                about: dict[str, Any] = {"name": tensor.name, "datatype": tensor.datatype, "shape": list(tensor.shape)}
                entries.append({**about, "size": len(raw)})
            inputs.append(entries)
        head = {
            "form": _FORM, "version": _VERSION, "source": self.source, "notes": list(self.notes),
            "length_ns": self.length_ns,
            "classes": [asdict(kind) for kind in self.classes], "inputs": inputs,
            **({"ids": list(self.ids)} if self.ids else {}),
        }  # fmt: skip
        arrays: dict[str, NDArray[Any]] = {name: getattr(self, name).astype(kind) for name, kind in _COLUMNS.items()}
        arrays["data"] = np.frombuffer(b"".join(buffers), np.uint8)
        arrays["head"] = np.frombuffer(json.dumps(head).encode(), np.uint8)
        out = io.BytesIO()
        with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
            for name, array in arrays.items():
                entry = io.BytesIO()
                np.lib.format.write_array(entry, np.ascontiguousarray(array), allow_pickle=False)
                info = zipfile.ZipInfo(f"{name}.npy", (1980, 1, 1, 0, 0, 0))
                info.compress_type = zipfile.ZIP_DEFLATED
                archive.writestr(info, entry.getvalue())
        return out.getvalue()

    def save(self, path: str | Path) -> Path:
        """Writes the file, in one step, readable by its owner alone: it holds what clients sent. Gives its path."""
        target = Path(path).expanduser()
        draft = _draft(target)
        try:
            with os.fdopen(_opened(draft), "wb") as file:
                file.write(self.to_bytes())
            draft.replace(target)
        finally:
            draft.unlink(missing_ok=True)
        return target

    @classmethod
    def load(cls, path: str | Path) -> Trace:
        """Reads the file.

        Raises:
            NotFound: there is none.
            InvalidRequest: it is no such file.
        """
        file = Path(path).expanduser()
        if not file.is_file():
            raise NotFound("there is no such trace", where=str(file))
        try:
            with np.load(file, allow_pickle=False) as arrays:
                head = json.loads(arrays["head"].tobytes())
                columns: dict[str, Any] = {name: arrays[name].astype(kind) for name, kind in _COLUMNS.items()}
                data = memoryview(arrays["data"].tobytes())
            if head["form"] != _FORM or head["version"] > _VERSION:
                raise ValueError(f"form {head['form']!r} version {head['version']!r}")
            classes = tuple(TraceClass(**{**kind, "outputs": tuple(kind["outputs"])}) for kind in head["classes"])
            inputs = _inputs(head["inputs"], data)
            return cls(
                **columns, classes=classes, inputs=inputs, source=head["source"], notes=tuple(map(str, head["notes"])),
                length_ns=int(head.get("length_ns", 0)), ids=tuple(map(str, head.get("ids", ()))),
            )  # fmt: skip
        except WorkbenchError:
            raise
        except Exception as error:
            raise InvalidRequest(
                f"this is no trace of the workbench: {type(error).__name__}: {error}",
                where=str(file),
                hint="traces of Triton and perf_analyzer's intervals: workbench.read_trace(FILE)",
            ) from error

    def __repr__(self) -> str:
        kinds = ", ".join(kind.name for kind in self.classes[:6]) + (", ..." if len(self.classes) > 6 else "")
        lines = [
            f"Trace: {len(self)} requests in {self.length_s:.1f} s ({len(self) / self.length_s:.1f}/s)",
            f"  classes {kinds}; {len(self.inputs)} different inputs",
        ]
        if sequences := len(np.unique(self.sequence_of[self.sequence_of > 0])):
            lines.append(f"  sequences {sequences}")
        lines += [f"  from {self.source}"] if self.source else []
        return "\n".join([*lines, *(f"  note: {note}" for note in self.notes)])


def check_place(path: str | Path) -> Path:
    """Whether ``Trace.save`` could write there, before there is anything to write; makes the folder. Gives the path.

    Raises:
        OSError: it could not.
    """
    target = Path(path).expanduser()
    if target.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    draft = _draft(target)
    try:
        os.close(_opened(draft))
    finally:
        draft.unlink(missing_ok=True)
    return target


def _draft(target: Path) -> Path:
    return target.with_name(f".{target.name}.{os.getpid()}")


def _opened(draft: Path) -> int:
    """A file of its owner alone, open to be written; its folder is made."""
    draft.parent.mkdir(parents=True, exist_ok=True)
    return os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)


def _inputs(described: Any, data: memoryview) -> tuple[tuple[Tensor, ...], ...]:
    at, inputs = 0, []
    for entries in described:
        tensors = []
        for entry in entries:
            part = data[at : at + entry["size"]]
            tensors.append(from_buffer(entry["name"], entry["datatype"], tuple(entry["shape"]), part))
            at += entry["size"]
        inputs.append(tuple(tensors))
    return tuple(inputs)


class _Book:
    """Collects classes, inputs and sequences, each once."""

    def __init__(self) -> None:
        self.class_of: list[int] = []
        self.input_of: list[int] = []
        self.sequence_of: list[int] = []
        self.flags: list[int] = []
        self.ids: list[str] = []
        self._classes: list[TraceClass] = []
        self.inputs: list[tuple[Tensor, ...]] = []
        self._class_at: dict[str, int] = {}
        self._input_at: dict[bytes, int] = {}
        self._sequences: dict[tuple[str, int | str], int] = {}
        self._begun = 0

    def add(self, request: InferenceRequest, streaming: bool) -> None:
        self.class_of.append(self._class(request, streaming))
        self.input_of.append(self._input(request.inputs))
        self.ids.append(request.id)
        self.sequence_of.append(self._sequence(request))
        self.flags.append(START * bool(request.sequence_start) + END * bool(request.sequence_end))

    def _class(self, request: InferenceRequest, streaming: bool) -> int:
        outputs = tuple(output.name for output in request.outputs)
        kind = TraceClass(
            "", request.model_name, request.model_version, request.priority, request.timeout,
            dict(request.parameters), outputs, streaming, request.front,
            {output.name: dict(output.parameters) for output in request.outputs if output.parameters},
        )  # fmt: skip
        parameters = sorted(kind.parameters.items()), sorted(kind.output_parameters.items())
        key = repr((request.model_name, request.model_version, request.priority, request.timeout, parameters, outputs,
                    streaming, request.front))  # fmt: skip
        if key not in self._class_at:
            self._class_at[key] = len(self._classes)
            self._classes.append(kind)
        return self._class_at[key]

    def classes(self) -> tuple[TraceClass, ...]:
        """The classes, each with a name of its own; the front end is in it where requests came over several."""
        bases = [kind.model + (f" priority {kind.priority}" if kind.priority else "") for kind in self._classes]
        fronts = {base: {kind.front for kind, own in zip(self._classes, bases, strict=True) if own == base}
                  for base in bases}  # fmt: skip
        named: dict[str, TraceClass] = {}
        for base, kind in zip(bases, self._classes, strict=True):
            name = f"{base} {kind.front}".rstrip() if len(fronts[base]) > 1 else base
            unique, count = name, 1
            while unique in named:
                count += 1
                unique = f"{name} ({count})"
            named[unique] = replace(kind, name=unique)
        return tuple(named.values())

    def _input(self, tensors: Sequence[Tensor]) -> int:
        if not tensors:
            return -1
        digest = hashlib.sha256()
        for tensor in tensors:
            digest.update(repr((tensor.name, tensor.datatype, tensor.shape)).encode())
            digest.update(to_buffer(tensor))
        key = digest.digest()
        if key not in self._input_at:
            self._input_at[key] = len(self.inputs)
            self.inputs.append(tuple(tensors))
        return self._input_at[key]

    def _sequence(self, request: InferenceRequest) -> int:
        """A sequence ends with its END, or when its id starts another one."""
        if request.sequence_id in (0, ""):
            return 0
        key = (request.model_name, request.sequence_id)
        if request.sequence_start or key not in self._sequences:
            self._begun += 1
            self._sequences[key] = self._begun
        number = self._sequences[key]
        if request.sequence_end:
            del self._sequences[key]
        return number
