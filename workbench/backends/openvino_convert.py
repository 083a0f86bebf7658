"""An ONNX file as OpenVINO's intermediate representation, and one call of a file of that kind."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from workbench.errors import InvalidRequest, Unsupported

Feed = dict[str, NDArray[Any]]


def openvino_version() -> str:
    """The version of the package, without its build number.

    Raises:
        Unsupported: it is not installed.
    """
    return str(_openvino().__version__).partition("-")[0]


def convert_onnx(onnx: Path, target: Path, *, half: bool = False) -> None:
    """Writes ``target`` (.xml, with a .bin beside it). ``half`` keeps the weights in FP16, else in their own precision.

    Raises:
        Unsupported: OpenVINO is not installed.
        InvalidRequest: OpenVINO cannot convert the file (its own text names the operator).
    """
    ov = _openvino()
    try:
        model = ov.convert_model(str(onnx))
        ov.save_model(model, str(target), compress_to_fp16=half)
    except Exception as error:  # OpenVINO raises its own and RuntimeError
        said = " ".join(line.strip() for line in str(error).splitlines() if line.strip())
        raise InvalidRequest(
            f"OpenVINO cannot convert {onnx.name}: {said:.500}",
            where=str(onnx),
            hint="serve the ONNX file by onnxruntime instead",
        ) from error


def openvino_runner(path: Path, precision: str) -> Callable[[Feed], Feed]:
    """What answers requests in the file's place, on the CPU in this precision (``f32``, ``bf16``).

    It raises InvalidRequest where OpenVINO refuses a request.
    """
    ov = _openvino()
    compiled = ov.Core().compile_model(str(path), "CPU", {"INFERENCE_PRECISION_HINT": precision})

    def run(feed: Feed) -> Feed:
        try:
            results = compiled(feed)
        except (RuntimeError, TypeError) as error:
            said = " ".join(line.strip() for line in str(error).splitlines() if line.strip())
            raise InvalidRequest(
                f"converted, OpenVINO does not run it: {said:.500}", hint="serve the ONNX file by onnxruntime instead"
            ) from error
        return {name: results[output] for output in compiled.outputs for name in output.get_names()}

    return run


def _openvino() -> Any:
    try:
        import openvino
    except ImportError as error:
        raise Unsupported(f"OpenVINO is not installed: {error}", hint="pip install openvino") from error
    return openvino
