"""Example inputs of a model: ``MODEL/example_inputs.json``, read by profile, compare, warm-up, verify and export.

The file is perf_analyzer's ``--input-data`` form, so perf_analyzer reads it too, plus ``ranges``::

    {
      "data": [
        {"input_ids": {"content": [101, 7592, 102], "shape": [3]}, "attention_mask": [1, 1, 1]},
        {"IMAGE": {"file": "cat.jpg"}}
      ],
      "ranges": {
        "input":     {"min": -1.0, "max": 1.0},
        "input_ids": {"min": 999, "max": 30521, "shapes": [[16], [32]]},
        "TEXT":      {"vocabulary": ["the", "naïve", "cat"], "words": [0, 12]},
        "MODE":      {"values": ["fast", "exact"]}
      }
    }

``data`` (perf_analyzer's rules: one entry a row, without the batch axis; a list of lists is several streams):

- a tensor is a list, flat or nested, or an object with ``content`` and, where a dimension is -1, ``shape``;
- ``b64`` is the tensor's bytes in base64: little endian, each BYTES element after its length in 4 bytes;
- ``file`` (not in perf_analyzer) names a file in ``MODEL/example_inputs/``: a ``.npy`` array, the tensor's raw bytes,
  or for BYTES one element with the whole file.

``ranges`` describe seeded random draws, for models whose literal examples would be large or many:

- numbers: ``min`` and ``max``, both possible for integers; strings: ``vocabulary``, of which ``words`` (fewest, most)
  are joined by spaces; anything: ``values`` to draw from;
- ``shapes`` gives the shapes without the batch axis where a dimension is -1 (``shape`` where there is one). One
  position in the lists is drawn for a whole request, so tensors that belong together stay equally long.

Where the file gives neither for an input: floats in [0, 1), integers 0 or 1 (valid in every vocabulary), lower-case
words.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from workbench.errors import ConfigError
from workbench.protocol.datatypes import BY_CONFIG, BY_WIRE
from workbench.repository.example_ranges import Range, draw, parse_ranges
from workbench.repository.example_tensors import FOLDER_NAME, InputTensor, parse_tensor
from workbench.repository.files import read_regular
from workbench.repository.written_numbers import read_json

FILE_NAME = "example_inputs.json"

InputSpec = tuple[str, str, Sequence[int]]
"""An input of a model: name, data type (``INT64`` or ``TYPE_INT64``), dims without the batch axis (-1: any)."""

Example = dict[str, NDArray[Any]]
"""One request's inputs; the arrays are read-only, since several requests may share them."""

Source = Literal["auto", "data", "ranges"]

_TOP_KEYS = {"data", "validation_data", "ranges"}


@dataclass(frozen=True, slots=True)
class _File:
    """A parsed file; ``path`` may not exist, then there are neither streams nor ranges."""

    path: Path
    streams: tuple[tuple[Example, ...], ...] = ()
    ranges: Mapping[str, Range] = field(default_factory=dict)

    def fail(self, place: str, message: str, hint: str) -> ConfigError:
        return ConfigError(message, where=f"{self.path}: {place}" if place else str(self.path), hint=hint)


def load_example_inputs(
    model_dir: Path,
    inputs: Sequence[InputSpec],
    *,
    seed: int = 0,
    count: int = 1,
    batch_size: int = 1,
    source: Source = "auto",
    optional: Collection[str] = (),
) -> list[Example]:
    """``count`` requests for a model; the same arguments give the same bytes, and a larger count only adds to the end.

    Args:
        model_dir: the model's directory, or a file of that form; without ``example_inputs.json`` all inputs are drawn
            at random.
        inputs: name, data type and dims (without the batch axis) of each input, as in the model's configuration.
        seed: of the order in which examples are taken and of every random draw.
        batch_size: rows of a request. 0 for a model whose ``max_batch_size`` is 0: no batch axis. The rows of a
            request are different examples of one shape, in turn, as perf_analyzer takes them.
        source: ``data``, ``ranges``, or ``auto``: ``data`` where there is any, else ``ranges``.
        optional: inputs that a request may lack; they are sent only where the file mentions them.

    Raises:
        ConfigError: the file is not valid, does not fit the inputs, or a shape is not known.
    """
    specs = _specs(inputs, optional)
    file = _read(Path(model_dir), specs)
    rows = [row for stream in file.streams for row in stream]
    if source == "data" and not rows:
        raise file.fail("data", "there are no literal examples", 'add entries to "data" or draw from the ranges')
    if rows and source != "ranges":
        return list(itertools.islice(take(rows, seed, batch_size), max(count, 0)))
    generators = (np.random.default_rng([seed, i]) for i in range(max(count, 0)))
    requests = (draw(specs, file.ranges, rng, batch_size, file.fail) for rng in generators)
    return [{name: _frozen(array) for name, array in request.items()} for request in requests]


def load_streams(
    model_dir: Path, inputs: Sequence[InputSpec], *, optional: Collection[str] = ()
) -> list[list[Example]]:
    """The literal examples as the file has them, one list a stream, in order and without the batch axis.

    For models that keep state: a stream's entries are the steps of one sequence. Empty where there is no ``data``.

    Raises:
        ConfigError: as ``load_example_inputs``.
    """
    return [list(stream) for stream in _read(Path(model_dir), _specs(inputs, optional)).streams]


def inputs_of(config: Mapping[str, Any]) -> tuple[list[InputSpec], frozenset[str]]:
    """The inputs of a model, and which of them are optional, from its configuration as Triton's JSON has it.

    Works on the answer of any server's ``/v2/models/MODEL/config``; dims that JSON has as strings are read.
    """
    entries = config.get("input", ())
    specs: list[InputSpec] = [
        (str(entry["name"]), str(entry["data_type"]), [int(dim) for dim in entry.get("dims", ())]) for entry in entries
    ]
    return specs, frozenset(str(entry["name"]) for entry in entries if entry.get("optional"))


# Reading ----------------------------------------------------------------------------------------------------------


def _specs(inputs: Sequence[InputSpec], optional: Collection[str]) -> list[InputTensor]:
    specs = []
    for name, datatype, dims in inputs:
        row = BY_WIRE.get(datatype) or BY_CONFIG.get(datatype)
        if row is None:
            raise ConfigError(
                f"input '{name}' has the unknown data type '{datatype}'", hint=f"one of {', '.join(BY_WIRE)}"
            )
        specs.append(InputTensor(name, row, tuple(int(dim) for dim in dims), name in optional))
    return specs


def _read(model_dir: Path, specs: Sequence[InputTensor]) -> _File:
    path = model_dir if model_dir.is_file() else model_dir / FILE_NAME
    file = _File(path)
    try:
        text = read_regular(path).decode("utf-8")
    except FileNotFoundError:
        return file
    except (OSError, UnicodeDecodeError) as error:
        raise file.fail("", f"cannot read the example inputs: {error}", "save the file as UTF-8 text") from error
    try:
        top = read_json(text)
    except RecursionError as error:
        raise file.fail("", "the example inputs are nested too deep", "see perf_analyzer's --input-data") from error
    except json.JSONDecodeError as error:
        raise ConfigError(
            f"the example inputs are not JSON: {error.msg}",
            line=error.lineno,
            column=error.colno,
            where=f"{path}, line {error.lineno}, column {error.colno}",
            hint="correct the file there",
        ) from error
    if not isinstance(top, dict) or not set(top) <= _TOP_KEYS or not set(top) & {"data", "ranges"}:
        got = f"the keys {sorted(top)}" if isinstance(top, dict) else type(top).__name__
        raise file.fail(
            "", f'expected an object with "data", "ranges" or both, got {got}', "see perf_analyzer's --input-data"
        )
    ranges = parse_ranges(top.get("ranges", {}), specs, file.fail)
    return _File(path, tuple(_streams(file, top.get("data", []), specs)), ranges)


def _streams(file: _File, data: Any, specs: Sequence[InputTensor]) -> Iterator[tuple[Example, ...]]:
    if not isinstance(data, list):
        raise file.fail("data", '"data" is not a list', "list one object for each row, or one list for each stream")
    kinds = {type(entry) for entry in data}
    if not kinds <= {dict} and not kinds <= {list}:
        raise file.fail(
            "data",
            '"data" mixes entries of different kinds',
            "use either objects (one stream) or lists of objects (streams)",
        )
    if kinds == {dict}:
        yield tuple(_entry(file, f"data[{i}]", entry, specs) for i, entry in enumerate(data))
    for i, stream in enumerate(data if kinds == {list} else ()):
        yield tuple(_entry(file, f"data[{i}][{k}]", entry, specs) for k, entry in enumerate(stream))


def _entry(file: _File, place: str, entry: Any, specs: Sequence[InputTensor]) -> Example:
    if not isinstance(entry, dict):
        raise file.fail(place, "an entry is not an object", 'write {"INPUT": [...], ...}')
    known = {spec.name for spec in specs}
    # perf_analyzer takes a key "model" for OpenAI servers.
    for name in entry.keys() - known - {"model"}:
        raise file.fail(place, f"the model has no input '{name}'", f"its inputs are: {', '.join(sorted(known))}")
    example = {}
    folder = file.path.parent / FOLDER_NAME
    for spec in specs:
        if spec.name in entry:
            array = parse_tensor(folder, f"{place}.{spec.name}", entry[spec.name], spec, file.fail)
            array.flags.writeable = False
            example[spec.name] = array
        elif not spec.optional:
            raise file.fail(place, f"input '{spec.name}' is missing", "give it in every entry")
    return example


# Taking literal examples ------------------------------------------------------------------------------------------


def take(rows: Sequence[Example], seed: int, batch_size: int) -> Iterator[Example]:
    """Requests without end: all rows in a seeded order, then in another; a batch is filled up with equal shapes."""
    groups: dict[Any, list[int]] = {}
    keys = [tuple((name, array.shape) for name, array in row.items()) for row in rows]
    for index, key in enumerate(keys):
        groups.setdefault(key, []).append(index)
    for cycle in itertools.count():
        for head in np.random.default_rng([seed, cycle]).permutation(len(rows)):
            if batch_size == 0:
                yield dict(rows[head])
                continue
            group = groups[keys[head]]
            at = group.index(head)
            chosen = [rows[group[(at + i) % len(group)]] for i in range(batch_size)]
            yield {name: _frozen(_stack([row[name] for row in chosen])) for name in rows[head]}


def _stack(rows: Sequence[NDArray[Any]]) -> NDArray[Any]:
    return rows[0][np.newaxis] if len(rows) == 1 else np.stack(rows)


def _frozen(array: NDArray[Any]) -> NDArray[Any]:
    array.flags.writeable = False
    return array
