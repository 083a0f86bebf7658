"""A table of texts in SQLite and the table of their vectors beside it: what the batch worker reads and writes.

Vectors are committed batch by batch, with what they were made of: a worker that is killed has lost what it had not
committed, and does none of the rest again. A text that changes is done again, and so is each of another model.
"""

from __future__ import annotations

import contextlib
import hashlib
import sqlite3
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from workbench.errors import AlreadyExists, InternalError, InvalidRequest, NotFound

_BUSY_S = 30.0
"""How long to wait for another process that writes to the database."""

_ENCODINGS = {"UTF-8": "utf-8", "UTF-16le": "utf-16-le", "UTF-16be": "utf-16-be"}

Key = int | float | str | bytes
"""A row's key, as it lies in the table."""


@dataclass(frozen=True, slots=True)
class Document:
    """A row that has no vector yet. ``text`` is None where it holds none (NULL, a BLOB)."""

    key: Key
    text: str | None
    digest: bytes


@dataclass(frozen=True, slots=True)
class Embedded:
    """What became of a row: a vector, fp32 [width], or the reason why there is none."""

    document: Document
    vector: NDArray[np.float32] | None = None
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableNames:
    """The table of the texts, its key and its column of texts, and the table of vectors, made where it is missing."""

    table: str = "documents"
    key: str = "id"
    text: str = "text"
    vectors: str = "vectors"


class DocumentTable:
    """An open database. One thread uses it; the lock beside it keeps a second worker from the same vectors.

    The vectors' table has ``id`` (the row's key), ``vector`` (fp32, little-endian, NULL where there is none),
    ``model``, ``digest`` (of model and text) and ``error``.

    Args:
        path: the database; it must be there.
        model: by what vectors are made; those of another one do not count.
        names: the tables and columns.

    Raises:
        NotFound: no such file, or table.
        InvalidRequest: no database, no such column.
        AlreadyExists: another worker has it open.
    """

    def __init__(self, path: str | Path, model: str, names: TableNames | None = None) -> None:
        self.path, self.model = Path(path), model
        self._names = names or TableNames()
        if not self.path.is_file():
            raise NotFound(f"there is no database {self.path}", hint="pandas: frame.to_sql('documents', connection)")
        self._lock = _locked(self.path.with_name(f"{self.path.name}.{self._names.vectors}.lock"))
        try:
            self._connection = sqlite3.connect(self.path, timeout=_BUSY_S, isolation_level=None)
            try:
                with self._told():
                    self._prepare()
            except BaseException:
                self._connection.close()
                raise
        except BaseException:
            self._lock.close()
            raise
        self._seen = -1
        self._width: int | None = None

    def _prepare(self) -> None:
        ask = self._connection.execute
        self._encoding = _ENCODINGS[ask("PRAGMA encoding").fetchone()[0]]
        self._connection.create_function("digest_of", 1, self._digest, deterministic=True)
        names = self._names
        tables = [row[0] for row in ask("SELECT name FROM sqlite_master WHERE type IN ('table', 'view')")]
        if names.table not in tables:
            known = f"it has: {', '.join(tables)}" if tables else "it has none"
            raise NotFound(f"there is no table '{names.table}'", where=str(self.path), hint=known)
        columns = {row[1]: row[2] for row in ask(f"PRAGMA table_info({_quoted(names.table)})")}
        for column in (names.key, names.text):
            if column not in columns:
                raise InvalidRequest(
                    f"table '{names.table}' has no column '{column}'",
                    where=str(self.path), hint=f"it has: {', '.join(columns)}",
                )  # fmt: skip
        ask(
            f"CREATE TABLE IF NOT EXISTS {_quoted(names.vectors)} (id {_affinity(columns[names.key])} PRIMARY KEY, "
            "vector BLOB, model TEXT NOT NULL, digest BLOB NOT NULL, error TEXT NOT NULL)"
        )
        if [row[1] for row in ask(f"PRAGMA table_info({_quoted(names.vectors)})")] != _COLUMNS:
            raise InvalidRequest(
                f"the table '{names.vectors}' is none that a worker made", where=str(self.path), hint="name another"
            )
        key, text = _quoted(names.key), f"CAST(d.{_quoted(names.text)} AS BLOB)"
        twice = ask(f"SELECT COUNT(d.{key}) - COUNT(DISTINCT d.{key}) FROM {_quoted(names.table)} d").fetchone()[0]
        if twice:
            raise InvalidRequest(
                f"'{names.key}' is no key of '{names.table}': {twice} rows have one that another row has",
                where=str(self.path),
            )
        self._pending = (
            f"FROM {_quoted(names.table)} d LEFT JOIN {_quoted(names.vectors)} v ON v.id = d.{key} "
            f"WHERE d.{key} IS NOT NULL AND (v.id IS NULL OR v.digest IS NOT digest_of({text}))"
        )
        self._next = f"SELECT d.{key}, {text}, typeof(d.{_quoted(names.text)}) {self._pending}"
        self._order = f" AND d.{key} > ? ORDER BY d.{key} LIMIT ?"
        self._first_order = f" ORDER BY d.{key} LIMIT ?"
        # Only what is still so: a text that has changed meanwhile is done again.
        self._save = (
            f"INSERT OR REPLACE INTO {_quoted(names.vectors)} SELECT ?, ?, ?, ?, ? WHERE EXISTS "
            f"(SELECT 1 FROM {_quoted(names.table)} d WHERE d.{key} = ? AND digest_of({text}) = ?)"
        )

    def _digest(self, text: bytes | None) -> bytes:
        seen = hashlib.sha256(self.model.encode() + (b"\0" if text is None else b"\1"))
        seen.update(text or b"")
        return seen.digest()[:16]

    def changed(self) -> bool:
        """Whether another process has written to the database since the last call; True at the first."""
        with self._told():
            version = self._connection.execute("PRAGMA data_version").fetchone()[0]
        before, self._seen = self._seen, version
        return bool(version != before)

    def left(self) -> int:
        """How many rows have no vector of their text by this model."""
        with self._told():
            return int(self._connection.execute(f"SELECT COUNT(*) {self._pending}").fetchone()[0])

    def pending(self, limit: int, after: Key | None = None) -> list[Document]:
        """Rows without a vector, by their keys, behind one key or from the beginning."""
        order, given = (self._first_order, (limit,)) if after is None else (self._order, (after, limit))
        with self._told():
            rows = self._connection.execute(self._next + order, given).fetchall()
        return [Document(key, self._text(text, kind), self._digest(text)) for key, text, kind in rows]

    def _text(self, text: bytes | None, kind: str) -> str | None:
        if text is None or kind == "blob":
            return None
        return text.decode(self._encoding, "replace")

    def save(self, rows: Sequence[Embedded]) -> None:
        """Commits what became of rows, all or nothing.

        Raises:
            InternalError: the database cannot be written; nothing of it is.
            InvalidRequest: a vector is of another width than those that the model has given; nothing is written.
        """
        widths = {len(row.vector) for row in rows if row.vector is not None}
        width = self._fitting(widths) if widths else self._width
        values = [
            (
                row.document.key,
                None if row.vector is None else np.ascontiguousarray(row.vector, "<f4").tobytes(),
                self.model, row.document.digest, row.error, row.document.key, row.document.digest,
            )
            for row in rows
        ]  # fmt: skip
        with self._told():
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                self._connection.executemany(self._save, values)
                self._connection.execute("COMMIT")
                self._width = width
            except BaseException:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                raise

    def _fitting(self, widths: set[int]) -> int:
        """Holds the widths of new vectors against the one of those that are there by the same model, and gives it.

        Raises:
            InvalidRequest: they differ: it is another model under the same name.
        """
        names, known = self._names, self._width
        if known is None:
            query = (
                f"SELECT length(vector) FROM {_quoted(names.vectors)} WHERE model = ? AND vector IS NOT NULL LIMIT 1"
            )
            with self._told():
                found = self._connection.execute(query, (self.model,)).fetchone()
            known = int(found[0]) // 4 if found else min(widths)
        other = widths - {known}
        if other:
            raise InvalidRequest(
                f"'{self.model}' gives vectors of {min(other)} numbers; '{names.vectors}' has some of {known} by it",
                where=str(self.path),
                hint="it is another model under this name: name another table for its vectors, or empty this one",
            )
        return known

    def close(self) -> None:
        """Lets go of the database."""
        self._connection.close()
        self._lock.close()

    def __enter__(self) -> DocumentTable:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    @contextlib.contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.OperationalError as error:
            raise InternalError(
                f"the database cannot be used: {error}", where=str(self.path),
                hint="what was committed stays; start again once it can",
            ) from error  # fmt: skip
        except sqlite3.DatabaseError as error:
            raise InvalidRequest(f"this is no SQLite database: {error}", where=str(self.path)) from error


_COLUMNS = ["id", "vector", "model", "digest", "error"]


def read_vectors(
    path: str | Path, vectors: str = "vectors", *, model: str = ""
) -> tuple[list[Key], NDArray[np.float32]]:
    """The keys and the vectors, fp32 [n, width] ([0, 0] where there are none yet), that a worker has committed.

    Only those by ``model``, where one is named.

    Raises:
        NotFound: no such file, or no such table.
        InvalidRequest: they are by several models and none is named: they lie in different spaces.
    """
    if not Path(path).is_file():
        raise NotFound(f"there is no database {path}")
    with contextlib.closing(sqlite3.connect(path, timeout=_BUSY_S)) as connection:
        try:
            rows = connection.execute(
                f"SELECT id, vector, model FROM {_quoted(vectors)} "
                "WHERE vector IS NOT NULL AND (model = ? OR ? = '') ORDER BY id",
                (model, model),
            ).fetchall()
        except sqlite3.DatabaseError as error:
            raise NotFound(f"there are no vectors: {error}", where=str(path)) from error
    by = Counter(name for _, _, name in rows)
    if len(by) > 1:
        counts = ", ".join(f"{name} ({count})" for name, count in sorted(by.items()))
        raise InvalidRequest(
            f"the vectors are by several models: {counts}",
            where=str(path), hint="name one with model=; a worker does those of another model again, row by row",
        )  # fmt: skip
    found = [np.frombuffer(vector, "<f4") for _, vector, _ in rows]
    return [key for key, _, _ in rows], np.array(found, np.float32).reshape(len(rows), -1 if rows else 0)


def _affinity(declared: str) -> str:
    """A declared type of SQLite's as the simplest one that compares alike, so that the join finds its index.

    Source: SQLite, Datatypes in SQLite, 3.1.
    """
    for words, affinity in ((("INT",), "INTEGER"), (("CHAR", "CLOB", "TEXT"), "TEXT"), (("BLOB",), "BLOB"),
                            (("REAL", "FLOA", "DOUB"), "REAL")):  # fmt: skip
        if any(word in declared.upper() for word in words):
            return affinity
    return "NUMERIC" if declared else "BLOB"


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _locked(path: Path) -> IO[Any]:
    """The file, open, with a lock that the system gives back however this process ends."""
    try:
        file = path.open("a")
    except OSError as error:
        raise InvalidRequest(
            f"the database's directory cannot be written: {error.strerror}", where=str(path.parent)
        ) from error
    if sys.platform != "win32":
        import fcntl

        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            file.close()
            raise AlreadyExists("another worker has this table open", where=str(path)) from error
    return file
