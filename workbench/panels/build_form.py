"""The row "build another form" of the panel compare: a model becomes a form of itself, which is then loaded.

What only some targets take (shapes, data to calibrate with) is below the row, where it applies.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ipywidgets as W
import numpy as np

from workbench.errors import InvalidRequest, NotFound
from workbench.package.building import BuildOptions, Built, build
from workbench.package.building.options import (
    CALIB_HELP,
    CONVERTED,
    SHAPED,
    SHAPES_HELP,
    TARGETS,
    ShapeSet,
    parse_shapes,
)
from workbench.panels.base import error_html
from workbench.panels.html import chip, escape
from workbench.profiling.input_files import TABLES, rows_of
from workbench.repository.example_inputs import inputs_of, load_streams

if TYPE_CHECKING:
    from workbench.session.server import Server

_PRECISIONS = (("as it is", ""), ("fp16", "fp16"), ("bf16", "bf16"), ("int8", "int8"))
_MODULES_OWN = (("as it is", ""),)


class BuildForm:
    """What is built of which model, and how far it is. ``built`` is what was built last.

    Args:
        server: has the model, and loads what is built; without its files on this machine the row says so.
        lock: held while widgets are touched.
        on_built: told the name of a form that is loaded.
        model: preset.
    """

    def __init__(
        self, server: Server, lock: AbstractContextManager[Any], names: list[str], on_built: Callable[[str], None],
        *, model: str = "",
    ) -> None:  # fmt: skip
        self._server = server
        self._lock = lock
        self._on_built = on_built
        self._stop_event = threading.Event()
        self._thread: threading.Thread | None = None
        self.built: Built | None = None
        self.model = _field(W.Dropdown(options=names), "190px", "the model that it is built of")
        if model in names:
            self.model.value = model
        self.target = _field(W.Dropdown(options=TARGETS, value="openvino"), "120px", "what it becomes")
        self.precision = _field(W.Dropdown(options=_PRECISIONS), "100px", "of what it computes in")
        self.name = _field(W.Text(placeholder="name (or a suffix)"), "160px", "what it is called")
        self.shapes = {
            option: _field(W.Text(placeholder=f"{option}: x:1x3,y:1x16"), "230px", f"--{option}: {text}")
            for option, text in SHAPES_HELP.items()
        }
        self.calib = _field(W.Text(placeholder="FILE (.npz, .npy, .csv, .json)"), "260px", f"--calib: {CALIB_HELP}")
        self.shapes_row = _row("Shapes", *self.shapes.values())
        self.calib_row = _row("Calibrate with", self.calib)
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
                [W.HTML("<b>Build another form</b>", layout=W.Layout(margin="0 8px 0 0")),
                 self.model, self.target, self.precision, self.name, self.run,
                 self.stop, self.said],
                layout=W.Layout(width="100%", align_items="center"),
            ),
            self.shapes_row, self.calib_row, self.told,
        ])  # fmt: skip
        self.target.observe(lambda _: self._apply_target(), "value")
        self.precision.observe(lambda _: self._apply_target(), "value")
        self._apply_target()
        if not server.repository_paths:
            self.run.disabled = True
            self.said.value = "the files of the models are not on this machine: build there, with workbench build"

    def show(self, names: list[str]) -> None:
        """The models that there are."""
        if list(self.model.options) != names:
            kept = self.model.value
            self.model.options = names
            self.model.value = kept if kept in names else names[0] if names else None

    def _apply_target(self) -> None:
        """Shows what the target has a use for."""
        converted = self.target.value in CONVERTED
        offered = _PRECISIONS if converted else _MODULES_OWN
        if self.precision.options != offered:
            kept = self.precision.value
            self.precision.options = offered
            self.precision.value = kept if converted else ""
        self.shapes_row.layout.display = None if self.target.value in SHAPED else "none"
        self.calib_row.layout.display = None if self.precision.value == "int8" else "none"

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
            options = self._options()
            built = build(
                source, to=self.target.value, name=self.name.value.strip() or None, progress=self._progressed,
                options=options, calibration=self._calibration() if options.int8 else None,
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

    def _options(self) -> BuildOptions:
        chosen = str(self.precision.value)
        given = {}
        if self.target.value in SHAPED:
            given = {option: parse_shapes(field.value, f"--{option}") for option, field in self.shapes.items()}
        profile = ShapeSet(*(given.get(option, {}) for option in SHAPES_HELP))
        return BuildOptions(
            fp16=chosen == "fp16", bf16=chosen == "bf16", int8=chosen == "int8",
            profiles=(profile,) if any(given.values()) else (),
        )  # fmt: skip

    def _calibration(self) -> list[dict[str, Any]] | None:
        """The rows of the file that is named, each as a request; None where none is."""
        if not self.calib.value.strip():
            return None
        path = Path(self.calib.value.strip()).expanduser()
        if not path.exists():
            raise NotFound(f"there is no file {path} to calibrate with", where=str(path))
        config = self._server.model_config(str(self.model.value))
        specs, optional = inputs_of(config)
        if path.suffix == ".json":
            rows = [row for stream in load_streams(path, specs, optional=optional) for row in stream]
        elif path.suffix in TABLES or path.is_dir():
            rows = rows_of(path, specs, optional)
        else:
            raise InvalidRequest(
                f"{path.name} holds no example inputs", where=str(path), hint=f"known are .json, {', '.join(TABLES)}"
            )
        batching = int(config.get("max_batch_size", 0)) > 0
        return [{name: array[np.newaxis] if batching else array for name, array in row.items()} for row in rows]

    def _progressed(self, what: str, done: int, total: int) -> bool:
        with self._lock:
            if not self._stop_event.is_set():
                of = f" ({done} of {total})" if total else ""
                self.said.value = f"{chip('building', 'busy')} {escape(what)}{of}"
        return not self._stop_event.is_set()

    def _busy(self, busy: bool) -> None:
        self.stop.disabled = not busy
        fields = (self.model, self.target, self.precision, self.name, *self.shapes.values(), self.calib)
        for widget in (self.run, *fields):
            widget.disabled = busy


def _field(widget: Any, width: str, tooltip: str) -> Any:
    widget.layout = W.Layout(width=width, flex="0 0 auto")
    widget.tooltip = tooltip
    return widget


def _row(label: str, *fields: Any) -> Any:
    name = W.HTML(label, layout=W.Layout(width="132px", flex="0 0 auto"))
    return W.HBox([name, *fields], layout=W.Layout(width="100%", align_items="center", flex_flow="row wrap"))
