"""``ModelConfig`` of ``triton_python_backend_utils``: what ``auto_complete_config`` gets and gives back.

Texts: python_backend's triton_python_backend_utils (24.10).
"""

from __future__ import annotations

import json
from typing import Any


class ModelConfig:
    """A model configuration under completion."""

    def __init__(self, model_config: str) -> None:
        self._model_config: dict[str, Any] = json.loads(model_config)

    def as_dict(self) -> dict[str, Any]:
        """The configuration as Triton's JSON."""
        return self._model_config

    def set_max_batch_size(self, max_batch_size: int) -> None:
        """Sets ``max_batch_size``.

        Raises:
            ValueError: the file asks for more.
        """
        configured = self._model_config.get("max_batch_size", 0)
        if configured > max_batch_size:
            raise ValueError(
                f"configuration specified max_batch_size {configured}, but in auto-complete-config function for "
                f"model '{self._name}' specified max_batch_size {max_batch_size}"
            )
        self._model_config["max_batch_size"] = max_batch_size

    def set_dynamic_batching(self) -> None:
        """Turns dynamic batching on, unless the file has settings for it.

        Raises:
            ValueError: the file has another scheduler.
        """
        for choice in ("sequence_batching", "ensemble_scheduling"):
            if choice in self._model_config:
                raise ValueError(
                    f"Configuration specified scheduling_choice as '{choice}', but auto-complete-config function for "
                    f"model '{self._name}' tries to set scheduling_choice as 'dynamic_batching'"
                )
        self._model_config.setdefault("dynamic_batching", {})

    def set_model_transaction_policy(self, transaction_policy_dict: dict[str, Any]) -> None:
        """Sets ``decoupled``.

        Raises:
            ValueError: another property, or the file says otherwise.
        """
        for key in transaction_policy_dict:
            if key != "decoupled":
                raise ValueError(
                    "model transaction property in auto-complete-config function for model "
                    f"'{self._name}' contains property other than 'decoupled'."
                )
        if "decoupled" not in transaction_policy_dict:
            return
        decoupled = transaction_policy_dict["decoupled"]
        configured = self._model_config.get("model_transaction_policy")
        if configured is not None and bool(configured.get("decoupled", False)) != bool(decoupled):
            raise ValueError(
                f"trying to change decoupled property in auto-complete-config for model '{self._name}', which is "
                f"already set to '{bool(configured.get('decoupled', False))}'."
            )
        self._model_config["model_transaction_policy"] = {"decoupled": bool(decoupled)}

    def add_input(self, input: dict[str, Any]) -> None:
        """Adds an input, or checks it against the file's.

        Raises:
            ValueError: a property is missing or unknown, or differs from the file.
        """
        self._add("input", input, ("name", "data_type", "dims", "optional"))

    def add_output(self, output: dict[str, Any]) -> None:
        """Adds an output, or checks it against the file's.

        Raises:
            ValueError: a property is missing or unknown, or differs from the file.
        """
        self._add("output", output, ("name", "data_type", "dims"))

    @property
    def _name(self) -> str:
        return str(self._model_config["name"])

    def _add(self, kind: str, tensor: dict[str, Any], allowed: tuple[str, ...]) -> None:
        place = f"in auto-complete-config function for model '{self._name}'"
        for key in tensor:
            if key not in allowed:
                shown = ", ".join(f"'{name}'" for name in allowed[:-1]) + f" and '{allowed[-1]}'"
                which = f" '{tensor['name']}'" if "name" in tensor else ""
                raise ValueError(f"{kind}{which} {place} contains property other than {shown}.")
        if "name" not in tensor:
            raise ValueError(f"{kind} {place} is missing 'name' property.")
        for key in ("data_type", "dims"):
            if key not in tensor:
                raise ValueError(f"{kind} '{tensor['name']}' {place} is missing '{key}' property.")
        for current in self._model_config.setdefault(kind, []):
            if current["name"] == tensor["name"]:
                self._compare(kind, current, tensor)
                current.update(tensor)
                return
        self._model_config[kind].append(dict(tensor))

    def _compare(self, kind: str, current: dict[str, Any], tensor: dict[str, Any]) -> None:
        name = tensor["name"]
        if current["data_type"] != tensor["data_type"]:
            raise ValueError(
                f"unable to load model '{self._name}', configuration expects datatype {current['data_type']} for "
                f"{kind} '{name}', model provides {tensor['data_type']}"
            )
        have, want = [int(dim) for dim in current["dims"]], [int(dim) for dim in tensor["dims"]]
        if have != want:
            raise ValueError(
                f"model '{self._name}', tensor '{name}': the model expects dims {want} but the model configuration "
                f"specifies dims {have}"
            )
