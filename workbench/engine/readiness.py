"""Whether a model and the server are ready (7.14, 15.3): what serves, that no instance is dead, what models say.

Rules: core's server.cc (IsReady, ModelIsReady) and backend_model.cc, for a model since Triton 26.01, for the server
since 26.04; 2.51 looks at states only. All instances of a version must be well, passive ones too, and where a Python
model has an ``is_ready``, each instance in turn is asked until one is not ready. An ensemble that is loaded is ready.
The repository index knows states only and asks nobody.

On the loop. Where nobody need be asked the answer is there at once; else it is a coroutine, which takes as long as the
models take, and a limit for each instance.
"""

from __future__ import annotations

from collections.abc import Coroutine, Iterable
from typing import TYPE_CHECKING, Any

from workbench.errors import WorkbenchError

if TYPE_CHECKING:
    from workbench.engine.lifecycle import Lifecycle
    from workbench.engine.model import ModelVersion

Ready = bool | Coroutine[Any, Any, bool]

_MODEL = "Model '{0}' version {1} is not ready: {2}"
_SERVER = (
    "Model '{0}' version {1} is in READY lifecycle state but failed runtime readiness check during server readiness "
    "evaluation: {2}"
)


def model_ready(lifecycle: Lifecycle, name: str, version: int) -> Ready:
    """Whether a model version serves, -1 for the latest; False for one that is not known."""
    try:
        model = lifecycle.lookup(name, version)
    except WorkbenchError:
        return False
    return _all_ready([model], _MODEL)


def server_ready(lifecycle: Lifecycle, strict: bool) -> Ready:
    """Whether every known version is READY, or was unloaded on purpose, and is ready; not strict: True."""
    if not strict:
        return True
    serving = []
    for _, entry in sorted(lifecycle.entries.items()):
        if entry.poll_error and not entry.versions:
            return False
        if any(slot.state != "READY" and slot.reason != "unloaded" for slot in entry.versions.values()):
            return False
        serving += [model for _, model in sorted(entry.ready().items())]
    return _all_ready(serving, _SERVER)


async def settled(ready: Ready) -> bool:
    """The answer, whichever way it comes."""
    return ready if isinstance(ready, bool) else await ready


def _all_ready(models: Iterable[ModelVersion], text: str) -> Ready:
    asked = []
    for model in models:
        why = next((slot.why for slot in (*model.slots, *model.passive) if not slot.healthy), None)
        if why is not None:
            _note(model, text, why)
            return False
        questions = [
            question
            for slot in (*model.slots, *model.passive)
            if (question := getattr(slot.instance, "readiness", None)) is not None
        ]
        asked += [(model, question) for question in questions]
    return _ask(asked, text) if asked else True


async def _ask(asked: Iterable[tuple[ModelVersion, Any]], text: str) -> bool:
    for model, question in asked:
        if why := await question.why_not():
            _note(model, text, why)
            return False
    return True


def _note(model: ModelVersion, text: str, why: str) -> None:
    if model.core.log_settings.allows("verbose"):
        text = text.format(model.name, model.version, why)
        model.core.events.append("log", model.name, text, level="verbose", version=model.version)
