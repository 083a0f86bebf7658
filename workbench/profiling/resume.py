"""What makes a measured point the same as another one, and the points of a run that is gone on with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import orjson

from workbench.profiling.device import device_kind
from workbench.profiling.load import Load
from workbench.profiling.point import Point
from workbench.profiling.requests import Inputs, identity
from workbench.profiling.target import Target, directory_of, pid_of
from workbench.profiling.trace_files import trace_of
from workbench.records.runs import Run, point_key
from workbench.repository.files import content_hash, example_inputs_hash

Configs = Mapping[str, Mapping[str, Any]]


class PointKeys:
    """The keys of one sweep's points: hashes of model content, configuration as read back, inputs, load, seed, device.

    Of an ensemble, content and configuration of every model that it is made of belong to it.

    Args:
        target: the server.
        model: its model.
        inputs: what is sent.
        content: what the model's files are, in the caller's words, where they are not on this machine.
        sent_from: where the load comes from, if not from this machine.
    """

    def __init__(self, target: Target, model: str, inputs: Inputs, content: str = "", *, sent_from: str = "") -> None:
        self._target = target
        self._model = model
        self._inputs = inputs
        self._content = content
        self._sent_from = {"sent_from": sent_from} if sent_from else {}
        self._about: dict[str, Any] | None = None
        self._composing: list[str] | None = None

    def comparable(self) -> bool:
        """Whether it is known what the model's files are: otherwise they may have changed since."""
        return all(self._content_of(model) for model in (self._model, *self._steps()))

    def key(self, load: Load, config: Mapping[str, Any], swept: Configs) -> str:
        """The key of a point.

        Args:
            load: as it was asked for.
            config: the model's configuration as read back.
            swept: those of the ensemble's steps that the sweep sets something of.
        """
        if self._about is None:
            self._about = {
                "model": self._model,
                "content": {model: self._content_of(model) for model in (self._model, *self._steps())},
                "inputs": self._sent(),
                "device": device_kind(),
                # what is measured elsewhere was measured by another machine than this one
                "server": "" if pid_of(self._target) is not None else self._target.url,
                "protocol": self._target.protocol,
                **self._sent_from,
            }
        steps = {model: swept.get(model) or self._target.model_config(model) for model in self._steps()}
        streaming = load.streaming or bool((config.get("model_transaction_policy") or {}).get("decoupled"))
        sent = replace(load, streaming=streaming)  # a decoupled model is always measured so
        return point_key(config=config, steps=steps, load=sent.to_json(), **self._about, **self._elsewhere(load))

    def _elsewhere(self, load: Load) -> dict[str, Any]:
        """Files of inputs that a load's classes name, and the other models that they go to."""
        found: dict[str, Any] = {}
        files = [part.inputs for part in load.parts if part.inputs]
        if files:
            found["files"] = {path: identity(path) for path in files}
        models = [part.model for part in load.parts]
        if load.trace and not load.model:
            models = [kind.model for kind in trace_of(load).classes]
        others = sorted(set(models) - {"", self._model})
        if others:
            found["others"] = {each: [self._content_of(each), self._target.model_config(each)] for each in others}
        return found

    def _steps(self) -> list[str]:
        if self._composing is None:
            tell = getattr(self._target, "composing", None)
            self._composing = list(tell(self._model)) if tell is not None else []
        return self._composing

    def _content_of(self, model: str) -> str:
        directory = directory_of(self._target, model)
        if directory is not None:
            return content_hash(directory)
        return f"said to be {self._content}" if self._content else ""

    def _sent(self) -> Any:
        if self._inputs is not None:
            return identity(self._inputs)
        directory = directory_of(self._target, self._model)
        return example_inputs_hash(directory) if directory is not None else ""


class Resumed:
    """The points of a run that is gone on with; empty for a new run.

    Args:
        run: the run.
        only_valid: points that are not valid are to be measured again.
    """

    def __init__(self, run: Run | None = None, *, only_valid: bool = False) -> None:
        self._known: dict[str, Point] = {}
        self._rows: dict[bytes, list[int]] = {}
        for stored in run.points() if run is not None else ():
            point = Point.from_json(stored)
            self._rows.setdefault(place_of(point.settings, point.load), []).append(int(stored["id"]))
            if stored["key"] and (point.valid or not only_valid):
                self._known[stored["key"]] = point

    @property
    def keys(self) -> frozenset[str]:
        """The keys of the points that are taken as they are."""
        return frozenset(self._known)

    def find(self, key: str) -> Point | None:
        """The point of that key."""
        return self._known.get(key)

    def outdated(self, point: Point) -> list[int]:
        """The rows of the run that a newly measured point takes the place of: failed, cut short, of other content."""
        return self._rows.pop(place_of(point.settings, point.load), [])


def place_of(settings: Mapping[str, Any], load: Load) -> bytes:
    """Which cell of the grid a point is: equal for measurements of the same settings under the same load."""
    plain = {"settings": dict(settings), "load": replace(load, streaming=False).to_json()}
    return orjson.dumps(plain, option=orjson.OPT_SORT_KEYS | orjson.OPT_NON_STR_KEYS, default=str)
