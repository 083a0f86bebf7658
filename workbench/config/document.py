"""A config.pbtxt that can be edited without touching what is not edited."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from functools import cached_property

from workbench.config.convert import message_from_syntax
from workbench.config.editing import apply_edit
from workbench.config.locate import find_span
from workbench.config.path import Edit
from workbench.config.schema import Message
from workbench.config.syntax import MessageNode, parse_syntax
from workbench.config.tokens import Span


class ConfigDocument:
    """The bytes of a config.pbtxt, their syntax tree and the message that they stand for. Never changes.

    Made by ``parse``; ``edit`` gives a new document.
    """

    def __init__(self, data: bytes, tree: MessageNode, path: str) -> None:
        self.data = data
        self.path = path
        self.tree = tree

    @classmethod
    def parse(cls, data: bytes, path: str = "") -> ConfigDocument:
        """Reads a config.pbtxt.

        Args:
            data: the file's bytes, whatever their encoding.
            path: the file's name, for error texts only.

        Raises:
            ParseError: a ``ConfigError`` with message, line and column of Triton's own parser.
        """
        document = cls(bytes(data), parse_syntax(bytes(data), where=str(path)), str(path))
        _ = document._message  # strings that are not UTF-8 are refused here
        return document

    @cached_property
    def _message(self) -> Message:
        return message_from_syntax(self.tree, self.data, where=self.path)

    @property
    def message(self) -> Message:
        """A copy of the ``inference.ModelConfig`` as written: nothing completed, nothing normalised."""
        copy = type(self._message)()
        copy.CopyFrom(self._message)
        return copy

    @property
    def text(self) -> str:
        """The file as text for showing; bytes that are not UTF-8 show as a replacement character."""
        return self.data.decode("utf-8", "replace")

    def edit(self, edits: Edit | Iterable[Edit]) -> ConfigDocument:
        """The document with the edits made, one after the other; comments, order and formatting stay.

        Setting a value to what it is changes no byte.

        Raises:
            ConfigError: a path or value that the schema does not have, an index out of range, or a second member of a
                oneof (remove the first before).
        """
        current = self
        for each in [edits] if isinstance(edits, Edit) else edits:
            data = apply_edit(current.data, current.tree, each, where=self.path)
            if data != current.data:
                current = ConfigDocument.parse(data, self.path)
        return current

    def diff(self, other: ConfigDocument) -> str:
        """A unified diff from this document to ``other``; empty where they are the same."""
        name = self.path or "config.pbtxt"
        before = self.data.decode("utf-8", "replace").splitlines(keepends=True)
        after = other.data.decode("utf-8", "replace").splitlines(keepends=True)
        lines = difflib.unified_diff(before, after, f"a/{name.lstrip('/')}", f"b/{name.lstrip('/')}")
        return "".join(line if line.endswith("\n") else line + "\n\\ No newline at end of file\n" for line in lines)

    def locate(self, path: str, *, nearest: bool = False) -> Span | None:
        """Where a path's value stands in the file; None where it is not written there.

        Args:
            path: as in an edit.
            nearest: where it is not written, give the closest thing around it that is.

        Raises:
            ConfigError: the schema has no such path.
        """
        return find_span(self.data, self.tree, path, nearest=nearest)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ConfigDocument) and self.data == other.data

    def __hash__(self) -> int:
        return hash(self.data)

    def __repr__(self) -> str:
        lines = self.data.count(b"\n") + (not self.data.endswith(b"\n") and bool(self.data))
        return f"ConfigDocument({self.path or 'config.pbtxt'}: {lines} lines, {len(self.tree.fields)} fields)"
