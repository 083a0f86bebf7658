"""The batch worker: embeds the texts of a table through a running server, in large batches, and gives way to queries.

It polls (new and changed rows are done as they come), commits batch by batch, and speaks KServe v2 only: the server may
be a real Triton. Source of the division into a model for queries and a polled one for documents: the search system that
``docs/search_system.md`` describes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from workbench.client import TritonClient
from workbench.clock import monotonic_ns
from workbench.errors import (
    Cancelled,
    ConnectionFailed,
    InvalidRequest,
    NotFound,
    NotReady,
    Rejected,
    WorkbenchError,
)
from workbench.protocol.tensors import InferenceRequest, Tensor
from workbench.session.batch_table import Document, DocumentTable, Embedded, Key

State = Literal["embedding", "giving way", "server away", "waiting for rows", "done", "stopped"]

_PASSING = (ConnectionFailed, NotReady, Rejected, Cancelled, NotFound)
"""What says nothing about a text: the server is away, full, or its model is being loaded."""

_AHEAD = 8
"""So many batches are read at once and sorted by length: a batch is as long as its longest text."""

_TELL_S = 0.5
_SHORTEST_S, _LONGEST_S = 0.05, 1.0
_AWAY_S = 5.0
_TRIES = 3
"""So often a batch is sent whole to models that say that they are ready, and yet do not answer it."""

_POSITIVE = ("in_flight", "poll_s", "timeout_s")
_NOT_NEGATIVE = ("batch_size", "priority", "max_queue_ms", "max_ms", "max_pause_s", "give_up_s")
_MOST = 2**31 - 1
"""What a priority and a wait have room for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOptions:
    """How the worker works.

    ``models`` are asked one after the other: the first takes texts, each other one what the one before gives under the
    names of its inputs; the last gives the vector. ``batch_size`` 0 is the most that all of them take, 64 at most.
    ``priority`` goes with each request, 0 is the model's default. ``poll_s`` is how often to look for new rows; None
    ends where none is left.

    ``yield_to`` names the model that goes first: nothing is sent while, since the last look, its requests waited
    longer than ``max_queue_ms`` on average or (where it is above 0) took longer than ``max_ms`` at the server, but at
    most ``max_pause_s`` at a time. A server that is away is awaited for ``give_up_s``, 0 is as long as it takes.

    Raises:
        InvalidRequest: a number that cannot be meant.
    """

    models: Sequence[str] = ("tokenizer", "ctx_embedding")
    batch_size: int = 0
    in_flight: int = 2
    priority: int = 0
    poll_s: float | None = 2.0
    yield_to: str = ""
    max_queue_ms: float = 2.0
    max_ms: float = 0.0
    max_pause_s: float = 10.0
    timeout_s: float = 120.0
    give_up_s: float = 0.0

    def __post_init__(self) -> None:
        for name in (*_POSITIVE, *_NOT_NEGATIVE):
            value: float | None = getattr(self, name)
            least = "more than 0" if name in _POSITIVE else "0 or more"
            # put so that NaN is refused, too
            if value is not None and not (0 <= value <= _MOST and (value or name in _NOT_NEGATIVE)):
                raise InvalidRequest(f"{name} is {value}", hint=f"give {least}, {_MOST} at most")


@dataclass(slots=True)
class Progress:
    """What the worker does and has done: rows embedded and without an answer, ``left`` at the last count, times."""

    state: State = "embedding"
    embedded: int = 0
    failed: int = 0
    left: int = 0
    seconds: float = 0.0
    working_s: float = 0.0
    paused_s: float = 0.0
    note: str = ""

    @property
    def rate(self) -> float:
        """Rows a second while there were some."""
        return self.embedded / self.working_s if self.working_s else 0.0

    def __str__(self) -> str:
        parts = [f"{self.embedded} embedded", f"{self.left} left"]
        if self.failed:
            parts.append(f"{self.failed} without an answer")
        parts.append(f"{self.rate:.1f} rows/s")
        if self.paused_s:
            parts.append(f"gave way {self.paused_s:.1f} s")
        if self.state == "embedding" and self.rate:
            parts.append(f"{self.left / self.rate:.0f} s to go")
        return f"{self.state}: {', '.join(parts)}" + (f" ({self.note})" if self.note else "")


class Chain:
    """Models of a server, asked one after the other: texts in, vectors out. Several threads may call it.

    Raises:
        NotFound: there is no such model.
        InvalidRequest: they do not fit together.
        ConnectionFailed: nobody answers.
    """

    def __init__(self, client: TritonClient, models: Sequence[str], *, priority: int = 0, timeout_s: float) -> None:
        if not models:
            raise InvalidRequest("no model is named", hint="the first takes texts, the last gives vectors")
        self._client, self._priority, self._timeout_s = client, priority, timeout_s
        self._steps = [(name, client.model_metadata(name)) for name in models]
        self.max_batch_size = min(int(client.model_config(name).get("max_batch_size", 0)) for name in models)
        first, texts = self._steps[0][0], self._steps[0][1]["inputs"]
        if len(texts) != 1 or texts[0]["datatype"] != "BYTES" or len(texts[0]["shape"]) != 2:
            given = ", ".join(f"{each['name']} {each['datatype']} {each['shape']}" for each in texts)
            raise InvalidRequest(f"'{first}' does not take one text a row: its inputs are {given}")
        if self.max_batch_size < 1:
            raise InvalidRequest("a model of the chain takes no batches (max_batch_size is 0)", where=", ".join(models))
        for (before, source), (name, model) in zip(self._steps, self._steps[1:], strict=False):
            known = {each["name"] for each in source["outputs"]}
            lacking = [each["name"] for each in model["inputs"] if each["name"] not in known]
            if lacking:
                raise InvalidRequest(f"'{name}' takes {', '.join(lacking)}, which '{before}' does not give")
        last, vectors = self._steps[-1][0], self._steps[-1][1]["outputs"]
        self._output = [each["name"] for each in vectors if each["datatype"] == "FP32" and len(each["shape"]) == 2]
        if len(self._output) != 1:
            raise InvalidRequest(f"'{last}' does not give one fp32 vector a row")

    def is_ready(self) -> bool:
        """Whether all models say that they take inferences; False also where nobody answers."""
        return all(self._client.is_model_ready(name) for name, _ in self._steps)

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """The vectors, fp32 [n, width].

        Raises:
            WorkbenchError: the server's error.
        """
        rows = np.array([[text.encode()] for text in texts], dtype=object)
        tensors = {self._steps[0][1]["inputs"][0]["name"]: rows}
        for name, model in self._steps:
            inputs = [Tensor.from_numpy(each["name"], tensors[each["name"]]) for each in model["inputs"]]
            answer = self._client.infer(InferenceRequest(name, inputs, priority=self._priority), self._timeout_s)
            if answer.error is not None:
                raise answer.error
            tensors = {tensor.name: answer.as_numpy(tensor.name) for tensor in answer.outputs}
        vectors: NDArray[np.float32] = tensors[self._output[0]]
        if len(vectors) != len(texts):
            raise InvalidRequest(f"'{self._steps[-1][0]}' gave {len(vectors)} vectors for {len(texts)} texts")
        return vectors


class QueryWatch:
    """What a model's requests waited and took since the last look, by its statistics.

    Args:
        client: of the server.
        model: the one to watch.
    """

    def __init__(self, client: TritonClient, model: str) -> None:
        self._client, self._model = client, model
        self._before = self._sums()

    def _sums(self) -> tuple[int, int, int]:
        count = queue = total = 0
        for version in self._client.statistics(self._model)["model_stats"]:
            stats: dict[str, Any] = version.get("inference_stats", {})
            success, waited = stats.get("success", {}), stats.get("queue", {})
            count += int(success.get("count", 0))
            total += int(success.get("ns", 0))
            queue += int(waited.get("ns", 0))
        return count, queue, total

    def look(self) -> tuple[int, float, float]:
        """Requests answered since the last look, and how long one waited and took on average, in ms."""
        now = self._sums()
        count, queue, total = (after - before for after, before in zip(now, self._before, strict=True))
        self._before = now
        return (count, queue / count / 1e6, total / count / 1e6) if count > 0 else (0, 0.0, 0.0)


@dataclass(slots=True)
class _Sent:
    documents: list[Document]
    future: Future[NDArray[np.float32]]


class BatchWorker:
    """Embeds what of a table has no vector.

    Args:
        table: the texts and their vectors.
        client: of the server.
        options: how it works.
        on_progress: told of every change of what it does, else twice a second at most.
        stop: once set, what has been sent is awaited and committed, and ``run`` returns.

    Raises:
        WorkbenchError: the server is away, or its models do not fit (``Chain``).
    """

    def __init__(
        self,
        table: DocumentTable,
        client: TritonClient,
        options: WorkerOptions | None = None,
        *,
        on_progress: Callable[[Progress], None] | None = None,
        stop: threading.Event | None = None,
    ) -> None:
        self.options = options or WorkerOptions()
        self.progress = Progress()
        self.stop = stop or threading.Event()
        self._table, self._on_progress = table, on_progress
        self._chain = Chain(
            client, self.options.models, priority=self.options.priority, timeout_s=self.options.timeout_s
        )
        most = self._chain.max_batch_size
        self.batch_size = self.options.batch_size or min(most, 64)
        if self.batch_size > most:
            raise InvalidRequest(f"batch_size is {self.batch_size}: the models take 1 to {most} rows")
        self._watch = QueryWatch(client, self.options.yield_to) if self.options.yield_to else None
        self._told = 0
        self._answered, self._one_takes_ms, self._waits = 0, 0.0, ""
        """Of the model that goes first: when an answered query was last seen, what one took then, in words."""
        self._sent: list[_Sent] = []

    def run(self) -> Progress:
        """Works until ``stop`` is set, or nothing is left where ``poll_s`` is None.

        Raises:
            WorkbenchError: the database cannot be used, or no text of a batch can be embedded. What was committed
                stays.
        """
        began = monotonic_ns()
        pool = ThreadPoolExecutor(self.options.in_flight, thread_name_prefix="embed")
        try:
            while not self.stop.is_set():
                if self._table.changed():
                    self._pass(pool, began)
                elif self.options.poll_s is None:
                    break
                else:
                    self._tell("waiting for rows", began)
                    self.stop.wait(self.options.poll_s)
        finally:
            for sent in self._sent:
                sent.future.cancel()
            pool.shutdown(wait=False, cancel_futures=True)
        self._tell("stopped" if self.stop.is_set() else "done", began)
        return self.progress

    def _pass(self, pool: ThreadPoolExecutor, began: int) -> None:
        """Once through the table, in the order of the keys."""
        self.progress.left = self._table.left()
        start, before = monotonic_ns(), self.progress.working_s
        after: Key | None = None
        while not self.stop.is_set():
            found = self._table.pending(self.batch_size * _AHEAD, after)
            if not found:
                break
            after = found[-1].key
            self._commit([Embedded(each, error="this is no text") for each in found if each.text is None])
            texts = sorted((each for each in found if each.text is not None), key=lambda each: len(each.text or ""))
            for first in range(0, len(texts), self.batch_size):
                self._give_way(began)
                if self.stop.is_set():
                    break
                self._sent.append(self._send(pool, texts[first : first + self.batch_size]))
                while len(self._sent) >= self.options.in_flight:
                    self._collect(pool, began)
                self.progress.working_s = before + (monotonic_ns() - start) / 1e9
                self._tell("embedding", began)
        while self._sent:
            self._collect(pool, began)
        self.progress.working_s = before + (monotonic_ns() - start) / 1e9

    def _send(self, pool: ThreadPoolExecutor, documents: list[Document]) -> _Sent:
        return _Sent(documents, pool.submit(self._chain.embed, [each.text or "" for each in documents]))

    def _collect(self, pool: ThreadPoolExecutor, began: int) -> None:
        """Commits a batch that has been answered."""
        ended = next(iter(wait([sent.future for sent in self._sent], return_when=FIRST_COMPLETED).done))
        sent = next(each for each in self._sent if each.future is ended)
        self._sent.remove(sent)
        vectors = self._answer(pool, sent, began)
        if isinstance(vectors, WorkbenchError):
            self._commit(self._one_by_one(pool, sent.documents, vectors, began))
        elif vectors is not None:
            self._commit([Embedded(each, vector) for each, vector in zip(sent.documents, vectors, strict=True)])

    def _answer(self, pool: ThreadPoolExecutor, sent: _Sent, began: int) -> NDArray[np.float32] | WorkbenchError | None:
        """A batch's vectors, or why its texts have none; waits for a server that is away. None where it was stopped.

        Raises:
            WorkbenchError: it was away too long.
        """
        pause, start, tries = _SHORTEST_S, monotonic_ns(), 0
        while True:
            try:
                return sent.future.result()
            except _PASSING as error:
                if self.stop.is_set():
                    return None
                tries += 1
                if tries >= _TRIES and len(sent.documents) > 1 and _may_be_the_batch(error) and self._chain.is_ready():
                    return error  # too slow as one, for a gateway or for timeout_s: row by row it may come through
                if 0 < self.options.give_up_s <= (monotonic_ns() - start) / 1e9:
                    raise
                self._tell("server away", began, error.message)
                self.stop.wait(pause)
                pause = min(2 * pause, _AWAY_S)
                sent = self._send(pool, sent.documents)
            except WorkbenchError as error:
                return error

    def _one_by_one(
        self, pool: ThreadPoolExecutor, documents: list[Document], error: WorkbenchError, began: int
    ) -> list[Embedded]:
        """The rows of a batch that was refused: one bad text does not keep the others from their vectors.

        Raises:
            WorkbenchError: none of several can be embedded: that is not the texts' fault.
        """
        if len(documents) == 1:
            return [Embedded(documents[0], error=error.message)]
        found = []
        for each in documents:
            answer = self._answer(pool, self._send(pool, [each]), began)
            if isinstance(answer, WorkbenchError):
                found.append(Embedded(each, error=answer.message))
            elif answer is not None:
                found.append(Embedded(each, answer[0]))
        if found and all(each.error for each in found):
            raise error
        return found

    def _commit(self, rows: list[Embedded]) -> None:
        if not rows:
            return
        self._table.save(rows)
        failed = sum(bool(each.error) for each in rows)
        self.progress.failed += failed
        self.progress.embedded += len(rows) - failed
        self.progress.left = max(0, self.progress.left - len(rows))

    def _give_way(self, began: int) -> None:
        """Waits while the model that goes first is busier than allowed."""
        if self._watch is None:
            return
        options, pause, start = self.options, _SHORTEST_S, monotonic_ns()
        while not self.stop.is_set():
            try:
                count, queue_ms, whole_ms = self._watch.look()
            except _PASSING:
                return  # what is sent next finds out, and waits
            now = monotonic_ns()
            if count:
                if queue_ms <= options.max_queue_ms and not 0 < options.max_ms < whole_ms:
                    self._one_takes_ms = 0.0
                    return
                self._answered, self._one_takes_ms = now, whole_ms
                self._waits = f"{options.yield_to} waits {queue_ms:.1f} of {whole_ms:.1f} ms"
            elif (now - self._answered) / 1e6 >= 2 * self._one_takes_ms:
                return  # none came; before that, none answered is only that one takes longer than a look
            if (now - start) / 1e9 >= options.max_pause_s:
                return
            self._tell("giving way", began, self._waits)
            before = monotonic_ns()
            self.stop.wait(pause)
            self.progress.paused_s += (monotonic_ns() - before) / 1e9
            pause = min(2 * pause, _LONGEST_S)

    def _tell(self, state: State, began: int, note: str = "") -> None:
        now, progress = monotonic_ns(), self.progress
        changed = state != progress.state
        progress.state, progress.note, progress.seconds = state, note, (now - began) / 1e9
        if self._on_progress is not None and (changed or now - self._told > _TELL_S * 1e9):
            self._told = now
            self._on_progress(progress)


def _may_be_the_batch(error: WorkbenchError) -> bool:
    """Whether an error may come of a batch's size: no answer in time, and not a queue that is full."""
    return isinstance(error, ConnectionFailed | NotReady)
