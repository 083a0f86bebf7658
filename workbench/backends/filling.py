"""Backends that run more rows than they are asked for, as a configuration has it. No framework is needed for that."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from workbench.backends.openvino_config import DYNAMIC_BATCH, filled_rows


@dataclass(frozen=True, slots=True)
class Filling:
    """Each batch is filled up to ``rows``; ``against_it`` is what can be done where that is not wanted."""

    rows: int
    against_it: str


def _openvino(config: Any) -> Filling | None:
    rows = filled_rows(config)
    if rows < 2:
        return None
    return Filling(rows, f"a smaller max_batch_size, or the parameter {DYNAMIC_BATCH}, which real Triton does not read")


_FILLING: Mapping[str, Callable[[Any], Filling | None]] = MappingProxyType({"openvino": _openvino})


def filling(config: Any) -> Filling | None:
    """How far a backend fills up the batches of a model; None where it does not. ``config`` is a ``ModelConfig``."""
    ask = _FILLING.get(config.backend)
    return ask(config) if ask is not None else None
