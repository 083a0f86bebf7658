"""Members of JSON objects by type, with Triton's texts for those that are missing or of another type."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from workbench.errors import InternalError
from workbench.protocol import json_data as js


def string(value: Any, field: str) -> str:
    """A string."""
    if type(value) is not str:
        raise js.type_error(field, js.NOT_STRING)
    return value


def boolean(value: Any, field: str) -> bool:
    """A boolean."""
    if type(value) is not bool:
        raise js.type_error(field, js.NOT_BOOL)
    return value


def unsigned(value: Any, field: str, what: str = "Unable to parse") -> int:
    """An unsigned 64-bit integer."""
    if type(value) is not int or not 0 <= value < 2**64:
        raise InternalError(f"{what} '{field}': {js.NOT_UINT}")
    return value


def member(value: Any, name: str) -> Any:
    """A member that must exist."""
    if type(value) is not dict or name not in value:
        raise InternalError(f"Unable to parse '{name}': attempt to access non-existing object member '{name}'")
    return value[name]


def array(value: Any, name: str) -> list[Any]:
    """A member that must be a list."""
    found = member(value, name)
    if type(found) is not list:
        raise js.type_error(name, js.NOT_ARRAY)
    return found


def parameters_of(value: Any) -> Mapping[str, Any]:
    """The member ``parameters``, empty when it is missing or no object."""
    found = value.get("parameters") if type(value) is dict else None
    return found if type(found) is dict else {}
