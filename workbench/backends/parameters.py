"""A model's ``parameters`` as Triton's backends read them. Source of the texts: backend_common's ``Parse...Value``."""

from __future__ import annotations

from typing import Any

from workbench.errors import InvalidRequest

_TRUE, _FALSE = ("true", "1"), ("false", "0")


def text_parameter(config: Any, key: str) -> str | None:
    """``parameters[key].string_value``, None where the key is not there."""
    return config.parameters[key].string_value if key in config.parameters else None


def int_parameter(config: Any, key: str) -> int | None:
    """The same as a number.

    Raises:
        InvalidRequest: it is none (Triton's text).
    """
    text = text_parameter(config, key)
    if text is None:
        return None
    try:
        return int(text)
    except ValueError:
        raise InvalidRequest(f"failed to convert '{text}' to integral number", where=f"parameters['{key}']") from None


def bool_parameter(config: Any, key: str) -> bool | None:
    """The same as a truth value: true, 1, false or 0, in any case of letters.

    Raises:
        InvalidRequest: it is none (Triton's text).
    """
    text = text_parameter(config, key)
    if text is None:
        return None
    if text.lower() in _TRUE:
        return True
    if text.lower() in _FALSE:
        return False
    raise InvalidRequest(f"failed to convert '{text}' to boolean value", where=f"parameters['{key}']")
