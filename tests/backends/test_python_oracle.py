"""The same model.py files in the real tritonserver (2.51, Python backend) and here: same answers, same texts.

What differs, and why:

* Where Triton 2.51 never answers (None returned without a response, no final flag) this backend does: not compared.
* ``parameters`` of a response came after 2.51.
* Frames of importlib stand in the traceback of a failed import in both, of Triton's own Python file only there.
"""

from __future__ import annotations

import json
import re
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))
from python_host import HEADER, Host, Model, answer, body, context, request
from real_triton import real_triton
from test_python import DECOUPLED, FINAL, NESTED, PROBE, PROBES, SEND

from workbench.errors import WorkbenchError

pytestmark = [
    pytest.mark.full,
    pytest.mark.oracle,
]

NONE = "return None"


def silent(code: str) -> str:
    """A model that answers through senders and returns None."""
    return body(code).replace("return out", NONE)


ANSWERED: dict[str, tuple[str, str]] = {
    "ok": (body(answer("x * 2")), ""),
    "raises": (body("def inner():\n    raise KeyError('boom')\ninner()"), ""),
    "raises_plain": (body("raise RuntimeError"), ""),
    "raises_finally": (body("try:\n    raise ValueError('a')\nfinally:\n    y = 1"), ""),
    "raises_from": (body("try:\n    1 / 0\nexcept ZeroDivisionError as e:\n    raise ValueError('b') from e"), ""),
    "triton_error_raised": (body("raise pb_utils.TritonError('custom')"), ""),
    "model_exception": (body("raise pb_utils.TritonModelException('tme')"), ""),
    "too_many": (body("out += [pb_utils.InferenceResponse([]), pb_utils.InferenceResponse([])]"), ""),
    "too_few": (body("pass"), ""),
    "wrong_element": (body("out.append('x')"), ""),
    "returns_dict": (body("return {}"), ""),
    "returns_tuple": (body("return ()"), ""),
    "no_execute": ("class TritonPythonModel:\n    pass\n", ""),
    "error_response": (body("out.append(pb_utils.InferenceResponse([], pb_utils.TritonError('not today')))"), ""),
    "error_not_found": (
        body("out.append(pb_utils.InferenceResponse([], pb_utils.TritonError('x', pb_utils.TritonError.NOT_FOUND)))"),
        "",
    ),
    "error_unavailable": (
        body("out = [pb_utils.InferenceResponse([], pb_utils.TritonError('x', pb_utils.TritonError.UNAVAILABLE))]"),
        "",
    ),
    "no_outputs": (body("out.append(pb_utils.InferenceResponse([]))"), ""),
    "unknown_output": (
        body("out.append(pb_utils.InferenceResponse([pb_utils.Tensor(n, x) for n in ('OUT', 'NOPE')]))"),
        "",
    ),
    "other_type": (body(answer("x.astype(np.int64)")), ""),
    "transposed": (body(answer("np.array([[1, 2], [3, 4]], np.float32).T[:1]")), ""),
    "bad_dtype": (body(answer("np.array(['a'])")), ""),
    "sender": (silent(SEND.format(FINAL)), ""),
    "sender_in_list": (body(SEND.format(FINAL) + "out.append(None)"), ""),
    "sender_final_only": (body(f"r.get_response_sender().send({FINAL[2:]})\nout.append(None)"), ""),
    "sender_bad_flag": (body("r.get_response_sender().send(None, flags=7)"), ""),
    "nested": (body(NESTED.format(model="ok", input="IN")), ""),
    "nested_unknown": (body(NESTED.format(model="nope", input="IN")), ""),
    "nested_raises": (body(NESTED.format(model="raises", input="IN")), ""),
    "nested_decoupled": (body(NESTED.format(model="many", input="IN")), ""),
    "many": (silent(SEND.format("") + f"s.send({FINAL[2:]})"), DECOUPLED),
}
REFUSED = {
    "import_raises": "raise RuntimeError('at import')\n",
    "import_missing": "import nonexistent_xyz\n",
    "no_class": "class Other: pass\n",
    "syntax": "def f(:\n",
    "initialize_raises": "class TritonPythonModel:\n    def initialize(self, args):\n        raise ValueError('i')\n",
}
CONFIG = """backend: "python"
max_batch_size: 64
input { name: "IN" data_type: TYPE_FP32 dims: [ -1 ] }
output { name: "OUT" data_type: TYPE_FP32 dims: [ -1 ] }
"""
X = np.array([[1, 2]], np.float32)


@dataclass
class Triton:
    """A running tritonserver over a repository."""

    root: Path
    url: str
    loaded: dict[str, str]

    def infer(self, model: str, inputs: list[dict[str, Any]], **more: Any) -> tuple[int, Any]:
        data = json.dumps({"inputs": inputs, **more}).encode()
        try:
            with urllib.request.urlopen(f"{self.url}/v2/models/{model}/infer", data, timeout=20) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)


@pytest.fixture(scope="module")
def triton(oracle: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Triton]:
    root = tmp_path_factory.mktemp("repository")
    sources = {**ANSWERED, **{name: (source, "") for name, source in REFUSED.items()}, "probe": (PROBE, "")}
    for name, (source, config) in sources.items():
        version = root / name / "1"
        version.mkdir(parents=True)
        text = CONFIG.replace("FP32", "STRING") if name == "probe" else CONFIG
        (version.parent / "config.pbtxt").write_text(text + config)
        (version / "model.py").write_text(HEADER + source)
    with real_triton(oracle, root, root.parent / "triton.log", ["--strict-readiness=false"]) as addresses:
        with urllib.request.urlopen(addresses.http + "/v2/repository/index", b"{}", timeout=10) as answer:
            loaded = {row["name"]: row.get("reason", "") for row in json.load(answer)}
        yield Triton(root, addresses.http, loaded)


@pytest.fixture(scope="module")
def ours(triton: Triton) -> Iterator[Host]:
    host = Host()
    for name, (source, config) in ANSWERED.items():
        host.models[name] = Model(host, context(host, triton.root, name, source, config))
    yield host
    host.close()


@pytest.mark.parametrize("name", [name for name in ANSWERED if name != "many"])
def test_a_request_is_answered_alike(triton: Triton, ours: Host, name: str) -> None:
    status, answer = triton.infer(name, [{"name": "IN", "datatype": "FP32", "shape": [1, 2], "data": [1, 2]}])
    try:
        response = ours.models[name].run(X).one()
        outputs = [(t.name, t.datatype, list(t.shape), t.data.ravel().tolist()) for t in response.outputs]
        here: tuple[int, Any] = (200, outputs)
    except WorkbenchError as error:
        here = (error.code.http_status, error.message)
    there = (
        status,
        [(o["name"], o["datatype"], o["shape"], o["data"]) for o in answer["outputs"]]
        if status == 200
        else answer["error"],
    )
    assert here == there


@pytest.mark.parametrize("name", REFUSED)
def test_a_load_is_refused_alike(triton: Triton, name: str) -> None:
    host = Host()
    try:
        with pytest.raises(WorkbenchError) as caught:
            Model(host, context(host, triton.root, name, REFUSED[name]))
    finally:
        host.close()
    # the line numbers inside importlib are those of each Python
    frozen = re.compile(r"(<frozen importlib[^>]*>)\(\d+\)")
    assert frozen.sub(r"\1", caught.value.status_text) == frozen.sub(r"\1", triton.loaded[name])


NEWER = {
    "r.inputs()[0].triton_dtype()": "raises a TypeError in 2.51",
    "pb_utils.get_input_config_by_name(json.loads(self.args['model_config']), 'IN')['data_type']": "another file here",
}


@pytest.mark.parametrize("code", [code for code in PROBES if code not in NEWER])
def test_pb_utils_was_recorded_right(triton: Triton, code: str) -> None:
    parameters = {"sequence_id": 7, "sequence_start": True, "sequence_end": True, "timeout": 1_000_000, "priority": 3}
    status, answer = triton.infer(
        "probe",
        [{"name": "IN", "datatype": "BYTES", "shape": [1, 1], "data": [code]}],
        id="rid",
        parameters={"str": "a", "int": 3, "bool": True, **parameters},
    )
    assert status == 200, answer
    assert answer["outputs"][0]["data"] == [PROBES[code]]


def test_a_request_without_parameters_says_the_same(triton: Triton, ours: Host) -> None:
    model = Model(ours, context(ours, triton.root, "probe", PROBE))
    try:
        made = "pb_utils.InferenceRequest(model_name='m', inputs=[], requested_output_names=[]){}"
        for code in (
            "r.parameters()",
            "r.request_id()",
            "r.correlation_id()",
            "r.timeout()",
            "r.flags()",
            made.format(".parameters()"),
            made.format(".request_id()"),
            "[place in sys.path for place in map(os.path.dirname, (__file__, os.path.dirname(__file__)))]",
            "type(self).__module__",
        ):
            _, answer = triton.infer("probe", [{"name": "IN", "datatype": "BYTES", "shape": [1, 1], "data": [code]}])
            here = model.begin([request("probe", {"IN": np.array([[code.encode()]], object)})]).one()
            assert here.as_numpy("OUT")[0].decode() == answer["outputs"][0]["data"][0], code
    finally:
        model.close()
