"""Models that are broken, over HTTP: Triton's text and status, the server stays up, nobody else is disturbed.

Expected texts were read from a real Triton 2.51 on the same models.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from workbench.server import RunningServer, ServerOptions

Http = Callable[..., Any]

HEAD = "import triton_python_backend_utils as pb\n\n\nclass TritonPythonModel:\n"
EXECUTE = (
    "    def execute(self, requests):\n"
    "        given = [pb.get_input_tensor_by_name(r, 'INPUT0').as_numpy() for r in requests]\n"
    "        return [pb.InferenceResponse([pb.Tensor('OUTPUT0', array)]) for array in given]\n"
)
MODELS = {
    "good": HEAD + EXECUTE,
    "bad_import": "import nonexistent_module_xyz\n" + HEAD + EXECUTE,
    "bad_initialize": HEAD + "    def initialize(self, args):\n        raise ValueError('not today é')\n" + EXECUTE,
    "bad_execute": HEAD + "    def execute(self, requests):\n        raise RuntimeError('boom')\n",
    "too_few": HEAD + "    def execute(self, requests):\n        return []\n",
    "own_error": HEAD + (
        "    def execute(self, requests):\n"
        "        error = pb.TritonError('busy', pb.TritonError.UNAVAILABLE)\n"
        "        return [pb.InferenceResponse(error=error) for _ in requests]\n"
    ),
    "dies": HEAD + "    def execute(self, requests):\n        import os\n        os._exit(3)\n",
}  # fmt: skip
CONFIG = (
    'name: "{name}"\nbackend: "python"\nmax_batch_size: 8\n'
    'input [ {{ name: "INPUT0" data_type: TYPE_FP32 dims: [ 4 ] }} ]\n'
    'output [ {{ name: "OUTPUT0" data_type: TYPE_FP32 dims: [ 4 ] }} ]\n'
    "instance_group [ {{ count: 1 kind: KIND_CPU }} ]\n"
)
BODY = {"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}]}


def add(repository: Path, name: str, source: str) -> Path:
    directory = repository / name / "1"
    directory.mkdir(parents=True)
    (directory / "model.py").write_text(source)
    (repository / name / "config.pbtxt").write_text(CONFIG.format(name=name))
    return repository / name


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("bad")
    for name, source in MODELS.items():
        add(root, name, source)
    (root / "bad_config").mkdir()
    (root / "bad_config" / "config.pbtxt").write_text('name: "bad_config"\nmax_batch_size: [\n')
    return root


@pytest.fixture(scope="module")
def bad(models: Path, start: Any) -> Iterator[RunningServer]:
    with start(models, ServerOptions(name="bad", exit_timeout_s=5.0)) as server:
        yield server


def load(http: Http, server: RunningServer, name: str) -> tuple[int, str]:
    answer = http(server, "POST", f"/v2/repository/models/{name}/load", {})
    return answer.status, answer.json["error"] if answer.body else ""


def infer(http: Http, server: RunningServer, name: str) -> tuple[int, str]:
    answer = http(server, "POST", f"/v2/models/{name}/infer", BODY)
    return answer.status, answer.json.get("error", "")


@pytest.fixture(autouse=True)
def _others_are_not_disturbed(bad: RunningServer, http: Http) -> Iterator[None]:
    yield
    assert http(bad, "GET", "/v2/health/live").status == 200
    assert infer(http, bad, "good") == (200, "")


def test_a_model_that_cannot_be_imported(bad: RunningServer, http: Http, models: Path) -> None:
    status, text = load(http, bad, "bad_import")
    assert status == 400
    assert text.startswith(
        "load failed for model 'bad_import': version 1 is at UNAVAILABLE state: Internal: ModuleNotFoundError: "
        f"No module named 'nonexistent_module_xyz'\n\nAt:\n  {models}/bad_import/1/model.py(1): <module>\n"
    )
    assert text.endswith(";\n")
    (row,) = [row for row in http(bad, "POST", "/v2/repository/index", {}).json if row["name"] == "bad_import"]
    assert (row["state"], row["version"]) == ("UNAVAILABLE", "1")
    assert row["reason"].startswith("Internal: ModuleNotFoundError: ")
    assert http(bad, "GET", "/v2/models/bad_import/ready").status == 400
    assert http(bad, "GET", "/v2/health/ready").status == 400, "strict readiness: every model counts"


def test_a_model_that_raises_in_initialize(bad: RunningServer, http: Http, models: Path) -> None:
    assert load(http, bad, "bad_initialize") == (
        400,
        "load failed for model 'bad_initialize': version 1 is at UNAVAILABLE state: Internal: ValueError: not today é"
        f"\n\nAt:\n  {models}/bad_initialize/1/model.py(6): initialize\n;\n",
    )
    assert infer(http, bad, "bad_initialize") == (
        404,
        "Request for unknown model: 'bad_initialize' has no available versions",
    )


def test_a_model_that_raises_in_execute(bad: RunningServer, http: Http, models: Path) -> None:
    assert infer(http, bad, "bad_execute") == (
        500,
        "Failed to process the request(s) for model 'bad_execute_0_0', message: RuntimeError: boom\n\nAt:\n"
        f"  {models}/bad_execute/1/model.py(6): execute\n",
    )


def test_a_model_that_answers_too_little(bad: RunningServer, http: Http) -> None:
    status, text = infer(http, bad, "too_few")
    assert status == 500
    assert "InferenceRequest(s) size is:1, and InferenceResponse(s) size is:0" in text


def test_an_error_with_a_code_of_its_own(bad: RunningServer, http: Http) -> None:
    assert infer(http, bad, "own_error") == (503, "busy")


def test_a_process_that_dies_fails_its_batch_and_comes_back(bad: RunningServer, http: Http) -> None:
    for _ in range(2):
        status, text = infer(http, bad, "dies")
        assert status == 500
        assert text


def test_a_broken_configuration(bad: RunningServer, http: Http) -> None:
    text = "failed to load 'bad_config', failed to poll from model repository"
    assert load(http, bad, "bad_config") == (500, text)
    assert infer(http, bad, "bad_config")[0] == 404


def test_a_missing_weight_file(bad: RunningServer, http: Http, models: Path, write: Callable[..., None]) -> None:
    write(models, "weightless", "FP32", [4])
    (models / "weightless" / "1" / "model.onnx").unlink()
    status, text = load(http, bad, "weightless")
    assert status == 400
    assert text.startswith("load failed for model 'weightless': version 1 is at UNAVAILABLE state: ")
    assert "model.onnx" in text


def test_a_failed_reload_keeps_what_served(bad: RunningServer, http: Http, models: Path) -> None:
    directory = add(models, "reloaded", MODELS["good"])
    assert load(http, bad, "reloaded") == (200, "")
    config = directory / "config.pbtxt"
    good = config.read_text()
    (directory / "1" / "model.py").write_text(MODELS["bad_initialize"])
    assert load(http, bad, "reloaded")[0] == 400
    assert infer(http, bad, "reloaded") == (200, "")
    config.write_text("nonsense {")
    assert load(http, bad, "reloaded") == (500, "failed to load 'reloaded', failed to poll from model repository")
    assert infer(http, bad, "reloaded") == (200, "")
    config.write_text(good)
    (directory / "1" / "model.py").write_text(MODELS["good"])
    assert load(http, bad, "reloaded") == (200, "")
    assert infer(http, bad, "reloaded") == (200, "")
