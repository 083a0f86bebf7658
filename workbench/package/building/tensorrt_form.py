"""The target ``tensorrt``: profiles out of options and examples, the engine, the equivalent trtexec line."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from workbench.backends.base import TensorSpec
from workbench.backends.tensorrt import engine_runner, open_driver
from workbench.backends.tensorrt_build import EngineWish, build_engine, describe_onnx
from workbench.backends.tensorrt_engine import EngineDescription, Profile, ShapeRange, spelled
from workbench.backends.tensorrt_library import find_library
from workbench.errors import InvalidRequest, WorkbenchError
from workbench.package.building.config import FILES, Changes
from workbench.package.building.forms import Form, Job, graph_runner
from workbench.package.building.options import ShapeSet, shape_switches
from workbench.package.building.source import Source, variable_sizes


def to_tensorrt(job: Job) -> Form:
    """An engine of the installed TensorRT, or TensorRT-RTX.

    Raises:
        Unsupported: neither is installed, or it lacks what is asked for.
        InvalidRequest: its parser or builder refuses the model, or the shapes do not fit it.
    """
    source, options = job.source, job.options
    library = find_library()
    by_flag = library.weakly_typed and (options.fp16 or options.bf16)
    graph = job.graph(convert_precision=not by_flag)
    job.tell(f"parsing by {library.title}")
    parsed = describe_onnx(library, graph)
    profiles, notes = _profiles(source, parsed, options.profiles)
    wish = EngineWish(
        profiles, options.fp16, options.bf16, options.int8, not options.no_tf32, options.mem_pool_size,
        options.timing_cache_file, options.builder_optimization_level, options.version_compatible,
        options.hardware_compatibility_level,
    )  # fmt: skip
    if _has_gpu() or (options.precision and not by_flag and not options.bf16):  # else nothing of it is run
        job.ask_source()
    made = build_engine(library, graph, wish, lambda phase, done, total: job.progress(phase, done, total) is not False)
    target = job.version / FILES["tensorrt"]
    target.write_bytes(made.plan)
    notes += made.notes
    if library.rtx:
        notes.append(
            "an engine of TensorRT-RTX: its runtime is tensorrt_rtx, NVIDIA's Triton cannot load it. The line below "
            "makes one for Triton, on its GPU and with its TensorRT"
        )
    line = ["trtexec", f"--onnx={_onnx_name(source)}", f"--saveEngine={FILES['tensorrt']}", *options.switches()]
    if options.int8:
        notes.append("for trtexec, workbench build --to onnx --int8 makes the file with the calibrated ranges in it")
    changes = Changes(_largest_batch(source, profiles), cuda_graphs=options.use_cuda_graph)
    size = changes.max_batch_size
    if size is not None and size < source.max_batch_size:
        notes.append(f"max_batch_size is {size}, the engine's largest batch, instead of {source.max_batch_size}")
    run, verified, why_not = None, "", ""
    try:
        run, verified = engine_runner(library, target), f"the engine, on {library.title}"
    except WorkbenchError as error:
        why_not = f"the engine: {error.message}"
        if options.precision and not by_flag:
            run, no_graph = graph_runner(source, options, graph)
            if run is not None:
                verified = f"the {options.precision} graph that the engine was built from, on ONNX Runtime"
            else:
                why_not += f"; its graph: {no_graph}"
    return Form(
        library.title, changes, run, verified, why_not, shlex.join([*line, *shape_switches(profiles)]), tuple(notes),
        {
            "library": {"name": library.name, "version": library.version},
            "layers": made.layers,
            "engine": made.description.to_json(),
        },
    )  # fmt: skip


def _has_gpu() -> bool:
    """Whether an engine can run here at all."""
    try:
        open_driver()
    except WorkbenchError:
        return False
    return True


def _onnx_name(source: Source) -> str:
    return str(source.thing.name) if isinstance(source.thing, Path) else FILES["onnx"]


def _profiles(
    source: Source, parsed: EngineDescription, wanted: Sequence[ShapeSet]
) -> tuple[tuple[Profile, ...], list[str]]:
    """Optimization profiles: as given, and from the examples where they are not."""
    variable = [spec for spec in parsed.inputs if -1 in spec.dims]
    names = {spec.name for spec in parsed.inputs}
    given = {name for each in wanted for shapes in (each.least, each.best, each.most) for name in shapes}
    if given - names:
        raise InvalidRequest(
            f"the model has no input '{min(given - names)}'", hint=f"its inputs are {', '.join(sorted(names))}"
        )
    fixed = {spec.name: spec for spec in parsed.inputs if -1 not in spec.dims}
    for each in wanted:
        for name in given & set(fixed):
            shapes = each.of(name)
            if shapes is not None and any(shape != fixed[name].dims for shape in shapes):
                raise InvalidRequest(f"input '{name}' has the fixed shape {spelled(fixed[name].dims)}")
    if not variable:
        return (), []
    wanted = wanted or [ShapeSet()]
    some_missing = any(each.of(spec.name) is None for each in wanted for spec in variable)
    seen = variable_sizes(source) if some_missing else {}
    profiles = []
    for each in wanted:
        profile = {}
        for spec in variable:
            shapes = each.of(spec.name)
            profile[spec.name] = ShapeRange(*shapes) if shapes else _from_examples(source, spec, seen)
        profiles.append(profile)
    derived = [spec.name for spec in variable if all(each.of(spec.name) is None for each in wanted)]
    notes = []
    if derived:
        found = ", ".join(f"{name} {profiles[0][name]}" for name in derived)
        notes.append(
            f"shapes from the example inputs: {found}; a request outside is refused. --minShapes, --optShapes, "
            "--maxShapes set others"
        )
    return tuple(profiles), notes


def _from_examples(source: Source, spec: TensorSpec, seen: Mapping[str, list[tuple[int, ...]]]) -> ShapeRange:
    """Shapes as the examples have them; the batch from 1 to ``max_batch_size``, built for the largest."""
    shapes = seen.get(spec.name)
    if not shapes:
        raise InvalidRequest(f"no example has the input '{spec.name}': its shapes are needed", hint="give --optShapes")
    axes = [sorted(sizes) for sizes in zip(*shapes, strict=True)]
    least, best, most = ([sizes[at(len(sizes))] for sizes in axes] for at in (_first, _middle, _last))
    if source.signature.batching:
        least[0], best[0], most[0] = 1, source.max_batch_size, source.max_batch_size
    return ShapeRange(tuple(least), tuple(best), tuple(most))


def _first(count: int) -> int:
    return 0


def _middle(count: int) -> int:
    return count // 2


def _last(count: int) -> int:
    return count - 1


def _largest_batch(source: Source, profiles: Sequence[Profile]) -> int | None:
    """The largest batch of any profile; None where the model does not batch."""
    if not source.signature.batching or not profiles:
        return None
    return max(min(each.most[0] for each in profile.values()) for profile in profiles if profile)
