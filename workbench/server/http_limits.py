"""What an HTTP client may take: sizes and times."""

from __future__ import annotations

from dataclasses import dataclass

from workbench.server.budget import MEMORY
from workbench.server.listener import MAX_CONNECTIONS

MAX_HEAD_BYTES = 64 * 1024
MAX_CHUNKS = 65536
MAX_FRAMING_BYTES = 64  # a chunk, beside the head's allowance: sizes, extensions; trailers have the head's
MAX_BODY_BYTES = 2**31 - 1
PROGRESS_BYTES = 16 * 1024
"""So much of a body must come in each ``pause_s``, or its end, and so much of an answer must go: what drips does not
hold its place for ever."""


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """What a connection may take, and all of them. Times in seconds, sizes in bytes.

    ``head_s``: for the request's head; ``pause_s``: for each ``PROGRESS_BYTES`` of a body, and of an answer that the
    client is to take; ``linger_s``: how long the rest of a refused request is read and thrown away.
    ``connections``: at a time (see ``Listener``). ``memory``: what bodies from 64 KiB on may take together from their
    heads until they are answered; one for which there is no room is not read until there is. A larger one gets it
    alone, and one that comes in chunks counts as the largest that is allowed until it is whole. ``answers``: what
    answers that clients do not take may hold together; where they are more, who has taken nothing for the longest time
    is cut off.
    """

    head_s: float = 30.0
    pause_s: float = 60.0
    linger_s: float = 2.0
    connections: int = MAX_CONNECTIONS
    memory: int = MEMORY
    answers: int = MEMORY
