"""The run store: a directory of runs, one SQLite file each, beside the notebook, shareable as they are."""

from __future__ import annotations

import contextlib
import os
import re
import sqlite3
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.clock import utc_now_iso
from workbench.errors import InvalidRequest, NotFound, Unsupported
from workbench.records.holder import Holder
from workbench.records.run import SCHEMA_VERSION, SUFFIX, Run, RunInfo, plain, point_key, unwritable, write_draft

if TYPE_CHECKING:
    import pandas as pd

    from workbench.records.run_diff import RunDiff
    from workbench.records.run_share import Shared

__all__ = ["SCHEMA_VERSION", "SUFFIX", "Run", "RunInfo", "RunStore", "point_key"]

_Paths = list[Path]
_Infos = list[RunInfo]

_SHOWN = 20
"""How many runs a store shows of itself."""


_NAMED = 4
"""Of how many runs that an id's beginning fits the names are told."""


def _in_order(id: str) -> list[str | int]:
    """An id with its numbers as numbers: of the runs of one second the tenth comes after the ninth."""
    return [int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", id)]


class RunStore:
    """A directory of runs.

    Args:
        directory: made when the first run is written.
    """

    def __init__(self, directory: str | Path = "runs") -> None:
        self.directory = Path(directory)

    def create(self, kind: str, *, model: str = "", title: str = "", **meta: Any) -> Run:
        """A new run, open for writing; its file appears complete or not at all.

        Args:
            kind: ``sweep``, ``profile``, ``demo``, ...
            model: the model measured.
            title: what a person calls it.
            meta: more to say of it (``seed``, ``grid``, ``url``, ...), JSON values.

        Raises:
            InternalError: it cannot be written there.
        """
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            return self._create(kind, model, title, meta)
        except (OSError, sqlite3.Error) as error:
            raise unwritable(self.directory, error) from error

    def _create(self, kind: str, model: str, title: str, meta: Mapping[str, Any]) -> Run:
        created = utc_now_iso()
        stem = re.sub(r"[^0-9A-Za-z_.-]+", "_", f"{created[:19].replace(':', '').replace('T', '-')}-{kind}-{model}")
        path = self._free_path(stem.strip("-"))
        values = {"schema_version": SCHEMA_VERSION, "kind": kind, "model": model, "title": title, "created": created}
        holder = Holder.this_process(f"{kind} of '{model}'").to_json()
        values |= {"status": "running", "pid": os.getpid(), "holder": holder, **meta}
        draft = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            write_draft(draft, values)
            draft.replace(path)
        except BaseException:
            for left in (draft, draft.with_name(f"{draft.name}-journal"), path):
                left.unlink(missing_ok=True)
            raise
        return Run(path, read_only=False)

    def _free_path(self, stem: str) -> Path:
        number = 1
        while True:
            path = self.directory / f"{stem}{'' if number == 1 else f'-{number}'}{SUFFIX}"
            try:
                # Claims the name; the draft replaces this empty file.
                os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644))
                return path
            except FileExistsError:
                number += 1

    def open(self, run: str | Path, *, write: bool = False) -> Run:
        """Opens a run by its id, the beginning of one that fits only one run, ``latest``, or a path.

        Raises:
            NotFound: no run, or more than one, fits.
        """
        return Run(self.path(run), read_only=not write)

    def newest(self, kind: str, *, model: str = "", **meta: Any) -> str | None:
        """The id of the newest run of a kind and model that says the same of itself, None where there is none.

        Args:
            kind: as given to ``create``.
            model: the model measured.
            meta: what else it must say (``grid``, ``loads``, ...), JSON values.
        """
        wanted = {"kind": kind, "model": model, **{key: plain(value) for key, value in meta.items()}}
        for path in reversed(self._files()):
            try:
                with Run(path) as run:
                    said = run.meta
            except (NotFound, InvalidRequest, Unsupported, sqlite3.Error):
                continue
            if all(said.get(key) == value for key, value in wanted.items()):
                return path.name.removesuffix(SUFFIX)
        return None

    def path(self, run: str | Path) -> Path:
        """The file of a run; see ``open``."""
        if isinstance(run, Path) or str(run).endswith(SUFFIX):
            path = Path(run)
            return path if path.is_file() else self.directory / path.name
        files = self._files()
        if run == "latest" and files:
            return files[-1]
        exact = self.directory / f"{run}{SUFFIX}"
        if exact.is_file():
            return exact
        fitting = [path for path in files if path.name.startswith(run)]
        if len(fitting) == 1:
            return fitting[0]
        text = f"{len(fitting)} runs fit '{run}'" if fitting else f"there is no run '{run}'"
        names = ", ".join(path.name.removesuffix(SUFFIX) for path in fitting[-_NAMED:])
        hint = f"the last ones are {names}" if fitting else "`workbench runs list` shows what there is"
        hint = hint if files else "it holds no run at all: is it the directory that was meant? (--runs DIR)"
        raise NotFound(f"{text} in {self.directory}", hint=hint)

    def frame(self) -> pd.DataFrame:
        """The list of runs as a table."""
        import pandas as pd

        columns = ("id", "kind", "model", "title", "created", "status", "points", "note")
        return pd.DataFrame([{name: getattr(info, name) for name in columns} for info in self.list()], columns=columns)

    def diff(self, a: str | Path, b: str | Path) -> RunDiff:
        """Two runs side by side: see ``run_diff``.

        Raises:
            NotFound: there is no such run.
        """
        from workbench.records.run_diff import diff_runs

        with self.open(a) as first, self.open(b) as second:
            return diff_runs(first, second)

    def annotate(self, run: str | Path, text: str) -> None:
        """Adds a note to a run; it is shown with it and goes with it.

        Raises:
            InvalidRequest: an empty note.
            NotFound: there is no such run.
        """
        if not text.strip():
            raise InvalidRequest("a note must say something", where=str(run))
        with self.open(run, write=True) as opened:
            opened.annotate(text.strip())

    def share(self, run: str | Path, to: str | Path, *, inputs: bool = False, overwrite: bool = False) -> Shared:
        """Writes one self-contained file for others and says what is in it: see ``run_share.share_run``.

        Args:
            run: which.
            to: the file, or a directory for it.
            inputs: with what was captured of requests, if the run holds any.
            overwrite: replace a file that is there.
        """
        from workbench.records.run_share import share_run

        with self.open(run) as opened:
            return share_run(opened, Path(to), inputs=inputs, overwrite=overwrite)

    def export(self, run: str | Path, to: str | Path, **options: Any) -> Path:
        """Writes a table of a run as CSV, Parquet or Arrow: see ``run_export.export_table`` for the options."""
        from workbench.records.run_export import export_table

        with self.open(run) as opened:
            return export_table(opened, Path(to), **options)

    def to_mlflow(self, run: str | Path, **options: Any) -> str:
        """Writes a run to MLflow and gives its id there: see ``run_export.to_mlflow`` for the options."""
        from workbench.records.run_export import to_mlflow

        with self.open(run) as opened:
            return to_mlflow(opened, **options)

    def delete(self, run: str | Path) -> None:
        """Deletes a run.

        Raises:
            NotFound: there is none, or more than one fits.
            NotReady: it is being written.
        """
        path = self.path(run)
        with contextlib.suppress(InvalidRequest, Unsupported, sqlite3.Error), Run(path) as opened:
            opened.check_unused()
        path.unlink()
        with contextlib.suppress(FileNotFoundError):
            path.with_name(path.name + "-journal").unlink()

    def __repr__(self) -> str:
        files = self._files()
        head = f"Runs in {self.directory}: {len(files)}" + (f", the last {_SHOWN}:" if len(files) > _SHOWN else "")
        infos = self._infos(files[-_SHOWN:])
        rows = [(i.id, i.kind, i.model, i.status, f"{i.points} point{'s' * (i.points != 1)}", i.title) for i in infos]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)
        return "\n".join([head, *(f"  {line.rstrip()}" for line in lines)])

    def _files(self) -> _Paths:
        paths = (path for path in self.directory.glob(f"*{SUFFIX}") if not path.name.startswith("."))
        return sorted(paths, key=lambda path: _in_order(path.name.removesuffix(SUFFIX)))

    def list(self) -> _Infos:
        """All runs, oldest first; files that cannot be read are listed with status ``unreadable``."""
        return self._infos(self._files())

    def _infos(self, files: _Paths) -> _Infos:
        out = []
        for path in files:
            try:
                with Run(path) as run:
                    out.append(run.info)
            except (InvalidRequest, Unsupported, sqlite3.Error):
                if path.stat().st_size:  # an empty file is a run in the making
                    name = path.name.removesuffix(SUFFIX)
                    out.append(RunInfo(name, path, "", "", "", "", "unreadable", 0))
        return out
