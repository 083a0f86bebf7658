"""Whether a backend works here: asked in a process of its own, since an import may be heavy, or crash.

``probe(name)`` starts ``python -m workbench.backends.probe NAME``, which imports the framework and answers in JSON.
What is not installed is found without that.
"""

from __future__ import annotations

import importlib
import json
import os
import platform
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib import metadata
from importlib.util import find_spec
from typing import Any

from workbench.backends.tensorrt_library import INSTALL

LIMIT_S = 120.0


@dataclass(frozen=True, slots=True)
class BackendState:
    """What ``workbench doctor`` says of a backend.

    ``device`` is where it can run; ``why`` why it does not work, or what is to be known of how it does; ``install``
    what to install for the rest, "" where nothing is missing.
    """

    works: bool
    version: str
    device: str
    why: str = ""
    install: str = ""

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class _Framework:
    """``module`` is imported, ``distributions`` are what it may come from, ``look`` says the state once it is there."""

    module: str
    distributions: tuple[str, ...]
    install: str
    look: Callable[[Any], BackendState]


def probe(name: str) -> BackendState:
    """The state of a backend (or of ``tensorrt_rtx``). Blocks, at most ``LIMIT_S``; whatever is broken, it answers."""
    if name == "ensemble":
        return BackendState(True, "built in", "of its steps")
    if name == "python":
        return _python()
    framework = _FRAMEWORKS.get(name)
    if framework is not None and not _installed(framework.module):
        return _absent(name, framework)
    return _ask(name, framework)


def names() -> list[str]:
    """What there is to ask for: backends that need a framework, python, ensemble, and those of other distributions."""
    from workbench.backends.registry import BACKENDS, backend_places

    others = [place.name for place in backend_places() if place.name not in BACKENDS and not place.hidden_by]
    return ["python", "ensemble", *_FRAMEWORKS, *others]


def install_of(name: str) -> str:
    """How the framework of a built-in backend is installed; "" for one that needs none."""
    framework = _FRAMEWORKS.get(name)
    return framework.install if framework is not None else ""


def _whose(name: str) -> str:
    """The distribution, with its version, that a backend's entry point is from."""
    from workbench.backends.registry import backend_places

    return next((place.distribution for place in backend_places() if place.name == name), "")


def _install(name: str) -> str:
    """What to install where a backend does not work; of another distribution only that knows."""
    return install_of(name) or f"what {_whose(name)} requires: see its own installation guide"


def _installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except (ImportError, ValueError):  # its parent is broken, or is none
        return False


def _version(framework: _Framework | None) -> str:
    for each in framework.distributions if framework is not None else ():
        try:
            return metadata.version(each)
        except metadata.PackageNotFoundError:
            continue
    return ""


def _absent(name: str, framework: _Framework) -> BackendState:
    if name == "tensorflow" and _installed("openvino"):
        why = "TensorFlow is not installed: OpenVINO runs SavedModels in its place"
        return BackendState(True, metadata.version("openvino"), "CPU", why, framework.install)
    if name == "tensorrt" and _installed("tensorrt_rtx"):
        rtx = _ask("tensorrt_rtx", _FRAMEWORKS["tensorrt_rtx"])
        if rtx.works:
            why = "the enterprise TensorRT is not installed: engines of TensorRT-RTX only"
            return BackendState(True, rtx.version, rtx.device, why, framework.install)
    return BackendState(False, "", "", f"the package {framework.module} is not installed", framework.install)


def _python() -> BackendState:
    if sys.executable:
        return BackendState(True, platform.python_version(), "CPU")
    return BackendState(False, "", "", "no interpreter to start a model with")


def _ask(name: str, framework: _Framework | None) -> BackendState:
    """Asks another process."""
    version = _version(framework) if framework is not None else _whose(name)
    install = _install(name)
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "OPENVINO_LOG_LEVEL": "0"}
    # As this process has it: it may have been told of the package by its own path.
    environment["PYTHONPATH"] = os.pathsep.join(path or os.curdir for path in sys.path)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "workbench.backends.probe", name],
            capture_output=True, text=True, timeout=LIMIT_S, env=environment, stdin=subprocess.DEVNULL, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return BackendState(False, version, "", f"its import takes longer than {LIMIT_S:.0f} s", install)
    except OSError as error:
        return BackendState(False, version, "", f"no process can be started to ask it: {error}", install)
    try:
        answer = BackendState(**json.loads(done.stdout.splitlines()[-1]))
    except (IndexError, ValueError, TypeError):
        last = (done.stderr.strip().splitlines() or ["it says nothing"])[-1]
        how = f"ended with {done.returncode}"
        if done.returncode < 0:
            how = f"was killed by {signal.Signals(-done.returncode).name}"
        return BackendState(False, version, "", f"the process that imported it {how}: {last:.300}", install)
    return answer if answer.version or not version else BackendState(**{**asdict(answer), "version": version})


def _examine(name: str) -> BackendState:
    """In the other process: imports and looks."""
    framework = _FRAMEWORKS.get(name)
    install = _install(name)
    version = _version(framework)
    try:
        if framework is not None:
            module = importlib.import_module(framework.module)
        if name != "tensorrt_rtx":  # a runtime of the backend tensorrt, no backend itself
            from workbench.backends.registry import create_backend

            create_backend(name)
        return framework.look(module) if framework is not None else BackendState(True, "", "it does not say")
    except Exception as error:  # an import raises what it likes
        hint = getattr(error, "hint", "")
        why = hint or f"{type(error).__name__}: {error}"
        return BackendState(False, version, "", why, install)


# What each framework says of itself ----------------------------------------------------------------------------------


_IDENTITY = bytes.fromhex(
    "080812003a390a100a017812017922084964656e746974791201675a100a0178120b0a09080112050a0312016e62100a0179120b0a0908"
    "0112050a0312016e42040a00100d"
)
"""An ONNX file: y is x, a vector of floats."""


def _onnxruntime(module: Any) -> BackendState:
    """The providers; one that is offered is tried where there is a device, for it falls back to the CPU silently."""
    devices, notes = ["CPU"], []
    for provider, device in (("CUDAExecutionProvider", "CUDA"), ("TensorrtExecutionProvider", "TensorRT")):
        if provider not in module.get_available_providers():
            continue
        if _provider_works(module, provider):
            devices.append(device)
        else:
            notes.append(f"{provider} is in this build, but a session falls back to the CPU: no driver, GPU or library")
    return BackendState(True, module.__version__, ", ".join(devices), "; ".join(notes))


def _provider_works(module: Any, provider: str) -> bool:
    try:
        module.set_default_logger_severity(4)
        return provider in module.InferenceSession(_IDENTITY, providers=[provider]).get_providers()
    except Exception:  # it says no in its own way
        return False


def _pytorch(module: Any) -> BackendState:
    device = "CPU"
    if module.cuda.is_available():
        device += f", {module.cuda.get_device_name(0)} (CUDA {module.version.cuda})"
    why = "" if module.cuda.is_available() or module.version.cuda is None else "a CUDA build without a usable GPU"
    return BackendState(True, module.__version__, device, why)


def _tensorrt(module: Any) -> BackendState:
    from workbench.backends.tensorrt import open_driver
    from workbench.backends.tensorrt_library import find_library
    from workbench.errors import WorkbenchError

    name = module.__name__
    version = find_library(name).version
    try:
        driver = open_driver()
    except WorkbenchError as error:
        what = "workbench build makes engines here; " if name == "tensorrt_rtx" else ""
        return BackendState(False, version, "", f"{what}{error.message}", "an NVIDIA GPU with its driver")
    return BackendState(True, version, f"{driver.devices} CUDA device{'s' * (driver.devices != 1)}")


def _openvino(module: Any) -> BackendState:
    devices = module.Core().available_devices
    return BackendState(True, str(module.__version__).partition("-")[0], ", ".join(devices))


def _tensorflow(module: Any) -> BackendState:
    gpus = module.config.list_physical_devices("GPU")
    return BackendState(True, module.__version__, ", ".join(["CPU", *(gpu.name for gpu in gpus)]))


def _fil(module: Any) -> BackendState:
    device = "CPU, GPU by nvforest" if _installed("nvforest") else "CPU"
    return BackendState(True, f"treelite {module.__version__}", device)


def _dali(module: Any) -> BackendState:
    try:
        gpus = int(module.backend.GetCUDADeviceCount())
    except RuntimeError:  # there is no driver
        gpus = 0
    return BackendState(True, module.__version__, f"CPU, {gpus} CUDA devices" if gpus else "CPU")


def _extra(name: str) -> str:
    return f"pip install 'serving-workbench[{name}]'"


_FRAMEWORKS: dict[str, _Framework] = {
    "onnxruntime": _Framework(
        "onnxruntime", ("onnxruntime", "onnxruntime-gpu", "onnxruntime-openvino"), "pip install onnxruntime",
        _onnxruntime,
    ),
    "pytorch": _Framework("torch", ("torch",), _extra("torch"), _pytorch),
    "tensorrt": _Framework(
        "tensorrt", ("tensorrt", "tensorrt-cu13", "tensorrt-cu12"),
        INSTALL["tensorrt"], _tensorrt,
    ),
    "tensorrt_rtx": _Framework("tensorrt_rtx", ("tensorrt-rtx",), _extra("tensorrt"), _tensorrt),
    "openvino": _Framework("openvino", ("openvino",), _extra("openvino"), _openvino),
    "tensorflow": _Framework("tensorflow", ("tensorflow-cpu", "tensorflow"), _extra("tensorflow"), _tensorflow),
    "fil": _Framework("treelite", ("treelite",), _extra("trees"), _fil),
    "dali": _Framework(
        "nvidia.dali", ("nvidia-dali-cuda120", "nvidia-dali-cuda130"), _extra("dali"), _dali,
    ),
}  # fmt: skip


def main(name: str) -> None:
    """Answers for one name on the standard output; what a framework prints meanwhile goes to the standard error."""
    out = os.dup(1)
    os.dup2(2, 1)
    answer = json.dumps(asdict(_examine(name)))
    with os.fdopen(out, "w") as file:
        file.write(answer + "\n")
    sys.stderr.flush()
    os._exit(0)  # some libraries crash when they are torn down


if __name__ == "__main__":
    main(sys.argv[1])
