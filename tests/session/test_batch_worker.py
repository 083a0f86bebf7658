"""The batch worker beside a server: what is committed stays, nothing is done twice, queries go first, errors."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from workbench.cli import main
from workbench.client import HttpClient
from workbench.engine import EngineOptions, InferenceEngine
from workbench.errors import AlreadyExists, ConnectionFailed, InvalidRequest, NotFound, WorkbenchError
from workbench.protocol.tensors import InferenceRequest, Tensor
from workbench.server.serve import RunningServer, serve_engine
from workbench.session.batch_table import DocumentTable, TableNames, read_vectors
from workbench.session.batch_worker import BatchWorker, Progress, WorkerOptions

EMBEDDER = """\
name: "embedder"
backend: "python"
max_batch_size: 4
input { name: "TEXT" data_type: TYPE_STRING dims: 1 }
output { name: "vector" data_type: TYPE_FP32 dims: 3 }
output { name: "rows" data_type: TYPE_INT32 dims: 1 }
"""

MODEL = """\
import time
from pathlib import Path

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.seen = Path(args["model_repository"]) / "seen.txt"

    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        texts = [row.decode() for row in pb_utils.get_input_tensor_by_name(request, "TEXT").as_numpy()[:, 0]]
        with self.seen.open("a") as file:
            file.writelines(f"{text}\\n" for text in texts)
        if any("slow" in text for text in texts):
            time.sleep(0.05)
        while "held" in texts and not self.seen.with_name("go").exists():
            time.sleep(0.005)
        if any("poison" in text or "broken" in text for text in texts):
            return pb_utils.InferenceResponse(error=pb_utils.TritonError("poison is refused"))
        vector = np.array([[len(text), text.count("a"), 1] for text in texts], np.float32)
        rows = np.full((len(texts), 1), len(texts), np.int32)
        return pb_utils.InferenceResponse([pb_utils.Tensor("vector", vector), pb_utils.Tensor("rows", rows)])
"""

QUERIES = """\
name: "queries"
backend: "identity"
max_batch_size: 1
input { name: "INPUT0" data_type: TYPE_FP32 dims: 1 }
output { name: "OUTPUT0" data_type: TYPE_FP32 dims: 1 }
parameters { key: "execute_delay_ms" value { string_value: "10" } }
"""

SLOW_QUERIES = QUERIES.replace('"queries"', '"slow_queries"').replace('"10"', '"250"')


class Served:
    """The server, a client, and which texts the embedder has been given."""

    def __init__(self, server: RunningServer, engine: InferenceEngine, root: Path) -> None:
        self.url, self.engine, self.client = server.http_url, engine, HttpClient(server.http_url)
        self._file = root / "embedder" / "seen.txt"

    def seen(self) -> list[str]:
        return self._file.read_text().splitlines() if self._file.exists() else []

    def let_go(self) -> None:
        """Lets the model answer what it holds: the text "held"."""
        self._file.with_name("go").touch()

    def forget(self) -> None:
        self._file.write_text("")


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    root = tmp_path_factory.mktemp("models")
    for name, config in (("embedder", EMBEDDER), ("queries", QUERIES), ("slow_queries", SLOW_QUERIES)):
        (root / name / "1").mkdir(parents=True)
        (root / name / "config.pbtxt").write_text(config)
    (root / "embedder" / "1" / "model.py").write_text(MODEL)
    engine = InferenceEngine(EngineOptions((root,), load_models=("*",), control_mode="explicit"))
    engine.start()
    server = serve_engine(engine)
    yield Served(server, engine, root)
    server.close()
    engine.stop(5)


@pytest.fixture
def database(tmp_path: Path, served: Served) -> Path:
    served.forget()
    return tmp_path / "documents.db"


def write(path: Path, rows: dict[Any, Any], kind: str = "INTEGER") -> None:
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(f"CREATE TABLE IF NOT EXISTS documents (id {kind} PRIMARY KEY, text TEXT)")
        connection.executemany("INSERT OR REPLACE INTO documents VALUES (?, ?)", rows.items())


def errors(path: Path) -> dict[Any, str]:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        return dict(connection.execute("SELECT id, error FROM vectors WHERE vector IS NULL"))


ONCE = WorkerOptions(models=("embedder",), poll_s=None)


def embed(served: Served, path: Path, options: WorkerOptions = ONCE, **more: Any) -> Progress:
    with DocumentTable(path, options.models[-1]) as table:
        return BatchWorker(table, served.client, options, **more).run()


def until(true: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + 20
    while not true():
        assert time.monotonic() < deadline, what
        time.sleep(0.01)


@pytest.mark.parametrize("kind", ["INTEGER", "TEXT", "REAL", ""])
def test_every_text_gets_the_vector_of_its_key(served: Served, database: Path, kind: str) -> None:
    """Whatever the keys are; in batches, and only once."""
    keys: list[Any] = [f"doc {number}" for number in range(11)] if kind == "TEXT" else list(range(3, 14))
    texts = {key: "a" * (index * 7 % 11) + "é" for index, key in enumerate(keys)}
    write(database, texts, kind)
    done = embed(served, database)
    assert (done.state, done.embedded, done.failed, done.left) == ("done", 11, 0, 0)
    found, vectors = read_vectors(database)
    assert vectors.dtype == np.float32
    assert dict(zip(found, vectors.tolist(), strict=True)) == {
        key: [len(text), text.count("a"), 1] for key, text in texts.items()
    }
    assert sorted(served.seen()) == sorted(texts.values())
    assert embed(served, database).embedded == 0
    assert len(served.seen()) == 11


def test_what_is_new_or_changed_is_done_as_it_comes(served: Served, database: Path) -> None:
    write(database, {1: "a", 2: "aa", 3: "aaa"})
    stop, told = threading.Event(), []
    options = WorkerOptions(models=("embedder",), poll_s=0.02)

    def run() -> Progress:
        return embed(served, database, options, stop=stop, on_progress=lambda progress: told.append(progress.state))

    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(run)
        try:
            until(lambda: "waiting for rows" in told, "all three are done")
            write(database, {2: "changed", 4: "new"})
            until(lambda: len(read_vectors(database)[0]) == 4, "the new one is done")
            until(lambda: read_vectors(database)[1][1, 0] == len("changed"), "the changed one is done")
        finally:
            stop.set()
        done = future.result(20)
    assert (done.state, done.embedded) == ("stopped", 5)
    assert sorted(served.seen()) == ["a", "aa", "aaa", "changed", "new"]


def test_a_text_that_changes_while_it_is_embedded_does_not_keep_the_old_vector(served: Served, database: Path) -> None:
    write(database, {1: "held"})

    def change() -> None:
        while served.seen() != ["held"]:
            threading.Event().wait(0.005)
        write(database, {1: "held, and longer"})
        served.let_go()

    with ThreadPoolExecutor(1) as pool:
        changed = pool.submit(change)
        done = embed(served, database)
        changed.result(10)
    assert served.seen() == ["held", "held, and longer"]
    assert read_vectors(database)[1].tolist() == [[16, 1, 1]]
    assert done.left == 0


def test_a_text_that_is_refused_keeps_no_other_from_its_vector(served: Served, database: Path) -> None:
    """It is not asked again, until it changes or another model is asked."""
    write(database, {1: "a", 2: "poison", 3: None, 4: "aa", 5: "", 6: b"\xff", 7: 12})
    done = embed(served, database)
    assert (done.embedded, done.failed) == (4, 3)
    assert errors(database) == {2: "poison is refused", 3: "this is no text", 6: "this is no text"}
    found, vectors = read_vectors(database)
    assert dict(zip(found, vectors[:, 0], strict=True)) == {1: 1, 4: 2, 5: 0, 7: 2}
    asked = len(served.seen())
    assert embed(served, database).failed == 0
    assert len(served.seen()) == asked
    write(database, {2: "cured"})
    assert embed(served, database).embedded == 1
    assert errors(database) == {3: "this is no text", 6: "this is no text"}


def test_a_model_that_refuses_everything_ends_it(served: Served, database: Path) -> None:
    write(database, {number: f"broken {number}" for number in range(6)})
    with pytest.raises(WorkbenchError, match="poison is refused"):
        embed(served, database)
    assert errors(database) == {}


def test_vectors_of_another_model_do_not_count(served: Served, database: Path) -> None:
    write(database, {1: "a", 2: "aa"})
    embed(served, database)
    with DocumentTable(database, "another", TableNames(vectors="others")) as table:
        assert table.left() == 2
    assert read_vectors(database, "others")[1].shape == (0, 0)
    with DocumentTable(database, "another") as table:
        assert table.left() == 2
    with DocumentTable(database, "embedder") as table:
        assert table.left() == 0


def test_it_gives_way_while_queries_wait(served: Served, database: Path) -> None:
    write(database, {number: "a" * number for number in range(30)})
    asked = threading.Event()

    def queries() -> None:
        request = InferenceRequest("queries", [Tensor.from_numpy("INPUT0", np.zeros((1, 1), np.float32))])
        while not asked.is_set():
            served.client.infer(request)

    told: list[str] = []

    def tell(progress: Progress) -> None:
        told.append(progress.state)
        if progress.state == "giving way":
            assert "queries waits" in progress.note
            if progress.paused_s > 0.2:
                asked.set()

    options = WorkerOptions(models=("embedder",), poll_s=None, yield_to="queries", max_queue_ms=5, in_flight=1)
    with ThreadPoolExecutor(6) as pool:
        running = [pool.submit(queries) for _ in range(6)]
        try:
            until(lambda: served.client.statistics("queries")["model_stats"][0]["inference_count"] > 20, "asked")
            done = embed(served, database, options, on_progress=tell)
        finally:
            asked.set()
        for each in running:
            each.result(20)
    assert (done.embedded, done.left) == (30, 0)
    assert done.paused_s > 0.2
    assert "giving way" in told
    assert "gave way" in str(done)


def test_it_gives_way_also_to_queries_that_take_longer_than_between_two_looks(served: Served, database: Path) -> None:
    """That none was answered for a moment is not that none waits."""
    write(database, {number: "a" * number for number in range(12)})
    embedded: list[int] = []
    options = WorkerOptions(models=("embedder",), poll_s=None, yield_to="slow_queries", max_pause_s=60, in_flight=1)

    def tell(progress: Progress) -> None:
        if progress.state == "giving way":
            embedded.append(progress.embedded)
            if progress.paused_s > 1.5:
                ended.set()

    with DocumentTable(database, "embedder") as table:
        worker = BatchWorker(table, served.client, options, on_progress=tell)
        with slow_queries(served) as ended:
            done = worker.run()
    assert done.embedded == 12
    assert done.paused_s > 1.5
    assert set(embedded) == {0}


def test_between_batches_slow_queries_are_not_forgotten(served: Served, database: Path) -> None:
    """After the longest pause one batch goes, not all until a look happens to see a query answered."""
    write(database, {number: "a" * number for number in range(12)})
    options = WorkerOptions(
        models=("embedder",), poll_s=None, yield_to="slow_queries", max_pause_s=0.5, in_flight=1, batch_size=4
    )
    with DocumentTable(database, "embedder") as table:
        worker = BatchWorker(table, served.client, options)
        with slow_queries(served):
            done = worker.run()
    assert done.embedded == 12
    assert done.paused_s >= 1, "before each batch but, maybe, the first"


@contextlib.contextmanager
def slow_queries(served: Served) -> Iterator[threading.Event]:
    """Three clients that ask a slow model without a break, until the event is set; some answers have been given."""
    ended = threading.Event()

    def ask() -> None:
        request = InferenceRequest("slow_queries", [Tensor.from_numpy("INPUT0", np.zeros((1, 1), np.float32))])
        while not ended.is_set():
            served.client.infer(request)

    def answered() -> bool:
        return bool(served.client.statistics("slow_queries")["model_stats"][0]["inference_count"] > before)

    before = served.client.statistics("slow_queries")["model_stats"][0]["inference_count"] + 1
    with ThreadPoolExecutor(3) as pool:
        running = [pool.submit(ask) for _ in range(3)]
        try:
            until(answered, "asked")  # of the second one the wait is long
            yield ended
        finally:
            ended.set()
        for each in running:
            each.result(20)


class Gateway(BaseHTTPRequestHandler):
    """Stands before a server, as a load balancer does: 502, 504, 429 and HTML where it does not reach it."""

    server_url = ""
    failures: ClassVar[list[int]] = [502, 504, 429, 502]
    most_rows = 64
    """What takes longer than it waits for."""

    def handle_all(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.path.endswith("/infer") and self.failures:
            self.send_error(self.failures.pop())
            return
        if self.path.endswith("/infer"):
            head = json.loads(body[: int(self.headers["Inference-Header-Content-Length"])])
            if head["inputs"][0]["shape"][0] > self.most_rows:
                self.send_error(504)
                return
        kept = {key: value for key, value in self.headers.items() if key != "Host"}
        request = urllib.request.Request(self.server_url + self.path, body or None, kept, method=self.command)
        with urllib.request.urlopen(request) as answer:
            data = answer.read()
            self.send_response(answer.status)
            for key, value in answer.headers.items():
                self.send_header(key, value)
        self.end_headers()
        self.wfile.write(data)

    do_GET = do_POST = handle_all

    def log_message(self, *args: object) -> None:
        """Nothing."""


def test_a_gateway_that_does_not_reach_the_server_is_no_fault_of_the_texts(served: Served, database: Path) -> None:
    write(database, {1: "a"})
    done, told = through_a_gateway(served, database, failures=list(Gateway.failures))
    assert "server away" in told
    assert (done.embedded, done.failed) == (1, 0)
    assert errors(database) == {}


def test_a_batch_that_is_too_slow_for_a_gateway_comes_through_row_by_row(served: Served, database: Path) -> None:
    write(database, {number: "a" * number for number in range(5)})
    done, _ = through_a_gateway(served, database, failures=[], most_rows=1)
    assert (done.embedded, done.failed, done.left) == (5, 0, 0)


def through_a_gateway(served: Served, database: Path, **behaviour: Any) -> tuple[Progress, list[str]]:
    """A worker that asks through one: what it did, and what it said that it was doing."""
    handler = type("Before", (Gateway,), {"server_url": served.url, **behaviour})
    gateway = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    told: list[str] = []
    with ThreadPoolExecutor(1) as pool, contextlib.closing(
        HttpClient(f"http://127.0.0.1:{gateway.server_address[1]}")
    ) as client, DocumentTable(database, "embedder") as table:  # fmt: skip
        pool.submit(gateway.serve_forever, 0.05)
        try:
            worker = BatchWorker(table, client, ONCE, on_progress=lambda progress: told.append(progress.state))
            return worker.run(), told
        finally:
            gateway.shutdown()
            gateway.server_close()


@pytest.mark.parametrize(
    ("option", "value"),
    [("--priority", "-1"), ("--poll-s", "0"), ("--poll-s", "nan"), ("--poll-s", "inf"), ("--in-flight", "0"),
     ("--batch-size", "-3"), ("--max-queue-ms", "-1"), ("--max-pause-s", "nan"), ("--give-up-s", "-2")],
)  # fmt: skip
def test_a_number_that_cannot_be_meant_is_refused_by_its_name(
    served: Served, database: Path, capsys: pytest.CaptureFixture[str], option: str, value: str
) -> None:
    write(database, {1: "a"})
    assert main(["embed", str(database), "-u", served.url, "--model", "embedder", f"{option}={value}"]) == 1
    said = capsys.readouterr().err
    assert f"{option[2:].replace('-', '_')} is {value}" in said
    assert "what to do: give" in said
    assert served.seen() == []


def test_a_model_that_goes_away_is_awaited(served: Served, database: Path) -> None:
    write(database, {number: f"slow {number}" for number in range(40)})
    told: list[str] = []
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(embed, served, database, on_progress=lambda progress: told.append(progress.state))
        until(lambda: count(database) >= 4, "some are committed")
        served.engine.unload("embedder")
        try:
            until(lambda: "server away" in told, "it is seen to be away")
        finally:
            served.engine.load("embedder")
        assert future.result(20).embedded == 40


def test_what_does_not_fit_is_said_in_words(served: Served, database: Path) -> None:
    with pytest.raises(NotFound, match=r"no database .*documents\.db"):
        DocumentTable(database, "m")
    database.write_text("this is no database, but a text of some length " * 30)
    with pytest.raises(InvalidRequest, match="no SQLite database"):
        DocumentTable(database, "m")
    database.unlink()
    write(database, {1: "a"})
    for names, error, words in (
        (TableNames(table="papers"), NotFound, "no table 'papers'"),
        (TableNames(text="body"), InvalidRequest, "no column 'body'"),
        (TableNames(vectors="documents"), InvalidRequest, "none that a worker made"),
    ):
        with pytest.raises(error, match=words):
            DocumentTable(database, "m", names)
    with contextlib.closing(sqlite3.connect(database)) as connection, connection:
        connection.execute("CREATE TABLE twice (id, text)")
        connection.executemany("INSERT INTO twice VALUES (?, 'a')", [(1,), (1,), (2,)])
    with pytest.raises(InvalidRequest, match="'id' is no key of 'twice'"):
        DocumentTable(database, "m", TableNames(table="twice", vectors="others"))
    with DocumentTable(database, "m") as table:
        with pytest.raises(AlreadyExists, match="another worker"):
            DocumentTable(database, "m")
        for options, words in (
            (WorkerOptions(models=("queries",)), "does not take one text a row"),
            (WorkerOptions(models=("embedder", "queries")), "takes INPUT0, which 'embedder' does not give"),
            (WorkerOptions(models=("embedder",), batch_size=5), "batch_size is 5: .* 1 to 4 rows"),
            (WorkerOptions(models=("unknown",)), "unknown"),
            (WorkerOptions(models=("embedder",), yield_to="unknown"), "unknown"),
        ):
            with pytest.raises(WorkbenchError, match=words):
                BatchWorker(table, served.client, options)
        with pytest.raises(ConnectionFailed):
            BatchWorker(table, HttpClient("http://127.0.0.1:9"), ONCE)
    with pytest.raises(NotFound, match="no vectors"):
        read_vectors(database, "none")


@contextlib.contextmanager
def verb(served: Served, path: Path, *before: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "workbench.cli", "embed", str(path), "-u", served.url, "--model", "embedder"]
    command[:0] = before
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def count(path: Path) -> int:
    try:
        return len(read_vectors(path)[0])
    except NotFound:
        return 0


def test_killed_in_the_middle_it_loses_and_repeats_nothing_committed(
    served: Served, database: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = {number: f"slow {number}" for number in range(120)}
    write(database, texts)
    with verb(served, database) as process:
        until(lambda: count(database) >= 12, "some are committed")
        process.send_signal(signal.SIGKILL)
        process.wait(20)
    kept, vectors = read_vectors(database)
    assert 12 <= len(kept) < 120
    # the embedder answers in order: what the dead worker had sent comes before this
    marker = Tensor.from_numpy("TEXT", np.array([[b"marker"]], dtype=object))
    served.client.infer(InferenceRequest("embedder", [marker]))
    served.forget()
    handlers = [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)]
    assert main(["embed", str(database), "-u", served.url, "--model", "embedder", "--once", "--json"]) == 0
    assert [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)] == handlers
    done = json.loads(capsys.readouterr().out)
    assert done["embedded"] == 120 - len(kept)
    found, after = read_vectors(database)
    assert found == list(texts)
    rows = dict(zip(found, after.tolist(), strict=True))
    assert [rows[key] for key in kept] == vectors.tolist()
    assert not set(served.seen()) & {texts[key] for key in kept}


@pytest.mark.skipif(os.name == "nt", reason="signals")
def test_ctrl_c_commits_what_was_sent_and_says_where_it_stopped(served: Served, database: Path) -> None:
    write(database, {number: f"slow {number}" for number in range(200)})
    with verb(served, database) as process:
        until(lambda: count(database) >= 4, "some are committed")
        process.send_signal(signal.SIGINT)
        said, _ = process.communicate(timeout=20)
        assert process.returncode == 0
    assert said.startswith(f"stopped: {count(database)} embedded, {200 - count(database)} left")
    assert len(served.seen()) == count(database)


@pytest.mark.skipif(os.name == "nt", reason="a limit on the size of files stands for the disc")
def test_a_full_disc_is_said_and_what_was_committed_stays(served: Served, database: Path) -> None:
    texts = {number: f"{number} " * 40 for number in range(400)}
    write(database, texts)
    most = database.stat().st_size // 1024 + 20
    with verb(served, database, "bash", "-c", f'ulimit -f {most}; exec "$0" "$@"') as process:
        _, said = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "the database cannot be used" in said
    assert f"where: {database}" in said
    assert "what was committed stays; start again once it can" in said
    kept = count(database)
    assert 0 < kept < 400
    assert embed(served, database).embedded == 400 - kept
    assert read_vectors(database)[0] == list(texts)
