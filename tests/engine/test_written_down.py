"""What is written down of the requests of a batch, and when: who has an answer finds it."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

from onnx_models import request

from workbench.config import Edit
from workbench.protocol.tensors import InferenceResponse


def test_who_has_an_answer_finds_its_record(repository: Path, make_engine: Any) -> None:
    """Also while others of the batch are still to be answered, and records are read on another thread."""
    engine = make_engine(repository)
    waits = [
        Edit("dynamic_batching.preferred_batch_size", "set", [2]),
        Edit("dynamic_batching.max_queue_delay_microseconds", "set", 60_000_000),
    ]
    engine.configure("double", waits)
    first_answered, looked, second_answered = threading.Event(), threading.Event(), threading.Event()
    found: list[list[str]] = []

    def first(response: InferenceResponse) -> None:
        first_answered.set()

    def second(response: InferenceResponse) -> None:
        looked.wait(0.05)  # as long as an answer may take to be sent; who looks meanwhile waits for it
        second_answered.set()

    def look() -> None:
        first_answered.wait(10)
        found.append(engine.records.read().requests["request_id"].tolist())
        looked.set()

    looking = threading.Thread(target=look)
    looking.start()
    engine.loop.call_soon_threadsafe(
        lambda: [engine.submit(request(rows=1, id=name), then) for name, then in (("a", first), ("b", second))]
    )
    looking.join()
    assert second_answered.wait(10)
    assert engine.records.read().batches["requests"].tolist()[-1] == 2, "they were in a batch together"
    assert "a" in found[0]
