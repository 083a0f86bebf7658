"""The engine: models on one event loop of their own, in one thread of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from queue import Empty, SimpleQueue
from typing import Any

from workbench.config import Edit
from workbench.engine.asked import AskedEngine
from workbench.engine.options import ConfigureResult, SaveResult
from workbench.engine.sequences import late_refusal
from workbench.engine.ticket import OnResponse, Ticket
from workbench.engine.validation import DECOUPLED
from workbench.errors import InvalidRequest, NotFound, NotReady, TimedOut, Unsupported, WorkbenchError
from workbench.protocol.packed import encode_packed
from workbench.protocol.tensors import InferenceRequest, InferenceResponse
from workbench.records.capture import CaptureStatus, Keep


class InferenceEngine(AskedEngine):
    """Runs the models of one or more repositories.

    ``start`` makes a thread with an event loop (uvloop where there is one); schedulers and front ends live there, and
    the methods named ``..._async`` and ``submit`` belong there. Everything else may be called from any thread.
    """

    # ---- requests

    def submit(self, request: InferenceRequest, on_response: OnResponse, *, once: bool = False) -> Ticket:
        """Queues a request; ``on_response`` is called on the loop, the last time with ``final=True``. On the loop.

        Raises:
            WorkbenchError: it is wrong, cannot be taken, or (``once``) is for a decoupled model; Triton's text.
        """
        captures = self._core.captures
        if captures.running:
            return captures.through(lambda: self._accept(request, on_response, once=once), request)
        return self._accept(request, on_response, once=once)

    def _accept(self, request: InferenceRequest, on_response: OnResponse, *, once: bool) -> Ticket:
        model = self._lifecycle.lookup(request.model_name, request.model_version)
        if self._stopping and (text := late_refusal(model, request)):
            raise NotReady(text)
        if once and model.decoupled:
            raise Unsupported(DECOUPLED)
        return model.accept(request, on_response)

    def infer(
        self, request: InferenceRequest, timeout_s: float | None = None, *, once: bool = False
    ) -> InferenceResponse:
        """Runs a request and waits for its last response; from any thread but the loop's. ``once``: see ``submit``.

        A small model's request may run on this thread (``engine.inline``); ``timeout_s`` does not cut that short.

        Raises:
            WorkbenchError: what the request failed with.
            TimedOut: no answer within ``timeout_s``; the request is cancelled.
        """
        self._check_blocking()
        captures, inline = self._core.captures, self._core.inline
        if captures.running:
            response = captures.through(lambda: inline.infer(request), request)
        else:
            response = inline.infer(request)
        if response is None:
            for response in self._responses(request, timeout_s, once=once, inline=True):  # noqa: B007
                pass
        assert response is not None
        if response.error is not None:
            raise response.error
        return response

    def infer_stream(
        self, request: InferenceRequest, timeout_s: float | None = None, *, once: bool = False
    ) -> Iterator[InferenceResponse]:
        """Runs a request and gives its responses as they come; leaving the loop early cancels it.

        Raises:
            WorkbenchError: what the request failed with.
            TimedOut: no response within ``timeout_s`` of the one before it.
        """
        self._check_blocking()
        yield from self._responses(request, timeout_s, once=once)

    def _responses(
        self, request: InferenceRequest, timeout_s: float | None, *, once: bool, inline: bool = False
    ) -> Iterator[InferenceResponse]:
        results: SimpleQueue[InferenceResponse] = SimpleQueue()
        cancel = self._post(request, results.put, once=once, inline=inline)
        done = False
        try:
            while not done:
                try:
                    result = results.get(timeout=timeout_s)
                except Empty:
                    raise TimedOut(f"no answer from model '{request.model_name}' within {timeout_s} s") from None
                done = result.final
                if result.error is not None:
                    raise result.error
                yield result
        finally:
            if not done:
                cancel()

    def post(self, request: InferenceRequest, on_response: OnResponse, *, once: bool = False) -> Callable[[], None]:
        """As ``submit``, from any thread; a refusal is a response with ``error``. Gives what cancels the request."""
        return self._post(request, on_response, once=once)

    def _post(
        self, request: InferenceRequest, on_response: OnResponse, *, once: bool, inline: bool = False
    ) -> Callable[[], None]:
        tickets: list[Ticket] = []
        inlines = self._core.inline
        inlines.arriving.append(None)

        def begin() -> None:
            try:
                try:
                    ticket = self.submit(request, on_response, once=once)
                finally:
                    inlines.arriving.pop()
                tickets.append(ticket)
                if inline:
                    inlines.consider(request, ticket.model)
            except Exception as error:  # whatever it is, somebody waits for it
                known = error if isinstance(error, WorkbenchError) else None
                refusal = known or InvalidRequest(f"{type(error).__name__}: {error}")
                on_response(InferenceResponse(request.model_name, request.model_version, request.id, error=refusal))

        def cancel() -> None:
            for ticket in tickets:
                ticket.cancel()

        inbox = self._core.inbox
        inbox.post(begin)
        return lambda: inbox.post(cancel)  # behind begin(), which a loop that is held up may not have come to yet

    # ---- life cycle and configuration

    async def load_async(
        self, name: str, *, config: str | None = None, files: Mapping[str, bytes] | None = None
    ) -> None:
        """Loads or reloads a model (7.9, 7.10); ``config`` is JSON, ``files`` maps paths to contents. On the loop.

        Raises:
            WorkbenchError: with Triton's texts; what served before still does.
        """
        self._refuse_when_stopping()
        await self._core.protect(self._lifecycle.load(name, config=config, files=files))

    async def unload_async(self, name: str, *, unload_dependents: bool = False) -> None:
        """Starts unloading a model (7.11). On the loop."""
        await self._core.protect(self._lifecycle.unload(name, unload_dependents=unload_dependents))

    async def configure_async(
        self, name: str, edits: Iterable[Edit], *, dry_run: bool = False, lease: str = ""
    ) -> ConfigureResult:
        """Applies edits in memory, in place where that is possible. On the loop.

        Raises:
            ConfigError: an edit or its result is refused; nothing has changed.
            LoadFailed: the change needed a reload and that failed; what served before still does.
            NotReady: the model is being swept by somebody else, or ``lease`` is over.
        """
        self._refuse_when_stopping()
        if lease and not dry_run:
            return await self._core.protect(self._leases.configure(name, list(edits), lease))
        if not dry_run:
            self._leases.check(name)
        return await self._core.protect(self._configurator.configure(name, list(edits), dry_run=dry_run))

    async def save_async(self, name: str) -> SaveResult:
        """Writes the configuration in force to config.pbtxt. On the loop.

        Raises:
            NotReady: the model is being swept: what is in force is about to be put back.
        """
        self._leases.check(name)
        return await self._core.protect(self._configurator.save(name))

    async def revert_async(self, name: str) -> ConfigureResult:
        """Goes back to the file's configuration. On the loop."""
        self._refuse_when_stopping()
        self._leases.check(name)
        return await self._core.protect(self._configurator.revert(name))

    async def lease_async(self, name: str, holder: Mapping[str, Any], ttl_s: float) -> str:
        """Takes a model for a sweep; see ``Leases.take``. On the loop."""
        self._refuse_when_stopping()
        return await self._core.protect(self._leases.take(name, holder, ttl_s))

    async def renew_lease_async(self, name: str, lease: str) -> None:
        """A sign of life of a lease's holder; see ``Leases.renew``. On the loop."""
        self._leases.renew(name, lease)

    async def release_lease_async(self, name: str, lease: str) -> None:
        """Puts a model's configuration back and lets go of it; see ``Leases.release``. On the loop."""
        await self._core.protect(self._leases.release(name, lease))

    def begin_capture(self, model: str, *, limit: int, keep: Keep, for_s: float) -> CaptureStatus:
        """Begins to take down what clients send to a model; see ``Captures.begin``.

        Raises:
            InvalidRequest: a limit or a time that makes no sense.
            NotFound: there is no such model.
            NotReady: there are as many captures as may be, or the engine stops.
        """

        def begin() -> CaptureStatus:
            self._refuse_when_stopping()
            if model not in self._lifecycle.entries:
                raise NotFound(f"there is no model '{model}' whose requests could be captured")
            return self._core.captures.begin(model, limit=limit, keep=keep, for_s=for_s)

        return self._ask(begin)

    def end_capture(self, id: str) -> CaptureStatus:
        """Ends a capture; NotFound where there is none of this id (any more)."""
        return self._ask(lambda: self._core.captures.end(id))

    def capture_status(self, id: str) -> CaptureStatus:
        """How a capture stands; NotFound where there is none of this id (any more)."""
        return self._ask(lambda: self._core.captures.status(id))

    def captures(self) -> list[CaptureStatus]:
        """The captures under way, and those that nobody has fetched."""
        return self._ask(self._core.captures.statuses)

    def captured_part(self, id: str, after: int) -> tuple[bytes, list[bytes]]:
        """Some of what was captured, from the ``after``-th request on, as ``encode_packed`` has it; not on the loop.

        Raises:
            InvalidRequest: the capture goes on.
            NotFound: there is none of this id (any more).
        """
        return encode_packed(*self._core.captures.part(id, after))

    def drop_capture(self, id: str) -> None:
        """Lets go of a capture and of what it holds."""
        self._ask(lambda: self._core.captures.drop(id))

    def leases(self) -> list[dict[str, Any]]:
        """Which models are taken: ``model``, ``holder``, ``ttl_s``."""
        return self._ask(self._leases.to_json)

    def load(self, name: str, *, config: str | None = None, files: Mapping[str, bytes] | None = None) -> None:
        """As ``load_async``, from any thread but the loop's."""
        self._run(self.load_async(name, config=config, files=files))

    def unload(self, name: str, *, unload_dependents: bool = False) -> None:
        """As ``unload_async``, from any thread but the loop's."""
        self._run(self.unload_async(name, unload_dependents=unload_dependents))

    def configure(self, name: str, edits: Iterable[Edit], *, dry_run: bool = False, lease: str = "") -> ConfigureResult:
        """As ``configure_async``, from any thread but the loop's."""
        return self._run(self.configure_async(name, edits, dry_run=dry_run, lease=lease))

    def save(self, name: str) -> SaveResult:
        """As ``save_async``, from any thread but the loop's."""
        return self._run(self.save_async(name))

    def revert(self, name: str) -> ConfigureResult:
        """As ``revert_async``, from any thread but the loop's."""
        return self._run(self.revert_async(name))

    def lease(self, name: str, holder: Mapping[str, Any], ttl_s: float) -> str:
        """As ``lease_async``, from any thread but the loop's."""
        return self._run(self.lease_async(name, holder, ttl_s))

    def renew_lease(self, name: str, lease: str) -> None:
        """As ``renew_lease_async``, from any thread but the loop's."""
        self._run(self.renew_lease_async(name, lease))

    def release_lease(self, name: str, lease: str) -> None:
        """As ``release_lease_async``, from any thread but the loop's."""
        self._run(self.release_lease_async(name, lease))
