"""``workbench doctor``: what is installed, which backends and devices work."""

from __future__ import annotations

import argparse
import json
import platform
import shutil
import textwrap
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata
from typing import Any

from workbench.telemetry.devices import device_from_json

SUMMARY = "Says which backends and devices work here, and what to install for the others."
EXAMPLE = "workbench doctor --json"

AT_ONCE = 2
"""Frameworks that are imported at the same time: an import keeps one core busy."""
WIDTH = 100
_PACKAGES = (
    "numpy",
    "onnxruntime",
    "tritonclient",
    "grpcio",
    "protobuf",
    "uvloop",
    "bokeh",
    "ipywidgets",
    "anywidget",
    "pandas",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``doctor``."""
    parser.add_argument(
        "--json",
        action="store_true",
        help='JSON: {"backends": {NAME: {"works", "version", "device", "why", "install"}}, ...}',
    )


def run(args: argparse.Namespace) -> int:
    """Prints what works. The exit code is 0 when the core works, whatever optional parts are missing."""
    report = examine()
    if args.json:
        print(json.dumps(report, indent=2))
        return 0
    from workbench.cli.tables import print_table

    backends = report["backends"]
    rows = [
        (name, "works" if entry["works"] else "does not work", entry["version"], entry["device"])
        for name, entry in backends.items()
    ]
    print_table(("backend", "", "version", "device"), rows, title="Backends")
    for name, entry in backends.items():
        _print_note(name, entry["why"])
        _print_note(f"{name}, to install", entry["install"])
    print()
    print_table(("package", "version"), list(report["packages"].items()), title="Packages")
    devices = report["devices"]
    print(f"Python {report['python']} on {report['platform']}")
    print(f"CPU: {devices['cpu']}; memory {devices['memory_gib']:.1f} GiB")
    for gpu in devices["gpus"]:
        print(device_from_json(gpu).describe())
    if not devices["gpus"]:
        print(devices["gpu_note"])
    return 0


def _print_note(head: str, text: str) -> None:
    """A sentence in lines of a readable width: a terminal's, else ``WIDTH``."""
    width = min(shutil.get_terminal_size((WIDTH, 0)).columns, WIDTH)
    # a command or a path that is broken at its hyphens cannot be copied
    lines = textwrap.wrap(f"{head}: {text}", width, subsequent_indent="  ", break_on_hyphens=False)
    print(*(lines if text else ()), sep="\n", end="\n" if text else "")


def examine() -> dict[str, Any]:
    """The report as JSON values. Each framework that is installed is imported in a process of its own: seconds."""
    import psutil

    from workbench.backends.probe import names, probe
    from workbench.telemetry import find_devices, sample

    devices, gpus = sample().to_json(), find_devices()
    backends = names()
    with ThreadPoolExecutor(AT_ONCE) as pool:
        states = list(pool.map(probe, backends))
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": {name: _version(name) for name in _PACKAGES},
        "backends": {name: state.to_json() for name, state in zip(backends, states, strict=True)},
        "devices": {
            "cpu": f"{psutil.cpu_count(logical=False) or psutil.cpu_count()} cores, {psutil.cpu_count()} threads",
            "memory_gib": psutil.virtual_memory().total / 2**30,
            "gpus": [gpu.to_json() for gpu in gpus],
            "gpu_note": devices.get("gpu_note", ""),
        },
    }


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"
