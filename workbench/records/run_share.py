"""A run as one file to hand on: complete in itself, without what was captured and without the server's address."""

from __future__ import annotations

import contextlib
import os
import re
import sqlite3
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import orjson

from workbench.errors import AlreadyExists, InvalidRequest
from workbench.records.run import SUFFIX, Run, dumps, unwritable

MEASURED = ("records", "samples")
"""Kinds of raw data that hold times and names, no inputs; any other kind is left out unless it is asked for."""

_OF_THIS_PLACE = ("pid", "holder", "url")


@dataclass(frozen=True, slots=True)
class Shared:
    """A file made for others, and what is in it: numbers of points, configurations, records (requests of the server's
    side), samples (requests of the generator's side), captured inputs and notes; ``left_out`` says what is not."""

    path: Path
    size: int
    points: int
    configurations: int
    records: int
    samples: int
    captured: int
    notes: int
    left_out: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """As a dictionary for JSON."""
        return {**asdict(self), "path": str(self.path)}

    def __repr__(self) -> str:
        raw = ", ".join(
            f"{count} {what}"
            for count, what in (
                (self.records, "requests as the server recorded them"),
                (self.samples, "requests as the generator stamped them"),
                (self.captured, "captured inputs"),
                (self.notes, "notes"),
            )
            if count
        )
        lines = [
            f"{self.path} ({self.size / 1024:.0f} KiB)",
            f"  holds {_counted(self.points, 'point')}, {_counted(self.configurations, 'configuration')} with their "
            "parameters, the environment" + (f", {raw}" if raw else ""),
        ]
        lines += [f"  left out: {', '.join(self.left_out)}"] if self.left_out else []
        return "\n".join(lines)


def _counted(number: int, thing: str) -> str:
    return f"{number} {thing}{'s' * (number != 1)}"


def share_run(run: Run, to: Path, *, inputs: bool = False, overwrite: bool = False) -> Shared:
    """Writes a copy of a run, also of one that is being written; its file appears complete or not at all.

    Args:
        run: what to share.
        to: the file, or a directory for it.
        inputs: with what was captured of requests, if the run holds any.
        overwrite: replace a file that is there.

    Raises:
        AlreadyExists: there is such a file.
        InvalidRequest: it has the ending of another kind of file.
        InternalError: it cannot be written there.
    """
    target = to / run.path.name if to.is_dir() else _named(to)
    if target.exists() and (not overwrite or target.samefile(run.path)):
        # its own file is never replaced
        hint = "give another name" if overwrite else "give another name, or overwrite=True"
        raise AlreadyExists(f"{target} is there already", where=str(target), hint=hint)
    draft = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.closing(sqlite3.connect(draft, isolation_level=None)) as copy:
            run.copy_to(copy)
            left_out = _strip(copy, inputs=inputs)
            counts = _counts(copy)
        draft.replace(target)
    except (OSError, sqlite3.Error) as error:
        raise unwritable(target, error) from error
    finally:
        for left in (draft, draft.with_name(f"{draft.name}-journal")):
            left.unlink(missing_ok=True)
    return Shared(path=target, size=target.stat().st_size, left_out=left_out, **counts)


def _named(to: Path) -> Path:
    """The file with the ending of a run; one that says something else is not a slip to be mended in silence.

    Raises:
        InvalidRequest: it has the ending of another kind of file.
    """
    if to.name.endswith(SUFFIX):
        return to
    name = to.name.removesuffix(".sqlite")
    other = re.search(r"\.[A-Za-z][A-Za-z0-9]{0,7}\Z", name)
    if other is not None:
        table = " a table: workbench runs export, to .csv, .parquet or .arrow;" if other[0].lower() in _TABLES else ""
        raise InvalidRequest(
            f"a run is shared as a {SUFFIX} file, which holds all of it, not as {other[0]}",
            where=str(to),
            hint=f"{table} a run for others: {name.removesuffix(other[0])}{SUFFIX}".strip(),
        )
    return to.with_name(name + SUFFIX)


_TABLES = (".csv", ".parquet", ".pq", ".arrow", ".feather", ".xlsx", ".json", ".html", ".htm")
"""Endings of what people look at, of which a table of the run may be meant."""


def _strip(copy: sqlite3.Connection, *, inputs: bool) -> tuple[str, ...]:
    """Takes out what is not for others; vacuumed, so that nothing of it stays in free pages."""
    left_out = ["the server's address and process"]
    copy.execute("BEGIN")
    copy.executemany("DELETE FROM meta WHERE key = ?", [(key,) for key in _OF_THIS_PLACE])
    for number, row, data in copy.execute("SELECT id, row, data FROM points").fetchall():
        copy.execute(
            "UPDATE points SET row = ?, data = ? WHERE id = ?",
            (_without_place(orjson.loads(row)), _without_place(orjson.loads(data)), number),
        )
    if not inputs:
        marks = ", ".join("?" * len(MEASURED))
        gone = copy.execute(f"DELETE FROM records WHERE kind NOT IN ({marks})", MEASURED).rowcount
        if gone:
            left_out.append("captured inputs")
    copy.execute("COMMIT")
    copy.execute("VACUUM")
    return tuple(left_out)


def _without_place(value: Mapping[str, Any]) -> str:
    return dumps({key: item for key, item in value.items() if key not in _OF_THIS_PLACE})


def _counts(copy: sqlite3.Connection) -> dict[str, int]:
    def number(query: str, *values: Any) -> int:
        return int(copy.execute(query, values).fetchone()[0] or 0)

    notes = copy.execute("SELECT value FROM meta WHERE key = 'notes'").fetchone()
    return {
        "points": number("SELECT count(*) FROM points"),
        "configurations": number("SELECT count(*) FROM configs"),
        "records": number("SELECT sum(n) FROM records WHERE kind = 'records'"),
        "samples": number("SELECT sum(n) FROM records WHERE kind = 'samples'"),
        "captured": number("SELECT sum(n) FROM records WHERE kind NOT IN ('records', 'samples')"),
        "notes": len(orjson.loads(notes[0])) if notes else 0,
    }
