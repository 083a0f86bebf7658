"""What the kits of several backends are made of: arrays of every data type, configurations, element-wise models."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from workbench.backends.conformance import ModelCase
from workbench.protocol import datatypes


def config(
    backend: str, wire: str, *, x: str = "x", y: str = "y", dims: str = "4", batch: int = 8, more: str = ""
) -> str:
    """A configuration with one input and one output of a type."""
    kind = datatypes.BY_WIRE[wire].config
    return (
        f'backend: "{backend}"\nmax_batch_size: {batch}\n'
        f'input [ {{ name: "{x}" data_type: {kind} dims: [ {dims} ] }} ]\n'
        f'output [ {{ name: "{y}" data_type: {kind} dims: [ {dims} ] }} ]\n{more}'
    )


def draw(rng: np.random.Generator, wire: str, shape: tuple[int, ...]) -> Any:
    """Values of a type, empty strings, zeros and the greatest of the type's among them."""
    if wire == "BYTES":
        words = [b"", b"a", "é".encode(), b"longer than the others"]
        flat = np.empty(int(np.prod(shape)), dtype=np.object_)
        flat[:] = [words[number] for number in rng.integers(0, len(words), flat.size)]
        return flat.reshape(shape)
    dtype = datatypes.BY_WIRE[wire].numpy
    if wire == "BOOL":
        return rng.integers(0, 2, shape).astype(dtype)
    if wire.startswith(("INT", "UINT")):
        info = np.iinfo(dtype)
        return rng.integers(info.min, info.max, shape, dtype, endpoint=True)
    return rng.standard_normal(shape).astype(dtype)


def same(
    write: Callable[[Path], None], wire: str, *, x: str = "x", y: str = "y", shape: tuple[int, ...] = (4,)
) -> ModelCase:
    """A model whose output is its input."""

    def inputs(rng: np.random.Generator, rows: int) -> Mapping[str, Any]:
        return {x: draw(rng, wire, (rows, *shape))}

    return ModelCase(write, inputs, lambda given: {y: given[x]})
