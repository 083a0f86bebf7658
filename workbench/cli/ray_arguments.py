"""Which machines a verb works on, by its options."""

from __future__ import annotations

import argparse
from typing import Any


def add_ray_arguments(group: Any, executor: str) -> None:
    """``--executor`` and where the Ray cluster is.

    Args:
        group: of the parser.
        executor: what the executor does, in words.
    """
    group.add_argument(
        "--executor", choices=["local", "ray"], default="local", help=f"{executor} (default: %(default)s)"
    )
    group.add_argument("--ray-address", default="auto", metavar="ADDRESS", help="the cluster's (default: %(default)s)")
    group.add_argument(
        "--ray-resource",
        default="device",
        metavar="NAME",
        help="what a node offers for each of them: --resources='{\"NAME\": 1}', or GPU, or CPU (default: %(default)s)",
    )


def ray_of(args: argparse.Namespace, **options: Any) -> Any:
    """The cluster that the options name; None without one."""
    if args.executor != "ray":
        return None
    from workbench.distributed import Ray

    return Ray(args.ray_address, args.ray_resource, **options)
