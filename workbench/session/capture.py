"""``server.capture(model)``: what clients really send, taken down to be looked at, kept in a file and sent again."""

from __future__ import annotations

import threading
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from workbench.clock import sleep
from workbench.errors import InvalidRequest, Unsupported, WorkbenchError
from workbench.profiling.trace import Trace, check_place
from workbench.protocol.binary import Buffer
from workbench.protocol.packed import decode_packed
from workbench.protocol.tensors import InferenceRequest
from workbench.records.capture import CaptureStatus, Keep
from workbench.session.hints import explain

if TYPE_CHECKING:
    import pandas as pd

    from workbench.session.server import Server

LIMIT_MB = 256
LONGEST_S = 3600.0
_LARGEST_MB = 65_536
_LOOK_S = 0.1

_FRONTS = {
    "http": "HTTP", "generate": "HTTP generate", "generate_stream": "HTTP generate_stream", "grpc": "gRPC",
    "stream": "gRPC stream", "": "this kernel",
}  # fmt: skip
_STREAMS = ("generate_stream", "stream")


class CaptureDesk(Protocol):
    """Where captures are asked for: an engine in this kernel, or the control plane of a server."""

    def begin_capture(self, model: str, *, limit: int, keep: Keep, for_s: float) -> CaptureStatus:
        """Begins one."""

    def capture_status(self, id: str) -> CaptureStatus:
        """How it stands."""

    def end_capture(self, id: str) -> CaptureStatus:
        """Ends it."""

    def captured_part(self, id: str, after: int) -> tuple[Buffer, Buffer | list[bytes]]:
        """Some of what it holds, for ``decode_packed``; none at the end."""

    def drop_capture(self, id: str) -> None:
        """Lets it go."""


class Capture:
    """What clients send to one model, from ``server.capture(...)`` until ``stop``, the end of a ``with``, or its time.

    Then ``trace`` is the traffic: ``wb.Load.replay(capture, factor=2)`` sends it again twice as fast,
    ``server.profile(model, capture)`` as it came; ``save(path)`` keeps it, ``frame()`` shows it, ``requests()`` gives
    the requests themselves. The inputs are your clients' data: the file is readable by its owner alone.
    """

    def __init__(self, server: Server, desk: CaptureDesk, status: CaptureStatus, to: Path | None) -> None:
        self._server = server
        self._desk = desk
        self._status = status
        self._to = to
        self._lock = threading.Lock()
        self._found: list[tuple[int, InferenceRequest]] | None = None
        self._trace: Trace | None = None

    @property
    def model(self) -> str:
        """Whose requests."""
        return self._status.model

    @property
    def status(self) -> CaptureStatus:
        """How it stands: asked of the server while it goes on."""
        if self._found is None:
            self._status = self._desk.capture_status(self._status.id)
        return self._status

    @property
    def running(self) -> bool:
        """Whether requests are taken down still."""
        return not self.status.ended

    def wait(self, timeout_s: float | None = None) -> Self:
        """Waits until its time is over (``for_s``), or ``timeout_s`` at most, and stops it. So does Ctrl-C."""
        waited = 0.0
        try:
            while (timeout_s is None or waited < timeout_s) and self.running:
                pause = _LOOK_S if timeout_s is None else min(_LOOK_S, timeout_s - waited)
                sleep(pause)
                waited += pause
        except KeyboardInterrupt:
            pass
        return self.stop()

    def stop(self) -> Self:
        """Ends the capture and fetches what it holds; saves it where ``to`` was given. May be called twice.

        Raises:
            NotFound: the server has let it go: it ended long ago.
            ConnectionFailed: the server has gone, and what it held with it.
        """
        with self._lock:
            if self._found is not None:
                return self
            id = self._status.id
            try:
                self._desk.end_capture(id)
                found: list[tuple[int, InferenceRequest]] = []
                while True:
                    header, body = self._desk.captured_part(id, len(found))
                    part = decode_packed(header, b"".join(body) if isinstance(body, list) else body)
                    if not part:
                        break
                    found += part
                self._status = self._desk.capture_status(id)
                self._desk.drop_capture(id)
            except WorkbenchError as error:
                explain(self._server, self.model, error)
                raise
            self._found = found
        if self._to is not None and found:
            self.save(self._to)
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *exc: object) -> None:
        try:
            self.stop()
        except WorkbenchError:
            if kind is None:  # else that is what there is to say
                raise

    # -- what was captured --------------------------------------------------------------------------------------------

    def requests(self) -> list[tuple[float, InferenceRequest]]:
        """Each request with when it came, in seconds from the start of the capture.

        Raises:
            InvalidRequest: the capture goes on.
        """
        begin = self._status.started
        return [((arrival - begin) / 1e9, request) for arrival, request in self._all()]

    @property
    def trace(self) -> Trace:
        """The traffic, to be sent again.

        Raises:
            InvalidRequest: the capture goes on, or nothing was sent.
        """
        if self._trace is None:
            found = self._all()
            if not found:
                raise InvalidRequest(
                    f"nothing was sent to '{self.model}' during the capture",
                    hint="what models ask one another is not captured: capture the model that clients ask",
                )
            self._trace = Trace.of(
                found,
                streaming=[request.front in _STREAMS for _, request in found],
                source=f"capture of '{self.model}' at {self._server.url or self._server.name}",
                notes=self.notes,
                length_ns=self._until() - found[0][0],
            )
        return self._trace

    def _until(self) -> int:
        """When the last moment was of which all is kept."""
        status = self._status
        return status.started + status.full_ns if status.full_ns and status.keep == "first" else status.ended

    @property
    def notes(self) -> tuple[str, ...]:
        """What is not in it, in words; nothing where all that was sent is."""
        status = self._status
        notes = []
        if status.full_ns:
            at = f"the limit of {status.limit / 2**20:g} MB was reached after {status.full_ns / 1e9:.1f} s"
            which = "that came then" if status.keep == "first" else "that came first"
            notes.append(f"{at}: the {status.missed} requests {which} are not kept")
        elif status.missed:
            notes.append(f"{status.missed} requests could not be kept: the server's log says why")
        if status.ended_by == "time":
            notes.append(f"it ended by itself after {(status.ended - status.started) / 1e9:.1f} s")
        if status.refused:
            notes.append(f"{status.refused} requests that the server refused as wrong are not in it")
        return tuple(notes)

    def save(self, path: str | Path) -> Path:
        """Writes the traffic, inputs included, to a file that its owner alone may read; ``wb.Load.replay(path)``.

        Raises:
            InvalidRequest: the capture goes on, nothing was sent, or the file cannot be written.
        """
        trace = self.trace
        try:
            return trace.save(path)
        except OSError as error:
            raise InvalidRequest(
                f"the capture cannot be saved: {error.strerror or error}", where=str(path),
                hint="it is still held here: capture.save(ANOTHER FILE)",
            ) from error  # fmt: skip

    def frame(self) -> pd.DataFrame:
        """One row a request: when it came (``at_s``), ``front``, ``client``, ``id``, what it asked and how large."""
        import pandas as pd

        rows = [
            {
                "at_s": at,
                "front": _FRONTS.get(request.front, request.front),
                "client": request.client,
                "id": request.id,
                "version": request.model_version,
                "priority": request.priority,
                "timeout": request.timeout,
                "sequence_id": request.sequence_id,
                "sequence_start": request.sequence_start,
                "sequence_end": request.sequence_end,
                "parameters": dict(request.parameters),
                "shapes": ", ".join(f"{each.name} {each.datatype} {list(each.shape)}" for each in request.inputs),
                "bytes": sum(_bytes_of(each.data) for each in request.inputs),
            }
            for at, request in self.requests()
        ]
        return pd.DataFrame(rows)

    def _all(self) -> list[tuple[int, InferenceRequest]]:
        if self._found is None:
            raise InvalidRequest(f"the capture of '{self.model}' goes on", hint="stop() it first, or leave its with")
        return self._found

    def __len__(self) -> int:
        return self.status.requests if self._found is None else len(self._found)

    def __repr__(self) -> str:
        try:
            status = self.status
        except WorkbenchError as error:
            return f"Capture of '{self.model}' (no answer: {error.message})"
        head = f"Capture of '{status.model}': {status.requests} requests, {status.size / 2**20:.1f} MB"
        if self._found is None:
            state = "it goes on" if not status.ended else "it has ended: stop() fetches it"
            return "\n".join([f"{head}; {state}", *(f"  note: {note}" for note in self.notes)])
        seconds = (status.ended - status.started) / 1e9
        lines = [f"{head} in {seconds:.1f} s"]
        if self._found:
            fronts = Counter(_FRONTS.get(request.front, request.front) for _, request in self._found)
            lines.append("  over " + ", ".join(f"{name} {count}" for name, count in fronts.most_common()))
            gaps = np.diff([arrival for arrival, _ in self._found]) / 1e6
            if len(gaps):
                lines.append(f"  gaps between them p50 {np.median(gaps):.2f} ms, longest {gaps.max():.2f} ms")
        return "\n".join([*lines, *(f"  note: {note}" for note in self.notes)])


def _bytes_of(data: NDArray[Any]) -> int:
    return sum(map(len, data.flat)) if data.dtype == np.object_ else data.nbytes


def _writable(to: Any) -> Path:
    """The file that a capture is to be saved to: what is captured must not be found to have no place at the end."""
    if not isinstance(to, str | Path) or not str(to):
        raise InvalidRequest(f"to must be the name of a file, got {to!r:.80}")
    try:
        return check_place(to)
    except (OSError, ValueError, RuntimeError) as error:  # also a null character, a home that is not known
        why = getattr(error, "strerror", None) or error
        raise InvalidRequest(
            f"a capture cannot be saved there: {why}", where=str(to), hint="name a file in a folder of yours"
        ) from error


def capture(
    server: Server, model: str, *, limit_mb: float, keep: Keep, for_s: float | None, to: str | Path | None
) -> Capture:
    """Begins a capture; see ``Server.capture``."""
    from workbench.session.kernel import Engine
    from workbench.session.remote import WorkbenchServer

    desk: CaptureDesk
    if isinstance(server, Engine):
        desk = server.engine
    elif isinstance(server, WorkbenchServer):
        desk = server.control
    else:
        raise Unsupported(
            f"the server at {server.url} does not give away what it is sent",
            hint="serve its repository here (wb.serve) and have the clients ask that, or have Triton trace its "
            "requests (--trace-config); of a server of the workbench: wb.attach(NAME)",
        )
    given: Any = limit_mb
    if not isinstance(given, int | float) or not 0 < given <= _LARGEST_MB:
        raise InvalidRequest(f"limit_mb must be a number above 0, up to {_LARGEST_MB}, got {given!r:.80}")
    path = None if to is None else _writable(to)
    limit = int(limit_mb * 2**20)
    try:
        status = desk.begin_capture(model, limit=limit, keep=keep, for_s=LONGEST_S if for_s is None else for_s)
    except WorkbenchError as error:
        explain(server, model, error)
        raise
    return Capture(server, desk, status, path)
