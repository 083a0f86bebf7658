"""The Python backend: a model.py with a class ``TritonPythonModel``, in processes of its own or on threads."""

from __future__ import annotations

import contextlib
import os
import re
import select
import socket
from pathlib import Path
from typing import Any, Literal

from workbench.backends._child import wire
from workbench.backends.base import Instance, InstanceSpec, ModelContext, ModelDescription, Traffic
from workbench.backends.python_child import Child, exit_text
from workbench.backends.python_convert import NUMBERS
from workbench.backends.python_environment import ENVIRONMENTS
from workbench.backends.python_launch import Keeper
from workbench.backends.python_options import ProcessOptions, limits, unheeded
from workbench.backends.python_process import ProcessInstance
from workbench.backends.python_questions import Questions
from workbench.backends.python_thread import ThreadInstance
from workbench.errors import BackendError, Code, InstanceDied

EXECUTION_PARAMETER = "WORKBENCH_EXECUTION"
ENVIRONMENT_PARAMETER = "EXECUTION_ENV_PATH"
AUTO_COMPLETE_LIMIT_S = 120.0
_PLAIN_CLASS = re.compile(r"^class\s+TritonPythonModel\s*(\(\s*(object)?\s*\))?\s*:", re.MULTILINE)


class PythonBackend:
    """Triton's backend ``python``, or a Python-based one of another name.

    A Python-based backend has one model.py in its own directory for all its models (``shared``); a model's directory
    then only has what that file reads.
    """

    def __init__(self, name: str = "python", shared: Path | None = None) -> None:
        self.name = name
        self.shared = shared
        self.runtime = "" if shared is None else "model.py"

    def describe(self, context: ModelContext) -> ModelDescription | None:
        """None: a model.py says nothing of its tensors, except through ``auto_complete_config``."""
        return None

    def auto_complete(self, context: ModelContext) -> Any | None:
        """What the model's ``auto_complete_config`` makes of the configuration; None where it has none.

        Raises:
            BackendError: what the model raised, in Triton's words; its process died or took too long.
        """
        path = self.shared or model_file(context)
        if not path.is_file() or not may_auto_complete(path, context.model_dir):
            return None
        keeper = Keeper(context.host, context.name)
        try:
            child = keeper.spawn(interpreter(context), context.name).result()
            try:
                questions = Questions(context.host, context.name)
                text = _ask(child, _setup(context, path, "auto_complete", self.shared), context, questions)
            finally:
                child.sock.close()
                questions.close()
                child.end(0.5, 1.0)
        finally:
            keeper.close()
        return _parse(text, context) if text else None

    def open(self, context: ModelContext) -> PythonModel:
        """Opens a model version.

        Raises:
            BackendError: there is no model.py, or a setting of the backend makes no sense.
        """
        path = self.shared or model_file(context)
        if not path.is_file():
            raise BackendError(f"Python model file not found in '{path}'", where=context.name)
        return PythonModel(context, path, self.shared)


class PythonModel:
    """A model version: makes instances in processes or on threads."""

    reads_max_batch_size = True
    counts_failed_batches = True

    def __init__(self, context: ModelContext, path: Path, shared: Path | None = None) -> None:
        self.execution = execution_mode(context)
        self._context = context
        self._path = path
        self._places = places(context, shared)
        self._keeper: Keeper | None = None
        self.traffic = Traffic()
        self.details: dict[str, str] = {}
        if self.execution == "process":
            setup = _setup(context, path, "run", shared)
            self._options = ProcessOptions(interpreter(context), setup, **limits(context))
            self._keeper = Keeper(context.host, context.name)
        elif keys := unheeded(context):
            limits(context)  # a value that makes no sense is refused here too
            text = f"{', '.join(keys)} of model '{context.name}': nothing ends a thread, so this is not heeded"
            context.host.log("warning", text, model=context.name)

    def create_instance(self, spec: InstanceSpec) -> Instance:
        """Makes an instance and waits for its ``initialize``.

        Raises:
            BackendError: what the model raised, in Triton's words.
        """
        if self._keeper is None:
            if spec.visible_devices and self._context.python_execution != "thread":
                raise BackendError(
                    f"instance {spec.label} is on a MIG slice, which takes a process of its own",
                    hint=f"leave parameter {EXECUTION_PARAMETER} out",
                )
            thread = ThreadInstance(self._context, spec, model_args(self._context), self._path, self._places)
            thread.open()
            return thread
        process = ProcessInstance(self._context, spec, self._keeper, self._options, self.traffic)
        process.open()
        return process

    def close(self) -> None:
        """Ends the thread that keeps the processes."""
        if self._keeper is not None:
            self._keeper.close()


def model_file(context: ModelContext) -> Path:
    """The model's file: ``default_model_filename``, else model.py."""
    return context.version_dir / (context.config.default_model_filename or "model.py")


def execution_mode(context: ModelContext) -> Literal["process", "thread"]:
    """Where the model runs: the parameter WORKBENCH_EXECUTION, else what the engine was started with.

    A model with an environment of its own runs in a process: a thread would have the packages of another.

    Raises:
        BackendError: the parameter says something else than thread or process, or thread beside an environment.
    """
    own = _parameter(context, ENVIRONMENT_PARAMETER)
    chosen = _parameter(context, EXECUTION_PARAMETER) or ("process" if own else context.python_execution)
    if own and chosen == "thread":
        raise BackendError(
            f"parameters of model '{context.name}': {ENVIRONMENT_PARAMETER} takes a process, {EXECUTION_PARAMETER} is "
            "'thread'",
            hint=f"leave one of the two out: a thread has this server's packages, not those of '{own}'",
        )
    if chosen not in ("process", "thread"):
        raise BackendError(
            f"parameter {EXECUTION_PARAMETER} of model '{context.name}' is '{chosen}', expected 'process' or 'thread'"
        )
    return "thread" if chosen == "thread" else "process"


def model_args(context: ModelContext) -> dict[str, str]:
    """What ``initialize`` gets, as strings; the instance's three are added by the instance."""
    return {
        "model_config": context.config_json,
        "model_instance_kind": "CPU",
        "model_instance_name": context.name,
        "model_instance_device_id": "0",
        "model_repository": str(context.model_dir),
        "model_version": str(context.version),
        "model_name": context.name,
    }


def _parameter(context: ModelContext, key: str) -> str:
    parameters = context.config.parameters
    return str(parameters[key].string_value) if key in parameters else ""


def interpreter(context: ModelContext) -> str:
    """The interpreter that runs the model: that of its environment, else this process's.

    Raises:
        BackendError: there is no such environment.
    """
    return ENVIRONMENTS.interpreter(_parameter(context, ENVIRONMENT_PARAMETER), context.model_dir)


def places(context: ModelContext, shared: Path | None) -> tuple[Path, ...]:
    """Where the modules beside a model's file are found."""
    return (context.version_dir, context.model_dir) if shared is None else (shared.parent,)


def _setup(context: ModelContext, path: Path, mode: str, shared: Path | None) -> dict[str, Any]:
    return {
        "mode": mode,
        "parent": os.getpid(),
        "args": model_args(context),
        "path": str(path),
        "version_dir": str(context.version_dir),
        "places": [str(place) for place in places(context, shared)],
        "package": "" if shared is not None else context.version_dir.name,
    }


def may_auto_complete(path: Path, model_dir: Path) -> bool:
    """Whether a model's sources can have an ``auto_complete_config``; ``path`` is the file that is there.

    Where they cannot, no process need be started to ask. A class that inherits may get it from anywhere; a plain class
    has it only if a file of the model says the name.
    """
    text = path.read_text(encoding="utf-8", errors="replace")
    if not _PLAIN_CLASS.search(text):
        return True
    files = [path, *path.parent.glob("*.py"), *model_dir.glob("*.py")]
    return any("auto_complete_config" in file.read_text(encoding="utf-8", errors="replace") for file in files)


def _ask(child: Child, setup: dict[str, Any], context: ModelContext, questions: Questions) -> str:
    """Sends the order to a process and waits for READY, with a limit; log lines are dropped here.

    The limit is that on ``initialize`` where there is one.

    What the model asks meanwhile is answered, but for inference: nested requests are for the time after.
    """
    name, clock = context.name, context.host.clock
    limit_s = limits(context).get("initialize_s") or AUTO_COMPLETE_LIMIT_S
    sock: socket.socket = child.sock
    sock.settimeout(limit_s)
    with contextlib.suppress(OSError):  # it has died: the stream ends
        sock.sendall(b"".join(wire.encode(wire.SETUP, ((), setup))))
    reader = wire.FrameReader()
    while True:
        while reader.frames:
            frame = reader.frames.popleft()
            if frame.kind == wire.READY:
                return str(frame.head[1])
            if frame.kind == wire.FAILED:
                raise BackendError(str(frame.head[1][0]), where=name)
            if frame.kind == wire.CALL:
                _answer(sock, frame.head[1], questions)
        silent_since = clock()
        while not select.select([sock], [], [], min(limit_s, 0.5))[0]:
            if clock() - silent_since >= limit_s * 1e9:
                raise BackendError(f"auto_complete_config of model '{name}' took more than {limit_s:g} s")
            if not context.host.loop.is_running():
                raise BackendError("the engine stopped while the model was loaded", where=name)
        try:
            alive = reader.read(sock) > 0
        except (OSError, MemoryError, wire.ProtocolError):
            alive = False
        if not alive and not reader.frames:
            child.end(0.5, 0.5)
            raise InstanceDied(
                f"Stub process '{name}' is not healthy.", where=name, hint=exit_text(child.popen.returncode)
            )


def _answer(sock: socket.socket, call: Any, questions: Questions) -> None:
    number, what, arguments = call
    if what == wire.ASK:
        head: Any = (number, *questions.ask(*arguments))
    elif what == wire.INFER:
        text = "a model runs no inference while its configuration is completed"
        head = number, True, NUMBERS[Code.INTERNAL], text, "", None, ()
    else:
        return
    if number:
        with contextlib.suppress(OSError):
            sock.sendall(b"".join(wire.encode(wire.ANSWER, ((), head))))


def _parse(text: str, context: ModelContext) -> Any:
    from google.protobuf import json_format

    message = type(context.config)()
    try:
        json_format.Parse(text, message)
    except json_format.ParseError as error:
        raise BackendError(
            f"auto_complete_config of model '{context.name}' gave a configuration that cannot be read: {error}"
        ) from error
    return message
