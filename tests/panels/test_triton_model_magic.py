"""``%%triton_model``: a cell becomes a model that serves; a broken one is shown in the cell, and the old one serves."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from IPython.core.interactiveshell import InteractiveShell

import workbench as wb
from workbench.errors import InvalidRequest, Unsupported, WorkbenchError
from workbench.panels.magic import Applied, CellRefused, apply
from workbench.session.server import Server

OPTIONS = "--inputs X:FP32[2] --outputs Y:FP32[2] --max-batch-size 4"
CELL = """import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.factor = 2

    def execute(self, requests):
        x = [pb_utils.get_input_tensor_by_name(request, "X").as_numpy() for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", each * self.factor)]) for each in x]
"""
COMPLETES = """

    @staticmethod
    def auto_complete_config(config):
        config.add_input({"name": "X", "data_type": "TYPE_FP32", "dims": [2]})
        config.add_output({"name": "Y", "data_type": "TYPE_FP32", "dims": [2]})
        config.set_max_batch_size(0)
        return config
"""


@pytest.fixture
def models(tmp_path: Path) -> Path:
    folder = tmp_path / "models"
    folder.mkdir()
    return folder


@pytest.fixture(params=[pytest.param("process", marks=pytest.mark.full), "kernel"])
def server(request: pytest.FixtureRequest, models: Path) -> Iterator[Server]:
    with wb.serve(models) if request.param == "process" else wb.Engine(models) as opened:
        yield opened


@pytest.fixture
def run() -> Callable[..., Any]:
    """Runs a cell in a shell of its own, as a notebook does; gives its result or raises its error."""
    shell = InteractiveShell()
    shell.run_line_magic("load_ext", "workbench")

    def cell(line: str, text: str, **names: Any) -> Any:
        shell.user_ns.update(names)
        done = shell.run_cell(f"%%triton_model {line}\n{text}")
        if done.error_in_exec is not None:
            raise done.error_in_exec
        return done.result

    return cell


def ask(server: Server, model: str = "twice") -> list[list[float]]:
    return server.infer(model, {"X": [[1.0, 3.0]]})["Y"].tolist()


def test_the_options_are_listed_and_a_wrong_line_is_told_without_frames(run: Any, models: Path) -> None:
    from IPython.utils.capture import capture_output

    shell = InteractiveShell()
    shell.run_line_magic("load_ext", "workbench")
    with capture_output() as shown:
        assert shell.run_line_magic("triton_model", "--help") is None
    assert "--max-batch-size" in shown.stdout
    assert "%%triton_model NAME --inputs" in shown.stdout
    with wb.Engine(models) as server:
        shell.user_ns["server"] = server
        with capture_output() as shown:
            shell.run_cell(f"%%triton_model twice\n{CELL}")
        assert "what to do: %%triton_model twice --inputs" in shown.stdout
        assert len(shown.stdout.strip().splitlines()) == 2
        with capture_output() as shown:
            shell.run_cell("%triton_model twice")
        assert "the lines of model.py are missing" in shown.stdout


def test_a_cell_serves_and_an_edited_one_after_it(server: Server, run: Any, models: Path) -> None:
    made = run(f"twice {OPTIONS}", CELL, server=server)
    assert isinstance(made, Applied)
    assert made.first
    assert "READY" in repr(made)
    assert "twice" in made._repr_html_()
    assert ask(server) == [[2.0, 6.0]]
    config = server.model_config("twice")
    assert (config["max_batch_size"], config["backend"]) == (4, "python")
    assert config.get("dynamic_batching") is not None
    text = (models / "twice" / "config.pbtxt").read_bytes()
    # the same size within the same second: what Python compiled before does not count
    for factor in (3, 4, 5, 6):
        again = run(f"twice {OPTIONS}", CELL.replace("factor = 2", f"factor = {factor}"))
        assert not again.first
        assert ask(server) == [[1.0 * factor, 3.0 * factor]]
    assert (models / "twice" / "config.pbtxt").read_bytes() == text
    assert wb.lint(models).ok


@pytest.mark.parametrize(
    ("old", "new", "error", "line", "function"),
    [
        ("self.factor = 2", "self.factor = two", "NameError: name 'two' is not defined", 7, "initialize"),
        (
            "import triton",
            "import nothing_of_that_name\nimport triton",
            "No module named 'nothing_of_that_name'",
            2,
            "",
        ),
        ("def execute(self, requests):", "def execute(self, requests:", "SyntaxError", 9, ""),
        ("class TritonPythonModel", "class Another", "has no attribute 'TritonPythonModel'", 0, ""),
    ],
)
def test_a_broken_cell_shows_its_line_and_the_old_version_serves(
    server: Server, run: Any, models: Path, capsys: pytest.CaptureFixture[str],
    old: str, new: str, error: str, line: int, function: str,
) -> None:  # fmt: skip
    run(f"twice {OPTIONS}", CELL, server=server)
    file = models / "twice" / "1" / "model.py"
    good = file.read_bytes()
    capsys.readouterr()
    with pytest.raises(CellRefused) as caught:
        run("twice", CELL.replace(old, new))
    shown = capsys.readouterr()
    text = shown.out + shown.err
    assert error in text
    assert error in caught.value.message
    if line:
        cell = ["%%triton_model twice", *CELL.replace(old, new).splitlines()]
        assert f"line {line} of the cell" in text
        assert f"----> {line:3} {cell[line - 1]}" in text
    if function:
        assert f"in {function}:" in text
    assert "workbench/panels" not in text  # no frames of our own
    assert ask(server) == [[2.0, 6.0]]
    assert file.read_bytes() == good  # what serves is what lies there
    run("twice", CELL.replace("factor = 2", "factor = 7"))
    assert ask(server) == [[7.0, 21.0]]


def test_a_new_model_completes_its_configuration_or_is_asked(server: Server, run: Any, models: Path) -> None:
    with pytest.raises(InvalidRequest, match="what does 'twice' take and give") as caught:
        run("twice", CELL, server=server)
    assert "--inputs X:FP32[4]" in caught.value.hint
    assert list(models.iterdir()) == []
    run("twice", CELL + COMPLETES)
    assert server.infer("twice", {"X": [1.0, 3.0]})["Y"].tolist() == [2.0, 6.0]


def test_a_first_cell_that_fails_says_that_nothing_serves(server: Server, run: Any) -> None:
    with pytest.raises(CellRefused, match="no version of it serves"):
        run(f"twice {OPTIONS}", CELL.replace("= 2", "= two"), server=server)
    assert not server.is_model_ready("twice")
    run(f"twice {OPTIONS}", CELL)
    assert ask(server) == [[2.0, 6.0]]


def test_edits_under_load_lose_no_request(server: Server, run: Any) -> None:
    run(f"twice {OPTIONS}", CELL, server=server)
    answers: list[Any] = []
    over = threading.Event()

    def load() -> None:
        while not over.is_set():
            try:
                answers.append(ask(server)[0][0])
            except WorkbenchError as error:
                answers.append(error)

    threads = [threading.Thread(target=load) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        for factor in (3, 4, 5):
            run("twice", CELL.replace("factor = 2", f"factor = {factor}"))
            seen = len(answers)
            while len(answers) < seen + 6:
                over.wait(0.01)
            assert answers[-1] == factor
            with pytest.raises(CellRefused):
                run("twice", CELL.replace("= 2", "= two"))
    finally:
        over.set()
        for thread in threads:
            thread.join()
    assert set(answers) <= {2.0, 3.0, 4.0, 5.0}


def test_a_failed_request_is_mended_and_run_again(server: Server, run: Any) -> None:
    cell = CELL.replace('"X").as_numpy()', '"X").as_numpy()[:, :1].reshape(-1, 2)')
    run(f"twice {OPTIONS}", cell, server=server)
    with pytest.raises(WorkbenchError, match=r"cannot reshape"):
        ask(server)
    with pytest.raises(ValueError, match="cannot reshape"):
        server.replay()
    run("twice", CELL)
    replayed = server.replay()
    assert isinstance(replayed, wb.Result)
    assert replayed["Y"].tolist() == [[2.0, 6.0]]


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("twice --inputs X --outputs Y:FP32[1]", "'X' is no tensor"),
        ("twice --inputs X:FLOAT[1] --outputs Y:FP32[1]", "'X:FLOAT\\[1\\]' is no tensor"),
        ("", "required: name"),
        ("twice --nonsense", "unrecognized arguments: --nonsense"),
        ("../twice", "invalid model name"),
        ("twice --server other", "'other' is no server"),
        ("twice --to /nowhere", "is no repository of this server"),
    ],
)
def test_what_the_line_lacks_is_said(models: Path, run: Any, line: str, text: str) -> None:
    with wb.Engine(models) as server, pytest.raises(InvalidRequest, match=text):
        run(line, CELL, server=server)
    assert list(models.iterdir()) == []


def test_which_server(models: Path, run: Any, tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="no server in this notebook"):
        run(f"twice {OPTIONS}", CELL)
    (tmp_path / "more").mkdir()
    with wb.Engine(models) as one, wb.Engine(tmp_path / "more") as other:
        with pytest.raises(InvalidRequest, match="several servers") as caught:
            run(f"twice {OPTIONS}", CELL, one=one, other=other)
        assert "--server one or other" in caught.value.hint
        run(f"twice {OPTIONS} --server other", CELL)
        assert other.models().names == ["twice"]
        assert one.models().names == []


def test_a_server_elsewhere_takes_no_cell(models: Path, run: Any) -> None:
    with (
        wb.serve(models) as here,
        wb.connect(here.url) as remote,
        pytest.raises(Unsupported, match="not on this machine"),
    ):
        run(f"twice {OPTIONS} --server remote", CELL, remote=remote)


def test_a_version_that_would_not_be_served_is_refused(run: Any, server: Server, models: Path) -> None:
    run(f"twice {OPTIONS} --version 2", CELL, server=server)
    with pytest.raises(InvalidRequest, match="versions are numbered from 1"):
        run("twice --version 0", CELL, server=server)
    with pytest.raises(CellRefused, match="version 1 is not served: version_policy chooses 2"):
        run("twice --version 1", CELL.replace("factor = 2", "factor = 5"), server=server)
    assert ask(server) == [[2.0, 6.0]]
    assert sorted(path.name for path in (models / "twice").iterdir() if path.is_dir()) == ["2"]
    run("twice --version 3", CELL.replace("factor = 2", "factor = 3"), server=server)
    assert ask(server) == [[3.0, 9.0]]


def test_a_cell_that_is_no_unicode_is_refused_in_words(server: Server, models: Path) -> None:
    with pytest.raises(InvalidRequest, match=r"no UTF-8 form: '\\udc80' in line 2"):
        apply(f"twice {OPTIONS}", "x = '\udc80'\n", {"server": server})
    assert not (models / "twice").exists()
