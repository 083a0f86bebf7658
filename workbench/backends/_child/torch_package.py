"""What an AOTInductor package takes: read from the C++ source that lies in it beside the compiled code.

The compiled code looks at none of it: it computes rubbish from another data type, and reads beyond the end of a tensor
that is too small. The source has functions that would look (``check_input_N``), so that data types and sizes are there
to be read. Source: torch ``_inductor/codegen/cpp_wrapper_cpu.py``.
"""

from __future__ import annotations

import re
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

_TYPES = {
    "bool": "BOOL", "uint8": "UINT8", "uint16": "UINT16", "uint32": "UINT32", "uint64": "UINT64", "int8": "INT8",
    "int16": "INT16", "int32": "INT32", "int64": "INT64", "float16": "FP16", "float32": "FP32", "float64": "FP64",
    "bfloat16": "BF16",
}  # fmt: skip
"""torch's names -> the v2 names."""

_HANDLE = re.compile(r"ConstantHandle (\w+) = ConstantHandle\(input_handles\[(\d+)\]\);")
_TYPE = re.compile(r"int32_t (\w+)_expected_dtype = aoti_torch_dtype_(\w+)\(\);")
_FIXED = re.compile(r"if \((\d+)L* != (\w+)_size\[(\d+)\]\)")
_LEAST = re.compile(r"if \((\w+)_size\[(\d+)\] < (-?\d+)L*\)")
_MOST = re.compile(r"if \((\w+)_size\[(\d+)\] > (\d+)L*\)")
_SYMBOL = re.compile(r"int64_t \w+ = (\w+)_size\[(\d+)\];")

_SPECIALIZED = 2
"""Sizes 0 and 1 are left out of the range of any variable size by torch, and run all the same."""


@dataclass(frozen=True)
class CompiledSize:
    """One dimension: its least and greatest size, None for no limit.

    ``same`` are places (input, dimension) of which one has the same size, where it has no size of its own.
    """

    least: int = 0
    most: int | None = None
    same: tuple[tuple[int, int], ...] = ()

    @property
    def fixed(self) -> bool:
        """Whether there is one size only."""
        return self.least == self.most


@dataclass(frozen=True)
class CompiledInput:
    """An input in the order in which the package takes them; ``datatype`` is a v2 name, "" for another."""

    datatype: str
    sizes: tuple[CompiledSize, ...]

    @property
    def dims(self) -> tuple[int, ...]:
        """Its shape, -1 where it is variable."""
        return tuple(size.least if size.fixed else -1 for size in self.sizes)


def compiled_inputs(path: Path) -> tuple[CompiledInput, ...] | None:
    """The inputs of a package; None where it does not say (an older one, one without its source)."""
    with zipfile.ZipFile(path) as archive:
        sources = [name for name in archive.namelist() if "/data/aotinductor/" in name and name.endswith("wrapper.cpp")]
        if len(sources) != 1:  # several models in one package: which is meant is not for us to say
            return None
        text = archive.read(sources[0]).decode(errors="replace")
    return read_source(text)


def read_source(text: str) -> tuple[CompiledInput, ...] | None:
    """The inputs that a source checks, None where it has no checks."""
    places = {name: int(index) for name, index in _HANDLE.findall(text)}
    if sorted(places.values()) != list(range(len(places))) or not places:
        return None
    types = {places[name]: _TYPES.get(kind, "") for name, kind in _TYPE.findall(text) if name in places}
    least: dict[tuple[int, int], int] = {}
    most: dict[tuple[int, int], int] = {}
    for size, name, axis in _FIXED.findall(text):
        if name in places:
            least[places[name], int(axis)] = most[places[name], int(axis)] = int(size)
    for found, limits in ((_LEAST, least), (_MOST, most)):
        for name, axis, size in found.findall(text):
            if name in places:
                limits[places[name], int(axis)] = int(size)
    own = {(places[name], int(axis)) for name, axis in _SYMBOL.findall(text) if name in places}
    known = {*least, *most, *own}
    inputs = []
    for index in range(len(places)):
        axes = [axis for place, axis in known if place == index]
        sizes = []
        for axis in range(max(axes, default=-1) + 1):
            place = index, axis
            low, high = least.get(place, 0), most.get(place)
            same: tuple[tuple[int, int], ...] = ()
            if place in known and place not in own and low != high and (low or high):
                same = tuple(sorted(each for each in own if (least.get(each, 0), most.get(each)) == (low, high)))
            if place not in own and low != high:  # it follows from others, also where those are 0 or 1
                low = min(low, _SPECIALIZED)
            sizes.append(CompiledSize(low, high, same))
        inputs.append(CompiledInput(types.get(index, ""), tuple(sizes)))
    return tuple(inputs)


def size_problem(inputs: Sequence[CompiledInput], shapes: Sequence[Sequence[int]], names: Sequence[str]) -> str:
    """Why tensors of these shapes cannot be given to a package, "" where they can.

    Args:
        inputs: those of the package.
        shapes: in the same order.
        names: what the inputs are called, for the text.
    """
    for given, shape, name in zip(inputs, shapes, names, strict=True):
        if not given.sizes and all(size == 1 for size in shape):  # one value: a configuration has it as [1]
            continue
        head = f"input '{name}' has shape [{','.join(map(str, shape))}]"
        if len(shape) != len(given.sizes):
            return f"{head}, the package was compiled for {len(given.sizes)} dimensions"
        for axis, (size, limit) in enumerate(zip(shape, given.sizes, strict=True)):
            where = f"dimension {axis}"
            if limit.fixed and size != limit.least:
                return f"{head}, the package was compiled for {limit.least} in {where}"
            if limit.most is not None and size > limit.most:
                return f"{head}, the package was compiled for {limit.most} at most in {where}"
            if limit.least > _SPECIALIZED and size < limit.least:
                return f"{head}, the package was compiled for {limit.least} at least in {where}"
            if limit.same and all(shapes[place][other] != size for place, other in limit.same):
                place, other = limit.same[0]
                return (
                    f"{head}, the package was compiled for as many in {where} as '{names[place]}' has in dimension "
                    f"{other}, which is {shapes[place][other]}"
                )
    return ""
