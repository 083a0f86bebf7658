"""Python models that say themselves whether they are ready, as a file beside them tells them to."""

from __future__ import annotations

from pathlib import Path

CONFIG = """
backend: "python"
max_batch_size: 8
input { name: "IN" data_type: TYPE_FP32 dims: [ -1 ] }
output { name: "OUT" data_type: TYPE_FP32 dims: [ -1 ] }
"""
SOURCE = """
import asyncio, os, threading, time
import numpy as np
import triton_python_backend_utils as pb_utils

HERE = os.path.dirname(os.path.abspath(__file__))


def there(name):
    return os.path.exists(os.path.join(HERE, name))


def wait_for(name):
    while not there(name):
        time.sleep(0.005)
    return True


async def wait_async_for(name):
    while not there(name):
        await asyncio.sleep(0.005)
    return True


def called():
    with open(os.path.join(HERE, "calls"), "a") as file:
        file.write(".")


class TritonPythonModel:
    def initialize(self, args):
        self.instance = args["model_instance_name"]

    def execute(self, requests):
        return [self.answer(request.inputs()[0].as_numpy()) for request in requests]

    def answer(self, x):
        if x[0, 0] < 0:
            with open(os.path.join(HERE, "executing"), "w"):
                wait_for("executed")
        return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", x)])

    def is_ready(self):
        called()
        with open(os.path.join(HERE, "says")) as file:
            return eval(file.read(), {"self": self, **globals()})
"""


class AskedModel:
    """A model directory; ``says`` is the expression that its ``is_ready`` gives.

    The expression may wait for a file: ``wait_for('open')``, which ``let(open)`` makes. A request with a negative
    number waits for the file ``executed``; ``executing`` is there meanwhile.
    """

    def __init__(
        self, root: Path, name: str = "m", says: str = "True", *, source: str = SOURCE, config: str = ""
    ) -> None:
        self.name = name
        self.directory = root / name / "1"
        self.directory.mkdir(parents=True)
        (self.directory.parent / "config.pbtxt").write_text(CONFIG + config)
        (self.directory / "model.py").write_text(source)
        self.says(says)

    def says(self, expression: str) -> None:
        """From now on ``is_ready`` gives this."""
        (self.directory / "new").write_text(expression)
        (self.directory / "new").replace(self.directory / "says")

    def let(self, name: str) -> None:
        """Makes the file that somebody waits for."""
        (self.directory / name).touch()

    def has(self, name: str) -> bool:
        """Whether a file is there."""
        return (self.directory / name).exists()

    @property
    def calls(self) -> int:
        """How often ``is_ready`` has been called."""
        path = self.directory / "calls"
        return len(path.read_text()) if path.exists() else 0
