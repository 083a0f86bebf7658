"""What every framework of tensors shares: a batch's requests become its inputs, its outputs become their answers.

A backend describes inputs and outputs as ``TensorSpec`` (from the model's file, or by ``configured_specs`` where the
file says nothing), subclasses ``TensorInstance`` and writes ``run``. Sources: backend_common's
``BackendInputCollector`` and ``BackendOutputResponder``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from itertools import accumulate
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from workbench.backends.base import Execution, ModelContext, TensorSpec
from workbench.backends.fit import config_datatype
from workbench.backends.ragged import batch_inputs, batch_outputs, scatter
from workbench.errors import BackendError, InternalError, InvalidRequest, Unsupported, WorkbenchError
from workbench.protocol import datatypes
from workbench.protocol.tensors import InferenceRequest, InferenceResponse, Tensor
from workbench.scheduling.sequence_settings import sequence_settings_from_config


def configured_specs(config: Any) -> tuple[tuple[TensorSpec, ...], tuple[TensorSpec, ...]]:
    """Inputs and outputs as the configuration has them, for a framework whose files do not say.

    Shapes are those that the framework sees: the batch dimension first (-1) where the model batches, ``reshape``
    applied, (-1,) for a ragged input. Sequence controls and states are among them; batch inputs are not, as their
    requests do not have them.

    Raises:
        InternalError: a data type has no name on the wire.
    """
    batch = (-1,) if config.max_batch_size > 0 else ()

    def spec(name: str, item: Any, dims: Iterable[int]) -> TensorSpec:
        row = datatypes.BY_CONFIG.get(config_datatype(item))
        if row is None:
            raise InternalError(f"unsupported datatype {config_datatype(item)} for '{name}' for model '{config.name}'")
        return TensorSpec(name, row.wire, (*batch, *dims))

    inputs = [
        TensorSpec(item.name, spec(item.name, item, ()).datatype, (-1,))
        if item.allow_ragged_batch
        else spec(item.name, item, _dims(item))
        for item in config.input
    ]
    outputs = [spec(item.name, item, _dims(item)) for item in config.output]
    known = {each.name for each in outputs}
    controls = sequence_settings_from_config(config).controls if config.HasField("sequence_batching") else ()
    for control in controls:
        inputs.append(TensorSpec(control.name, control.datatype, (*batch, 1)))
    for state in config.sequence_batching.state:
        inputs.append(spec(state.input_name, state, state.dims))
        if state.output_name not in known:
            outputs.append(spec(state.output_name, state, state.dims))
    return tuple(inputs), tuple(outputs)


def _dims(item: Any) -> tuple[int, ...]:
    return tuple(item.reshape.shape if item.HasField("reshape") else item.dims)


class BatchForm:
    """How one model's batches are put together and taken apart. It keeps nothing between batches.

    Args:
        config: the normalised ``ModelConfig``.
        inputs: every input that a request may bring, with the shape that the framework expects (batch dimension
            included, -1 for variable, () for a scalar).
        outputs: at least every output of the configuration and of its sequence states.
    """

    def __init__(self, config: Any, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> None:
        self._config = config
        self._inputs = {spec.name: spec for spec in inputs}
        self._batching = config.max_batch_size > 0
        self._scattered = batch_outputs(config)
        names = [item.name for item in config.output]
        states = [state.output_name for state in config.sequence_batching.state]
        self._states = frozenset(states)
        by_name = {spec.name: spec for spec in outputs}
        self.outputs = tuple(by_name[name] for name in dict.fromkeys([*names, *states]))
        """What is asked of the framework for each batch: the configuration's outputs, then states, in this order."""
        self._scalar_shapes = {item.name: _dims(item) for item in config.output if not by_name[item.name].dims}

    def feeds(self, requests: Sequence[InferenceRequest]) -> dict[str, NDArray[Any]]:
        """The framework's inputs by name: the requests' rows one after the other, ``batch_input`` tensors made.

        A single request's arrays are not copied (they may be read-only). BYTES stay object arrays of ``bytes``.
        """
        feeds: dict[str, NDArray[Any]] = {}
        if len(requests) == 1:
            for tensor in requests[0].inputs:
                feeds[tensor.name] = tensor.data
        else:
            parts = {tensor.name: [tensor.data] for tensor in requests[0].inputs}
            for request in requests[1:]:
                for tensor in request.inputs:
                    parts[tensor.name].append(tensor.data)
            for name, arrays in parts.items():
                ragged = len(self._inputs[name].dims) != arrays[0].ndim
                feeds[name] = np.concatenate([array.ravel() for array in arrays] if ragged else arrays)
        for name, array in feeds.items():
            dims = self._inputs[name].dims
            if len(dims) != array.ndim:
                feeds[name] = _one_value(name, array) if not dims else array.reshape(-1)
        if self._config.batch_input:
            feeds |= batch_inputs(self._config, requests)
        return feeds

    def respond(self, execution: Execution, results: Sequence[NDArray[Any]]) -> None:
        """Answers every request of a batch with its rows of the results (views of them).

        ``results`` are in the order of ``outputs``; BYTES as object arrays of ``bytes``.

        Raises:
            Unsupported: an output has fewer rows than the batch (Triton's text).
            BackendError: an output has more rows than the batch.
        """
        requests = execution.requests
        parts = [
            (spec, self._dealt_out(spec, array, requests)) for spec, array in zip(self.outputs, results, strict=True)
        ]
        for index, request in enumerate(requests):
            wanted = {output.name for output in request.outputs}
            outputs = [
                Tensor(spec.name, spec.datatype, arrays[index].shape, arrays[index])
                for spec, arrays in parts
                if not wanted or spec.name in wanted or spec.name in self._states
            ]
            execution.respond(index, InferenceResponse(request.model_name, request.model_version, request.id, outputs))

    def _dealt_out(
        self, spec: TensorSpec, array: NDArray[Any], requests: Sequence[InferenceRequest]
    ) -> Sequence[NDArray[Any]]:
        """An output's part for each request."""
        if spec.name in self._scattered:
            return scatter(spec.name, array, *self._scattered[spec.name], requests)
        if not array.ndim:
            array = array.reshape(self._scalar_shapes.get(spec.name, ()))
        if not self._batching:
            return [array]
        counts = [request.inputs[0].shape[0] for request in requests]
        ends = list(accumulate(counts))
        rows = array.shape[0] if array.ndim else 0
        hint = f"'{spec.name}' came as {list(array.shape)}: where a model keeps no batch dimension, max_batch_size is 0"
        if rows < ends[-1]:
            short = next(end for end in ends if end > rows)
            raise Unsupported(
                f"failed to split the output tensor '{spec.name}' in responses: expected batch size of atleast {short} "
                f"in model output, got {rows}",
                hint=hint,
            )
        if rows > ends[-1]:
            # real Triton hands on the first rows without a word
            raise BackendError(f"output tensor '{spec.name}' has {rows} rows for a batch of {ends[-1]}", hint=hint)
        if len(requests) == 1:
            return [array]
        return [array[end - count : end] for end, count in zip(ends, counts, strict=True)]


def _one_value(name: str, array: NDArray[Any]) -> NDArray[Any]:
    """A framework's scalar from what the rows of a batch say of it, which must be the same.

    Raises:
        BackendError: it is not, or there is no row.
    """
    values = array.reshape(-1)
    if not values.size or (values != values[0]).any():
        what = "differs from row to row" if values.size else "has no row"
        raise BackendError(
            f"input '{name}' is one value for a whole batch, and in this one it {what}",
            hint="send what differs in batches of its own: without dynamic_batching, or with max_batch_size 1",
        )
    return values[:1].reshape(())


class RequestFault(InvalidRequest):
    """What a request of a batch holds, or is answered, is at fault: the others of the batch are to be served."""


class TensorInstance(ABC):
    """A thread instance that runs each batch as one call of its framework.

    A subclass writes ``run`` and, where its framework's tensors are not numpy's, ``prepare`` and ``take``: what they
    cost counts as input and output time. What any of them raises fails the batch and nothing else, but for a
    ``RequestFault``: then each request of the batch is run alone, and fails or is answered as if it had come alone.
    ``close`` may be called more than once.
    """

    kind: Literal["thread"] = "thread"
    tells_ready = True

    def __init__(self, context: ModelContext, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> None:
        self._clock = context.host.clock
        self._form = BatchForm(context.config, inputs, outputs)
        self._closed = False

    def execute(self, execution: Execution) -> None:
        """Runs a batch."""
        if self._closed:
            raise InternalError("the instance is closed")
        try:
            self._execute(execution)
        except RequestFault:
            if len(execution.requests) == 1:
                raise
            self._execute_apart(execution)

    def _execute(self, execution: Execution) -> None:
        prepared = self.prepare(self._form.feeds(execution.requests))
        execution.input_end = self._clock()
        execution.ready()
        raw = self.run(prepared)
        execution.output_start = self._clock()
        self._form.respond(execution, self.take(raw))

    def _execute_apart(self, execution: Execution) -> None:
        """Each request of a batch alone; none has been answered yet."""
        execution.input_end = execution.output_start = 0
        for index, request in enumerate(execution.requests):
            respond = partial(_respond_to, execution, index)
            alone = replace(execution, requests=[request], respond=respond, input_end=0, output_start=0)
            try:
                self._execute(alone)
            except WorkbenchError as error:
                respond(0, InferenceResponse(request.model_name, request.model_version, request.id, error=error))
            execution.input_end = execution.input_end or alone.input_end
            execution.output_start = alone.output_start or execution.output_start

    def prepare(self, feeds: dict[str, NDArray[Any]]) -> Any:
        """The framework's own inputs, by default the arrays as they are. They must not be written to."""
        return feeds

    @abstractmethod
    def run(self, prepared: Any) -> Any:
        """Calls the framework."""

    def take(self, raw: Any) -> Sequence[NDArray[Any]]:
        """Arrays in the order of ``self._form.outputs`` from what ``run`` gave, by default just that."""
        arrays: Sequence[NDArray[Any]] = raw
        return arrays

    def close(self) -> None:
        """Frees what it holds."""
        if not self._closed:
            self._closed = True
            self.free()

    @abstractmethod
    def free(self) -> None:
        """Drops the framework's objects; called once."""


def _respond_to(execution: Execution, place: int, index: int, response: InferenceResponse) -> None:
    """The answer to the one request of a part of a batch, which has the place ``place`` there."""
    execution.respond(place + index, response)
