"""``workbench doctor`` in an environment that holds only what the core declares, and in this one; the extra ``all``."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
import venv
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

from workbench.cli import main

ROOT = Path(__file__).parents[2]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
FRAMEWORKS = {"pytorch", "tensorrt", "tensorrt_rtx", "openvino", "tensorflow", "fil", "dali"}


def core_distributions() -> dict[str, metadata.Distribution]:
    """What the core declares, and what that declares, as it is installed here."""
    found: dict[str, metadata.Distribution] = {}
    wanted = [Requirement(text) for text in PROJECT["dependencies"]]
    while wanted:
        each = wanted.pop()
        extras = ["", *each.extras]
        if each.marker is not None and not any(each.marker.evaluate({"extra": extra}) for extra in extras):
            continue
        known = each.name in found and not each.extras
        if known:
            continue
        found[each.name] = metadata.distribution(each.name)
        for text in found[each.name].requires or []:
            inner = Requirement(text)
            if inner.marker is None or any(inner.marker.evaluate({"extra": extra}) for extra in extras):
                inner.marker = None
                wanted.append(inner)
    return found


@pytest.fixture(scope="module")
def core(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A new environment whose packages are the core's, linked from here; gives its interpreter."""
    folder = tmp_path_factory.mktemp("core")
    venv.create(folder, with_pip=False, symlinks=True)
    (site,) = folder.glob("lib/python*/site-packages")
    for distribution in core_distributions().values():
        tops = {file.parts[0] for file in distribution.files or [] if file.parts[0] not in ("..", "__pycache__")}
        for top in tops:
            source, target = Path(str(distribution.locate_file(top))), site / top
            if source.exists() and not target.exists():
                target.symlink_to(source)
    (site / "workbench.pth").write_text(f"{ROOT}\n")
    return folder / "bin" / "python"


def doctor(python: Path | str, folder: Path) -> dict[str, Any]:
    environment = {**os.environ, "XDG_STATE_HOME": str(folder)}
    environment.pop("PYTHONPATH", None)
    done = subprocess.run(
        [python, "-m", "workbench.cli", "doctor", "--json"],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def test_with_the_core_alone_nothing_crashes(core: Path, tmp_path: Path) -> None:
    backends = doctor(core, tmp_path)["backends"]
    works = {name for name, entry in backends.items() if entry["works"]}
    assert works >= {"python", "ensemble", "onnxruntime"}
    assert not works & FRAMEWORKS
    for name in FRAMEWORKS:
        assert "is not installed" in backends[name]["why"], backends[name]
        assert backends[name]["install"]
    for verb in ("build", "package", "profile"):
        assert (
            subprocess.run([core, "-m", "workbench.cli", verb, "--help"], capture_output=True, check=False).returncode
            == 0
        )


@pytest.mark.parametrize("columns", [80, 120, None])
def test_what_is_printed_is_readable_at_any_width(
    columns: int | None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    states = {
        "python": {"works": True, "version": "3.11", "device": "CPU", "why": "", "install": ""},
        "tensorrt": {
            "works": False, "version": "", "device": "", "why": "it needs a driver of NVIDIA's " * 8,
            "install": "pip install tensorrt from NVIDIA's own package index, or a container of NVIDIA's " * 2,
        },
    }  # fmt: skip
    devices = {"cpu": "2 cores", "memory_gib": 8.0, "gpus": [], "gpu_note": "no GPU here"}
    report = {"backends": states, "packages": {"numpy": "2"}, "devices": devices, "python": "3.11", "platform": "Linux"}
    monkeypatch.setattr("workbench.cli.doctor.examine", lambda: report)
    monkeypatch.delenv("COLUMNS", raising=False)
    if columns is not None:
        monkeypatch.setenv("COLUMNS", str(columns))
    assert main(["doctor"]) == 0
    shown = capsys.readouterr().out
    assert max(map(len, shown.splitlines())) <= (columns or 100)
    words = " ".join(shown.split())
    assert "tensorrt: it needs a driver of NVIDIA's it needs" in words
    assert "tensorrt, to install: pip install tensorrt from NVIDIA's own package index, or a container" in words
    assert "python:" not in words


@pytest.mark.full
def test_here_each_backend_has_version_device_or_a_reason(tmp_path: Path) -> None:
    for name, entry in doctor(sys.executable, tmp_path)["backends"].items():
        assert set(entry) == {"works", "version", "device", "why", "install"}
        assert (entry["version"] and entry["device"]) if entry["works"] else (entry["why"] and entry["install"]), name


def test_the_extra_all_holds_every_extra_but_those_for_developers() -> None:
    extras = PROJECT["optional-dependencies"]
    (everything,) = (Requirement(text) for text in extras["all"])
    assert everything.extras == set(extras) - {"all", "dev", "gpu"}
