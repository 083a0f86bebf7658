"""A Ray cluster of three nodes on this machine, for all tests that need one: it takes long to start."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest

MEMORY = 80 * 2**20


@pytest.fixture(scope="session")
def cluster() -> Iterator[Any]:
    """Three nodes with a device each: the same one, for they are one machine."""
    import ray
    from ray.cluster_utils import Cluster

    made = Cluster()
    patch = pytest.MonkeyPatch()
    patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    try:
        add_node(made, include_dashboard=False, resources={"device": 1, "single": 1})  # the head
        for _ in range(2):
            add_node(made, resources={"device": 1})
        yield made
    finally:
        ray.shutdown()
        made.shutdown()
        patch.undo()


@pytest.fixture
def doomed(cluster: Any) -> Iterator[Any]:
    """A node that the test ends; there is another one after it."""
    node = sorted(cluster.worker_nodes, key=lambda each: each.node_id)[0]
    yield node
    if node not in cluster.worker_nodes:
        add_node(cluster, resources={"device": 1})


def add_node(cluster: Any, **options: Any) -> Any:
    """One more node; a busy machine may take longer than Ray waits for it."""
    for _ in range(4):
        with contextlib.suppress(Exception):
            return cluster.add_node(num_cpus=1, object_store_memory=MEMORY, **options)
    return cluster.add_node(num_cpus=1, object_store_memory=MEMORY, **options)
