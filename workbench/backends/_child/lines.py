"""What a model logs, prints and raises, on its way to the server's log.

Each line says which batch was being executed and where in the code it comes from. A model may log and print as much as
it likes: so many lines a second of each kind get through, and then a count of those that did not.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import sys
import threading
import traceback as tracebacks
from collections.abc import Callable, Iterator
from time import monotonic_ns  # noqa: TID251 - another interpreter may run this file: it has no workbench.clock
from typing import Any

LOGGED, PRINTED, RAISED = 1000, 200, 100
"""Lines a second: through ``Logger``; through each of ``sys.stdout`` and ``sys.stderr``; errors with tracebacks."""

LIMIT, PRINTED_LIMIT = 16384, 8192
"""Characters of a line and of a traceback; of a printed line."""

_HERE = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120
_ROOT = os.path.dirname(os.path.dirname(_HERE))  # noqa: PTH120
OURS = (_ROOT if os.path.basename(_ROOT) == "workbench" else _HERE) + os.sep  # noqa: PTH119
"""Where the workbench's own files are: its frames are left out of what a model's author sees, as Triton's C++ is."""

_BLANK = re.compile(r"\n*")
_LEVELS = {"stdout": "info", "stderr": "warning"}
_WORDS = {"logger": "log lines", "stdout": "lines of output", "stderr": "lines of output on stderr", "error": "errors"}

Send = Callable[[str, str, str, str, int, str, Any], None]
"""Takes a line: level, text, source (``logger``, ``stdout``, ``stderr`` or ``error``), file, line number, traceback,
and the batch or None.
"""


class Budget:
    """So many lines a second, and as many at once."""

    __slots__ = ("_filled", "_said", "_tokens", "dropped", "per_second", "shut")

    def __init__(self, per_second: int) -> None:
        self.per_second = per_second
        self._tokens = float(per_second)
        self._filled = monotonic_ns()
        self._said = 0
        self.shut = 0  # until then none may pass: a flood is answered without arithmetic
        self.dropped = 0

    def take(self) -> bool:
        """Whether another line may pass; one that may not is counted."""
        now = monotonic_ns()
        self._tokens = min(self.per_second, self._tokens + (now - self._filled) * self.per_second / 1e9)
        self._filled = now
        if self._tokens < 1:
            self.shut = now + int((1 - self._tokens) * 1e9 / self.per_second)
            if not self.dropped:
                self._said = max(self._said, now - 900_000_000)  # the first count says more than the first line
            self.dropped += 1
            return False
        self._tokens -= 1
        return True

    def due(self) -> bool:
        """Whether it is time to say how many were dropped: once a second at most."""
        if not self.dropped:
            return False
        now = monotonic_ns()
        if now - self._said < 1_000_000_000:
            return False
        self._said = now
        return True


class Lines:
    """The lines of one model.

    Args:
        send: takes them to the server.
        root: the model's directory: of the calls that lead to a line, the innermost from there is its place.
    """

    def __init__(self, send: Send, root: str) -> None:
        self.root = root
        self._send = send
        self._budgets = {"logger": Budget(LOGGED), "stdout": Budget(PRINTED), "stderr": Budget(PRINTED)}
        self._budgets["error"] = Budget(RAISED)
        self._unfinished: dict[tuple[str, int], tuple[str, int]] = {}  # beginnings of lines, and what of them was cut
        self._batch: Any = None
        self._thread = 0
        self._decoupled = False
        self._cut = False  # whether something was dropped that has not been said
        _load_what_formats()

    def begin(self, batch: Any, decoupled: bool) -> None:
        """From now on this thread executes a batch."""
        self._batch, self._thread, self._decoupled = batch, threading.get_ident(), decoupled

    def end(self) -> None:
        """The batch has been executed."""
        if self._unfinished:
            self.finish()
        if self._cut:
            self.say_dropped()
        self._batch = None

    def say_dropped(self) -> None:
        """Says how many lines did not get through, once a second at most."""
        if not self._cut:
            return
        for source, budget in self._budgets.items():
            if budget.due():
                self._confess(source, budget)
        self._cut = any(budget.dropped for budget in self._budgets.values())

    def close(self) -> None:
        """The model is gone: says what has not been said."""
        self.finish()
        for source, budget in self._budgets.items():
            if budget.dropped:
                self._confess(source, budget)

    def log(self, level: str, text: str, frame: Any) -> None:
        """A line of ``Logger``, called in ``frame``."""
        if not self._may_pass("logger"):
            return
        self._send(level, shortened(text), "logger", *place(frame), "", self._current())

    def printed(self, source: str, text: str) -> None:
        """What was written to a stream; a line is sent when its end has come."""
        key = source, threading.get_ident()
        begun = self._unfinished.pop(key, None)
        if text == "\n":  # the end of a ``print``
            if begun is not None:
                self._print(source, *begun)
            return
        end = text.find("\n")
        if end < 0:
            if text or begun:
                self._unfinished[key] = _longer(begun, text, 0, len(text))
            return
        if begun is not None or end:
            self._print(source, *_longer(begun, text, 0, end))
        start, stop = end + 1, len(text)
        while start < stop and (end := text.find("\n", start)) >= 0:
            if end == start:
                start = _BLANK.match(text, start).end()  # type: ignore[union-attr]
                continue
            if not self._print(source, *_longer(None, text, start, end)):
                start, end = end + 1, text.rfind("\n")  # what came in one piece goes in one piece
                self._budgets[source].dropped += _lines_of(text, start, end + 1)
            start = end + 1
        if start < stop:
            self._unfinished[key] = _longer(None, text, start, stop)

    def finish(self) -> None:
        """Sends the lines whose end has not come."""
        while self._unfinished:
            with contextlib.suppress(KeyError):  # another thread has ended its line
                (source, _), (text, left_out) = self._unfinished.popitem()
                self._print(source, text, left_out, placed=False)

    def error(self, text: str, error: BaseException) -> None:
        """Something that the model raised; ``text`` is what clients are told."""
        if not self._may_pass("error"):
            return
        with contextlib.suppress(Exception):  # an exception of the model's may refuse to be looked at
            file, number = raised_at(error, self.root)
            self._send("error", shortened(text), "error", file, number, trace_text(error), self._current())

    def _print(self, source: str, text: str, left_out: int, placed: bool = True) -> bool:
        """Sends a line; False where it may not pass."""
        if not self._may_pass(source):
            return False
        if text := as_unicode(text.rstrip("\r")):
            if left_out:
                text += f" ... ({left_out} characters left out)"
            self._send(_LEVELS[source], text, source, *self._place(placed), "", self._current())
        return True

    def _place(self, placed: bool) -> tuple[str, int]:
        """Where the model's code, if it is running, is printing now."""
        if not placed:
            return "", 0
        frame = sys._getframe(1)
        while frame.f_code.co_filename.startswith(OURS) and frame.f_back is not None:
            frame = frame.f_back
        return place(self._own(frame))

    def _may_pass(self, source: str) -> bool:
        budget = self._budgets[source]
        if monotonic_ns() < budget.shut:
            budget.dropped += 1
            self._cut = True
            return False
        if not budget.take():
            self._cut = True
            return False
        if budget.due():
            self._confess(source, budget)
        return True

    def _confess(self, source: str, budget: Budget) -> None:
        count, budget.dropped = budget.dropped, 0
        text = f"{count} {_WORDS[source]} were dropped: more than {budget.per_second} in a second"
        self._send("warning", text, source, "", 0, "", self._current())

    def _current(self) -> Any:
        """The batch that a line belongs to: of a decoupled model's other threads nobody knows which."""
        if self._decoupled and threading.get_ident() != self._thread:
            return None
        return self._batch

    def _own(self, frame: Any) -> Any:
        found = frame
        while found is not None:
            if found.f_code.co_filename.startswith(self.root):
                return found
            found = found.f_back
        return frame


class Printed(io.TextIOWrapper):
    """``sys.stdout`` or ``sys.stderr`` of a model's process: its lines go to the log, with the place that printed them.

    What is written past it, to the descriptor or ``buffer``, goes where it went before; so does all in a process that
    the model forked. A print past the limit costs about 2 µs, one of 1 MiB 15 µs.
    """

    _forked = False

    def __init__(self, stream: Any, source: str, lines: Lines) -> None:
        super().__init__(stream.buffer, encoding="utf-8", errors="replace", write_through=True)
        self._source = source
        self._lines = lines
        os.register_at_fork(after_in_child=self._is_forked)  # asking for the process's id each time takes longer

    def write(self, text: str) -> int:
        """Takes text as any stream does."""
        if type(text) is not str or self._forked:
            return super().write(text)
        self._lines.printed(self._source, text)
        return len(text)

    def _is_forked(self) -> None:
        self._forked = True


def _longer(begun: tuple[str, int] | None, text: str, start: int, end: int) -> tuple[str, int]:
    """The beginning of a line with what follows it, and how many characters of it are left out."""
    if begun is None:
        if end - start <= PRINTED_LIMIT:
            return text[start:end], 0
        return text[start : start + PRINTED_LIMIT], end - start - PRINTED_LIMIT
    before, left_out = begun
    taken = min(end - start, PRINTED_LIMIT - len(before))
    if taken:
        before += text[start : start + taken]
    return before, left_out + end - start - taken


def _lines_of(text: str, start: int, stop: int) -> int:
    """How many lines with something in them there are in a part of a text that ends at the end of one."""
    if text.find("\n\n", start, stop) < 0:
        return text.count("\n", start, stop) - text.startswith("\n", start, stop)
    count, blank = 0, True
    for piece in range(start, stop, 1 << 20):
        part = text[piece : min(stop, piece + (1 << 20))]
        count -= blank and part[0] == "\n"
        blank = part[-1] == "\n"
        while "\n\n" in part:
            part = part.replace("\n\n", "\n")
        count += part.count("\n")
    return count


def place(frame: Any) -> tuple[str, int]:
    """File (without its directories, as Triton shows it) and line of a frame."""
    if frame is None:
        return "", 0
    return frame.f_code.co_filename.rpartition(os.sep)[2], frame.f_lineno


def shortened(text: str, limit: int = LIMIT) -> str:
    """A text as UTF-8 takes it, or the beginning and the end of one that is too long."""
    if len(text) > limit:
        half = (limit - 64) // 2
        text = f"{text[:half]}\n... ({len(text) - 2 * half} characters left out) ...\n{text[-half:]}"
    return as_unicode(text)


def as_unicode(text: str) -> str:
    """A text that can be written as UTF-8: what is no Unicode in it (lone surrogates) becomes escapes."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


def _load_what_formats() -> None:
    """The first traceback of a process takes milliseconds, which are not to be the first failed request's."""
    try:
        raise ModuleNotFoundError
    except ModuleNotFoundError as error:
        tracebacks.format_exception(type(error), error, error.__traceback__)


def trace_text(error: BaseException) -> str:
    """The Python traceback of what a model raised, without the workbench's own frames; "" where none is left."""
    whole = tracebacks.TracebackException.from_exception(error)
    left = 0
    for each in _chain(whole):
        own = [frame for frame in each.stack if not frame.filename.startswith(OURS)]
        each.stack[:] = own
        left += len(own)
    if not left and not isinstance(error, SyntaxError):
        return ""
    return shortened("".join(whole.format()).rstrip("\n"))


def _chain(error: Any) -> Iterator[Any]:
    seen: list[Any] = []
    while error is not None and error not in seen:
        seen.append(error)
        yield error
        error = error.__cause__ or error.__context__


def raised_at(error: BaseException, root: str) -> tuple[str, int]:
    """File and line of the innermost call of the model's own code; of any code but ours where it has none."""
    if isinstance(error, SyntaxError) and error.filename:
        return error.filename.rpartition(os.sep)[2], error.lineno or 0
    found, own = ("", 0), ("", 0)
    trace = error.__traceback__
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        if not file.startswith(OURS):
            found = file.rpartition(os.sep)[2], trace.tb_lineno
            if file.startswith(root):
                own = found
        trace = trace.tb_next
    return own if own[0] else found
