"""Loading, unloading and reloading models (section 7). Runs on the loop; what blocks runs on loader threads."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from workbench.config import ConfigDocument, from_json, to_text
from workbench.engine.backend_set import BackendSet
from workbench.engine.composing import Composing
from workbench.engine.core import EngineCore
from workbench.engine.entry import ModelEntry, State, VersionSlot, lookup, state_reason
from workbench.engine.host import ModelHost, Submit
from workbench.engine.inplace import adopt, update_instances
from workbench.engine.instances import make_slots, tell_of_policies
from workbench.engine.model import ModelVersion
from workbench.engine.prepare import (
    Polled,
    changed_fields,
    complete_io,
    is_ensemble,
    make_context,
    overlay,
    poll_config,
    read_document,
)
from workbench.engine.readiness import model_ready, settled
from workbench.engine.sequences import make_version
from workbench.errors import ConfigError, InternalError, InvalidRequest, LoadFailed, NotFound, WorkbenchError
from workbench.repository.files import write_override_files
from workbench.repository.models import (
    DUPLICATE_REASON,
    ModelSource,
    check_name,
    find_model,
    list_models,
    read_model,
)


class Lifecycle:
    """The models of an engine and what happens to them."""

    def __init__(self, core: EngineCore, submit_nested: Submit) -> None:
        self.core = core
        self.entries: dict[str, ModelEntry] = {}
        self._found: dict[tuple[str, int], ModelVersion] = {}
        self._submit_nested = submit_nested
        self.backends = BackendSet(core.options, core.placement)
        self.retiring: set[ModelVersion] = set()
        self.composing = Composing(self)

    # ---- looking up

    def lookup(self, name: str, version: int) -> ModelVersion:
        """See ``entry.lookup``; what it found is known until a state changes."""
        model = self._found.get((name, version))
        if model is None:
            model = self._found[name, version] = lookup(self.entries, name, version)
        return model

    async def is_model_ready(self, name: str, version: int) -> bool:
        """Whether a model version is ready; see ``engine.readiness``."""
        return await settled(model_ready(self, name, version))

    def is_decoupled(self, name: str, version: int) -> bool:
        """Whether a model version that serves is decoupled."""
        try:
            return bool(self.lookup(name, version).decoupled)
        except WorkbenchError:
            return False

    def entry(self, name: str) -> ModelEntry:
        """The entry of a name, made when there is none."""
        entry = self.entries.get(name)
        if entry is None:
            entry = self.entries[name] = ModelEntry(name)
        return entry

    # ---- load

    async def load(
        self,
        name: str,
        *,
        config: str | None = None,
        files: Mapping[str, bytes] | None = None,
        tried: set[str] | None = None,
        explicit: bool = True,
        revive: bool = True,
    ) -> None:
        """Loads or reloads a model, an ensemble after its composing models; returns when it is done (7.9, 7.10).

        ``tried`` are composing models that need not be loaded again; ``explicit``: it is asked for by its own name;
        ``revive``: a version with an instance whose process was given up is loaded anew, though nothing has changed.

        Raises:
            InvalidRequest: the name or a parameter is wrong.
            InternalError: the model cannot be found or its configuration cannot be read.
            LoadFailed: a version failed; versions that served still do.
        """
        check_name(name)
        if files and config is None:
            why = "Load parameter 'config' must be specified for model file override"  # Triton: in its log only
            raise InternalError(f"failed to load '{name}', failed to poll from model repository", hint=why)
        await self.composing.prepare(name, config, set() if tried is None else tried)
        entry = self.entry(name)
        entry.explicit = entry.explicit or explicit
        async with entry.lock:
            self.entries.setdefault(name, entry)  # another load of this name may have failed and forgotten it
            before = set(entry.ready().values())
            await self.load_locked(entry, config, files, revive=revive)
        if set(entry.ready().values()) != before:
            await self.composing.refresh(name)

    async def load_locked(
        self,
        entry: ModelEntry,
        config: str | None = None,
        files: Mapping[str, bytes] | None = None,
        *,
        again: bool = False,
        revive: bool = True,
    ) -> None:
        """As ``load``; the caller holds the entry's lock. ``again``: also if nothing has changed."""
        name = entry.name
        try:
            polled, saved = await self._poll(entry, config, files)
        except WorkbenchError as error:
            if not isinstance(error, NotFound):
                entry.poll_error = error.message
            self._forget_if_empty(entry)
            why = f"{error.message} ({error.hint})" if error.hint else error.message
            self.core.events.append("log", name, f"failed to load '{name}': {why}", level="error", where=error.where)
            raise InternalError(
                f"failed to load '{name}', failed to poll from model repository", where=error.where, hint=why
            ) from error
        entry.poll_error, entry.versionless = "", False
        if config is None and not again and self._unmodified(entry, polled) and not (revive and entry.broken()):
            return
        if not again and self._only_instances(entry, polled):
            gpus = self.backends.gpus(polled.config.backend)
            configs = {
                number: overlay(model.config, entry.raw, polled.raw, gpus) for number, model in entry.ready().items()
            }
            await update_instances(self.core, entry, configs)
            adopt(self.core, entry, polled, configs)
            entry.source, entry.saved = polled.source, saved
            return
        await self.apply(entry, polled, saved)

    def _only_instances(self, entry: ModelEntry, polled: Polled) -> bool:
        """Whether nothing but ``instance_group`` differs: then Triton updates instances in place (7.6)."""
        return (
            entry.raw is not None
            and changed_fields(entry.raw, polled.raw) == ["instance_group"]
            and set(entry.ready()) == set(polled.versions)
            and len(self._unchanged_versions(entry, polled, {"instance_group"})) == len(polled.versions)
        )

    async def _poll(
        self, entry: ModelEntry, config: str | None, files: Mapping[str, bytes] | None
    ) -> tuple[Polled, bytes | None]:
        source, override_dir = await self.core.on_loader(self._read_source, entry, files)
        if config is not None:
            document = await self.core.on_loader(_override_document, config, str(source.config_path))
        elif (kept := self._kept_document(entry, source)) is not None:
            document = kept
        else:
            document = await self.core.on_loader(read_document, source)
            if entry.dirty and not entry.overridden and entry.document is not None:
                self.core.events.append(
                    "epoch", entry.name, f"config.pbtxt of '{entry.name}' changed on disk: unsaved edits are dropped"
                )
        overridden = config is not None or (entry.overridden and document is entry.document)
        polled = await self.core.on_loader(self.poll_document, source, document, overridden)
        if override_dir is not None or config is not None:
            entry.override_dir = override_dir
        for warning in source.warnings:
            self.core.events.append("log", entry.name, warning, level="warning")
        return polled, source.config_bytes

    def _read_source(
        self, entry: ModelEntry, files: Mapping[str, bytes] | None
    ) -> tuple[ModelSource, tempfile.TemporaryDirectory[str] | None]:
        if files:
            folder = tempfile.TemporaryDirectory(prefix="workbench-model-")
            directory = Path(folder.name) / entry.name
            directory.mkdir()
            write_override_files(directory, dict(files))
            return read_model(directory), folder
        if entry.override_dir is not None and entry.overridden:
            return read_model(Path(entry.override_dir.name) / entry.name), entry.override_dir
        directory = find_model(self.core.options.repositories, entry.name)
        return read_model(directory, self.core.options.config_name), None

    def reread(self, entry: ModelEntry) -> ModelSource:
        """The directory of a loaded model as it is now. Blocks."""
        assert entry.source is not None
        return read_model(entry.source.directory, self.core.options.config_name)

    def _kept_document(self, entry: ModelEntry, source: ModelSource) -> ConfigDocument | None:
        """The document in force stays as long as the file is what it was: unsaved edits and overrides stick."""
        if entry.document is None or entry.source is None or not (entry.ready() or entry.composing):
            return None
        before, now = entry.source.fingerprint, source.fingerprint
        if entry.source.directory != source.directory or source.config_bytes != entry.saved:
            return None
        if entry.overridden:
            return entry.document if before == now else None
        return entry.document

    def poll_document(self, source: ModelSource, document: ConfigDocument, overridden: bool = False) -> Polled:
        """Completes and checks a document for a model directory, without its backend. Blocks a little.

        Raises:
            WorkbenchError: it is refused.
        """
        return poll_config(source, document, self.core.options, self.backends.gpus, overridden=overridden)

    def _unmodified(self, entry: ModelEntry, polled: Polled) -> bool:
        if entry.source is None or entry.document is None or entry.document.data != polled.document.data:
            return False
        return (
            entry.source.fingerprint == polled.source.fingerprint
            and entry.source.directory == polled.source.directory
            and set(entry.ready()) == set(polled.versions)
        )

    async def apply(self, entry: ModelEntry, polled: Polled, saved: bytes | None) -> None:
        """Loads what a poll found beside what serves, then swaps; the caller holds the entry's lock.

        Raises:
            LoadFailed: a version failed; what served still does.
        """
        name, core = entry.name, self.core
        started = core.clock()
        if not polled.versions:
            text = f"at least one version must be available under the version policy of model '{name}'"
            entry.poll_error, entry.versionless = text, not entry.versions
            raise LoadFailed(f"load failed for model '{name}': {text}\n", where=str(polled.source.directory))
        for text in polled.warnings():
            core.events.append("log", name, text, level="warning")
        ensemble = is_ensemble(polled.config)
        if ensemble:
            try:
                self.composing.plan(entry, polled)
            except WorkbenchError:
                self._keep_unserved(entry, polled, saved)
                raise
        else:
            entry.composing, entry.problem = frozenset(), ""
        keep = set() if ensemble else self._unchanged_versions(entry, polled)
        wanted = [number for number in polled.versions if number not in keep]
        for number in wanted:
            slot = entry.versions.setdefault(number, VersionSlot())
            if slot.state != "READY":
                self._set_state(entry, number, "LOADING")
        results = await asyncio.gather(*(self._open(polled, number) for number in wanted), return_exceptions=True)
        failed = {
            number: result for number, result in zip(wanted, results, strict=True) if isinstance(result, BaseException)
        }
        loaded = {
            number: result for number, result in zip(wanted, results, strict=True) if isinstance(result, ModelVersion)
        }
        if failed:
            self._keep_unserved(entry, polled, saved)
            await self._undo(entry, loaded, failed)
        entry.epoch += 1
        entry.document, entry.raw, entry.saved = polled.document, polled.raw, saved
        entry.source, entry.overridden = polled.source, polled.overridden
        for number, model in loaded.items():
            model.epoch = entry.epoch
            before = entry.versions[number].model
            entry.versions[number].model = model
            self._set_state(entry, number, "READY")
            if before is not None:
                core.spawn(self._retire(before))
        for number in list(entry.ready()):
            if number not in polled.versions:
                self.release(entry, number)
        for number in keep:
            entry.versions[number].model.epoch = entry.epoch  # type: ignore[union-attr]
        entry.load_ns = core.clock() - started
        core.events.append("epoch", name, f"configuration {entry.epoch} of '{name}' is in force", epoch=entry.epoch)

    def _keep_unserved(self, entry: ModelEntry, polled: Polled, saved: bytes | None) -> None:
        """A load failed: if nothing serves, its configuration is kept all the same, to be seen and edited."""
        from_file = polled.document.data == (saved or b"")
        if not entry.ready() and (from_file or entry.document is None):
            entry.document, entry.raw, entry.saved = polled.document, polled.raw, saved
            entry.source, entry.overridden = polled.source, polled.overridden

    def _unchanged_versions(
        self, entry: ModelEntry, polled: Polled, may_differ: Collection[str] = ("version_policy",)
    ) -> set[int]:
        """Versions that a load need not touch: same files, same configuration but for the version policy (7.6)."""
        if entry.source is None or entry.raw is None or polled.overridden or entry.overridden:
            return set()
        if set(changed_fields(entry.raw, polled.raw)) - set(may_differ):
            return set()
        before, now = entry.source.fingerprint, polled.source.fingerprint
        if before.others != now.others or entry.source.directory != polled.source.directory:
            return set()
        ready = entry.ready().keys() - entry.broken()
        return {
            number for number in polled.versions if number in ready and before.version(number) == now.version(number)
        }

    async def _open(self, polled: Polled, number: int) -> ModelVersion:
        """Opens a version and its instances; nothing is left behind when it fails."""
        core, name = self.core, polled.source.name
        if is_ensemble(polled.config):
            return self.composing.open(self.entry(name), polled, number)
        host = ModelHost(core, name, self._submit_nested, self)
        backend = await core.on_loader(self.backends.find, polled.config, polled.source, number)
        gpus = self.backends.gpus(polled.config.backend)
        config = await core.on_loader(complete_io, polled, number, backend, host, core.options, gpus)
        loaded = await core.on_loader(backend.open, make_context(polled, number, config, host, core.options))
        model = await core.on_loader(make_version, core, polled, number, config, loaded)
        host.belongs_to(model)
        try:
            specs = core.placement.specs(config)
            tell_of_policies(model)
            model.next_index = len(specs)
            for slot in await make_slots(model, specs, polled.source.directory):
                model.add_slot(slot)
        except BaseException:
            await model.close()
            raise
        return model

    async def _undo(
        self, entry: ModelEntry, loaded: Mapping[int, ModelVersion], failed: Mapping[int, BaseException]
    ) -> None:
        """A version failed: gives up the others of this load, keeps what served (7.8)."""
        for number, model in loaded.items():
            await model.close()
            if entry.versions[number].state != "READY":
                self._set_state(entry, number, "UNAVAILABLE", "unloaded")
        text, hints = "", []
        for number, error in sorted(failed.items()):
            reason = state_reason(error)
            text += f"version {number} is at UNAVAILABLE state: {reason};"
            hints += [error.hint] if isinstance(error, WorkbenchError) and error.hint else []
            self.core.events.append(
                "log", entry.name, f"failed to load '{entry.name}' version {number}: {reason}", level="error"
            )
            if isinstance(error, WorkbenchError) and error.hint:
                self.core.events.append("log", entry.name, f"what to do for '{entry.name}': {error.hint}", level="info")
            if entry.versions[number].state != "READY":
                self._set_state(entry, number, "UNAVAILABLE", reason)
            if isinstance(error, asyncio.CancelledError):
                raise error
        where = entry.name if entry.source is None else str(entry.source.directory)
        raise LoadFailed(f"load failed for model '{entry.name}': {text}\n", where=where, hint="\n".join(hints))

    # ---- unload

    async def unload(self, name: str, *, unload_dependents: bool = False) -> None:
        """Starts the unloading of every version; an unknown model is no error (7.11)."""
        entry = self.entries.get(name)
        if entry is None:
            return
        await self.composing.release_dependents(name)
        async with entry.lock:
            composing, entry.composing = entry.composing, frozenset()
            entry.problem, entry.explicit = "", False
            for number in list(entry.ready()):
                self.release(entry, number)
            entry.source = None
            entry.document = entry.raw = None
            entry.overridden = False
            entry.override_dir = None
        if unload_dependents:
            await self.composing.unload_unused(composing)

    def release(self, entry: ModelEntry, number: int) -> None:
        """Takes a version out of service; it ends when its last request does."""
        model = entry.versions[number].model
        assert model is not None
        self._set_state(entry, number, "UNLOADING")
        self.core.spawn(self._unload(entry, number, model))

    async def _unload(self, entry: ModelEntry, number: int, model: ModelVersion) -> None:
        await self._retire(model)
        slot = entry.versions.get(number)
        if slot is not None and slot.model is model:
            slot.model = None
            self._set_state(entry, number, "UNAVAILABLE", "unloaded")

    async def _retire(self, model: ModelVersion) -> None:
        self.retiring.add(model)
        try:
            await model.retire()
        finally:
            self.retiring.discard(model)

    # ---- states

    def _set_state(self, entry: ModelEntry, number: int, state: State, reason: str = "") -> None:
        self.core.inline.withdraw()
        self._found.clear()
        slot = entry.versions[number]
        if (slot.state, slot.reason) == (state, reason):
            return
        slot.state, slot.reason = state, reason
        text = f"model '{entry.name}' version {number} is {state}" + (f": {reason}" if reason else "")
        level = "error" if state == "UNAVAILABLE" and reason != "unloaded" else "info"
        self.core.events.append("state", entry.name, text, level=level, version=number, state=state, reason=reason)

    def _forget_if_empty(self, entry: ModelEntry) -> None:
        if not (entry.versions or entry.poll_error or entry.problem) and entry.document is None:
            self.entries.pop(entry.name, None)

    def index(self, found: Mapping[str, Sequence[Path]], *, ready: bool = False) -> list[dict[str, str]]:
        """The repository index (7.13): one row for each known version; a model never loaded has only its name.

        ``found`` is what ``list_models`` gave.
        """
        names = set(found) | {name for name, entry in self.entries.items() if entry.override_dir is not None}
        rows: list[dict[str, str]] = []
        for name in sorted(names):
            entry = self.entries.get(name)
            if len(found.get(name, ())) > 1 and not (entry and entry.ready()):
                if not ready:
                    rows.append({"name": name, "state": "UNAVAILABLE", "reason": DUPLICATE_REASON})
                continue
            versions = sorted(entry.versions.items()) if entry is not None else []
            if not versions and not ready and not (entry is not None and entry.versionless):
                rows.append({"name": name})
            for number, slot in versions:
                if ready and slot.state != "READY":
                    continue
                row = {"name": name, "version": str(number), "state": slot.state}
                if reason := slot.reason or slot.trouble():
                    row["reason"] = reason
                rows.append(row)
        return rows

    # ---- start and stop

    def startup_names(self) -> list[str]:
        """The models to load at start.

        Raises:
            InvalidRequest: a wildcard beside other names, or a model in two repositories.
        """
        options = self.core.options
        names = options.load_models if options.control_mode == "explicit" else ("*",)
        if "*" in names and len(names) > 1:
            raise InvalidRequest("Wildcard model name '*' must be the ONLY startup model if specified at all.")
        found = list_models(options.repositories)
        for name, places in found.items():
            if len(places) > 1:
                self.core.events.append("log", name, f"model '{name}': {DUPLICATE_REASON}", level="error")
        if "*" in names:
            return [name for name, places in found.items() if len(places) == 1]
        return list(dict.fromkeys(names))

    def all_models(self) -> list[ModelVersion]:
        """Every version that exists, serving or draining."""
        serving = [slot.model for entry in self.entries.values() for slot in entry.versions.values() if slot.model]
        return list(dict.fromkeys([*serving, *self.retiring]))


def _override_document(config: str, path: str) -> ConfigDocument:
    try:
        message: Any = from_json(config)
    except ConfigError as error:
        raise InvalidRequest(f"Invalid config override: {error.message}") from error
    return ConfigDocument.parse(to_text(message).encode(), path)
