"""Where the file of a model version lies."""

from __future__ import annotations

from pathlib import Path

from workbench.backends.base import ModelContext
from workbench.errors import NotReady


def model_file(context: ModelContext, default: str, *, inside: str = "") -> Path:
    """The file of a version: ``default_model_filename``, or else ``default``.

    ``inside`` is what to take where that is a directory; without it a directory (a SavedModel, say) is the answer.

    Raises:
        NotReady: there is no such file (Triton's text).
    """
    path = context.version_dir / (context.config.default_model_filename or default)
    if inside and path.is_dir():
        path = path / inside
    if not path.exists() or (inside and not path.is_file()):
        raise NotReady(f"unable to find '{path}' for model instance '{context.name}'", where=str(context.version_dir))
    return path
