"""The model's end of the socket pair: blocking, used by every thread of the model.

Whichever thread waits for something reads the socket for all of them, so a batch that arrives wakes exactly the thread
that executes it, and a nested request's answer the thread that asked.
"""

from __future__ import annotations

import os
import select
import socket
import threading
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from workbench.backends._child import wire
from workbench.backends._child.enums import ErrorCode
from workbench.backends._child.lines import Lines
from workbench.backends._child.metrics import Drops
from workbench.backends._child.requests import InferenceRequest, nested_head
from workbench.backends._child.runner import Threads
from workbench.backends._child.slabs import Slabs
from workbench.backends._child.tensors import InferenceResponse, Tensor, TritonError, TritonModelException


class Channel:
    """Frames out and in; the runtime that nested requests and logs of a model go through."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._send_lock = threading.Lock()
        self._sending = 0  # the thread that holds the lock
        self._late: deque[Any] = deque()
        self._forked = False
        self._slabs = Slabs()
        self._reader = wire.FrameReader()
        self._condition = threading.Condition(threading.Lock())
        self._reading = False
        self._work: deque[wire.Frame | None] = deque()
        self._answers: dict[int, deque[wire.Frame | None]] = {}
        self._under_way: dict[tuple[int, int], int] = {}
        self._next_call = 0
        self._threads = Threads()
        self.drops = Drops(self)
        self.lines = Lines(self._log, os.sep)
        threading.Thread(target=self._watch, name="workbench-watch", daemon=True).start()

    # What the model calls

    def infer(self, request: InferenceRequest, streams: bool) -> Call:
        """Sends a nested request (see ``Runtime``)."""
        packer = wire.Packer()
        tensors = tuple(packer.add(t._name, t._datatype, t.as_numpy()) for t in request._inputs)
        number, answers = self._open_call()
        self.send(wire.CALL, (number, wire.INFER, (nested_head(request, streams), tensors, packer.kinds)), packer)
        return Call(self, number, answers)

    def next_response(self, answers: deque[wire.Frame | None]) -> tuple[InferenceResponse, bool] | None:
        """Waits for the next response of a nested request; None when it was closed meanwhile."""
        frame = self._wait(answers)
        return None if frame is None else self._response(frame)

    def end_call(self, number: int, answers: deque[wire.Frame | None] | None) -> None:
        """Nobody asks for a nested request's responses any more; cancels it and wakes who waits on ``answers``."""
        self._close_call(number)
        if answers is not None:
            self.send(wire.CALL, (number, wire.CANCEL, None))
            with self._condition:
                answers.append(None)
                self._condition.notify_all()

    def is_cancelled(self, batch: int, index: int) -> bool:
        """Whether the client of a request has gone away."""
        number, answers = self._open_call()
        try:
            self.send(wire.CALL, (number, wire.CANCELLED, (batch, index)))
            frame = self._wait(answers)
            return frame is not None and bool(frame.head[1])
        finally:
            self._close_call(number)

    def executor(self) -> Any:
        """Threads for ``async_exec``."""
        return self._threads.get()

    def ask(self, operation: str, *arguments: Any) -> Any:
        """Asks the server something else and waits (see ``Runtime``)."""
        number, answers = self._open_call()
        try:
            self.send(wire.CALL, (number, wire.ASK, (operation, arguments)))
            frame = self._wait(answers)
        finally:
            self._close_call(number)
        assert frame is not None
        _, error, value = frame.head
        if error:
            raise TritonModelException(error)
        return value

    def tell(self, operation: str, *arguments: Any) -> None:
        """Tells the server something; no answer comes."""
        self.send(wire.CALL, (0, wire.ASK, (operation, arguments)))

    # Frames

    def is_forked(self) -> None:
        """This is a process that the model has forked: it must not write into the model's frames, or take them."""
        self._forked = True

    def send_fd(self, kind: int, head: Any, fd: int) -> None:
        """Sends a frame with a descriptor. Thread-safe."""
        with self._send_lock:
            self._send(wire.encode(kind, (self._slabs.outgoing(), head), fds=1), fd)

    def send(self, kind: int, head: Any, packer: wire.Packer | None = None) -> None:
        """Sends a frame; a large payload goes through a slab. Thread-safe, blocks while the server does not read.

        Raises:
            TritonModelException: in a process that the model has forked.
        """
        if self._forked:
            raise TritonModelException("A process that the model has forked cannot reach the server.")
        with self._send_lock:
            self._sending = threading.get_ident()
            try:
                self._send_one(kind, head, packer)
            finally:
                self._sending = 0
        while self._late:
            self._send_late()

    def _send_one(self, kind: int, head: Any, packer: wire.Packer | None) -> None:
        head = (self._slabs.outgoing(), head)
        if packer is None or packer.size <= wire.INLINE_LIMIT:
            payload = packer.inline() if packer is not None else b""
            self._send(wire.encode(kind, head, payload))
            return
        slab = self._slabs.out.take(packer.size)
        packer.copy_into(slab.memory)
        new = slab.fd >= 0
        pieces = wire.encode(kind, head, fds=int(new), slab=(slab.id, packer.size))
        self._send(pieces, slab.fd if new else -1)
        slab.close_fd()

    def _log(self, level: str, text: str, source: str, file: str, line: int, trace: str, batch: Any) -> None:
        """A line for the server's log (see ``lines.Send``)."""
        if self._forked:
            os.write(2, f"{text}\n".encode("utf-8", "replace"))
            return
        number = 0 if batch is None else batch.sink.number
        head = (level, text, source, file, line, trace, number)
        if self._sending == threading.get_ident():  # a finalizer of the model logs while its thread sends something
            self._late.append(head)
        else:
            self.send(wire.LOG, head)

    def _send_late(self) -> None:
        try:
            head = self._late.popleft()
        except IndexError:  # another thread has taken it
            return
        self.send(wire.LOG, head)

    def wait_for_room(self, batch: int, index: int, is_over: Callable[[], bool]) -> bool:
        """Before a response of a decoupled model that is not the final one: waits until enough others are taken.

        False where ``is_over`` says meanwhile that nobody takes any more.
        """
        key = (batch, index)
        under_way = self._under_way
        if under_way.get(key, 0) >= wire.RESPONSE_WINDOW:
            self._wait_until(lambda: is_over() or under_way.get(key, 0) < wire.RESPONSE_WINDOW)
        with self._condition:
            if is_over():
                return False
            under_way[key] = under_way.get(key, 0) + 1
            return True

    def forget_room(self, batch: int, indices: Iterable[int]) -> None:
        """Requests are over, as ``is_over`` says from now on: whoever waits for room need not."""
        with self._condition:
            for index in indices:
                self._under_way.pop((batch, index), None)
            self._condition.notify_all()

    def next_work(self) -> wire.Frame:
        """The next batch, or the order to finish. Blocks; the process ends here when the server is gone."""
        frame = self._wait(self._work)
        assert frame is not None
        return frame

    def payload(self, frame: wire.Frame) -> Any:
        """The bytes of a frame's tensors."""
        if not frame.slab_id:
            return frame.payload
        for fd in frame.fds:
            self._slabs.into.learn(frame.slab_id, fd)
        return self._slabs.into.view(frame.slab_id, frame.slab_size)

    def _send(self, pieces: list[bytes], fd: int = -1) -> None:
        try:
            if fd >= 0:
                sent = socket.send_fds(self._sock, pieces, [fd])
            else:
                sent = self._sock.sendmsg(pieces)
            total = sum(map(len, pieces))
            if sent < total:
                self._sock.sendall(b"".join(pieces)[sent:])
        except OSError as error:
            if error.errno is None:  # a handler of signals has raised it
                raise
            os._exit(0)  # the server has gone

    def _wait(self, queue: deque[wire.Frame | None]) -> wire.Frame | None:
        self._wait_until(queue.__len__)  # each queue has one reader: nobody else takes what it waits for
        return queue.popleft()

    def _wait_until(self, ready: Callable[[], object]) -> None:
        """Returns when the condition holds; reads the socket until then, unless another thread does.

        Raises what a handler of signals raises: a model may bound its nested requests with an alarm.
        """
        condition = self._condition
        condition.acquire()
        try:
            while not ready():
                if self._reading:
                    condition.wait()
                    continue
                self._reading = True
                condition.release()
                try:
                    if not self._read():
                        os._exit(0)
                finally:
                    condition.acquire()
                    self._reading = False
                    condition.notify_all()  # one of the others reads, where this thread goes away
                self._dispatch()
        finally:
            condition.release()

    def _read(self) -> bool:
        try:
            return self._reader.read(self._sock) > 0
        except wire.ProtocolError:
            return False
        except OSError as error:
            if error.errno is None:  # a handler of signals has raised it
                raise
            return False

    def _dispatch(self) -> None:
        frames = self._reader.frames
        while frames:
            frame = frames.popleft()
            freed, frame.head = frame.head
            if freed:
                with self._send_lock:
                    self._slabs.incoming(freed)
            if frame.kind == wire.ANSWER:
                answers = self._answers.get(frame.head[0])
                if answers is not None:
                    answers.append(frame)
                elif frame.slab_id:
                    self.payload(frame)  # nobody waits any more: the slab goes back
            elif frame.kind == wire.TAKEN:
                batch, index, count = frame.head
                if (batch, index) in self._under_way:  # else it has been answered to the end meanwhile
                    self._under_way[batch, index] -= count
            else:
                self._work.append(frame)

    def _open_call(self) -> tuple[int, deque[wire.Frame | None]]:
        with self._condition:
            self._next_call += 1
            answers: deque[wire.Frame | None] = deque()
            self._answers[self._next_call] = answers
            return self._next_call, answers

    def _close_call(self, number: int) -> None:
        with self._condition:
            self._answers.pop(number, None)

    def _response(self, frame: wire.Frame) -> tuple[InferenceResponse, bool]:
        _, final, code, message, parameters, tensors, kinds = frame.head
        if code >= 0:
            return InferenceResponse(error=TritonError(message, ErrorCode(code))), final
        response = InferenceResponse(received(kinds, tensors or (), self.payload(frame))[0])
        response._parameters = parameters
        return response, final

    def _watch(self) -> None:
        """Ends the process when the server has gone, whatever its other threads do."""
        poll = select.poll()
        poll.register(self._sock.fileno(), 0)
        while True:
            # again and again: a model that closes descriptors which are not its own wakes nobody who waits for them
            for _, event in poll.poll(1000):
                if event & (select.POLLHUP | select.POLLERR | select.POLLNVAL):
                    os._exit(0)
            self.lines.say_dropped()  # a model that has printed a lot may print nothing any more


class Call:
    """A nested request under way (see ``Responses``)."""

    __slots__ = ("_answers", "_channel", "_number", "_over")

    def __init__(self, channel: Channel, number: int, answers: deque[wire.Frame | None]) -> None:
        self._channel = channel
        self._number = number
        self._answers = answers
        self._over = False

    def __next__(self) -> tuple[InferenceResponse, bool]:
        found = None if self._over else self._channel.next_response(self._answers)
        if found is None:
            raise StopIteration
        if found[1]:
            self._over = True
            self._channel.end_call(self._number, None)
        return found

    def close(self) -> None:
        """Cancels the request if it has not ended."""
        if not self._over:
            self._over = True
            self._channel.end_call(self._number, self._answers)

    def __del__(self) -> None:
        self.close()


def received(kinds: Any, numbers: Any, buffer: Any, offset: int = 0) -> tuple[list[Tensor], int]:
    """The tensors of these descriptions, and where the next ones start. Arrays are made when they are asked for."""
    tensors = []
    for number in numbers:
        name, datatype, shape, size = kinds[number]
        tensor = object.__new__(Tensor)
        tensor._name = name
        tensor._datatype = datatype
        tensor._shape = shape
        tensor._array = None
        tensor._source = (buffer, offset, size)
        tensors.append(tensor)
        offset += size + (-size % wire.ALIGN)
    return tensors, offset
