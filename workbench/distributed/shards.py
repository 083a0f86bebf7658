"""Shard files: parts of one sweep, each complete in itself, for machines that nothing else connects."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from workbench import __version__
from workbench.distributed.serving import InputFile, Open, Serving, check_version
from workbench.errors import InvalidRequest, NotFound
from workbench.profiling.load import Load
from workbench.profiling.sweeping import Grid, SweepOptions, items_of
from workbench.profiling.verdict import MeasureOptions
from workbench.records.run import plain

VERSION = 1
KIND = "shard"
"""What the run of a shard is stored as; what they are merged into is a sweep."""


@dataclass(frozen=True, slots=True)
class Shard:
    """A part of a sweep: ``number`` (from 0) ``of`` so many.

    ``part`` has the numbers of its points in the whole grid × loads (``sweeping.items_of``). ``serving`` says which
    model, with the hashes of its files and its config.pbtxt; where the repository lies may be said anew where it runs.
    """

    number: int
    of: int
    grid: Mapping[str, Sequence[Any]]
    loads: tuple[Load, ...]
    part: tuple[int, ...]
    serving: Serving
    inputs: InputFile | None = None
    options: SweepOptions = SweepOptions()  # noqa: RUF009 - frozen

    @property
    def model(self) -> str:
        """The model that is measured."""
        return self.serving.models[0]

    @property
    def name(self) -> str:
        """The name of its file: Kubernetes' index of a pod is its number."""
        return f"shard-{self.number}.json"

    def to_json(self) -> dict[str, Any]:
        """As a dictionary for JSON."""
        served, options = self.serving, self.options
        points = [
            {"number": item.number, "settings": plain(item.settings), "load": item.load.to_json()}
            for item in items_of(self.grid, self.loads)
            if item.number in self.part
        ]
        return {
            "workbench_shard": VERSION,
            "planned_with": __version__,
            "number": self.number,
            "of": self.of,
            "model": self.model,
            "grid": plain(self.grid),
            "loads": [load.to_json() for load in self.loads],
            "points": points,
            "seed": self.loads[0].seed,
            "inputs": None if self.inputs is None else {"name": self.inputs.name, "text": self.inputs.data.decode()},
            "repository": {
                "paths": list(served.repositories),
                "models": {
                    name: {"content": served.contents.get(name, ""), "config": served.texts.get(name, "")}
                    for name in served.models
                },
                "examples": served.examples,
            },
            "options": {
                "title": options.title,
                "content": options.content,
                "attempts": options.attempts,
                "keep_samples": options.keep_samples,
                "measure": _measure_json(options.measure),
            },
        }

    def write(self, folder: Path) -> Path:
        """Writes its file into a folder."""
        path = folder / self.name
        path.write_text(json.dumps(self.to_json(), indent=1) + "\n", encoding="utf-8")
        return path


def _measure_json(options: MeasureOptions) -> dict[str, Any]:
    found = {each.name: getattr(options, each.name) for each in fields(options)}
    return {name: value for name, value in found.items() if isinstance(value, str | int | float | bool)}


def plan_shards(
    serving: Serving,
    grid: Grid,
    loads: Sequence[Load],
    count: int,
    *,
    inputs: InputFile | None = None,
    options: SweepOptions | None = None,
) -> list[Shard]:
    """Divides a sweep into so many parts of about the same number of points, neighbours together.

    Raises:
        InvalidRequest: fewer than one part, or more than there are points; inputs that are no text; a load that names a
            file.
    """
    items = items_of(grid, loads)
    if not 1 <= count <= len(items):
        raise InvalidRequest(
            f"{len(items)} points cannot be divided into {count} shards", hint="give at most one a point"
        )
    for load in (*loads, *(part for each in loads for _, part in each.mix)):
        if load.trace or load.inputs:
            raise InvalidRequest(
                f"the load {load.label} names a file, which does not go with a shard",
                where=load.trace or load.inputs,
                hint="sweep it where the file is, or on a Ray cluster whose nodes see it at the same path",
            )
    if inputs is not None:
        try:
            inputs.data.decode()
        except UnicodeDecodeError as error:
            raise InvalidRequest(f"the inputs of '{inputs.name}' are no text") from error
    parts = np.array_split([item.number for item in items], count)
    given = options if options is not None else SweepOptions()
    return [
        Shard(number, count, dict(grid), tuple(loads), tuple(int(each) for each in part), serving, inputs,
              replace(given, kind=KIND, part=tuple(int(each) for each in part)))
        for number, part in enumerate(parts)
    ]  # fmt: skip


def read_shard(path: str | Path, open: Open) -> Shard:
    """Reads a shard's file.

    Args:
        path: the file.
        open: what serves a repository where the shard runs (``Serving.open``).

    Raises:
        NotFound: there is no such file.
        InvalidRequest: it is no shard, or one of a newer workbench.
        Unsupported: it was planned with another version of this package.
    """
    path = Path(path)
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise NotFound("there is no such shard file", where=str(path)) from error
    except (OSError, ValueError, RecursionError) as error:
        raise InvalidRequest(f"the shard file cannot be read: {error}", where=str(path)) from error
    if not isinstance(value, dict) or "workbench_shard" not in value:
        raise InvalidRequest("this is no shard file", where=str(path), hint="workbench sweep MODEL --write-shards DIR")
    if value["workbench_shard"] != VERSION:
        raise InvalidRequest(
            f"the shard file is of version {value['workbench_shard']}, this workbench reads {VERSION}",
            where=str(path),
            hint="use the workbench that wrote it",
        )
    try:
        check_version(str(value["planned_with"]))
        return _shard(value, open)
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise InvalidRequest(f"the shard file is not complete: {error!r}", where=str(path)) from error


def _shard(value: Mapping[str, Any], open: Open) -> Shard:
    repository, options = value["repository"], value["options"]
    models = {str(name): dict(about) for name, about in repository["models"].items()}
    if next(iter(models)) != value["model"]:
        raise ValueError(f"the first model is not {value['model']}")
    serving = Serving(
        open,
        tuple(repository["paths"]),
        tuple(models),
        {name: str(about["content"]) for name, about in models.items()},
        {name: str(about["config"]) for name, about in models.items()},
        str(repository["examples"]),
    )
    part = tuple(int(point["number"]) for point in value["points"])
    given = value["inputs"]
    return Shard(
        number=int(value["number"]),
        of=int(value["of"]),
        grid={str(path): list(values) for path, values in value["grid"].items()},
        loads=tuple(Load.from_json(load) for load in value["loads"]),
        part=part,
        serving=serving,
        inputs=None if given is None else InputFile(str(given["name"]), str(given["text"]).encode()),
        options=SweepOptions(
            title=str(options["title"]),
            kind=KIND,
            content=str(options["content"]),
            attempts=int(options["attempts"]),
            keep_samples=bool(options["keep_samples"]),
            part=part,
            measure=MeasureOptions(**options["measure"]),
        ),
    )
