"""Implicit states of sequences: an output of one request is an input of the next one (3.10, ``sequence_state.cc``)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from workbench.errors import InternalError, InvalidRequest
from workbench.protocol import datatypes
from workbench.protocol.tensors import InferenceResponse, Tensor
from workbench.repository.files import inside, read_regular
from workbench.scheduling.interface import SlotRow
from workbench.scheduling.sequence_settings import SequenceSettings, StateSpec

Key = tuple[int, int]
"""An instance and a slot of it."""


class ImplicitStates:
    """The states of all slots of a model version. Files of initial states are read when it is made.

    Raises:
        InternalError: a file cannot be read.
        InvalidRequest: it leads out of its folder, or is too short.
    """

    def __init__(self, settings: SequenceSettings, model_dir: Path) -> None:
        self._specs = settings.states
        self._batching = settings.max_batch_size > 0
        self._first = [_initial(spec, self._batching, model_dir, settings.model_name) for spec in self._specs]
        self._slots: dict[Key, list[Tensor]] = {}
        self._by_output = {spec.output_name: index for index, spec in enumerate(self._specs)}

    def fresh(self) -> list[Tensor]:
        """The states at the start of a sequence."""
        return list(self._first)

    def before(self, instance: int, row: SlotRow) -> list[Tensor]:
        """The states that a request gets as inputs; those of a sequence that starts are made anew."""
        if not self._specs:
            return []
        key = (instance, row.slot)
        states = self._slots.get(key)
        if states is None or row.start:
            states = self._slots[key] = self.fresh()
        return states

    def null_row(self, instance: int, rows: Sequence[SlotRow]) -> list[Tensor]:
        """Zeros in the shapes of another row's states."""
        if not self._specs:
            return []
        row = next(each for each in rows if each.ready)
        states = self.fresh() if row.start else self._slots.get((instance, row.slot), self._first)
        return [Tensor(each.name, each.datatype, each.shape, _zeros(each.datatype, each.shape)) for each in states]

    def after(self, instance: int, row: SlotRow, response: InferenceResponse) -> None:
        """Takes the states out of a response, for the sequence's next request."""
        if not self._specs:
            return
        key = (instance, row.slot)
        states = self._slots.get(key)
        if row.ready and states is not None and response.error is None:
            states = list(states)
            for tensor in response.outputs:
                index = self._by_output.get(tensor.name)
                if index is not None:
                    name = self._specs[index].input_name
                    # a slice of a batch keeps the whole batch alive: the state is copied out of it
                    data = tensor.data.copy() if tensor.data.base is not None else tensor.data
                    states[index] = Tensor(name, tensor.datatype, tensor.shape, data)
            self._slots[key] = states
        if row.end:
            self._slots.pop(key, None)

    def strip(self, response: InferenceResponse, declared: frozenset[str]) -> None:
        """Takes out of a response the states that are no outputs of the model."""
        if self._specs and response.outputs:
            response.outputs = [
                each for each in response.outputs if each.name in declared or each.name not in self._by_output
            ]

    def forget_instance(self, instance: int) -> None:
        """The instance is gone, and the states of its slots."""
        for key in [key for key in self._slots if key[0] == instance]:
            del self._slots[key]


def _initial(spec: StateSpec, batching: bool, model_dir: Path, model: str) -> Tensor:
    shape = spec.first_shape(batching)
    if spec.initial is None or not spec.initial.data_file:
        return Tensor(spec.input_name, spec.datatype, shape, _zeros(spec.datatype, shape))
    name = spec.initial.data_file
    path = inside(model_dir / "initial_state", name)
    if path is None:
        raise InvalidRequest(f"initial_state file '{name}' of model '{model}' leads out of the initial_state folder")
    try:
        data = read_regular(path)
    except OSError as error:
        raise InternalError(f"failed to open text file for read {path}: {error.strerror}", where=str(path)) from error
    return Tensor(spec.input_name, spec.datatype, shape, _read(data, spec, shape, name))


def _read(data: bytes, spec: StateSpec, shape: tuple[int, ...], name: str) -> NDArray[Any]:
    count = math.prod(shape)
    if spec.datatype == "BYTES":
        items: list[bytes] = []
        offset = 0
        while offset + 4 <= len(data) and len(items) < count:
            end = offset + 4 + int.from_bytes(data[offset : offset + 4], "little")
            items.append(data[offset + 4 : end])
            offset = end
        if len(items) != count:
            raise InvalidRequest(f"initial_state '{name}' holds {len(items)} strings, {count} are needed")
        strings = np.empty(count, dtype=np.object_)
        strings[:] = items
        return strings.reshape(shape)
    row = datatypes.BY_WIRE[spec.datatype]
    size = count * row.itemsize
    if len(data) < size:
        raise InvalidRequest(
            f"initial_state setting expects {size} bytes, but the data provided from {name}only has {len(data)} bytes."
        )
    return np.frombuffer(data[:size], dtype=row.numpy).reshape(shape)


def _zeros(datatype: str, shape: tuple[int, ...]) -> NDArray[Any]:
    if datatype == "BYTES":
        return np.full(shape, b"", dtype=np.object_)
    return np.zeros(shape, dtype=datatypes.BY_WIRE[datatype].numpy)
