"""One edit of a config.pbtxt as a change of its bytes."""

from __future__ import annotations

from functools import cached_property
from typing import Any

from workbench.config.convert import Filler, coerce, coerce_one, fill, shortest_float, to_json
from workbench.config.difference import field_edits, message_edits
from workbench.config.locate import element_of, entry_of
from workbench.config.path import Edit, Step, format_path, parse_path
from workbench.config.schema import FieldType, MessageType, pb, types
from workbench.config.style import (
    Style,
    detect_style,
    render_entry,
    render_field,
    render_message,
    render_scalar,
)
from workbench.config.syntax import FieldNode, ListNode, MessageNode, ScalarNode, elements, parse_syntax
from workbench.config.textedit import (
    Change,
    after_field,
    apply_changes,
    before_field,
    like_field,
    list_insert,
    list_remove,
    new_field,
    remove_field,
)
from workbench.errors import ConfigError


def apply_edit(data: bytes, tree: MessageNode, edit: Edit, *, where: str = "") -> bytes:
    """The bytes of the file after one edit; the same object where it changes nothing.

    Raises:
        ConfigError: see ``ConfigDocument.edit``.
    """
    editor = _Editor(data, tree, parse_path(edit.path), edit)
    return editor.run()


class _Editor:
    """Carries out one edit on one tree."""

    def __init__(self, data: bytes, tree: MessageNode, steps: tuple[Step, ...], edit: Edit) -> None:
        self._data = data
        self._tree = tree
        self._steps = steps
        self._edit = edit

    @cached_property
    def _style(self) -> Style:
        return detect_style(self._data, self._tree)

    def run(self) -> bytes:
        if self._edit.op == "remove":
            return self._remove()
        last = self._steps[-1]
        path = self._edit.path
        if self._edit.op == "insert":
            if not last.field.repeated or last.field.is_map:
                raise ConfigError(f"'{path}' is not a list: insert needs one", where=path)
            value = coerce_one(self._edit.value, last.field, path)
        elif last.key is not None:
            value = coerce_one(self._edit.value, last.field.body.fields["value"], path)
        elif last.index is not None:
            value = coerce_one(self._edit.value, last.field, path)
        else:
            value = coerce(self._edit.value, last.field, path)
        return self._write(value)

    # set and insert

    def _write(self, value: Any) -> bytes:
        message = self._tree
        for position, step in enumerate(self._steps[:-1]):
            found = element_of(message, step)
            if not isinstance(found, MessageNode):
                return self._changed(self._create(message, step, self._nested(position + 1, value)))
            message = found
        step = self._steps[-1]
        if self._edit.op == "insert":
            return self._changed(self._insert(message, step, value))
        if not step.picks:
            return self._set_whole(message, step, value)
        found = element_of(message, step)
        if found is None:
            kind = step.field
            if not kind.repeated and not kind.presence and value == kind.default:
                return self._data  # absent already reads as this
            return self._changed(self._create(message, step, value))
        if isinstance(found, MessageNode):
            return self._set_message(found, value)
        kind = step.field.body.fields["value"] if step.key is not None else step.field
        return self._changed(self._replace(found, kind, value))

    def _nested(self, position: int, value: Any) -> Any:
        """The value of step ``position - 1`` that holds what the later steps say."""
        for step in reversed(self._steps[position:]):
            if step.key is not None:
                value = {step.key: value}
            elif step.index is not None:
                if step.index != 0:
                    raise self._out_of_range(step, 0)
                value = [value]
            elif self._edit.op == "insert" and step is self._steps[-1]:
                value = [value]
            value = {step.field.name: value}
        return value

    def _out_of_range(self, step: Step, count: int) -> ConfigError:
        path = self._edit.path
        return ConfigError(f"'{path}': '{step.field.name}' has {count} elements, no index {step.index}", where=path)

    def _create(self, message: MessageNode, step: Step, value: Any) -> list[Change]:
        """Writes what a step names and the message does not have."""
        kind = step.field
        if step.key is not None:
            return self._new_entry(message, step, value)
        if step.index is not None:
            if step.index != len(elements(message, kind.name).nodes):
                raise self._out_of_range(step, len(elements(message, kind.name).nodes))
            return self._add_item(message, kind, step.index, value)
        for other in kind.siblings:
            if message.named(other):
                text = f'Field "{kind.name}" is specified along with field "{other}", another member of oneof'
                hint = f"remove '{other}' first"
                raise ConfigError(f'{text} "{kind.oneof}".', where=self._edit.path, hint=hint)
        return self._new_field(message, kind, value)

    def _new_field(self, message: MessageNode, kind: FieldType, value: Any) -> list[Change]:
        def render(indent: str, inline: bool) -> str:
            return render_field(value, kind, self._style, indent=indent, inline=inline)

        return new_field(self._data, message, kind, render, self._style)

    def _new_entry(self, message: MessageNode, step: Step, value: Any) -> list[Change]:
        place = entry_of(message, step)
        if place is not None:  # an entry without a value
            entry = place[0].items()[place[1]]
            assert isinstance(entry, MessageNode)
            return self._new_field(entry, entry.type.fields["value"], value)
        nodes = elements(message, step.field.name).nodes
        if not nodes and not message.named(step.field.name):
            return self._new_field(message, step.field, {step.key: value})
        return self._add_item(message, step.field, len(nodes), (step.key, value))

    def _body(self, kind: FieldType, value: Any, indent: str, inline: bool) -> str:
        if kind.is_map:
            key, item = value
            return render_entry(key, item, kind, self._style, indent=indent, inline=inline)
        if kind.kind == "message":
            return render_message(value, kind.body, self._style, indent=indent, inline=inline)
        return render_scalar(value, kind, self._style)

    def _add_item(self, message: MessageNode, kind: FieldType, index: int, value: Any) -> list[Change]:
        """One more element of a repeated field or map, before ``index`` or at the end, in the form that is used."""

        def body(indent: str, inline: bool) -> str:
            return self._body(kind, value, indent, inline)

        places = elements(message, kind.name).places
        written = message.named(kind.name)
        if not written:
            return self._new_field(message, kind, [value])
        if not places:
            empty = written[-1].value
            assert isinstance(empty, ListNode)
            return list_insert(self._data, empty, 0, body, self._style)
        node, inner = places[index] if index < len(places) else places[-1]
        if isinstance(node.value, ListNode):
            return list_insert(self._data, node.value, inner + (index >= len(places)), body, self._style)
        write = before_field if index < len(places) else after_field
        return write(self._data, message, node, like_field(self._data, node, body), self._style)

    def _insert(self, message: MessageNode, step: Step, value: Any) -> list[Change]:
        count = len(elements(message, step.field.name).nodes)
        index = count if step.index is None else step.index
        if index > count:
            raise self._out_of_range(step, count)
        return self._add_item(message, step.field, index, value)

    def _replace(self, node: ScalarNode, kind: FieldType, value: Any) -> list[Change]:
        current = _as_json(node, kind)
        if current == value and isinstance(current, bool) == isinstance(value, bool):
            return []
        first = self._data[node.start : node.start + 1].decode("latin-1")
        text = _in_style_of(node, kind, value, first).encode()
        gaps = [self._data[a.end : b.start] for a, b in zip(node.parts, node.parts[1:], strict=False)]
        if any(b"#" in gap for gap in gaps):  # comments between the parts of a string stay
            head, *rest = node.parts
            return [(head.start, head.end, text), *((part.start, part.end, b"") for part in rest)]
        return [(node.start, node.end, text)]

    def _set_message(self, node: MessageNode, value: dict[str, Any]) -> bytes:
        if node.type.full_name not in types():
            raise ConfigError("a map entry cannot be set whole", where=self._edit.path)
        current = _message_json(node, self._data)
        return self._sequence(message_edits(current, _without_defaults(value, node.type), node.type, self._edit.path))

    def _set_whole(self, message: MessageNode, step: Step, value: Any) -> bytes:
        """Sets a whole list or map."""
        kind, path = step.field, self._edit.path
        current = _message_json(message, self._data).get(kind.name, {} if kind.is_map else [])
        target = _without_defaults({kind.name: value}, message.type).get(kind.name, value)
        if current == target:
            return self._data
        if not target:
            return self._sequence([Edit(path, "remove")])
        if not current and not message.named(kind.name):
            return self._changed(self._new_field(message, kind, value))
        return self._sequence(field_edits(current, target, kind, path))

    def _sequence(self, edits: list[Edit]) -> bytes:
        data, tree = self._data, self._tree
        for each in edits:
            changed = apply_edit(data, tree, each)
            if changed != data:
                data, tree = changed, parse_syntax(changed)
        return data

    def _changed(self, changes: list[Change]) -> bytes:
        return apply_changes(self._data, changes) if changes else self._data

    # remove

    def _remove(self) -> bytes:
        message = self._tree
        for step in self._steps[:-1]:
            found = element_of(message, step)
            if not isinstance(found, MessageNode):
                return self._data
            message = found
        step = self._steps[-1]
        if step.index is not None:
            places = elements(message, step.field.name).places
            if step.index >= len(places):
                raise self._out_of_range(step, len(places))
            return self._changed(self._remove_item(message, *places[step.index]))
        if step.key is not None:
            place = entry_of(message, step)
            if place is None:
                return self._data
            return self._again(self._changed(self._remove_item(message, *place)))
        written = message.named(step.field.name)
        if not written:
            return self._data
        return self._again(self._changed(remove_field(self._data, message, written[-1])))

    def _again(self, data: bytes) -> bytes:
        """A name or key can be written several times: all of them go."""
        return apply_edit(data, parse_syntax(data), Edit(format_path(self._steps), "remove"))

    def _remove_item(self, message: MessageNode, node: FieldNode, index: int) -> list[Change]:
        if isinstance(node.value, ListNode) and len(node.value.items) > 1:
            return list_remove(self._data, node.value, index)
        return remove_field(self._data, message, node)


def _as_json(node: ScalarNode, kind: FieldType) -> Any:
    value = node.value
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, float) and kind.kind == "float" and value == value and abs(value) != float("inf"):
        return shortest_float(value)
    return value


def _in_style_of(node: ScalarNode, kind: FieldType, value: Any, first: str) -> str:
    """A new scalar in the way that the old one is written."""
    if kind.kind == "string":
        return render_scalar(value, kind, Style(quote=first if first in "\"'" else '"'))
    if kind.kind == "bool":
        pairs = {b"true": "false", b"false": "true", b"True": "False", b"False": "True", b"t": "f", b"f": "t"}
        written = node.parts[0].text
        return pairs.get(written, "1" if value else "0")  # the other one of the same pair
    if kind.enum is not None and node.parts[-1].kind == "integer":
        return str(kind.enum.numbers.get(value, value))
    return render_scalar(value, kind, Style())


def _message_json(node: MessageNode, data: bytes) -> dict[str, Any]:
    """What a message node stands for, as coerced JSON without defaults (map keys in their own type)."""
    made = _empty_message(node.type)
    Filler(data, "").fill(made, node)
    return to_json(made, defaults=False)


def _empty_message(kind: MessageType) -> Any:
    found: Any = pb()
    for name in kind.full_name.split(".")[1:]:
        found = getattr(found, name)
    return found()


def _without_defaults(value: dict[str, Any], kind: MessageType) -> dict[str, Any]:
    """Coerced JSON as ``to_json(defaults=False)`` would give it."""
    made = _empty_message(kind)
    fill(made, kind, value)
    return to_json(made, defaults=False)
