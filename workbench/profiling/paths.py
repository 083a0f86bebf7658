"""The paths of a grid: in the forms that people write, checked against the schema and what is applied, read back."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice, product
from typing import Any

from workbench.config import ConfigDocument
from workbench.config.path import Step, format_path, parse_path
from workbench.config.schema import FieldType, MessageType, root
from workbench.config.spelling import closest
from workbench.errors import ConfigError
from workbench.profiling.point import edits_of
from workbench.profiling.settings import split_setting

_TRIED = 256
"""How many combinations are tried on the text before a sweep begins."""


def normal_grid(grid: Mapping[str, Sequence[Any]], model: str) -> dict[str, list[Any]]:
    """A grid with its short forms written out.

    - ``parameters[FOO]`` with plain values stands for ``parameters["FOO"]`` with ``{"string_value": ...}``: Triton's
      parameters are strings, a number is written as JSON writes it.
    - For a list field (``dynamic_batching.preferred_batch_size``) a list of plain values is one value: ``[4, 8]`` sets
      both sizes. Several values are a list of lists: ``[[4, 8], [16]]``.

    Raises:
        ConfigError: the schema has no such path; the text says what exists there, and the nearest name.
    """
    out: dict[str, list[Any]] = {}
    for key, values in grid.items():
        name, path = split_setting(key, model)
        steps = _steps(path)
        last = steps[-1]
        plain = list(values)
        if last.field.repeated and not last.picks and not last.field.is_map and _is_flat(plain):
            plain = [plain]
        if last.field.is_map and last.key is not None and _is_string_value(last.field):
            plain = [_string_value(value) for value in plain]
        prefix = "" if key == path else f"{name}:"
        out[prefix + format_path(steps)] = plain
    return out


def _is_flat(values: Sequence[Any]) -> bool:
    return bool(values) and not any(value is None or isinstance(value, list | tuple) for value in values)


def _is_string_value(field: FieldType) -> bool:
    value = field.body.fields["value"]
    return value.message is not None and list(value.message.fields) == ["string_value"]


def _string_value(value: Any) -> Any:
    if value is None or isinstance(value, Mapping):
        return value
    if isinstance(value, bool):
        return {"string_value": "true" if value else "false"}
    return {"string_value": str(value)}


def _steps(path: str) -> tuple[Step, ...]:
    try:
        return parse_path(path)
    except ConfigError as error:
        meant = _elsewhere(path)
        if meant and "did you mean" not in error.hint:
            error.hint = f"did you mean {meant}? {error.hint}".rstrip()
        raise


def _elsewhere(path: str) -> str:
    """The whole path of a field that was named without what stands before it, or nearly so."""
    word = path.rpartition(".")[2].partition("[")[0]
    places = dict(reversed([(name, place) for name, place in _fields(root(), "", 4)]))
    found = closest(word, places, cutoff=0.8)
    return places[found] if found is not None and places[found] != path else ""


def _fields(message: MessageType, prefix: str, depth: int) -> Iterator[tuple[str, str]]:
    """Field names with the path of each, the shallow ones first."""
    for field in message.fields.values():
        yield field.name, prefix + field.name
    if depth:
        for field in message.fields.values():
            if field.message is not None and not field.is_map:
                index = "[0]" if field.repeated else ""
                yield from _fields(field.message, f"{prefix}{field.name}{index}.", depth - 1)


def check_grid(grid: Mapping[str, Sequence[Any]], model: str, document: Callable[[str], ConfigDocument]) -> None:
    """Refuses a grid of which no configuration can be written at all: an index that is not there, a wrong type.

    A value that only some combinations cannot take, or that the server refuses, is a row of the result.

    Args:
        grid: in normal form.
        model: the model that is swept.
        document: gives the configuration of a model that is applied.

    Raises:
        ConfigError: the first combination's complaint, with what exists there.
    """
    complaints: list[ConfigError] = []
    for values in islice(product(*grid.values()), _TRIED):
        own: dict[str, dict[str, Any]] = {}
        for key, value in zip(grid, values, strict=True):
            name, path = split_setting(key, model)
            own.setdefault(name, {})[path] = value
        try:
            for name, settings in own.items():
                document(name).edit(edits_of(settings))
        except ConfigError as error:
            complaints.append(error)
        else:
            return
    if complaints:
        raise complaints[0]


def read_back_differences(settings: Mapping[str, Any], config: Mapping[str, Any]) -> list[str]:
    """What a server says of the values that were set, where it says something else.

    Args:
        settings: values by path, as set; None was removed.
        config: the configuration as read back, Triton's JSON.
    """
    texts = []
    filled = [config.get("max_batch_size")]  # what Triton writes where no preferred batch size is given
    for path, asked in settings.items():
        try:
            found, got = _value_at(config, parse_path(path))
        except ConfigError:
            continue  # a target of another kind has paths of its own
        if asked is not None and not (_agrees(asked, got, filled) if found else not asked):
            texts.append(f"{path} was set to {asked!r}, the server says {got!r}" if found else _missing(path, asked))
    return texts


def _missing(path: str, asked: Any) -> str:
    return f"{path} was set to {asked!r}, the server's configuration does not have it"


def _value_at(config: Any, steps: Sequence[Step]) -> tuple[bool, Any]:
    for step in steps:
        if not isinstance(config, Mapping) or step.field.name not in config:
            return False, None
        config = config[step.field.name]
        if step.key is not None:
            if not isinstance(config, Mapping) or str(step.key) not in config:
                return False, None
            config = config[str(step.key)]
        elif step.index is not None:
            if not isinstance(config, Sequence) or step.index >= len(config):
                return False, None
            config = config[step.index]
    return True, config


def _agrees(asked: Any, got: Any, filled: Sequence[Any]) -> bool:
    """Whether what was read back is what was set; a server may complete a message, choose what it is left to choose
    (an empty list, which it may fill in as ``filled``; ``KIND_AUTO``), and write numbers as text."""
    if isinstance(asked, Mapping):
        return isinstance(got, Mapping) and all(
            _agrees(value, got.get(str(key)), filled) if str(key) in got else not value for key, value in asked.items()
        )
    if isinstance(asked, list | tuple):
        if not asked:
            return not got or got == filled
        same_length = isinstance(got, list) and len(got) == len(asked)
        return same_length and all(_agrees(one, other, filled) for one, other in zip(asked, got, strict=True))
    if asked == "KIND_AUTO":
        return str(got).startswith("KIND_")
    if isinstance(asked, int | float) and isinstance(got, int | float):
        return abs(float(asked) - float(got)) <= 1e-6 * max(1.0, abs(float(asked)))
    return bool(asked == got or str(asked) == str(got))
