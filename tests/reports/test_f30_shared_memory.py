"""F30: no shared-memory pool that could be full, too small or left over: tensors travel in memory without a name."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from report_models import add, python

import workbench as wb
from workbench.engine import InferenceEngine
from workbench.protocol.tensors import InferenceRequest, Tensor

SHARED = Path("/dev/shm")
LEFT_OVER = "triton_python_backend_shm_region_of_a_dead_process"
POOL_BYTES = 64 << 20
"""What a container has of /dev/shm unless it is told otherwise."""
DOUBLES = """
class TritonPythonModel:
    def execute(self, requests):
        pid = np.full((1, 1), os.getpid(), np.float32)
        arrays = [np.concatenate([pid, r.inputs()[0].as_numpy()], 1) for r in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", array)]) for array in arrays]
"""
pytestmark = pytest.mark.skipif(not SHARED.is_dir(), reason="this system has no /dev/shm")


@pytest.fixture
def left_over() -> Iterator[Path]:
    """A region that a server has left behind."""
    path = SHARED / LEFT_OVER
    path.write_bytes(b"left")
    yield path
    path.unlink(missing_ok=True)


def ask(engine: InferenceEngine, model: str, size: int) -> tuple[int, np.ndarray[Any, Any]]:
    """The process that answered, and what it answered."""
    given = np.arange(size, dtype=np.float32)[None]
    answer = engine.infer(InferenceRequest(model, [Tensor.from_numpy("IN", given)])).as_numpy("OUT")
    assert (answer[:, 1:] == given).all()
    return int(answer[0, 0]), answer


def test_f30_server_3036_two_models_need_no_room_in_dev_shm(root: Path, make_engine: Any, left_over: Path) -> None:
    for name in ("first", "second"):
        add(root, name, python(dims="-1"), DOUBLES)
    engine = make_engine(root, python_execution="process")
    pids = {ask(engine, name, POOL_BYTES // 4 + 1)[0] for name in ("first", "second")}  # more than the pool would hold
    assert len(pids) == 2
    for pid in pids:
        mapped = Path(f"/proc/{pid}/maps").read_text()
        assert f"{SHARED}/" not in mapped, "a region with a name could be full, or be left over"
    assert left_over.read_bytes() == b"left", "it is another server's"


def test_f30_server_3036_a_killed_process_leaves_nothing(root: Path, make_engine: Any, left_over: Path) -> None:
    add(root, "m", python(dims="-1"), DOUBLES)
    engine = make_engine(root, python_execution="process")
    pid, _ = ask(engine, "m", 1 << 20)
    before = {path.name for path in SHARED.iterdir() if str(pid) in path.name}
    os.kill(pid, signal.SIGKILL)
    for _ in range(1500):
        with contextlib.suppress(wb.WorkbenchError):
            again, _ = ask(engine, "m", 1 << 20)
            break
        threading.Event().wait(0.02)
    assert again != pid
    assert {path.name for path in SHARED.iterdir() if str(pid) in path.name} == before == set()
