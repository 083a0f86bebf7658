# ruff: noqa: E501 (tables of texts that are one line in Triton, too)
"""Every text of section 10, and those of sections 4, 5, 7 and 8 that files decide: ``lint`` says it for a repository
that has the fault, at the place of the fault, word for word."""

from __future__ import annotations

from pathlib import Path

import pytest
from lint_cases import BATCHING, IO, ONNX_IO, PAIR, TWO, WARM, Files, change, ensemble, onnx, py, step, write

import workbench as wb
from workbench.config.schema import pb
from workbench.config.validation import problems

SEQ = "sequence_batching {{ {} }}\n"
START = "control_input { name: 'S' control { kind: CONTROL_SEQUENCE_START %s } }"
THREE = ("int32_false_true", "fp32_false_true", "bool_false_true")
EITHER = "either 'int32_false_true', 'fp32_false_true' or 'bool_false_true'"
DB = "dynamic_batching {{ {} }}\n"
MATRIX = change(BATCHING, "dims: [ 4 ]", "dims: [ 4, 4 ]")
LONG = 'backend: "python"\nmax_batch_size: 8\ninput { name: "A" data_type: TYPE_INT32 dims: [ 4 ] }\noutput { name: "B" data_type: TYPE_INT32 dims: [ 4 ] }\n'
DECOUPLED = BATCHING + "model_transaction_policy { decoupled: true }\n"
JOIN = step("m", "A=A", "B=s") + step("n", "A=A", "B=t") + step("j", "A=s C=t", "B=u") + step("k", "A=u", "B=B")
JOINS = py(change(BATCHING, "output", 'input { name: "C" data_type: TYPE_FP32 dims: [ 4 ] }\noutput'), "j")
ORT = 'backend: "onnxruntime"\n'
METRIC = "model_metrics {{ metric_control {{ {} }} }}\n"
FAMILY = "metric_identifier { family: 'nv_inference_first_response_histogram_ms' }"
CORRID = "control_input {{ name: 'C' control {{ kind: CONTROL_SEQUENCE_CORRID {} }} }}"


def m(config: str) -> Files:
    """A Python model m."""
    return py(config)


def batch(kind: str, rest: str) -> Files:
    """A Python model with a batch input or output."""
    return m(f"{BATCHING}batch_{kind} {{ {rest} }}\n")


def e(steps: str, head: str = "max_batch_size: 8\n", io: str = IO, more: Files = PAIR) -> Files:
    """An ensemble e with the models that it is made of."""
    return {**ensemble(steps, head, io), **more}


TENSOR = {
    kind: (
        m(change(BATCHING, f'{kind} {{ name: "{name}" data_type: TYPE_FP32 dims: [ 4 ] }}', f"{kind} {{ {{}} }}")),
        name,
    )
    for kind, name in (("input", "A"), ("output", "B"))
}


def tensor(kind: str, inside: str) -> Files:
    """A Python model with another input or output."""
    return {
        name: str(text).replace("{}", inside) if "config" in name else text for name, text in TENSOR[kind][0].items()
    }


def io(number: str, inside: str, text: str) -> list[tuple[str, Files, str]]:
    """A text about inputs, and the same one about outputs."""
    rows = []
    for kind, (_, name) in TENSOR.items():
        rows.append(
            (number, tensor(kind, inside.replace("NAME", name)), f"model {kind} {text.replace('NAME', name)} for m")
        )
    return rows


ROWS: list[tuple[str, Files, str]] = [
    ("10.2", m('platform: "nonsense"\n' + IO), "unexpected platform type 'nonsense' for m"),
    ("10.3", e(TWO, 'backend: "python"\n'), "Ensemble model 'e' must have platform type 'ensemble' and empty backend type"),
    ("10.4", onnx('platform: "tensorrt_plan"\n' + ORT + ONNX_IO), "unexpected 'platform' and 'backend' pair, got:tensorrt_plan, onnxruntime"),
    ("10.5", m(change(BATCHING, "8", "-8")), "'max_batch_size' must be non-negative value for m"),
    ("10.6", m(BATCHING + DB.format("preferred_batch_size: 0")), "dynamic batching preferred size must be positive for m"),
    ("10.7", m(BATCHING + DB.format("preferred_batch_size: 9")), "dynamic batching preferred size must be <= max batch size for m"),
    ("10.8", m(BATCHING + DB.format("priority_levels: 2 default_priority_level: 3")), "default priority level must be in range [1, 2] for m"),
    ("10.9", m(BATCHING + DB.format("priority_levels: 2 default_priority_level: 1 priority_queue_policy { key: 3 }")), "priority queue policy must have priority level in range [1, 2] for m"),
    ("10.10", m(BATCHING + DB.format("priority_levels: 2 default_priority_level: 1 preserve_ordering: true")), "Only one priority level is allowed when 'preserve_ordering' is true for m"),
    ("10.11", m(BATCHING + DB.format("preserve_ordering: true default_queue_policy { timeout_action: DELAY default_timeout_microseconds: 1 }")), "Queue policy can not have DELAY as timeout action when 'preserve_ordering' is true for m"),
    ("10.12", m(BATCHING + "response_cache { enable: true }\n" + SEQ.format("")), "Response Cache does not currently support model m with sequence batching scheduler. Please disable the response cache."),
    ("10.13", m(DECOUPLED + "response_cache { enable: true }\n"), "Response Cache does not currently support model m with 'decoupled' transaction policy. Please disable the response cache."),
    ("10.14", m(BATCHING + SEQ.format(change(START, "name: 'S'", "") % "int32_false_true: [ 0, 1 ]")), "sequence batching control tensor must have a name for m"),
    ("10.15", m(BATCHING + SEQ.format(START % "int32_false_true: [ 0, 1 ]" + change(START, "START", "END") % "int32_false_true: [ 0, 1 ]")), "sequence batching control tensor 'S' is specified for multiple control kinds for m"),
    ("10.16", m(BATCHING + SEQ.format(START % "int32_false_true: [ 0, 1 ]" + change(START, "'S'", "'T'") % "int32_false_true: [ 0, 1 ]")), "sequence batching specifies multiple CONTROL_SEQUENCE_START tensors for m"),
    ("10.17", m(BATCHING + SEQ.format(START % "")), f"sequence batching must specify {EITHER} for CONTROL_SEQUENCE_START for m"),
    ("10.18", m(BATCHING + SEQ.format(START % "int32_false_true: [ 0, 1 ] fp32_false_true: [ 0, 1 ]")), "sequence batching specifies more than one from 'int32_false_true', 'fp32_false_true' and 'bool_false_true' for CONTROL_SEQUENCE_START for m"),
    *(("10.19", m(BATCHING + SEQ.format(START % f"{kind}: [ {'false' if 'bool' in kind else 0} ]")), f"sequence batching control '{kind}' must have exactly 2 entries for CONTROL_SEQUENCE_START for m") for kind in THREE),
    ("10.20", m(BATCHING + SEQ.format(CORRID.format("int32_false_true: [ 0, 1 ] data_type: TYPE_UINT64"))), f"sequence batching must not specify {EITHER} for CONTROL_SEQUENCE_CORRID for m"),
    ("10.21", m(BATCHING + SEQ.format(CORRID.format("data_type: TYPE_FP32"))), "unexpected data type for control CONTROL_SEQUENCE_CORRID for m. Allowed data types are TYPE_UINT64, TYPE_INT64, TYPE_UINT32, TYPE_INT32 and TYPE_STRING"),
    ("10.22", m(BATCHING + SEQ.format("oldest { max_candidate_sequences: 1 preferred_batch_size: 0 }")), "sequence batching preferred batch size must be positive for m"),
    ("10.22", m(BATCHING + SEQ.format("oldest { max_candidate_sequences: 1 preferred_batch_size: 9 }")), "sequence batching preferred batch size must be <= max batch size for m"),
    ("10.23", m(BATCHING + SEQ.format("direct { minimum_slot_utilization: -0.5 }")), "sequence batching minimum slot utilization must be in range (0.0, 1.0] for m"),
    ("10.24", {"e/config.pbtxt": 'platform: "ensemble"\n' + IO, "e/1/": ""}, "ensemble scheduling must be set for ensemble e whose platform is ensemble"),
    ("10.24", {**e(TWO), "e/config.pbtxt": f'platform: "onnxruntime_onnx"\n{IO}ensemble_scheduling {{\n{TWO}}}\n'}, "ensemble scheduling cannot be set for model 'e' whose platform is not ensemble"),
    ("10.25", e(TWO, "instance_group { }\n"), "instance group should not be specified for ensemble 'e'"),
    ("10.25", e(TWO, "optimization { }\n"), "optimization should not be specified for ensemble 'e'"),
    ("10.25", e(TWO, WARM), "model_warmup can not be specified for ensemble 'e'"),
    ("10.26", e(""), "must specify 'step' for ensemble 'e'"),
    ("10.26", e(change(TWO, '"m"', '""')), "must specify 'model_name' in step 0 of ensemble 'e'"),
    ("10.26", e(step("m", "", "B=t") + step("n", "A=t", "B=B")), "must specify 'input_map' in step 0 of ensemble 'e'"),
    ("10.26", e(step("m", "A=A", "B=t") + step("n", "A=t", "")), "must specify 'output_map' in step 1 of ensemble 'e'"),
    ("10.27", e(step("m", "A=A", "B=B") + step("n", "A=A", "B=B")), "ensemble tensor 'B' can appear in an output map only once for ensemble 'e' step 1"),
    ("10.28", e(TWO, io=IO + 'input { name: "X" data_type: TYPE_FP32 dims: [ 4 ] }\n'), "ensemble input 'X' for ensemble e' is not used"),
    ("10.28", e(TWO, io=IO + 'output { name: "X" data_type: TYPE_FP32 dims: [ 4 ] }\n'), "ensemble output 'X' for ensemble e' is not used"),
    ("10.29", e(step("m", "A=A", "B=t") + step("n", "A=B", "B=u"), io=IO), "output 'B' for ensemble 'e' is not written"),
    ("10.29", e(step("m", "A=A", "B=t") + step("n", "A=z", "B=B")), "output 'B' for ensemble 'e' is not written: at least one of its depending tensors, 'z', is not connected"),
    ("10.30", e(TWO + step("n", "A=t", "B=u")), "ensemble tensor 'u' is unused in ensemble 'e'"),
    ("10.31", e(TWO, more={**py(BATCHING), **py(LONG, "n")}), "in ensemble e, ensemble tensor t: inconsistent data type: TYPE_FP32 is inferred from model m while TYPE_INT32 is inferred from model n"),
    ("10.31", e(TWO, more={**py(BATCHING), **py(MATRIX, "n")}), "in ensemble e, ensemble tensor t: inconsistent shape: [-1,4] is inferred from model m while [-1,4,4] is inferred from model n"),
    ("10.32", e(step("m", "A=A X=A", "B=t") + step("n", "A=t", "B=B")), "in ensemble e, ensemble tensor A is mapping to non-existing input X in model m"),
    ("10.32", e(step("m", "A=A", "X=t") + step("n", "A=t", "B=B")), "in ensemble e, ensemble tensor t is mapped from non-existing output X in model m"),
    ("10.32", e(step("j", "A=A", "B=B"), more=JOINS), "in ensemble e, input C in model j is not mapped to any ensemble tensors"),
    ("10.33", e(TWO, "max_batch_size: 9\n"), "ensemble e allows maximum batch size 9, but it contains model m which only allows maximum batch size to be 8"),
    *io("10.34", "data_type: TYPE_FP32 dims: [ 4 ]", "must specify 'name'"),
    *io("10.34", "name: 'NAME' dims: [ 4 ]", "'NAME' must specify 'data_type'"),
    *io("10.34", "name: 'NAME' data_type: TYPE_FP32", "'NAME' must specify 'dims'"),
    *io("10.35", "name: 'NAME' data_type: TYPE_FP32 dims: [ 0 ]", "'NAME' dimension must be integer >= 1, or -1 to indicate a variable-size dimension"),
    ("10.36", m(change(BATCHING, "max_batch_size: 8\n", "").replace("[ 4 ]", "[ 1 ] reshape { }")), "model input 'A' cannot have empty reshape for non-batching model as scalar tensors are not supported for m"),
    ("10.36", m(change(BATCHING, "max_batch_size: 8\n", "").replace("[ 4 ]", "[ 1 ] reshape { }")), "model output 'B' cannot have empty reshape for non-batching model as scalar tensors are not supported for m"),
    *io("10.37", "name: 'NAME' data_type: TYPE_FP32 dims: [ 4 ] reshape { shape: [ 3 ] }", "'NAME' has different size for dims and reshape"),
    *io("10.37", "name: 'NAME' data_type: TYPE_FP32 dims: [ -1 ] reshape { shape: [ -1, -1 ] }", "'NAME' has different number of variable-size dimensions for dims and reshape"),
    *io("10.37", "name: 'NAME' data_type: TYPE_FP32 dims: [ 4 ] reshape { shape: [ 0 ] }", "'NAME' reshape dimensions must be integer >= 1, or -1 to indicate a variable-size dimension"),
    ("10.38", tensor("input", "name: 'A' format: FORMAT_NHWC data_type: TYPE_FP32 dims: [ 4 ]"), "model input NHWC/NCHW require 3 dims for m"),
    ("10.38", tensor("input", "name: 'A' is_shape_tensor: true data_type: TYPE_FP32 dims: [ 4 ]"), "shape tensors are only supported for TensorRT platform for m"),
    ("10.38", tensor("output", "name: 'B' is_non_linear_format_io: true data_type: TYPE_FP32 dims: [ 4 ]"), "Non-linear IO format is only supported for the TensorRT platform"),
    ("10.39", batch("input", "kind: BATCH_ELEMENT_COUNT data_type: TYPE_FP32 source_input: [ 'A', 'A' ]"), "batch input kind 'BATCH_ELEMENT_COUNT' expects 1 source input, got 2"),
    ("10.39", batch("input", "data_type: TYPE_FP32 source_input: 'X'"), "unknown source input name 'X'"),
    ("10.39", batch("output", "target_name: 'X' source_input: 'A'"), "unknown target output name 'X'"),
    ("10.39", batch("output", "target_name: [ 'B', 'B' ] source_input: 'A'"), "target output name 'B' can only be specified once"),
    ("10.39", batch("input", "data_type: TYPE_FP64 source_input: 'A'"), "batch input data type must be TYPE_INT32 or TYPE_FP32"),
    ("10.40", m(BATCHING + "instance_group { kind: KIND_CPU gpus: 0 }\n"), "instance group m_0 of model m has kind KIND_CPU but specifies one or more GPUs"),
    ("10.40", m(BATCHING + "instance_group { kind: KIND_MODEL gpus: 0 }\n"), "instance group m_0 of model m has kind KIND_MODEL but specifies one or more GPUs"),
    ("10.40", m(BATCHING + "instance_group { kind: KIND_GPU }\n"), "instance group m_0 of model m has kind KIND_GPU but no GPUs are available"),
    ("10.40", m(BATCHING + "instance_group { kind: KIND_GPU gpus: 3 }\n"), "instance group m_0 of model m specifies invalid or unsupported gpu id 3. GPUs with at least the minimum required CUDA compute compatibility of "),
    ("10.41", m(BATCHING + METRIC.format("")), "metric control must specify 'metric_identifier'"),
    ("10.41", m(BATCHING + METRIC.format("metric_identifier { }")), "metric identifier must specify non-empty 'family'"),
    ("10.41", m(BATCHING + METRIC.format(FAMILY)), "metric control must specify 'histogram_options'"),
    ("10.41", m(BATCHING + METRIC.format(FAMILY + " histogram_options { }")), "histogram options must specify non-empty 'buckets'"),
    ("10.42", m('backend: "nonsense"\n' + IO), "unable to find backend library for backend 'nonsense', try specifying runtime on the model configuration."),
    ("10.43", onnx(ORT + "max_batch_size: 8\n" + ONNX_IO + 'input { name: "z" data_type: TYPE_FP32 dims: [ 4 ] }\n'), "unable to load model 'm', configuration expects 2 inputs, model provides 1"),
    ("10.43", onnx(ORT + "max_batch_size: 8\n" + change(ONNX_IO, '"x"', '"q"')), "unexpected inference input 'q', allowed inputs are: x"),
    ("10.43", onnx(ORT + "max_batch_size: 8\n" + change(ONNX_IO, '"y"', '"q"')), "unexpected inference output 'q', allowed outputs are: y"),
    ("4.4", m(BATCHING + "instance_group { rate_limiter { resources [ { name: 'R' count: 1 }, { name: 'S' count: 1 } ] } }\ninstance_group { rate_limiter { resources { name: 'R' global: true count: 1 } } }\n"), 'Resource "R" is present as both global and device-specific resource in the model configuration.'),
    ("4.4", m(BATCHING + "instance_group { rate_limiter { resources { name: 'R' count: 5 } } }\n"), 'Resource count for "R" is limited to 4 which will prevent scheduling of one or more model instances, the minimum required count is 5'),
    ("5.5", e(JOIN, more={**py(DECOUPLED), **py(DECOUPLED, "n"), **py(BATCHING, "k"), **JOINS}), "in ensemble e, step of model 'j' receives inputs originated from different decoupled models"),
    ("5.10", e(TWO, more={**py(BATCHING), "n/config.pbtxt": BATCHING}), "ensemble 'e' depends on 'n' which has no loaded version. Model 'n' loading failed with error: at least one version must be available under the version policy of model 'n'"),
    ("5.10", e(TWO, more={**py(BATCHING), "n/config.pbtxt": BATCHING, "n/1/": ""}), "ensemble 'e' depends on 'n' which has no loaded version. Model 'n' loading failed with error: version 1 is at UNAVAILABLE state: Python model file not found in '"),
    ("5.10", e(change(TWO, "-1", "2")), "ensemble 'e' depends on 'm' whose required version 2 is not loaded."),
    ("5.10", e(step("x", "A=A", "B=t") + step("y", "A=t", "B=B")), "ensemble e contains models that are not available or ambiguous: x, y"),
    ("5.10", e(TWO, more={**py(change(BATCHING, "8", "-8")), **py(BATCHING, "n")}), "ensemble e contains models that are not available or ambiguous: m"),
    ("5.10", e(step("e", "A=A", "B=B")), "circular dependency between ensembles: e -> ... -> e -> e"),
    ("7.2", {"m/config.pbtxt": BATCHING}, "at least one version must be available under the version policy of model 'm'"),
    ("7.2", {**m(BATCHING), "m/007/": ""}, "ignore version directory '007' which contains leading zeros in its directory name"),
    ("7.4", m('name: "n"\n' + BATCHING), "unexpected directory name 'm' for model 'n', directory name must equal model name"),
    ("8", m(BATCHING + change(WARM, "[ 4 ]", "[ -1 ]")), "warmup setting expects all variable-size dimensions are specified for input 'A'"),
    ("8", m(BATCHING + change(WARM, "zero_data: true", "")), "warmup setting expects input 'A' to have input_data_type set"),
    ("9.2", {"m/config.pbtxt": IO, "m/1/": ""}, "Invalid model name: Could not determine backend for model 'm' with no backend in model configuration. Expected model name of the form 'model.<backend_name>'."),
]  # fmt: skip

UNREACHABLE = {
    "10.1": "a model always has a name: that of its directory (test below asks the check itself)",
    "10.40 server does not support GPUs": "said by a Triton that was built without GPUs",
    "10.42 model configuration is not provided": "an error inside the server: no repository leads to it",
}


@pytest.mark.parametrize(
    ("number", "files", "text"), [pytest.param(*row, id=f"{row[0]}-{index}") for index, row in enumerate(ROWS)]
)
def test_lint_says_it(tmp_path: Path, number: str, files: Files, text: str) -> None:
    gpus = 0 if "no GPUs are available" in text else 2 if "gpu id" in text else None
    report = wb.lint(write(tmp_path, files), gpus=gpus, rate_limit_resources=["R:4"] if "limited to" in text else ())
    said = [(file.path, each) for file in report for each in file.findings if each.message.startswith(text)]
    assert said, (number, [each.message for file in report for each in file.findings])
    place, finding = said[0]
    name = (
        text.split("'")[1]
        if text.startswith("ignore")
        else "e"
        if "ensemble" in text or number.startswith("5.")
        else "m"
    )
    assert place.relative_to(tmp_path).parts[0] == name or place.name == name
    assert finding.severity == "error" or number in ("7.2", "10.34", "10.42")


def test_every_text_of_section_10_is_here() -> None:
    covered = {int(number.partition(".")[2]) for number, _, _ in ROWS if number.startswith("10.")}
    assert covered | {1} == set(range(1, 44))
    assert set(UNREACHABLE) == {key for key in UNREACHABLE if key.startswith("10.")}


def test_a_model_without_any_name_is_refused_by_the_check_itself() -> None:
    assert next(problems(pb().ModelConfig())).message == "model configuration must specify 'name'"
