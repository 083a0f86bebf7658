"""Each rule about texts: one text that has the fault, one close to it that has not, and what the fix makes of it."""

# ruff: noqa: E501 (texts as people write them)
from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workbench.backends._child import pb_utils
from workbench.config import RULES, ConfigDocument
from workbench.config.texts import TextContext, fix_text, lint_text
from workbench.config.texts.backend_names import PB_UTILS
from workbench.config.texts.metric_names import METRICS
from workbench.config.texts.option_tables import TRITONSERVER
from workbench.config.texts.rules import TEXT_RULES
from workbench.server.arguments import parser

CONFIG = ConfigDocument.parse(
    b'name: "m" backend: "python" max_batch_size: 8 input { name: "TEXT" data_type: TYPE_STRING dims: [ 1 ] }'
    b' input { name: "IDS" data_type: TYPE_INT64 dims: [ -1 ] } output { name: "SCORE" data_type: TYPE_FP32 dims: [ 2 ] }'
).message
BATCHED = ConfigDocument.parse(
    b'name: "m" backend: "python" max_batch_size: 8 dynamic_batching { } input { name: "A" data_type: TYPE_FP32 dims: [ 1 ] }'
).message
DECOUPLED = ConfigDocument.parse(b'name: "m" backend: "python" model_transaction_policy { decoupled: true }').message

IMPORT = "import triton_python_backend_utils as pb_utils\n"
ONE = "        return [pb_utils.InferenceResponse(output_tensors=[])for r in requests]\n"


def model(body: str = ONE, head: str = "    def execute(self, requests):\n", rest: str = "") -> str:
    return f"{IMPORT}\nclass TritonPythonModel:\n{head}{body}{rest}"


def request(**fields: Any) -> str:
    entry = {"name": "A", "shape": [1, 2], "datatype": "FP32", "data": [1, 2], **fields}
    return json.dumps({"inputs": [{key: value for key, value in entry.items() if value is not None}]})


TREE = "models/\n└── m/\n    ├── config.pbtxt\n    └── 1/\n        └── model.onnx\n"

# rule, file name, text with the fault, text without it, and what the fix writes (None: there is no fix)
CASES: list[tuple[str, str, str, str, str | None]] = [
    ("python-syntax", "1/model.py", "def execute(:\n", IMPORT + model(), None),
    ("python-no-class", "1/model.py", IMPORT + "class Model:\n    pass\n", model(), None),
    ("python-no-class", "1/model.py", model().replace("TritonPythonModel", "TritonPythonmodel"), model(), "class TritonPythonModel:"),
    ("python-bare-execute", "a.md", "```python\ndef execute(inputs, outputs):\n    outputs[0].set_data_from_numpy(inputs[0].as_numpy())\n```\n", "```python\ndef execute(self, requests):\n    return responses\n```\n", 'pb_utils.Tensor("OUTPUT0", request.inputs()[0].as_numpy())'),
    ("python-no-execute", "1/model.py", model(head="    def excute(self, requests):\n"), model(), None),
    ("python-signature", "1/model.py", model(head="    def execute(self, requests, context):\n"), model(head="    def execute(self, requests, context=None):\n"), "def execute(self, requests):"),
    ("python-signature", "1/model.py", model(rest="    def initialize(self):\n        self.x = 1\n"), model(rest="    def initialize(self, args):\n        self.x = args\n"), "def initialize(self, args):"),
    ("python-signature", "1/model.py", model(rest="    @staticmethod\n    def auto_complete_config(self, c):\n        return c\n"), model(rest="    @classmethod\n    def auto_complete_config(cls, c):\n        return c\n"), None),
    ("python-signature", "1/model.py", model(rest="    def finalize(self, why):\n        pass\n"), model(rest="    def finalize(self):\n        pass\n"), "def finalize(self):"),
    ("python-release", "1/model.py", model(rest="    def is_ready(self):\n        return True\n"), model(rest="    def ready(self):\n        return True\n"), None),
    ("python-auto-complete", "1/model.py", model(rest="    @staticmethod\n    def auto_complete_config(c):\n        c.set_max_batch_size(4)\n"), model(rest="    @staticmethod\n    def auto_complete_config(c):\n        return c\n"), None),
    ("python-returns", "1/model.py", model("        for r in requests:\n            pb_utils.InferenceResponse()\n"), model("        for r in requests:\n            r.get_response_sender().send(pb_utils.InferenceResponse(), flags=1)\n"), None),
    ("python-returns", "1/model.py", model("        for r in requests:\n            return pb_utils.InferenceResponse()\n"), model(), "return [pb_utils.InferenceResponse()]"),
    ("python-returns", "1/model.py", model("        yield 1\n"), model("        raise pb_utils.TritonModelException('no')\n"), None),
    ("python-response-count", "1/model.py", model("        x = requests[0].inputs()\n        return [pb_utils.InferenceResponse(x)]\n"), model(), None),
    ("python-outputs", "1/model.py", model("        self.out.set_data_from_numpy(1)\n" + ONE), model(), None),
    ("python-import", "1/model.py", model("        np.zeros(1)\n" + ONE), "import numpy as np\n" + model("        np.zeros(1)\n" + ONE), "import numpy as np\n"),
    ("python-utils", "1/model.py", model("        pb_utils.get_input_tensor_by_nam(requests[0], 'A')\n" + ONE), model("        pb_utils.get_input_tensor_by_name(requests[0], 'A')\n" + ONE), "pb_utils.get_input_tensor_by_name("),
    ("python-keyword", "1/model.py", model("        return [pb_utils.InferenceResponse(outputs=[]) for r in requests]\n"), model(), "InferenceResponse(output_tensors=[])"),
    ("python-keyword", "1/model.py", model("        pb_utils.InferenceRequest(model_name='x', requested_outputs=['y'], inputs=[])\n" + ONE), model("        pb_utils.InferenceRequest(model_name='x', requested_output_names=['y'], inputs=[])\n" + ONE), "requested_output_names=['y']"),
    ("python-await", "1/model.py", model("        await self.r.exec()\n" + ONE, "    async def execute(self, requests):\n"), model("        await self.r.async_exec()\n" + ONE, "    async def execute(self, requests):\n"), "await self.r.async_exec()"),
    ("python-config-text", "1/model.py", "import json\n" + model(rest="    def initialize(self, args):\n        self.out = args['model_config']['output']\n"), "import json\n" + model(rest="    def initialize(self, args):\n        self.out = json.loads(args['model_config'])['output']\n"), "json.loads(args['model_config'])['output']"),
    ("client-url", "c.py", "import tritonclient.http as h\nc = h.InferenceServerClient(url='http://localhost:8000')\n", "import tritonclient.http as h\nc = h.InferenceServerClient(url='localhost:8000')\n", "url='localhost:8000'"),
    ("client-datatype", "c.py", "import numpy as np\nimport tritonclient.http as h\nx = np.random.rand(1, 4)\ni = h.InferInput('A', [1, 4], 'FP32')\ni.set_data_from_numpy(x)\n", "import numpy as np\nimport tritonclient.http as h\nx = np.random.rand(1, 4).astype(np.float32)\ni = h.InferInput('A', [1, 4], 'FP32')\ni.set_data_from_numpy(x)\n", "x.astype(np.float32)"),
    ("wrong-port", "c.py", "import tritonclient.grpc as g\nc = g.InferenceServerClient('localhost:8000')\n", "import tritonclient.grpc as g\nc = g.InferenceServerClient('localhost:8001')\n", None),
    ("wrong-method", "a.sh", "curl localhost:8000/v2/repository/index\n", "curl -X POST localhost:8000/v2/repository/index\n", "curl -X POST localhost:8000"),
    ("wrong-method", "a.sh", "curl -X POST localhost:8000/v2/health/ready\n", "curl -v localhost:8000/v2/health/ready\n", None),
    ("unknown-endpoint", "a.sh", "curl -d @x localhost:8000/v2/models/m/predict\n", "curl -d @x localhost:8000/v2/models/m/versions/1/infer\n", "/v2/models/m/infer"),
    ("metrics-port", "a.sh", "curl localhost:8000/metrics\n", "curl localhost:8002/metrics\n", "localhost:8002/metrics"),
    ("request-json", "r.json", '{"inputs": [{"name": "A", "shape": [1], "datatype": "FP32", "data": [1,]}]}', request(), None),
    ("request-json", "a.md", '```json\n{"inputs": [{"name": "A", "shape": [1], "datatype": "FP32", "data": [1,]}]}\n```\n', '```json\n{"inputs": [{"name": "A", "shape": [9], "datatype": "FP32", "data": [1, ...]}]}\n```\n', None),
    ("request-field", "r.json", request(datatype=None, dtype="FP32"), request(), '"datatype"'),
    ("request-field", "r.json", request(shape=None), request(parameters={"any": 1}), None),
    ("request-field", "r.json", '{"instances": [[1, 2]]}', request(), None),
    ("request-source", "r.json", request(data=None), request(data=None, parameters={"binary_data_size": 8}), None),
    ("request-source", "r.json", request(parameters={"binary_data_size": 8}), request(), None),
    ("request-binary-data", "r.json", request(data=[], parameters={"binary_data": True}), request()[:-1] + ', "outputs": [{"name": "B", "parameters": {"binary_data": true}}]}', None),
    ("request-datatype", "r.json", request(datatype="TYPE_FP32"), request(), '"FP32"'),
    ("request-datatype", "r.json", request(datatype="STRING", data=["a", "b"]), request(datatype="BYTES", data=["a", "b"]), '"BYTES"'),
    ("request-shape", "r.json", request(data=[1, 2, 3]), request(data=[[1, 2]]), None),
    ("request-shape", "r.json", request(shape=[-1, 2]), request(shape=[0], data=[]), None),
    ("request-half", "r.json", request(datatype="FP16"), request(), None),
    ("request-value", "r.json", request(datatype="UINT8", data=[256, 0]), request(datatype="UINT8", data=[255, 0]), None),
    ("request-value", "r.json", request(datatype="INT32", data=[1.5, 0]), request(data=[1.5, 0]), None),
    ("request-parameter", "r.json", request()[:-1] + ', "parameters": {"sequence_start": "true"}}', request()[:-1] + ', "parameters": {"sequence_start": true, "priority": 1, "sequence_id": "a", "mine": "x"}}', None),
    ("request-parameter", "r.json", request()[:-1] + ', "parameters": {"triton_mine": 1}}', request(), None),
    ("request-input", "r.json", '{"inputs": [' + ", ".join([json.dumps(json.loads(request())["inputs"][0])] * 2) + "]}", request(), None),
    ("metric-unknown", "a.md", "`nv_inference_requests_success`\n", "`nv_inference_request_success` and nv_inference_* and nv_peer_mem\n", "`nv_inference_request_success`"),
    ("metric-series", "a.prom", "nv_inference_count_total 3\n", "nv_inference_count 3\n", "nv_inference_count 3\n"),
    ("metric-series", "a.md", "```promql\nhistogram_quantile(0.99, rate(nv_inference_request_duration_us_bucket[1m]))\n```\n", "```promql\nhistogram_quantile(0.99, rate(nv_inference_first_response_histogram_ms_bucket[1m]))\n```\n", None),
    ("metric-label", "a.prom", 'nv_inference_count{model_name="m"} 3\n', 'nv_inference_count{model="m",version="1"} 3\n', 'nv_inference_count{model="m"}'),
    ("metric-label", "a.prom", 'nv_inference_count{reason="OTHER"} 3\n', 'nv_inference_request_failure{reason="OTHER"} 3\n', None),
    ("server-option", "a.sh", "tritonserver --model-repo-path=/m --http-prot=1\n", "tritonserver --model-repository=/m --http-port=1\n", "--http-port=1"),
    ("server-option-value", "a.sh", "tritonserver --model-repository=/m --model-control-mode=explict\n", "tritonserver --model-repository=/m --model-control-mode explicit\n", "--model-control-mode=explicit"),
    ("server-option-value", "a.sh", "tritonserver --model-repository=/m --exit-on-error=no\n", "tritonserver --model-repository=/m --exit-on-error=false --log-verbose=$N\n", None),
    ("server-option-ignored", "a.sh", "tritonserver --model-repository=/m --repository-poll-secs=5\n", "tritonserver --model-repository=/m --model-control-mode=poll --repository-poll-secs=5\n", "--model-control-mode=poll --repository-poll-secs=5"),
    ("server-option-ignored", "a.sh", "tritonserver --model-repository=/m --rate-limit-resource=R:1\n", "tritonserver --model-repository=/m --rate-limit=execution_count --rate-limit-resource=R:1\n", None),
    ("server-option-old", "a.sh", "tritonserver --model-repository=/m --strict-model-config=true\n", "tritonserver --model-repository=/m --disable-auto-complete-config\n", "--disable-auto-complete-config"),
    ("server-load-model", "a.sh", "tritonserver --model-repository=/m --load-model=a\n", "tritonserver --model-repository=/m --model-control-mode=explicit --load-model=a\n", "--model-control-mode=explicit --load-model=a"),
    ("server-load-model", "a.sh", "tritonserver --model-repository=/m --model-control-mode=explicit --load-model=a --load-model=*\n", "tritonserver --model-repository=/m --model-control-mode=explicit --load-model=*\n", None),
    ("server-option", "deploy.yaml", "containers:\n- image: nvcr.io/nvidia/tritonserver:25.03-py3\n  args:\n    - tritonserver\n    - --model-store=/m\n    - --http-prot=80\n", "containers:\n- name: triton\n  command: [tritonserver, --model-store=/m]\n- name: other\n  args: [--http-prot=80]\n", "--http-port=80"),
    ("shell-continuation", "a.sh", "tritonserver\n  --model-repository=/m\n", "tritonserver \\\n  --model-repository=/m\n", "tritonserver \\\n  --model-repository=/m\n"),
    ("docker-command", "a.sh", "docker run --gpus all -v /m:/m nvcr.io/nvidia/tritonserver:25.03-py3 --model-repository=/m\n", "docker run --gpus all -v /m:/m nvcr.io/nvidia/tritonserver:25.03-py3 tritonserver --model-repository=/m\n", "py3 tritonserver --model-repository"),
    ("docker-mount", "a.sh", "docker run -v /home/me:/repo nvcr.io/nvidia/tritonserver:25.03-py3 tritonserver --model-repository=/models\n", "docker run -v/home/me:/models nvcr.io/nvidia/tritonserver:25.03-py3 tritonserver --model-repository=/models/a\n", None),
    ("image-tag", "Dockerfile", "FROM nvcr.io/nvidia/tritonserver:25.03\n", "FROM nvcr.io/nvidia/tritonserver:25.03-py3\n", "25.03-py3"),
    ("image-tag", "a.sh", "docker pull nvcr.io/nvidia/tritonserver:latest\n", "docker pull nvcr.io/nvidia/tritonserver:25.03-py3-sdk\n", None),
    ("trtexec-option", "a.sh", "trtexec --onnx=m.onnx --workspace=4096\n", "trtexec --onnx=m.onnx --memPoolSize=workspace:4096\n", "--memPoolSize=workspace:4096"),
    ("trtexec-option", "a.sh", "trtexec --onnx=m.onnx --explicitBatch --buildOnly\n", "trtexec --onnx=m.onnx --skipInference\n", "--skipInference"),
    ("trtexec-shapes", "a.sh", "trtexec --onnx=m --minShapes=x:1x4 --optShapes=x:16x4 --maxShapes=x:8x4\n", "trtexec --onnx=m --minShapes=x:1x4 --optShapes=x:8x4 --maxShapes=x:8x4\n", None),
    ("trtexec-cuda-graph", "a.sh", "trtexec --onnx=m --saveEngine=p --useCudaGraph\n", "trtexec --loadEngine=p --useCudaGraph\n", None),
    ("perf-option", "a.sh", "perf_analyzer -m m --concurrancy-range 1:8\n", "perf_analyzer -m m --concurrency-range 1:8:2 --async --percentile=99\n", "--concurrency-range 1:8"),
    ("perf-option", "a.sh", "perf_analyzer -m m --concurrency-range 1,8\n", "perf_analyzer -m m --concurrency-range $N\n", None),
    ("perf-option", "a.sh", "perf_analyzer -m m --concurrency-range 1 --request-rate-range 5\n", "perf_analyzer -m m --request-rate-range 5:50:5\n", None),
    ("perf-shape", "a.md", '```\nname: "m"\nplatform: "onnxruntime_onnx"\ninput { name: "A" data_type: TYPE_FP32 dims: [ -1 ] }\noutput { name: "B" data_type: TYPE_FP32 dims: [ -1 ] }\n```\n\n    perf_analyzer -m m\n', '```\nname: "m"\nplatform: "onnxruntime_onnx"\ninput { name: "A" data_type: TYPE_FP32 dims: [ -1 ] }\noutput { name: "B" data_type: TYPE_FP32 dims: [ -1 ] }\n```\n\n    perf_analyzer -m m --shape A:4\n', None),
    ("tree-version", "a.txt", TREE.replace("    └── 1/\n        └── model.onnx\n", "    └── labels.txt\n"), TREE, "    ├── 1/\n"),
    ("tree-version", "a.txt", TREE.replace("1/", "v1/"), TREE, "└── 1/"),
    ("tree-version", "a.txt", TREE.replace("    └── 1/\n        └── model.onnx\n", "    └── model.onnx\n"), TREE, None),
    ("tree-version", "a.md", "```\nmodels/\n  m/\n    config.pbtxt\n    labels.txt\n```\n", "```\nmodels/\n  m/\n    config.pbtxt\n    1/\n      model.py\n```\n", "  m/\n    1/\n    config.pbtxt\n"),
    ("tree-config", "a.txt", TREE.replace("config.pbtxt", "config.pbtext"), TREE, "config.pbtxt"),
    ("instances-per-gpu", "a.txt", "instance_group [ { count: 2 gpus: [ 0, 1 ] } ]\n", "instance_group [ { count: 1 gpus: [ 0, 1 ] } ]\n", None),
    ("execution-env", "a.txt", 'backend: "python"\nparameters { key: "EXECUTION_ENV_PATH" value { string_value: "/models/m/1" } }\n', 'backend: "python"\nparameters { key: "EXECUTION_ENV_PATH" value { string_value: "/models/m/env.tar.gz" } }\n', None),
    ("no-triton-text", "a.txt", 'Context {\n  device: "x"\n}\n', 'ModelInferRequest {\n  model_name: "x"\n}\n', None),
    ("claim-poll-default", "a.md", "- poll (default): looks for changes\n", "- none (default): loads once. The default of poll is 15 s; poll is not the default\n", "poll (not the default (none is))"),
    ("claim-poll-default", "a.txt", "기본 모드는 poll입니다\n", "기본 모드는 none이며 poll은 기본값이 아닙니다\n", None),
    ("claim-auto-reload", "a.md", "By default Triton polls the model repository.\n", "In poll mode Triton polls the model repository.\n", None),
    ("claim-ensemble-priority", "a.md", "The priority is not propagated to the steps of an ensemble.\n", "The priority is passed to every step of an ensemble.\n", None),
    ("claim-version-policy", "a.md", "Use strict model versioning.\n", "Use version_policy specific.\n", None),
    ("claim-priority-zero", "a.md", "Priority 0 is the highest.\n", "Priority 1 is the highest, priority 0 is not.\n", None),
    ("claim-count-gpus", "a.txt", "모델 당 인스턴스 수는 instance_group.count로 제어함\n", "GPU 당 인스턴스 수는 instance_group.count로 제어함\n", None),
]  # fmt: skip

# the same where the model's configuration is known
KNOWN: list[tuple[str, Any, str, str, str, str | None]] = [
    ("python-tensor-name", CONFIG, "1/model.py", model("        pb_utils.get_input_tensor_by_name(requests[0], 'ID')\n" + ONE), model("        pb_utils.get_input_tensor_by_name(requests[0], 'IDS')\n" + ONE), "'IDS'"),
    ("python-tensor-name", CONFIG, "1/model.py", model("        return [pb_utils.InferenceResponse([pb_utils.Tensor('SCORES', r)]) for r in requests]\n"), model("        return [pb_utils.InferenceResponse([pb_utils.Tensor('SCORE', r)]) for r in requests]\n"), "Tensor('SCORE', r)"),
    ("python-decoupled", DECOUPLED, "1/model.py", model(), model("        for r in requests:\n            r.get_response_sender().send(pb_utils.InferenceResponse(), flags=1)\n        return None\n"), None),
    ("python-decoupled", CONFIG, "1/model.py", model("        s = requests[0].get_response_sender()\n        for x in range(3):\n            s.send(pb_utils.InferenceResponse())\n"), model("        for r in requests:\n            s = r.get_response_sender()\n            s.send(pb_utils.InferenceResponse(), flags=1)\n"), None),
    ("python-response-count", BATCHED, "1/model.py", model("        x = requests[0].inputs()\n        return [pb_utils.InferenceResponse(x)]\n"), model(), None),
    ("request-input", CONFIG, "r.json", '{"inputs": [{"name": "TXT", "shape": [1, 1], "datatype": "BYTES", "data": ["a"]}, {"name": "IDS", "shape": [1, 2], "datatype": "INT64", "data": [1, 2]}]}', '{"inputs": [{"name": "TEXT", "shape": [1, 1], "datatype": "BYTES", "data": ["a"]}, {"name": "IDS", "shape": [1, 2], "datatype": "INT64", "data": [1, 2]}]}', '"TEXT"'),
    ("request-input", CONFIG, "r.json", '{"inputs": [{"name": "TEXT", "shape": [1, 1], "datatype": "BYTES", "data": ["a"]}, {"name": "IDS", "shape": [1, 2], "datatype": "INT32", "data": [1, 2]}]}', '{"inputs": [{"name": "TEXT", "shape": [8, 1], "datatype": "BYTES", "data": ["a", "a", "a", "a", "a", "a", "a", "a"]}, {"name": "IDS", "shape": [8, 0], "datatype": "INT64", "data": []}]}', '"INT64"'),
    ("request-input", CONFIG, "r.json", '{"inputs": [{"name": "TEXT", "shape": [1], "datatype": "BYTES", "data": ["a"]}, {"name": "IDS", "shape": [1, 2], "datatype": "INT64", "data": [1, 2]}]}', '{"inputs": [{"name": "TEXT", "shape": [1, 1], "datatype": "BYTES", "data": ["a"]}, {"name": "IDS", "shape": [1, 2], "datatype": "INT64", "data": [1, 2]}]}', None),
    ("request-input", CONFIG, "m/example_inputs.json", '{"data": [{"TEXTS": ["a"], "IDS": [1]}]}', '{"data": [{"TEXT": ["a"], "IDS": [1]}]}', '"TEXT"'),
]  # fmt: skip


def found(path: str, text: str, config: Any = None) -> list[Any]:
    return lint_text(text.encode(), path=path, context=TextContext(config=config))


ALL = [(rule, None, *rest) for rule, *rest in CASES] + KNOWN


@pytest.mark.parametrize(
    ("rule", "config", "path", "bad", "good", "after"),
    ALL,
    ids=[f"{index}-{each[0]}" for index, each in enumerate(ALL)],
)
def test_the_fault_is_found_the_near_miss_is_not_and_the_fix_mends(
    rule: str, config: Any, path: str, bad: str, good: str, after: str | None
) -> None:
    hits = [each for each in found(path, bad, config) if each.rule == rule]
    assert hits, found(path, bad, config)
    assert [each.rule for each in found(path, good, config)] == []
    mended, left = fix_text(bad.encode(), path=path, context=TextContext(config=config))
    if after is None:
        assert any(each.fix is None for each in hits)
    else:
        assert after in mended.decode()
        assert after not in bad or after == "config.pbtxt"
        assert len([each for each in left if each.rule == rule]) < len(hits)
    for each in hits:
        lines = bad.split("\n")
        assert 1 <= each.line <= len(lines)
        assert 1 <= each.column <= len(lines[each.line - 1]) + 1


def test_every_rule_has_a_case_and_is_explained_on_the_command_line() -> None:
    assert {each[0] for each in ALL} == set(TEXT_RULES)
    assert set(TEXT_RULES) <= set(RULES)
    with_fix = {each[0] for each in ALL if each[5] is not None} | {"request-binary-data"}  # fixed in Python code
    assert with_fix == {rule for rule, each in TEXT_RULES.items() if each.fix}


# ---- the tables are those of the things themselves


def test_every_option_of_the_server_is_known_to_the_linter() -> None:
    groups = [group for group in parser()._action_groups if group.title != "the workbench's own"]
    names = {name for group in groups for action in group._group_actions for name in action.option_strings}
    assert {name.removeprefix("--") for name in names} - {"-h", "device-list"} <= TRITONSERVER


def test_every_name_of_the_backend_module_is_known_to_the_linter() -> None:
    made = pb_utils.build(None, "")  # type: ignore[arg-type]
    assert {name for name in vars(made) if not name.startswith("_")} <= PB_UTILS


def test_every_metric_of_the_reference_is_known_to_the_linter(shared: Any) -> None:
    text = (shared / "reference" / "triton_semantics.md").read_text()
    section = text[text.index("## 12.") : text.index("## 13.")]
    names = {name for name in re.findall(r"\bnv_[a-z0-9_]+(?![\w{*])", section) if not name.endswith("_")}
    assert names <= set(METRICS)


# ---- places


def test_a_block_in_a_quoted_or_indented_place_is_reported_where_it_stands() -> None:
    text = "한국어 설명:\n\n      dynamic_batching {\n        max_batch_size: 8\n      }\n"
    (finding,) = found("a.txt", text)
    assert (finding.line, finding.column) == (4, 9)
    mended, left = fix_text(text.encode(), path="a.txt")
    assert left == []
    assert "      max_batch_size: 8\n" in mended.decode()


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("name: “m”\nmax_batch_size: 8\n", "smart-quotes"),
        ('// made by hand\nname: "m"\nmax_batch_size: 8\n', "cpp-comment"),
        ("name: m\nmax_batch_size: 8\n", "unquoted-string"),
        ("max_batch_size: 8.0\ninput [ ]\n", "number-form"),
        ("instance_group [\n  { kind: GPU }\n]\n", "unknown-enum"),
    ],
)
@pytest.mark.parametrize("place", ["Look:\n\n{}\nEnd.\n", "Look:\n\n```\n{}```\n", "• so:\n\n{}\n• and\n"])
def test_a_configuration_is_known_by_itself_also_with_slips(text: str, rule: str, place: str) -> None:
    document = place.format("".join(f"    {line}\n" for line in text.splitlines()))
    assert rule in {each.rule for each in found("a.txt", document)}
    assert rule in {each.rule for each in found("a.md", document)}


def test_line_ends_of_windows_stay() -> None:
    text = "Start:\r\n\r\n    tritonserver --model-repository=/m --load-model=a\r\n\r\n    dynamic_batching {\r\n      max_batch_size: 8\r\n    }\r\n"
    mended, left = fix_text(text.encode(), path="a.md")
    assert left == []
    assert mended.count(b"\n") == mended.count(b"\r\n")


def test_a_text_that_is_no_utf8_is_linted_and_its_bytes_stay() -> None:
    data = b"Start: caf" + b"\xe9\n\n    tritonserver --model-repository=/m --load-model=a\n"
    mended, left = fix_text(data, path="a.txt")
    assert left == []
    assert b"caf\xe9\n" in mended


def notebook(*cells: tuple[str, str]) -> str:
    made = [{"cell_type": kind, "metadata": {}, "source": text.splitlines(keepends=True)} for kind, text in cells]
    return json.dumps({"cells": made, "nbformat": 4, "nbformat_minor": 5, "metadata": {}}, indent=1, ensure_ascii=False)


def test_the_cells_of_a_notebook_are_linted_and_fixed_in_its_file() -> None:
    text = notebook(
        ("markdown", "# 제목\n\n```\ninput [ { name: \"A\" data_type: TYPE_FLOAT dims: [ 1 ] } ]\n```\n"),
        ("code", "%matplotlib inline\nimport tritonclient.http as h\nc = h.InferenceServerClient(\"http://localhost:8000\")\n!curl localhost:8000/metrics\n"),
        ("code", "%%writefile m/config.pbtxt\nname: \"m\"\nmax_batchsize: 8\n"),
        ("code", "%%bash\ntritonserver --model-repository=/m --http-prot 1\n"),
    )  # fmt: skip
    findings = found("a.ipynb", text)
    assert [each.rule for each in findings] == [
        "unknown-enum",
        "client-url",
        "metrics-port",
        "unknown-field",
        "server-option",
    ]
    lines = text.split("\n")
    assert all(
        word in lines[each.line - 1]
        for each, word in zip(
            findings, ("TYPE_FLOAT", "http://", "8000/metrics", "max_batchsize", "--http-prot"), strict=True
        )
    )
    mended, left = fix_text(text.encode(), path="a.ipynb")
    assert left == []
    sources = ["".join(each["source"]) for each in json.loads(mended)["cells"]]
    assert "TYPE_FP32" in sources[0]
    assert '("localhost:8000")' in sources[1]
    assert "max_batch_size: 8" in sources[2]
    assert "--http-port 1" in sources[3]


@pytest.mark.parametrize(
    ("command", "release", "expected"),
    [
        ("trtexec --onnx=m.onnx --workspace=64\n", "24.04", []),
        ("trtexec --onnx=m.onnx --workspace=64\n", "24.05", ["trtexec-option"]),
        ("tritonserver --model-repository=/m --allow-client-shm=true\n", "26.03", ["server-option"]),
        ("tritonserver --model-repository=/m --allow-client-shm=true\n", "26.04", []),
    ],
)
def test_what_a_release_has_decides(command: str, release: str, expected: list[str]) -> None:
    found = lint_text(command.encode(), path="a.sh", context=TextContext(release))
    assert [each.rule for each in found] == expected


PIECES = [
    "{",
    "}",
    "[",
    '"',
    "'",
    "\\",
    "\n",
    "\r\n",
    "\n\n",
    "```\n",
    "# ",
    "$(",
    "`",
    "\t",
    "\x00",
    "한국",
    "...",
    " \\\n",
]


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(ALL),
    st.lists(st.tuples(st.integers(0, 400), st.integers(0, 30), st.sampled_from(PIECES)), max_size=8),
)
def test_no_text_is_too_broken_and_mending_ends(case: Any, edits: list[tuple[int, int, str]]) -> None:
    text = case[3]
    for start, length, piece in edits:
        text = text[:start] + piece + text[start + length :]
    mended, left = fix_text(text.encode("utf-8", "surrogatepass"), path=case[2], context=TextContext(config=case[1]))
    again, _ = fix_text(mended, path=case[2], context=TextContext(config=case[1]))
    assert again == mended
    assert all(each.line >= 1 and each.column >= 1 and 0 <= each.start <= each.end <= len(mended) for each in left)


def test_words_of_prose_are_no_code() -> None:
    text = "Triton is a server.\n\ntritonserver is its program\n\nname: of the model, platform: of the machine\n\nimport it if you must\n\n- curl is a tool\n"
    assert found("a.txt", text) == []


LONG = "9" * 5000
DEEP = "[" * 100_000


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("a.json", '{"inputs": [{"\\name": "A"}]}'),
        ("a.json", f'{{"inputs": {DEEP}'),
        ("a.md", f'```json\n{{"inputs": {DEEP}\n```\n'),
        ("a.md", f"dynamic_batching {{ preferred_batch_size: [ {LONG} ] }}\n"),
        ("a.sh", f"trtexec --onnx=a --minShapes=a:1x{LONG} --maxShapes=a:1x{LONG}\n"),
        ("a.py", "x = " + "-" * 30_000 + "1\n"),
    ],
    ids=["escape", "deep", "deep-block", "long-size", "long-shape", "deep-python"],
)
def test_no_text_is_too_deep_and_no_number_too_long(path: str, text: str) -> None:
    assert all(each.line >= 1 for each in lint_text(text.encode(), path=path))


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("line", "count"),
    [(" " * 3 + "name: value number 7\n" + " " * 5 + "more: of it\n", 1500), ("nv_inference_wrong_{} 1\n", 3000)],
    ids=["data", "findings"],
)
def test_a_long_text_takes_seconds(line: str, count: int) -> None:
    text = "".join(line.format(number) for number in range(count))
    findings = lint_text(text.encode(), path="a.txt")
    assert len(findings) == (count if "wrong" in line else 0)
