"""What each kind of thing gives to be written as a model directory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workbench.package.table import Inputs
from workbench.package.tensors import Feed, Signature


@dataclass(frozen=True, slots=True)
class Wish:
    """What was asked for: a name, example inputs, names of outputs, whether requests may share a batch (None: try).

    ``inputs``: how a table becomes inputs.
    """

    name: str
    examples: Any
    outputs: tuple[str, ...] = ()
    batching: bool | None = None
    inputs: Inputs | None = None


@dataclass(frozen=True, slots=True)
class Made:
    """A model ready to be written.

    ``feeds`` are the examples and ``answers`` what the thing itself answers to them. ``version`` are the files of
    version 1: bytes, or a file to copy. ``needs`` are requirements of its model.py; ``comment`` is about where the
    model comes from.
    """

    backend: str
    signature: Signature
    feeds: Sequence[Feed]
    answers: Sequence[Feed]
    version: dict[str, bytes | Path]
    comment: str
    needs: tuple[str, ...] = ()
