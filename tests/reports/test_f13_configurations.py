"""Configurations that cannot work say so before the load (onnxruntime_backend#148; server#4412, #1795, #4373)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import report_models as models
from onnx_models import scale

import workbench as wb
from workbench.cli import main
from workbench.errors import InternalError, LoadFailed

PREFERRED = 'platform: "onnxruntime_onnx"\n%s\n'
TEXT = "preferred %ssize must be <= max batch size for m"


def add_onnx(root: Path, config: str) -> Path:
    directory = models.add(root, "m", config)
    (directory / "1" / "model.onnx").write_bytes(scale())
    return directory


@pytest.mark.parametrize(
    ("batching", "word"),
    [
        ("dynamic_batching { preferred_batch_size: [ 2 ] }", ""),
        ("dynamic_batching { preferred_batch_size: [ 1, 8 ] max_queue_delay_microseconds: 5 }", ""),
        ("sequence_batching { oldest { max_candidate_sequences: 2 preferred_batch_size: [ 2 ] } }", "batch "),
    ],
)
@pytest.mark.parametrize("default", ["", "128"])
def test_f13_onnxruntime_backend_148_preferred_sizes_without_a_maximum(
    root: Path, make_engine: Any, batching: str, word: str, default: str
) -> None:
    """No max_batch_size, a default by the command line, preferred sizes: refused as by Triton, and it is said why."""
    add_onnx(root, PREFERRED % batching)
    engine = make_engine(root, backend_config={"onnxruntime": {"default-max-batch-size": default}} if default else {})
    with pytest.raises(InternalError) as caught:
        engine.load("m")
    assert caught.value.message == "failed to load 'm', failed to poll from model repository"
    assert TEXT % word in caught.value.hint
    assert "max_batch_size is 0 or not set" in caught.value.hint
    assert any("max_batch_size is 0 or not set" in event.text for event in engine.events.after()), "no event says it"
    for finding in [each for report in wb.lint(root).files for each in report.findings if each.severity == "error"]:
        assert TEXT % word in finding.message
        assert "(max_batch_size is 0: not set)" in finding.message
    assert not wb.lint(root).ok


def test_f13_onnxruntime_backend_148_with_a_maximum_it_loads(root: Path, make_engine: Any) -> None:
    """Also with the maximum that auto-completion fills in: then there are no preferred sizes to conflict with it."""
    directory = add_onnx(root, "max_batch_size: 8\n" + PREFERRED % "dynamic_batching { preferred_batch_size: [ 2 ] }")
    engine = make_engine(root)
    assert list(engine.model_config("m").dynamic_batching.preferred_batch_size) == [2]
    (directory / "config.pbtxt").write_text(PREFERRED % "")
    engine.load("m")
    assert engine.model_config("m").max_batch_size == 4
    assert list(engine.model_config("m").dynamic_batching.preferred_batch_size) == [4]


WARM = """backend: "python"
max_batch_size: %d
input { name: "INPUT0" data_type: TYPE_FP32 dims: 4 }
output { name: "OUTPUT0" data_type: TYPE_FP32 dims: 4 }
model_warmup { name: "w" batch_size: %d inputs { key: "%s" value { data_type: TYPE_FP32 dims: 4 %s } } }
"""


ECHO = """
class TritonPythonModel:
    def execute(self, requests):
        inputs = [pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy() for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", array)]) for array in inputs]
"""
BIG = "Invalid argument: failed to run warmup sample 'w': batch size %d for 'm_0', max allowed is %d; "
FEW = "Invalid argument: [request id: <id_unknown>] expected 1 inputs but got 0 inputs for model 'm'. Got input(s) [], "


@pytest.mark.parametrize(
    ("size", "batch", "key", "data", "lint", "load"),
    [
        (0, 256, "INPUT0", "zero_data: true", "batch size 256 for 'm', max allowed is 0", BIG % (256, 0)),
        (8, 9, "INPUT0", "random_data: true", "batch size 9 for 'm', max allowed is 8", BIG % (9, 8)),
        (8, 1, "INPUT", "zero_data: true", 'no input "INPUT"; did you mean "INPUT0"?', FEW),
        (8, 1, "INPUT0", "zero_data: false", "zero_data: false does not switch it off", ""),
        (8, 1, "INPUT0", "", "expects input 'INPUT0' to have input_data_type set", "to have input_data_type set"),
    ],
)
def test_f61_server_4412_warm_ups_that_cannot_work_are_found_before_the_load(
    root: Path, capsys: pytest.CaptureFixture[str], size: int, batch: int, key: str, data: str, lint: str, load: str
) -> None:
    """A batch above the maximum, the name of no input, no data: each with its place, and the load says it too.

    The texts of the load are those of 2.51.
    """
    models.add(root, "m", WARM % (size, batch, key, data), ECHO)
    code = main(["lint", str(root), "--json"])
    findings = [each for file in json.loads(capsys.readouterr().out)["files"] for each in file["findings"]]
    found = next(each for each in findings if lint in each["message"])
    assert found["line"] == 5
    assert code == (1 if any(each["severity"] == "error" for each in findings) else 0)
    with wb.Engine(root, models=()) as server:
        if load:
            with pytest.raises((LoadFailed, InternalError)) as caught:
                server.load("m")
            assert load in caught.value.message
            assert server.repository_index()[0]["state"] == "UNAVAILABLE"
        else:
            server.load("m")


def test_f61_server_4373_count_repeats_a_sample(root: Path, make_engine: Any) -> None:
    """A warm-up that works runs as often as it says, and is counted."""
    config = WARM % (8, 2, "INPUT0", "zero_data: true")
    models.add(root, "m", config.replace("batch_size: 2", "batch_size: 2 count: 3"), ECHO)
    engine = make_engine(root)
    assert models.stats(engine, "m")["execution_count"] == 3
    assert models.stats(engine, "m")["inference_count"] == 6
