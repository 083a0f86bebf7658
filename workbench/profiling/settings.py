"""The settings of a sweep by model: ``PATH`` is of the model that is measured, ``MODEL:PATH`` of a step of an ensemble.

An ensemble has no instances and no batching of its own: what is swept under it are the models that it is made of.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

_ENTRY = re.compile(r'\["((?:[^"\\]|\\.)*)"\](?:\.string_value)?\Z')


def split_setting(key: str, model: str) -> tuple[str, str]:
    """Whose setting it is, and its path."""
    head, colon, path = key.partition(":")
    if colon and path and not set(head) & set('["'):  # a colon in parameters["a:b"] is part of the path
        return head, path
    return model, key


def by_model(settings: Mapping[str, Any], model: str) -> dict[str, dict[str, Any]]:
    """The settings of each model, by path; models in the order in which they come."""
    found: dict[str, dict[str, Any]] = {}
    for key, value in settings.items():
        name, path = split_setting(key, model)
        found.setdefault(name, {})[path] = value
    return found


def short_name(key: str) -> str:
    """A setting in a table's head or a sentence: the last part of its path, with the step's name before it.

    An entry of a map is its key: ``parameters["k"]`` is ``k``.
    """
    name, path = split_setting(key, "")
    entry = _ENTRY.search(path)
    last = entry[1] if entry is not None else path.rpartition(".")[2]
    return f"{name}:{last}" if name else last


def shown(value: Any) -> Any:
    """A value of a grid as a person wrote it: ``parameters[KEY]`` was given a plain one."""
    return value["string_value"] if isinstance(value, Mapping) and list(value) == ["string_value"] else value
