"""``build``: finds the source, has the target's file made, writes the model directory, holds it against the source."""

from __future__ import annotations

import hashlib
import json
import math
import shlex
import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from workbench.clock import monotonic_ns
from workbench.config import ConfigDocument, complete_backend, normalize, validate
from workbench.errors import AlreadyExists, InvalidRequest, NotFound, WorkbenchError
from workbench.package.building.config import new_config
from workbench.package.building.drift import measure
from workbench.package.building.forms import Form, Job, Progress, to_aoti, to_onnx, to_openvino, to_torchscript
from workbench.package.building.options import TARGETS, BuildOptions, Target
from workbench.package.building.result import Built
from workbench.package.building.source import Source, fitted, open_source
from workbench.package.building.tensorrt_form import to_tensorrt
from workbench.package.layout import write
from workbench.package.tensors import answered, said
from workbench.records.environment import capture_environment
from workbench.repository.example_inputs import FILE_NAME
from workbench.repository.models import check_name
from workbench.tuning.drift import OutputDrift

PROVENANCE = "build.json"
"""Lies beside the model file, in the version."""

LARGE_DRIFT = 0.1
"""A relative drift above this is pointed out, and so many texts or booleans that are others."""

_SUFFIXES: Mapping[Target, str] = {
    "tensorrt": "trt", "onnx": "onnx", "openvino": "openvino", "torchscript": "ts", "aoti": "aoti",
}  # fmt: skip
_MAKERS: Mapping[Target, Callable[[Job], Form]] = {
    "tensorrt": to_tensorrt, "onnx": to_onnx, "openvino": to_openvino, "torchscript": to_torchscript, "aoti": to_aoti,
}  # fmt: skip
_OWN = ("config.pbtxt", "configs")
"""What of a source's directory is not taken along, besides its versions."""


def build(
    model: Any,
    *,
    to: Target,
    repository: str | Path = "model_repository",
    into: str | Path | None = None,
    name: str | None = None,
    example_inputs: Any = None,
    calibration: Any = None,
    max_batch_size: int | None = None,
    options: BuildOptions | None = None,
    overwrite: bool = False,
    verify: bool = True,
    progress: Progress | None = None,
) -> Built:
    """Makes another form of a model, as a model directory of its own: an engine, an ONNX file, OpenVINO's, TorchScript.

    The new config.pbtxt is the source's (names, dims, instance groups, warm-up), edited where the form needs it;
    ``1/build.json`` says what it was made of, how, and how its answers differ from the source's.

    Args:
        model: a model's name in ``repository``, a model directory, a file (``.onnx``, ``.pt`` of TorchScript, ``.pt2``
            of torch.export), or a torch module.
        to: ``tensorrt`` (TensorRT 10 or later, else TensorRT-RTX, which builds without a GPU), ``onnx``, ``openvino``,
            ``torchscript``, ``aoti`` (AOTInductor).
        repository: where names are looked up.
        into: the repository of the result; None is the source's own, or ``repository``.
        name: of the result; None adds form and precision to the source's (``minilm_trt_fp16``).
        example_inputs: as ``package`` takes them; a model directory has its own, files and modules need some. They
            calibrate int8, give shapes where none are given, and are what the result is held against its source on.
        calibration: other examples for int8, in the same forms.
        max_batch_size: of a file or module without a configuration; 0 for no batching, None tries it.
        options: precision, shapes and the builder's switches.
        overwrite: replace the model of this name.
        verify: run the source on the examples, before anything is made, and the result after.
        progress: called with what is being done, steps done and steps in all (0: not known); False stops the build.

    Raises:
        InvalidRequest: the model, its examples or the options do not fit; a parser's error names the node.
        Unsupported: a package is not installed, or the target cannot be made of this source: the hint says what can.
        AlreadyExists: there is a model of this name.
        NotFound: there is no such model or repository.
        Cancelled: ``progress`` said so.
    """
    options = options or BuildOptions()
    if to not in TARGETS:
        raise InvalidRequest(f"nothing can be built '{to}'", hint=f"one of {', '.join(TARGETS)}")
    options.check(to)
    started = monotonic_ns()
    places = Path(repository).expanduser().resolve()
    source = open_source(model, places, example_inputs, name, max_batch_size)
    if calibration is not None:
        given = fitted(calibration, source.signature.inputs, source.signature.batching, what="the calibration inputs")
        source = replace(source, calibration=given)
    if to == "torchscript" and source.exemplified is not None:
        source = replace(source, signature=source.exemplified)  # a trace is known to go with the examples' sizes only
    directory = _target(source, name or _name(source, to, options), into, places, overwrite=overwrite)
    with tempfile.TemporaryDirectory(prefix=f".{directory.name}-", dir=directory.parent) as folder:
        written = Path(folder) / directory.name
        (written / "1").mkdir(parents=True)
        (Path(folder) / "scratch").mkdir()
        job = Job(source, options, Path(folder) / "scratch", written / "1", progress or _silent, verify)
        form = _made(job, to)
        _directory(written, source, to, directory.name, form)
        drift = _verify(job, form, to)
        notes = [*_of_random(source, options, verified=bool(drift)), *form.notes]
        if any(map(_is_large, drift)):
            notes.append(
                "the answers differ much from the source's: hold them against what the model is for before it is used"
                + (" (int8 costs transformers much; --fp16 costs little)" if options.int8 else "")
            )
        size = sum(path.stat().st_size for path in job.version.iterdir())
        built = Built(
            directory.name, directory, to, form.built_with, source.title, size, (monotonic_ns() - started) / 1e9, drift,
            form.verified if drift else "", form.why_not or ("" if drift else "verify=False"),
            dict(form.changes.renamed), form.trtexec, notes,
        )  # fmt: skip
        _provenance(job, form, built)
        _put(written, directory, Path(folder) / "old")
    return built


def _of_random(source: Source, options: BuildOptions, *, verified: bool) -> list[str]:
    """What rests on random inputs, for nobody has given others."""
    calibrated = options.int8 and source.calibration is None
    what = ["int8 is calibrated"] * calibrated + ["the drift is measured"] * verified
    if not source.drawn or not what:
        return []
    other = "--example-inputs FILE" + " or --calib FILE" * calibrated
    return [f"{' and '.join(what)} on random inputs, which may be far from what the model gets: give others, {other}"]


def _made(job: Job, to: Target) -> Form:
    """The target's file.

    Raises:
        InvalidRequest: a framework fails in a way of its own.
    """
    try:
        return _MAKERS[to](job)
    except (WorkbenchError, MemoryError):
        raise
    except Exception as error:  # frameworks raise what they like
        calibrated = "; int8 runs it on the examples: --calib FILE gives others" if job.options.int8 else ""
        raise InvalidRequest(
            f"{job.source.title} cannot be made into {to}: {said(error)}",
            where=type(error).__qualname__,
            hint=f"another --to may go{calibrated}; the framework's whole error is this one's __cause__ in Python",
        ) from error


def _put(written: Path, directory: Path, old: Path) -> None:
    """The new model in its place; the one that was there comes back whatever happens."""
    try:
        if directory.exists():
            directory.rename(old)
        written.rename(directory)
    except BaseException:
        if old.exists() and not directory.exists():
            old.rename(directory)
        raise


def _silent(what: str, done: int, total: int) -> None:
    """Nobody asks how far it is."""


def _name(source: Source, to: Target, options: BuildOptions) -> str:
    """Each precision has a name of its own, so that they can be compared on one server."""
    precisions = [name for name in ("fp16", "bf16", "int8") if getattr(options, name)]
    return "_".join((source.name, _SUFFIXES[to], *precisions))


def _target(source: Source, name: str, into: str | Path | None, repository: Path, *, overwrite: bool) -> Path:
    """Where the result goes."""
    check_name(name)
    target = source.directory.parent if source.directory is not None else repository
    if into is not None:
        target = Path(into).expanduser().resolve()
    if not target.is_dir():
        raise NotFound(f"no model repository at {target}", hint="make the directory first, or name another (--into)")
    directory = target / name
    if directory == source.directory:
        raise InvalidRequest(f"'{name}' is the source itself", hint="another name")
    if directory.exists() and not overwrite:
        raise AlreadyExists(
            f"there is a model '{name}' already", where=str(directory), hint="another name, or overwrite=True (--force)"
        )
    return directory


def _is_large(each: OutputDrift) -> bool:
    return 1 - each.equal > LARGE_DRIFT if math.isnan(each.max_rel) else each.max_rel > LARGE_DRIFT


def _verify(job: Job, form: Form, to: Target) -> list[OutputDrift]:
    """The result on the examples that its source has answered; nothing where it cannot run here."""
    if form.run is None or not job.verify:
        return []
    job.ask_source()  # where its maker has not
    job.tell("running the result on the examples")
    hint = "verify=False (--no-verify) writes it unseen"
    if form.shapes_fixed:
        hint = "a trace has the shapes of one example built in: --to onnx, openvino or aoti, which keep them open, or "
        hint += "build from the torch module, which torch.jit.script may compile"
    what = f"{job.source.title} as {to} fails ({form.verified})"
    return measure(job.expected, answered(form.run, job.source.verify_requests(), what, hint))


def _directory(written: Path, source: Source, to: Target, name: str, form: Form) -> None:
    """Configuration, warm-up and examples: the source's, or new ones where it has none."""
    comment = f"Built from {source.title} by workbench build --to {to}: see 1/{PROVENANCE}."
    config = new_config(source, to, name, form.changes, comment)
    document = ConfigDocument.parse(config.encode(), path=str(written / "config.pbtxt"))
    gpus = (0,) if to == "tensorrt" else ()  # the machine that serves an engine has one
    message = complete_backend(document.message, name, [path.name for path in (written / "1").iterdir()])
    validate(normalize(message, gpus=gpus), gpus=gpus)
    if source.directory is None:
        made = written / "1"
        kept = made.rename(written.parent / "version")
        renamed = form.changes.renamed
        inputs = tuple(replace(spec, name=renamed.get(spec.name, spec.name)) for spec in source.signature.inputs)
        feeds = [{renamed.get(key, key): array for key, array in feed.items()} for feed in source.requests(64)]
        write(written, config, {}, feeds, replace(source.signature, inputs=inputs))
        shutil.copytree(kept, written / "1", dirs_exist_ok=True)
        return
    (written / "config.pbtxt").write_text(config, encoding="utf-8")
    for path in source.directory.iterdir():
        if path.name in _OWN or path.name.startswith(".") or (path.is_dir() and path.name[:1].isdigit()):
            continue
        if path.is_dir():
            shutil.copytree(path, written / path.name)
        else:
            shutil.copy2(path, written / path.name)
    examples = written / FILE_NAME
    if examples.is_file() and form.changes.renamed:
        content = _renamed(json.loads(examples.read_text(encoding="utf-8")), form.changes.renamed)
        examples.write_text(json.dumps(content, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


def _renamed(content: Any, renamed: Mapping[str, str]) -> Any:
    """Example inputs with the new names of inputs: keys are such wherever they stand, ``content`` and ``shape`` not."""
    if isinstance(content, list):
        return [_renamed(each, renamed) for each in content]
    if not isinstance(content, dict) or set(content) & {"content", "b64", "file", "min", "vocabulary", "values"}:
        return content
    return {renamed.get(key, key): _renamed(value, renamed) for key, value in content.items()}


def _provenance(job: Job, form: Form, built: Built) -> None:
    source, options, version = job.source, job.options, job.version
    environment = capture_environment()
    kept = ("captured", "system", "python", "cpu_model")
    command = ["workbench", "build", source.name, "--to", built.target, *options.switches()]
    for each in options.profiles:
        for option, shapes in (("minShapes", each.least), ("optShapes", each.best), ("maxShapes", each.most)):
            if shapes:
                spelled = ",".join(f"{name}:{'x'.join(map(str, shape))}" for name, shape in shapes.items())
                command.append(f"--{option}={spelled}")
    content = {
        "model": built.name,
        "target": built.target,
        "source": {
            "model": source.name,
            "form": source.form,
            "files": {path.name: _hash(path) for path in source.files},
        },
        "files": {f"1/{path.name}": _hash(path) for path in sorted(version.iterdir())},
        "built_with": built.built_with,
        "command": shlex.join(command),
        "trtexec": built.trtexec,
        **form.details,
        "drift": [each.to_json() for each in built.drift],
        "verified": built.verified,
        "unverified": built.unverified,
        "notes": list(built.notes),
        "seconds": round(built.seconds, 3),
        "environment": {key: environment[key] for key in kept if key in environment},
    }
    (version / PROVENANCE).write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _hash(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
