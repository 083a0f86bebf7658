"""An instance of a Python model on a thread of the server's process: for debugging, and results are "not like Triton".

Every model gets modules of its own: model.py and the helper modules beside it live in a package with a unique name, and
an ``import`` inside them finds ``triton_python_backend_utils`` bound to their model, without a change to ``sys.path``.
"""

from __future__ import annotations

import asyncio
import builtins
import contextlib
import importlib.abc
import importlib.machinery
import importlib.util
import io
import itertools
import os
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from queue import SimpleQueue
from types import ModuleType
from typing import Any, Literal

from workbench.backends._child import pb_utils
from workbench.backends._child.enums import ErrorCode
from workbench.backends._child.lines import Lines, trace_text
from workbench.backends._child.metrics import Drops
from workbench.backends._child.replies import Batch, Reply
from workbench.backends._child.requests import InferenceRequest as ModelRequest
from workbench.backends._child.requests import nested_head
from workbench.backends._child.runner import ModelError, Runner, Threads, describe
from workbench.backends._child.tensors import InferenceResponse, TritonError, TritonModelException
from workbench.backends._child.tensors import Tensor as ModelTensor
from workbench.backends.base import BackendHost, Execution, InstanceSpec, ModelContext, Origin
from workbench.backends.python_convert import (
    infer_nested,
    model_error,
    nested_error_text,
    nested_request,
    parse_parameters,
    request_fields,
)
from workbench.backends.python_questions import Questions
from workbench.backends.python_readiness import ThreadReadiness
from workbench.errors import BackendError, WorkbenchError
from workbench.protocol.tensors import InferenceRequest, Tensor, as_bytes_array
from workbench.protocol.tensors import InferenceResponse as ProtocolResponse

_numbers = itertools.count(1)  # names of modules, unique in the process because sys.modules is


class ThreadRuntime:
    """How a model on a thread reaches the engine (see ``Runtime``)."""

    def __init__(self, host: BackendHost, model: str, instance: str, root: Path) -> None:
        self._host = host
        self._model = model
        self._instance = instance
        self._threads = Threads()
        self.questions = Questions(host, instance)
        self.drops = Drops(self)
        self.lines = Lines(self._log, f"{root}{os.sep}")
        self.parent_seq = -1

    def infer(self, request: ModelRequest, streams: bool) -> Call:
        """Sends a nested request to the engine's loop; whoever asks for its responses waits on this thread."""
        if _runs_here(self._host.loop):
            raise BackendError("a nested request cannot wait on the engine's own thread")
        tensors = [_to_protocol(tensor) for tensor in request._inputs]
        return Call(self._host, nested_request(nested_head(request, streams), tensors, self.parent_seq), streams)

    def executor(self) -> Any:
        """Threads for ``async_exec``."""
        return self._threads.get()

    def _log(self, level: Any, text: str, source: Any, file: str, line: int, trace: str, batch: Batch | None) -> None:
        """A line for the server's log (see ``lines.Send``)."""
        execution = batch.sink.execution if batch is not None and isinstance(batch.sink, _Sink) else None
        origin = Origin(source, file, line, trace, execution)
        self._host.log(level, text, model=self._model, instance=self._instance, origin=origin)

    def ask(self, operation: str, *arguments: Any) -> Any:
        """Asks the server something else and waits (see ``Runtime``)."""
        error, value = self.questions.ask(operation, arguments)
        if error:
            raise TritonModelException(error)
        return value

    def tell(self, operation: str, *arguments: Any) -> None:
        """Tells the server something."""
        self.questions.ask(operation, arguments)

    def close(self) -> None:
        """Ends the threads of ``async_exec``, and takes the model's metrics away."""
        self._threads.close()
        self.drops.close()
        self.questions.close()


class Call:
    """A nested request under way (see ``Responses``)."""

    def __init__(self, host: BackendHost, request: InferenceRequest, streams: bool) -> None:
        self._host = host
        self._model = request.model_name
        self._answers: SimpleQueue[ProtocolResponse | None] = SimpleQueue()
        self._cancel: Callable[[], None] = _nothing
        self._over = False
        host.loop.call_soon_threadsafe(self._submit, request, streams)

    def _submit(self, request: InferenceRequest, streams: bool) -> None:
        try:
            self._cancel = infer_nested(self._host, streams, request, self._answers.put)
        except WorkbenchError as error:
            self._answers.put(ProtocolResponse("", 0, error=error))

    def __next__(self) -> tuple[InferenceResponse, bool]:
        answer = None if self._over else self._answers.get()
        if answer is None:
            raise StopIteration
        self._over = answer.final
        return _to_model(self._model, answer), answer.final

    def close(self) -> None:
        """Cancels the request if it has not ended."""
        if not self._over:
            self._over = True
            with contextlib.suppress(RuntimeError):  # the loop has ended, and the request with it
                self._host.loop.call_soon_threadsafe(lambda: self._cancel())
            self._answers.put(None)

    def __del__(self) -> None:
        self.close()


def _nothing() -> None:
    """Nothing has been sent yet."""


def _runs_here(loop: asyncio.AbstractEventLoop) -> bool:
    try:
        return asyncio.get_running_loop() is loop
    except RuntimeError:
        return False


def _to_model(model: str, response: ProtocolResponse) -> InferenceResponse:
    if response.error is not None:
        return InferenceResponse(error=TritonError(nested_error_text(model, response.error), ErrorCode.INTERNAL))
    answer = InferenceResponse([ModelTensor._wrap(t.name, t.datatype, t.shape, t.data, True) for t in response.outputs])
    answer._parameters = "" if not response.parameters else _json(response.parameters)
    return answer


def _json(parameters: Any) -> str:
    import json

    return json.dumps(dict(parameters))


def _to_protocol(tensor: ModelTensor) -> Tensor:
    array = tensor.as_numpy().copy()  # the model may write to its own at once, as after Triton has sent it
    if tensor._datatype == "BYTES":
        array = as_bytes_array(array)
    return Tensor(tensor._name, tensor._datatype, array.shape, array)


class ThreadInstance:
    """A ``ThreadInstance`` of the engine's seam."""

    kind: Literal["thread"] = "thread"

    def __init__(
        self, context: ModelContext, spec: InstanceSpec, args: dict[str, str], path: Path, places: Sequence[Path]
    ) -> None:
        args = {
            **args,
            "model_instance_name": spec.name,
            "model_instance_kind": spec.kind.removeprefix("KIND_"),
            "model_instance_device_id": str(spec.device_id),
        }
        self._context = context
        self._runtime = ThreadRuntime(context.host, context.name, spec.name, path.parent)
        self._module = pb_utils.build(self._runtime, str(context.version_dir))
        self._space = ModelSpace(self._module, places, self._runtime.lines)
        self._runner = Runner(args, str(path), lambda: self._space.load(path), self._runtime.lines)
        self.readiness: ThreadReadiness | None = None
        self._bound: Any = pb_utils.identify(self._module, *self._runner.identity)

    def open(self) -> None:
        """Imports the model and calls its ``initialize``.

        Raises:
            BackendError: what the model raised, in Triton's words.
        """
        try:
            self._runner.initialize()
        except BaseException as error:
            if trace_text(error):
                self._runtime.lines.error(describe(error), error)
            self._space.close()
            raise BackendError(describe(error), where=self._runner.instance) from error
        pb_utils.allow_nested(self._module, True)
        if self._runner.can_be_asked:
            context = self._context
            self.readiness = ThreadReadiness(context.host, context.name, self._runner.instance, self._runner)

    def execute(self, execution: Execution) -> None:
        """Runs a batch; returns when every request is answered (decoupled: when the model's execute has returned)."""
        sink = _Sink(self._context.name, self._context.version, execution)
        batch = Batch(len(execution.requests), sink, execution.is_cancelled)
        received, wrap = self._bound._received, ModelTensor._wrap
        requests = [
            received(
                request_fields(request),
                [wrap(t.name, t.datatype, t.shape, t.data, True) for t in request.inputs],
                Reply(batch, index),
            )
            for index, request in enumerate(execution.requests)
        ]
        self._runtime.parent_seq = execution.seqs[0] if execution.seqs else -1
        self._runner.execute(requests, batch)
        del requests
        sink.left.wait()
        execution.input_end = max(batch.input_end, execution.compute_start)
        execution.output_start = max(batch.output_start, execution.input_end)
        if batch.given_back:
            execution.rescheduled = set(batch.given_back)
        if sink.error:
            raise BackendError(sink.error, where=self._runner.instance)

    def on_error(self, tell: Callable[[BaseException], None]) -> None:
        """From now on ``tell`` gets what the model's ``execute`` raises, as it is, before the batch fails."""
        self._runner.on_error = tell

    def abandon(self) -> None:
        """Takes the model's modules away and leaves the model itself as it is: a debugger may look at it."""
        self._runtime.close()
        self._space.close()

    def close(self) -> None:
        """Calls the model's ``finalize`` and takes its modules away."""
        if self.readiness is not None:
            with contextlib.suppress(RuntimeError):  # the loop has ended: nobody waits any more
                self._context.host.loop.call_soon_threadsafe(self.readiness.close)
        pb_utils.allow_nested(self._module, False)
        error = self._runner.finalize()
        if error is not None:
            self._runtime.lines.error(f"finalize of '{self._runner.instance}' failed: {describe(error)}", error)
        self._runtime.lines.close()
        self._runtime.close()
        self._space.close()


class _Sink:
    """Passes a model's answers on to the engine."""

    def __init__(self, name: str, version: int, execution: Execution) -> None:
        self.left = threading.Event()
        self.error = ""
        self._name = name
        self._version = version
        self.execution = execution

    def emit(self, index: int, response: InferenceResponse | None, final: bool) -> None:
        execution = self.execution
        answer = ProtocolResponse(self._name, self._version, execution.requests[index].id, final=final)
        if response is not None:
            error = response._error
            if error is not None:
                answer.error = model_error(int(error.code()), error.message())
            else:
                answer.outputs = [_to_protocol(tensor) for tensor in response._tensors]
                if response._parameters:
                    answer.parameters = parse_parameters(response._parameters)
        execution.respond(index, answer)

    def emit_all(self, responses: list[InferenceResponse]) -> None:
        for index, response in enumerate(responses):
            self.emit(index, response, True)

    def leave(self, batch: Batch, error: str) -> None:
        self.error = error
        self.left.set()


class ModelSpace(importlib.abc.MetaPathFinder):
    """The modules of one instance: a package ``_workbench_model_N`` over the version's and the model's directory."""

    def __init__(self, module: ModuleType, places: Sequence[Path], lines: Lines) -> None:
        self._lines = lines
        self._pb_utils = pb_utils.importable(module)
        self._name = f"_workbench_model_{next(_numbers)}"
        self._places = [str(place) for place in places]
        self._builtins = {**vars(builtins), "__import__": self._import, "print": self._print}
        package = ModuleType(self._name)
        package.__path__ = self._places
        sys.modules[self._name] = package
        sys.meta_path.insert(0, self)

    def load(self, path: Path) -> ModuleType:
        """Imports the model's file.

        Raises:
            ModelError: there is no such file.
        """
        if not path.is_file():
            raise ModelError(f"Python model file not found in '{path}'")
        name = f"{self._name}.{path.stem}"
        builtins.__import__(name)
        return sys.modules[name]

    def close(self) -> None:
        """Takes the modules out of ``sys.modules``."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)
        for name in [name for name in sys.modules if name == self._name or name.startswith(self._name + ".")]:
            del sys.modules[name]

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> Any:
        """Finds modules of this instance only, and makes their ``import`` look here first."""
        if not fullname.startswith(self._name + "."):
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path)
        if spec is not None and isinstance(spec.loader, importlib.machinery.SourceFileLoader):
            spec.loader = _Loader(spec.loader, self._builtins)
        return spec

    def _print(self, *values: Any, **options: Any) -> None:
        """What the model's ``print`` does: it prints where it would, and the log has the line too."""
        builtins.print(*values, **options)  # noqa: T201
        file = options.get("file")
        if file is None or file is sys.stdout or file is sys.stderr:
            text = io.StringIO()
            builtins.print(*values, **{**options, "file": text, "flush": False})  # noqa: T201
            source = "stderr" if file is not None and file is sys.stderr else "stdout"
            self._lines.printed(source, text.getvalue())

    def _import(self, name: str, globals: Any = None, locals: Any = None, fromlist: Any = (), level: int = 0) -> Any:
        if level == 0:
            if name in self._pb_utils:
                return self._pb_utils[name]
            top = name.partition(".")[0]
            own = f"{self._name}.{top}"
            if own in sys.modules or importlib.machinery.PathFinder.find_spec(own, self._places) is not None:
                importlib.import_module(f"{self._name}.{name}")
                if not fromlist:
                    return sys.modules[own]
                return builtins.__import__(f"{self._name}.{name}", globals, locals, fromlist, 0)
        return builtins.__import__(name, globals, locals, fromlist, level)


class _Loader(importlib.abc.Loader):
    """Runs a module's code with the builtins of its instance."""

    def __init__(self, loader: importlib.machinery.SourceFileLoader, names: dict[str, Any]) -> None:
        self._loader = loader
        self._names = names

    def create_module(self, spec: Any) -> ModuleType | None:
        """The default module."""
        return None

    def exec_module(self, module: ModuleType) -> None:
        """Runs the module."""
        module.__dict__["__builtins__"] = self._names
        code = self._loader.get_code(module.__name__)
        exec(code, module.__dict__)  # type: ignore[arg-type]
