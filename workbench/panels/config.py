"""What would this edit do: a configuration as form and as text, checked while it is typed, applied while it serves."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import ipywidgets as W

from workbench.charts.batches import draw_batch_histogram, update_batch_histogram
from workbench.charts.strips import draw_strip, update_strip
from workbench.charts.style import Chart
from workbench.config import ConfigDocument, Edit
from workbench.errors import ConfigError, WorkbenchError
from workbench.panels.base import Panel, error_html, stale_badge
from workbench.panels.config_check import Draft, check, findings_html
from workbench.panels.config_file import file_view, write_file
from workbench.panels.config_form import ConfigForm
from workbench.panels.config_view import Situation, head_html, plan_html
from workbench.panels.html import chip, escape, number
from workbench.panels.live import halves
from workbench.panels.views import breakdown_over_time, chosen_model, histogram_info

if TYPE_CHECKING:
    from workbench.session.results import ConfigureResult, ConfigView
    from workbench.session.server import Server
    from workbench.session.state import SessionSnapshot


class ConfigPanel(Panel):
    """The configuration of one model. **Apply** changes memory only, **Save** writes the file, **Revert** goes back."""

    title = "Configuration"

    def __init__(self, server: Server, *, model: str | None = None) -> None:
        super().__init__(server)
        names, model = chosen_model(server.session.snapshot(), model)
        self._checking = False
        self._check_again = False
        self._confirm_save = False
        self._writing = False
        self._file_only = False
        self._view: ConfigView | None = None
        self._applied = ConfigDocument.parse(b"")
        self._draft = check("", "")
        self._cores = os.cpu_count() if server.repository_paths else None  # known only of this machine
        self._model = W.Dropdown(options=names, value=model, description="model")
        self._model.layout.width = "260px"
        self._model.style.description_width = "48px"
        self._head = W.HTML()
        self._form = ConfigForm(self._form_edited)
        self._text_box = W.Textarea(layout=W.Layout(width="100%", height="312px"), rows=18)
        self._text_box.add_class("wb-code")
        self._findings = W.HTML()
        self._plan = W.HTML()
        self._result = W.HTML()
        self._apply = W.Button(
            description="Apply", button_style="primary", tooltip="Change the running model; the file stays"
        )
        self._save = W.Button(description="Save", tooltip="Write config.pbtxt, after showing the difference")
        self._revert = W.Button(description="Revert", tooltip="Go back to the file, here and in the running model")
        self._fix = W.Button(description="Fix", tooltip="Make every fix that the linter knows, in this text")
        for button in (self._apply, self._save, self._revert, self._fix):
            button.layout = W.Layout(width="auto", min_width="74px")
        self._breakdown = self._chart(draw_strip, update_strip, breakdown_over_time(None, ""))
        self._batches = self._chart(draw_batch_histogram, update_batch_histogram, histogram_info(None, ""))
        self._connect()
        self._load_view()
        self._build(self._children())

    def _children(self) -> list[Any]:
        editor = W.VBox([self._text_box, self._findings], layout=W.Layout(flex="1 1 0", min_width="0"))
        buttons = W.HBox([self._apply, self._save, self._revert, self._fix], layout=W.Layout(margin="4px 0 0"))
        left = W.VBox([self._form.box, buttons], layout=W.Layout(flex="0 0 auto"))
        return [
            W.HBox([self._model, self._head], layout=W.Layout(width="100%")),
            W.HBox([left, editor], layout=W.Layout(width="100%", overflow="hidden")),
            self._result,
            self._plan,
            W.HTML('<div class="wb-rule"></div>'),
            halves(self._breakdown.view, self._batches.view),
        ]

    def _connect(self) -> None:
        self._text_box.observe(lambda change: self._typed(change["new"]), "value")
        self._model.observe(lambda _: self._model_changed(), "value")
        self._apply.on_click(lambda _: self.apply())
        self._save.on_click(lambda _: self.save())
        self._revert.on_click(lambda _: self.revert())
        self._fix.on_click(lambda _: self.fix())

    # ------------------------------------------------------------ reading

    @property
    def model(self) -> str:
        """The model whose configuration is shown."""
        return str(self._model.value or "")

    @property
    def text(self) -> str:
        """The draft as it stands in the editor. Setting it is as good as typing it."""
        return str(self._text_box.value)

    @text.setter
    def text(self, value: str) -> None:
        self._text_box.value = value

    @property
    def draft(self) -> Draft:
        """The draft and what was found in it."""
        return self._draft

    @property
    def form(self) -> dict[str, Any]:
        """The widgets of the form by path."""
        return self._form.widgets

    def _model_changed(self) -> None:
        with self._lock:
            self._result.value = ""
            self._load_view()
        self.refresh()

    def _load_view(self) -> None:
        """Takes the applied configuration from the server into the editor; the file's where no server holds it."""
        self._file_only = False
        try:
            view = self.server.config(self.model)
        except WorkbenchError as error:
            found = file_view(self.server, self.model)
            if found is None:
                self._view = None
                self._result.value = error_html(error)
                for button in (self._apply, self._save, self._revert, self._fix):
                    button.disabled = True
                return
            self._file_only = True
            view = found
        self._take(view, into_editor=True)

    def _take(self, view: ConfigView, *, into_editor: bool) -> None:
        self._view = view
        try:
            self._applied = ConfigDocument.parse(view.text.encode("utf-8"), "config.pbtxt")
        except ConfigError:
            self._applied = ConfigDocument.parse(b"", "config.pbtxt")  # the file is broken: everything is an edit
        if into_editor:
            self._write(view.text)
        self._redraw_draft()

    def _write(self, text: str) -> None:
        """Puts a text into the editor without taking it for typing."""
        self._writing = True
        try:
            self._text_box.value = text
        finally:
            self._writing = False
        self._draft = check(text, self.model, self._cores)

    # ------------------------------------------------------------ editing

    def _typed(self, text: str) -> None:
        if self._writing:
            return
        with self._lock:
            self._draft = check(text, self.model, self._cores)
            self._redraw_draft()

    def _form_edited(self, edits: list[Edit]) -> None:
        with self._lock:
            if self._draft.document is None:
                return
            try:
                self._write(self._draft.document.edit(edits).text)
            except ConfigError as error:
                self._result.value = error_html(error)
            self._redraw_draft()

    def _redraw_draft(self) -> None:
        """Everything that follows from draft, applied and saved."""
        self._confirm_save = False
        effective = self._view.effective if self._view is not None else {}
        self._form.show(self._draft.document, effective)
        self._findings.value = findings_html(self._draft)
        self._result.value = ""
        self._buttons()
        self._show_plan(None)
        self._ask_server()

    def _buttons(self) -> None:
        view = self._view
        if self._file_only and view is not None:
            same = self.text == view.text
            self._apply.description = "Load"
            self._apply.disabled = not (same and self._draft.ok)
            self._save.disabled = same
        else:
            self._apply.description = "Apply"
            self._apply.disabled = not (view is not None and view.editable and self._draft.ok and self._changed())
            self._save.disabled = not (view is not None and view.dirty)
        self._fix.layout.display = None if self._draft.fixes else "none"
        self._save.description = "Write config.pbtxt" if self._confirm_save else "Save"
        self._save.button_style = "warning" if self._confirm_save else ""
        self._revert.disabled = not (view is not None and (view.dirty or self.text != view.saved_text))

    def _changed(self) -> bool:
        return bool(self._draft.document is not None and self._draft.edits_from(self._applied))

    # ------------------------------------------------------------ what it would do

    def _ask_server(self) -> None:
        """Asks what Apply would do; one question at a time, the last draft wins."""
        if not self._draft.ok or self._file_only or not self._changed():
            return
        if self._checking:
            self._check_again = True
            return
        self._checking = True
        self._check_again = False
        model, edits, draft = self.model, self._draft.edits_from(self._applied), self._draft

        def finished() -> bool:
            self._checking = False
            if self._check_again or draft is not self._draft:
                self._ask_server()
                return False
            return True

        def done(result: ConfigureResult) -> None:
            if finished():
                self._show_plan(result)

        def failed(error: Exception) -> None:
            if finished():
                self._plan.value = f"<div>Apply would be refused: {error_html(error)}</div>"
                self._apply.disabled = True

        self._command(f"check {model}", lambda: self.server.configure(model, *edits, dry_run=True), done, failed)

    def _situation(self) -> Situation:
        return Situation(self._view, self._draft, self._changed(), self._file_only, self._confirm_save)

    def _show_plan(self, result: ConfigureResult | None) -> None:
        self._plan.value = plan_html(self._situation(), result)

    # ------------------------------------------------------------ doing

    def apply(self) -> None:
        """Applies the draft in memory; the file is not touched."""
        if self._file_only:
            self._load_model()
            return
        with self._lock:
            edits = self._draft.edits_from(self._applied)
            if not edits or not self._draft.ok:
                return
            model = self.model
            self._result.value = chip("applying …", "busy")
            self._apply.disabled = True
            self._command(f"apply {model}", lambda: self._do(model, edits), self._applied_now, self._failed)

    def fix(self) -> None:
        """Makes every fix that the linter knows, in the draft."""
        with self._lock:
            self._write(self._draft.fixed())
            self._redraw_draft()

    def _do(self, model: str, edits: list[Edit]) -> tuple[ConfigureResult, ConfigView]:
        return self.server.configure(model, *edits), self.server.config(model)

    def _applied_now(self, result: tuple[ConfigureResult, ConfigView]) -> None:
        done, view = result
        self._take(view, into_editor=True)
        self._result.value = (
            f"{chip('applied', 'ok')} {escape(done.change_class)}, config_epoch {done.epoch}, {number(done.took_ms)} ms"
        )

    def _load_model(self) -> None:
        """Loads a model that is not loaded, with the file as it stands."""
        with self._lock:
            model = self.model
            self._result.value = chip(f"loading {model} …", "busy")

            def done(_: None) -> None:
                self._load_view()
                self._result.value = chip("loaded", "ok")

            self._command(f"load {model}", lambda: self.server.load(model), done, self._failed)

    def save(self) -> None:
        """Shows what would be written; called again, writes it."""
        with self._lock:
            if self._view is None or self._save.disabled:
                return
            if not self._confirm_save:
                self._confirm_save = True
                self._buttons()
                self._show_plan(None)
                return
            model, text = self.model, self.text
            self._result.value = chip("saving …", "busy")
            if self._file_only:
                self._command(
                    f"save {model}", lambda: write_file(self.server, model, text), self._wrote_file, self._failed
                )
                return
            self._command(
                f"save {model}",
                lambda: (self.server.save(model), self.server.config(model)),
                self._saved_now,
                self._failed,
            )

    def _saved_now(self, result: tuple[Any, ConfigView]) -> None:
        saved, view = result
        self._take(view, into_editor=False)
        self._result.value = f"{chip('saved', 'ok')} <span class='wb-mono'>{escape(saved.path)}</span>"

    def _wrote_file(self, path: Any) -> None:
        self._load_view()
        text = "Press Load to load the model with it." if self._file_only and self._draft.ok else ""
        self._result.value = f"{chip('saved', 'ok')} <span class='wb-mono'>{escape(path)}</span> {escape(text)}"

    def revert(self) -> None:
        """Goes back to the file: in the running model where it was edited, and in the editor."""
        with self._lock:
            view, model = self._view, self.model
            if view is None:
                return
            if not view.dirty:
                self._write(view.text)
                self._redraw_draft()
                return
            self._result.value = chip("reverting …", "busy")
            self._command(
                f"revert {model}",
                lambda: (self.server.revert(model), self.server.config(model)),
                self._applied_now,
                self._failed,
            )

    def _failed(self, error: Exception) -> None:
        self._buttons()
        self._result.value = error_html(error)

    # ------------------------------------------------------------ showing

    def _show(self, snapshot: SessionSnapshot) -> None:
        self._follow(snapshot)
        self._head.value = self._head_html(snapshot)
        self._breakdown.show(breakdown_over_time(snapshot, self.model))
        self._batches.show(histogram_info(snapshot, self.model))

    def _follow(self, snapshot: SessionSnapshot) -> None:
        """Takes over what somebody else applied, saved or reverted; a draft that is being edited stays."""
        view = self._view
        row = next((row for row in snapshot.models if row.name == self.model), None)
        if view is None or row is None or self._checking:
            return
        if self._file_only:
            if row.ready:
                self._load_view()  # somebody has loaded it
            return
        if (row.epoch, row.dirty) == (view.epoch, view.dirty):
            return
        untouched = self.text == view.text
        self._checking = True
        model = self.model

        def done(new: ConfigView) -> None:
            self._checking = False
            if model == self.model:
                self._take(new, into_editor=untouched)

        def failed(_: Exception) -> None:
            self._checking = False

        self._command(f"read {model}", lambda: self.server.config(model), done, failed)

    def _head_html(self, snapshot: SessionSnapshot) -> str:
        return head_html(self._situation(), stale_badge(snapshot))

    def _static(self) -> list[str | Chart]:
        text = f'<div class="wb-source" style="max-height:none">{escape(self.text)}</div>'
        head = f"<b>{escape(self.model)}</b> {self._head_html(self.state.snapshot())}"
        return [head, text, self._plan.value, self._breakdown.draw_again(), self._batches.draw_again()]

    def _text(self) -> str:
        return repr(self._view) if self._view is not None else f"{self.model}: no configuration"
