"""Loads a model.py and runs it: the rules of ``execute``, and errors in Triton's words.

Texts: python_backend (pb_stub.cc), recorded from release 24.10 (Triton 2.51), except where it hangs and this does not.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import threading
from collections.abc import Callable
from time import monotonic_ns  # noqa: TID251 - another interpreter may run this file: it has no workbench.clock
from types import ModuleType
from typing import Any

from workbench.backends._child.coroutines import SharedLoop
from workbench.backends._child.lines import OURS, Lines, as_unicode
from workbench.backends._child.model_config import ModelConfig
from workbench.backends._child.replies import DECOUPLED_HINT, Batch, Reply, prune
from workbench.backends._child.tensors import InferenceResponse, TritonModelException

_BORDERS = frozenset(("load", "initialize", "auto_complete", "execute", "finalize", "check_ready"))
_MISSING: Any = object()
NOT_BOOLEAN = "is_ready() must return a boolean value"


class ModelError(Exception):
    """A text that is sent as it stands, without a traceback."""


def describe(error: BaseException) -> str:
    """An exception in the form that Triton gives it (pybind11's): type, text, and the calls, innermost first."""
    if isinstance(error, ModelError):
        return as_unicode(str(error))
    try:
        message = as_unicode(str(error)) or "<EMPTY MESSAGE>"
    except Exception as raised:
        text = _with_calls(f"{type(error).__name__}: <MESSAGE UNAVAILABLE DUE TO ANOTHER EXCEPTION>", error)
        return f"{text}\nMESSAGE UNAVAILABLE DUE TO EXCEPTION: {describe(raised)}"
    return _with_calls(f"{type(error).__name__}: {message}", error)


def _with_calls(text: str, error: BaseException) -> str:
    trace = error.__traceback__
    if trace is None:
        return text
    while trace.tb_next is not None:
        trace = trace.tb_next
    frame: Any = trace.tb_frame
    lines: list[str] = []
    while frame is not None:
        file, name = frame.f_code.co_filename, frame.f_code.co_name
        if file.startswith(OURS):
            if name in _BORDERS:
                break
        elif not lines and file.startswith("<frozen importlib"):
            break  # a file that cannot be compiled has no calls to show
        else:
            lines.append(f"  {file}({frame.f_lineno}): {name}\n")
        frame = frame.f_back
    return f"{text}\n\nAt:\n{''.join(lines)}" if lines else text


class Runner:
    """One model.py with its instance of ``TritonPythonModel``.

    Args:
        args: what ``initialize`` gets: Triton's seven strings.
        path: the model's file.
        load: gives the module of that file.
        lines: takes what the model raises to the log, and is told which batch is executed.
    """

    def __init__(self, args: dict[str, str], path: str, load: Callable[[], ModuleType], lines: Lines) -> None:
        self.args = args
        self.lines = lines
        self.path = path
        self.instance = args.get("model_instance_name", "")
        config = json.loads(args["model_config"]) if args.get("model_config") else {}
        self.decoupled = bool(config.get("model_transaction_policy", {}).get("decoupled", False))
        outputs = tuple(output["name"] for output in config.get("output", ()))
        version = args.get("model_version", "1")
        self.identity = (args["model_name"], int(version) if version.isdigit() else 1, outputs)
        self._load = load
        self.on_error: Callable[[BaseException], None] | None = None  # is told what execute raised, as it is
        self._model: Any = None
        self._execute: Any = None
        self._loop: SharedLoop | None = None
        self._loop_lock = threading.Lock()

    def initialize(self) -> None:
        """Imports the file, makes the model and calls its ``initialize``. What goes wrong is raised as it is."""
        module = self._load()
        factory = self._factory(module)
        self._model = factory()
        if hasattr(self._model, "initialize"):
            self._model.initialize(self.args)
        self._execute = getattr(self._model, "execute", None)

    def auto_complete(self, config: str) -> str:
        """What the model's ``auto_complete_config`` makes of a configuration, as JSON; "" where it has none.

        Raises:
            ModelError: it gave something else than a ModelConfig.
        """
        factory = self._factory(self._load())
        function = getattr(factory, "auto_complete_config", None)
        if function is None:
            return ""
        result = function(ModelConfig(config))
        if not isinstance(result, ModelConfig):
            name = self.args["model_name"]
            raise ModelError(
                f"auto_complete_config function in model '{name}' must return a valid pb.ModelConfig object."
            )
        return json.dumps(result.as_dict())

    def finalize(self) -> BaseException | None:
        """Calls the model's ``finalize``; gives what it raised."""
        finalize = getattr(self._model, "finalize", None)
        try:
            if finalize is not None:
                finalize()
        except BaseException as error:
            return error
        finally:
            if self._loop is not None:
                self._loop.close()
        return None

    @property
    def can_be_asked(self) -> bool:
        """Whether the initialized model says itself whether it is ready."""
        return hasattr(self._model, "is_ready")

    def check_ready(self) -> tuple[bool, str]:
        """What the model's ``is_ready`` says, and the text of what is wrong with it, "" for nothing.

        Called while ``execute`` may run, from another thread. A model that has lost its ``is_ready`` is ready.
        """
        try:
            function = getattr(self._model, "is_ready", _MISSING)
            if function is _MISSING:
                return True, ""
            result = function()
            if asyncio.iscoroutine(result):
                result = self._run(result)
            if not isinstance(result, bool):
                raise ModelError(NOT_BOOLEAN)
            return result, ""
        except BaseException as error:
            return False, describe(error)

    def execute(self, requests: list[Any], batch: Batch) -> None:
        """Runs a batch; answers go through ``batch``. Raises nothing."""
        __tracebackhide__ = True  # replay() shows the model's own frames
        batch.decoupled = self.decoupled
        batch.model, batch.instance = self.args["model_name"], self.instance
        replies: list[Reply] = [request._reply for request in requests]
        self.lines.begin(batch, self.decoupled)
        batch.input_end = monotonic_ns()
        try:
            if self._execute is None:
                raise ModelError(f"Python model {self.path} does not implement `execute` method.")
            result = self._execute(requests)
            if inspect.isawaitable(result):
                result = self._run(result)
            batch.output_start = monotonic_ns()
            self._answer(requests, replies, result)
            for reply in replies:
                if reply.back:
                    reply.give_back()
        except BaseException as error:
            batch.output_start = batch.output_start or monotonic_ns()
            if self.on_error is not None:
                self.on_error(error)
            self._fail(replies, batch, error)
            return
        self.lines.end()
        if not batch.open:
            batch.end("")  # the answers go first, the requests after them
            requests.clear()
            return
        requests.clear()
        with batch.lock:
            batch.returned = True
        for reply in replies:
            if reply.held is not None:
                reply.send(None, 1)
        del reply
        replies.clear()
        batch.end("")

    def _fail(self, replies: list[Reply], batch: Batch, error: BaseException) -> None:
        text = f"Failed to process the request(s) for model '{self.instance}', message: {describe(error)}"
        self.lines.error(text, error)
        self.lines.end()
        for reply in replies:
            reply.held = None
            reply.fail()
        batch.end(text)

    def _answer(self, requests: list[Any], replies: list[Reply], result: Any) -> None:
        if result is None:
            if not self.decoupled:
                self._check_silent(replies)
            return
        if self.decoupled:
            raise ModelError(
                f"Python model '{self.args['model_name']}' is using the decoupled mode and the execute function must "
                "return None."
            )
        if not isinstance(result, list):
            raise ModelError(f"Expected a list in the execute return, found type '{type(result)}'.")
        if len(result) != len(requests):
            raise ModelError(
                "Number of InferenceResponse objects do not match the number of InferenceRequest objects. "
                f"InferenceRequest(s) size is:{len(requests)}, and InferenceResponse(s) size is:{len(result)}\n"
            )
        for request, response in zip(requests, result):  # noqa: B905 - Python 3.9
            if response is not None and request._reply.back:
                raise ModelError(
                    "Expected a None object in the execute function return list for reschduled request, found type "
                    f"'{type(response)}'."
                )
            if type(response) is InferenceResponse:
                continue
            if response is None:
                self._check_silent([request._reply])
            elif not isinstance(response, InferenceResponse):
                raise ModelError(
                    "Expected an 'InferenceResponse' object in the execute function return list, found type "
                    f"'{type(response)}'."
                )
        batch: Batch = requests[0]._reply.batch
        if None not in result and not any(reply.senders for reply in replies):
            answers = [prune(answer, request._outputs) for request, answer in zip(requests, result)]  # noqa: B905
            batch.answer_all(replies, answers)
            return
        for request, response in zip(requests, result):  # noqa: B905
            if response is None:
                continue
            try:
                request._reply.send(prune(response, request._outputs), 1)
            except TritonModelException as error:
                raise ModelError(str(error)) from None

    def _check_silent(self, replies: list[Reply]) -> None:
        """A request that got neither a response nor a sender to send one through would never be answered."""
        for reply in replies:
            if not reply.sent and not reply.senders and not reply.back:
                raise ModelError(
                    f"Expected a list in the execute return, found type '{type(None)}'. The execute function of model "
                    f"'{self.args['model_name']}' (instance '{self.instance}') returned None and sent no response for "
                    f"request {reply.index + 1}. {DECOUPLED_HINT}."
                )

    def _factory(self, module: ModuleType) -> Any:
        try:
            return module.TritonPythonModel
        except AttributeError:
            version = self.args.get("model_version", "1")
            stem = os.path.splitext(os.path.basename(self.path))[0]  # noqa: PTH119, PTH122
            raise ModelError(
                f"AttributeError: module '{version}.{stem}' has no attribute 'TritonPythonModel'"
            ) from None

    def _run(self, awaitable: Any) -> Any:
        with self._loop_lock:
            if self._loop is None:
                self._loop = SharedLoop()
        return self._loop.run(awaitable if asyncio.iscoroutine(awaitable) else _as_coroutine(awaitable))


async def _as_coroutine(awaitable: Any) -> Any:
    return await awaitable


class Threads:
    """The threads of ``async_exec``, made when first asked for."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pool: Any = None

    def get(self) -> Any:
        """The executor."""
        with self._lock:
            if self._pool is None:
                from concurrent.futures import ThreadPoolExecutor

                self._pool = ThreadPoolExecutor(64, thread_name_prefix="workbench-exec")
            return self._pool

    def close(self) -> None:
        """Ends them without waiting."""
        with self._lock:
            if self._pool is not None:
                self._pool.shutdown(wait=False)
