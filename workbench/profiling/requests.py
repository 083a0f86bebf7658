"""From example inputs to the requests that a load sends, encoded once beforehand."""

from __future__ import annotations

import tempfile
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from workbench.errors import ConfigError, InvalidRequest, NotFound
from workbench.profiling.load import Load
from workbench.profiling.target import Target, directory_of
from workbench.protocol.datatypes import BY_CONFIG, BY_WIRE
from workbench.protocol.tensors import InferenceRequest, Tensor, as_bytes_array
from workbench.repository.example_inputs import FILE_NAME, InputSpec, inputs_of, load_example_inputs

Inputs = Mapping[str, Any] | Sequence[Mapping[str, Any]] | str | Path | None
"""Inputs given by hand: one request's arrays by name, or several requests' in rotation; as they are sent, so with the
batch dimension where the model has one. A path names a file as perf_analyzer's --input-data, of rows. None takes the
model's example inputs."""

EXAMPLES = 16
"""How many different requests are sent in rotation."""

RANDOM_INPUTS = "the inputs are random numbers of small range"
"""How the note of a point begins that was measured without example inputs."""

_MAX_BYTES = 64 * 2**20


@dataclass(frozen=True, slots=True)
class Prepared:
    """Requests in rotation. ``rows`` is the number of inferences in one; ``source`` says where the inputs came from."""

    requests: tuple[InferenceRequest, ...]
    rows: int
    source: str
    notes: tuple[str, ...] = ()


def prepare(target: Target, model: str, config: Mapping[str, Any], load: Load, inputs: Inputs = None) -> Prepared:
    """The requests for a load point.

    Raises:
        ConfigError: the example inputs cannot be read, or shapes are not known.
        NotFound: there is no such file of inputs.
        InvalidRequest: the load's batch size does not fit the model.
    """
    largest = int(config.get("max_batch_size", 0) or 0)
    file = Path(inputs).expanduser() if isinstance(inputs, str | Path) else None
    if file is not None and not file.is_file():
        raise NotFound("there is no such file of inputs", where=str(file))
    if inputs is not None and not isinstance(inputs, str | Path):
        examples = [dict(inputs)] if isinstance(inputs, Mapping) else [dict(example) for example in inputs]
        if not examples:
            raise InvalidRequest("no inputs were given", where=f"model '{model}'")
        return _given(model, config, largest, examples)
    if largest == 0 and load.batch_size > 1:
        raise InvalidRequest(
            f"model '{model}' takes no batches (max_batch_size is 0), but the load sends {load.batch_size} rows",
            hint="use batch_size 1, or set max_batch_size",
        )
    directory = file or directory_of(target, model)
    specs, optional = inputs_of(config)
    notes: list[str] = []
    if file is not None:
        source = file.name
    elif directory is None or not (directory / FILE_NAME).is_file():
        place = "its directory is not on this machine" if directory is None else f"it has no {FILE_NAME}"
        notes.append(f"{RANDOM_INPUTS}: {place}; give inputs=FILE (--input-data FILE)")
        source = "random"
    else:
        source = str(FILE_NAME)
    rows = load.batch_size if largest > 0 else 0
    try:
        with tempfile.TemporaryDirectory() as empty:
            drawn = _examples(directory or Path(empty), specs, load.seed, rows, optional)
    except ConfigError as error:
        if directory is None and not error.hint:
            error.hint = "give inputs={name: array}"
        raise
    requests = tuple(
        InferenceRequest(model, [Tensor.from_numpy(name, array) for name, array in example.items()])
        for example in drawn
    )
    return Prepared(_typed(requests, specs), max(1, rows), source, tuple(notes))


def _examples(
    directory: Path, specs: Sequence[InputSpec], seed: int, rows: int, optional: Collection[str]
) -> Sequence[Mapping[str, NDArray[Any]]]:
    first = load_example_inputs(directory, specs, seed=seed, count=1, batch_size=rows, optional=optional)
    size = max(1, sum(_size(array) for example in first for array in example.values()))
    count = max(1, min(EXAMPLES, _MAX_BYTES // size))
    return load_example_inputs(directory, specs, seed=seed, count=count, batch_size=rows, optional=optional)


def _size(array: NDArray[Any]) -> int:
    if array.dtype == np.object_:
        return sum(len(item) + 4 for item in array.flat)
    return int(array.nbytes)


def _typed(requests: tuple[InferenceRequest, ...], specs: Sequence[InputSpec]) -> tuple[InferenceRequest, ...]:
    """The data types as the model declares them (numpy cannot tell a string from bytes, say)."""
    wire = {name: BY_CONFIG[kind].wire if kind in BY_CONFIG else kind for name, kind, _ in specs}
    for request in requests:
        for tensor in request.inputs:
            tensor.datatype = wire.get(tensor.name, tensor.datatype)
    return requests


def _given(model: str, config: Mapping[str, Any], largest: int, examples: list[dict[str, Any]]) -> Prepared:
    kinds = {name: kind for name, kind, _ in inputs_of(config)[0]}
    requests = []
    for example in examples:
        tensors = []
        for name, value in example.items():
            row = BY_CONFIG.get(kinds.get(name, "")) or BY_WIRE.get(kinds.get(name, ""))
            if isinstance(value, np.ndarray):
                array = value
            elif row is not None and row.wire != "BYTES":
                array = np.asarray(value, dtype=row.numpy)
            else:
                array = np.asarray(value, dtype=np.object_ if row is not None else None)
            if array.dtype == np.object_:
                array = as_bytes_array(array)
            tensors.append(Tensor.from_numpy(name, array))
        requests.append(InferenceRequest(model, tensors))
    rows = {request.inputs[0].shape[0] if largest and request.inputs[0].shape else 1 for request in requests}
    if len(rows) > 1:
        raise InvalidRequest(
            f"the inputs have different numbers of rows: {sorted(rows)}", hint="give each request the same batch size"
        )
    return Prepared(tuple(requests), rows.pop(), "given")


def encode(target: Target, requests: Sequence[InferenceRequest], load: Load) -> list[bytes]:
    """The requests as the generator sends them: whole HTTP messages, or serialised gRPC messages.

    Raises:
        InvalidRequest: a load that streams over HTTP, and inputs that the generate extension cannot carry.
    """
    if target.protocol == "grpc":
        from workbench.client.grpc_codec import encode_request as encode_grpc

        return [encode_grpc(request).SerializeToString() for request in requests]
    from workbench.client.http_client import infer_path, model_path
    from workbench.profiling.http_load import http_messages
    from workbench.protocol.generate import encode_generate_request
    from workbench.protocol.http_codec import encode_request

    if load.streaming:
        specs = _metadata_inputs(target, requests[0].model_name)
        bodies = [({"Content-Type": "application/json"}, encode_generate_request(each, specs)) for each in requests]
        return http_messages(target.url, f"{model_path(requests[0].model_name)}/generate_stream", bodies)
    encoded = []
    for request in requests:
        headers, buffers = encode_request(request)
        encoded.append((headers, b"".join(buffers)))
    return http_messages(target.url, infer_path(requests[0]), encoded)


def _metadata_inputs(target: Target, model: str) -> Sequence[Mapping[str, Any]]:
    """The model's inputs as its metadata has them; none where the target does not tell."""
    tell = getattr(target, "model_metadata", None)
    return list(tell(model)["inputs"]) if tell is not None else []
