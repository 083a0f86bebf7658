"""What the panel tests share: two small models, requests to them, and a page that is not there."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from workbench.session.kernel import Engine

MODEL = """
import time
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        time.sleep({sleep})
        return [
            pb_utils.InferenceResponse(
                [pb_utils.Tensor("OUT", pb_utils.get_input_tensor_by_name(r, "IN").as_numpy() * 2)]
            )
            for r in requests
        ]
"""

CONFIG = """# The one line that people keep.
name: "{name}"
backend: "python"
max_batch_size: 8
input [ {{ name: "IN", data_type: TYPE_FP32, dims: [ 2 ] }} ]
output [ {{ name: "OUT", data_type: TYPE_FP32, dims: [ 2 ] }} ]
dynamic_batching {{
  max_queue_delay_microseconds: 100  # short
}}
instance_group [ {{ count: 1, kind: KIND_CPU }} ]
"""

EXAMPLE = '{"data": [{"IN": [1.0, 2.0]}]}'


def write_model(repository: Path, name: str, *, sleep: float = 0.0, code: str = MODEL) -> Path:
    directory = repository / name
    (directory / "1").mkdir(parents=True)
    (directory / "1" / "model.py").write_text(code.replace("{sleep}", str(sleep)))
    (directory / "config.pbtxt").write_text(CONFIG.format(name=name))
    (directory / "example_inputs.json").write_text(EXAMPLE)
    return directory


def ask(server: Engine, count: int = 1, threads: int = 1) -> None:
    """Sends ``count`` requests from each of some threads and waits for the answers."""

    def send() -> None:
        for _ in range(count):
            out = server.infer("double", {"IN": np.ones((1, 2), np.float32)})["OUT"]
            assert out.tolist() == [[2.0, 2.0]]

    senders = [threading.Thread(target=send) for _ in range(threads)]
    for sender in senders:
        sender.start()
    for sender in senders:
        sender.join()


def wait_for(condition: Callable[[], Any], timeout_s: float = 20.0) -> Any:
    """Waits until something is true, and gives it."""
    deadline = time.monotonic() + timeout_s
    while True:
        found = condition()
        if found:
            return found
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.01)


def look(panel: Any) -> None:
    """What a page does when it shows the panel."""
    for index, box in enumerate(panel._boxes):
        box.view._handle_custom_msg({"type": "ready", "view": f"v{index}"}, [])


def look_away(panel: Any) -> None:
    """What a page does when the panel's output is cleared."""
    for index, box in enumerate(panel._boxes):
        box.view._handle_custom_msg({"type": "bye", "view": f"v{index}"}, [])
