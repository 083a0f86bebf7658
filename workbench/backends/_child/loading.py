"""``load_model``, ``unload_model`` and ``is_model_ready`` of ``triton_python_backend_utils``.

Texts: python_backend (model_loader.cc), recorded from release 24.10 (Triton 2.51).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from workbench.backends._child.metrics import Asks
from workbench.backends._child.tensors import TritonModelException, arguments, incompatible


def bind(runtime: Asks) -> dict[str, Callable[..., Any]]:
    """The three functions, for one model."""

    def load_model(*args: Any, **kwargs: Any) -> None:
        """Loads or reloads a model: ``load_model(model_name, config="", files=None)``; returns when it serves.

        ``config`` is a model configuration as JSON, ``files`` maps ``file:1/model.py`` to the file's bytes.

        Raises:
            TritonModelException: it cannot be loaded; what served before still does.
        """
        signature = "(model_name: str, config: str = '', files: object = None) -> None"
        given = arguments("load_model", signature, {"model_name": ..., "config": "", "files": None}, args, kwargs)
        name, config, files = given["model_name"], given["config"], given["files"]
        if not isinstance(name, str) or not isinstance(config, str):
            raise incompatible("load_model", signature, args, kwargs)
        if files is not None and not isinstance(files, dict):
            raise TritonModelException(
                f"failed to load model '{name}', files should be a dictionary of file paths and file contents"
            )
        for content in (files or {}).values():
            if not isinstance(content, bytes):
                raise TypeError(f"Object of type '{type(content).__name__}' is not an instance of 'bytes'")
        _ask("load model", "load_model", name, config, tuple((files or {}).items()))

    def unload_model(*args: Any, **kwargs: Any) -> None:
        """Starts to unload a model: ``unload_model(model_name, unload_dependents=False)``; an unknown one is no error.

        Raises:
            TritonModelException: the server refused.
        """
        signature = "(model_name: str, unload_dependents: bool = False) -> None"
        given = arguments("unload_model", signature, {"model_name": ..., "unload_dependents": False}, args, kwargs)
        name, dependents = given["model_name"], given["unload_dependents"]
        if not isinstance(name, str) or dependents is None or not hasattr(dependents, "__bool__"):
            raise incompatible("unload_model", signature, args, kwargs)
        _ask("unload model", "unload_model", name, bool(dependents))

    def is_model_ready(*args: Any, **kwargs: Any) -> bool:
        """Whether a model is ready: ``is_model_ready(model_name, model_version="")``; the version is a str, "" for any.

        A model that has an ``is_ready`` is asked.

        Raises:
            TritonModelException: the version is no number.
        """
        signature = "(model_name: str, model_version: str = '') -> bool"
        given = arguments("is_model_ready", signature, {"model_name": ..., "model_version": ""}, args, kwargs)
        name, version = given["model_name"], given["model_version"]
        if not isinstance(name, str) or not isinstance(version, str):
            raise incompatible("is_model_ready", signature, args, kwargs)
        return bool(_ask("check model readiness", "is_model_ready", name, version))

    def _ask(what: str, operation: str, *values: Any) -> Any:
        try:
            return runtime.ask(operation, *values)
        except TritonModelException as error:
            raise TritonModelException(f"Failed to {what}: {error}") from None

    return {"load_model": load_model, "unload_model": unload_model, "is_model_ready": is_model_ready}
