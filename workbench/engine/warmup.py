"""``model_warmup``: requests that every instance runs before the model is READY (section 8)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from workbench.engine.validation import RequestValidator, config_type, id_prefix
from workbench.errors import ConfigError, InternalError, InvalidRequest
from workbench.protocol import datatypes
from workbench.protocol.tensors import InferenceRequest, Tensor
from workbench.repository.files import inside, read_regular

MAX_REQUESTS = 65536
"""Requests that one setting of ``model_warmup`` may hold at once: its ``batch_size`` is a number of requests."""
MAX_SAMPLE_BYTES = 2**31 - 1


@dataclass(frozen=True, slots=True)
class WarmupSample:
    """One setting of ``model_warmup``: ``requests`` are executed together, ``count`` times."""

    name: str
    requests: Sequence[InferenceRequest]
    count: int


def check_warmup_size(config: Any) -> None:
    """Refuses warm-up that would fill the memory rather than warm the model.

    Raises:
        ConfigError: more than ``MAX_REQUESTS`` requests in a setting, or an input above ``MAX_SAMPLE_BYTES``.
    """
    for index, setting in enumerate(config.model_warmup):
        path = f"model_warmup[{index}]"
        if setting.batch_size > MAX_REQUESTS:
            raise ConfigError(
                f"warmup setting '{setting.name}' of model '{config.name}' has batch_size {setting.batch_size}, "
                f"at most {MAX_REQUESTS} requests are sent at once",
                where=f"{path}.batch_size",
                hint="count repeats a setting",
            )
        for name, item in setting.inputs.items():
            row = datatypes.BY_CONFIG.get(config_type(item))
            size = math.prod(item.dims) * (row.itemsize if row is not None and row.wire != "BYTES" else 8)
            if size > MAX_SAMPLE_BYTES and all(dim > 0 for dim in item.dims):
                raise ConfigError(
                    f"warmup setting '{setting.name}' of model '{config.name}' has {size} bytes for input '{name}', "
                    f"at most {MAX_SAMPLE_BYTES} can be sent",
                    where=f'{path}.inputs["{name}"].dims',
                )


def build_samples(config: Any, model_dir: Path, *, seed: int = 0) -> list[WarmupSample]:
    """The warm-up requests of a configuration; each is of batch 1. A setting with ``batch_size`` 0 is skipped.

    Raises:
        InvalidRequest: a size is variable, no kind of data is chosen, a file is missing or too short, or a sample would
            be refused as a request.
    """
    validator = RequestValidator(config)
    names = {each.name for each in config.input}
    rng = np.random.default_rng(seed)
    samples = []
    for setting in config.model_warmup:
        if setting.batch_size == 0:
            continue
        tensors = [_tensor(config, name, setting.inputs[name], model_dir, rng) for name in sorted(setting.inputs)]
        # what is no input of the model is given beside them, as control inputs are (infer_request.cc, override inputs)
        own = [tensor for tensor in tensors if tensor.name in names]
        checked = validator.check(InferenceRequest(config.name, own)).inputs
        inputs = [*checked, *(tensor for tensor in tensors if tensor.name not in names)]
        requests = [
            InferenceRequest(config.name, [Tensor(t.name, t.datatype, t.shape, t.data) for t in inputs])
            for _ in range(setting.batch_size)
        ]
        samples.append(WarmupSample(setting.name, requests, max(1, setting.count)))
    return samples


def _tensor(config: Any, name: str, item: Any, model_dir: Path, rng: np.random.Generator) -> Tensor:
    if any(dim < 0 for dim in item.dims):
        raise InvalidRequest(f"warmup setting expects all variable-size dimensions are specified for input '{name}'")
    row = datatypes.BY_CONFIG.get(config_type(item))
    if row is None:
        raise InvalidRequest(f"warmup setting expects input '{name}' to have a data_type set")
    # original inputs get the batch dimension; others (control inputs) are given as they are
    known = any(each.name == name for each in config.input)
    shape = (1, *item.dims) if config.max_batch_size > 0 and known else tuple(item.dims)
    choice = item.WhichOneof("input_data_type")
    if choice is None:
        prefix = id_prefix(InferenceRequest(config.name, []))
        raise InvalidRequest(f"{prefix}warmup setting expects input '{name}' to have input_data_type set")
    if choice == "input_data_file":
        data = read_sample_file(config, name, item, model_dir, row)
    elif row.wire == "BYTES":
        data = np.full(item.dims, b"", dtype=np.object_)  # random strings are zeros in Triton too
    elif choice == "zero_data":
        data = np.zeros(item.dims, dtype=row.numpy)
    else:
        data = _random(item.dims, row, rng)
    return Tensor(name, row.wire, shape, data.reshape(shape))


def _random(dims: Sequence[int], row: datatypes.Datatype, rng: np.random.Generator) -> NDArray[Any]:
    """Random values: small numbers rather than Triton's random bytes, which may be no numbers at all."""
    if row.wire == "BOOL":
        return rng.integers(0, 2, dims).astype(np.bool_)
    if row.wire.startswith(("INT", "UINT")):
        return rng.integers(0, 128, dims).astype(row.numpy)
    return rng.random(dims).astype(row.numpy)


def read_sample_file(config: Any, name: str, item: Any, model_dir: Path, row: datatypes.Datatype) -> NDArray[Any]:
    """The data of one input of a sample, from ``warmup/<input_data_file>`` of the model directory.

    Raises:
        InvalidRequest: the file is too short, or leads out of its folder.
        InternalError: it cannot be read.
    """
    path = inside(model_dir / "warmup", item.input_data_file)
    if path is None:
        raise InvalidRequest(f"warmup file '{item.input_data_file}' for input '{name}' leads out of the warmup folder")
    try:
        data = read_regular(path)
    except OSError as error:
        raise InternalError(f"failed to open text file for read {path}: {error.strerror}", where=str(path)) from error
    count = math.prod(item.dims)
    if row.wire == "BYTES":
        return _strings(data, count, name, config.name).reshape(tuple(item.dims))
    size = count * row.itemsize
    if len(data) < size:
        raise InvalidRequest(
            f"{id_prefix(InferenceRequest(config.name, []))}warmup setting expects {size} bytes, but the data provided "
            f"from {item.input_data_file}only has {len(data)} bytes"
        )
    return np.frombuffer(data[:size], dtype=row.numpy).reshape(tuple(item.dims))


def _strings(data: bytes, count: int, name: str, model: str) -> NDArray[np.object_]:
    """Strings, each after its length in four bytes (little-endian)."""
    items: list[bytes] = []
    offset = 0
    while offset + 4 <= len(data):
        length = int.from_bytes(data[offset : offset + 4], "little")
        if offset + 4 + length > len(data):
            break
        items.append(data[offset + 4 : offset + 4 + length])
        offset += 4 + length
    if offset != len(data) or len(items) != count:
        raise InvalidRequest(
            f"expected {count} string elements for inference input '{name}' for model '{model}', got {len(items)}"
        )
    out = np.empty(count, dtype=np.object_)
    out[:] = items
    return out
