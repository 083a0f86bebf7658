"""The row "build another form" of the panel compare: a model becomes a form of itself, which is then loaded."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import ipywidgets as W

from workbench.errors import InvalidRequest
from workbench.package.building import BuildOptions, Built, build
from workbench.package.building.options import TARGETS
from workbench.panels.base import error_html
from workbench.panels.html import chip, escape

if TYPE_CHECKING:
    from workbench.session.server import Server

_PRECISIONS = (("as it is", ""), ("fp16", "fp16"), ("bf16", "bf16"), ("int8", "int8"))


class BuildForm:
    """What is built of which model, and how far it is. ``built`` is what was built last.

    Args:
        server: has the model, and loads what is built; without its files on this machine the row says so.
        lock: held while widgets are touched.
        on_built: told the name of a form that is loaded.
    """

    def __init__(
        self, server: Server, lock: AbstractContextManager[Any], names: list[str], on_built: Callable[[str], None]
    ) -> None:
        self._server = server
        self._lock = lock
        self._on_built = on_built
        self._stop_event = threading.Event()
        self._thread: threading.Thread | None = None
        self.built: Built | None = None
        self.model = _field(W.Dropdown(options=names), "190px", "the model that it is built of")
        self.target = _field(W.Dropdown(options=TARGETS, value="openvino"), "120px", "what it becomes")
        self.precision = _field(W.Dropdown(options=_PRECISIONS), "100px", "of what it computes in")
        self.name = _field(W.Text(placeholder="name (or a suffix)"), "160px", "what it is called")
        self.run = W.Button(description="Build", tooltip="Make the form beside its source, and load it")
        self.stop = W.Button(description="Stop", tooltip="End it at its next step", disabled=True)
        for button in (self.run, self.stop):
            button.layout = W.Layout(width="auto", min_width="64px", flex="0 0 auto")
        self.said = W.HTML(layout=W.Layout(flex="1 1 0", min_width="0"))
        self.said.add_class("wb-status")
        self.told = W.HTML(layout=W.Layout(width="100%", min_width="0"))
        self.run.on_click(lambda _: self.start())
        self.stop.on_click(lambda _: self.end())
        self.box = W.VBox([
            W.HBox(
                [W.HTML("<b>Build another form</b>"), self.model, self.target, self.precision, self.name, self.run,
                 self.stop, self.said],
                layout=W.Layout(width="100%", align_items="center"),
            ),
            self.told,
        ])  # fmt: skip
        if not server.repository_paths:
            self.run.disabled = True
            self.said.value = "the files of the models are not on this machine: build there, with workbench build"

    def show(self, names: list[str]) -> None:
        """The models that there are."""
        if list(self.model.options) != names:
            kept = self.model.value
            self.model.options = names
            self.model.value = kept if kept in names else names[0] if names else None

    def start(self, *, wait: bool = False) -> None:
        """Builds in the background what the row says; ``wait`` waits for its end."""
        with self._lock:
            if self._thread is not None and self._thread.is_alive():
                return
            self._stop_event = threading.Event()
            self._busy(True)
            self.said.value, self.told.value = chip("building …", "busy"), ""
            self._thread = threading.Thread(target=self._build, name="workbench-build", daemon=True)
            self._thread.start()
        if wait:
            self._thread.join()

    def end(self) -> None:
        """Ends it at its next step; nothing is left of it."""
        self._stop_event.set()
        with self._lock:
            self.stop.disabled = True
            self.said.value = chip("stopping …", "busy")

    def _build(self) -> None:
        try:
            source = self._server.model_directory(str(self.model.value))
            if source is None:
                raise InvalidRequest(f"the files of '{self.model.value}' are not on this machine")
            chosen = str(self.precision.value)
            built = build(
                source, to=self.target.value, name=self.name.value.strip() or None, progress=self._progressed,
                options=BuildOptions(fp16=chosen == "fp16", bf16=chosen == "bf16", int8=chosen == "int8"),
            )  # fmt: skip
            with self._lock:
                self.built = built
                self.told.value = f'<pre class="wb-mono">{escape(built)}</pre>'
                self.said.value = chip("loading …", "busy")
            loads = built.target != "tensorrt" or not built.unverified  # an engine may be for a GPU that is not here
            if loads:
                self._server.load(built.name)
                self._server.session.poll()
        except Exception as error:
            with self._lock:
                self._busy(False)
                self.said.value = error_html(error)
            return
        if loads:
            self._on_built(built.name)
        with self._lock:
            self._busy(False)
            state = "is loaded" if loads else f"is not loaded: {built.unverified}"
            self.said.value = f"{chip('built', 'ok')} {escape(built.name)} {escape(state)}"

    def _progressed(self, what: str, done: int, total: int) -> bool:
        with self._lock:
            if not self._stop_event.is_set():
                of = f" ({done} of {total})" if total else ""
                self.said.value = f"{chip('building', 'busy')} {escape(what)}{of}"
        return not self._stop_event.is_set()

    def _busy(self, busy: bool) -> None:
        self.stop.disabled = not busy
        for widget in (self.run, self.model, self.target, self.precision, self.name):
            widget.disabled = busy


def _field(widget: Any, width: str, tooltip: str) -> Any:
    widget.layout = W.Layout(width=width, flex="0 0 auto")
    widget.tooltip = tooltip
    return widget
