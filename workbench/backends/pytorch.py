"""Triton's ``pytorch``: which of its forms a model has, and what runs it. torch is imported when a model is opened.

TorchScript releases the GIL and runs on threads (``pytorch_script``). A ``.pt2`` of ``torch.export.save`` or of
AOTInductor and a ``model.py`` hold it and run each in a process of its own, as Python models do (``pytorch_process``).
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from workbench.backends.base import LoadedModel, ModelContext, ModelDescription
from workbench.backends.model_files import model_file
from workbench.backends.python import ENVIRONMENT_PARAMETER, PythonBackend
from workbench.backends.pytorch_archive import archive_kind, check_compiled, compiled_for, describe_export
from workbench.backends.registry import framework_missing
from workbench.errors import NotReady

CHILD = Path(__file__).parent / "pytorch_process" / "model.py"
_PYTHON_RUNTIME = "model.py"
_SKIPPED = "skipping model configuration auto-complete for '{name}': not supported for pytorch backend"


class PyTorchBackend:
    """All forms of PyTorch models."""

    name = "pytorch"
    python_runtime = True
    """It runs models that ask for ``runtime: "model.py"``, although they name no Python-based backend's directory."""

    @property
    def uses_gpus(self) -> bool:
        """Whether there is a build of torch that can use GPUs."""
        if find_spec("torch") is None:
            return False
        import torch

        return bool(torch.cuda.is_available())

    def describe(self, context: ModelContext) -> ModelDescription | None:
        """The signature of a ``.pt2`` of ``torch.export.save``; the other files do not say (9.5).

        Raises:
            WorkbenchError: the file is missing or broken.
        """
        if not _python_runtime(context):
            path = _file(context)
            if archive_kind(path) == "export" and (described := describe_export(path)) is not None:
                return described
        context.host.log("warning", _SKIPPED.format(name=context.name), model=context.name)
        return None

    def auto_complete(self, context: ModelContext) -> None:
        """Files are completed by the engine, from ``describe``."""
        return

    def open(self, context: ModelContext) -> LoadedModel:
        """Opens a model version.

        Raises:
            WorkbenchError: the file is missing or broken, or cannot run here; a parameter is wrong; there is no torch.
        """
        # a model's own environment may have what the server's has not
        if find_spec("torch") is None and ENVIRONMENT_PARAMETER not in context.config.parameters:
            raise framework_missing(self.name, "torch")
        if _python_runtime(context):
            return _in_process(context, "model.py")
        path = _file(context)
        if path.suffix == ".py":
            return _in_process(context, "model.py")
        kind = archive_kind(path)
        if kind == "script":
            from workbench.backends.pytorch_script import ScriptModel

            return ScriptModel(context, path)
        if kind == "aoti":
            check_compiled(path, any(group.kind == group.KIND_GPU for group in context.config.instance_group))
            built = compiled_for(path)
            return _in_process(context, "AOTInductor", device=" ".join((built.device, *built.instructions)))
        text = "a .pt2 of torch.export.save runs here; real Triton (26.03 and later) takes those of AOTInductor only"
        context.host.log("info", f"'{context.name}': {text}", model=context.name)
        return _in_process(context, "torch.export")


def _in_process(context: ModelContext, form: str, **details: str) -> LoadedModel:
    """A model of the Python-based backend."""
    model = PythonBackend(PyTorchBackend.name, CHILD).open(context)
    model.details = {"engine": "torch", "form": form, **details}
    return model


def _python_runtime(context: ModelContext) -> bool:
    return bool(context.config.runtime == _PYTHON_RUNTIME)


def _file(context: ModelContext) -> Path:
    try:
        return model_file(context, "model.pt")
    except NotReady as error:
        if (context.version_dir / _PYTHON_RUNTIME).is_file():
            error.hint = f'there is a {_PYTHON_RUNTIME}: set runtime: "{_PYTHON_RUNTIME}"'
        raise
