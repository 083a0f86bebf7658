"""What models are compared on: the requests of a load, as the inputs of examples."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from workbench.profiling.load import Load
from workbench.profiling.requests import Inputs, prepare
from workbench.profiling.target import Target, directory_of
from workbench.protocol.tensors import InferenceRequest, Tensor
from workbench.repository.example_inputs import FILE_NAME, Example, inputs_of, load_example_inputs
from workbench.tuning.compare_notes import Arrays

_MOST_BYTES = 2**28
"""So large may the examples be that are drawn besides those of the load."""


def examples_of(
    target: Target, reference: str, config: Mapping[str, Any], load: Load, inputs: Inputs, count: int
) -> list[dict[str, NDArray[Any]]]:
    """The inputs of the requests that the load sends to the reference, by its names, the same ones once; where they are
    the model's example inputs and fewer than ``count``, those that come after them, too."""
    prepared = prepare(target, reference, config, of_model(reference, load), inputs)

    def arrays(request: InferenceRequest) -> dict[str, NDArray[Any]]:
        return {tensor.name: tensor.data for tensor in request.inputs}

    found: list[dict[str, NDArray[Any]]] = []
    own = inputs is None and not (load.inputs or load.trace or load.mix)
    further = _further(target, reference, config, load, count) if own else ()
    for request in itertools.chain(prepared.requests, further):
        if len(found) >= count:
            break
        given = arrays(request)
        if not any(_same(given, other) for other in found):
            found.append(given)
    return found


def _further(
    target: Target, reference: str, config: Mapping[str, Any], load: Load, count: int
) -> Iterator[InferenceRequest]:
    """Requests of a model's example inputs, in their order: a load keeps a few of those that are drawn from ranges."""
    directory = directory_of(target, reference)
    if directory is None or not (directory / FILE_NAME).is_file() or config.get("sequence_batching"):
        return
    specs, optional = inputs_of(config)
    rows = load.batch_size if int(config.get("max_batch_size", 0) or 0) > 0 else 0

    def drawn(number: int) -> list[Example]:
        return load_example_inputs(directory, specs, seed=load.seed, count=number, batch_size=rows, optional=optional)

    size = sum(array.nbytes for array in drawn(1)[0].values())
    for example in drawn(min(count, _MOST_BYTES // max(1, size))):
        yield InferenceRequest(reference, [Tensor.from_numpy(name, array) for name, array in example.items()])


def _same(a: Arrays, b: Arrays) -> bool:
    return a.keys() == b.keys() and all(np.array_equal(array, b[name]) for name, array in a.items())


def of_model(model: str, load: Load) -> Load:
    """A load of this model: a replay would go to the models that were captured."""
    return replace(load, model=model) if load.trace else load
