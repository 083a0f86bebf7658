"""What everything on a Ray cluster needs: the connection, which nodes offer something, and what went wrong in words."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from workbench import __version__
from workbench.errors import ConnectionFailed, Unsupported, WorkbenchError

if TYPE_CHECKING:
    from workbench.distributed.ray_cluster import Ray


def connect(ray: Any, settings: Ray) -> bool:
    """Connects to the cluster; False where this process is connected already.

    Raises:
        ConnectionFailed: there is no cluster at the address.
    """
    if ray.is_initialized():
        return False
    try:
        ray.init(
            address=settings.address,
            log_to_driver=False,
            logging_level=logging.ERROR,
            configure_logging=False,
            include_dashboard=False if settings.address == "local" else None,
        )
    except Exception as error:  # where a node of its own does not start in time Ray raises just that
        raise ConnectionFailed(
            f"there is no Ray cluster to connect to: {(str(error).strip() or type(error).__name__).splitlines()[0]}",
            where=settings.address,
            hint="start one (ray start --head --resources='{\"device\": 1}'), or give its address (--ray-address, "
            "Ray(address=...)); where Ray says Unauthenticated, give the cluster's token (RAY_AUTH_TOKEN)",
        ) from error
    return True


def offers(settings: Ray, ray: Any) -> list[tuple[Mapping[str, Any], int]]:
    """The nodes that are alive, as Ray describes them, each with how much it offers of the resource."""
    name = settings.resource
    found = [(node, int(node["Resources"].get(name, 0))) for node in ray.nodes() if node["Alive"]]
    return [(node, count) for node, count in sorted(found, key=lambda each: str(each[0]["NodeID"])) if count > 0]


def lacking(settings: Ray, ray: Any) -> WorkbenchError:
    """The error where no node offers the resource."""
    return Unsupported(
        f"no node of the cluster offers the resource '{settings.resource}'",
        where=f"Ray cluster {settings.address}: {_resources(ray.nodes())}",
        hint=f"""start each with --resources='{{"{settings.resource}": 1}}', or name another: Ray(resource="GPU")""",
    )


def options_on(node: str, count: int, settings: Ray) -> dict[str, Any]:
    """Ray's options of an actor that holds so much of a node's resource."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    options: dict[str, Any] = {"num_cpus": 0, "max_restarts": 0}
    if settings.resource in ("CPU", "GPU"):
        options[f"num_{settings.resource.lower()}s"] = count
    else:
        options["resources"] = {settings.resource: count}
    if settings.runtime_env is not None:
        options["runtime_env"] = dict(settings.runtime_env)
    return {**options, "scheduling_strategy": NodeAffinitySchedulingStrategy(node, soft=False)}


def cause_of(error: Exception) -> Exception:
    """What a worker raised, without Ray's wrapping."""
    cause = getattr(error, "cause", None)
    return cause if isinstance(cause, Exception) else error


def explained(error: Exception, node: str, doing: str) -> WorkbenchError:
    """Why a worker cannot do something on a node, in words."""
    if isinstance(error, WorkbenchError):
        error.where = f"node {node[:8]}: {error.where}"
        return error
    text = str(error)
    if "No module named 'workbench" in text or "ModuleNotFoundError" in text or "AttributeError" in text:
        return Unsupported(
            "the node does not have this package, or another version of it",
            where=f"node {node[:8]}: {text.strip().splitlines()[-1]}",
            hint=f"install it there: pip install 'serving-workbench=={__version__}', or Ray(runtime_env=...)",
        )
    return Unsupported(
        f"no worker could be started: {text.strip().splitlines()[0]}",
        where=f"node {node[:8]}, {doing}",
    )


def _resources(nodes: Sequence[Mapping[str, Any]]) -> str:
    parts = []
    for node in nodes:
        if node["Alive"]:
            names = sorted(name for name in node["Resources"] if not name.startswith("node:"))
            parts.append(f"node {node['NodeID'][:8]} has {', '.join(names) or 'none'}")
    return "; ".join(parts) or "no node is alive"


def import_ray() -> Any:
    """Ray, where it is installed.

    Raises:
        Unsupported: it is not.
    """
    try:
        import ray
    except ImportError as error:
        raise Unsupported("Ray is not installed", hint="pip install 'serving-workbench[ray]'") from error
    return ray
