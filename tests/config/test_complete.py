# ruff: noqa: E501 (tables of texts that are one line in Triton, too)
from __future__ import annotations

from typing import Any

import pytest

from workbench.config import ConfigDocument, ModelTensor, change_class, check_io, complete_io, to_json
from workbench.errors import ConfigError

BATCHING = ([ModelTensor("x", "TYPE_FP32", (-1, 16))], [ModelTensor("y", "TYPE_FP32", (-1,))])
FIXED = ([ModelTensor("x", "TYPE_FP32", (1, 16))], [ModelTensor("y", "TYPE_FP32", (1, 4))])


def message(text: str) -> Any:
    return ConfigDocument.parse(text.encode()).message


def test_a_batching_model_is_completed() -> None:
    done = complete_io(message('name: "m" backend: "onnxruntime"'), *BATCHING)
    assert done.max_batch_size == 4
    assert done.HasField("dynamic_batching")
    assert to_json(done, defaults=False)["input"] == [{"name": "x", "data_type": "TYPE_FP32", "dims": [16]}]
    assert to_json(done, defaults=False)["output"] == [
        {"name": "y", "data_type": "TYPE_FP32", "dims": [1], "reshape": {}}  # a scalar a row
    ]
    check_io(done, *BATCHING)


def test_batching_is_left_as_configured() -> None:
    assert complete_io(message('name: "m" max_batch_size: 1'), *BATCHING).max_batch_size == 1
    assert not complete_io(message('name: "m" max_batch_size: 1'), *BATCHING).HasField("dynamic_batching")
    done = complete_io(message('name: "m" max_batch_size: 8 sequence_batching {}'), *BATCHING)
    assert done.WhichOneof("scheduling_choice") == "sequence_batching"
    assert complete_io(message('name: "m"'), *BATCHING, default_max_batch_size=16).max_batch_size == 16


def test_a_model_that_cannot_batch() -> None:
    done = complete_io(message('name: "m"'), *FIXED)
    assert done.max_batch_size == 0
    assert list(done.input[0].dims) == [1, 16]
    with pytest.raises(ConfigError) as caught:
        complete_io(message('name: "m" max_batch_size: 8'), *FIXED)
    text = "autofill failed for model 'm': model does not support batching while non-zero max_batch_size is specified"
    assert caught.value.message == text


def test_nothing_is_filled_where_inputs_and_outputs_are_given() -> None:
    written = message('name: "m" input { name: "x" } output { name: "y" }')
    assert complete_io(written, *BATCHING) == written


@pytest.mark.parametrize(
    ("text", "tensors", "expected"),
    [
        ('max_batch_size: 8 input { name: "x" data_type: TYPE_FP32 dims: [ 16, 1 ] }', BATCHING,
         "model 'm', tensor 'x': the model expects 2 dimensions (shape [-1,16]) but the model configuration specifies 3 dimensions (an initial batch dimension because max_batch_size > 0 followed by the explicit tensor shape, making complete shape [-1,16,1])"),
        ('input { name: "x" data_type: TYPE_FP32 dims: [ 1, 256 ] }', FIXED,
         "model 'm', tensor 'x': the model expects 2 dimensions (shape [1,16]) but the model configuration specifies 2 dimensions (shape [1,256])"),
        ('input { name: "z" data_type: TYPE_FP32 dims: [ 1, 16 ] }', FIXED, "unexpected inference input 'z', allowed inputs are: x"),
        ('input { name: "x" data_type: TYPE_FP32 dims: [ 1, 16 ] } input { name: "z" }', FIXED,
         "unable to load model 'm', configuration expects 2 inputs, model provides 1"),
        ('input { name: "x" data_type: TYPE_INT64 dims: [ 1, 16 ] }', FIXED,
         "unable to load model 'm', configuration expects datatype TYPE_INT64 for input 'x', model provides TYPE_FP32"),
        ('input { name: "x" data_type: TYPE_FP32 dims: [ 1, 16 ] } output { name: "w" data_type: TYPE_FP32 dims: 1 }', FIXED,
         "unexpected inference output 'w', allowed outputs are: y"),
        ('input { name: "x" data_type: TYPE_FP32 dims: [ 1, -1 ] }', FIXED,
         "model 'm', tensor 'x': the model expects 2 dimensions (shape [1,16]) but the model configuration specifies 2 dimensions (shape [1,-1])"),
    ],
)  # fmt: skip
def test_mismatches_in_tritons_words(text: str, tensors: Any, expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check_io(message(f'name: "m" {text}'), *tensors)
    assert caught.value.message == expected


OLD = 'name: "m" max_batch_size: 8 dynamic_batching { max_queue_delay_microseconds: 100 } instance_group { count: 1 }'


@pytest.mark.parametrize(
    ("new", "options", "kind", "triton"),
    [
        (OLD, {}, "none", "do nothing"),
        (OLD.replace("100", "200"), {}, "live", "load the model again in full"),
        (OLD.replace("count: 1", "count: 2"), {}, "instances", "in place"),
        (
            OLD.replace("count: 1", "count: 2").replace("100", "0"),
            {},
            "instances",
            "in full because of dynamic_batching",
        ),
        (OLD.replace("size: 8", "size: 16"), {}, "reload", "in full"),
        (OLD.replace("size: 8", "size: 16"), {"backend_reads_max_batch_size": False}, "live", "in full"),
        (OLD.replace("size: 8", "size: 0"), {"backend_reads_max_batch_size": False}, "reload", "in full"),
        (OLD + " response_cache { enable: true }", {}, "live", "in full"),
        (OLD + ' parameters { key: "k" value { string_value: "v" } }', {}, "reload", "in full"),
        ('name: "m" max_batch_size: 8 instance_group { count: 1 }', {}, "live", "in full"),
        ('name: "m" max_batch_size: 8 sequence_batching { } instance_group { count: 1 }', {}, "reload", "in full"),
        (OLD + " version_policy { all { } }", {}, "instances", "in place"),
    ],
)
def test_classes_of_change(new: str, options: dict[str, bool], kind: str, triton: str) -> None:
    change = change_class(message(OLD), message(new), **options)
    assert change.kind == str(change) == kind
    assert triton in change.triton
    assert bool(change.reasons) == (kind != "none")
    assert all(path.split(".")[0].split("[")[0] in new + OLD for path in change.paths)
