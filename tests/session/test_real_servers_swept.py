"""A real Triton that is edited and swept by address: what is restored, and which of its ports are one server."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from real_triton import Addresses, real_triton
from served_echo import write_repository

import workbench as wb
from workbench.errors import NotReady
from workbench.profiling import Progress, SweepResult
from workbench.session.remote import TritonServer

pytestmark = pytest.mark.full

DELAY = "dynamic_batching.max_queue_delay_microseconds"
HOUR_S = 3600
LOAD: dict[str, Any] = {
    "concurrency": 1, "duration_s": 0.15, "warmup_s": 0.02, "min_requests": 1, "store": None, "show_progress": False,
}  # fmt: skip


def aged(root: Path) -> float:
    """Has all of a repository changed an hour ago; gives when that was."""
    then = time.time() - HOUR_S
    for path in (*root.rglob("*"), root):
        os.utime(path, (then, then))
    return then


@pytest.fixture
def triton(oracle: Path, tmp_path: Path) -> Iterator[tuple[Addresses, Path, float]]:
    root = write_repository(tmp_path / "models")
    then = aged(root)
    options = ("--model-control-mode=explicit", "--load-model=*")
    with real_triton(oracle, root, tmp_path / "log", options) as addresses:
        yield addresses, root, then


def test_a_revert_leaves_no_override(triton: tuple[Addresses, Path, float]) -> None:
    """Triton takes a file that is newer than what it has loaded, and an override counts as loaded at its own time: a
    file between the two is taken where the override is gone, and only there."""
    addresses, root, then = triton
    with wb.connect(addresses.http) as server:
        assert isinstance(server, TritonServer)
        before = server.model_config("echo")
        server.configure("echo", f"{DELAY}=77")
        back = server.revert("echo")
        assert "it was unloaded and loaded again" in back.reasons[0]
        assert (back.dirty, server.model_config("echo")) == (False, before)
        path = root / "echo" / "config.pbtxt"
        path.write_text(path.read_text().replace("max_batch_size: 4", "max_batch_size: 2"))
        os.utime(path, (then + 60, then + 60))
        server.load("echo")
        assert server.model_config("echo")["max_batch_size"] == 2


def test_both_ports_are_one_server(triton: tuple[Addresses, Path, float]) -> None:
    addresses, _, _ = triton
    refused: list[str] = []
    with wb.connect(addresses.http) as server, wb.connect(f"grpc://{addresses.grpc}") as other:

        def beside(progress: Progress) -> None:
            if progress.done == 1:
                with pytest.raises(NotReady, match="is being swept by process") as caught:
                    other.sweep("echo", {DELAY: [5]}, **LOAD)
                refused.append(caught.value.message)

        result = server.sweep("echo", {DELAY: [70, 80, 90]}, on_progress=beside, **LOAD)
        assert isinstance(result, SweepResult)
        assert [point.error for point in result] == [""] * 3
        assert result.restored
        assert len(refused) == 1
        assert f"at {addresses.http}" in refused[0]
