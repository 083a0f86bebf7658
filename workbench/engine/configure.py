"""Live apply: edits of the configuration in memory, in place where that is possible; saving and reverting.

Validation comes first: a refused edit changes nothing. Nothing here touches the disk but ``save``.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from workbench.config import ConfigChange, ConfigDocument, Edit, change_class, to_json
from workbench.engine.core import EngineCore
from workbench.engine.entry import ModelEntry
from workbench.engine.inplace import adopt, update_instances
from workbench.engine.lifecycle import Lifecycle
from workbench.engine.model import ModelVersion
from workbench.engine.options import ConfigureResult, SaveResult
from workbench.engine.prepare import config_json, is_ensemble, overlay
from workbench.errors import ConfigError, NotFound, NotReady


class Configurator:
    """Changes configurations of loaded models; on the loop."""

    def __init__(self, core: EngineCore, lifecycle: Lifecycle) -> None:
        self._core = core
        self._lifecycle = lifecycle

    def _entry(self, name: str) -> ModelEntry:
        entry = self._lifecycle.entries.get(name)
        if entry is None:
            raise NotFound(f"Request for unknown model: '{name}' is not found")
        if entry.document is None:
            raise NotReady(
                f"Request for unknown model: '{name}' has no available versions", hint="load the model first"
            )
        return entry

    async def configure(self, name: str, edits: Sequence[Edit], *, dry_run: bool = False) -> ConfigureResult:
        """Applies edits one after the other, as one change.

        Raises:
            ConfigError: an edit or its result is refused.
            LoadFailed: a reload was needed and failed.
        """
        started = self._core.clock()
        entry = self._entry(name)
        if not dry_run:
            await self._load_steps(entry, edits)
        async with entry.lock:
            document = self._entry(name).document
            assert document is not None
            result = await self._change(entry, document.edit(edits), started, dry_run=dry_run)
        await self._tell_ensembles(result, dry_run=dry_run)
        return result

    def document(self, name: str) -> ConfigDocument:
        """The configuration in force.

        Raises:
            NotFound, NotReady: there is no such model, or it has none.
        """
        document = self._entry(name).document
        assert document is not None
        return document

    async def put_back(self, name: str, document: ConfigDocument) -> ConfigureResult:
        """Brings a whole configuration that was in force before into force again, to the byte.

        Raises:
            ConfigError: the repository's files do not fit it any more.
            LoadFailed: a reload was needed and failed.
        """
        started = self._core.clock()
        entry = self._entry(name)
        async with entry.lock:
            result = await self._change(entry, document, started, dry_run=False)
        await self._tell_ensembles(result)
        return result

    async def _load_steps(self, entry: ModelEntry, edits: Sequence[Edit]) -> None:
        """Loads what an edited ensemble is made of and nobody has loaded yet, as a load of it would."""
        assert entry.document is not None
        message = entry.document.edit(edits).message
        if is_ensemble(message):
            there = {name for name, other in self._lifecycle.entries.items() if other.ready()}
            await self._lifecycle.composing.prepare(entry.name, config_json(message), there)

    async def _tell_ensembles(self, result: ConfigureResult, *, dry_run: bool = False) -> None:
        """A composing model that has changed may not fit its ensembles any more, or fit them now."""
        sizes = any(reason.startswith("max_batch_size:") for reason in result.reasons)
        if (result.change_class == "reload" or sizes) and not dry_run:
            await self._lifecycle.composing.refresh(result.model)

    async def revert(self, name: str) -> ConfigureResult:
        """Goes back to what the file says now.

        Raises:
            ConfigError: the file cannot be read as a configuration.
        """
        started = self._core.clock()
        entry = self._entry(name)
        async with entry.lock:
            if entry.overridden:
                result = await self._leave_override(entry, started)
            else:
                path = entry.config_path
                assert path is not None
                data = await self._core.on_loader(_read, path)
                if data is None and entry.saved is not None:
                    raise ConfigError(
                        f"there is no {path.name} to go back to any more",
                        where=str(path),
                        hint="what is applied still serves; save() writes it",
                    )
                document = ConfigDocument.parse(data or b"", str(path))
                entry.saved = data
                result = await self._change(entry, document, started, dry_run=False)
        await self._tell_ensembles(result)
        return result

    async def _leave_override(self, entry: ModelEntry, started: int) -> ConfigureResult:
        """Back from a load with override to the directory: a reload."""
        before = entry.source
        entry.source, entry.overridden = None, False
        try:
            await self._lifecycle.load_locked(entry)
        except BaseException:
            entry.source, entry.overridden = before, True
            raise
        state = entry.state()
        return ConfigureResult(
            model=entry.name,
            epoch=entry.epoch,
            change_class="reload",
            reasons=("the load with a config override is taken back",),
            triton="Triton loads the model again when its files are newer than the override",
            diff="",
            took_ms=(self._core.clock() - started) / 1e6,
            dirty=state.dirty,
            config=state.effective,
        )

    async def _change(
        self, entry: ModelEntry, document: ConfigDocument, started: int, *, dry_run: bool
    ) -> ConfigureResult:
        """The caller holds the entry's lock. The lock is not what makes a change atomic: everything live happens in one
        go on the loop."""
        assert entry.source is not None
        assert entry.document is not None
        polled = self._lifecycle.poll_document(entry.source, document, entry.overridden)
        models = entry.ready()
        gpus = self._lifecycle.backends.gpus(polled.config.backend)
        configs = {number: overlay(model.config, entry.raw, polled.raw, gpus) for number, model in models.items()}
        change = self._classify(models, configs)
        reload = change.kind == "reload" or not models or set(polled.versions) != set(models)
        if not dry_run:
            if reload:
                # versions that do not change stay as they are (a change of the version policy alone)
                await self._lifecycle.apply(entry, polled, entry.saved)
            else:
                if change.kind == "instances":
                    await update_instances(self._core, entry, configs)
                if document.data != entry.document.data:
                    adopt(self._core, entry, polled, configs)
        latest = entry.latest()
        shown = configs[max(configs)] if configs else polled.config
        if latest is not None and not dry_run:
            shown = latest.config
        saved = ConfigDocument.parse(entry.saved or b"", document.path)
        return ConfigureResult(
            model=entry.name,
            epoch=entry.epoch,
            change_class=change.kind,
            reasons=(*change.reasons, *polled.notes()),
            triton=change.triton,
            diff=saved.diff(document),
            took_ms=(self._core.clock() - started) / 1e6,
            dirty=saved.data != document.data,
            config=to_json(shown),
        )

    def _classify(self, models: Mapping[int, ModelVersion], configs: Mapping[int, Any]) -> ConfigChange:
        """What the change needs; the version that needs most decides."""
        if not models:
            reason = "no version serves: the model is loaded with this configuration"
            return ConfigChange("reload", (reason,), "Triton loads the model", ())
        order = ("none", "live", "instances", "reload")
        changes = [
            change_class(model.config, configs[number], backend_reads_max_batch_size=model.loaded.reads_max_batch_size)
            for number, model in models.items()
        ]
        return max(changes, key=lambda change: order.index(change.kind))

    async def save(self, name: str) -> SaveResult:
        """Writes the configuration in force to the file: all of it or nothing (a temporary file, then a rename).

        Raises:
            NotReady: the model has no configuration.
            ConfigError: the file cannot be written, or is not any more what was read: somebody's edit would be lost.
        """
        entry = self._entry(name)
        async with entry.lock:
            path, document = entry.config_path, entry.document
            assert path is not None
            assert document is not None
            before = ConfigDocument.parse(entry.saved or b"", str(path))
            try:
                await self._core.on_loader(_check_unchanged, path, entry.saved, document.data)
                await self._core.on_loader(write_atomically, path, document.data)
            except OSError as error:
                raise ConfigError(
                    f"cannot write {path}: {error.strerror or error}", where=str(path), hint="is it writable?"
                ) from error
            entry.saved = document.data
            if not entry.overridden:
                entry.source = await self._core.on_loader(self._lifecycle.reread, entry)
            self._core.events.append("save", name, f"configuration of '{name}' written to {path}", path=str(path))
            return SaveResult(name, str(path), before.diff(document))


def _check_unchanged(path: Path, read: bytes | None, to_write: bytes) -> None:
    """A file that is gone, or is already what is to be written, takes no harm."""
    now = _read(path)
    if now not in (None, read, to_write):
        raise ConfigError(
            f"{path.name} has changed on disk since it was read, and is not overwritten",
            where=str(path),
            hint="revert or load the model to take the file as it is, then apply the edits again",
        )


def write_atomically(path: Path, data: bytes) -> None:
    """Replaces a file's contents in one step, keeping its mode; whoever reads sees the old or the new, never a part."""
    mode = path.stat().st_mode & 0o7777 if path.exists() else 0o644
    target = path.resolve()
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=target.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        Path(name).chmod(mode)
        Path(name).replace(target)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _read(path: Path) -> bytes | None:
    return path.read_bytes() if path.is_file() else None
