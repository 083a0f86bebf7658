"""A version that is unloaded is freed, whatever the garbage collector is told not to look at."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path
from typing import Any

import pytest
from asking import wait_until
from gate_backend import CONFIG, Gate
from onnx_models import add_model, request


@pytest.mark.parametrize(
    "config",
    [
        CONFIG,
        CONFIG.replace("dynamic_batching { }", "dynamic_batching { preserve_ordering: true }"),
        CONFIG.replace("dynamic_batching { }", "dynamic_batching { max_queue_delay_microseconds: 100 }"),
        CONFIG + 'parameters { key: "loop" value { string_value: "1" } }',
        CONFIG + 'parameters { key: "any_thread" value { string_value: "1" } }',
    ],
)
def test_a_version_that_lived_at_a_freeze_is_freed_when_it_is_unloaded(
    make_engine: Any, tmp_path: Path, gate: Gate, config: str
) -> None:
    """As when another model brings a framework meanwhile: what lives then is out of the collector's sight."""
    add_model(tmp_path, "gate", config=config)
    engine = make_engine(tmp_path)
    gate.open.set()
    for _ in range(3):
        assert engine.infer(request("gate"), 10).error is None
    model = engine._lifecycle.lookup("gate", -1)
    version, loaded = weakref.ref(model), weakref.ref(model.loaded)
    del model
    gc.collect()
    gc.freeze()
    try:
        engine.unload("gate")
        wait_until(lambda: gate.live == 0)
        wait_until(lambda: loaded() is None and version() is None, 3)
    finally:
        gc.unfreeze()
