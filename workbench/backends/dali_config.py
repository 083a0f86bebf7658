"""What a configuration says to Triton's DALI backend, and what of it a pipeline completes: Triton's texts.

Source: dali_backend's ``config_tools`` and ``ModelParameters``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workbench.backends.dali_file import DaliFile, DaliTensor
from workbench.backends.fit import config_datatype
from workbench.backends.parameters import int_parameter, text_parameter
from workbench.errors import InvalidRequest
from workbench.protocol import datatypes

SPLIT = "split_along_outer_axis"
RELEASE = "release_after_unload"
PLUGINS = "plugin_libs"
_ASIDE = re.compile(r"\"(\\.|[^\"\\])*\"|'(\\.|[^'\\])*'|#[^\n]*")
_NO_BATCHING = re.compile(r"\bmax_batch_size\s*:\s*0\b")


@dataclass(frozen=True, slots=True)
class DaliSettings:
    """Parameters of a model and of the backend. ``num_threads`` None leaves the pipeline's own."""

    num_threads: int | None
    split: frozenset[str]
    release: bool
    plugins: tuple[str, ...]


def read_settings(config: Any, backend_config: Any) -> DaliSettings:
    """The settings of a model.

    Raises:
        InvalidRequest: num_threads is no number.
    """
    threads = int_parameter(config, "num_threads")
    return DaliSettings(
        num_threads=None if threads is None or threads < 1 else threads,
        split=frozenset(filter(None, (text_parameter(config, SPLIT) or "").split(":"))),
        release=backend_config.get(RELEASE, "") == "true",
        plugins=tuple(filter(None, backend_config.get(PLUGINS, "").split(":"))),
    )


def is_batched(config: Any, model_dir: Path) -> bool:
    """Whether the model batches: it does unless its file says ``max_batch_size: 0``; a 0 that nobody wrote is none."""
    if config.max_batch_size:
        return True
    path = model_dir / "config.pbtxt"
    written = path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
    return _NO_BATCHING.search(_ASIDE.sub("", written)) is None


def complete(config: Any, pipeline: DaliFile, settings: DaliSettings, *, batched: bool) -> Any:
    """A copy with inputs, outputs, max_batch_size and the batcher filled in from the pipeline.

    Inputs go by name, outputs by place: a configuration may rename them.

    Raises:
        InvalidRequest: what is configured contradicts the pipeline, or neither says a data type.
    """
    done = type(config)()
    done.CopyFrom(config)
    _refuse_unknown_inputs(done, pipeline)
    for tensor in pipeline.inputs:
        item = next((item for item in done.input if item.name == tensor.name), None)
        if item is None:
            item = done.input.add(name=tensor.name, allow_ragged_batch=True)
        _fill(item, tensor, batched=batched)
    if len(done.output) > len(pipeline.outputs):
        raise _counts(done, pipeline)
    for index, tensor in enumerate(pipeline.outputs):
        if index >= len(done.output):
            done.output.add()
        if not done.output[index].name:
            done.output[index].name = tensor.name
        _fill(done.output[index], _split(tensor, done.output[index].name, settings), batched=batched)
    if batched and not done.max_batch_size:
        done.max_batch_size = pipeline.max_batch_size
    if batched and done.WhichOneof("scheduling_choice") is None:
        done.dynamic_batching.SetInParent()
    return done


def check(config: Any, pipeline: DaliFile, settings: DaliSettings) -> None:
    """Compares a configuration with the pipeline.

    Raises:
        InvalidRequest: they do not fit.
    """
    batched = config.max_batch_size > 0
    _refuse_unknown_inputs(config, pipeline)
    for tensor in pipeline.inputs:
        item = next((item for item in config.input if item.name == tensor.name), None)
        if item is None:
            raise InvalidRequest(f'Missing config for "{tensor.name}" input.')
        _check(item, tensor, batched=batched)
    if len(config.output) != len(pipeline.outputs):
        raise _counts(config, pipeline)
    for item, tensor in zip(config.output, pipeline.outputs, strict=True):
        _check(item, _split(tensor, item.name, settings), batched=batched)


def _counts(config: Any, pipeline: DaliFile) -> InvalidRequest:
    return InvalidRequest(
        "The number of outputs specified in the DALI pipeline and the configuration file do not match.\n"
        f"Model config outputs: {len(config.output)}\nPipeline outputs: {len(pipeline.outputs)}"
    )


def _refuse_unknown_inputs(config: Any, pipeline: DaliFile) -> None:
    names = {tensor.name for tensor in pipeline.inputs}
    for item in config.input:
        if item.name not in names:
            raise InvalidRequest(
                f"Configuration file contains config for {item.name} but such input is not present in the pipeline.",
                hint=f"the pipeline's inputs (fn.external_source(name=...)): {', '.join(sorted(names)) or 'none'}",
            )


def _split(tensor: DaliTensor, name: str, settings: DaliSettings) -> DaliTensor:
    """An output whose outer dimension becomes rows has one fewer."""
    if {tensor.name, name} & settings.split and tensor.ndim > 0:
        return DaliTensor(tensor.name, tensor.datatype, tensor.ndim - 1)
    return tensor


def _fill(item: Any, tensor: DaliTensor, *, batched: bool) -> None:
    if config_datatype(item) != "TYPE_INVALID":
        _check_datatype(item, tensor)
    elif tensor.datatype:
        kind = datatypes.BY_WIRE[tensor.datatype].config
        item.data_type = item.DESCRIPTOR.fields_by_name["data_type"].enum_type.values_by_name[kind].number
    else:
        raise _missing("data_type", item)
    if tensor.ndim >= 0:
        dims = [-1] * (tensor.ndim + (not batched))
        item.dims[:] = _matched(item.name, list(item.dims), dims) if item.dims else dims


def _check(item: Any, tensor: DaliTensor, *, batched: bool) -> None:
    if config_datatype(item) == "TYPE_INVALID":
        raise _missing("data_type", item)
    _check_datatype(item, tensor)
    if not item.dims and not item.HasField("reshape") and tensor.ndim:
        raise _missing("dims", item)
    if tensor.ndim >= 0:
        _matched(item.name, list(item.dims), [-1] * (tensor.ndim + (not batched)))


def _missing(field: str, item: Any) -> InvalidRequest:
    return InvalidRequest(
        f'Missing {field} config for "{item.name}"',
        hint="give it in the configuration, or in the pipeline: fn.external_source(dtype=, ndim=), "
        "@pipeline_def(output_dtype=[...], output_ndim=[...])",
    )


def _check_datatype(item: Any, tensor: DaliTensor) -> None:
    configured = config_datatype(item)
    if tensor.datatype and configured != (declared := datatypes.BY_WIRE[tensor.datatype].config):
        hint = "encoded images go as UINT8 with dims: [ -1 ], each request with its own length"
        raise InvalidRequest(
            f'Mismatch of data_type config for "{item.name}".\nData type defined in config: {configured}\n'
            f"Data type defined in pipeline: {declared}",
            hint=hint if configured == "TYPE_STRING" else "",
        )


def _matched(name: str, configured: Sequence[int], declared: Sequence[int]) -> list[int]:
    if len(configured) != len(declared):
        raise InvalidRequest(
            f'Mismatch in number of dimensions for "{name}"\nNumber of dimensions defined in config: '
            f"{len(configured)}\nNumber of dimensions defined in pipeline: {len(declared)}"
        )
    return [max(pair) for pair in zip(configured, declared, strict=True)]
