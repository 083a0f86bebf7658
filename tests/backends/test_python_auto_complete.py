"""``auto_complete_config``: what it may set, and Triton's texts where it contradicts the file.

The texts were recorded from the real tritonserver (Triton 2.51); ``cases/expected_errors.md`` has most of them too.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from google.protobuf import text_format
from python_host import HEADER, Host
from tritonclient.grpc import model_config_pb2

from workbench import config as configs
from workbench.backends.base import ModelContext
from workbench.backends.python import PythonBackend
from workbench.errors import BackendError, InstanceDied

IO = 'i = {"name": "INPUT1", "data_type": "TYPE_FP32", "dims": [4]}\no = {**i, "name": "OUTPUT1"}\n'


@pytest.fixture(scope="module")
def host() -> Iterator[Host]:
    host = Host()
    yield host
    host.close()


def complete(host: Host, root: Path, code: str, config: str = "", name: str = "m") -> Any:
    """Runs a model's auto_complete_config, given its body, on a configuration."""
    version = root / name / "1"
    version.mkdir(parents=True, exist_ok=True)
    lines = "\n".join("        " + line for line in (IO + code).splitlines())
    source = f"class TritonPythonModel:\n    @staticmethod\n    def auto_complete_config(c):\n{lines}\n"
    (version / "model.py").write_text(HEADER + source)
    message = text_format.Parse(f'name: "{name}" backend: "python" {config}', model_config_pb2.ModelConfig())
    context = ModelContext(name, 1, message, json.dumps(configs.to_json(message)), version.parent, version, host)
    return PythonBackend().auto_complete(context)


def test_a_model_completes_its_configuration(host: Host, tmp_path: Path) -> None:
    message = complete(
        host,
        tmp_path,
        "c.add_input({**i, 'optional': True})\nc.add_output(o)\nc.set_max_batch_size(4)\nc.set_dynamic_batching()\n"
        "c.set_model_transaction_policy(dict(decoupled=True))\nprint('noise')\nreturn c",
        'parameters { key: "k" value { string_value: "v" } } instance_group { count: 2 kind: KIND_CPU }',
    )
    assert (message.name, message.backend, message.max_batch_size) == ("m", "python", 4)
    (given,), (got,) = message.input, message.output
    assert (given.name, given.data_type, list(given.dims), given.optional) == ("INPUT1", 11, [4], True)
    assert (got.name, list(got.dims)) == ("OUTPUT1", [4])
    assert message.HasField("dynamic_batching")
    assert message.model_transaction_policy.decoupled
    assert message.parameters["k"].string_value == "v"
    assert message.instance_group[0].count == 2


def test_settings_of_the_file_are_kept(host: Host, tmp_path: Path) -> None:
    message = complete(
        host,
        tmp_path,
        "c.set_max_batch_size(16)\nc.set_dynamic_batching()\nc.add_input(i)\nc.add_output(o)\nreturn c",
        'max_batch_size: 8 dynamic_batching { max_queue_delay_microseconds: 77 } input { name: "INPUT1" data_type: '
        'TYPE_FP32 dims: [ 4 ] } output { name: "OUTPUT1" data_type: TYPE_FP32 dims: [ 4 ] label_filename: "x" }',
    )
    assert message.max_batch_size == 16
    assert message.dynamic_batching.max_queue_delay_microseconds == 77
    assert len(message.input) == len(message.output) == 1
    assert message.output[0].label_filename == "x"


PLACE = "in auto-complete-config function for model 'm'"
TEXTS = {
    "none": (
        "return None",
        "",
        "auto_complete_config function in model 'm' must return a valid pb.ModelConfig object.",
    ),
    "wrong type": (
        "return 1",
        "",
        "auto_complete_config function in model 'm' must return a valid pb.ModelConfig object.",
    ),
    "input without dims": (
        "c.add_input({'name': 'INPUT1', 'data_type': 'TYPE_FP32'})",
        "",
        f"input 'INPUT1' {PLACE} is missing 'dims' property.",
    ),
    "input without data_type": (
        "c.add_input({'name': 'INPUT1', 'dims': [1]})",
        "",
        f"input 'INPUT1' {PLACE} is missing 'data_type' property.",
    ),
    "input without name": (
        "c.add_input({'dims': [1], 'data_type': 'TYPE_FP32'})",
        "",
        f"input {PLACE} is missing 'name' property.",
    ),
    "input with more": (
        "c.add_input({**i, 'zzz': 1})",
        "",
        f"input 'INPUT1' {PLACE} contains property other than 'name', 'data_type', 'dims' and 'optional'.",
    ),
    "output with more": (
        "c.add_output({**o, 'label_filename': 'x'})",
        "",
        f"output 'OUTPUT1' {PLACE} contains property other than 'name', 'data_type' and 'dims'.",
    ),
    "output without dims": (
        "c.add_output({'name': 'OUTPUT1', 'data_type': 'TYPE_FP32'})",
        "",
        f"output 'OUTPUT1' {PLACE} is missing 'dims' property.",
    ),
    "other input dims": (
        "c.add_input(i)",
        'input { name: "INPUT1" data_type: TYPE_FP32 dims: [ 16 ] }',
        "model 'm', tensor 'INPUT1': the model expects dims [4] but the model configuration specifies dims [16]",
    ),
    "other input type": (
        "c.add_input(i)",
        'input { name: "INPUT1" data_type: TYPE_INT32 dims: [ 4 ] }',
        "unable to load model 'm', configuration expects datatype TYPE_INT32 for input 'INPUT1', model provides "
        "TYPE_FP32",
    ),
    "other output dims": (
        "c.add_output(o)",
        'output { name: "OUTPUT1" data_type: TYPE_FP32 dims: [ 16 ] }',
        "model 'm', tensor 'OUTPUT1': the model expects dims [4] but the model configuration specifies dims [16]",
    ),
    "other output type": (
        "c.add_output(o)",
        'output { name: "OUTPUT1" data_type: TYPE_INT32 dims: [ 4 ] }',
        "unable to load model 'm', configuration expects datatype TYPE_INT32 for output 'OUTPUT1', model provides "
        "TYPE_FP32",
    ),
    "another scheduler": (
        "c.set_dynamic_batching()",
        "sequence_batching { }",
        "Configuration specified scheduling_choice as 'sequence_batching', but auto-complete-config function for model "
        "'m' tries to set scheduling_choice as 'dynamic_batching'",
    ),
    "smaller max_batch_size": (
        "c.set_max_batch_size(4)",
        "max_batch_size: 8",
        f"configuration specified max_batch_size 8, but {PLACE} specified max_batch_size 4",
    ),
    "other decoupled": (
        "c.set_model_transaction_policy(dict(decoupled=True))",
        "model_transaction_policy { decoupled: false }",
        "trying to change decoupled property in auto-complete-config for model 'm', which is already set to 'False'.",
    ),
    "other policy": (
        "c.set_model_transaction_policy(dict(decoupled=True, x=1))",
        "",
        f"model transaction property {PLACE} contains property other than 'decoupled'.",
    ),
}


@pytest.mark.parametrize("case", TEXTS)
def test_contradictions_fail_the_load_in_tritons_words(host: Host, tmp_path: Path, case: str) -> None:
    code, config, text = TEXTS[case]
    with pytest.raises(BackendError) as caught:
        complete(host, tmp_path, code if "return" in code else code + "\nreturn c", config)
    message = caught.value.message
    if "must return" in text:
        assert message == text
    else:  # Triton's traceback also names the line in its triton_python_backend_utils.py
        assert message.startswith(f"ValueError: {text}\n\nAt:\n"), message
        assert message.endswith("model.py(9): auto_complete_config\n")


def test_a_data_type_that_does_not_exist_is_said(host: Host, tmp_path: Path) -> None:
    with pytest.raises(
        BackendError, match="auto_complete_config of model 'm' gave a configuration that cannot be read"
    ):
        complete(host, tmp_path, "c.add_input({**i, 'data_type': 'TYPE_BAD'})\nreturn c")


def test_a_process_that_dies_meanwhile_is_said(host: Host, tmp_path: Path) -> None:
    with pytest.raises(InstanceDied, match="Stub process 'm' is not healthy"):
        complete(host, tmp_path, "os._exit(3)")


def test_a_model_without_it_starts_no_process(host: Host, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    version = tmp_path / "m" / "1"
    version.mkdir(parents=True)
    (version / "model.py").write_text(f"open({str(mark)!r}, 'w')\nclass TritonPythonModel:\n    pass\n")
    message = model_config_pb2.ModelConfig(name="m", backend="python")
    context = ModelContext("m", 1, message, json.dumps(configs.to_json(message)), version.parent, version, host)
    assert PythonBackend().auto_complete(context) is None
    assert not mark.exists()


def test_it_is_found_in_a_class_above(host: Host, tmp_path: Path) -> None:
    version = tmp_path / "m" / "1"
    version.mkdir(parents=True)
    function = "    @staticmethod\n    def auto_complete_config(c):\n        c.set_max_batch_size(5); return c\n"
    base = "class Base:\n" + function
    (version / "above.py").write_text(base)
    (version / "model.py").write_text("from above import Base\nclass TritonPythonModel(Base):\n    pass\n")
    message = model_config_pb2.ModelConfig(name="m", backend="python")
    context = ModelContext("m", 1, message, json.dumps(configs.to_json(message)), version.parent, version, host)
    assert PythonBackend().auto_complete(context).max_batch_size == 5
