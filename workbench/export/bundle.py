"""A tuned repository that real Triton loads unchanged, with the proof of where it came from.

Layout::

    DIR/model_repository/MODEL/config.pbtxt        exactly the configuration that was tuned
    DIR/model_repository/MODEL/VERSION/...         the files of the versions
    DIR/provenance.json                            hashes, edits against the source, what was measured, where

The bundle is written beside its place and moved there whole, so that a broken export leaves nothing half-made.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from workbench.clock import utc_now_iso
from workbench.config import ConfigDocument, edits_between
from workbench.errors import AlreadyExists, InvalidRequest, NotFound
from workbench.repository.files import CACHES, sha256_of

PROVENANCE_SCHEMA = 1


@dataclass(frozen=True, slots=True)
class ModelToExport:
    """A model directory, the configuration to write, and what was measured with it.

    ``config`` is the text of config.pbtxt; ``measured`` goes into the provenance as it is (figures, run ids).
    """

    directory: Path
    config: bytes
    measured: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ExportedModel:
    """One model of the bundle: its edits against the source, and its files with SHA-256."""

    name: str
    edits: tuple[Mapping[str, Any], ...]
    files: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class ExportResult:
    """Where the bundle is, and what is in it."""

    directory: Path
    models: tuple[ExportedModel, ...]

    @property
    def repository(self) -> Path:
        """What to give to ``tritonserver --model-repository``."""
        return self.directory / "model_repository"

    @property
    def provenance(self) -> Path:
        """The provenance file."""
        return self.directory / "provenance.json"

    def __repr__(self) -> str:
        lines = [f"exported to {self.directory}"]
        for model in self.models:
            changes = ", ".join(f"{edit['path']}" for edit in model.edits)
            files = "1 file" if len(model.files) == 1 else f"{len(model.files)} files"
            lines.append(f"  {model.name}: {files}; {f'changed: {changes}' if changes else 'as config.pbtxt has it'}")
        lines.append(f"  serve it: tritonserver --model-repository={self.repository}")
        return "\n".join(lines)


def export_repository(
    models: Sequence[ModelToExport],
    to: Path,
    *,
    provenance: Mapping[str, Any] | None = None,
    overwrite: bool = False,
) -> ExportResult:
    """Writes the bundle.

    Args:
        models: what goes in.
        to: the directory to make; its parent must exist or can be made.
        provenance: more for provenance.json: environment, runs, the goal.
        overwrite: replace a bundle that is there. Only a directory that an export made is ever replaced.

    Raises:
        InvalidRequest: no model; a configuration that is not valid (ConfigError); two models of one name.
        NotFound: a model directory that is not there.
        AlreadyExists: ``to`` exists and is not empty.
    """
    if not models:
        raise InvalidRequest("nothing to export", hint="load a model, or name a repository that holds one")
    names = [model.directory.name for model in models]
    if len(set(names)) != len(names):
        raise InvalidRequest(
            f"two models have the same name: {', '.join(sorted({n for n in names if names.count(n) > 1}))}"
        )
    to = to.expanduser().resolve()
    _check_place(to, overwrite)
    to.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{to.name}-", dir=to.parent) as scratch:
        made = Path(scratch) / "bundle"
        made.mkdir()
        exported = [_write_model(model, made / "model_repository" / model.directory.name) for model in models]
        document = _provenance(models, exported, provenance or {})
        (made / "provenance.json").write_text(json.dumps(document, indent=2, sort_keys=False, default=str) + "\n")
        if to.exists():
            shutil.rmtree(to)
        made.rename(to)
    return ExportResult(to, tuple(exported))


def _check_place(to: Path, overwrite: bool) -> None:
    if not to.exists():
        return
    if not to.is_dir():
        raise AlreadyExists(f"{to} is a file", hint="give a directory")
    if not any(to.iterdir()):
        return
    if overwrite and (to / "provenance.json").is_file():
        return
    hint = "give another directory" if overwrite else "give another directory, or overwrite=True (--force)"
    raise AlreadyExists(f"{to} exists and is not an empty directory", hint=hint)


def _write_model(model: ModelToExport, to: Path) -> ExportedModel:
    source = model.directory
    if not source.is_dir():
        raise NotFound(f"no model directory at {source}", where=str(source))
    target = ConfigDocument.parse(model.config, path=str(source / "config.pbtxt"))
    shutil.copytree(source, to, ignore=_ignore, symlinks=False)
    written = to / "config.pbtxt"
    original = written.read_bytes() if written.exists() else b""
    written.write_bytes(model.config)
    edits = edits_between(ConfigDocument.parse(original, path=str(written)).message, target.message)
    files = {path.relative_to(to).as_posix(): sha256_of(path) for path in sorted(to.rglob("*")) if path.is_file()}
    return ExportedModel(source.name, tuple(edit.to_json() for edit in edits), files)


def _ignore(directory: str, names: list[str]) -> set[str]:
    return {name for name in names if name in CACHES or name.endswith((".pyc", ".tmp"))}


def _provenance(
    models: Sequence[ModelToExport], exported: Sequence[ExportedModel], more: Mapping[str, Any]
) -> dict[str, Any]:
    from workbench import __version__

    return {
        "schema": PROVENANCE_SCHEMA,
        "made_by": f"serving-workbench {__version__}",
        "made_at": utc_now_iso(),
        **more,
        "models": {
            result.name: {
                "config_sha256": hashlib.sha256(model.config).hexdigest(),
                "edits": list(result.edits),
                "measured": dict(model.measured),
                "files": dict(result.files),
            }
            for model, result in zip(models, exported, strict=True)
        },
    }
