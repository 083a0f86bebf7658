"""What each kind of thing gives to be written as a model directory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from workbench.package.table import Inputs
from workbench.package.tensors import Feed, Signature


@dataclass(frozen=True, slots=True)
class Wish:
    """What was asked for: a name, example inputs, names of outputs, whether requests may share a batch (None: try).

    ``inputs``: how a table becomes inputs. ``backend``: the one that is to serve it, "" for the usual one.
    """

    name: str
    examples: Any
    outputs: tuple[str, ...] = ()
    batching: bool | None = None
    inputs: Inputs | None = None
    backend: str = ""


@dataclass(frozen=True, slots=True)
class Made:
    """A model ready to be written.

    ``feeds`` are the examples and ``answers`` what the thing itself answers to them. ``version`` are the files of
    version 1: bytes, or a file to copy. ``needs`` are requirements of its model.py; ``comment`` is about where the
    model comes from; ``parameters`` go into the configuration, ``usual_batch_size`` is
    ``max_batch_size`` where none is asked for, 0 for that of all kinds.
    """

    backend: str
    signature: Signature
    feeds: Sequence[Feed]
    answers: Sequence[Feed]
    version: dict[str, bytes | Path]
    comment: str
    needs: tuple[str, ...] = ()
    parameters: Mapping[str, str] = field(default_factory=dict)
    usual_batch_size: int = 0
