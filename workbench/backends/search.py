"""Where a model's backend comes from: the registry, or Python-based, ``<backend directory>/<name>/model.py``.

Source of the order and of the texts: core ``backend_model.cc`` (GetBackendLibraryProperties). A C++ backend
(``libtriton_<name>.so``) cannot be loaded here; one of the registry stands for its library.
"""

from __future__ import annotations

from pathlib import Path

from workbench.backends.base import Backend
from workbench.backends.python import PythonBackend
from workbench.backends.registry import backend_names, create_backend, is_backend
from workbench.errors import InvalidRequest, WorkbenchError

PYTHON_RUNTIME = "model.py"
"""What Triton writes into ``runtime`` of a model with a Python-based backend."""

_NOT_CPP = (
    "this workbench runs Python-based backends (model.py in {place}) and its built-in ones, not C++ ones ({file})"
)
_WHAT_TO_DO = "serve the model by real tritonserver and use connect(), or change backend to one of: {known}"


def find_backend(name: str, runtime: str, model: str, model_dir: Path, version: int, directory: Path) -> Backend:
    """The backend of one version of a model.

    Args:
        name: the field ``backend``.
        runtime: the field ``runtime``; empty where it is not given.
        model: the model's name, for texts.
        model_dir: its directory.
        version: the version.
        directory: ``--backend-directory``.

    Raises:
        InvalidRequest: there is none (Triton's texts); the hint says what this workbench can run.
    """
    if "/" in name or ".." in name:
        return _built_in(name, directory, None)
    places = (model_dir / str(version), model_dir, directory / name)
    shared = directory / name / PYTHON_RUNTIME
    library = f"libtriton_{name}.so"
    if runtime in ("", PYTHON_RUNTIME):
        found = _library(places, library) if not runtime else None
        if found is None and shared.is_file() and name != "python":
            return PythonBackend(name, shared)
        if runtime and not _runs_python(name):
            raise _refuse(
                f"unable to find Python backend based backend library '{runtime}' for model '{model}', "
                f"searched: '{shared}'",
                name,
                directory,
            )
        return _built_in(name, directory, found)
    place = next((place for place in places if (place / runtime).exists()), None)
    if place is not None and place.resolve() not in (place / runtime).resolve().parents:
        raise InvalidRequest(
            f"backend library name '{runtime}' escapes backend directory '{place}', for model '{model}', "
            "check model config runtime field"
        )
    if runtime == library and is_backend(name):
        return create_backend(name)
    searched = "".join(f"'{place}' " for place in places)
    raise _refuse(
        f"unable to find backend library '{runtime}' for model '{model}', searched: {searched}", name, directory
    )


def _runs_python(name: str) -> bool:
    """Whether a backend of the registry is a Python-based one as well (real Triton's ``pytorch`` brings a model.py)."""
    return is_backend(name) and getattr(create_backend(name), "python_runtime", False)


def _library(places: tuple[Path, ...], library: str) -> Path | None:
    return next((place / library for place in places if (place / library).exists()), None)


def _built_in(name: str, directory: Path, library: Path | None) -> Backend:
    try:
        return create_backend(name)
    except WorkbenchError as error:
        if is_backend(name):
            raise
        raise _refuse(error.message, name, directory, library) from error


def _refuse(text: str, name: str, directory: Path, library: Path | None = None) -> InvalidRequest:
    words = _NOT_CPP.format(place=directory / name, file=library or f"libtriton_{name}.so")
    return InvalidRequest(text, hint=f"{words}; {_WHAT_TO_DO.format(known=', '.join(backend_names()))}")
