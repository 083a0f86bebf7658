"""One run as a SQLite file: what was measured, with which configurations, where, and raw records.

Every change is one transaction with a rollback journal (no WAL: it fails on network homes), so a writer that is killed
leaves a file that reads up to its last complete point.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import sqlite3
import threading
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson
import psutil
from numpy.typing import NDArray

from workbench.clock import utc_now_iso
from workbench.errors import InternalError, InvalidRequest, NotFound, NotReady, Unsupported
from workbench.records.columns import Columns, RecordColumns, decode_columns, encode_columns
from workbench.records.environment import capture_environment
from workbench.records.holder import Holder

if TYPE_CHECKING:
    import pandas as pd

SCHEMA_VERSION = 1
SUFFIX = ".run.sqlite"

_SCHEMA = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE environment (key TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE configs (id INTEGER PRIMARY KEY, hash TEXT UNIQUE NOT NULL, model TEXT NOT NULL, json TEXT NOT NULL,
                      text TEXT NOT NULL);
CREATE TABLE points (id INTEGER PRIMARY KEY, key TEXT NOT NULL, config_id INTEGER REFERENCES configs(id),
                     created TEXT NOT NULL, row TEXT NOT NULL, data TEXT NOT NULL);
CREATE INDEX points_by_key ON points(key);
CREATE TABLE records (point_id INTEGER REFERENCES points(id), kind TEXT NOT NULL, n INTEGER NOT NULL,
                      header TEXT NOT NULL, data BLOB NOT NULL);
"""


@dataclass(frozen=True, slots=True)
class RunInfo:
    """A line of the list of runs.

    ``status`` is ``running``, ``done``, ``stopped``, ``failed``, ``interrupted`` (its writer is gone), ``unreadable``.
    ``note`` is the last one added.
    """

    id: str
    path: Path
    kind: str
    model: str
    title: str
    created: str
    status: str
    points: int
    note: str = ""


def point_key(**parts: Any) -> str:
    """The hash by which a point is known again: of model content, config, inputs, load, seed and device.

    Equal parts give equal keys, whatever the order of mapping keys.
    """
    encoded = orjson.dumps(plain(parts), option=orjson.OPT_SORT_KEYS | orjson.OPT_NON_STR_KEYS)
    return hashlib.sha256(encoded).hexdigest()[:32]


class Run:
    """One run, open for reading or writing. Thread-safe."""

    def __init__(self, path: Path, *, read_only: bool = True) -> None:
        self.path = Path(path)
        self._lock = threading.RLock()
        if not self.path.is_file():
            raise NotFound(f"there is no run at {self.path}", hint="`workbench runs list` shows what there is")
        # Opened for writing even to read: a journal that a killed writer left must be rolled back.
        try:
            self._connection = sqlite3.connect(self.path, isolation_level=None, check_same_thread=False, timeout=10.0)
            version = int(self._meta("schema_version"))
        except (sqlite3.Error, KeyError, ValueError) as error:
            raise InvalidRequest(f"{self.path} is not a run of the workbench: {error}", where=str(self.path)) from error
        if version > SCHEMA_VERSION:
            raise Unsupported(
                f"{self.path.name} is of a newer workbench (schema {version}, this one reads {SCHEMA_VERSION})",
                where=str(self.path),
                hint="update serving-workbench",
            )
        self.read_only = read_only

    # -- reading ------------------------------------------------------------------------------------------------------

    @property
    def id(self) -> str:
        """The run's name."""
        return self.path.name.removesuffix(SUFFIX)

    @property
    def meta(self) -> dict[str, Any]:
        """What is said of the run as a whole: ``kind``, ``model``, ``title``, ``created``, ``status``, ``seed``, ..."""
        return {key: orjson.loads(value) for key, value in self._all("SELECT key, value FROM meta")}

    @property
    def info(self) -> RunInfo:
        """The run's line in the list."""
        meta = self.meta
        status = str(meta.get("status", ""))
        if status == "running" and _writer_is_gone(meta):
            status = "interrupted"
        count = self._all("SELECT count(*) FROM points")[0][0]
        texts = {key: str(meta.get(key, "")) for key in ("kind", "model", "title", "created")}
        note = str(([{}, *meta.get("notes", ())][-1]).get("text", ""))
        return RunInfo(id=self.id, path=self.path, status=status, points=int(count), note=note, **texts)

    def environment(self) -> dict[str, Any]:
        """Where it was measured."""
        return {key: orjson.loads(value) for key, value in self._all("SELECT key, value FROM environment")}

    def points(self) -> list[dict[str, Any]]:
        """The points in full, in the order of measuring; each with its ``id`` here and its ``key``."""
        rows = self._all("SELECT id, key, data FROM points ORDER BY id")
        return [{**orjson.loads(data), "id": number, "key": key} for number, key, data in rows]

    def frame(self) -> pd.DataFrame:
        """The points as a tidy table, one row a point."""
        import pandas as pd

        rows = self._all("SELECT row FROM points ORDER BY id")
        return pd.DataFrame([orjson.loads(row) for (row,) in rows])

    def keys(self) -> set[str]:
        """Keys of the points that are there, for resuming."""
        return {key for (key,) in self._all("SELECT key FROM points")}

    def configs(self) -> list[dict[str, Any]]:
        """The configurations measured: ``id``, ``hash``, ``model``, ``config`` (Triton's JSON), ``text``."""
        rows = self._all("SELECT id, hash, model, json, text FROM configs ORDER BY id")
        return [
            {"id": number, "hash": digest, "model": model, "config": orjson.loads(json), "text": text}
            for number, digest, model, json, text in rows
        ]

    def records(self, point: int) -> RecordColumns:
        """The server's records of a point.

        Raises:
            NotFound: none were kept.
        """
        header, data = self._blob(point, "records")
        return decode_columns(header.encode(), data)

    def samples(self, point: int) -> dict[str, NDArray[Any]]:
        """The generator's stamps of a point: ``scheduled``, ``sent``, ``done`` (ns), ``status``; of streams also
        ``response_of`` and ``response_at``, of several classes ``class_of`` (in the order of the point's ``classes``),
        of sequences that kept requests waiting ``held``.

        Raises:
            NotFound: none were kept.
        """
        header, data = self._blob(point, "samples")
        out, offset = {}, 0
        for name, dtype, count in orjson.loads(header):
            out[name] = np.frombuffer(data, dtype=dtype, count=count, offset=offset)
            offset += out[name].nbytes
        return out

    # -- writing ------------------------------------------------------------------------------------------------------

    def add_point(
        self,
        data: Mapping[str, Any],
        *,
        row: Mapping[str, Any] | None = None,
        key: str = "",
        config: Mapping[str, Any] | None = None,
        config_text: str = "",
        instead_of: Sequence[int] = (),
    ) -> int:
        """Writes a point: ``data`` in full, ``row`` as it shall stand in the table. Gives its number.

        ``instead_of`` are points that go in the same moment: what was measured again.
        """
        with self._transaction() as connection:
            for number in instead_of:
                connection.execute("DELETE FROM records WHERE point_id = ?", (number,))
                connection.execute("DELETE FROM points WHERE id = ?", (number,))
            config_id = None
            if config is not None:
                config_id = self._config_id(connection, str(data.get("model", "")), config, config_text)
            cursor = connection.execute(
                "INSERT INTO points (key, config_id, created, row, data) VALUES (?, ?, ?, ?, ?)",
                (key, config_id, utc_now_iso(), dumps(row if row is not None else data), dumps(data)),
            )
            return int(cursor.lastrowid or 0)

    def add_records(self, point: int, records: RecordColumns) -> None:
        """Keeps the server's records of a point."""
        header, buffers = encode_columns(records)
        self._add_blob(point, "records", len(records.requests["seq"]), header.decode(), b"".join(buffers))

    def add_samples(self, point: int, samples: Columns) -> None:
        """Keeps the generator's stamps of a point."""
        arrays = {name: np.ascontiguousarray(array) for name, array in samples.items()}
        header = [(name, array.dtype.str, len(array)) for name, array in arrays.items()]
        raw = b"".join(array.tobytes() for array in arrays.values())
        count = max((len(array) for array in arrays.values()), default=0)
        self._add_blob(point, "samples", count, orjson.dumps(header).decode(), raw)

    def copy_to(self, connection: sqlite3.Connection) -> None:
        """Copies the whole run, as of one moment, into an empty database."""
        with self._lock:
            self._connection.backup(connection)

    def set_meta(self, **values: Any) -> None:
        """Writes or changes what is said of the run as a whole."""
        with self._transaction() as connection:
            connection.executemany(
                "INSERT OR REPLACE INTO meta VALUES (?, ?)", [(key, dumps(value)) for key, value in values.items()]
            )

    def set_environment(self, values: Mapping[str, Any]) -> None:
        """Says where the run was measured, in place of this machine: it is put together from others."""
        with self._transaction() as connection:
            connection.execute("DELETE FROM environment")
            connection.executemany(
                "INSERT INTO environment VALUES (?, ?)", [(key, dumps(value)) for key, value in values.items()]
            )

    def claim(self, doing: str = "") -> None:
        """Takes a run that was left for writing: its status is ``running`` again.

        Raises:
            NotReady: another process writes it.
        """
        with self._transaction() as connection:
            self.check_unused()
            values = {"status": "running", "pid": os.getpid(), "holder": Holder.this_process(doing).to_json()}
            connection.executemany(
                "INSERT OR REPLACE INTO meta VALUES (?, ?)", [(key, dumps(value)) for key, value in values.items()]
            )

    def check_unused(self) -> None:
        """Refuses a run that another process writes.

        Raises:
            NotReady: the text names the writer.
        """
        meta = self.meta
        if meta.get("status") == "running" and not _writer_is_gone(meta, but_this=True):
            writer = _writer(meta) or f"process {meta.get('pid', '?')}"
            raise NotReady(f"run {self.id} is being written by {writer}", hint="wait for it or stop it")

    def annotate(self, text: str) -> None:
        """Adds a note, with the time."""
        with self._transaction() as connection:
            notes = [*self.meta.get("notes", ()), {"at": utc_now_iso(), "text": text}]
            connection.execute("INSERT OR REPLACE INTO meta VALUES ('notes', ?)", (dumps(notes),))

    def finish(self, status: str = "done") -> None:
        """Marks the run as ended."""
        self.set_meta(status=status, finished=utc_now_iso())

    def close(self) -> None:
        """Closes the file."""
        with self._lock:
            self._connection.close()

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __repr__(self) -> str:
        info = self.info
        return f"Run {info.id}: {info.kind} of {info.model or '-'}, {info.points} points, {info.status}"

    # -- inside -------------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        if self.read_only:
            raise InvalidRequest(f"run {self.id} is open for reading only", where=str(self.path))
        with self._lock:
            try:
                self._connection.execute("BEGIN IMMEDIATE")
                try:
                    yield self._connection
                    self._connection.execute("COMMIT")
                except BaseException:
                    with contextlib.suppress(sqlite3.Error):  # of a full disk SQLite has rolled back by itself
                        self._connection.execute("ROLLBACK")
                    raise
            except sqlite3.Error as error:
                raise unwritable(self.path, error) from error

    def _config_id(self, connection: sqlite3.Connection, model: str, config: Mapping[str, Any], text: str) -> int:
        digest = point_key(config=config, text=text)
        connection.execute(
            "INSERT OR IGNORE INTO configs (hash, model, json, text) VALUES (?, ?, ?, ?)",
            (digest, model, dumps(config), text),
        )
        return int(connection.execute("SELECT id FROM configs WHERE hash = ?", (digest,)).fetchone()[0])

    def _add_blob(self, point: int, kind: str, count: int, header: str, raw: bytes) -> None:
        with self._transaction() as connection:
            connection.execute(
                "INSERT INTO records VALUES (?, ?, ?, ?, ?)", (point, kind, count, header, zlib.compress(raw, 1))
            )

    def _blob(self, point: int, kind: str) -> tuple[str, bytes]:
        rows = self._all("SELECT header, data FROM records WHERE point_id = ? AND kind = ?", (point, kind))
        if not rows:
            raise NotFound(f"run {self.id} keeps no {kind} of point {point}")
        return str(rows[0][0]), zlib.decompress(rows[0][1])

    def _meta(self, key: str) -> Any:
        rows = self._all("SELECT value FROM meta WHERE key = ?", (key,))
        return orjson.loads(rows[0][0]) if rows else _missing(key)

    def _all(self, query: str, parameters: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
        with self._lock:
            return self._connection.execute(query, parameters).fetchall()


def _writer(meta: Mapping[str, Any]) -> Holder | None:
    try:
        return Holder.from_json(meta["holder"])
    except (KeyError, TypeError, ValueError):
        return None


def _writer_is_gone(meta: Mapping[str, Any], *, but_this: bool = False) -> bool:
    """Whether the process that wrote a run has ended; ``but_this``: this process does not count."""
    writer, pid = _writer(meta), int(meta.get("pid", -1))
    if but_this and pid == os.getpid() and (writer is None or writer.here):
        return True
    return writer.gone if writer is not None else not psutil.pid_exists(pid)


def unwritable(path: Path, error: Exception) -> InternalError:
    """The error of a run, or a store, that takes nothing any more."""
    return InternalError(
        f"the run cannot be written: {error}",
        where=str(path),
        hint="is there space, and may you write there? runs can be kept in another directory",
    )


def write_draft(draft: Path, values: Mapping[str, Any]) -> None:
    """Writes a run without points, with ``values`` as what is said of it and this machine's environment."""
    with contextlib.closing(sqlite3.connect(draft, isolation_level=None)) as connection:
        connection.executescript(_SCHEMA)
        connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
        connection.execute("BEGIN")
        for table, entries in (("meta", values), ("environment", capture_environment())):
            connection.executemany(
                f"INSERT INTO {table} VALUES (?, ?)", [(key, dumps(value)) for key, value in entries.items()]
            )
        connection.execute("COMMIT")


def dumps(value: Any) -> str:
    """A value as a column of a run keeps it."""
    return orjson.dumps(plain(value), option=orjson.OPT_NON_STR_KEYS).decode()


def plain(value: Any) -> Any:
    """JSON values of what people hand in: numpy scalars and arrays, paths, tuples, NaN (null)."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(item) for item in value]
    if isinstance(value, np.ndarray):
        return plain(value.tolist())
    if isinstance(value, np.generic):
        return plain(value.item())
    if isinstance(value, bytes):
        return hashlib.sha256(value).hexdigest()
    if value is None or isinstance(value, str | bool | int | float):
        return value
    return str(value)


def _missing(key: str) -> Any:
    raise KeyError(key)
