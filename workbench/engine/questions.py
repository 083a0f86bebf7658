"""What can be asked of an engine's models. Called on the loop, so that every answer is of one moment."""

from __future__ import annotations

from typing import Any

from workbench.engine.lifecycle import Lifecycle
from workbench.engine.options import ConfigState
from workbench.engine.validation import config_type
from workbench.errors import InvalidRequest
from workbench.protocol import datatypes


def model_config(lifecycle: Lifecycle, name: str, version: int) -> Any:
    """A copy of the normalised ``ModelConfig`` message in force.

    Raises:
        NotFound, NotReady: texts of 7.15.
    """
    config = lifecycle.lookup(name, version).config
    out = type(config)()
    out.CopyFrom(config)
    return out


def model_metadata(lifecycle: Lifecycle, name: str, version: int) -> dict[str, Any]:
    """Name, versions, platform, inputs and outputs (15.4).

    Raises:
        NotFound, NotReady: texts of 7.15.
    """
    model = lifecycle.lookup(name, version)
    ready = lifecycle.entries[name].ready()
    versions = [str(model.version)] if version != -1 else [str(number) for number in sorted(ready)]
    config = model.config
    return {
        "name": name,
        "versions": versions,
        "platform": config.platform or config.backend,
        "inputs": [_tensor_metadata(item, config.max_batch_size) for item in config.input],
        "outputs": [_tensor_metadata(item, config.max_batch_size) for item in config.output],
    }


def _tensor_metadata(item: Any, max_batch_size: int) -> dict[str, Any]:
    row = datatypes.BY_CONFIG.get(config_type(item))
    shape = [-1, *item.dims] if max_batch_size >= 1 else list(item.dims)
    return {"name": item.name, "datatype": row.wire if row else "", "shape": shape}


def config_state(lifecycle: Lifecycle, name: str) -> ConfigState:
    """A model's configuration: applied, saved, normalised.

    Raises:
        NotFound, NotReady: it is not known, or has no configuration.
    """
    entry = lifecycle.entries.get(name)
    if entry is None:
        lifecycle.lookup(name, -1)
    assert entry is not None
    return entry.state()


def statistics(lifecycle: Lifecycle, name: str, version: int) -> dict[str, Any]:
    """Triton's statistics of the versions that serve (11.8).

    Raises:
        InvalidRequest: the model or version is not available (Triton's texts).
    """
    entries = lifecycle.entries
    if name and (name not in entries or not entries[name].ready()):
        raise InvalidRequest(f"requested model '{name}' is not available")
    if name and version != -1 and version not in entries[name].ready():
        raise InvalidRequest(f"requested model version is not available for model '{name}'")
    rows = [
        model.statistics.to_json(each, number)
        for each in ([name] if name else sorted(entries))
        for number, model in sorted(entries[each].ready().items())
        if version in (-1, number)
    ]
    return {"model_stats": rows}
