"""What is asked of a build, in trtexec's words.

Source: trtexec's own help (TensorRT 10). ``--minShapes=x:1x3,y:1`` gives a shape for each input, the batch dimension
included; a name with a colon is quoted ``'a:b':1x3``. ``--memPoolSize=workspace:1024`` is in MiB, with a suffix B, K,
M or G in that unit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, get_args

from workbench.backends.tensorrt_build import POOLS
from workbench.backends.tensorrt_engine import Profile, spelled
from workbench.errors import InvalidRequest

Target = Literal["tensorrt", "onnx", "openvino", "torchscript", "aoti"]
TARGETS: tuple[Target, ...] = get_args(Target)

Shapes = Mapping[str, Sequence[int]]
"""Input -> shape, the batch dimension included."""

SHAPES_HELP = {
    option: f"{what} shapes with the batch dimension: x:1x3,y:1x16 (default: from the example inputs)"
    for option, what in (("minShapes", "smallest"), ("optShapes", "usual"), ("maxShapes", "largest"))
}
"""What each option for shapes is."""
CALIB_HELP = "other example inputs to calibrate int8 with"
SHAPED: tuple[Target, ...] = ("tensorrt",)
"""The targets that take shapes."""
CONVERTED: tuple[Target, ...] = ("tensorrt", "onnx", "openvino")
"""The targets that take a precision; the others keep the module's own."""

_UNITS = {"B": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


@dataclass(frozen=True, slots=True)
class ShapeSet:
    """The shapes of one optimization profile; ``minShapes``, ``optShapes`` and ``maxShapes``.

    As in trtexec, what is not given is as what is: ``opt`` as ``max`` or ``min``, and so on.
    """

    least: Shapes = field(default_factory=dict)
    best: Shapes = field(default_factory=dict)
    most: Shapes = field(default_factory=dict)

    def of(self, name: str) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]] | None:
        """Smallest, usual and largest shape of an input; None where none is given."""
        least, best, most = (shapes.get(name) for shapes in (self.least, self.best, self.most))
        some = next((shape for shape in (best, most, least) if shape is not None), None)
        if some is None:
            return None
        found = (least if least is not None else some, best if best is not None else some, most or some)
        low, usual, high = (tuple(map(int, shape)) for shape in found)
        return low, usual, high


@dataclass(frozen=True, slots=True)
class BuildOptions:
    """The switches of a build; sizes in bytes, each named as trtexec's option in Python's letters.

    ``calib_count`` requests are taken from the examples to calibrate int8.
    """

    fp16: bool = False
    bf16: bool = False
    int8: bool = False
    no_tf32: bool = False
    profiles: tuple[ShapeSet, ...] = ()
    use_cuda_graph: bool = False
    mem_pool_size: Mapping[str, int] = field(default_factory=dict)
    timing_cache_file: Path | None = None
    builder_optimization_level: int | None = None
    version_compatible: bool = False
    hardware_compatibility_level: str = ""
    calib_count: int = 32

    def check(self, target: Target) -> None:
        """Refuses what does not go together, or what the target has no use for.

        Raises:
            InvalidRequest: naming the option.
        """
        if sum((self.fp16, self.bf16, self.int8)) > 1:
            raise InvalidRequest(
                "give one of --fp16, --bf16 and --int8", hint="int8 leaves what is not quantized in FP32"
            )
        if target not in SHAPED:
            only = {
                "--noTF32": self.no_tf32, "--minShapes, --optShapes, --maxShapes": bool(self.profiles),
                "--useCudaGraph": self.use_cuda_graph, "--memPoolSize": bool(self.mem_pool_size),
                "--timingCacheFile": self.timing_cache_file is not None,
                "--builderOptimizationLevel": self.builder_optimization_level is not None,
                "--versionCompatible": self.version_compatible,
                "--hardwareCompatibilityLevel": bool(self.hardware_compatibility_level),
            }  # fmt: skip
            given = [name for name, is_given in only.items() if is_given]
            if given:
                raise InvalidRequest(
                    f"{given[0]} is TensorRT's: --to {target} has no use for it", hint="leave it out, or --to tensorrt"
                )
        if target not in CONVERTED and (self.fp16 or self.bf16 or self.int8):
            raise InvalidRequest(
                f"--to {target} keeps the module's own precision",
                hint="convert the module before: module.half(), module.to(torch.bfloat16)",
            )
        unknown = [name for name in self.mem_pool_size if name not in POOLS]
        if unknown:
            raise InvalidRequest(f"there is no memory pool '{unknown[0]}'", hint=f"one of {', '.join(POOLS)}")

    @property
    def precision(self) -> Literal["fp16", "bf16", "int8"] | None:
        """The precision asked for; None leaves the model's."""
        return "fp16" if self.fp16 else "bf16" if self.bf16 else "int8" if self.int8 else None

    def switches(self) -> list[str]:
        """As they are written on a command line, without shapes."""
        found = [f"--{self.precision}"] if self.precision else []
        found += ["--noTF32"] if self.no_tf32 else []
        found += ["--useCudaGraph"] if self.use_cuda_graph else []
        if self.mem_pool_size:
            found.append("--memPoolSize=" + ",".join(f"{name}:{_size(n)}" for name, n in self.mem_pool_size.items()))
        if self.timing_cache_file is not None:
            found.append(f"--timingCacheFile={self.timing_cache_file}")
        if self.builder_optimization_level is not None:
            found.append(f"--builderOptimizationLevel={self.builder_optimization_level}")
        found += ["--versionCompatible"] if self.version_compatible else []
        if self.hardware_compatibility_level:
            found.append(f"--hardwareCompatibilityLevel={self.hardware_compatibility_level}")
        return found


def shape_switches(profiles: Sequence[Profile]) -> list[str]:
    """Profiles as trtexec takes them."""
    found: list[str] = []
    for number, profile in enumerate(profiles):
        if not profile:
            continue
        found += [f"--profile={number}"] if len(profiles) > 1 else []
        for option, kind in (("minShapes", "least"), ("optShapes", "best"), ("maxShapes", "most")):
            shapes = ",".join(f"{_quoted(name)}:{spelled(getattr(each, kind))}" for name, each in profile.items())
            found.append(f"--{option}={shapes}")
    return found


def parse_shapes(text: str, option: str = "--minShapes") -> dict[str, tuple[int, ...]]:
    """``x:1x3,y:1`` as name -> shape.

    Raises:
        InvalidRequest: it is not of that form.
    """
    shapes: dict[str, tuple[int, ...]] = {}
    for part in _parts(text):
        name, colon, dims = part.rpartition(":")
        name = name.strip().removeprefix("'").removesuffix("'")
        try:
            if not colon or not name:
                raise ValueError
            shapes[name] = tuple(int(dim) for dim in dims.split("x")) if dims.strip() else ()
            if any(dim < 0 for dim in shapes[name]):
                raise ValueError
        except ValueError:
            raise InvalidRequest(
                f"{option} has '{part}', which is no shape", hint="trtexec's form: input:1x3x224x224,other:1x16"
            ) from None
    return shapes


def _parts(text: str) -> list[str]:
    """Split at commas outside of quotes."""
    parts, quoted = [""], False
    for letter in text:
        quoted ^= letter == "'"
        if letter == "," and not quoted:
            parts.append("")
        else:
            parts[-1] += letter
    return [part for part in parts if part.strip()]


def parse_pools(text: str) -> dict[str, int]:
    """``workspace:1024,tacticSharedMem:32K`` as name -> bytes.

    Raises:
        InvalidRequest: it is not of that form.
    """
    pools: dict[str, int] = {}
    for part in text.split(","):
        name, _, size = part.strip().partition(":")
        unit = _UNITS.get(size[-1:].upper())
        try:
            amount = float(size[:-1] if unit else size)
            if amount < 0:
                raise ValueError
        except ValueError:
            raise InvalidRequest(
                f"--memPoolSize has '{part}', which is no size", hint="trtexec's form: workspace:1024 (MiB), or :2G"
            ) from None
        pools[name] = round(amount * (unit or _UNITS["M"]))
    return pools


def _size(count: int) -> str:
    mib = count / _UNITS["M"]
    return f"{mib:g}" if mib >= 1 else f"{count}B"


def _quoted(name: str) -> str:
    return f"'{name}'" if ":" in name or "," in name else name
