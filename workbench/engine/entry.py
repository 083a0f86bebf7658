"""What the engine knows of one model name: its versions with their states, its configuration, where it came from."""

from __future__ import annotations

import asyncio
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from workbench.config import ConfigDocument, to_json
from workbench.engine.model import ModelVersion
from workbench.engine.options import ConfigState
from workbench.errors import NotFound, NotReady, WorkbenchError
from workbench.repository.models import ModelSource

State = Literal["UNKNOWN", "LOADING", "READY", "UNLOADING", "UNAVAILABLE"]


@dataclass(slots=True)
class VersionSlot:
    """One version: its state, why it is in it, and the object that serves while READY (or still drains)."""

    state: State = "UNKNOWN"
    reason: str = ""
    model: ModelVersion | None = None

    def trouble(self) -> str:
        """What is wrong with the instances of a version that serves; "" where nothing is."""
        slots = [] if self.model is None else [*self.model.slots, *self.model.passive]
        ill = [slot.why for slot in slots if not slot.healthy]
        return f"{len(ill)} of {len(slots)} instances not healthy: {ill[0]}" if ill else ""


@dataclass(slots=True)
class ModelEntry:
    """One model name. ``lock`` orders what is done to it; ``document`` is the configuration in force.

    ``saved`` are the bytes of the file when it was last read or written. ``override_dir`` holds the files of a load
    with ``file:`` parameters. ``poll_error`` says why the directory could not be read, when it could not;
    ``versionless`` that it could, but no version is left by its policy (Triton's index then has no row of it).
    ``composing`` are the models that an ensemble is made of, ``problem`` is why it cannot be loaded with them;
    ``explicit``: it was asked for by its own name, not only by an ensemble.
    """

    name: str
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    versions: dict[int, VersionSlot] = field(default_factory=dict)
    document: ConfigDocument | None = None
    raw: Any = None
    saved: bytes | None = None
    epoch: int = 0
    source: ModelSource | None = None
    overridden: bool = False
    override_dir: tempfile.TemporaryDirectory[str] | None = None
    poll_error: str = ""
    versionless: bool = False
    composing: frozenset[str] = frozenset()
    problem: str = ""
    explicit: bool = False
    load_ns: int = 0

    def ready(self) -> dict[int, ModelVersion]:
        """The versions that serve."""
        return {
            number: slot.model
            for number, slot in self.versions.items()
            if slot.state == "READY" and slot.model is not None
        }

    def broken(self) -> set[int]:
        """The versions that serve with an instance whose process has been given up."""
        return {
            number
            for number, model in self.ready().items()
            if any(slot.gone for slot in (*model.slots, *model.passive))
        }

    @property
    def generation(self) -> int:
        """When its newest version was made, as a number that grows over all models; 0 where there is none."""
        return max((slot.model.generation for slot in self.versions.values() if slot.model is not None), default=0)

    def latest(self) -> ModelVersion | None:
        """The highest version that serves."""
        ready = self.ready()
        return ready[max(ready)] if ready else None

    @property
    def dirty(self) -> bool:
        """Whether the configuration in force is not what the file says."""
        return self.document is not None and self.document.data != (self.saved or b"")

    def state(self) -> ConfigState:
        """The configuration for showing.

        Raises:
            NotReady: the model has never been loaded.
        """
        if self.document is None:
            raise NotReady(
                f"model '{self.name}' has no configuration yet", hint=self.poll_error or self.problem or "load it first"
            )
        model = self.latest()
        effective = to_json(model.config) if model is not None else to_json(self.document.message)
        return ConfigState(self.document, self.saved, self.epoch, self.dirty, effective)

    @property
    def config_path(self) -> Path | None:
        """Where the configuration is, or would be, saved."""
        return None if self.source is None else self.source.config_path


def lookup(entries: dict[str, ModelEntry], name: str, version: int) -> ModelVersion:
    """The model version that a request is for; -1 is the highest that serves.

    Raises:
        NotFound, NotReady: with the texts of 7.15.
    """
    entry = entries.get(name)
    if entry is None or not (entry.versions or entry.versionless):
        raise NotFound(f"Request for unknown model: '{name}' is not found")
    if version == -1:
        model = entry.latest()
        if model is None:
            raise NotFound(f"Request for unknown model: '{name}' has no available versions")
        return model
    slot = entry.versions.get(version)
    if slot is None:
        raise NotFound(f"Request for unknown model: '{name}' version {version} is not found")
    if slot.state != "READY" or slot.model is None:
        raise NotReady(f"Request for unknown model: '{name}' version {version} is not at ready state")
    return slot.model


def state_reason(error: BaseException) -> str:
    """An error as the reason of a state in the repository index."""
    return error.status_text if isinstance(error, WorkbenchError) else f"Internal: {type(error).__name__}: {error}"
