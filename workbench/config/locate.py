"""Finding a path's place in a syntax tree."""

from __future__ import annotations

from workbench.config.path import Step, parse_path
from workbench.config.syntax import FieldNode, MessageNode, ScalarNode, elements, map_key
from workbench.config.tokens import Positions, Span


def entry_of(message: MessageNode, step: Step) -> tuple[FieldNode, int] | None:
    """The last entry of a map that has the step's key, as its field and index in the field's list."""
    key = step.key.encode() if isinstance(step.key, str) else step.key
    found = None
    places = elements(message, step.field.name)
    for place, node in zip(places.places, places.nodes, strict=True):
        if isinstance(node, MessageNode) and map_key(node) == key:
            found = place
    return found


def entry_value(entry: MessageNode) -> ScalarNode | MessageNode | None:
    """The value of a map entry as written."""
    for node in entry.named("value"):
        return node.items()[0]
    return None


def element_of(message: MessageNode, step: Step) -> ScalarNode | MessageNode | None:
    """What a step of a path names in a message: a value, an element, or a map entry's value."""
    if step.key is not None:
        place = entry_of(message, step)
        entry = place[0].items()[place[1]] if place is not None else None
        return entry_value(entry) if isinstance(entry, MessageNode) else None
    nodes = elements(message, step.field.name).nodes
    index = step.index or 0
    return nodes[index] if index < len(nodes) else None


def find_span(data: bytes, tree: MessageNode, path: str, *, nearest: bool) -> Span | None:
    """The span of what a path names; see ``ConfigDocument.locate``."""
    positions = Positions(data)
    message = tree
    around: Span | None = None
    for step in parse_path(path):
        written = message.named(step.field.name)
        if not step.picks and written:
            first, last = written[0], written[-1]
            if len(written) == 1:
                return positions.span(first.value.start, first.value.end)
            return positions.span(first.start, last.end)
        found = element_of(message, step)
        if found is None:
            if step.key is not None and (place := entry_of(message, step)) is not None:
                entry = place[0].items()[place[1]]
                around = positions.span(entry.start, entry.end)
            elif written:
                around = positions.span(written[-1].start, written[-1].end)
            break
        around = positions.span(found.start, found.end)
        if not isinstance(found, MessageNode):
            return around
        message = found
    else:
        return around
    if not nearest:
        return None
    return around or positions.span(0, 0)
