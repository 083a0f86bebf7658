"""Rows of inputs from tables and files of other forms than ``example_inputs.json``.

A row is one inference, without the batch axis; as many as a load's ``batch_size`` go into a request.

- a pandas DataFrame, ``.csv`` or ``.parquet``: each column is the input of that name, a cell a number, a text or an
  array; columns ``NAME_0``, ``NAME_1``, ... (or ``NAME[0]``) are the elements of an input; of a model with one input,
  all columns together where none has its name; missing values in a column of floats are NaN, for an input of floats
  (in a ``.csv`` ``nan`` says so, an empty cell is refused);
- ``.npz``: arrays by input name, the rows along the first axis; ``.npy``: the same of a model with one input;
- a directory: one file for each input, named as it is (perf_analyzer's form: the raw bytes, little endian; of a text
  its characters) or ``NAME.npy``; or directories of these, a row each, in the order of their names.
"""

from __future__ import annotations

import csv
import math
import re
import zipfile
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from workbench.errors import InvalidRequest, NotFound, Unsupported, WorkbenchError
from workbench.protocol.datatypes import BY_CONFIG, BY_WIRE, Datatype
from workbench.protocol.tensors import as_bytes_array
from workbench.repository.example_inputs import Example, InputSpec

if TYPE_CHECKING:
    import pandas as pd

TABLES = (".csv", ".parquet", ".npy", ".npz")
"""How the names of files end that hold rows."""


def is_table(inputs: object) -> bool:
    """Whether this is a DataFrame, without importing pandas."""
    return type(inputs).__name__ == "DataFrame" and hasattr(inputs, "columns") and hasattr(inputs, "itertuples")


def rows_of(inputs: Any, specs: Sequence[InputSpec], optional: Collection[str]) -> list[Example]:
    """The rows of a DataFrame, or of a file or directory of one of the forms above.

    Args:
        inputs: the DataFrame or path.
        specs: name, data type and dims (without the batch axis) of the model's inputs.
        optional: those that a request may lack.

    Raises:
        NotFound: there is no such file.
        InvalidRequest: it cannot be read, or an input, row or shape does not fit; the text says which.
        Unsupported: Parquet without pyarrow.
    """
    reader = _Reader(specs, optional)
    if is_table(inputs):
        return reader.table(inputs, "the DataFrame")
    path = Path(inputs)
    if path.is_dir():
        return reader.directory(path)
    if not path.is_file():
        raise NotFound("there is no such file of inputs", where=str(path))
    if path.suffix == ".npy":
        return reader.arrays({reader.only(str(path)): _loaded(path)}, str(path))
    if path.suffix == ".npz":
        return reader.arrays(_loaded(path), str(path))
    return reader.table(_read_table(path), str(path))


def _loaded(path: Path) -> Any:
    """The array of a ``.npy`` file, those of a ``.npz`` file by name."""
    try:
        loaded = np.load(path, allow_pickle=False)
        if isinstance(loaded, np.ndarray):
            return loaded
        with loaded:
            return dict(loaded)
    except (ValueError, OSError, EOFError, MemoryError, zipfile.BadZipFile) as error:
        raise InvalidRequest(
            f"this file of arrays cannot be read: {error}", where=str(path), hint="write it with numpy.save or savez"
        ) from error


def _read_table(path: Path) -> pd.DataFrame:
    import pandas as pd

    try:
        if path.suffix == ".parquet":
            return pd.read_parquet(path)
        lines = _lines(path)
        frame = pd.read_csv(path, index_col=False)
        _check_cells(frame, lines, path)
        return frame
    except WorkbenchError:
        raise
    except ImportError as error:
        raise Unsupported(
            "Parquet needs pyarrow, which is not installed", where=str(path),
            hint="pip install 'serving-workbench[parquet]', or write a .csv",
        ) from error  # fmt: skip
    except Exception as error:
        raise InvalidRequest(f"this table cannot be read: {error}", where=str(path)) from error


def _lines(path: Path) -> list[tuple[int, list[str]]]:
    """The fields of each row of a CSV with the number of its line, the head first; pandas alone would take the first of
    too many fields as an index, and too few as empty cells.

    Raises:
        InvalidRequest: a row is longer or shorter than the head.
    """
    found: list[tuple[int, list[str]]] = []
    former = csv.field_size_limit(max(csv.field_size_limit(), path.stat().st_size))
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader, line = csv.reader(file), 1
            for fields in reader:
                if fields and (len(fields) > 1 or not fields[0].isspace()):  # pandas skips empty lines, too
                    found.append((line, fields))
                line = reader.line_num + 1
    finally:
        csv.field_size_limit(former)
    for line, fields in found[1:]:
        if len(fields) != (columns := len(found[0][1])):
            raise InvalidRequest(
                f"line {line} has {len(fields)} fields, the head has {columns}", where=str(path),
                hint="give each line one field for each name in the head; put a text with a comma into quotes",
            )  # fmt: skip
    return found


_SAID = re.compile(r"\s*[+-]?(nan|inf|infinity)\s*", re.IGNORECASE)
"""A text that means NaN or infinity, where another one becomes it because there is no number or it is too large."""


def _check_cells(frame: pd.DataFrame, lines: list[tuple[int, list[str]]], path: Path) -> None:
    """Refuses cells that are NaN or infinite without saying so."""
    if len(lines) != len(frame) + 1:
        raise InvalidRequest("this table cannot be read: its quotes do not match", where=str(path))
    for at, name in enumerate(frame.columns):
        column = frame[name]
        empty = column.isna().to_numpy()
        large = np.isinf(column.to_numpy()) if column.dtype.kind == "f" else np.zeros_like(empty)
        for row in np.flatnonzero(empty | large):
            line, fields = lines[row + 1]
            if not _SAID.fullmatch(fields[at]):
                is_what = "is too large for a number" if large[row] else "is empty"
                text = f" ({fields[at]:.40})" if fields[at].strip() else ""
                raise InvalidRequest(
                    f"column '{name}'{text} {is_what}", where=f"{path}, line {line}",
                    hint="fill it in; where that is meant, write nan or inf",
                )  # fmt: skip


def as_row(value: Any, spec: InputSpec, where: str) -> NDArray[Any]:
    """A value as an input of one row: its data type, its shape without the batch axis.

    Raises:
        InvalidRequest: it does not fit; ``where`` is told.
    """
    name, kind, dims = spec
    shape = _shape(np.shape(value), [int(dim) for dim in dims])
    array = typed(value, _row(kind), f"input '{name}'", where)
    if shape is None:
        raise InvalidRequest(
            f"input '{name}' has shape {list(np.shape(value))}, the model's dims are {list(dims)}",
            where=where, hint="give the shape of one row, without the batch axis",
        )  # fmt: skip
    return array.reshape(shape)


def typed(value: Any, row: Datatype, what: str, where: str) -> NDArray[Any]:
    """An array of a data type, where that loses nothing but a float's precision.

    Raises:
        InvalidRequest: texts for numbers, None, fractions for whole numbers, numbers out of range. NaN and infinity are
            numbers of a float.
    """
    array = value if isinstance(value, np.ndarray) else _array(value)
    if row.wire == "BYTES":
        return as_bytes_array(array.astype(object))
    if array.dtype == np.object_ or array.dtype.kind in "US":
        array = _numbers(array, row, what, where)
    if array.dtype == row.numpy:
        return array
    if array.dtype.kind in "cmMV":
        raise InvalidRequest(f"{what} is to be of {row.wire}, not of {array.dtype}", where=where)
    if row.numpy.kind in "iu" and array.size:
        limits: Any = np.iinfo(row.numpy)
        whole = array.dtype.kind in "biu" or bool(np.all(array == np.floor(array)))
        if not whole or array.min() < limits.min or array.max() > limits.max:
            raise InvalidRequest(
                f"{what} is to be of {row.wire}: whole numbers from {limits.min} to {limits.max}", where=where
            )
    with np.errstate(over="ignore"):
        found = array.astype(row.numpy)
    if _is_float(row):
        lost = np.isinf(found) & np.isfinite(array)
        if lost.any():
            raise _too_large(array, lost, row, what, where)
    return found


def _is_float(row: Datatype) -> bool:
    return row.numpy.kind == "f" or row.numpy.name == "bfloat16"  # numpy itself has no such kind


def _numbers(array: NDArray[Any], row: Datatype, what: str, where: str) -> NDArray[Any]:
    """The numbers of an array of objects or texts."""
    try:
        given = np.array(array.tolist(), dtype=np.object_)
        empty = np.array([item is None for item in given.flat], np.bool_).reshape(given.shape)
        if empty.any():
            raise InvalidRequest(
                f"{what} has no value at {_place(empty)}: None",
                where=where,
                hint="give a number; NaN is one of a float",
            )
        found = np.array(array.tolist(), dtype=np.float64 if row.numpy.kind not in "iub" else None)
        if found.dtype.kind not in "iufb":
            raise ValueError("texts")
    except (ValueError, TypeError):
        raise InvalidRequest(f"{what} is to be of {row.wire}, not of texts or objects", where=where) from None
    except OverflowError:
        raise InvalidRequest(f"{what} has a number that is too large for {row.wire}", where=where) from None
    if found.dtype.kind == "f":
        items: list[Any] = given.ravel().tolist()
        said = [not isinstance(item, str | bytes) or bool(_SAID.fullmatch(_text(item))) for item in items]
        lost = np.isinf(found) & ~np.array(said, np.bool_).reshape(found.shape)
        if lost.any():
            raise _too_large(given, lost, row, what, where)
    return found


def _text(item: str | bytes) -> str:
    return item if isinstance(item, str) else item.decode("latin-1")


def _place(at: NDArray[np.bool_]) -> list[int]:
    """The index of the first that is true."""
    return [int(index) for index in np.argwhere(at)[0]]


def _too_large(array: NDArray[Any], lost: NDArray[np.bool_], row: Datatype, what: str, where: str) -> InvalidRequest:
    value = array[lost].flat[0]
    return InvalidRequest(
        f"{what} has {value} at {_place(lost)}, which is too large for {row.wire}",
        where=where,
        hint="give a number that it can hold; where infinity is meant, give inf",
    )


def _array(value: Any) -> NDArray[Any]:
    if isinstance(value, str | bytes):
        out = np.empty((), np.object_)
        out[()] = value
        return out
    try:
        return np.asarray(value)
    except ValueError:  # ragged
        return np.asarray(value, dtype=np.object_)


def _row(kind: str) -> Datatype:
    found = BY_CONFIG.get(kind) or BY_WIRE.get(kind)
    if found is None:
        raise InvalidRequest(f"unknown data type '{kind}'")
    return found


def _shape(shape: tuple[int, ...], dims: list[int]) -> tuple[int, ...] | None:
    """The shape of one row as the model has it; None where there is none for so many elements."""
    if len(shape) == len(dims) and all(dim in (-1, size) for size, dim in zip(shape, dims, strict=True)):
        return shape
    size, known = math.prod(shape), math.prod(dim for dim in dims if dim != -1)
    flat = len(shape) <= 1 or shape == (1, *dims)
    if not flat or dims.count(-1) > 1 or known == 0 or size % known or (-1 not in dims and size != known):
        return None
    return tuple(size // known if dim == -1 else dim for dim in dims)


@dataclass(frozen=True, slots=True)
class _Cells:
    """A column: its ``values``, which are ``empty`` (NaN, None, NA), and whether it is of ``floats``: then those are
    NaN."""

    values: list[Any]
    empty: list[bool]
    floats: bool


def _cells(column: Any) -> _Cells:
    floats = getattr(column.dtype, "kind", "") == "f"  # also of pandas' own Float64
    values = column.to_numpy(np.float64, na_value=np.nan) if floats else column
    return _Cells(values.tolist(), column.isna().tolist(), floats)


class _Reader:
    def __init__(self, specs: Sequence[InputSpec], optional: Collection[str]) -> None:
        self._specs = {name: (name, kind, dims) for name, kind, dims in specs}
        self._optional = set(optional)

    def only(self, where: str) -> str:
        """The model's one input."""
        needed = [name for name in self._specs if name not in self._optional] or list(self._specs)
        if len(needed) != 1:
            raise InvalidRequest(
                f"one array is not enough: the model has the inputs {', '.join(needed)}", where=where,
                hint="save them by name: numpy.savez(FILE, NAME=array, ...)",
            )  # fmt: skip
        return needed[0]

    def arrays(self, arrays: Mapping[str, NDArray[Any]], where: str) -> list[Example]:
        self._check_names(arrays, where)
        columns: dict[str, NDArray[Any]] = {}
        for name, array in arrays.items():
            dims = self._specs[name][2]
            # One row where the array has exactly the rank of one.
            columns[name] = array[np.newaxis] if array.ndim == len(dims) else array
        lengths = {name: len(array) for name, array in columns.items()}
        if len(set(lengths.values())) > 1:
            raise InvalidRequest(f"the inputs have different numbers of rows: {lengths}", where=where)
        if not any(lengths.values()):
            raise InvalidRequest("there are no rows of inputs", where=where)
        return [
            {name: as_row(array[row], self._specs[name], f"{where}, row {row}") for name, array in columns.items()}
            for row in range(next(iter(lengths.values())))
        ]

    def table(self, frame: Any, where: str) -> list[Example]:
        """The rows of a table. NaN and missing values are NaN in a column of floats for an input of floats (to a forest
        they mean something), and refused elsewhere."""
        names = [str(name) for name in frame.columns]
        columns = self._columns(names, where)
        if not len(frame):
            raise InvalidRequest("there are no rows of inputs", where=where)
        cells = {name: _cells(frame.iloc[:, at]) for at, name in enumerate(names)}
        rows = []
        for row in range(len(frame)):
            place = f"{where}, row {row}"
            example = {}
            for name, of in columns.items():
                for column in of:
                    found = cells[column]
                    if found.empty[row] and not (found.floats and _is_float(_row(self._specs[name][1]))):
                        raise InvalidRequest(
                            f"column '{column}' of input '{name}' is empty", where=place,
                            hint="fill it in; NaN is a value in a column of floats, for an input of floats",
                        )  # fmt: skip
                values = [cells[column].values[row] for column in of]
                example[name] = as_row(values[0] if of == [name] else values, self._specs[name], place)
            rows.append(example)
        return rows

    def directory(self, path: Path) -> list[Example]:
        inner = sorted(entry for entry in path.iterdir() if entry.is_dir())
        places = inner or [path]
        return [self._files(place) for place in places]

    def _files(self, path: Path) -> Example:
        found = {}
        for name in self._specs:
            for file in (path / name, path / f"{name}.npy"):
                if file.is_file():
                    found[name] = file
        self._check_names(found, str(path))
        return {name: as_row(self._raw(name, file), self._specs[name], str(file)) for name, file in found.items()}

    def _raw(self, name: str, file: Path) -> Any:
        row = _row(self._specs[name][1])
        if file.suffix == ".npy":
            return _loaded(file)
        raw = file.read_bytes()
        if row.wire == "BYTES":
            return raw
        if len(raw) % row.itemsize:
            raise InvalidRequest(
                f"input '{name}': {len(raw)} bytes are no whole number of {row.wire} elements", where=str(file)
            )
        return np.frombuffer(raw, row.numpy)

    def _columns(self, names: list[str], where: str) -> dict[str, list[str]]:
        """Which columns an input is made of."""
        twice = [name for name, count in Counter(names).items() if count > 1]
        if twice:
            raise InvalidRequest(f"there are two columns '{twice[0]}'", where=where, hint="give each a name of its own")
        found: dict[str, list[str]] = {}
        for name in self._specs:
            if name in names:
                found[name] = [name]
                continue
            form = re.compile(re.escape(name) + r"(?:_(\d+)|\[(\d+)\]|\.(\d+))")
            elements = {
                int(match[1] or match[2] or match[3]): match[0] for match in map(form.fullmatch, names) if match
            }
            if elements:
                found[name] = [elements[index] for index in sorted(elements)]
                if sorted(elements) != list(range(len(elements))):
                    raise InvalidRequest(
                        f"the columns of input '{name}' have gaps: {', '.join(found[name])}", where=where
                    )
        used = {column for own in found.values() for column in own}
        if not found and len(self._specs) == 1:
            return {next(iter(self._specs)): names}
        extra = [name for name in names if name not in used]
        if extra:
            raise InvalidRequest(
                f"the model has no input for the column{'s' if len(extra) > 1 else ''} {', '.join(extra[:8])}",
                where=where, hint=f"its inputs are: {', '.join(self._specs)}",
            )  # fmt: skip
        self._check_names(found, where)
        return found

    def _check_names(self, given: Collection[str], where: str) -> None:
        inputs = f"its inputs are: {', '.join(self._specs)}"
        for name in given:
            if name not in self._specs:
                raise InvalidRequest(f"the model has no input '{name}'", where=where, hint=inputs)
        for name in self._specs:
            if name not in given and name not in self._optional:
                raise InvalidRequest(f"input '{name}' is missing", where=where, hint=inputs)
