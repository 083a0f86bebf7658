"""Numbers that no value of an enum has: proto3 takes any, so a file may hold them."""

from __future__ import annotations

import re

import pytest

from workbench.config import lint_config

ENUMS = """name: "m"
platform: "onnxruntime_onnx"
max_batch_size: 4
input { name: "A" data_type: TYPE_FP32 dims: [ 4 ] format: FORMAT_NONE }
output { name: "B" data_type: TYPE_FP32 dims: [ 4 ] }
batch_input { kind: BATCH_ELEMENT_COUNT target_name: "C" data_type: TYPE_INT32 }
batch_output { kind: BATCH_SCATTER_WITH_INPUT_SHAPE target_name: "B" }
instance_group { kind: KIND_CPU }
sequence_batching {
  control_input { name: "S" control { kind: CONTROL_SEQUENCE_START fp32_false_true: [ 0, 1 ] } }
  control_input { name: "I" control { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_UINT64 } }
}
model_warmup { name: "w" batch_size: 1 inputs { key: "A" value { data_type: TYPE_FP32 dims: [ 4 ] zero_data: true } } }
"""
VALUES = sorted({(match.start(), match.end()) for match in re.finditer(r"\b[A-Z]+_[A-Z0-9_]+\b", ENUMS)})


@pytest.mark.parametrize("number", ["-1", "99", "2147483647"])
@pytest.mark.parametrize("place", VALUES, ids=[ENUMS[start:end] + f"@{start}" for start, end in VALUES])
def test_any_number_in_place_of_an_enums_value_is_answered_in_words(place: tuple[int, int], number: str) -> None:
    text = ENUMS[: place[0]] + number + ENUMS[place[1] :]
    for finding in lint_config(text.encode()):
        assert finding.message
