"""A model repository and its server, and a Ray cluster of three nodes on this machine, which takes long to start."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from onnx_models import add_model

import workbench as wb
from workbench.session.remote import WorkbenchServer

MEMORY = 80 * 2**20

PATIENCE = {"health_check_timeout_ms": 60_000, "health_check_initial_delay_ms": 30_000}
"""A busy machine keeps a node from answering for longer than Ray's 10 s; one that is killed refuses at once, and is
found to be dead as soon as ever."""


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One model, ``double``."""
    root = tmp_path_factory.mktemp("planned") / "models"
    root.mkdir()
    add_model(root, "double")
    return root


@pytest.fixture(scope="module")
def server(repository: Path) -> Iterator[WorkbenchServer]:
    """Serves it."""
    with wb.serve(repository) as opened:
        yield opened


@pytest.fixture(scope="session")
def cluster() -> Iterator[Any]:
    """Three nodes with a device each: the same one, for they are one machine."""
    import ray
    from ray.cluster_utils import Cluster

    made = Cluster()
    patch = pytest.MonkeyPatch()
    patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    try:
        head = {"include_dashboard": False, "_system_config": PATIENCE}
        add_node(made, resources={"device": 1, "single": 1}, **head)
        for _ in range(2):
            add_node(made, resources={"device": 1})
        yield made
    finally:
        ray.shutdown()
        made.shutdown()
        patch.undo()


@pytest.fixture
def doomed(cluster: Any) -> Iterator[Any]:
    """A node that the test ends; there is another one after it.

    Ray gives work to a node that has been killed until it has missed some heartbeats: the next test would get it.
    """
    node = sorted(cluster.worker_nodes, key=lambda each: each.node_id)[0]
    yield node
    if node not in cluster.worker_nodes:
        add_node(cluster, resources={"device": 1})
        _wait_until_dead(node.node_id, cluster)


def _wait_until_dead(node: str, cluster: Any) -> None:
    """Until Ray does not take a node to be alive any more; over a connection of its own where there is none."""
    import ray

    with contextlib.nullcontext() if ray.is_initialized() else ray.init(cluster.address, log_to_driver=False):
        deadline = time.monotonic() + 120
        while any(each["NodeID"] == node and each["Alive"] for each in ray.nodes()):  # type: ignore[no-untyped-call]
            assert time.monotonic() < deadline, "Ray still takes the node to be alive"
            time.sleep(0.2)


def add_node(cluster: Any, **options: Any) -> Any:
    """One more node; a busy machine may take longer than Ray waits for it."""
    for _ in range(4):
        with contextlib.suppress(Exception):
            return cluster.add_node(num_cpus=1, object_store_memory=MEMORY, **options)
    return cluster.add_node(num_cpus=1, object_store_memory=MEMORY, **options)
