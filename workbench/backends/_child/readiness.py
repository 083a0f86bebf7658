"""``is_ready`` of a model in a process of its own.

The questions come on a socket of their own and are answered by a thread of their own, as Triton's stub does with its
second message queue: a running ``execute`` does not hold them up (unless it keeps the GIL), and a batch that arrives
wakes nobody but the thread that executes it. A model without ``is_ready`` has neither.
"""

from __future__ import annotations

import socket
import threading

from workbench.backends._child import wire
from workbench.backends._child.runner import Runner


def answer_checks(runner: Runner) -> socket.socket:
    """Starts the thread; gives the server's end of the socket."""
    ours, theirs = socket.socketpair()
    threading.Thread(target=_answer, args=(runner, ours), name="workbench-ready", daemon=True).start()
    return theirs


def _answer(runner: Runner, sock: socket.socket) -> None:
    reader = wire.FrameReader()
    with sock:
        try:
            while reader.read(sock):
                while reader.frames:
                    reader.frames.popleft()
                    for piece in wire.encode(wire.CHECKED, runner.check_ready()):
                        sock.sendall(piece)
        except (OSError, wire.ProtocolError):
            return  # the server has gone, or wants no answers any more
