"""The cells of a Jupyter notebook as passages of its file."""

from __future__ import annotations

import json
import re

from workbench.config.texts.nodes import JsonFault, Node, from_json_text
from workbench.config.texts.source import SourceFile

_ESCAPE = re.compile(r"\\(?:u[0-9a-fA-F]{4}|.)")


class Cell:
    """A cell: its type, its source, and where each character of that stands in the file."""

    def __init__(self, kind: str, text: str, places: list[int]) -> None:
        self.kind = kind
        self.text = text
        self.places = places


def cells(source: SourceFile) -> list[Cell]:
    """The cells of a notebook in order; none where the file is no notebook."""
    try:
        root = from_json_text(source.text)
    except JsonFault:
        return []
    out: list[Cell] = []
    found = root.get("cells")
    for node in (found.items if found is not None else None) or []:
        kind, text = node.get("cell_type"), node.get("source")
        if kind is None or text is None or kind.string not in ("code", "markdown"):
            continue
        parts = text.items if text.items is not None else [text]
        out.append(_cell(kind.string, parts, source.text))
    return out


def _cell(kind: str, parts: list[Node], text: str) -> Cell:
    chars: list[str] = []
    places: list[int] = []
    end = parts[-1].end - 1 if parts else 0
    for part in parts:
        if part.string is None:
            continue
        at = part.start + 1
        while at < part.end - 1:
            match = _ESCAPE.match(text, at)
            stop = match.end() if match is not None else at + 1
            for char in json.loads(f'"{text[at:stop]}"') if match is not None else text[at:stop]:
                chars.append(char)
                places.append(at)
            at = stop
    places.append(end)
    return Cell(kind, "".join(chars), places)
