"""Which backends there are: those built in, and those that other distributions add by an entry point.

A third party's ``pyproject.toml``::

    [project.entry-points."workbench.backends"]
    mine = "my_package.backend:MyBackend"

``MyBackend()`` must give a ``base.Backend``; models then name it by ``backend: "mine"``, and
``workbench.backends.conformance`` tests it. Nothing is imported before a model needs it, and one that cannot be
imported spoils no other.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib.metadata import EntryPoint, entry_points

from workbench.backends.base import Backend
from workbench.errors import InvalidRequest

GROUP = "workbench.backends"
"""The group of entry points."""

BACKENDS: dict[str, tuple[str, str]] = {
    "dali": ("workbench.backends.dali", "DaliBackend"),
    "dyna_sequence": ("workbench.backends.examples_sequence", "DynaSequenceBackend"),
    "fil": ("workbench.backends.fil", "FilBackend"),
    "identity": ("workbench.backends.examples_identity", "IdentityBackend"),
    "iterative_sequence": ("workbench.backends.examples_sequence", "IterativeSequenceBackend"),
    "onnxruntime": ("workbench.backends.onnxruntime", "OnnxRuntimeBackend"),
    "openvino": ("workbench.backends.openvino", "OpenVinoBackend"),
    "python": ("workbench.backends.python", "PythonBackend"),
    "pytorch": ("workbench.backends.pytorch", "PyTorchBackend"),
    "repeat": ("workbench.backends.examples_decoupled", "RepeatBackend"),
    "sequence": ("workbench.backends.examples_sequence", "SequenceBackend"),
    "square": ("workbench.backends.examples_decoupled", "SquareBackend"),
    "tensorflow": ("workbench.backends.tensorflow", "TensorFlowBackend"),
    "tensorrt": ("workbench.backends.tensorrt", "TensorRTBackend"),
}
"""Triton's backend name -> module and class, of those built in."""

_METHODS = ("describe", "auto_complete", "open")


@dataclass(frozen=True, slots=True)
class BackendPlace:
    """Where a backend comes from.

    ``distribution`` is the name and version of what an entry point came with, "" for one built in. ``hidden_by`` says
    what has the name already, "" where nothing has: a name that is built in, or that an earlier distribution (in the
    order of the alphabet) took, is not given twice.
    """

    name: str
    target: str
    distribution: str = ""
    hidden_by: str = ""


def backend_places() -> list[BackendPlace]:
    """All backends by name, hidden ones last. Imports none of them."""
    places = [BackendPlace(name, f"{module}:{attribute}") for name, (module, attribute) in BACKENDS.items()]
    taken = dict.fromkeys(BACKENDS, "the workbench")
    hidden: list[BackendPlace] = []
    for point in _entry_points():
        place = BackendPlace(point.name, point.value, _distribution(point), taken.get(point.name, ""))
        (hidden if place.hidden_by else places).append(place)
        taken.setdefault(point.name, place.distribution)
    return [*sorted(places, key=lambda place: place.name), *hidden]


def backend_names() -> list[str]:
    """The names of all backends, in order."""
    return sorted({*BACKENDS, *(point.name for point in _entry_points())})


def is_backend(name: str) -> bool:
    """Whether there is a backend of this name; it may still fail to be imported."""
    return name in BACKENDS or any(point.name == name for point in _entry_points())


def create_backend(name: str) -> Backend:
    """The backend of this name (``search.find_backend`` also looks into a backend directory).

    Raises:
        InvalidRequest: there is none (Triton's text), its framework is not installed, or it is broken: the hint says
            which.
    """
    if name in BACKENDS:
        module, attribute = BACKENDS[name]
        return _made(name, lambda: getattr(importlib.import_module(module), attribute), "")
    for point in _entry_points():
        if point.name == name:
            return _made(name, point.load, _distribution(point))
    raise _missing(
        name,
        f"backends here: {', '.join(backend_names())}, and Python-based ones in --backend-directory; "
        f"libraries (libtriton_{name}.so) are real Triton's to load",
    )


def _made(name: str, load: Callable[[], Callable[[], Backend]], distribution: str) -> Backend:
    whose = f"the entry point of {distribution}" if distribution else "it"
    try:
        backend = load()()
    except ImportError as error:
        what = f"{whose} cannot be imported: {error}"
        if not distribution:
            what = f"its framework cannot be imported: {error}; {to_install(name)}"
        raise _missing(name, what) from error
    except Exception as error:
        if not distribution:
            raise
        raise _missing(name, f"{whose} failed: {type(error).__name__}: {error}") from error
    lacking = [method for method in _METHODS if not callable(getattr(backend, method, None))]
    if lacking:
        raise _missing(name, f"{whose} gives a {type(backend).__name__}, which is no backend: no {', '.join(lacking)}")
    return backend


def to_install(name: str) -> str:
    """What to do where a built-in backend's framework is missing."""
    from workbench.backends.probe import install_of

    return f"{install_of(name) or 'workbench doctor says what to install'} (workbench doctor tells of all backends)"


def framework_missing(name: str, module: str) -> InvalidRequest:
    """The error of a model whose built-in backend has no framework here, found out without importing it."""
    return _missing(name, f"its framework {module} is not installed; {to_install(name)}")


def _missing(name: str, hint: str) -> InvalidRequest:
    return InvalidRequest(
        f"unable to find backend library for backend '{name}', try specifying runtime on the model configuration.",
        hint=hint,
    )


@cache
def _entry_points() -> tuple[EntryPoint, ...]:
    return tuple(sorted(entry_points(group=GROUP), key=lambda point: (_distribution(point), point.name)))


def _distribution(point: EntryPoint) -> str:
    return f"{point.dist.name} {point.dist.version}" if point.dist else "an unknown distribution"
