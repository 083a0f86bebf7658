"""An ONNX graph in another precision: fp16, bf16, or int8 with quantize and dequantize nodes.

Inputs and outputs of the graph keep their data types, so a configuration stays as it is. Builders that take precisions
from the graph (TensorRT-RTX, TensorRT 11) get them so, and ONNX Runtime and OpenVINO read the fp16 and int8 graphs too.
The conversions are those of ONNX Runtime's own tools; they need the package onnx.
"""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from workbench.backends.onnx_file import read_onnx
from workbench.errors import InvalidRequest, Unsupported

Precision = Literal["fp16", "bf16", "int8"]

_FLOAT, _FLOAT16, _BFLOAT16 = 1, 10, 16
_QUANTIZED = ["Conv", "MatMul", "Gemm"]
"""What int8 pays for: the operators with weights."""
_LARGE_BYTES = 1 << 30
"""Weights above this lie beside the graph: a protobuf message holds 2 GiB."""


def convert(
    source: Path, target: Path, precision: Precision, calibration: Iterable[dict[str, NDArray[Any]]] = ()
) -> None:
    """Writes the graph in another precision.

    Args:
        source: an ONNX file in FP32.
        target: where the new one is written.
        precision: of weights and activations.
        calibration: for int8, the requests whose activations give the ranges.

    Raises:
        Unsupported: the package onnx is not installed.
        InvalidRequest: the graph cannot be converted.
    """
    try:
        import onnx  # noqa: F401 - what the tools below need
    except ImportError as error:
        raise Unsupported(
            f"the package onnx, which converts to {precision}, is not installed",
            hint="pip install onnx (the extra samples has it)",
        ) from error
    try:
        if precision == "int8":
            _quantize(source, target, calibration)
        else:
            _halve(source, target, bfloat=precision == "bf16")
    except (ValueError, RuntimeError, TypeError, KeyError) as error:
        raise InvalidRequest(f"{source.name} cannot be converted to {precision}: {error}", where=str(source)) from error


def _halve(source: Path, target: Path, *, bfloat: bool) -> None:
    import onnx
    from onnxruntime.transformers.float16 import convert_float_to_float16

    model = onnx.load(str(source))
    weights = {}
    if bfloat:  # rounded once, from the weights as they are
        weights = {
            each.name: onnx.numpy_helper.to_array(each) for each in model.graph.initializer if each.data_type == _FLOAT
        }
    half = convert_float_to_float16(model, keep_io_types=True)
    if bfloat:
        _to_bfloat(half, weights)
    _save(half, target)


def _to_bfloat(model: Any, weights: dict[str, NDArray[Any]]) -> None:
    """FP16 to BF16 wherever the graph has it."""
    for tensor in model.graph.initializer:
        if tensor.data_type == _FLOAT16:
            _as_bfloat(tensor, weights.get(tensor.name))
    for node in model.graph.node:
        for attribute in node.attribute:
            if attribute.HasField("t") and attribute.t.data_type == _FLOAT16:
                _as_bfloat(attribute.t, None)
            if attribute.HasField("g"):
                raise ValueError(f"node '{node.name}' ({node.op_type}) holds a graph of its own")
            if node.op_type == "Cast" and attribute.name == "to" and attribute.i == _FLOAT16:
                attribute.i = _BFLOAT16
    for value in model.graph.value_info:
        if value.type.tensor_type.elem_type == _FLOAT16:
            value.type.tensor_type.elem_type = _BFLOAT16


def _as_bfloat(tensor: Any, weights: NDArray[Any] | None) -> None:
    import ml_dtypes
    import onnx

    values = weights if weights is not None else onnx.numpy_helper.to_array(tensor).astype(np.float32)
    name, dims = tensor.name, list(tensor.dims)
    tensor.Clear()
    tensor.name, tensor.data_type, tensor.raw_data = name, _BFLOAT16, values.astype(ml_dtypes.bfloat16).tobytes()
    tensor.dims.extend(dims)


def _quantize(source: Path, target: Path, calibration: Iterable[dict[str, NDArray[Any]]]) -> None:
    import onnx
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static
    from onnxruntime.quantization.shape_inference import quant_pre_process

    class Reader(CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            self._requests = iter(calibration)

        def get_next(self) -> dict[str, NDArray[Any]] | None:
            return next(self._requests, None)

    root = logging.getLogger()
    level = root.level
    root.setLevel(logging.ERROR)  # its tools log to the root
    try:
        with tempfile.TemporaryDirectory() as folder:
            prepared = Path(folder) / "prepared.onnx"
            if read_onnx(source).external:  # the tool looks for weights beside the graph in a folder of its own
                whole = Path(folder) / source.name
                _save(onnx.load(str(source)), whole)
                source = whole
            quant_pre_process(str(source), str(prepared), skip_symbolic_shape=True)
            quantize_static(
                str(prepared), str(target), Reader(),
                quant_format=QuantFormat.QDQ, activation_type=QuantType.QInt8, weight_type=QuantType.QInt8,
                per_channel=True, op_types_to_quantize=_QUANTIZED,
                use_external_data_format=source.stat().st_size > _LARGE_BYTES,
                # TensorRT takes symmetric int8 only, and no quantized bias; a product of two activations stays float
                extra_options={
                    "ActivationSymmetric": True, "WeightSymmetric": True, "QuantizeBias": False,
                    "MatMulConstBOnly": True,
                },
            )  # fmt: skip
    finally:
        root.setLevel(level)


def _save(model: Any, target: Path) -> None:
    import onnx

    large = model.ByteSize() > _LARGE_BYTES
    options: dict[str, Any] = {"save_as_external_data": True, "location": f"{target.name}.data"} if large else {}
    onnx.save(model, str(target), **options)
