"""Requests that failed or were slow are kept with their inputs, and run again in the kernel."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import traceback
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from onnx_models import add_model

import workbench as wb
from workbench.engine.captured import SLOWEST, CapturedRequests
from workbench.errors import InvalidRequest, NotFound, Unsupported, WorkbenchError
from workbench.protocol.tensors import InferenceRequest, Tensor
from workbench.session.server import Server

CONFIG = """
name: "{name}"
backend: "python"
max_batch_size: 4
input [ {{ name: "x" data_type: TYPE_FP32 dims: [ 2 ] }} ]
output [ {{ name: "y" data_type: TYPE_FP32 dims: [ 2 ] }} ]
"""
ROOTS = """import threading

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.name = args["model_name"]

    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        x = pb_utils.get_input_tensor_by_name(request, "x").as_numpy()
        print("roots of", x.tolist(), threading.current_thread() is threading.main_thread())
        smallest = float(x.min())
        if smallest < 0:
            raise ValueError(f"{self.name}: no root of {smallest}")
        return pb_utils.InferenceResponse([pb_utils.Tensor("y", x**0.5)])
"""
ASKS = """import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        answers = []
        for request in requests:
            x = pb_utils.get_input_tensor_by_name(request, "x")
            asked = pb_utils.InferenceRequest(model_name="roots", requested_output_names=["y"], inputs=[x])
            answer = asked.exec()
            if answer.has_error():
                raise RuntimeError("roots said: " + answer.error().message())
            answers.append(pb_utils.InferenceResponse(answer.output_tensors()))
        return answers
"""
STREAMS = """import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            x = pb_utils.get_input_tensor_by_name(request, "x").as_numpy()
            if x[0, 0] < 0:
                raise ValueError("nothing to count")
            for number in range(int(x[0, 0])):
                sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("y", x + number)]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
WAITS = """import asyncio

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    async def execute(self, requests):
        await asyncio.sleep(0.001)
        x = pb_utils.get_input_tensor_by_name(requests[0], "x").as_numpy()
        if x.min() < 0:
            raise ValueError("below zero")
        return [pb_utils.InferenceResponse([pb_utils.Tensor("y", x)])]
"""
REFUSES = """import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [pb_utils.InferenceResponse(error=pb_utils.TritonError("not today")) for _ in requests]
"""
DECOUPLED = "model_transaction_policy { decoupled: true }\n"


def add_python(root: Path, name: str, source: str, more: str = "") -> None:
    (root / name / "1").mkdir(parents=True)
    (root / name / "config.pbtxt").write_text(CONFIG.format(name=name) + more)
    (root / name / "1" / "model.py").write_text(source)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("replayed") / "models"
    add_python(root, "roots", ROOTS)
    add_python(root, "asks", ASKS)
    add_python(root, "streams", STREAMS, DECOUPLED)
    add_python(root, "waits", WAITS)
    add_python(root, "refuses", REFUSES)
    add_model(root, "double")
    return root


@pytest.fixture(scope="module", params=["process", "kernel"])
def both(request: pytest.FixtureRequest, models: Path, module_state: None) -> Iterator[Server]:
    with wb.serve(models) if request.param == "process" else wb.Engine(models) as server:
        yield server


def fail(server: Server, model: str, x: list[list[float]]) -> int:
    """Sends a request that fails; the seq of its record."""
    with pytest.raises(WorkbenchError):
        server.infer(model, {"x": np.array(x, np.float32)}, id="wrong")
    records = server.records()
    return int(records[(records["model"] == model) & (records["status"] != "ok")]["seq"].iloc[-1])


@pytest.mark.parametrize("model", ["roots", "refuses"])
def test_the_error_of_a_model_says_how_to_run_the_request_again(both: Server, model: str) -> None:
    with pytest.raises(WorkbenchError) as caught:
        both.infer(model, {"x": np.array([[-1.0, 1.0]], np.float32)})
    assert "server.replay() runs it again in this kernel" in caught.value.hint
    with pytest.raises((WorkbenchError, ValueError)) as again:
        both.replay()
    assert str(again.value).partition("\n")[0].rpartition(": ")[2] in caught.value.message


def test_a_failed_request_is_raised_again_where_the_model_raised_it(
    both: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    seq = fail(both, "roots", [[4.0, -9.0]])
    with pytest.raises(ValueError, match=r"^roots: no root of -9\.0$") as caught:
        both.replay(seq)
    assert "roots of [[4.0, -9.0]] True" in capsys.readouterr().out  # prints are here, on the main thread
    innermost = traceback.extract_tb(caught.value.__traceback__)[-1]
    assert (Path(innermost.filename).name, innermost.name) == ("model.py", "answer")
    frame = [frame for frame, _ in traceback.walk_tb(caught.value.__traceback__)][-1]
    assert frame.f_locals["smallest"] == -9.0  # what %debug shows


def test_a_record_a_row_of_the_captured_or_nothing_names_the_request(both: Server) -> None:
    fail(both, "roots", [[-2.0, 0.0]])
    seq = fail(both, "roots", [[-1.0, 0.0]])
    records = both.records()  # of several requests
    row = records[records["seq"] == seq]
    kept = next(each for each in both.captured() if each.seq == seq)
    assert (kept.model, kept.version, kept.request_id, kept.why) == ("roots", 1, "wrong", "failed")
    assert kept.duration_ns == int(row["end"].iloc[0] - row["arrival"].iloc[0])
    for named in (seq, np.int64(seq), row, row.iloc[0], kept, {"seq": seq}, None):
        with pytest.raises(ValueError, match=r"no root of -1\.0"):
            both.replay(named)
    for wrong in ("roots", records, [seq], 1.5):
        with pytest.raises(InvalidRequest, match="takes one record"):
            both.replay(wrong)
    with pytest.raises(NotFound, match="the inputs of request 999999 are not kept") as caught:
        both.replay(999999)
    assert "captured()" in caught.value.hint


def test_the_error_of_a_model_says_how_to_look_into_it(both: Server) -> None:
    with pytest.raises(WorkbenchError) as caught:
        both.infer("roots", {"x": [[-1.0, 0.0]]})
    assert "server.replay()" in caught.value.hint
    assert 'server.logs(level="error")' in caught.value.hint


def test_the_captured_are_a_table_and_a_list(both: Server) -> None:
    seq = fail(both, "roots", [[-3.0, 0.0]])
    text = repr(both.captured())
    row = next(line for line in text.splitlines() if line.startswith(f"{seq} "))
    assert row.split()[1:5] == ["roots", "1", "wrong", "failed"]
    assert "replay(seq)" in text
    assert both.captured()[-1].seq >= seq


def test_a_traceback_in_a_notebook_has_few_frames_of_the_workbench(both: Server) -> None:
    from IPython.core.interactiveshell import InteractiveShell
    from IPython.utils.capture import capture_output

    fail(both, "roots", [[-1.0, 0.0]])
    shell = InteractiveShell()
    shell.user_ns["server"] = both
    for cell, deepest in (("server.replay()", "model.py"), ('server.infer("roots", {"x": [[-1.0, 0.0]]})', "")):
        with capture_output() as shown:
            shell.run_cell(cell)
        lines = shown.stdout.splitlines()
        assert sum("File" in line and "/workbench/" in line for line in lines) <= 1, shown.stdout
        assert deepest in shown.stdout


def test_coroutines_are_replayed_in_a_cell_where_the_notebooks_loop_runs(both: Server) -> None:
    seq = fail(both, "waits", [[-1.0, 0.0]])

    async def cell() -> None:
        with pytest.raises(ValueError, match="below zero"):
            both.replay(seq)

    asyncio.run(cell())


def test_an_edited_file_is_what_is_replayed(both: Server, models: Path) -> None:
    seq = fail(both, "roots", [[1.0, -4.0]])
    path = models / "roots" / "1" / "model.py"
    try:
        path.write_text(ROOTS.replace("x**0.5", "abs(x) ** 0.5").replace("smallest < 0", "smallest < -100"))
        assert both.replay(seq)["y"].tolist() == [[1.0, 2.0]]
        with pytest.raises(WorkbenchError):  # the instances serve what they have loaded
            both.infer("roots", {"x": [[1.0, -4.0]]})
    finally:
        path.write_text(ROOTS)


def test_nested_requests_go_to_the_server(both: Server) -> None:
    seq = fail(both, "asks", [[-2.0, 0.0]])
    with pytest.raises(RuntimeError, match=r"roots said: .*no root of -2\.0"):
        both.replay(seq)
    slow = both.infer("asks", {"x": [[4.0, 9.0]]})["y"].tolist()
    (row,) = [each for each in both.captured() if each.model == "asks" and each.why == "slow"][-1:]
    assert both.replay(row)["y"].tolist() == slow == [[2.0, 3.0]]


def test_a_decoupled_model_gives_all_its_answers(models: Path) -> None:
    with wb.Engine(models, models=["streams"]) as engine:
        request = InferenceRequest("streams", [Tensor.from_numpy("x", np.array([[3, 0]], np.float32))])
        assert sum(1 for answer in engine.engine.infer_stream(request) if answer.outputs) == 3
        (row,) = engine.captured()
        answers = engine.replay(row)
        assert [answer["y"].tolist() for answer in answers] == [[[3, 0]], [[4, 1]], [[5, 2]]]


def test_what_cannot_be_replayed_is_said(both: Server, models: Path) -> None:
    both.infer("double", {"x": [[1.0, 2.0, 3.0, 4.0]]})
    row = next(each for each in both.captured() if each.model == "double")
    with pytest.raises(Unsupported, match=r"only a model\.py can be replayed"):
        both.replay(row)
    if both.url:
        with wb.connect(both.url) as remote, pytest.raises(Unsupported, match="keeps no requests"):
            remote.replay(1)
        with wb.connect(both.url, token=both.token) as elsewhere:  # type: ignore[attr-defined]
            seq = fail(both, "roots", [[-1.0, 0.0]])
            with pytest.raises(Unsupported, match="not on this machine"):
                elsewhere.replay(seq)


def test_nothing_is_left_behind(both: Server) -> None:
    import sys

    seq = fail(both, "roots", [[-1.0, 0.0]])
    before = set(sys.modules), len(sys.meta_path), threading.active_count()
    for _ in range(5):
        with pytest.raises(ValueError, match="no root"):
            both.replay(seq)
    assert (set(sys.modules), len(sys.meta_path)) == before[:2]
    assert threading.active_count() <= before[2]


def request_of(rows: int, fill: float = 0.0) -> InferenceRequest:
    return InferenceRequest("m", [Tensor.from_numpy("x", np.full((rows, 256), fill, np.float32))])


def test_what_is_kept_is_bounded() -> None:
    kept = CapturedRequests(limit=1 << 20)
    for seq in range(2000):
        kept.offer(request_of(4), 1, 0, seq, 1000 + seq % 7, "ok" if seq % 2 == 0 else "BACKEND")
    rows = kept.rows()
    failed = [row.seq for row in rows if row.why == "failed"]
    assert sum(row.size for row in rows if row.why == "failed") <= 1 << 19
    assert failed == list(range(1999 - 2 * len(failed) + 2, 2000, 2))  # the newest
    assert len(failed) > 90
    kept.offer(request_of(1024), 1, 0, 2000, 10**9, "BACKEND")  # 1 MiB alone
    assert 2000 not in [row.seq for row in kept.rows()]


def test_the_slowest_of_a_model_are_kept() -> None:
    kept = CapturedRequests()
    rng = np.random.default_rng(5)
    durations = rng.permutation(1000)
    for seq, duration in enumerate(durations):
        kept.offer(request_of(1), 1, 0, seq, int(duration), "ok")
    assert sorted(row.duration_ns for row in kept.rows()) == list(range(1000 - SLOWEST, 1000))
    kept.offer(request_of(1), 1, 1, 1000, 5, "ok")  # another epoch has slowest of its own
    assert 1000 in [row.seq for row in kept.rows()]


def test_the_kept_inputs_are_those_that_were_sent() -> None:
    kept = CapturedRequests()
    request = request_of(1, 7.0)
    kept.offer(request, 1, 0, 1, 1, "OTHER")
    request.inputs[0].data[:] = 0
    assert (kept.get(1).inputs[0].data == 7.0).all()


@pytest.mark.parametrize("status", ["REJECTED", "CANCELED"])
def test_what_never_reached_the_model_pushes_nothing_out(status: str) -> None:
    kept = CapturedRequests()
    kept.offer(request_of(1), 1, 0, 1, 1, "BACKEND")
    kept.offer(request_of(1), 1, 0, 2, 10**9, status)
    assert [row.seq for row in kept.rows()] == [1]


# ---- environments and backends of a model's own

ONLY_THERE = """import os

import only_here
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        print(only_here.WORD, os.environ.get("ACTIVATED"))
        x = requests[0].inputs()[0].as_numpy()
        if x[0, 0] < 0:
            raise ValueError(f"{only_here.WORD}: not {x[0, 0]}")
        return [pb_utils.InferenceResponse([pb_utils.Tensor("y", x)]) for _ in requests]
"""
ENVIRONMENT = 'parameters {{ key: "EXECUTION_ENV_PATH" value {{ string_value: "{}" }} }}\n'


def environment(root: Path, python: str = f'exec {sys.executable} "$@"') -> Path:
    """An environment with a package that this one has not, and an activation."""
    (root / "bin").mkdir(parents=True)
    (root / "own").mkdir()
    (root / "own" / "only_here.py").write_text("WORD = 'from there'\n")
    (root / "bin" / "activate").write_text(f"export ACTIVATED=yes PYTHONPATH={root / 'own'}\n")
    (root / "bin" / "python").write_text(f"#!/bin/sh\n{python}\n")
    (root / "bin" / "python").chmod(0o755)
    return root


def test_a_model_with_an_environment_of_its_own_finds_its_packages(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = environment(tmp_path / "env")
    add_python(tmp_path / "models", "own", ONLY_THERE, ENVIRONMENT.format(root))
    before = list(sys.path), dict(os.environ), set(sys.modules)
    with wb.Engine(tmp_path / "models") as engine:
        seq = fail(engine, "own", [[-1.0, 0.0]])
        with pytest.raises(ValueError, match="from there: not -1") as caught:
            engine.replay(seq)
        assert traceback.extract_tb(caught.value.__traceback__)[-1].name == "execute"
        assert "from there yes" in capsys.readouterr().out
        assert engine.infer("own", {"x": [[1.0, 2.0]]})["y"].tolist() == [[1, 2]]
        assert engine.replay(engine.captured()[-1])["y"].tolist() == [[1, 2]]
    assert (list(sys.path), dict(os.environ)) == before[:2]
    assert "only_here" not in sys.modules, "it belongs to that environment"


def test_an_environment_of_another_python_is_told(tmp_path: Path) -> None:
    root = environment(tmp_path / "env")
    add_python(tmp_path / "models", "own", ONLY_THERE, ENVIRONMENT.format(root))
    with wb.Engine(tmp_path / "models") as engine:
        seq = fail(engine, "own", [[-1.0, 0.0]])
        (root / "bin" / "python").write_text("#!/bin/sh\necho '[[3, 9], [], {}]'\n")
        with pytest.raises(Unsupported, match=r"'own' runs on Python 3\.9 of its environment") as caught:
            engine.replay(seq)
        assert "resend()" in caught.value.hint
        (root / "bin" / "python").write_text("#!/bin/sh\necho broken >&2; exit 3\n")
        with pytest.raises(WorkbenchError, match=r"the environment of 'own' does not run: broken"):
            engine.replay(seq)


def test_a_model_of_a_python_based_backend(tmp_path: Path) -> None:
    shared = tmp_path / "backends" / "mine"
    shared.mkdir(parents=True)
    (shared / "helper.py").write_text("def least(x):\n    return float(x.min())\n")
    (shared / "model.py").write_text(
        ROOTS.replace("import threading\n", "import threading\nfrom helper import least\n")
    )
    config = CONFIG.format(name="roots").replace('"python"', '"mine"')
    (tmp_path / "models" / "roots" / "1").mkdir(parents=True)
    (tmp_path / "models" / "roots" / "config.pbtxt").write_text(config)
    with wb.Engine(tmp_path / "models", backend_directory=tmp_path / "backends") as engine:
        seq = fail(engine, "roots", [[-4.0, 1.0]])
        with pytest.raises(ValueError, match="no root of -4") as caught:
            engine.replay(seq)
        assert Path(traceback.extract_tb(caught.value.__traceback__)[-1].filename) == shared / "model.py"


ASKS_MANY = """import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        x = requests[0].inputs()[0]
        asked = pb_utils.InferenceRequest(model_name="streams", requested_output_names=["y"], inputs=[x])
        found = [each.output_tensors()[0].as_numpy() for each in asked.exec(decoupled=True) if each.output_tensors()]
        ready = pb_utils.is_model_ready("streams"), pb_utils.is_model_ready("nobody"), asked.exec().has_error()
        if len(found) > 2:
            raise ValueError(f"{len(found)} answers, {ready}")
        return [pb_utils.InferenceResponse([pb_utils.Tensor("y", sum(found))])]
"""


def test_nested_requests_stream_from_the_engine(tmp_path: Path) -> None:
    add_python(tmp_path / "models", "streams", STREAMS, DECOUPLED)
    add_python(tmp_path / "models", "many", ASKS_MANY)
    with wb.Engine(tmp_path / "models") as engine:
        seq = fail(engine, "many", [[3.0, 0.0]])
        with pytest.raises(ValueError, match=r"^3 answers, \(True, False, True\)$"):
            engine.replay(seq)


# ---- edit, load under load, and ask again


def test_mend_load_replay_resend(both: Server, models: Path) -> None:
    seq = fail(both, "roots", [[9.0, -16.0]])
    path = models / "roots" / "1" / "model.py"
    stop, failures = threading.Event(), []

    def load() -> None:
        while not stop.is_set():
            try:
                both.infer("roots", {"x": [[4.0, 4.0]]})
            except WorkbenchError as error:
                failures.append(error)

    client = threading.Thread(target=load)
    client.start()
    try:
        path.write_text(ROOTS.replace("x**0.5", "abs(x) ** 0.5").replace("smallest < 0", "smallest < -100"))
        assert both.replay(seq)["y"].tolist() == [[3, 4]], "mended here, before anybody else gets it"
        with pytest.raises(WorkbenchError, match="no root"):
            both.resend(seq)
        both.load("roots")
        assert both.resend(seq)["y"].tolist() == both.resend()["y"].tolist() == [[3, 4]]
        stop.set()
        client.join()
        assert failures == []
    finally:
        stop.set()
        client.join()
        path.write_text(ROOTS)
        both.load("roots")
