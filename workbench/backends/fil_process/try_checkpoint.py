"""Reads a treelite checkpoint and ends: ``try_checkpoint.py CHECKPOINT``.

treelite believes the lengths in a file: one that is cut short makes it take all memory, or never end. So a file is read
by a process with limits first, then by the server.
"""

from __future__ import annotations

import contextlib
import resource
import sys
from pathlib import Path

SPARE_BYTES = 4 << 30
TIMES = 8
"""A forest in memory may be so many times as large as its file."""


def main() -> None:
    """Reads; what goes wrong is the last line on standard error, or a signal."""
    path = Path(sys.argv[1])
    limit = SPARE_BYTES + TIMES * path.stat().st_size
    with contextlib.suppress(OSError, ValueError):  # macOS has no such limit
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    import treelite

    treelite.Model.deserialize(path)


if __name__ == "__main__":
    main()
