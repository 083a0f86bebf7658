"""What a person gives a verb, in the forms that the rooms below take: edits, tensors, a configuration override."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from workbench.client.http_client import encode_json
from workbench.config import Edit, parse_edit
from workbench.errors import InvalidRequest
from workbench.profiling.point import Point
from workbench.protocol.datatypes import BY_WIRE
from workbench.protocol.tensors import Tensor, as_bytes_array

EditLike = Edit | str | Mapping[str, Any] | Point


def as_edits(edits: Iterable[EditLike], fields: Mapping[str, Any]) -> list[Edit]:
    """Edits from what a person writes: ``"path=json"``, ``{"path", "op", "value"}``, ``Edit``, a measured ``Point``
    (its settings), and keyword fields.

    A keyword is a top-level field of the configuration (``max_batch_size=8``); ``__`` stands for a dot
    (``dynamic_batching__max_queue_delay_microseconds=500``).

    Raises:
        ConfigError: a text that is not ``path=json``.
    """
    out = []
    for edit in edits:
        if isinstance(edit, str):
            out.append(parse_edit(edit))
        elif isinstance(edit, Mapping):
            out.append(Edit.from_json(edit))
        elif isinstance(edit, Point):
            out += edit.edits()
        else:
            out.append(edit)
    out += [
        Edit(path.replace("__", "."), "remove" if value is None else "set", value) for path, value in fields.items()
    ]
    return [replace(edit, value=plain(edit.value)) for edit in out]


def plain(value: Any) -> Any:
    """A value with numpy's numbers and arrays as Python's: what a notebook computes is as good as what it writes."""
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, list | tuple) else value


def as_tensor(name: str, value: Any, datatype: str) -> Tensor:
    """A value as a tensor: arrays as they are, the rest in the datatype that the model declares.

    Raises:
        InvalidRequest: it has no form in that datatype.
    """
    if isinstance(value, Tensor):
        return value
    if isinstance(value, np.ndarray):
        return Tensor.from_numpy(name, np.ascontiguousarray(value) if value.dtype != np.object_ else value)
    row = BY_WIRE.get(datatype)
    if row is None:
        return Tensor.from_numpy(name, np.asarray(value))
    if row.wire == "BYTES":
        array = np.array(value, dtype=np.object_)
        if any(isinstance(item, list | tuple) for item in array.flat):
            raise InvalidRequest(
                f"input {name!r} cannot be made {datatype}: its rows differ in length", where=f"value {value!r:.80}"
            )
        array = as_bytes_array(array)
        return Tensor(name, "BYTES", tuple(array.shape), array)
    try:
        array = np.asarray(value, dtype=row.numpy)
    except (ValueError, TypeError, OverflowError) as error:
        raise InvalidRequest(
            f"input {name!r} cannot be made {datatype}: {error}", where=f"value {value!r:.80}"
        ) from error
    if array.dtype.kind in "iu" and (array != np.asarray(value)).any():  # NumPy cuts 4.5 to 4 and says nothing
        raise InvalidRequest(
            f"input {name!r} cannot be made {datatype}: not whole numbers", where=f"value {value!r:.80}"
        )
    return Tensor(name, row.wire, tuple(array.shape), array)


def config_json(config: Mapping[str, Any] | str | None) -> str | None:
    """A configuration override as the load API wants it: JSON text, or None.

    Raises:
        InvalidRequest: it holds what JSON has no form for.
    """
    if config is None or isinstance(config, str):
        return config
    return encode_json(plain(config)).decode()
