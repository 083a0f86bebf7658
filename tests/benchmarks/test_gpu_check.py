"""The check of an NVIDIA machine: what becomes of steps, the report, and the archive where there is no GPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
STEPS_OF_A = ("machine", "lean engine", "torchscript", "nvml", "batching")


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import gpu.report
    import gpu.steps

    return gpu


def outcomes(gpu: Any, folder: Path, *runs: Callable[[Any], Any], has_gpu: bool = True, **more: Any) -> list[Any]:
    place = gpu.steps.Place(folder, folder, has_gpu, True)
    steps = [gpu.steps.Step(run.__name__, "a", "that it does", run, **more) for run in runs]
    return list(gpu.steps.run_all(steps, place, 60, lambda text: None))


def works(_place: Any) -> dict[str, Any]:
    return {"figure": 7, "rows": [{"b": 1, "ms": 0.5}]}


def lacks_a_package(_place: Any) -> dict[str, Any]:
    import no_such_package  # noqa: F401

    return {}


def breaks(_place: Any) -> dict[str, Any]:
    raise ZeroDivisionError("by | zero")


def test_a_step_that_did_not_run_on_a_gpu_is_never_proved(gpu: Any, tmp_path: Path) -> None:
    def is_not_so(_place: Any) -> dict[str, Any]:
        raise gpu.steps.Failed("it is not so", seen=1)

    def cannot(_place: Any) -> dict[str, Any]:
        raise gpu.steps.NotProved("nothing to see", seen=2)

    runs = (works, lacks_a_package, breaks, is_not_so, cannot)
    status = {each.name: each.status for each in outcomes(gpu, tmp_path, *runs)}
    assert status == {
        "works": "proved", "lacks_a_package": "not proved", "breaks": "failed", "is_not_so": "failed",
        "cannot": "not proved",
    }  # fmt: skip
    for how, reason in (("not run", "no GPU here"), ("rehearsed", "no GPU here; the figures are of the same step")):
        (only,) = outcomes(gpu, tmp_path, works, has_gpu=False, without_gpu=how)
        assert (only.status, reason in only.reason) == ("not proved", True)
    (broken,) = outcomes(gpu, tmp_path, breaks, has_gpu=False, without_gpu="rehearsed")
    assert broken.status == "failed"


def test_what_is_not_installed_is_not_proved_though_a_package_names_it(
    gpu: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A build of ONNX Runtime for GPUs lists TensorRT without its library; of TensorRT there may be bindings only."""
    import gpu.library_steps as steps
    import onnxruntime

    from workbench.errors import Unsupported

    def bindings_only(name: str | None = None) -> Any:
        raise Unsupported("the package tensorrt cannot be imported: libnvinfer.so.10", hint="pip install tensorrt")

    def nowhere(name: str) -> Any:
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: ["TensorrtExecutionProvider"])
    monkeypatch.setattr(steps, "find_library", bindings_only)
    monkeypatch.setattr(steps.ctypes, "CDLL", nowhere)
    first, second = outcomes(gpu, tmp_path, steps.onnxruntime_tensorrt, steps.tensorrt_build)
    assert (first.status, "libnvinfer" in first.reason) == ("not proved", True)
    assert (second.status, "pip install tensorrt" in second.reason) == ("not proved", True)


def test_a_step_that_hangs_ends_the_check(gpu: Any, tmp_path: Path) -> None:
    release = threading.Event()

    def hangs(_place: Any) -> dict[str, Any]:
        release.wait(60)
        return {}

    try:
        first, second = outcomes(gpu, tmp_path, hangs, works, limit_s=0.2)
    finally:
        release.set()
    assert (first.status, first.hung) == ("failed", True)
    assert (second.status, second.reason) == ("not proved", "not run: 'hangs' hangs")


def test_the_report_says_it_for_programs_and_for_people(gpu: Any, tmp_path: Path) -> None:
    came = outcomes(gpu, tmp_path, works, breaks, lacks_a_package)
    gpu.report.write(came, tmp_path / "out", 1.5, archive=False)
    value = json.loads((tmp_path / "out" / "gpu_check.json").read_text())
    assert value["summary"] == {"proved": 1, "failed": 1, "not proved": 1}
    assert [step["name"] for step in value["steps"]] == ["works", "breaks", "lacks_a_package"]
    text = (tmp_path / "out" / "gpu_check.md").read_text()
    assert "**1 proved, 1 failed, 1 not proved.**" in text
    assert "| a | `breaks` | that it does | **failed**: ZeroDivisionError: by \\| zero" in text
    assert "- figure: 7" in text
    assert "| 1 | 0.5 |" in text


@pytest.mark.full
def test_the_archive_runs_where_there_is_no_gpu(tmp_path: Path) -> None:
    """Built, small enough, run elsewhere: an engine without the package's requirements; the rest is not proved."""
    if find_spec("torch") is None:
        pytest.skip("torch is not installed")
    environment = {**os.environ, "PYTHONPATH": str(BENCHMARKS)}
    archive = tmp_path / "gpu_check.zip"
    command = [sys.executable, "-m", "gpu.archive", "--to", str(archive)]
    built = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    if "cannot download" in built.stderr:
        pytest.skip("the weights of the sample models cannot be downloaded here")
    assert built.returncode == 0, built.stderr
    assert archive.stat().st_size <= 60_000_000
    only = [word for name in (*STEPS_OF_A, "onnxruntime cuda", "nvforest") for word in ("--step", name)]
    ended = subprocess.run(
        [sys.executable, str(archive), "--cpu", "--quick", "--out", str(tmp_path / "out"), *only],
        capture_output=True, text=True, timeout=170, check=False, cwd=tmp_path,
    )  # fmt: skip
    assert ended.returncode == 2, ended.stdout + ended.stderr
    value = json.loads((tmp_path / "out" / "gpu_check.json").read_text())
    assert value["from_archive"]
    status = {step["name"]: step["status"] for step in value["steps"]}
    assert status.pop("lean engine") == "proved"
    assert set(status.values()) == {"not proved"}
    figures = {step["name"]: step["figures"] for step in value["steps"]}
    assert [row["batch"] for row in figures["torchscript"]["shapes"]] == [1, 8, 32]
    assert [row["dynamic_batching"] for row in figures["batching"]["loads"]] == ["off", "on", "off", "on"]
    assert not {"grpc", "orjson", "psutil", "uvloop"} & set(figures["lean engine"]["imported"].split(", "))
