"""The form beside the text of a config.pbtxt: the fields that people tune, as lossless edits."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import ipywidgets as W

from workbench.config import ConfigDocument, Edit, to_json

DYNAMIC = "dynamic_batching"
POLICY = "dynamic_batching.default_queue_policy"
INSTANCES = "instance_group[0].count"


@dataclass(frozen=True, slots=True)
class Field:
    """One line of the form: Triton's name is its label."""

    path: str
    kind: str
    help: str
    group: str = ""

    @property
    def label(self) -> str:
        """Triton's own name of the field."""
        return "instance_group.count" if self.path == INSTANCES else self.path.rpartition(".")[2]


FIELDS = (
    Field("max_batch_size", "int", "Most rows that one execution gets; 0: the model has no batch dimension"),
    Field(INSTANCES, "int", "How many instances of the model run side by side (of the first group)"),
    Field(DYNAMIC, "switch", "Put requests that wait together into one execution"),
    Field(f"{DYNAMIC}.max_queue_delay_microseconds", "int", "How long a request may wait for others, in µs", DYNAMIC),
    Field(f"{DYNAMIC}.preferred_batch_size", "sizes", "Sizes that leave at once when reached, as in: 4, 8", DYNAMIC),
    Field(f"{DYNAMIC}.priority_levels", "int", "How many priorities there are; 1 is the highest", DYNAMIC),
    Field(f"{DYNAMIC}.default_priority_level", "int", "Priority of a request that names none", DYNAMIC),
    Field(f"{POLICY}.max_queue_size", "int", "Most requests that wait; more are refused (0: no limit)", DYNAMIC),
    Field(f"{POLICY}.default_timeout_microseconds", "int", "How long a request may wait, in µs (0: for ever)", DYNAMIC),
    Field(f"{POLICY}.timeout_action", "action", "What happens to a request that waited too long", DYNAMIC),
)


class ConfigForm:
    """The widgets, and the edits that a change of one means; ``on_edit(edits)`` is called with them."""

    def __init__(self, on_edit: Callable[[list[Edit]], None]) -> None:
        self._on_edit = on_edit
        self._document: ConfigDocument | None = None
        self._quiet = False
        self.widgets: dict[str, Any] = {field.path: _widget(field) for field in FIELDS}
        for field in FIELDS:
            self.widgets[field.path].observe(lambda change, f=field: self._changed(f, change["new"]), "value")
        self.box = W.VBox(
            [_line(field, self.widgets[field.path]) for field in FIELDS],
            layout=W.Layout(width="346px", flex="0 0 auto"),
        )

    def show(self, document: ConfigDocument | None, effective: Mapping[str, Any]) -> None:
        """Shows a document; a text that does not parse leaves the values and locks the form.

        ``effective`` is the completed configuration: it tells the number of instances where the text does not.
        """
        self._document = document
        self._quiet = True
        try:
            values = to_json(document.message, defaults=False) if document is not None else None
            for field in FIELDS:
                widget = self.widgets[field.path]
                if values is None:
                    widget.disabled = True
                    continue
                widget.disabled = bool(field.group) and field.group not in values
                value = _shown(field, values, effective)
                if widget.value != value:
                    widget.value = value
        finally:
            self._quiet = False

    def _changed(self, field: Field, value: Any) -> None:
        if self._quiet or self._document is None:
            return
        edits = edits_of(field, value, self._document)
        if edits:
            self._on_edit(edits)


def edits_of(field: Field, value: Any, document: ConfigDocument) -> list[Edit]:
    """The edits that a value in the form stands for; none where the text says so already."""
    values = to_json(document.message, defaults=False)
    if field.kind == "switch":
        if bool(value) == (DYNAMIC in values):
            return []
        return [Edit(DYNAMIC, "set", {})] if value else [Edit(DYNAMIC, "remove")]
    if field.kind == "sizes":
        sizes = parse_sizes(value)
        if sizes is None or sizes == _at(values, field.path):
            return []
        return [Edit(field.path, "set", sizes)] if sizes else _remove(field.path, values)
    if field.path == INSTANCES and not values.get("instance_group"):
        return [Edit("instance_group", "set", [{"count": value}])]
    known = _at(values, field.path)
    if value == (known if known is not None else _default(field)):
        return []
    return [Edit(field.path, "set", value)]


def parse_sizes(text: str) -> list[int] | None:
    """Whole numbers from text with commas or spaces; None while it is not one."""
    try:
        return [int(part) for part in text.replace(",", " ").split()]
    except ValueError:
        return None


def _remove(path: str, values: Mapping[str, Any]) -> list[Edit]:
    return [Edit(path, "remove")] if _at(values, path) else []


def _default(field: Field) -> Any:
    return {"action": "REJECT", "sizes": ""}.get(field.kind, 0)


def _shown(field: Field, values: Mapping[str, Any], effective: Mapping[str, Any]) -> Any:
    if field.kind == "switch":
        return DYNAMIC in values
    known = _at(values, field.path)
    if field.kind == "sizes":
        return ", ".join(str(size) for size in known or ())
    if field.path == INSTANCES and known is None:
        known = sum(int(group.get("count", 1)) for group in effective.get("instance_group") or ()) or 1
    return known if known is not None else _default(field)


def _at(values: Any, path: str) -> Any:
    """What JSON has at a path; None where nothing is."""
    for part in path.replace("[", ".[").split("."):
        if values is None:
            return None
        if part.startswith("["):
            index = int(part[1:-1])
            values = values[index] if len(values) > index else None
        else:
            values = values.get(part)
    return int(values) if isinstance(values, str) and values.isdigit() else values


def _line(field: Field, widget: Any) -> Any:
    if field.group:
        widget.add_class("wb-sub")
    if field.kind != "switch":
        return widget
    label = W.HTML(f'<span class="wb-muted">{field.label}</span>', layout=W.Layout(width="224px", flex="0 0 auto"))
    return W.HBox([label, widget], layout=W.Layout(height="30px", align_items="center"))


def _widget(field: Field) -> Any:
    layout = W.Layout(width="338px")
    style = {"description_width": "216px"}
    common = {"description": field.label, "layout": layout, "style": style, "tooltip": field.help}
    if field.kind == "switch":
        return W.Checkbox(value=False, indent=False, tooltip=field.help, layout=W.Layout(width="40px"))
    if field.kind == "sizes":
        return W.Text(value="", placeholder="none", continuous_update=False, **common)
    if field.kind == "action":
        return W.Dropdown(options=["REJECT", "DELAY"], value="REJECT", **common)
    return W.BoundedIntText(value=0, min=0, max=2**31 - 1, **common)
