"""A Kubernetes Job that measures shards: one pod a shard, one pod a machine (``completionMode: Indexed``)."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from workbench.distributed.shards import Shard
from workbench.errors import InvalidRequest

_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,51}[a-z0-9])?")
"""A DNS label, with room for what Kubernetes adds for a pod."""

CONFIG_MAP_BYTES = 900_000
"""A ConfigMap holds 1 MiB (Kubernetes' API reference); a little is kept for its metadata."""


@dataclass(frozen=True, slots=True)
class JobOptions:
    """What a Job needs to know of the cluster.

    ``image`` has Python and this package. ``models_claim`` and ``runs_claim`` name PersistentVolumeClaims: the model
    repository (mounted read-only) and where the runs go. ``cpus``, ``memory`` and ``gpus`` are what a pod asks for, all
    of it guaranteed: a pod that is throttled measures the throttle. ``node_labels`` choose the nodes: of one kind, for
    figures of several kinds of device are not compared. ``parallelism`` 0 is as many as there are shards.
    """

    image: str
    name: str = "workbench-sweep"
    models_claim: str = "models"
    models_path: str = "/models"
    runs_claim: str = "runs"
    cpus: str = "4"
    memory: str = "8Gi"
    gpus: int = 0
    shm: str = "1Gi"
    node_labels: Mapping[str, str] = field(default_factory=dict)
    parallelism: int = 0


def job_manifest(shards: Sequence[Shard], options: JobOptions) -> list[dict[str, Any]]:
    """The manifests: a ConfigMap with the shard files, and the Job; ``kubectl apply -f`` takes them as YAML documents.

    A pod takes the shard of its completion index. No two pods of one Job are on one machine: a device is measured by
    one of them at a time. A pod that fails is tried twice more (``backoffLimitPerIndex``, Kubernetes 1.29) and does not
    end the others.

    Raises:
        InvalidRequest: no image, a name that Kubernetes does not take, or shards too large for a ConfigMap.
    """
    if not options.image:
        raise InvalidRequest("the Job needs an image that has this package", hint="--image REGISTRY/NAME:TAG")
    if not _NAME.fullmatch(options.name):
        raise InvalidRequest(f"{options.name!r} is no name for a Job", hint="small letters, digits and '-'")
    files = {shard.name: json.dumps(shard.to_json()) for shard in shards}
    size = sum(len(name) + len(text.encode()) for name, text in files.items())
    if size > CONFIG_MAP_BYTES:
        raise InvalidRequest(
            f"the shards have {size} bytes, more than a ConfigMap holds",
            hint="the inputs go with each: keep them as example_inputs.json in the repository",
        )
    labels = {"app.kubernetes.io/name": "serving-workbench", "app.kubernetes.io/instance": options.name}
    metadata = {"name": options.name, "labels": labels}
    config_map = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {**metadata, "name": f"{options.name}-shards"},
        "data": files,
    }
    job = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": metadata,
        "spec": {
            "completionMode": "Indexed",
            "completions": len(shards),
            "parallelism": options.parallelism or len(shards),
            "backoffLimitPerIndex": 2,
            "maxFailedIndexes": len(shards),
            "template": {"metadata": {"labels": labels}, "spec": _pod(options, labels)},
        },
    }
    return [config_map, job]


def _pod(options: JobOptions, labels: Mapping[str, str]) -> dict[str, Any]:
    resources: dict[str, Any] = {"cpu": options.cpus, "memory": options.memory}
    if options.gpus:
        resources["nvidia.com/gpu"] = str(options.gpus)
    apart = {"labelSelector": {"matchLabels": dict(labels)}, "topologyKey": "kubernetes.io/hostname"}
    pod: dict[str, Any] = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 60,
        "affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [apart]}},
        "containers": [
            {
                "name": "sweep",
                "image": options.image,
                # The completion index is in the variable JOB_COMPLETION_INDEX, which --shard reads.
                "command": ["workbench", "sweep", "--shard", "/shards", "--model-repository", options.models_path,
                            "--runs", "/runs"],
                "env": [{"name": "XDG_STATE_HOME", "value": "/tmp"}],
                "resources": {"requests": dict(resources), "limits": dict(resources)},
                "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
                "volumeMounts": [
                    {"name": "shards", "mountPath": "/shards", "readOnly": True},
                    {"name": "models", "mountPath": options.models_path, "readOnly": True},
                    {"name": "runs", "mountPath": "/runs"},
                    {"name": "shm", "mountPath": "/dev/shm"},
                ],
            }
        ],
        "volumes": [
            {"name": "shards", "configMap": {"name": f"{options.name}-shards"}},
            {"name": "models", "persistentVolumeClaim": {"claimName": options.models_claim, "readOnly": True}},
            {"name": "runs", "persistentVolumeClaim": {"claimName": options.runs_claim}},
            {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": options.shm}},
        ],
    }  # fmt: skip
    if options.node_labels:
        pod["nodeSelector"] = dict(options.node_labels)
    return pod


def as_yaml(manifests: Sequence[Mapping[str, Any]]) -> str:
    """Manifests as one file of YAML documents."""
    import yaml  # type: ignore[import-untyped]

    plain = json.loads(json.dumps(list(manifests)))  # nothing is in it twice: YAML would write references
    return str(yaml.safe_dump_all(plain, sort_keys=False))
