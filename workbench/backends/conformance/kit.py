"""What a backend brings to be checked: a few of its models, and what they must answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Arrays = Mapping[str, NDArray[Any]]
"""Tensors of a request or an answer by name. BYTES are object arrays of ``bytes``."""


@dataclass(frozen=True, slots=True)
class ModelCase:
    """One model.

    Attributes:
        write: writes config.pbtxt (complete: nothing is filled in but what Triton's core does) and the version
            directory ``1`` into a model directory that exists and is empty. The model's name is the directory's.
        inputs: draws the inputs of one request. The second argument is the number of rows, the first dimension of each
            array; for a model without batching it is 1 and not looked at.
        expected: what the model answers to such inputs, every output. None where it cannot be told: then only a row in
            a batch is compared with the row alone.
        tolerance: the greatest difference allowed; 0 for exact equality.
        spoiled: inputs that the configuration allows and the model fails on; for ``Kit.failing`` only.
    """

    write: Callable[[Path], None]
    inputs: Callable[[np.random.Generator, int], Arrays]
    expected: Callable[[Arrays], Arrays] | None = None
    tolerance: float = 0.0
    spoiled: Callable[[np.random.Generator], Arrays] | None = None


@dataclass(frozen=True, slots=True)
class Kit:
    """A backend's models for the checks. A text in place of a model says why the framework cannot have such a one.

    Attributes:
        backend: its name in ``config.pbtxt``; it is found as a model's backend is.
        model: one that batches, max_batch_size 8 at least, of fixed shapes.
        datatypes: by v2 name, a model (batching, max_batch_size 8 at least) whose inputs and outputs have that type. A
            type that the framework does not have is left out.
        dynamic: a model that batches and has a variable dimension besides. ``inputs`` draws sizes for it; all requests
            of one generator's first draw are alike, as a batch's must be.
        scalar: max_batch_size 0, and an input or output that has no dimension in the framework.
        zero_rows: a model that batches and answers a request without a row by one without a row.
        failing: a model with ``spoiled`` inputs.
        framework: modules that must not be imported before a model needs them.
    """

    backend: str
    model: ModelCase
    datatypes: Mapping[str, ModelCase] = field(default_factory=dict)
    dynamic: ModelCase | str = "not told"
    scalar: ModelCase | str = "not told"
    zero_rows: ModelCase | str = "not told"
    failing: ModelCase | str = "not told"
    framework: tuple[str, ...] = ()
