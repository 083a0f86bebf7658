"""What a server of the workbench tells of its requests, and a remote Triton does not."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal, overload

from workbench.errors import InvalidRequest, Unsupported
from workbench.session.logs import LAST, LogCursor, LogFilter, LogLine, LogLines
from workbench.session.logs import follow as follow_logs
from workbench.session.logs import read as read_logs
from workbench.session.pipelines import breakdown_frame, composing_models

if TYPE_CHECKING:
    import pandas as pd

    from workbench.protocol.tensors import InferenceRequest
    from workbench.records import Event, RecordColumns
    from workbench.session.results import CapturedRows, ConfigView
    from workbench.session.timeline import Timeline, Waterfall


LOG_SETTINGS = ("log_info", "log_warning", "log_error", "log_verbose_level", "log_format", "log_file")
Kind = Literal["process", "kernel", "remote"]


class TellingServer(ABC):
    """Records, events, log lines, captured requests; each raises ``Unsupported`` in words where a place has none."""

    kind: Kind
    name: str
    url: str

    _closed = False

    @abstractmethod
    def state(self) -> dict[str, Any]:
        """The engine's snapshot: each model's state, instances, pending requests, failures, last batches."""

    @abstractmethod
    def config(self, model: str) -> ConfigView:
        """The configuration of a model: applied text, saved text, completed JSON, epoch."""

    @property
    def closed(self) -> bool:
        """Whether ``close`` has been called."""
        return self._closed

    def _who(self) -> str:
        return f"the server at {self.url}" if self.url else "this server"

    def records(self, after: int = -1) -> pd.DataFrame:
        """Per-request records, one row a request, newest last.

        A request waited from ``queue_start`` to ``compute_start``, ran until ``compute_end``, and was answered at
        ``end``: nanoseconds of CLOCK_MONOTONIC. With it its ``priority``, ``status``, ``instance``, the batch it was
        part of (``batch_seq``, as in ``batches()``) and the request that it was made for (``parent_seq``, else -1).
        """
        requests: pd.DataFrame = self.record_columns(after).to_frames()[0]
        return requests

    def batches(self, after: int = -1) -> pd.DataFrame:
        """Per-batch records: rows, requests, instance, and the reason why the batch left the queue (``full``, ...)."""
        batches: pd.DataFrame = self.record_columns(after).to_frames()[1]
        return batches

    def record_columns(self, after: int = -1) -> RecordColumns:
        """Records after a sequence number, as columns."""
        raise Unsupported(f"{self._who()} gives no per-request records", hint="statistics() has its totals")

    def events(self, after: int = -1) -> list[Event]:
        """Events after a sequence number: states, applied edits, instance failures, log lines."""
        raise Unsupported(f"{self._who()} tells no events over this connection", hint="read its log")

    @overload
    def logs(
        self, *, after: LogCursor | None = None, model: str | None = None, level: str = "verbose",
        request: int | str | None = None, text: str = "", slower_than_ms: float | None = None,
        last: int | None = LAST, follow: Literal[False] = False,
    ) -> LogLines: ...  # fmt: skip
    @overload
    def logs(
        self, *, after: LogCursor | None = None, model: str | None = None, level: str = "verbose",
        request: int | str | None = None, text: str = "", slower_than_ms: float | None = None,
        last: int | None = LAST, follow: Literal[True],
    ) -> Iterator[LogLine]: ...  # fmt: skip
    def logs(
        self,
        *,
        after: LogCursor | None = None,
        model: str | None = None,
        level: str = "verbose",
        request: int | str | None = None,
        text: str = "",
        slower_than_ms: float | None = None,
        last: int | None = LAST,
        follow: bool = False,
    ) -> LogLines | Iterator[LogLine]:
        """What models and server said, each line with the requests that it belongs to and their response times.

        A model's lines are those of ``pb_utils.Logger``, what it printed, and what it raised, with the Python
        traceback; what one says while a batch is executed belongs to all requests of that batch. A request that said
        something, failed, or was slower than asked for has a line for its end. Verbose lines come with a
        ``log_verbose_level`` of 1 and more, as in Triton; the server keeps the latest lines (about 4,000).

        Args:
            after: ``cursor`` of an earlier answer: only what came since.
            model: lines of this model alone.
            level: the least important one wanted: ``verbose``, ``info``, ``warning`` or ``error``.
            request: of this request alone, and of those made for it (ensemble, BLS): its ``seq`` in the records, or its
                id as a text.
            text: only lines with this in their text or traceback, in either case.
            slower_than_ms: only lines of requests that took so long, and the ends of all that did.
            last: how many lines at most, the newest; None is all that are kept.
            follow: gives an iterator instead that goes on with what comes, until the server is closed.

        Raises:
            InvalidRequest: there is no such level.
            Unsupported: a remote Triton tells no lines over its connection.
        """
        wanted = LogFilter(model, level, request, text, slower_than_ms, last)
        self.check_logs()
        return follow_logs(self, wanted, after) if follow else read_logs(self, wanted, after)

    def check_logs(self) -> None:
        """Raises ``Unsupported`` where this place tells no log lines (a remote Triton)."""
        if self.kind == "remote":
            raise Unsupported(
                f"{self._who()} tells no log lines over its connection",
                hint="read its own log (docker logs, kubectl logs), or serve its repository here",
            )

    @abstractmethod
    def _log_settings(self, changes: Mapping[str, bool | int | str]) -> dict[str, Any]:
        """Changes log settings and gives all of them."""

    def log_settings(self, **changes: bool | int | str) -> dict[str, Any]:
        """Triton's log settings, of any server, after those that are named have been changed.

        ``server.log_settings(log_verbose_level=1)`` has verbose lines logged from now on. What is switched off
        (``log_info``, ``log_warning``, ``log_error``) is neither written nor in ``logs``.

        Raises:
            InvalidRequest: there is no such setting.
            WorkbenchError: with Triton's text: a wrong value; ``log_file`` cannot be changed.
        """
        for name in changes:
            if name not in LOG_SETTINGS:
                known = ", ".join(LOG_SETTINGS)
                raise InvalidRequest(f"no log setting {name!r}", where="log_settings()", hint=f"there are: {known}")
        return self._log_settings(changes)

    def captured(self) -> CapturedRows:
        """The requests whose inputs are kept, by ``seq``: failed ones and each model's slowest (64 MiB in all)."""
        raise Unsupported(f"{self._who()} keeps no requests", hint="serve its repository here")

    def captured_request(self, seq: int) -> InferenceRequest:
        """A kept request, with its inputs.

        Raises:
            NotFound: it is not kept (any more).
            Unsupported: a remote Triton keeps none.
        """
        raise Unsupported(f"{self._who()} keeps no requests", hint="serve its repository here")

    def breakdown(self, model: str, *, seconds: float | None = None) -> pd.DataFrame:
        """Where the time of an ensemble's requests goes, step by step; also of a Python model's that asks others (BLS).

        From the records: only requests that were made for this model count, whatever else its steps serve. Means in
        milliseconds, one row a step in the order of the steps: ``calls`` for each request of ``model``, ``queue_ms``,
        ``compute_input_ms``, ``compute_infer_ms``, ``compute_output_ms``, ``total_ms`` (until the answer was on its
        way) and the ``share`` of the whole; then what lies between the steps, then the whole. ``compute_infer_ms`` of
        the whole is the time from its first step to its last, with their queues; Triton's ``statistics()`` of an
        ensemble have the sum of its steps' compute instead, without their queues.

        Args:
            model: whose requests.
            seconds: only those of the last seconds; None takes all that are recorded still.

        Raises:
            Unsupported: a remote Triton gives no records; its ``statistics()`` have each model's totals.
        """
        columns = self.record_columns()
        since = 0 if seconds is None else int(self.state()["time_ns"]) - int(seconds * 1e9)
        return breakdown_frame(columns, model, composing_models(self.config(model).effective), since)

    def timeline(self, model: str | None = None, *, last: float | None = None) -> Timeline:
        """Who waited for whom, on which instance, and why each batch left the queue: from the ring of records.

        In a notebook the answer is a chart: each request's latency, each instance's batches coloured by the reason why
        they left the queue, and how many requests waited. ``.frame()`` gives one row a request, ``.waterfall(seq)``
        one request, ``.perfetto("trace.json")`` writes what ui.perfetto.dev opens.

        Args:
            model: one model and what was made for it (steps of an ensemble, BLS); None is all.
            last: only what ended in the last seconds; None is all that is kept (65,536 requests).

        Raises:
            NotFound: no request of ``model`` is recorded.
            Unsupported: a remote Triton gives no records.
        """
        from workbench.session.timeline import Timeline

        columns = self.record_columns()
        return Timeline.of_records(columns, model=model, last=last, now_ns=int(self.state()["time_ns"]))

    def waterfall(self, request: int | str) -> Waterfall:
        """Where the time of one request went, in a sentence and in bars.

        With it the batches that kept its instance busy while it waited, what was made for it (steps of an ensemble,
        BLS), and the requests that shared its batch.

        Args:
            request: the ``seq`` of its record, or its id as a text; of several with this id the newest.

        Raises:
            NotFound: it runs still, or its record is no longer kept.
            Unsupported: a remote Triton gives no records.
        """
        from workbench.records.waterfall import waterfall_of
        from workbench.session.timeline import Waterfall

        return Waterfall(waterfall_of(self.record_columns(), request))

    def traffic(self) -> pd.DataFrame:
        """Bytes that were moved, counted where they move; one row a model, so that two answers can be subtracted.

        On the wire, by the model that a client asked (zero in a kernel's engine, which has no wire): ``requests``, and
        the bytes ``received`` and ``sent`` for them: HTTP with its heads; gRPC's framed messages, without the headers
        and frame heads of HTTP/2, which a connection's requests share. Inside: bytes that went
        ``to_processes`` and ``from_processes`` of a Python model; bytes of tensors that an ensemble has
        ``handed_on`` to its steps and in its answers, and how many of them it ``copied`` to do so. The inside counts
        begin anew when a model is reloaded.

        Raises:
            Unsupported: a remote Triton does not count them.
        """
        raise Unsupported(f"{self._who()} does not count the bytes that it moves", hint="serve its repository here")

    def devices(self) -> dict[str, Any]:
        """CPU, memory and GPUs of the machine that serves."""
        raise Unsupported(f"{self._who()} gives no device readings over this connection", hint="read its /metrics")
