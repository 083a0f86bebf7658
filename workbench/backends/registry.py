"""Which backends there are. A framework is imported only when a model needs it."""

from __future__ import annotations

import importlib

from workbench.backends.base import Backend
from workbench.errors import InvalidRequest

BACKENDS: dict[str, tuple[str, str]] = {
    "dyna_sequence": ("workbench.backends.examples_sequence", "DynaSequenceBackend"),
    "identity": ("workbench.backends.examples_identity", "IdentityBackend"),
    "iterative_sequence": ("workbench.backends.examples_sequence", "IterativeSequenceBackend"),
    "onnxruntime": ("workbench.backends.onnxruntime", "OnnxRuntimeBackend"),
    "python": ("workbench.backends.python", "PythonBackend"),
    "repeat": ("workbench.backends.examples_decoupled", "RepeatBackend"),
    "sequence": ("workbench.backends.examples_sequence", "SequenceBackend"),
    "square": ("workbench.backends.examples_decoupled", "SquareBackend"),
}
"""Triton's backend name -> module and class."""


def create_backend(name: str) -> Backend:
    """The built-in backend of this name (``search.find_backend`` also looks into a backend directory).

    Raises:
        InvalidRequest: there is none (Triton's text), or its framework is not installed.
    """
    place = BACKENDS.get(name)
    if place is None:
        raise InvalidRequest(
            f"unable to find backend library for backend '{name}', try specifying runtime on the model configuration.",
            hint=f"backends here: {', '.join(sorted(BACKENDS))}, and Python-based ones in --backend-directory; "
            f"libraries (libtriton_{name}.so) are real Triton's to load",
        )
    module, attribute = place
    try:
        loaded = importlib.import_module(module)
    except ImportError as error:
        raise InvalidRequest(
            f"unable to find backend library for backend '{name}', try specifying runtime on the model configuration.",
            hint=f"its framework cannot be imported: {error}",
        ) from error
    backend: Backend = getattr(loaded, attribute)()
    return backend
