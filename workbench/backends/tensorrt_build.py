"""An engine out of an ONNX file: parse, profile, build. Runs without a GPU where the library does (TensorRT-RTX)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from workbench.backends.tensorrt_engine import EngineDescription, Profile, of_network, spelled
from workbench.backends.tensorrt_library import Library, Messages, make_logger
from workbench.clock import monotonic_ns
from workbench.errors import Cancelled, InvalidRequest, Unsupported

Step = Callable[[str, int, int], bool]
"""Told how far the builder is: phase, steps done, steps in all. False stops it."""

POOLS = {
    "workspace": "WORKSPACE",
    "dlaSRAM": "DLA_MANAGED_SRAM",
    "dlaLocalDRAM": "DLA_LOCAL_DRAM",
    "dlaGlobalDRAM": "DLA_GLOBAL_DRAM",
    "tacticSharedMem": "TACTIC_SHARED_MEMORY",
}
"""trtexec's names of memory pools -> ``MemoryPoolType``."""


@dataclass(frozen=True, slots=True)
class EngineWish:
    """How an engine is to be built; sizes of pools in bytes.

    ``fp16``, ``bf16`` and ``int8`` are flags for a library that chooses precisions itself; for the others the graph has
    them already.
    """

    profiles: Sequence[Profile] = ()
    fp16: bool = False
    bf16: bool = False
    int8: bool = False
    tf32: bool = True
    mem_pool_size: Mapping[str, int] = field(default_factory=dict)
    timing_cache: Path | None = None
    optimization_level: int | None = None
    version_compatible: bool = False
    hardware_compatibility: str = ""


@dataclass(frozen=True, slots=True)
class EngineMade:
    """An engine: the plan's bytes, what it takes and gives, how long it took, what a person should know."""

    plan: bytes
    description: EngineDescription
    layers: int
    seconds: float
    notes: tuple[str, ...] = ()


def describe_onnx(library: Library, onnx: Path) -> EngineDescription:
    """What the library's parser finds in an ONNX file, without profiles.

    Raises:
        InvalidRequest: it refuses the file; the text names the node.
    """
    parsed = _Parsed(library, onnx)
    return of_network(parsed.network, ())


def build_engine(library: Library, onnx: Path, wish: EngineWish, step: Step | None = None) -> EngineMade:
    """Parses and builds. Blocks.

    Raises:
        InvalidRequest: the parser refuses the file (the text names the node), or a profile does not fit it.
        Unsupported: the library lacks what is asked for.
        Cancelled: ``step`` said so.
    """
    started = monotonic_ns()
    parsed = _Parsed(library, onnx)
    module, network, messages, notes = library.module, parsed.network, parsed.messages, []
    config = parsed.builder.create_builder_config()
    flags = {"FP16": wish.fp16, "BF16": wish.bf16, "INT8": wish.int8, "VERSION_COMPATIBLE": wish.version_compatible}
    for name, wanted in flags.items():
        if wanted and (name == "VERSION_COMPATIBLE" or library.weakly_typed):
            config.set_flag(getattr(module.BuilderFlag, name))
    if not wish.tf32:
        config.clear_flag(module.BuilderFlag.TF32)
    for name, size in wish.mem_pool_size.items():
        config.set_memory_pool_limit(getattr(module.MemoryPoolType, POOLS[name]), size)
    if wish.optimization_level is not None:
        config.builder_optimization_level = wish.optimization_level
    if wish.hardware_compatibility:
        level = getattr(module.HardwareCompatibilityLevel, wish.hardware_compatibility.upper().replace("+", "_PLUS"), 0)
        if not level:
            raise Unsupported(f"{library.title} has no hardware compatibility '{wish.hardware_compatibility}'")
        config.hardware_compatibility_level = level
    _add_profiles(parsed, config, wish.profiles)
    notes += _load_timing_cache(library, config, wish.timing_cache)
    monitor = _monitor(module, step)
    config.progress_monitor = monitor
    plan = parsed.builder.build_serialized_network(network, config)
    if monitor.failure is not None:
        raise monitor.failure
    if monitor.stopped:
        raise Cancelled(f"building the engine of {onnx.name} was stopped")
    if plan is None:
        said = messages.errors() or ["the builder says nothing"]
        raise InvalidRequest(
            f"{library.title} cannot build an engine of {onnx.name}: {said[0]}", hint="; ".join(said[1:])
        )
    if wish.timing_cache is not None and not library.rtx:
        wish.timing_cache.write_bytes(bytes(memoryview(config.get_timing_cache().serialize())))
    description = of_network(network, tuple(wish.profiles))
    seconds = (monotonic_ns() - started) / 1e9
    return EngineMade(bytes(memoryview(plan)), description, network.num_layers, seconds, tuple(notes))


class _Parsed:
    """A network parsed from an ONNX file, with all that must live as long as it."""

    def __init__(self, library: Library, onnx: Path) -> None:
        module = library.module
        self.messages = Messages()
        self._logger = make_logger(library, self.messages)
        self.builder = module.Builder(self._logger)
        creation = module.NetworkDefinitionCreationFlag
        strongly = hasattr(creation, "STRONGLY_TYPED") and not library.weakly_typed
        self.network = self.builder.create_network(1 << int(creation.STRONGLY_TYPED) if strongly else 0)
        self._parser = module.OnnxParser(self.network, self._logger)
        if not self._parser.parse_from_file(str(onnx)):
            errors = [self._parser.get_error(index) for index in range(self._parser.num_errors)]
            said = "; ".join(dict.fromkeys(map(_parser_error, errors))) or "it is no ONNX file"
            raise InvalidRequest(
                f"{library.title}'s parser refuses {onnx.name}: {said}",
                where=str(onnx),
                hint="simplify or replace that operator in the exporter, or serve the model by onnxruntime",
            )


def _parser_error(error: Any) -> str:
    node = error.node_name()
    if not node and error.node() < 0:
        return str(error.desc()).strip()
    kind = f" ({error.node_operator()})" if error.node_operator() else ""
    return f"node {error.node()} '{node}'{kind}: {str(error.desc()).strip()}"


def _add_profiles(parsed: _Parsed, config: Any, profiles: Sequence[Profile]) -> None:
    found = of_network(parsed.network, ())
    inputs = {each.name: each for each in found.inputs}
    variable = [each.name for each in found.inputs if -1 in each.dims]
    for number, wanted in enumerate(profiles):
        unknown = [name for name in wanted if name not in inputs]
        missing = [name for name in variable if name not in wanted]
        if unknown or missing:
            raise InvalidRequest(
                f"profile {number} names '{unknown[0]}', which is no input"
                if unknown
                else f"profile {number} has no shapes for '{missing[0]}', of variable dims {inputs[missing[0]].dims}",
                hint=f"the inputs are {', '.join(inputs)}",
            )
        made = parsed.builder.create_optimization_profile()
        for name, each in wanted.items():
            dims = inputs[name].dims
            for shape in (each.least, each.best, each.most):
                if len(shape) != len(dims) or any(dim not in (-1, size) for dim, size in zip(dims, shape, strict=True)):
                    raise InvalidRequest(
                        f"profile {number}: {name}:{spelled(shape)} does not fit its dimensions {dims}"
                    )
            if not each.holds(each.best):
                raise InvalidRequest(f"profile {number}: {name}: {spelled(each.best)} is not within {each}")
            made.set_shape(name, each.least, each.best, each.most)
        config.add_optimization_profile(made)


def _load_timing_cache(library: Library, config: Any, path: Path | None) -> list[str]:
    if path is None:
        return []
    if library.rtx:
        return ["TensorRT-RTX times no tactics when it builds: a timing cache is neither read nor written"]
    content = path.read_bytes() if path.is_file() else b""
    if not config.set_timing_cache(config.create_timing_cache(content), False):
        raise InvalidRequest(f"{path.name} is no timing cache of {library.title} on this GPU", where=str(path))
    return []


def _monitor(module: Any, step: Step | None) -> Any:
    """An ``IProgressMonitor``. An exception must not pass through the builder: it is kept, and stops the build."""
    base: Any = module.IProgressMonitor

    class Monitor(base):  # type: ignore[misc]
        def __init__(self) -> None:
            base.__init__(self)
            self.totals: dict[str, int] = {}
            self.stopped = False
            self.failure: BaseException | None = None

        def phase_start(self, phase_name: str, parent_phase: str | None, num_steps: int) -> None:
            self.totals[phase_name] = num_steps
            self._tell(phase_name, 0)

        def step_complete(self, phase_name: str, step: int) -> bool:
            return self._tell(phase_name, step + 1)

        def phase_finish(self, phase_name: str) -> None:
            self._tell(phase_name, self.totals.get(phase_name, 0))

        def _tell(self, phase: str, done: int) -> bool:
            if step is not None and not self.stopped:
                try:
                    self.stopped = not step(phase, done, self.totals.get(phase, 0))
                except BaseException as error:
                    self.failure, self.stopped = error, True
            return not self.stopped

    return Monitor()
