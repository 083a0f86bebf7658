"""The table of vectors: those of different models or widths are not mixed."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path

import numpy as np
import pytest

from workbench.errors import InvalidRequest
from workbench.session.batch_table import DocumentTable, Embedded, read_vectors


@pytest.fixture
def database(tmp_path: Path) -> Path:
    """Three texts; the first two have vectors of three numbers by "embedder"."""
    path = tmp_path / "documents.db"
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE documents (id INTEGER PRIMARY KEY, text TEXT)")
        connection.executemany("INSERT INTO documents VALUES (?, ?)", [(1, "a"), (2, "aa"), (3, "aaa")])
    with DocumentTable(path, "embedder") as table:
        table.save([Embedded(each, np.full(3, each.key, np.float32)) for each in table.pending(2)])
    return path


@pytest.mark.parametrize("widths", [(5,), (3, 5)])
def test_vectors_of_another_width_are_not_mixed_in(database: Path, widths: tuple[int, ...]) -> None:
    """Another model under the same name: nothing is written, and what is there can be read."""
    with DocumentTable(database, "embedder") as table:
        (new,) = table.pending(10)
        with pytest.raises(InvalidRequest, match="'embedder' gives vectors of 5 numbers; 'vectors' has some of 3"):
            table.save([Embedded(new, np.zeros(width, np.float32)) for width in widths])
        assert table.left() == 1
        table.save([Embedded(new, np.zeros(3, np.float32))])
    assert read_vectors(database)[1].tolist() == [[1, 1, 1], [2, 2, 2], [0, 0, 0]]


def test_what_was_refused_leaves_no_width_behind(database: Path) -> None:
    with DocumentTable(database, "another") as table:
        first, second = table.pending(2)
        with pytest.raises(InvalidRequest, match="'another' gives vectors of 5 numbers"):
            table.save([Embedded(first, np.zeros(3, np.float32)), Embedded(second, np.zeros(5, np.float32))])
        table.save([Embedded(first, np.zeros(5, np.float32))])
    assert read_vectors(database, model="another")[1].shape == (1, 5)


@pytest.mark.parametrize("width", [3, 5])
def test_vectors_of_several_models_are_read_one_model_at_a_time(database: Path, width: int) -> None:
    """While a worker does those of another model again: the old ones and the new ones lie in different spaces."""
    with DocumentTable(database, "another") as table:
        table.save([Embedded(table.pending(1)[0], np.ones(width, np.float32))])
    with pytest.raises(InvalidRequest, match=r"by several models: another \(1\), embedder \(1\)"):
        read_vectors(database)
    keys, vectors = read_vectors(database, model="another")
    assert (keys, vectors.tolist()) == ([1], [[1.0] * width])
    assert read_vectors(database, model="embedder")[0] == [2]
    assert read_vectors(database, model="none")[1].shape == (0, 0)
