"""Work items on other machines: a Ray cluster, shard files with a Kubernetes Job, and putting their runs together.

The names below are loaded when first asked for; Ray is imported when an executor for it is opened.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from workbench.distributed.kubernetes import JobOptions, job_manifest
    from workbench.distributed.merging import merge_runs
    from workbench.distributed.ray_cluster import Ray, RayExecutor
    from workbench.distributed.serving import InputFile, Serving
    from workbench.distributed.shards import Shard, plan_shards, read_shard

_HOMES = {
    "InputFile": "serving",
    "JobOptions": "kubernetes",
    "Ray": "ray_cluster",
    "RayExecutor": "ray_cluster",
    "Serving": "serving",
    "Shard": "shards",
    "job_manifest": "kubernetes",
    "merge_runs": "merging",
    "plan_shards": "shards",
    "read_shard": "shards",
}

__all__ = [
    "InputFile",
    "JobOptions",
    "Ray",
    "RayExecutor",
    "Serving",
    "Shard",
    "job_manifest",
    "merge_runs",
    "plan_shards",
    "read_shard",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'workbench.distributed' has no attribute '{name}'")
    import importlib

    return getattr(importlib.import_module(f"workbench.distributed.{home}"), name)
