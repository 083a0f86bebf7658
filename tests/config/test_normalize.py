# ruff: noqa: E501 (tables of texts that are one line in Triton, too)
"""Triton's defaults and checks; facts are from tritonserver 2.51's config endpoint and log."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from workbench.config import ConfigDocument, complete_backend, normalize, problems, to_json, validate
from workbench.errors import Code, ConfigError

IO = 'input { name: "A" data_type: TYPE_FP32 dims: 1 } output { name: "B" data_type: TYPE_FP32 dims: 1 }'


def message(text: str) -> Any:
    return ConfigDocument.parse(text.encode()).message


def refused(config: Any, **options: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        validate(config, **options)
    return caught.value.message


def prepared(text: str, name: str = "n", **options: Any) -> Any:
    return normalize(complete_backend(message(text), name, ("model.py",)), **options)


def test_expected_errors(error_case: Any) -> None:
    config = message(error_case.data.decode())
    if error_case.group == "noautofill_platform":
        config.platform = "onnxruntime_onnx"
    if error_case.group == "model_metrics":
        config.backend = "python"
    gpus = (0, 1) if error_case.name == "negative_gpu" else ()
    complete = normalize(complete_backend(config, error_case.name, ("model.onnx",)), gpus=gpus)
    # of a runtime only the linter speaks: a server says it where it looks for the library
    text = next(problems(complete)).message if config.runtime else refused(complete, gpus=gpus)
    assert any(re.search(pattern, text) for pattern in error_case.patterns), text


def test_a_plain_python_model_becomes_what_triton_answers() -> None:
    written = to_json(prepared(f'backend: "python" {IO}', "n_plain"))
    assert (written["name"], written["platform"], written["backend"]) == ("n_plain", "", "python")
    assert written["version_policy"] == {"latest": {"num_versions": 1}}
    assert written["default_model_filename"] == "model.py"
    assert written["optimization"]["input_pinned_memory"] == {"enable": True}
    assert written["optimization"]["output_pinned_memory"] == {"enable": True}
    (group,) = written["instance_group"]
    assert (group["name"], group["kind"], group["count"], group["gpus"]) == ("n_plain", "KIND_CPU", 1, [])


ANSWER = (
    '{"name":"a_dyn","platform":"","backend":"python","runtime":"","version_policy":{"latest":{"num_versions":1}},'
    '"max_batch_size":4,"input":[{"name":"A","data_type":"TYPE_FP32","format":"FORMAT_NONE","dims":[1],'
    '"is_shape_tensor":false,"allow_ragged_batch":false,"optional":false,"is_non_linear_format_io":false}],"output":['
    '{"name":"B","data_type":"TYPE_FP32","dims":[1],"label_filename":"","is_shape_tensor":false,'
    '"is_non_linear_format_io":false}],"batch_input":[],"batch_output":[],"optimization":{"priority":"PRIORITY_DEFAULT",'
    '"input_pinned_memory":{"enable":true},"output_pinned_memory":{"enable":true},"gather_kernel_buffer_threshold":0,'
    '"eager_batching":false},"dynamic_batching":{"preferred_batch_size":[4],"max_queue_delay_microseconds":0,'
    '"preserve_ordering":false,"priority_levels":0,"default_priority_level":0,"priority_queue_policy":{}},'
    '"instance_group":[{"name":"a_dyn","kind":"KIND_CPU","count":1,"gpus":[],"secondary_devices":[],"profile":[],'
    '"passive":false,"host_policy":""}],"default_model_filename":"model.py","cc_model_filenames":{},"metric_tags":{},'
    '"parameters":{},"model_warmup":[]}'
)


def test_the_config_endpoint_is_tritons_to_the_letter() -> None:
    text = f'backend: "python" max_batch_size: 4 dynamic_batching {{}} {IO}'
    assert json.dumps(to_json(prepared(text, "a_dyn")), separators=(",", ":")) == ANSWER


@pytest.mark.rule("1.2a", "1.2b", "1.2c", "3.7b")
def test_preferred_sizes_and_idle_time() -> None:
    batching = 'backend: "python" max_batch_size: 8'
    assert list(prepared(batching + " dynamic_batching {}").dynamic_batching.preferred_batch_size) == [8]
    assert list(prepared('backend: "python" dynamic_batching {}').dynamic_batching.preferred_batch_size) == []
    kept = prepared(batching + " dynamic_batching { preferred_batch_size: 4 }").dynamic_batching.preferred_batch_size
    assert list(kept) == [4]
    sequence = prepared(batching + " sequence_batching { oldest {} }").sequence_batching
    assert list(sequence.oldest.preferred_batch_size) == [8]
    assert sequence.max_sequence_idle_microseconds == 1_000_000


@pytest.mark.parametrize(
    ("groups", "backend", "gpus", "expected"),
    [
        ("", "python", (), [("n", "KIND_CPU", 1, [])]),
        ("", "onnxruntime", (), [("n", "KIND_CPU", 2, [])]),
        ("", "python", (0, 1), [("n", "KIND_GPU", 1, [0, 1])]),
        ("", "onnxruntime", (0,), [("n", "KIND_GPU", 1, [0])]),
        ("{ kind: KIND_CPU } { name: 'g' count: 3 }", "onnxruntime", (), [("n_0", "KIND_CPU", 2, []), ("g", "KIND_CPU", 3, [])]),
        ("{ gpus: 1 }", "python", (0, 1), [("n_0", "KIND_GPU", 1, [1])]),
        ("{ gpus: 7 }", "python", (0, 1), [("n_0", "KIND_CPU", 1, [7])]),
        ("{ kind: KIND_MODEL }", "onnxruntime", (0,), [("n_0", "KIND_MODEL", 1, [])]),
        ("{ kind: KIND_GPU }", "python", (0, 1), [("n_0", "KIND_GPU", 1, [0, 1])]),
    ],
)  # fmt: skip
def test_instance_groups(groups: str, backend: str, gpus: tuple[int, ...], expected: list[Any]) -> None:
    text = f'backend: "{backend}" ' + re.sub(r"\{", "instance_group {", groups)
    config = prepared(text, gpus=gpus)
    found = [(g.name, type(g).Kind.Name(g.kind), g.count, list(g.gpus)) for g in config.instance_group]
    assert found == expected


def test_normalising_twice_is_once(parsed_case: Any) -> None:
    config = ConfigDocument.parse(parsed_case.data).message
    once = normalize(config, model_name="m", gpus=(0,))
    assert normalize(once, model_name="other", gpus=(0,)) == once
    assert config == ConfigDocument.parse(parsed_case.data).message


def test_ensembles_get_no_instances() -> None:
    config = normalize(message('name: "e" platform: "ensemble" ensemble_scheduling { step { model_name: "m" } }'))
    assert not config.instance_group
    assert not config.HasField("optimization")


@pytest.mark.parametrize(
    ("text", "name", "files", "expected"),
    [
        ("", "m", ("model.onnx",), ("onnxruntime", "onnxruntime_onnx", "model.onnx")),
        ("", "m", ("model.py", "weights"), ("python", "", "model.py")),
        ("", "m", ("model.plan",), ("tensorrt", "tensorrt_plan", "model.plan")),
        ("", "m", ("model.pt",), ("pytorch", "pytorch_libtorch", "model.pt")),
        ("", "m", ("model.pt2",), ("pytorch", "torch_aoti", "model.pt2")),
        ("", "m", ("model.xml", "model.bin"), ("openvino", "", "model.xml")),
        ("", "m", ("model.savedmodel",), ("tensorflow", "tensorflow_savedmodel", "model.savedmodel")),
        ("", "x.identity", (), ("identity", "", "model.identity")),
        ('platform: "onnxruntime_onnx"', "m", (), ("onnxruntime", "onnxruntime_onnx", "model.onnx")),
        ('backend: "onnxruntime"', "m", (), ("onnxruntime", "onnxruntime_onnx", "model.onnx")),
        ('backend: "python" default_model_filename: "x.py"', "m", (), ("python", "", "x.py")),
    ],
)
def test_the_backend_by_what_is_there(
    text: str, name: str, files: tuple[str, ...], expected: tuple[str, str, str]
) -> None:
    config = complete_backend(message(text), name, files)
    assert (config.name, config.backend, config.platform, config.default_model_filename) == (name, *expected)


def test_no_backend_can_be_told() -> None:
    with pytest.raises(ConfigError) as caught:
        complete_backend(message(""), "p_none", ("x.bin",))
    assert caught.value.message == (
        "Invalid model name: Could not determine backend for model 'p_none' with no backend in model configuration. "
        "Expected model name of the form 'model.<backend_name>'."
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('platform: "custom"', "unexpected platform type 'custom' for n"),
        ('platform: "onnxruntime"', "unexpected platform type 'onnxruntime' for n"),
        ('backend: "onnxruntime" platform: "tensorrt_plan"', "unexpected 'platform' and 'backend' pair, got:tensorrt_plan, onnxruntime"),
        ('backend: "tensorrt" platform: "foo"', "unexpected 'platform' and 'backend' pair, got:foo, tensorrt"),
        ('backend: "python" max_batch_size: -4', "'max_batch_size' must be non-negative value for n"),
        ('backend: "python" max_batch_size: 4 dynamic_batching { preferred_batch_size: 0 }', "dynamic batching preferred size must be positive for n"),
        ('backend: "python" max_batch_size: 4 dynamic_batching { preferred_batch_size: 8 }', "dynamic batching preferred size must be <= max batch size for n"),
        ('backend: "python" max_batch_size: 4 sequence_batching { direct { minimum_slot_utilization: 1.5 } }', "sequence batching minimum slot utilization must be in range (0.0, 1.0] for n"),
        ('backend: "python" sequence_batching { control_input { control { kind: CONTROL_SEQUENCE_START } } }', "sequence batching control tensor must have a name for n"),
        ('backend: "python" sequence_batching { control_input { name: "S" control { kind: CONTROL_SEQUENCE_START } } }', "sequence batching must specify either 'int32_false_true', 'fp32_false_true' or 'bool_false_true' for CONTROL_SEQUENCE_START for n"),
        ('backend: "python" sequence_batching { control_input { name: "S" control { kind: CONTROL_SEQUENCE_START int32_false_true: [0] } } }', "sequence batching control 'int32_false_true' must have exactly 2 entries for CONTROL_SEQUENCE_START for n"),
        ('backend: "python" sequence_batching { control_input { name: "S" control { kind: CONTROL_SEQUENCE_CORRID int32_false_true: [0,1] } } }', "sequence batching must not specify either 'int32_false_true', 'fp32_false_true' or 'bool_false_true' for CONTROL_SEQUENCE_CORRID for n"),
        ('backend: "python" sequence_batching { control_input { name: "S" control { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_FP32 } } }', "unexpected data type for control CONTROL_SEQUENCE_CORRID for n. Allowed data types are TYPE_UINT64, TYPE_INT64, TYPE_UINT32, TYPE_INT32 and TYPE_STRING"),
        ('backend: "python" response_cache { enable: true } model_transaction_policy { decoupled: true }', "Response Cache does not currently support model n with 'decoupled' transaction policy. Please disable the response cache."),
        ('platform: "ensemble"', "ensemble scheduling must be set for ensemble n whose platform is ensemble"),
        ('platform: "ensemble" optimization {} ensemble_scheduling { step {} }', "optimization should not be specified for ensemble 'n'"),
        ('platform: "ensemble" ensemble_scheduling { step { } }', "must specify 'model_name' in step 0 of ensemble 'n'"),
        ('platform: "ensemble" ensemble_scheduling { step { model_name: "x" output_map { key: "o" value: "B" } } }', "must specify 'input_map' in step 0 of ensemble 'n'"),
        ('backend: "python" instance_group { kind: KIND_GPU }', "instance group n_0 of model n has kind KIND_GPU but no GPUs are available"),
        ('backend: "python" instance_group { kind: KIND_GPU gpus: 3 }', "instance group n_0 of model n specifies invalid or unsupported gpu id 3. GPUs with at least the minimum required CUDA compute compatibility of 6.000000 are: "),
        ('backend: "python" instance_group { name: "g" gpus: 0 }', "instance group g of model n has kind KIND_CPU but specifies one or more GPUs"),
        ('backend: "python" instance_group { kind: -7 }', "instance group n_0 of model n has unexpected kind KIND_AUTO"),
        ('backend: "python" input { data_type: TYPE_FP32 dims: 1 }', "model input must specify 'name' for n"),
        ('backend: "python" input { name: "A" data_type: TYPE_FP32 }', "model input 'A' must specify 'dims' for n"),
        ('backend: "python" input { name: "A" data_type: TYPE_FP32 dims: 1 reshape { } }', "model input 'A' cannot have empty reshape for non-batching model as scalar tensors are not supported for n"),
        ('backend: "python" input { name: "A" data_type: TYPE_FP32 dims: 1 is_shape_tensor: true }', "shape tensors are only supported for TensorRT platform for n"),
        ('backend: "python" input { name: "A" data_type: TYPE_FP32 dims: 1 is_non_linear_format_io: true }', "Non-linear IO format is only supported for the TensorRT platform for n"),
        ('backend: "python" input { name: "A" data_type: TYPE_FP32 format: FORMAT_NHWC dims: 1 }', "model input NHWC/NCHW require 3 dims for n"),
    ],
)  # fmt: skip
def test_texts_of_tritonserver(text: str, expected: str) -> None:
    assert refused(prepared(text)) == expected


@pytest.mark.parametrize(
    "pair", ['backend: "python" platform: "onnxruntime_onnx"', 'backend: "python" platform: "foo"']
)
def test_any_platform_goes_with_other_backends(pair: str) -> None:
    validate(prepared(f"{pair} {IO}"))


def test_problems_have_places_and_all_are_listed() -> None:
    config = prepared(
        'backend: "python" max_batch_size: 4 dynamic_batching { preferred_batch_size: [ 2, 8, 0 ] priority_levels: 2 }'
    )
    assert [problem.path for problem in problems(config)] == [
        "dynamic_batching.preferred_batch_size[1]",
        "dynamic_batching.preferred_batch_size[2]",
        "dynamic_batching.default_priority_level",
    ]


def test_inputs_are_only_checked_when_asked() -> None:
    config = prepared('backend: "python" input { name: "A" }')
    validate(config, io=False)
    assert "data_type" in refused(config)


def test_codes() -> None:
    with pytest.raises(ConfigError) as caught:
        validate(prepared('backend: "python" instance_group { kind: -7 }'))
    assert caught.value.code is Code.INTERNAL
    with pytest.raises(ConfigError) as caught:
        validate(prepared('backend: "python" max_batch_size: -1'))
    assert caught.value.code is Code.INVALID_ARG


def test_valid_cases_are_accepted(parsed_case: Any) -> None:
    """Real files: what is refused is only what a file of its own cannot decide, or known to be refused."""
    config = ConfigDocument.parse(parsed_case.data).message
    complete = complete_backend(config, config.name or "m", ("model.py",))
    texts = [problem.message for problem in problems(normalize(complete, gpus=range(8)), gpus=range(8))]
    known = ("must specify", "platform type 'custom'", "escapes backend directory")
    assert [text for text in texts if not any(each in text for each in known)] == []
