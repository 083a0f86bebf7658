"""Any running Triton, which is configured by loads with a config override."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from workbench.client import ControlClient, TritonClient
from workbench.clock import monotonic_ns, sleep
from workbench.config import ConfigDocument, Edit, change_class, from_json, to_json, to_text
from workbench.errors import ConnectionFailed, NotReady, Unsupported, WorkbenchError
from workbench.records.holder import Holder
from workbench.session.client_server import ClientServer
from workbench.session.given import config_json
from workbench.session.hints import explained
from workbench.session.journal import Journals, server_here
from workbench.session.pipelines import composing_models
from workbench.session.results import ConfigureResult, ConfigView

_RELOADS = "a remote Triton takes edits as a load with config override: the model is reloaded"
CONFIG_AGE_S = 5.0
"""How old a remote Triton's configuration may be in its state."""

_AS_SAVED = "it is as its file has it"
_LOADED_ANEW = f"{_AS_SAVED}: it was unloaded and loaded again, as a plain load keeps an override"
_UNLOADING_S = 60.0
"""So long an unload may take: requests that run are finished."""


class TritonServer(ClientServer):
    """Any running Triton or KServe v2 server; nothing is installed there.

    ``configure`` is a load with a config override, where its control mode allows; it reloads the model.
    """

    kind = "remote"

    def __init__(self, client: TritonClient, *, url: str) -> None:
        super().__init__(client, url=url, name=url)
        self.journals = Journals(url, client)
        """What sweeps from here have written down of it."""
        self._originals: dict[str, dict[str, Any]] = self.journals.left_behind()
        self._overridden = set(self._originals)
        """Models that an override was loaded of from here."""
        self._controls: dict[str, ControlClient] = {}
        self._epochs: dict[str, int] = {}
        self._configs: dict[str, tuple[int, dict[str, Any]]] = {}
        self._metadata = client.server_metadata()

    @property
    def control_mode(self) -> str:
        """Unknown: Triton does not say."""
        return ""

    @property
    def release(self) -> str:
        """Name and version as the server says them."""
        return f"{self._metadata.get('name', '')} {self._metadata.get('version', '')}".strip()

    def state(self) -> dict[str, Any]:
        """Pieced together from configurations and statistics: no instances, no pending requests, no batches."""
        versions = []
        statistics = {(entry["name"], entry["version"]): entry for entry in self.statistics().get("model_stats", ())}
        for entry in self.repository_index():
            if entry.get("state") != "READY":
                continue
            config = self._recent_config(entry["name"])
            known = statistics.get((entry["name"], entry.get("version", "")), {})
            versions.append(
                {
                    "model": entry["name"],
                    "version": entry.get("version", ""),
                    "state": "READY",
                    "backend": config.get("backend") or config.get("platform", ""),
                    "max_batch_size": int(config.get("max_batch_size", 0)),
                    "batching": scheduling_choice(config),
                    "steps": composing_models(config),
                    "config_epoch": self._epochs.get(entry["name"], 0),
                    "dirty": entry["name"] in self._originals,
                    "statistics": known,
                    # Triton's statistics count failures, not their reasons.
                    "failures": {"OTHER": int(known.get("inference_stats", {}).get("fail", {}).get("count", 0))},
                }
            )
        return {"versions": versions, "release": self.release}

    def _recent_config(self, model: str) -> dict[str, Any]:
        """The configuration, read again every few seconds: a state is asked for often, by a panel that looks on."""
        now = monotonic_ns()
        read_at, config = self._configs.get(model, (0, {}))
        if not config or now - read_at > CONFIG_AGE_S * 1e9:
            config = self.model_config(model)
            self._configs[model] = (now, config)
        return config

    @explained
    def load(self, model: str, *, config: Mapping[str, Any] | str | None = None) -> None:
        """Loads or reloads a model."""
        try:
            self._client.load(model, config=config_json(config))
        finally:
            self._configs.pop(model, None)
        self._reloaded(model)

    @explained
    def config(self, model: str) -> ConfigView:
        """The loaded configuration; a remote server does not give its file."""
        effective = self.model_config(model)
        original = self._originals.get(model, effective)
        return ConfigView(
            model=model,
            text=to_text(from_json(effective)),
            saved_text=to_text(from_json(original)),
            effective=effective,
            epoch=self._epochs.get(model, 0),
            dirty=model in self._originals and original != effective,
        )

    def _configure(self, model: str, edits: Sequence[Edit], dry_run: bool) -> ConfigureResult:
        before = self.model_config(model)
        document = ConfigDocument.parse(
            to_text(from_json(before)).encode(), path=f"{self.url}/v2/models/{model}/config"
        )
        edited = _without_made_sizes(document, edits)
        nothing = change_class(document.message, edited.message).kind == "none"
        result = ConfigureResult(
            model=model,
            epoch=self._epochs.get(model, 0),
            change_class="none" if nothing else "reload",
            reasons=() if nothing else (_RELOADS,),
            triton="" if nothing else "this is what it does",
            diff=document.diff(edited),
            took_ms=0.0,
            dirty=model in self._originals or not nothing,
            config=before,
        )
        if dry_run or nothing:
            return result
        self._refuse_if_held(model)
        started = monotonic_ns()
        self._override(model, to_json(edited.message, defaults=False))
        self._originals.setdefault(model, before)
        after = self.model_config(model)
        took = (monotonic_ns() - started) / 1e6
        dirty = after != self._originals[model]
        return replace(result, epoch=self._epochs[model], took_ms=took, dirty=dirty, config=after)

    def _refuse_if_held(self, model: str) -> None:
        """A load goes through under a sweep, as clients of Triton may always load; an edit does not.

        Raises:
            NotReady: a sweep holds the model, at a server of the workbench on this machine.
        """
        control = self.control_here()
        for lease in control.leases() if control is not None else ():
            holder = Holder.from_json(lease["holder"])
            if lease["model"] == model and not holder.gone:
                raise NotReady(
                    f"'{model}' is being swept by {holder}: its configuration is put back at the end",
                    where=self.url,
                    hint="wait for it or stop it",
                )

    def _override(self, model: str, config: Mapping[str, Any]) -> None:
        self._overridden.add(model)
        try:
            self._client.load(model, config=json.dumps(config))
        except WorkbenchError as error:
            if "explicit model load / unload is not allowed" in error.message:
                raise Unsupported(
                    "this server does not take configuration changes",
                    where=self.url,
                    hint="start it with --model-control-mode=explicit",
                ) from error
            raise
        finally:
            self._configs.pop(model, None)
        self._reloaded(model)

    def _reloaded(self, model: str) -> None:
        self._configs.pop(model, None)
        self.journals.forget(model)
        self._epochs[model] = self._epochs.get(model, 0) + 1

    def control_here(self) -> ControlClient | None:
        """The control plane, where this is a server of the workbench on this machine that has one."""
        info = server_here(self.url)
        if info is None or not info["http"]:
            return None
        if info["token"] not in self._controls:  # it may be another server since, at the same port
            self._controls[info["token"]] = ControlClient(info["http"], info["token"])
        return self._controls[info["token"]]

    def close(self) -> None:
        """Closes the connections; the server goes on."""
        super().close()
        for control in self._controls.values():
            control.close()

    def put_back(self, model: str, config: Mapping[str, Any], *, always: bool = False) -> ConfigureResult:
        """Loads the model with a configuration that it had (``model_config`` gave it), unless it has it now.

        As an override, so that it serves meanwhile; ``revert`` takes that away, too. ``always`` loads it also where it
        has it now: a load that was not waited for (its sender was interrupted) may still be under way, and a server
        does one after the other.
        """
        started = monotonic_ns()
        before = after = self.model_config(model)
        if always or config != before:
            self._override(model, config)
            after = self.model_config(model)
        return self._went_back(model, before, after, _RELOADS, started)

    def _went_back(
        self, model: str, before: Mapping[str, Any], after: dict[str, Any], how: str, started: int
    ) -> ConfigureResult:
        if self._originals.get(model) == after:
            del self._originals[model]
        old, new = (ConfigDocument.parse(to_text(from_json(each)).encode()) for each in (before, after))
        diff = old.diff(new)
        return ConfigureResult(
            model=model,
            epoch=self._epochs.get(model, 0),
            change_class="reload" if diff else "none",
            reasons=(how,) if diff or how is not _RELOADS else (),
            triton="this is what it does" if diff else "",
            diff=diff,
            took_ms=(monotonic_ns() - started) / 1e6,
            dirty=model in self._originals,
            config=after,
        )

    @explained
    def revert(self, model: str) -> ConfigureResult:
        """Restores what was there before the model was first edited from here; ``reasons`` say what that was.

        If that was as its file has it, it is so again, with no override left: the model is unloaded and loaded (a plain
        load keeps an override), and is away for that long. Else it is loaded with the configuration that it had, as an
        override. Nothing where no override was loaded from here.
        """
        started = monotonic_ns()
        before = self.model_config(model)
        if model not in self._overridden:
            return self._went_back(model, before, before, _RELOADS, started)
        self._refuse_if_held(model)
        wanted = self._originals.get(model, before)
        control = self.control_here()
        problem, how = "", _AS_SAVED
        if control is not None:
            control.revert(model)
            self._reloaded(model)
        else:
            problem, how = self._loaded_anew(model), _LOADED_ANEW
        if problem or self.model_config(model) != wanted:
            why = f"its file could not be loaded: {problem}" if problem else "what was there is not what its file says"
            how = f"what was there is loaded as an override: {why}"
            self._override(model, wanted)
        else:
            self._overridden.discard(model)
        return self._went_back(model, before, self.model_config(model), how, started)

    def _loaded_anew(self, model: str) -> str:
        """Unloads and loads a model, and what went with it; gives why it could not be loaded, or nothing."""
        ready = self._ready()
        self._client.unload(model)
        until = monotonic_ns() + int(_UNLOADING_S * 1e9)
        while model in self._ready("READY", "UNLOADING") and monotonic_ns() < until:
            sleep(0.02)
        try:
            self._client.load(model)
            for name in sorted(ready - self._ready()):  # ensembles that it is a step of
                self._client.load(name)
        except ConnectionFailed:
            raise
        except WorkbenchError as error:
            return error.message
        finally:
            self._reloaded(model)
        return ""

    def _ready(self, *states: str) -> set[str]:
        """The names of the models in one of some states; of those that serve without any."""
        wanted = states or ("READY",)
        return {entry["name"] for entry in self.repository_index() if entry.get("state") in wanted}


def _without_made_sizes(document: ConfigDocument, edits: Sequence[Edit]) -> ConfigDocument:
    """The edited configuration without the ``preferred_batch_size`` that Triton makes of ``max_batch_size`` where none
    is given: of another ``max_batch_size`` it makes another one, and refuses one that is above it."""
    edited = document.edit(list(edits))
    most, sizes = document.message.max_batch_size, "dynamic_batching.preferred_batch_size"
    kept = edited.message.max_batch_size == most or any(
        edit.path == "dynamic_batching" or edit.path.startswith(sizes) for edit in edits
    )
    if kept or list(edited.message.dynamic_batching.preferred_batch_size) != [most]:
        return edited
    return edited.edit([Edit(sizes, "remove")])


def scheduling_choice(config: Mapping[str, Any]) -> str:
    """The scheduler of a configuration in a word: ``dynamic``, ``sequence``, ``ensemble`` or empty."""
    for key, word in (
        ("dynamic_batching", "dynamic"),
        ("sequence_batching", "sequence"),
        ("ensemble_scheduling", "ensemble"),
    ):
        if config.get(key) is not None:
            return word
    return ""
