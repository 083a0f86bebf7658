"""The config.pbtxt of a model that is not loaded: it is read and written as a file, since no server holds it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from workbench.session.results import ConfigView

if TYPE_CHECKING:
    from workbench.session.server import Server

NAME = "config.pbtxt"


def file_view(server: Server, model: str) -> ConfigView | None:
    """The file as a view without epoch; None where the model's directory is not on this machine."""
    directory = server.model_directory(model)
    if directory is None or not (directory / NAME).is_file():
        return None
    text = (directory / NAME).read_bytes().decode("utf-8", "replace")
    return ConfigView(model=model, text=text, saved_text=text, effective={}, epoch=0, dirty=False, editable=False)


def write_file(server: Server, model: str, text: str) -> Path:
    """Writes the file: whole or not at all, even where the machine stops in the middle."""
    directory = server.model_directory(model)
    if directory is None:
        raise FileNotFoundError(f"the directory of model {model!r} is not on this machine")
    path = directory / NAME
    temporary = path.with_name(f".{NAME}.{os.getpid()}.tmp")
    with temporary.open("wb") as file:
        file.write(text.encode("utf-8"))
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    return path
