"""An engine that is kept busy with full batches, from its own loop, and how fast it gets through them."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

from numpy.typing import NDArray

from workbench.clock import monotonic_ns
from workbench.engine import InferenceEngine
from workbench.protocol.tensors import InferenceRequest, InferenceResponse, Tensor

_LIMIT_S = 120.0


class BatchLoad:
    """Keeps two batches under way, one running and one waiting, so that an instance never waits for requests.

    Args:
        engine: with the model loaded; the load runs on its loop, as a front end would.
        model: its name.
        requests: the inputs of the requests of one batch, sent again and again.
        sequences: each client's requests are one sequence.
    """

    def __init__(
        self,
        engine: InferenceEngine,
        model: str,
        requests: Sequence[Mapping[str, NDArray[Any]]],
        *,
        sequences: bool = False,
    ) -> None:
        self._engine = engine
        self._model = model
        self._inputs = [[Tensor.from_numpy(name, array) for name, array in each.items()] for each in requests]
        self._sequences = sequences
        self._first_sequence = 1

    def rate(self, batches: int, warm: int = 2) -> float:
        """Requests a second over so many batches, after some that are not counted.

        It is taken from the end of a batch to the end of another: the requests of one are answered together.

        Raises:
            RuntimeError: a request failed, or it took two minutes.
        """
        run = _Run(
            self._engine, self._model, self._inputs, batches, warm, self._first_sequence if self._sequences else 0
        )
        self._first_sequence += 2 * len(self._inputs)
        return run.wait()


class _Run:
    def __init__(
        self,
        engine: InferenceEngine,
        model: str,
        inputs: Sequence[list[Tensor]],
        batches: int,
        warm: int,
        first_sequence: int,
    ) -> None:
        self._submit = engine.submit
        self._model = model
        self._inputs = inputs
        self._sequence = first_sequence
        self._begin, self._end = warm * len(inputs), (warm + batches) * len(inputs)
        self._done = 0
        self._left = 2 * len(inputs)
        self._stamps = [0, 0]
        self._failed = ""
        self._over = threading.Event()
        engine.loop.call_soon_threadsafe(self._start)

    def _start(self) -> None:
        for client in range(2 * len(self._inputs)):
            self._send(client, start=True)

    def _send(self, client: int, *, start: bool = False, end: bool = False) -> None:
        request = InferenceRequest(self._model, self._inputs[client % len(self._inputs)])
        if self._sequence:
            request.sequence_id, request.sequence_start, request.sequence_end = self._sequence + client, start, end

        def answered(response: InferenceResponse) -> None:
            self._collect(client, response, end)

        self._submit(request, answered)

    def _collect(self, client: int, response: InferenceResponse, last: bool) -> None:
        if response.error is not None:
            self._failed = response.error.message
        self._done += 1
        if self._done == self._begin:
            self._stamps[0] = monotonic_ns()
        elif self._done == self._end:
            self._stamps[1] = monotonic_ns()
        if self._done < self._end and not self._failed:
            self._send(client)
        elif self._sequence and not last and not self._failed:
            self._send(client, end=True)
        else:
            self._left -= 1
            if not self._left:
                self._over.set()

    def wait(self) -> float:
        over = self._over.wait(_LIMIT_S)
        if self._failed or not over:
            raise RuntimeError(f"{self._model}: {self._failed or f'not over after {_LIMIT_S:g} s'}")
        return (self._end - self._begin) * 1e9 / (self._stamps[1] - self._stamps[0])
