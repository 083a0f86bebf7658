"""Frameworks, once imported, out of the garbage collector's sight: a full collection holds up all threads meanwhile.

TensorFlow makes some 350,000 objects, torch 160,000, which stay as long as the process: to look at them takes a full
collection 0.3 to 1 s, each time, and none of them is ever garbage.
"""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")

_MANY_MODULES = 100
"""A framework brings more (TensorFlow 3900, torch 1000, OpenVINO 300), a model's own code fewer."""

_freezing = threading.Lock()


def freezing_imports(function: Callable[..., T], *args: Any) -> T:
    """Calls a function; where it has imported a framework, later collections look at nothing that lives now.

    What is garbage by then is collected first, because nothing would free it any more: one full collection for each
    framework, right behind an import that takes longer. What dies later is freed as ever, but for reference cycles
    among objects that live now. For a process of the server's own only: the rest of it would be kept as well.

    Raises:
        Exception: whatever the function raises.
    """
    before = len(sys.modules)
    try:
        return function(*args)
    finally:
        if len(sys.modules) - before >= _MANY_MODULES:
            with _freezing:
                gc.collect()
                gc.freeze()
