"""What a PyTorch file says of itself, read from its zip archive: no framework, and no weight is loaded.

TorchScript has ``code/``; ``torch.export.save`` writes ``models/model.json`` (torch/_export/serde/schema.py);
AOTInductor ``data/aotinductor/`` with compiled code and what it was compiled for.
"""

from __future__ import annotations

import json
import platform
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from workbench.backends._child import torch_names
from workbench.backends.base import ModelDescription, TensorSpec
from workbench.errors import InvalidRequest

Kind = Literal["script", "export", "aoti"]

_TYPES = {
    1: "UINT8", 2: "INT8", 3: "INT16", 4: "INT32", 5: "INT64", 6: "FP16", 7: "FP32", 8: "FP64", 12: "BOOL", 13: "BF16",
    28: "UINT16",
}  # fmt: skip
"""``ScalarType`` of the export schema -> the v2 name."""

_CPU_FLAGS = {
    "AVX2": "avx2",
    "AVX512": "avx512f",
    "AVX512_VNNI": "avx512_vnni",
    "VNNI": "avx512_vnni",
    "AVX512_BF16": "avx512_bf16",
    "AMX_TILE": "amx_tile",
    "AMX_FP16": "amx_fp16",
    "AMX": "amx_tile",
    "NEON": "asimd",
    "ASIMD": "asimd",
    "SVE256": "sve",
    "SVE128": "sve",
}
"""Instruction sets as AOTInductor writes them down -> a flag in /proc/cpuinfo. Others are not checked."""


def archive_kind(path: Path) -> Kind:
    """What a file is.

    Raises:
        InvalidRequest: it is none of the three; the hint says what it seems to be.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
    except (zipfile.BadZipFile, OSError) as error:
        raise InvalidRequest(
            f"{path.name} is no PyTorch file: {error}",
            where=str(path),
            hint="TorchScript is written by torch.jit.save, a .pt2 by torch.export.save",
        ) from error
    if any("/data/aotinductor/" in name for name in names):
        return "aoti"
    if any(name.endswith("/models/model.json") for name in names) or "serialized_exported_program.json" in names:
        return "export"
    if any("/code/" in name for name in names):
        return "script"
    raise InvalidRequest(
        f"{path.name} holds weights or a pickled module, no program",
        where=str(path),
        hint="torch.save keeps no code: write it by torch.jit.save or torch.export.save; or put the module's source "
        'into model.py beside it (with its state_dict as model.pt) and set runtime: "model.py"',
    )


def describe_export(path: Path) -> ModelDescription | None:
    """The signature of a file of ``torch.export.save``: names, data types, -1 for each symbolic size.

    None for a file of an older form that is not known here.

    Raises:
        InvalidRequest: an input or output is no tensor.
    """
    with zipfile.ZipFile(path) as archive:
        member = next((name for name in archive.namelist() if name.endswith("/models/model.json")), "")
        if not member:
            return None
        program = json.loads(archive.read(member))["graph_module"]
    call = next(each["signature"] for each in program["module_call_graph"] if not each["fqn"])
    try:
        leaves = torch_names.paths(call["in_spec"])
        results = torch_names.paths(call["out_spec"], "RESULT")
    except torch_names.NamesError as error:
        raise InvalidRequest(f"{path.name}: {error}", where=str(path)) from error
    own = [torch_names.own_name(each) or each for each in leaves]
    for index, name in enumerate(call.get("forward_arg_names") or ()):
        if index < len(leaves) and leaves[index] == f"ARGS[{index}]":
            own[index] = name
    outputs = [torch_names.own_name(each) or f"OUTPUT__{index}" for index, each in enumerate(results)]
    values = program["graph"]["tensor_values"]
    signature = program["signature"]
    taken = [_tensor_name(each["user_input"]["arg"], path) for each in signature["input_specs"] if "user_input" in each]
    given = [
        _tensor_name(each["user_output"]["arg"], path) for each in signature["output_specs"] if "user_output" in each
    ]
    described = ModelDescription(
        tuple(_spec(name, values[value]) for name, value in zip(own, taken, strict=True)),
        tuple(_spec(name, values[value]) for name, value in zip(outputs, given, strict=True)),
    )
    batching = all(spec.dims and spec.dims[0] == -1 for spec in (*described.inputs, *described.outputs))
    return ModelDescription(described.inputs, described.outputs, batching)


def check_compiled(path: Path, gpus: bool) -> None:
    """Whether the compiled code of an AOTInductor package can run here. ``gpus``: it may use a GPU.

    Raises:
        InvalidRequest: it was compiled for another system, another processor, or a GPU that is not there.
    """
    built = compiled_for(path)
    wants = {"platform": built.platform, "machine": built.machine}
    here = {"platform": platform.system().lower(), "machine": platform.machine().lower()}
    for what, wanted in wants.items():
        if wanted and wanted.lower() != here[what]:
            raise _not_here(path, f"for {wanted}, this is {here[what]}")
    if built.device == "cpu":
        flags = _cpu_flags()
        missing = [name for name in built.instructions if flags and _CPU_FLAGS.get(name, "") not in {"", *flags}]
        if missing:
            listed = " ".join(built.instructions)
            raise _not_here(path, f"for processors with {listed}; this one has no {', '.join(missing)}")
    elif not gpus:
        raise _not_here(path, f"for {built.device}, and no instance is KIND_GPU")


@dataclass(frozen=True, slots=True)
class CompiledFor:
    """What an AOTInductor package runs on; texts are empty where it does not say. ``device``: ``cpu`` or ``cuda``."""

    platform: str
    machine: str
    device: str
    instructions: tuple[str, ...]


def compiled_for(path: Path) -> CompiledFor:
    """Reads what a package was compiled for."""
    with zipfile.ZipFile(path) as archive:
        member = next((name for name in archive.namelist() if name.endswith("wrapper_metadata.json")), "")
        read: Mapping[str, str] = json.loads(archive.read(member)) if member else {}
    return CompiledFor(
        read.get("AOTI_PLATFORM", ""),
        read.get("AOTI_MACHINE", ""),
        read.get("AOTI_DEVICE_KEY", "cpu"),
        tuple(read.get("AOTI_CPU_ISA", "").split()),
    )


def _not_here(path: Path, why: str) -> InvalidRequest:
    return InvalidRequest(
        f"{path.name} was compiled {why}",
        where=str(path),
        hint="compiled code fits one kind of machine: compile it on one like that which serves it, or serve the .pt2 "
        "of torch.export.save, which fits all",
    )


def _cpu_flags() -> frozenset[str]:
    """This processor's instruction sets; empty where the system does not tell (then nothing is checked)."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return frozenset()
    lines = (line.partition(":") for line in text.splitlines())
    return frozenset(flag for key, _, flags in lines if key.strip() in ("flags", "Features") for flag in flags.split())


def _tensor_name(argument: Mapping[str, Any], path: Path) -> str:
    if "as_tensor" not in argument:
        kind = next(iter(argument), "").removeprefix("as_")
        raise InvalidRequest(f"{path.name} takes or gives a {kind}; there may be tensors only", where=str(path))
    return str(argument["as_tensor"]["name"])


def _spec(name: str, value: Mapping[str, Any]) -> TensorSpec:
    dims = tuple(int(size["as_int"]) if "as_int" in size else -1 for size in value["sizes"])
    return TensorSpec(name, _TYPES.get(value["dtype"], ""), dims)
