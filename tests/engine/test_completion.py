"""What is filled into a configuration from what a model file says of itself (rule 9.4)."""

from __future__ import annotations

from typing import Any

import pytest

from workbench.backends.base import ModelDescription, TensorSpec
from workbench.config import ConfigDocument, to_json
from workbench.engine.completion import complete_from_description
from workbench.errors import InvalidRequest

BATCHING = ModelDescription((TensorSpec("x", "FP32", (-1, 16)),), (TensorSpec("y", "FP32", (-1,)),), True)
FIXED = ModelDescription((TensorSpec("x", "FP32", (1, 16)),), (TensorSpec("y", "FP32", (1, 4)),), False)


def completed(text: str, described: ModelDescription, **options: int) -> Any:
    message = ConfigDocument.parse(text.encode()).message
    complete_from_description(message, described, **options)
    return message


def test_a_batching_model_is_completed() -> None:
    done = completed('name: "m" backend: "onnxruntime"', BATCHING)
    assert done.max_batch_size == 4
    assert done.HasField("dynamic_batching")
    assert to_json(done, defaults=False)["input"] == [{"name": "x", "data_type": "TYPE_FP32", "dims": [16]}]
    assert to_json(done, defaults=False)["output"] == [
        {"name": "y", "data_type": "TYPE_FP32", "dims": [1], "reshape": {}}  # a scalar a row
    ]


def test_batching_is_left_as_configured() -> None:
    assert completed('name: "m" max_batch_size: 1', BATCHING).max_batch_size == 1
    assert not completed('name: "m" max_batch_size: 1', BATCHING).HasField("dynamic_batching")
    done = completed('name: "m" max_batch_size: 8 sequence_batching {}', BATCHING)
    assert done.WhichOneof("scheduling_choice") == "sequence_batching"
    assert completed('name: "m"', BATCHING, default_max_batch_size=16).max_batch_size == 16


def test_a_model_that_cannot_batch() -> None:
    done = completed('name: "m"', FIXED)
    assert done.max_batch_size == 0
    assert list(done.input[0].dims) == [1, 16]
    with pytest.raises(InvalidRequest) as caught:
        completed('name: "m" max_batch_size: 8', FIXED)
    text = "autofill failed for model 'm': model does not support batching while non-zero max_batch_size is specified"
    assert caught.value.message == text


def test_nothing_is_filled_where_inputs_and_outputs_are_given() -> None:
    written = 'name: "m" input { name: "x" } output { name: "y" }'
    assert completed(written, BATCHING) == ConfigDocument.parse(written.encode()).message
