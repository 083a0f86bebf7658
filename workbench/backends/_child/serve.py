"""The life of a model's process: set up, execute until told to finish, finalize."""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import gc
import os
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Iterable
from types import ModuleType
from typing import Any

from workbench.backends._child import pb_utils, wire
from workbench.backends._child.channel import Channel, received
from workbench.backends._child.lines import Printed, trace_text
from workbench.backends._child.readiness import answer_checks
from workbench.backends._child.replies import Batch, Reply
from workbench.backends._child.runner import ModelError, Runner, describe
from workbench.backends._child.tensors import InferenceResponse, Tensor


class Responder:
    """Collects the answers of a batch: final ones travel with its end, others at once."""

    __slots__ = ("_at_once", "_channel", "_entries", "_kinds", "_lock", "_over", "_packer", "batch", "number")

    def __init__(self, channel: Channel, number: int, size: int) -> None:
        self._channel = channel
        self._lock = threading.Lock()
        self._entries: list[Any] = []
        self._packer = wire.Packer()
        self._kinds: Any = None
        self._at_once = False
        self._over: set[int] = set()  # requests that have had their last response
        self.number = number
        self.batch = Batch(size, self, lambda index: channel.is_cancelled(number, index))

    def emit(self, index: int, response: InferenceResponse | None, final: bool) -> None:
        """One answer of the model."""
        if not self._at_once and final and not self.batch.decoupled:
            with self._lock:
                self._entries.append(entry(index, response, final, self._packer))
            return
        if final:
            self._close((index,))
        elif not self._channel.wait_for_room(self.number, index, lambda: index in self._over):
            return  # another thread of the model has ended the request meanwhile
        packer = wire.Packer()
        only = (entry(index, response, final, packer),)
        self._channel.send(wire.RESPONSES, (self.number, False, 0, 0, "", only, packer.kinds, ()), packer)

    def emit_all(self, responses: list[InferenceResponse]) -> None:
        """The answers of all requests, in their order, at the end of the batch."""
        columns = columns_of(responses)
        if columns is not None:
            self._kinds, self._packer = wire.pack_columns(columns)
            return
        packer = self._packer
        self._entries = [entry(index, response, True, packer) for index, response in enumerate(responses)]

    def leave(self, batch: Batch, error: str) -> None:
        """The batch has been executed."""
        self._at_once = True
        if batch.decoupled and (error or batch.given_back):
            self._close(range(batch.size) if error else batch.given_back)
        with self._lock:
            entries, packer = self._entries, self._packer
            # the batch and this know each other: what they hold stays until the collector comes, an input's slab even
            self._entries, self._packer = [], wire.Packer()
        packed, kinds = (None, self._kinds) if self._kinds is not None else (tuple(entries), packer.kinds)
        back = tuple(batch.given_back)
        head = (self.number, True, batch.input_end, batch.output_start, error, packed, kinds, back)
        self._channel.send(wire.RESPONSES, head, packer)

    def _close(self, indices: Iterable[int]) -> None:
        self._over.update(indices)
        self._channel.forget_room(self.number, indices)


def entry(index: int, response: InferenceResponse | None, final: bool, packer: wire.Packer) -> tuple[Any, ...]:
    """A response as it stands in a head.

    (index, final, error code or -1, error text, parameters, tensors or None), or for the most frequent one, the final
    response without parameters, (index, tensors).
    """
    if response is None:
        return index, final, -1, "", "", None
    if response._error is not None:
        return index, final, int(response._error.code()), response._error.message(), "", None
    mark = len(packer.parts), packer.size
    try:
        tensors = tuple([packer.add(t._name, t._datatype, t.as_numpy()) for t in response._tensors])
    except BaseException:  # an element of a BYTES tensor may be anything, and its str() may raise
        del packer.parts[mark[0] :]
        packer.size = mark[1]
        raise
    if final and not response._parameters:
        return index, tensors
    return index, final, -1, "", response._parameters, tensors


def serve(fd: int) -> int:
    """Runs until the server says finish or goes away. Gives the exit code."""
    # where a crash was, or a batch that takes too long (the server then sends SIGABRT), is printed and gets to the log
    faulthandler.enable()
    try:
        return _serve(fd)
    except BaseException:  # memory has run out, say: threads of the model must not keep the process
        with contextlib.suppress(BaseException):
            traceback.print_exc()
        os._exit(1)


def _serve(fd: int) -> int:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sock = socket.socket(fileno=fd)
    os.set_inheritable(fd, False)
    channel = Channel(sock)
    os.register_at_fork(after_in_child=channel.is_forked)
    setup = channel.next_work().head
    die_with_parent(setup["parent"])
    lines = channel.lines
    lines.root = os.path.dirname(setup["path"]) + os.sep  # noqa: PTH120
    sys.stdout, sys.stderr = Printed(sys.stdout, "stdout", lines), Printed(sys.stderr, "stderr", lines)
    module = pb_utils.build(channel, setup["version_dir"])
    sys.modules.update(pb_utils.importable(module))
    sys.path.extend(setup["places"])
    runner = Runner(setup["args"], setup["path"], lambda: load(setup["path"], setup["package"]), lines)
    try:
        if setup["mode"] == "auto_complete":
            channel.send(wire.READY, runner.auto_complete(setup["args"]["model_config"]))
            _leave()
        runner.initialize()
    except BaseException as error:
        lines.finish()
        if trace_text(error):
            lines.error(describe(error), error)
        channel.send(wire.FAILED, (describe(error),))
        _leave()
    lines.finish()
    if runner.can_be_asked:
        with answer_checks(runner) as theirs:
            channel.send_fd(wire.READY, "", theirs.fileno())
    else:
        channel.send(wire.READY, "")
    gc.freeze()  # what the model has loaded stays: full collections need not look at it again and again
    bound = pb_utils.identify(module, *runner.identity)
    pb_utils.allow_nested(module, True)
    while True:
        try:
            frame = channel.next_work()
        except (SystemExit, MemoryError):
            raise
        except BaseException as error:  # of a handler of signals: the model has set an alarm and forgotten it
            lines.error(f"raised between two batches of '{runner.instance}': {describe(error)}", error)
            continue
        if frame.kind == wire.FINALIZE:
            pb_utils.allow_nested(module, False)
            raised = runner.finalize()
            if raised is not None:
                lines.error(f"finalize of '{runner.instance}' failed: {describe(raised)}", raised)
            lines.close()
            _leave()
        number, count, fields, packed, kinds = frame.head
        responder = Responder(channel, number, count)
        inputs = _inputs(count, packed, kinds, channel.payload(frame))
        requests = _requests(bound, inputs, fields, responder.batch)
        frame = packed = inputs = None  # type: ignore[assignment]
        runner.execute(requests, responder.batch)
        requests = responder = None  # type: ignore[assignment]


def _inputs(count: int, packed: Any, kinds: Any, buffer: Any) -> list[list[Tensor]]:
    """The input tensors of every request; ``packed`` is None for a uniform batch."""
    if packed is not None:
        inputs = []
        offset = 0
        for numbers in packed:
            tensors, offset = received(kinds, numbers, buffer, offset)
            inputs.append(tensors)
        return inputs
    wrap = Tensor._wrap
    columns = [
        [wrap(name, datatype, shape, array) for array in arrays]
        for name, datatype, shape, arrays in wire.unpack_columns(kinds, count, buffer)
    ]
    return [list(row) for row in zip(*columns)]  # noqa: B905 - Python 3.9


def _requests(bound: Any, inputs: Any, fields: Any, batch: Batch) -> list[Any]:
    receive = bound._received
    if fields is None:
        return [receive(None, tensors, Reply(batch, index)) for index, tensors in enumerate(inputs)]
    return [receive(fields[index], tensors, Reply(batch, index)) for index, tensors in enumerate(inputs)]


def columns_of(responses: list[InferenceResponse]) -> list[Any] | None:
    """The outputs of a batch by name, where all responses have the same small ones (see ``wire.pack_columns``)."""
    first = responses[0]._tensors
    columns: list[Any] = []
    for tensor in first:
        array = tensor.as_numpy()
        if not wire.fits_column(tensor._datatype, array):
            return None
        columns.append((tensor._name, tensor._datatype, array.shape, []))
    for response in responses:
        tensors = response._tensors
        if len(tensors) != len(columns) or response._error is not None or response._parameters:
            return None
        for tensor, column in zip(tensors, columns):  # noqa: B905 - Python 3.9
            array = tensor._array
            if array is None:
                array = tensor.as_numpy()
            if array.shape != column[2] or tensor._datatype != column[1] or tensor._name != column[0]:
                return None
            column[3].append(array)
    return columns or None


def load(path: str, package: str) -> ModuleType:
    """Imports the model's file as ``<version>.<file>``, as Triton does, a Python-based backend's as ``<file>``.

    Raises:
        ModelError: there is no such file.
    """
    if not os.path.isfile(path):  # noqa: PTH113
        raise ModelError(f"Python model file not found in '{path}'")
    stem = os.path.splitext(os.path.basename(path))[0]  # noqa: PTH119, PTH122
    name = f"{package}.{stem}" if package else stem
    __import__(name)
    return sys.modules[name]


def die_with_parent(parent: int) -> None:
    """Asks Linux to kill this process when the thread that started it is gone; end of file does the same elsewhere."""
    if sys.platform != "linux":
        return
    try:
        ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG
    except (OSError, AttributeError):
        return
    if os.getppid() != parent:
        os._exit(0)


def _leave() -> None:
    """Ends the process; threads that the model left behind do not keep it."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except Exception:  # a model may have put anything there
            continue
    os._exit(0)
