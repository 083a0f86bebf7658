"""What lint calls an error in a model.py, a request or a command, the real Triton 2.51 refuses; what it lets pass, not."""

# ruff: noqa: E501 (texts as people write them)
from __future__ import annotations

import json
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from real_triton import Addresses, real_triton

from workbench.config import ConfigDocument
from workbench.config.texts import TextContext, lint_text

pytestmark = [pytest.mark.full, pytest.mark.oracle]

IO = 'input { name: "A" data_type: TYPE_FP32 dims: [ 2 ] }\noutput { name: "B" data_type: TYPE_FP32 dims: [ 2 ] }\n'
HEAD = "import triton_python_backend_utils as pb_utils\n\nclass TritonPythonModel:\n"
EACH = (
    "        return [pb_utils.InferenceResponse([pb_utils.Tensor('B', r.inputs()[0].as_numpy())]) for r in requests]\n"
)
GOOD = HEAD + "    def execute(self, requests):\n" + EACH


@dataclass(frozen=True)
class Code:
    """A model.py: whether Triton loads it, and whether it answers then."""

    rule: str | None
    text: str
    config: str = ""


CODES = {
    "good": Code(None, GOOD),
    "default_argument": Code(None, GOOD.replace("requests):", "requests, more=1):", 1)),
    "completes": Code(None, GOOD + "    @classmethod\n    def auto_complete_config(cls, config):\n        return config\n"),
    "bare": Code("python-bare-execute", "def execute(inputs, outputs):\n    outputs[0].set_data_from_numpy(inputs[0].as_numpy())\n"),
    "other_class": Code("python-no-class", GOOD.replace("TritonPythonModel", "TritonModel")),
    "no_execute": Code("python-no-execute", GOOD.replace("execute", "predict")),
    "three_arguments": Code("python-signature", GOOD.replace("requests):", "requests, context):", 1)),
    "initialize": Code("python-signature", GOOD + "    def initialize(self):\n        pass\n"),
    "complete_self": Code("python-signature", GOOD + "    @staticmethod\n    def auto_complete_config(self, config):\n        return config\n"),
    "complete_none": Code("python-auto-complete", GOOD + "    @staticmethod\n    def auto_complete_config(config):\n        config.set_max_batch_size(0)\n"),
    "none": Code("python-returns", HEAD + "    def execute(self, requests):\n        [pb_utils.InferenceResponse([]) for r in requests]\n"),
    "tuple": Code("python-returns", HEAD + "    def execute(self, requests):\n        return (pb_utils.InferenceResponse([]),)\n"),
    "single": Code("python-returns", HEAD + "    def execute(self, requests):\n        return pb_utils.InferenceResponse([])\n"),
    "generator": Code("python-returns", HEAD + "    def execute(self, requests):\n        yield pb_utils.InferenceResponse([])\n"),
    "keyword": Code("python-keyword", GOOD.replace("InferenceResponse([", "InferenceResponse(outputs=[")),
    "utils": Code("python-utils", GOOD.replace("pb_utils.Tensor", "pb_utils.Tensors")),
    "no_import": Code("python-import", GOOD.replace("r.inputs()", "np.array(r.inputs())")),
    "config_text": Code("python-config-text", GOOD + "    def initialize(self, args):\n        args['model_config']['output']\n"),
    "name": Code("python-tensor-name", GOOD.replace("r.inputs()[0]", "pb_utils.get_input_tensor_by_name(r, 'INPUT')")),
    "decoupled": Code("python-decoupled", GOOD, "model_transaction_policy { decoupled: true }\n"),
}  # fmt: skip


def body(**fields: Any) -> dict[str, Any]:
    entry = {"name": "A", "shape": [2], "datatype": "FP32", "data": [1, 2], **fields}
    return {"inputs": [{key: value for key, value in entry.items() if value is not None}]}


BODIES: list[tuple[str | None, dict[str, Any]]] = [
    (None, body()),
    (None, body(data=[[1], [2.5]])),
    (None, body() | {"id": "x", "extra": 1, "outputs": [{"name": "B", "parameters": {"binary_data": False}}]}),
    (None, body() | {"parameters": {"priority": 3, "timeout": 0, "mine": "x", "sequence_id": "a"}}),
    ("request-field", body(datatype=None, dtype="FP32")),
    ("request-field", body(shape=None)),
    ("request-field", body(name=None)),
    ("request-field", {"instances": [[1, 2]]}),
    ("request-field", body() | {"outputs": ["B"]}),
    ("request-source", body(data=None)),
    ("request-source", body(parameters={"binary_data_size": 8})),
    ("request-binary-data", body(data=[], parameters={"binary_data": True})),
    ("request-datatype", body(datatype="TYPE_FP32")),
    ("request-datatype", body(datatype="FLOAT32")),
    ("request-shape", body(data=[1, 2, 3])),
    ("request-shape", body(data=[1])),
    ("request-shape", body(shape=[-1])),
    ("request-shape", body(shape="2")),
    ("request-half", body(datatype="FP16")),
    ("request-value", body(data=["1", 2])),
    ("request-value", body(datatype="INT32", data=[1.5, 2])),
    ("request-parameter", body() | {"parameters": {"sequence_start": "true"}}),
    ("request-parameter", body() | {"parameters": {"priority": -1}}),
    ("request-parameter", body() | {"parameters": {"triton_mine": 1}}),
    ("request-input", {"inputs": body()["inputs"] * 2}),
    ("request-input", body(name="X")),
    ("request-input", body(datatype="INT32")),
    ("request-input", body(shape=[1, 2])),
]

CALLS = [
    ("wrong-method", "GET", "/v2/repository/index"),
    ("wrong-method", "POST", "/v2/health/ready"),
    ("unknown-endpoint", "POST", "/v2/models/good/predict"),
    (None, "POST", "/v2/repository/index"),
    (None, "GET", "/v2/health/live"),
    (None, "GET", "/v2/models/good/versions/1/config"),
]

OPTIONS = [
    ("server-option", "--http-prot=1"),
    ("server-option-value", "--model-control-mode=explict"),
    ("server-option-value", "--exit-on-error=no"),
    ("server-option-value", "--http-thread-count=many"),
    ("server-load-model", "--load-model=good"),
]


VARIABLE = 'name: "variable"\nbackend: "python"\n' + IO.replace("[ 2 ]", "[ -1 ]")


def config(name: str, more: str = "") -> str:
    return f'name: "{name}"\nbackend: "python"\n{IO}{more}'


LOADS = [
    ("perf-option", "-m good --concurrancy-range 1:8"),
    ("perf-option", "-m good --concurrency-range 1 --request-rate-range 5"),
    (None, "-m good --concurrency-range 1,2 --measurement-int 200 -s 90 -r 1"),  # reads 1: lint warns
    ("perf-option", "-m good -i rest"),
    ("perf-shape", "-m variable --concurrency-range 1"),
    (None, "-m variable --shape A:2 --concurrency-range 1 --measurement-int 200 -s 90 -r 1"),
]


@pytest.fixture(scope="module")
def server(oracle: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Addresses]:
    """The real Triton over every model of the table."""
    root = tmp_path_factory.mktemp("repository")
    for name, code in CODES.items():
        (root / name / "1").mkdir(parents=True)
        (root / name / "1" / "model.py").write_text(code.text)
        (root / name / "config.pbtxt").write_text(config(name, code.config))
    (root / "variable" / "1").mkdir(parents=True)
    (root / "variable" / "1" / "model.py").write_text(GOOD)
    (root / "variable" / "config.pbtxt").write_text(VARIABLE)
    with real_triton(oracle, root, tmp_path_factory.mktemp("log") / "log") as addresses:
        yield addresses


def status(server: Addresses, method: str, path: str, data: Any = None) -> int:
    encoded = b"{}" if data is None and method == "POST" else json.dumps(data).encode() if data is not None else None
    request = urllib.request.Request(server.http + path, encoded, method=method)
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code
    except TimeoutError:
        return 0  # execute returned None and sent nothing: 2.51 never answers


def rules(text: str, path: str, message: Any = None) -> list[str]:
    found = lint_text(text.encode(), path=path, context=TextContext("24.10", message))
    return [each.rule for each in found if each.severity == "error"]


@pytest.mark.parametrize("name", CODES)
def test_a_model(server: Addresses, name: str) -> None:
    code = CODES[name]
    message = ConfigDocument.parse(config(name, code.config).encode()).message
    assert rules(code.text, f"{name}/1/model.py", message) == ([code.rule] if code.rule else [])
    answered = status(server, "POST", f"/v2/models/{name}/infer", body()) == 200
    assert answered == (code.rule is None)


@pytest.mark.parametrize(("rule", "request_body"), BODIES, ids=[f"{i}-{each[0]}" for i, each in enumerate(BODIES)])
def test_a_request(server: Addresses, rule: str | None, request_body: dict[str, Any]) -> None:
    message = ConfigDocument.parse(config("good").encode()).message
    found = rules(json.dumps(request_body), "request.json", message)
    assert (rule in found) if rule else (found == [])
    assert (status(server, "POST", "/v2/models/good/infer", request_body) == 200) == (rule is None)


@pytest.mark.parametrize(("rule", "method", "path"), CALLS)
def test_an_address(server: Addresses, rule: str | None, method: str, path: str) -> None:
    assert rules(f"curl -X {method} localhost:8000{path}\n", "a.sh") == ([rule] if rule else [])
    assert (status(server, method, path) == 200) == (rule is None)


@pytest.mark.parametrize(("rule", "option"), OPTIONS)
def test_an_option(oracle: Path, tmp_path: Path, rule: str, option: str) -> None:
    assert rules(f"tritonserver --model-repository=/m {option}\n", "a.sh") == [rule]
    command = [str(oracle / "real-tritonserver"), f"--model-repository={tmp_path}", option]
    done = subprocess.run(command, capture_output=True, timeout=120, check=False)
    assert done.returncode != 0
    assert b"Server" not in done.stdout


@pytest.mark.parametrize(("rule", "options"), LOADS)
def test_a_load(server: Addresses, oracle: Path, rule: str | None, options: str) -> None:
    message = ConfigDocument.parse(VARIABLE.encode()).message
    assert rules(f"perf_analyzer {options}\n", "a.sh", message) == ([rule] if rule else [])
    url = server.http.removeprefix("http://")
    command = [str(oracle / "perf-analyzer"), *options.split(), "-u", url, "--async"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)
    assert ("contains dynamic shape" in done.stdout + done.stderr) == (rule == "perf-shape")
    refused = "Measurement Settings" not in done.stdout
    assert refused == (rule is not None)
