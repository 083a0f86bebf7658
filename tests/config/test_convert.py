from __future__ import annotations

import json
import math
from typing import Any

import pytest

from workbench.config import ConfigDocument, from_json, to_json, to_text
from workbench.config.convert import shortest_float
from workbench.errors import ConfigError


def message(text: str) -> Any:
    return ConfigDocument.parse(text.encode()).message


def test_text_and_json_bring_the_message_back(parsed_case: Any) -> None:
    original = ConfigDocument.parse(parsed_case.data).message
    assert ConfigDocument.parse(to_text(original).encode()).message == original
    for defaults in (True, False):
        assert from_json(json.dumps(to_json(original, defaults=defaults))) == original


def test_json_without_defaults_is_the_reference_with_numbers(parsed_case: Any) -> None:
    def numbers(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: numbers(item) for key, item in value.items()}
        if isinstance(value, list):
            return [numbers(item) for item in value]
        return int(value) if isinstance(value, str) and value.lstrip("-").isdigit() else value

    written = to_json(ConfigDocument.parse(parsed_case.data).message, defaults=False)
    assert numbers(written) == numbers(parsed_case.reference)


def test_json_with_defaults_is_as_triton_prints_it() -> None:
    # GET /v2/models/M/config of tritonserver 2.51, for the fields of its own release
    written = to_json(
        message('name: "m" backend: "python" input { name: "A" data_type: TYPE_FP32 dims: 1 } dynamic_batching {}')
    )
    assert written["input"] == [
        {
            "name": "A",
            "data_type": "TYPE_FP32",
            "format": "FORMAT_NONE",
            "dims": [1],
            "is_shape_tensor": False,
            "allow_ragged_batch": False,
            "optional": False,
            "is_non_linear_format_io": False,
        }
    ]
    assert written["dynamic_batching"] == {
        "preferred_batch_size": [],
        "max_queue_delay_microseconds": 0,
        "preserve_ordering": False,
        "priority_levels": 0,
        "default_priority_level": 0,
        "priority_queue_policy": {},
    }
    assert (written["max_batch_size"], written["parameters"], written["batch_input"]) == (0, {}, [])
    assert "sequence_batching" not in written
    assert "optimization" not in written
    assert list(written)[:6] == ["name", "platform", "backend", "runtime", "max_batch_size", "input"]


def test_64_bit_values_are_exact_numbers() -> None:
    text = (
        "dynamic_batching { priority_levels: 18446744073709551615 priority_queue_policy { key: 4294967296 value { } } }"
    )
    written = to_json(message(text), defaults=False)
    assert written["dynamic_batching"]["priority_levels"] == 2**64 - 1
    assert list(written["dynamic_batching"]["priority_queue_policy"]) == ["4294967296"]
    assert from_json(written) == message(text)


def test_map_with_an_empty_key_survives() -> None:
    original = message("metric_tags: {} parameters: {}")
    assert to_json(original, defaults=False) == {"metric_tags": {"": ""}, "parameters": {"": {}}}
    assert message(to_text(original)) == original


@pytest.mark.parametrize(
    ("value", "where"),
    [
        ({"max_batchsize": 1}, "max_batchsize"),
        ({"max_batch_size": "x"}, "max_batch_size"),
        ({"max_batch_size": 2**31}, "max_batch_size"),
        ({"max_batch_size": True}, "max_batch_size"),
        ({"input": {}}, "input"),
        ({"input": [{"dims": ["1", {}]}]}, "input[0].dims[1]"),
        ({"input": [{"data_type": "TYPE_BYTES"}]}, "input[0].data_type"),
        ({"name": 3}, "name"),
        ({"dynamic_batching": {}, "sequence_batching": {}}, "sequence_batching"),
        ({"parameters": {"k": "v"}}, 'parameters["k"]'),
        ({"name": "\ud800"}, "name"),
        ("[]", ""),
        ("{", ""),
        ("[" * 100_000, ""),
    ],
)
def test_bad_json_is_refused_with_the_place(value: Any, where: str) -> None:
    with pytest.raises(ConfigError) as caught:
        from_json(value)
    assert caught.value.where == where


def test_json_takes_camel_case_null_and_strings_for_64_bit() -> None:
    made = from_json({"maxBatchSize": 4, "name": None, "dynamicBatching": {"maxQueueDelayMicroseconds": "100"}})
    assert made == message("max_batch_size: 4 dynamic_batching { max_queue_delay_microseconds: 100 }")


def test_floats_print_short() -> None:
    assert (
        shortest_float(
            message(
                "sequence_batching { direct { minimum_slot_utilization: 0.1 } }"
            ).sequence_batching.direct.minimum_slot_utilization
        )
        == 0.1
    )
    made = message("model_metrics { metric_control { histogram_options { buckets: [ inf, -inf, nan, 1e300, .5 ] } } }")
    again = message(to_text(made)).model_metrics.metric_control[0].histogram_options.buckets
    assert math.isnan(again[2])
    assert [*again[:2], *again[3:]] == [math.inf, -math.inf, 1e300, 0.5]
    assert to_json(made)["model_metrics"]["metric_control"][0]["histogram_options"]["buckets"][:3] == [
        "Infinity",
        "-Infinity",
        "NaN",
    ]
