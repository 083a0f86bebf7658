"""Class labels of a model's outputs, from the ``label_filename`` in its directory."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from workbench.engine import InferenceEngine


def labels_of(engine: InferenceEngine, config: Any, output: str) -> tuple[str, ...]:
    """The labels of an output by element index; empty where the configuration names no file or it cannot be read."""
    name = next((item.label_filename for item in config.output if item.name == output), "")
    if not name:
        return ()
    for repository in engine.options.repositories:
        directory = (Path(repository) / config.name).resolve()
        path = (directory / name).resolve()
        if path.is_relative_to(directory) and path.is_file():
            return _read(path, path.stat().st_mtime_ns)
    return ()


@lru_cache(maxsize=64)
def _read(path: Path, mtime_ns: int) -> tuple[str, ...]:
    try:
        return tuple(line.strip() for line in path.read_text("utf-8", "replace").splitlines())
    except OSError:
        return ()
