"""The backends that an engine can find, and the devices that their models may be placed on."""

from __future__ import annotations

from typing import Any

from workbench.backends.base import Backend
from workbench.backends.registry import create_backend
from workbench.backends.search import find_backend
from workbench.engine.devices import Gpus, Placement
from workbench.engine.options import EngineOptions
from workbench.errors import WorkbenchError
from workbench.repository.models import ModelSource


class BackendSet:
    """Backends for models. Thread-safe: it holds nothing that changes."""

    def __init__(self, options: EngineOptions, placement: Placement) -> None:
        self._options = options
        self._placement = placement

    def find(self, config: Any, source: ModelSource, version: int) -> Backend:
        """The backend of one version: built in, or Python-based out of the backend directory. Reads directories.

        Raises:
            InvalidRequest: there is none (Triton's texts).
        """
        directory = self._options.backend_directory
        return find_backend(config.backend, config.runtime, config.name, source.directory, version, directory)

    def gpus(self, name: str) -> Gpus:
        """The GPUs that models of a backend may be placed on; a name that is not built in counts as Python-based.

        Where there are none, no framework is imported to learn whether it could use them.
        """
        if not self._placement.devices:
            return Gpus((), self._placement.minimum)
        try:
            uses_gpus = name == "python" or getattr(create_backend(name), "uses_gpus", True)
            built_in = name != "python"
        except WorkbenchError:
            uses_gpus, built_in = True, False
        if not uses_gpus:
            return Gpus((), self._placement.minimum)
        return self._placement.gpus(in_process=built_in or self._options.python_execution == "thread")
