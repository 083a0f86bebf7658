"""``workbench export``: the tuned repository for production."""

from __future__ import annotations

import argparse
import json
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.errors import InvalidMeasurement, InvalidRequest, NotFound

if TYPE_CHECKING:
    from workbench.config import ConfigDocument
    from workbench.export import ExportResult
    from workbench.profiling import Point
    from workbench.records.runs import RunStore

SUMMARY = "Writes a repository that real Triton loads unchanged, with provenance.json."
EXAMPLE = "workbench export latest --to bundle --p99-ms 100"

_TUNED = (
    "max_batch_size", "dynamic_batching", "sequence_batching", "instance_group", "optimization", "response_cache",
    "parameters",
)  # fmt: skip
_NOTHING_CHOSEN = ("ab", "compare")
"""Kinds of runs whose points are blocks of two sides, or of several models."""
_FILLED = re.compile(r"^instance_group\[\d+\]\.(name|kind|gpus)|^optimization\.(in|out)put_pinned_memory")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``export``."""
    parser.add_argument(
        "subject",
        metavar="RUN|REPOSITORY",
        help="a stored sweep (its best configuration), 'latest' for the latest sweep, or a model repository as it is",
    )
    parser.add_argument("--to", required=True, metavar="DIR", help="the directory to make")
    parser.add_argument(
        "--model-repository", metavar="DIR", help="where the run's model is (default: the running server's)"
    )
    parser.add_argument(
        "--model", action="append", metavar="NAME", help="of a repository, only this model; may be repeated"
    )
    parser.add_argument(
        "--p99-ms", type=float, metavar="MS", help="the latency goal that the run's best configuration must hold"
    )
    parser.add_argument("--runs", default="runs", metavar="DIR", help="the run store (default: %(default)s)")
    parser.add_argument("--force", action="store_true", help="replace an earlier export")
    parser.add_argument("--json", action="store_true", help="what was written as JSON")


def run(args: argparse.Namespace) -> int:
    """Exports and says where."""
    subject = Path(args.subject)
    result, about = (_repository(subject, args), "") if subject.is_dir() else _run(args)
    if about:
        print(about, file=sys.stderr)
    if args.json:
        models = {model.name: {"edits": list(model.edits), "files": dict(model.files)} for model in result.models}
        print(json.dumps({"directory": str(result.directory), "repository": str(result.repository), "models": models}))
    else:
        print(result)
    return 0


def _repository(repository: Path, args: argparse.Namespace) -> ExportResult:
    from workbench.export import ModelToExport, export_repository

    directories = sorted(path for path in repository.iterdir() if (path / "config.pbtxt").is_file())
    if args.model:
        known = [path.name for path in directories]
        unknown = [name for name in args.model if name not in known]
        if unknown:
            hint = f"there are {', '.join(known) or 'none'}"
            raise NotFound(f"no model '{unknown[0]}' with a config.pbtxt in {repository}", hint=hint)
        directories = [path for path in directories if path.name in args.model]
    if not directories:
        raise NotFound(f"no model with a config.pbtxt in {repository}", where=str(repository))
    models = [ModelToExport(path, (path / "config.pbtxt").read_bytes()) for path in directories]
    return export_repository(models, Path(args.to), overwrite=args.force)


def _run(args: argparse.Namespace) -> tuple[ExportResult, str]:
    """The best configuration of a run; and which it is, in a sentence."""
    from workbench.cli.points import goal_text
    from workbench.config import ConfigDocument
    from workbench.export import ModelToExport, export_repository
    from workbench.profiling import Point
    from workbench.records.runs import RunStore
    from workbench.session.pipelines import with_composing
    from workbench.tuning import choose

    store = RunStore(args.runs)
    subject, passed = _latest_sweep(store) if args.subject == "latest" else (args.subject, "")
    with store.open(subject) as stored:
        points, environment = [Point.from_json(value) for value in stored.points()], stored.environment()
        name, model, kind = stored.id, str(stored.meta.get("model", "")), str(stored.meta.get("kind", ""))
    if kind in _NOTHING_CHOSEN:
        raise InvalidRequest(
            f"run {name} is a{'n' * (kind == 'ab')} {kind}: it has no best configuration of a sweep to export",
            hint="workbench sweep MODEL --set PATH=VALUES makes one",
        )
    try:
        choice = choose(points, p99_ms=args.p99_ms)
    except InvalidMeasurement as error:
        error.message = f"run {name}: {error.message}"
        raise
    measured: dict[str, Any] = {
        "run": name,
        "choice": choice.text,
        "p99_goal_ms": args.p99_ms,
        "after": choice.point.to_json(),
    }
    models = []
    for each in with_composing([model], lambda name: _composing(name, args.model_repository)):
        directory = _model_directory(each, args.model_repository)
        document = ConfigDocument.parse((directory / "config.pbtxt").read_bytes(), path=str(directory / "config.pbtxt"))
        edits = choice.point.edits(each)
        document = _as_measured(document.edit(edits) if edits else document, choice.point, each)
        models.append(ModelToExport(directory, document.data, measured if each == model else {}))
    result = export_repository(models, Path(args.to), provenance={"environment": environment}, overwrite=args.force)
    claim = "" if args.p99_ms is None else f"\n{goal_text(choice.point, args.p99_ms)}"
    return result, f"run {name}: {choice.text}{claim}{passed}"


def _as_measured(document: ConfigDocument, point: Point, model: str) -> ConfigDocument:
    """A model's file with what it was measured with besides the settings: edits of its server that no file has.

    What a server fills in by itself, from the model's file and the devices that it has, is left to it.
    """
    from workbench.config import edits_between, from_json, normalize

    config = point.config if model == point.model else point.step_configs.get(model)
    if not config:
        return document
    between = edits_between(normalize(document.message, model_name=model), from_json(config))
    more = [edit for edit in between if str(edit.path).startswith(_TUNED) and not _FILLED.search(str(edit.path))]
    return document.edit(more) if more else document


def _composing(model: str, repository: str | None) -> list[str]:
    from workbench.config import ConfigDocument

    text = (_model_directory(model, repository) / "config.pbtxt").read_bytes()
    return [step.model_name for step in ConfigDocument.parse(text).message.ensemble_scheduling.step]


def _model_directory(model: str, repository: str | None) -> Path:
    from workbench.server import runtime

    repositories = (
        [repository] if repository else [path for info in runtime.list_servers() for path in info["repositories"]]
    )
    for candidate in repositories:
        if (Path(candidate) / model / "config.pbtxt").is_file():
            return Path(candidate) / model
    if repository:
        raise NotFound(f"no model '{model}' in {repository}", where=repository)
    raise InvalidRequest(
        f"where is the model '{model}' of this run?", hint="name its repository with --model-repository DIR"
    )


def _latest_sweep(store: RunStore) -> tuple[str, str]:
    """A profile chooses nothing, so the latest run to export is the latest sweep; and which later runs are none, said
    in a line."""
    infos = store.list()
    sweeps = [place for place, info in enumerate(infos) if info.kind == "sweep"]
    if not sweeps:
        raise NotFound(
            f"there is no sweep in {store.directory}", hint="make one: workbench sweep MODEL --set PATH=VALUES"
        )
    later = infos[sweeps[-1] + 1 :]
    kinds = ", ".join(dict.fromkeys(info.kind or info.status for info in later))
    passed = f"\n  the latest sweep; {len(later)} later run{'s' * (len(later) > 1)} ({kinds}) chose nothing to export"
    return infos[sweeps[-1]].id, passed if later else ""
