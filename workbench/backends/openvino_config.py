"""What a configuration says to OpenVINO: the parameters of Triton's backend with its defaults and texts.

Source: openvino_backend's ``ModelState::ParseParameters``, ``ParseParameterHelper`` and its README. No framework is
needed here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from workbench.errors import InvalidRequest

DYNAMIC_BATCH = "WORKBENCH_DYNAMIC_BATCH"
PRECISION = "INFERENCE_PRECISION_HINT"

ELEMENTS: dict[str, str] = {
    "boolean": "BOOL",
    "u8": "UINT8",
    "u16": "UINT16",
    "u32": "UINT32",
    "u64": "UINT64",
    "i8": "INT8",
    "i16": "INT16",
    "i32": "INT32",
    "i64": "INT64",
    "f16": "FP16",
    "f32": "FP32",
}
"""OpenVINO's element types that Triton's backend knows -> names on the wire."""

PRECISIONS: dict[str, str] = {"f32": "f32", "fp32": "f32", "bf16": "bf16", "f16": "f16", "fp16": "f16"}
"""How a precision may be written -> OpenVINO's name."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The parameters of one model.

    ``properties`` are OpenVINO's own, set for ``device`` before the model is compiled. ``padding`` fills a batch up to
    ``max_batch_size`` with rows of zeros; without it Triton's backend refuses every other batch. ``dynamic_batch`` (not
    Triton's) gives the model a batch of any size instead.
    """

    device: str = "CPU"
    extension: str = ""
    skip_dynamic_batchsize: bool = False
    padding: bool = False
    reshape_io: bool = False
    dynamic_batch: bool = False
    properties: Mapping[str, str | int] = field(default_factory=dict)

    @property
    def auto_batching(self) -> bool:
        """What ``ALLOW_AUTO_BATCHING`` is for a model with ``max_batch_size``."""
        return not self.skip_dynamic_batchsize


def read_settings(config: Any) -> Settings:
    """The settings that the ``parameters`` of a configuration make.

    Raises:
        InvalidRequest: a value cannot be read (Triton's text).
    """
    properties: dict[str, str | int] = {}
    for key, read in _PROPERTIES.items():
        if value := _text(config, key).lower():
            name, made = read(key, value)
            if properties.setdefault(name, made) != made:
                raise InvalidRequest(
                    f"the parameters 'HINT_BF16' and '{PRECISION}' contradict each other", hint="keep one of them"
                )
    return Settings(
        device=_text(config, "TARGET_DEVICE").upper() or "CPU",
        extension=_text(config, "CPU_EXTENSION_PATH"),
        skip_dynamic_batchsize=_is_yes(config, "SKIP_OV_DYNAMIC_BATCHSIZE"),
        padding=_is_yes(config, "ENABLE_BATCH_PADDING"),
        reshape_io=_is_yes(config, "RESHAPE_IO_LAYERS"),
        dynamic_batch=_is_yes(config, DYNAMIC_BATCH),
        properties=properties,
    )


def filled_rows(config: Any) -> int:
    """The rows that each batch is filled up to with zeros; 0 where it is not."""
    settings = read_settings(config)
    return config.max_batch_size if settings.padding and not settings.dynamic_batch else 0


def own_thread_count(config: Any) -> bool:
    """Whether the configuration says how many threads OpenVINO uses."""
    return bool(_text(config, "INFERENCE_NUM_THREADS"))


def _text(config: Any, key: str) -> str:
    return str(config.parameters[key].string_value) if key in config.parameters else ""


def _is_yes(config: Any, key: str) -> bool:
    """As in Triton: anything but "yes", in whatever case, is no."""
    return _text(config, key).lower() == "yes"


def _number(key: str, value: str) -> tuple[str, int]:
    if not (value.isascii() and value.isdigit()):
        raise InvalidRequest(f"expected the parameter '{key}' to be a non-negative number, got {value}")
    return key, int(value)


def _bf16(key: str, value: str) -> tuple[str, str]:
    if value != "yes":
        raise InvalidRequest(
            f"expected the parameter '{key}' to be YES, got {value}",
            hint=f"leave it out, or set {PRECISION} to f32, which real Triton does not read",
        )
    return PRECISION, "bf16"


def _precision(key: str, value: str) -> tuple[str, str]:
    if value not in PRECISIONS:
        raise InvalidRequest(f"expected the parameter '{key}' to be f32/bf16/f16, got {value}")
    return key, PRECISIONS[value]


def _streams(key: str, value: str) -> tuple[str, str | int]:
    if value in ("auto", "numa"):
        return key, value.upper()
    if not (value.isascii() and value.isdigit()):
        raise InvalidRequest(f"expected the parameter '{key}' to be either AUTO/NUMA/<int_value>, got {value}")
    return key, int(value)


def _hint(key: str, value: str) -> tuple[str, str]:
    if value not in ("latency", "throughput", "cumulative_throughput"):
        raise InvalidRequest(
            f"expected the parameter '{key}' to be LATENCY/THROUGHPUT/CUMULATIVE_THROUGHPUT, got {value}"
        )
    return key, value.upper()


_PROPERTIES: dict[str, Callable[[str, str], tuple[str, str | int]]] = {
    "INFERENCE_NUM_THREADS": _number,
    "COMPILATION_NUM_THREADS": _number,
    "HINT_BF16": _bf16,
    PRECISION: _precision,
    "NUM_STREAMS": _streams,
    "PERFORMANCE_HINT": _hint,
}
