"""What a change of a configuration costs: nothing, a live change, other instances, or a reload."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from workbench.config.difference import edits_between
from workbench.config.path import Edit, parse_path
from workbench.config.schema import Message

ChangeKind = Literal["none", "live", "instances", "reload"]

_ORDER: tuple[ChangeKind, ...] = ("none", "live", "instances", "reload")
_LIVE_TOP = ("metric_tags", "model_metrics")


@dataclass(frozen=True, slots=True)
class ConfigChange:
    """The class of a change.

    ``reasons`` has one line for each changed field; ``triton`` says in words what a real Triton would do with the same
    change; ``paths`` are the changed paths.
    """

    kind: ChangeKind
    reasons: tuple[str, ...]
    triton: str
    paths: tuple[str, ...]

    def __str__(self) -> str:
        return self.kind


def change_class(old: Message, new: Message, *, backend_reads_max_batch_size: bool = True) -> ConfigChange:
    """Which class a change from ``old`` to ``new`` belongs to; the highest of its fields decides.

    ``live``: in place, no request lost. ``instances``: instances are added or drained in place. ``reload``: a new model
    is loaded beside the old, then they are swapped.

    Args:
        old: the configuration in force.
        new: the one wanted; both as written or both normalised.
        backend_reads_max_batch_size: false where the backend declares that it does not read ``max_batch_size``, which
            is then a live change as long as it stays above zero.
    """
    edits = edits_between(old, new)
    kinds: list[ChangeKind] = []
    reasons: list[str] = []
    for edit in edits:
        kind, why = _class_of(edit, old, new, backend_reads_max_batch_size)
        kinds.append(kind)
        reasons.append(f"{edit.path}: {kind} ({why})")
    highest: ChangeKind = max(kinds, key=_ORDER.index) if kinds else "none"
    paths = tuple(edit.path for edit in edits)
    return ConfigChange(highest, tuple(dict.fromkeys(reasons)), _what_triton_does(paths, old, new), paths)


def _class_of(edit: Edit, old: Message, new: Message, reads_max: bool) -> tuple[ChangeKind, str]:
    names = [step.field.name for step in parse_path(edit.path)]
    top = names[0]
    if old.HasField("ensemble_scheduling") or new.HasField("ensemble_scheduling"):
        return "reload", "an ensemble is always loaded anew"
    if top == "max_batch_size":
        if not reads_max and old.max_batch_size > 0 and new.max_batch_size > 0:
            return "live", "this backend does not read it: only the scheduler does"
        return "reload", "the backend reads it when it loads the model"
    if top == "dynamic_batching":
        if old.HasField("sequence_batching") or new.HasField("sequence_batching"):
            return "reload", "another scheduler takes over"
        return "live", "the scheduler takes it between two batches"
    if top == "instance_group":
        return _instances(names)
    if top == "response_cache":
        return "live", "the cache is asked before the queue"
    if top in _LIVE_TOP:
        return "live", "only what is reported changes"
    if top == "version_policy":
        return "instances", "versions are added or drained in place"
    return "reload", "the model reads it when it is loaded"


def _instances(names: list[str]) -> tuple[ChangeKind, str]:
    if len(names) > 1 and names[1] == "name":
        return "instances", "the instances get new names"
    return "instances", "instances are added or drained in place"


def _what_triton_does(paths: tuple[str, ...], old: Message, new: Message) -> str:
    """Core model_repository_manager.cc and model_lifecycle.cc: ``reference`` rule 7.6."""
    if not paths:
        return "Triton would do nothing: the configurations are equal."
    if old.HasField("ensemble_scheduling") or new.HasField("ensemble_scheduling"):
        return "Triton would reload the ensemble: a change of an ensemble is always a full reload."
    other = [path for path in paths if parse_path(path)[0].field.name not in ("instance_group", "version_policy")]
    if not other:
        return (
            "Triton would update the instances in place when it is told to load the model again: only instance_group "
            "and version_policy differ."
        )
    shown = ", ".join(other[:3]) + (", ..." if len(other) > 3 else "")
    return (
        f"Triton would load the model again in full because of {shown}: the old version serves until the new one is "
        "ready, statistics start from zero."
    )
