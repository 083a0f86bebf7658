"""One function for each target: the file that it writes, and what runs that file here."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

from workbench.backends.onnx_precision import convert
from workbench.backends.openvino_config import ELEMENTS
from workbench.backends.openvino_convert import convert_onnx, openvino_runner, openvino_version
from workbench.errors import Cancelled, InvalidRequest, Unsupported
from workbench.package.building.config import FILES, Changes
from workbench.package.building.options import BuildOptions
from workbench.package.building.source import Source, torch_forms
from workbench.package.onnx_model import run as run_onnx
from workbench.package.tensors import Feed, answered

Progress = Callable[[str, int, int], "bool | None"]
"""Told how far a build is: what it does, steps done, steps in all (0: not known). False stops it."""

Runner = Callable[[Feed], Feed]


@dataclass(frozen=True, slots=True)
class Form:
    """A target's file, written.

    ``run`` answers in its place, and ``verified`` says what that is; None where nothing can run here, and ``why_not``
    says why. ``details`` go into the provenance. ``shapes_fixed``: it may take shapes of one example only.
    """

    built_with: str
    changes: Changes
    run: Runner | None
    verified: str = ""
    why_not: str = ""
    trtexec: str = ""
    notes: tuple[str, ...] = ()
    details: dict[str, Any] = field(default_factory=dict)
    shapes_fixed: bool = False


@dataclass(frozen=True, slots=True)
class Job:
    """One build: what of, how, a folder for what is between, and where the result's version 1 is.

    ``verify``: the result is held against its source. ``expected`` are the source's answers to the examples for that,
    once it has been asked.
    """

    source: Source
    options: BuildOptions
    scratch: Path
    version: Path
    progress: Progress
    verify: bool = True
    expected: list[Feed] = field(default_factory=list)

    def ask_source(self) -> None:
        """Runs the source on the examples, once, where the result is held against it. A maker calls it after what it
        refuses and before what takes long: a source that fails costs no build.

        Raises:
            InvalidRequest: it fails; with the example.
            Cancelled: the caller wants it to stop.
        """
        if self.verify and not self.expected:
            self.tell("running the source on the examples")
            requests, what = self.source.verify_requests(), f"{self.source.title} itself fails"
            self.expected.extend(answered(self.source.apart().run, requests, what, "give examples that it takes"))

    def tell(self, what: str, done: int = 0, total: int = 0) -> None:
        """Says what is being done.

        Raises:
            Cancelled: the caller wants it to stop.
        """
        if self.progress(what, done, total) is False:
            raise Cancelled(f"building from {self.source.title} was stopped")

    def graph(self, *, convert_precision: bool = True) -> Path:
        """The source as an ONNX file, in the precision asked for where ``convert_precision``.

        Raises:
            InvalidRequest: it cannot be exported or converted.
            Unsupported: a package for that is not installed.
        """
        path = self.source.thing
        if self.source.form != "onnx":
            self.tell(f"exporting {self.source.title} to ONNX")
            path = self._place("exported")
            torch_forms().write_onnx_of(self.source, self.source.verify_requests(), path)
        precision = self.options.precision
        if precision is None or not convert_precision:
            return Path(path)
        self.tell(f"converting to {precision}")
        converted = self._place(precision)
        convert(Path(path), converted, precision, self.source.calibration_requests(self.options.calib_count))
        return converted

    def _place(self, name: str) -> Path:
        folder = self.scratch / name
        folder.mkdir()
        return folder / FILES["onnx"]


def to_onnx(job: Job) -> Form:
    """An ONNX file, in another precision where that is asked for.

    Raises:
        InvalidRequest: the source is ONNX and no precision is asked for.
    """
    source, options = job.source, job.options
    if source.form == "onnx" and options.precision is None:
        raise InvalidRequest(
            f"{source.title} is ONNX already", hint="--fp16, --bf16 or --int8 make it one of another precision"
        )
    if not options.bf16:  # which nothing runs
        job.ask_source()
    graph = job.graph()
    shutil.copytree(graph.parent, job.version, dirs_exist_ok=True)
    target = job.version / graph.name
    run, why_not = graph_runner(source, options, target)
    built_with = _converter(options) if options.precision else f"torch {metadata.version('torch')}"
    return Form(built_with, Changes(), run, "the file, on ONNX Runtime", why_not)


def graph_runner(source: Source, options: BuildOptions, graph: Path) -> tuple[Runner | None, str]:
    """What runs an ONNX file on ONNX Runtime's CPU provider, and why nothing does."""
    if options.bf16:
        return None, "ONNX Runtime has no bf16 kernels on a CPU"
    return (lambda feed: run_onnx(graph, source.signature, feed)), ""


def _converter(options: BuildOptions) -> str:
    return f"the {options.precision} converter of onnxruntime {metadata.version('onnxruntime')}"


def to_openvino(job: Job) -> Form:
    """OpenVINO's model.xml and model.bin.

    The weights keep their precision (FP16 with ``fp16``), and the configuration says in which one OpenVINO computes:
    f32, or bf16 where that is asked for. OpenVINO's own default is bf16 on a CPU that has it.

    Raises:
        InvalidRequest: an input or output is of a type that Triton's backend does not take.
    """
    source, options = job.source, job.options
    version = openvino_version()
    for spec in (*source.signature.inputs, *source.signature.outputs):
        if spec.datatype not in ELEMENTS.values():
            raise InvalidRequest(
                f"'{spec.name}' is {spec.datatype}, which Triton's OpenVINO backend does not take",
                hint=f"it takes {', '.join(ELEMENTS.values())}: convert it in the model, or --to onnx",
            )
    job.ask_source()
    graph = job.graph(convert_precision=options.int8)
    job.tell("converting to OpenVINO")
    target = job.version / FILES["openvino"]
    convert_onnx(graph, target, half=options.fp16)
    precision = "bf16" if options.bf16 else "f32"
    parameters = {"HINT_BF16": "YES"} if options.bf16 else {"INFERENCE_PRECISION_HINT": "f32"}
    notes = []
    if not options.bf16:
        notes.append(
            "computes in f32 by the parameter INFERENCE_PRECISION_HINT; real Triton's backend does not read it and "
            "leaves OpenVINO its default (bf16 on a CPU that has it)"
        )
    if source.max_batch_size > 1:
        parameters["WORKBENCH_DYNAMIC_BATCH"] = "YES"
        parameters["ENABLE_BATCH_PADDING"] = "YES"
        notes.append(
            "batches of any size by WORKBENCH_DYNAMIC_BATCH; real Triton's backend goes by ENABLE_BATCH_PADDING and "
            f"fills each batch up to {source.max_batch_size} rows"
        )
    return Form(
        f"openvino {version}", Changes(parameters=parameters), openvino_runner(target, precision),
        f"the file, on OpenVINO's CPU device in {precision}", notes=tuple(notes),
        details={"inference_precision": precision},
    )  # fmt: skip


def to_torchscript(job: Job) -> Form:
    """A TorchScript file. Its outputs are named NAME__INDEX, as Triton wants them."""
    source, target = job.source, job.version / FILES["torchscript"]
    if source.form == "onnx":
        raise Unsupported(
            f"TorchScript cannot be made of ONNX ({source.title}): no tool turns a graph back into a module",
            hint="build from the torch module: wb.build(module, to='torchscript', example_inputs=...), or serve the "
            "ONNX file by onnxruntime or openvino",
        )
    forms = torch_forms()
    job.ask_source()
    job.tell("compiling to TorchScript")
    requests = source.verify_requests()
    how = forms.write_torchscript(source, requests, target)
    loaded = forms.load(target, "torchscript")
    notes = ["torch has TorchScript for deprecated: --to aoti or --to onnx are what follows it"]
    if how == "torch.jit.trace":
        notes.append("traced: what forward decides by the values or shapes of a request is as in the first example")
    return Form(
        f"torch {metadata.version('torch')} ({how})", Changes(renamed=_renamed(source, "outputs")),
        lambda feed: forms.answers(loaded, source.signature, feed), "the file, on torch", notes=tuple(notes),
        details={"how": how}, shapes_fixed=how == "torch.jit.trace",
    )  # fmt: skip


def to_aoti(job: Job) -> Form:
    """An AOTInductor package: compiled for this machine's processor. Inputs and outputs are named NAME__INDEX."""
    source, target = job.source, job.version / FILES["aoti"]
    if source.form in ("onnx", "torchscript"):
        kind = "ONNX" if source.form == "onnx" else "TorchScript"
        raise Unsupported(
            f"AOTInductor compiles a torch module or a .pt2 of torch.export, and {source.title} is {kind}",
            hint="build from the torch module: wb.build(module, to='aoti', example_inputs=...)",
        )
    forms = torch_forms()
    job.ask_source()
    job.tell("compiling by AOTInductor (this may take a minute)")
    forms.write_aoti(source, source.verify_requests(), target)
    thing = source.thing
    loaded = forms.load_aoti(target, thing.arguments, thing.positional)
    renamed = _renamed(source, "inputs") | _renamed(source, "outputs")
    notes = ("compiled for the instruction set of this processor: build it on the machine that serves it",)
    return Form(
        f"torch {metadata.version('torch')} (AOTInductor)", Changes(renamed=renamed),
        lambda feed: forms.answers(loaded, source.signature, feed), "the package, on torch", notes=notes,
    )  # fmt: skip


def _renamed(source: Source, which: Literal["inputs", "outputs"]) -> dict[str, str]:
    """Names that Triton cannot place, old -> new: files of torch have no names of outputs, packages none of inputs."""
    names = [spec.name for spec in getattr(source.signature, which)]
    ordered: list[str] = torch_forms().by_index(names)
    if all(name.rpartition("__")[2].isdigit() and "__" in name for name in names):
        return {}
    if which == "inputs" and set(names) <= set(source.thing.arguments):
        ordered = [name for name in source.thing.arguments if name in names]
    return {name: f"{name}__{index}" for index, name in enumerate(ordered)}
