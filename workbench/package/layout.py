"""The files of a packaged model: config.pbtxt, the version, warm-up samples, example_inputs.json."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from workbench.package.tensors import Feed, Signature, Tensor
from workbench.protocol import datatypes
from workbench.protocol.binary import to_buffer
from workbench.protocol.tensors import Tensor as WireTensor
from workbench.protocol.tensors import as_bytes_array
from workbench.repository.example_inputs import FILE_NAME
from workbench.repository.example_tensors import FOLDER_NAME

MAX_EXAMPLES = 64
"""Examples that are written; the rows of a request with a batch axis are examples of their own."""
MAX_IN_TEXT = 512
"""Elements of a tensor that are written into the JSON itself; larger ones become a file."""


def config_text(
    name: str,
    backend: str,
    signature: Signature,
    example: Feed,
    *,
    max_batch_size: int,
    comment: str,
    reshapes: bool,
    parameters: Mapping[str, str] | None = None,
) -> str:
    """A complete config.pbtxt.

    Args:
        name: of the model.
        backend: ``python``, ``onnxruntime`` or ``fil``.
        signature: inputs, outputs, batching.
        example: one request, for the warm-up's shapes.
        max_batch_size: counts where the model batches.
        comment: the lines above.
        parameters: of the backend.
        reshapes: whether Triton takes away the axis of a row that is one value, else model.py does.
    """
    kind = "KIND_CPU" if backend == "python" else "KIND_AUTO"
    parts = [*(f"# {line}".rstrip() for line in comment.splitlines())]
    parts += [f"name: {json.dumps(name)}", f'backend: "{backend}"']
    parts += [f"max_batch_size: {max_batch_size if signature.batching else 0}"]
    for field, specs in (("input", signature.inputs), ("output", signature.outputs)):
        entries = ",\n".join(_entry(spec, reshapes) for spec in specs)
        parts += ["", f"{field} [\n{entries}\n]"]
    if signature.batching:
        parts += [
            "",
            "# Requests that wait together are executed together; see workbench sweep for a delay.",
            "dynamic_batching { }",
        ]
    parts += ["", f"instance_group [\n  {{\n    count: 1\n    kind: {kind}\n  }}\n]"]
    if parameters:
        entries = ",\n".join(
            f"  {{\n    key: {json.dumps(key)}\n    value {{ string_value: {json.dumps(value)} }}\n  }}"
            for key, value in parameters.items()
        )
        parts += ["", f"parameters [\n{entries}\n]"]
    parts += ["", "# The first example, before READY.", _warmup(signature, example)]
    return "\n".join(parts) + "\n"


def _entry(spec: Tensor, reshapes: bool) -> str:
    dims = ", ".join(map(str, spec.dims or (1,)))
    lines = [f"    name: {json.dumps(spec.name)}", f"    data_type: {datatypes.BY_WIRE[spec.datatype].config}"]
    lines += [f"    dims: [ {dims} ]"]
    if reshapes and not spec.dims:
        lines += ["    reshape { shape: [ ] }"]
    lines += ["    optional: true"] if spec.optional else []
    return "  {\n" + "\n".join(lines) + "\n  }"


def _warmup(signature: Signature, example: Feed) -> str:
    lines = ["model_warmup [", "  {", '    name: "first_example"', "    batch_size: 1", "    count: 1"]
    for index, spec in enumerate(signature.inputs):
        if spec.name not in example:
            continue
        row = rows_of(example, signature)[0][spec.name]
        lines += [
            "    inputs {", f"      key: {json.dumps(spec.name)}", "      value {",
            f"        data_type: {datatypes.BY_WIRE[spec.datatype].config}",
            f"        dims: [ {', '.join(map(str, row.shape))} ]",
            f'        input_data_file: "input_{index}"', "      }", "    }",
        ]  # fmt: skip
    return "\n".join([*lines, "  }", "]"])


def rows_of(feed: Feed, signature: Signature) -> list[Feed]:
    """The examples in a request, as they go over the wire without the batch axis."""
    if not signature.batching:
        return [feed]
    rows = len(next(iter(feed.values())))
    return [{name: np.atleast_1d(array[row]) for name, array in feed.items()} for row in range(rows)]


def over_the_wire(feed: Feed, signature: Signature) -> Feed:
    """A request's arrays as a client sends them: one value a row has an axis of its own."""
    flat = {spec.name for spec in (*signature.inputs, *signature.outputs) if signature.batching and not spec.dims}
    return {name: array[..., None] if name in flat else array for name, array in feed.items()}


def write(
    directory: Path, config: str, version: dict[str, bytes | Path], feeds: Sequence[Feed], signature: Signature
) -> None:
    """Writes a model directory that is not there yet.

    ``version`` are the files of version 1: bytes, or a file to copy.
    """
    place = directory / "1"
    place.mkdir(parents=True)
    (directory / "config.pbtxt").write_text(config, encoding="utf-8")
    for name, content in version.items():
        (place / name).write_bytes(content.read_bytes() if isinstance(content, Path) else content)
    rows = [row for feed in feeds for row in rows_of(feed, signature)][:MAX_EXAMPLES]
    warmup = directory / "warmup"
    warmup.mkdir()
    for index, spec in enumerate(signature.inputs):
        if spec.name not in rows[0]:
            continue
        array = _native(rows[0][spec.name])
        tensor = WireTensor(spec.name, spec.datatype, array.shape, array)
        (warmup / f"input_{index}").write_bytes(bytes(to_buffer(tensor)))
    entries = [
        {
            spec.name: _example(directory, f"{number}_{index}", row[spec.name])
            for index, spec in enumerate(signature.inputs)
            if spec.name in row
        }
        for number, row in enumerate(rows)
    ]
    (directory / FILE_NAME).write_text(
        json.dumps({"data": entries}, ensure_ascii=False, indent=1) + "\n", encoding="utf-8"
    )


def _native(array: NDArray[Any]) -> NDArray[Any]:
    """In C order and the machine's bytes; strings as objects of bytes."""
    if array.dtype.kind in "OSU":
        return as_bytes_array(array)
    return np.ascontiguousarray(array.astype(array.dtype.newbyteorder("="), copy=False))


def _example(directory: Path, name: str, array: NDArray[Any]) -> dict[str, Any]:
    native, shape = _native(array), list(array.shape)
    if native.dtype == np.object_:
        try:
            return {"content": [item.decode() for item in native.flat], "shape": shape}
        except UnicodeDecodeError:
            pass
    elif native.size <= MAX_IN_TEXT and native.dtype.kind in "biuf" and np.isfinite(native).all():
        return {"content": native.reshape(-1).tolist(), "shape": shape}
    if native.dtype.kind in "biuf":
        folder = directory / FOLDER_NAME
        folder.mkdir(exist_ok=True)
        np.save(folder / f"{name}.npy", native, allow_pickle=False)
        return {"file": f"{name}.npy", "shape": shape}
    import base64

    raw = bytes(to_buffer(WireTensor(name, datatypes.from_numpy(native.dtype).wire, native.shape, native)))
    return {"b64": base64.b64encode(raw).decode(), "shape": shape}
