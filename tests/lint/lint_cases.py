# ruff: noqa: E501 (tables of whole configurations)
"""Repositories for the linter: for each rule one that has the fault and one that is close to it and has not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from onnx_models import scale

PY = "class TritonPythonModel:\n    def execute(self, requests):\n        return []\n"
IO = 'input { name: "A" data_type: TYPE_FP32 dims: [ 4 ] }\noutput { name: "B" data_type: TYPE_FP32 dims: [ 4 ] }\n'
BATCHING = 'backend: "python"\nmax_batch_size: 8\n' + IO
ONNX_IO = IO.replace('"A"', '"x"').replace('"B"', '"y"')
Files = Mapping[str, str | bytes]


def write(root: Path, files: Files) -> Path:
    """Writes a repository; a name that ends with a slash is a directory."""
    for name, content in files.items():
        path = root / name
        if name.endswith("/"):
            path.mkdir(parents=True, exist_ok=True)
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return root


def py(config: str, name: str = "m", **more: str | bytes) -> dict[str, str | bytes]:
    """A Python model."""
    return {f"{name}/config.pbtxt": config, f"{name}/1/model.py": PY, **{f"{name}/{k}": v for k, v in more.items()}}


def onnx(config: str, name: str = "m") -> dict[str, str | bytes]:
    """An ONNX model: y = 2 x."""
    return {f"{name}/config.pbtxt": config, f"{name}/1/model.onnx": scale()}


def step(model: str, inputs: str, outputs: str) -> str:
    """A step of an ensemble; ``inputs`` and ``outputs`` are ``model's name=tensor``, with spaces between."""
    maps = [("input_map", pair) for pair in inputs.split()] + [("output_map", pair) for pair in outputs.split()]
    body = " ".join(f'{kind} {{ key: "{pair.split("=")[0]}" value: "{pair.split("=")[1]}" }}' for kind, pair in maps)
    return f'  step {{ model_name: "{model}" model_version: -1 {body} }}\n'


def ensemble(steps: str, head: str = "max_batch_size: 8\n", io: str = IO, name: str = "e") -> dict[str, str | bytes]:
    """An ensemble from A to B."""
    return {
        f"{name}/config.pbtxt": f'platform: "ensemble"\n{head}{io}ensemble_scheduling {{\n{steps}}}\n',
        f"{name}/1/": "",
    }


TWO = step("m", "A=A", "B=t") + step("n", "A=t", "B=B")
PAIR = {**py(BATCHING), **py(BATCHING, "n")}
WARM = 'model_warmup { name: "w" batch_size: 1 inputs { key: "A" value { data_type: TYPE_FP32 dims: [ 4 ] zero_data: true } } }\n'
CORRID = "control { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_UINT64 }"
STATE = (
    "sequence_batching { state { input_name: 'S' output_name: 'T' data_type: TYPE_FP32 dims: [ 2 ] "
    "initial_state { name: 'i' data_type: TYPE_FP32 dims: [ 2 ] data_file: 'zero' } } }\n"
)


@dataclass(frozen=True)
class Case:
    """A fault: ``files`` have it, ``without`` do not; ``says`` is in the message, ``fixed`` in the mended ``where``."""

    rule: str
    files: Files
    without: Files
    says: str
    where: str = "m/config.pbtxt"
    options: Mapping[str, Any] = field(default_factory=dict)
    fixed: str | None = None
    severity: str | None = None


def only(text: str) -> dict[str, str | bytes]:
    """A Python model with exactly this configuration."""
    return py(text)


def change(config: str, old: str, new: str) -> str:
    """The configuration with one part replaced; the part must be there."""
    assert old in config, old
    return config.replace(old, new, 1)


def _syntax(
    rule: str, bad: str | bytes, good: str, says: str = "", fixed: str | None = None, severity: str | None = None
) -> Case:
    head = b'backend: "python"\n'
    data = bad if isinstance(bad, bytes) else bad.encode()
    files = {"m/config.pbtxt": data if rule == "byte-order-mark" else head + data, "m/1/model.py": PY}
    return Case(rule, files, py(head.decode() + good), says, fixed=fixed, severity=severity)


SYNTAX = [
    _syntax("parse-error", "max_batch_size: [ 1 ]\n", "max_batch_size: 1\n"),
    _syntax("byte-order-mark", b'\xef\xbb\xbfbackend: "python"\n', "", fixed='backend: "python"'),
    _syntax("smart-quotes", "name: “m”\n", 'name: "m"\n', fixed='name: "m"'),
    _syntax("cpp-comment", "// a comment\n", "# a // comment\n", fixed="# a comment"),
    _syntax("yaml-style", "input:\n  - name: A\n    data_type: TYPE_FP32\n", "input: [ { name: 'A' } ]\n"),
    _syntax("template-placeholder", "max_batch_size: $MAX\n", "max_batch_size: 1 # $MAX\n", "$MAX"),
    _syntax("template-placeholder", "max_batch_size: ${MAX}\n", "", "${MAX}"),
    _syntax("template-placeholder", "max_batch_size: {{ max }}\n", "", "{{ max }}"),
    _syntax("template-placeholder", "max_batch_size: MAX_BATCH\n", "", "MAX_BATCH"),
    _syntax("template-placeholder", "max_batch_size: <MAX>\n", "", "<MAX>"),
    _syntax("template-placeholder", "max_batch_size: @MAX@\n", "", "@MAX@"),
    _syntax("template-placeholder", "input { name: 'A' data_type: TYPE_#DTYPE\n dims: 1 }\n", "", "TYPE_#DTYPE"),
    _syntax("template-placeholder", "input { name: 'A' dims: [ -1, #beam ]\n }\n", "", "#beam"),
    _syntax(
        "template-placeholder",
        'parameters { key: "dir" value { string_value: "${engine_dir}" } }\n',
        'parameters { key: "dir" value { string_value: "$$TRITON_MODEL_DIRECTORY/env" } }\n',
        "${engine_dir} in string_value",
        severity="warning",
    ),
    _syntax("template-placeholder", 'default_model_filename: "#file"\n', 'parameters { key: "c" value { string_value: "#1, #2" } }\n', "#file", severity="warning"),
    _syntax("unquoted-string", "name: m\n", 'name: "m"\n', fixed='name: "m"'),
    _syntax("trailing-comma", "input { name: 'A' dims: [ 1, 2, ] }\n", "input { name: 'A' dims: [ 1, 2 ] }\n", fixed="[ 1, 2 ]"),
    _syntax("number-form", 'max_batch_size: "8"\n', "max_batch_size: 0x8\n", fixed="max_batch_size: 8"),
    _syntax("unknown-field", "max_batchsize: 8\n", "max_batch_size: 8\n", "Did you mean 'max_batch_size'?", "max_batch_size: 8"),
    _syntax("unknown-field", "dynamic_batching { max_queue_delay_us: 8 }\n", "", "Did you mean"),
    _syntax("misplaced-field", "dynamic_batching { max_batch_size: 8 }\n", "max_batch_size: 8\ndynamic_batching { }\n", "the top level"),
    _syntax("unknown-enum", "input { data_type: TYPE_BYTES }\n", "input { data_type: TYPE_STRING }\n", "TYPE_STRING", "TYPE_STRING"),
    _syntax("unknown-enum", "instance_group { kind: KIND_GPUS }\n", "", "KIND_GPU", "KIND_GPU }"),
    _syntax("two-keys", 'metric_tags { key: "a" value: "x" key: "b" value: "y" }\n', 'metric_tags { key: "a" value: "x" }\n'),
    _syntax("missing-separator", 'name = "m"\n', 'name: "m"\n', "(a colon, not =)", 'name : "m"'),
    _syntax("missing-separator", "max_batch_size 8\n", "max_batch_size:8\n", "a colon goes before", "max_batch_size: 8"),
    _syntax("missing-separator", "input { name: 'A' dims [ 4 ] }\n", "dynamic_batching { }\n", "a colon goes before", "dims: [ 4 ]"),
    _syntax("missing-separator", "max_batch_size # rows: 'at most\n  # of one batch\n  8\n", "max_batch_size: # '\n 8\n", "a colon goes before", "max_batch_size: # rows"),
    _syntax("missing-separator", "input { name: 'A#' dims # all\n [ 3 ] }\n", "input { name: '#' }\n", "a colon goes before", "dims: # all"),
    _syntax("missing-separator", "input { name: 'A' dims: [ 3 # and\n 4 ] }\n", "input { name: 'A' dims: [ 3, # and\n 4 ] }\n", "a comma goes between", "[ 3, # and"),
    _syntax("missing-separator", "input { name: 'A' dims: [ 3 4 5 ] }\n", "input { name: 'A' dims: [ 3, 4, 5 ] }\n", "a comma goes between", "[ 3, 4, 5 ]"),
    _syntax("missing-separator", "input [ { name: 'A' } { name: 'C' } ]\n", "input { name: 'A' } input { name: 'C' }\n", "a comma goes between", "{ name: 'A' }, { name: 'C' }"),
    _syntax("list-form", "input { name: 'A' dims: 3, 224, -1 }\n", "input { name: 'A' dims: 3, dims: 224 }\n", "", "dims: [ 3, 224, -1 ]"),
    _syntax("list-form", "input { name: 'A' dims: (3, 224) }\n", "input { name: 'A' dims: 3 }\n", "", "dims: [ 3, 224 ]"),
    _syntax("quoted-value", 'input { name: "A" data_type: "TYPE_FP32" }\n', 'input { name: "TYPE_FP32" }\n', "an enum", "data_type: TYPE_FP32"),
    _syntax("quoted-value", 'instance_group { passive: "false" }\n', "instance_group { passive: False }\n", "", "passive: false"),
    _syntax("quoted-value", "instance_group { passive: no }\n", "instance_group { passive: f }\n", "(write false)", "passive: false"),
    _syntax("quoted-value", "instance_group { passive: FALSE\n}\n", "instance_group { passive: 0 }\n", "(write false)", "passive: false\n"),
    _syntax("quoted-value", '"max_batch_size": 8\n', "max_batch_size: 8\n", "name of a field", "\nmax_batch_size: 8"),
    _syntax("quoted-value", 'dynamic_batching { "max_queue_delay_microseconds": 8 }\n', "dynamic_batching { max_queue_delay_microseconds: 8 }\n", "name of a field", "{ max_queue_delay_microseconds: 8 }"),
    _syntax("message-form", 'parameters { key: "k" value: "v" }\n', 'parameters { key: "k" value { string_value: "v" } }\n', "", 'value: { string_value: "v" }'),
    _syntax("message-form", "version_policy { latest: 2 }\n", "version_policy { latest { num_versions: 2 } }\n", "", "latest: { num_versions: 2 }"),
    _syntax("message-form", "version_policy { specific: [ 1 ] }\n", "version_policy { specific { versions: [ 1 ] } }\n", "specific holds fields", "specific: { versions: [ 1 ] }"),
    _syntax("message-form", 'output { name: "C" data_type: TYPE_FP32 dims: [ 1 ] reshape: [ ] }\nmax_batch_size: 8\n', 'output { name: "C" data_type: TYPE_FP32 dims: [ 1 ] reshape { shape: [ ] } }\nmax_batch_size: 8\n', "", "reshape: { shape: [ ] }"),
    _syntax("message-form", "dynamic_batching: true\n", "dynamic_batching: { }\n", "", "dynamic_batching: { }"),
    _syntax("message-form", "version_policy: latest\n", "version_policy: { }\n", "version_policy { ... }"),
    _syntax("unbalanced", "dynamic_batching {\n", "dynamic_batching {\n}\n", "'dynamic_batching' of line 2 is not closed"),
    _syntax("unbalanced", "input [ { name: 'A' }\n", "input [ { name: 'A' } ]\n", "a list is not closed"),
    _syntax("unbalanced", "dynamic_batching { }\n}\n", "dynamic_batching { }\n", "nothing that it closes"),
    _syntax("duplicate-field", "name: 'm'\nname: 'm'\n", "name: 'm'\n", "(first in line 2; write it once)"),
    Case("json-style", {"m/config.pbtxt": '{"name": "m", "backend": "python", "max_batch_size": 8}\n', "m/1/model.py": PY}, py('backend: "python"\n'), "the file is JSON", fixed='name: "m"'),
    Case("two-schedulers", ensemble(TWO, "max_batch_size: 8\ndynamic_batching {\n  max_queue_delay_microseconds: 5\n}\n") | PAIR, ensemble(TWO) | PAIR, "another member of oneof", "e/config.pbtxt", fixed="max_batch_size: 8\ninput"),
    _syntax("two-schedulers", "dynamic_batching { }\nsequence_batching { }\n", "sequence_batching { }\n", "Remove one of them"),
]  # fmt: skip

OTHER_ENSEMBLE = ensemble(step("e", "A=A", "B=B"), name="f")
DECOUPLED = BATCHING + "model_transaction_policy { decoupled: true }\n"

REFUSED = [
    Case("validation", only(change(BATCHING, "max_batch_size: 8", "max_batch_size: -1")), only(BATCHING), "must be non-negative", fixed="max_batch_size: 0"),
    Case("name-not-directory", only('name: "other"\n' + BATCHING), only('name: "m"\n' + BATCHING), "unexpected directory name 'm' for model 'other'", fixed='name: "m"'),
    Case("unknown-platform", only('platform: "onnxruntime"\n' + IO), onnx('platform: "onnxruntime_onnx"\n' + ONNX_IO), "Did you mean platform 'onnxruntime_onnx'", fixed='"onnxruntime_onnx"'),
    Case("unknown-platform", only('platform: "python"\n' + IO), only(BATCHING), "Did you mean backend 'python'", fixed='backend: "python"'),
    Case("legacy-platform", {"m/config.pbtxt": 'platform: "custom"\ndefault_model_filename: "libtacotron.so"\n' + IO, "m/1/": ""}, only(BATCHING), "unexpected platform type 'custom'", fixed='backend: "tacotron"'),
    Case("platform-backend-pair", onnx('platform: "tensorrt_plan"\nbackend: "onnxruntime"\n' + ONNX_IO), onnx('backend: "onnxruntime"\n' + ONNX_IO), "unexpected 'platform' and 'backend' pair, got:tensorrt_plan, onnxruntime", fixed='backend: "onnxruntime"\ninput'),
    Case("platform-backend-pair", ensemble(TWO, 'backend: "python"\n') | PAIR, ensemble(TWO) | PAIR, "must have platform type 'ensemble' and empty backend type", "e/config.pbtxt", fixed='platform: "ensemble"\ninput'),
    Case("unknown-backend", onnx('backend: "onnx"\n' + ONNX_IO), onnx('backend: "onnxruntime"\n' + ONNX_IO), "Did you mean 'onnxruntime'?", fixed='"onnxruntime"', severity="error"),
    Case("unknown-backend", {"m/config.pbtxt": 'backend: "kaldi"\n' + IO, "m/1/": ""}, {"m/config.pbtxt": 'backend: "kaldi"\n' + IO, "m/1/libtriton_kaldi.so": ""}, "unable to find backend library for backend 'kaldi'"),
    Case("runtime-path", only('runtime: "../other/libtriton_python.so"\n' + BATCHING), only('runtime: "libtriton_python.so"\n' + BATCHING), "escapes backend directory", fixed=BATCHING),
    Case("preferred-above-max", only(BATCHING + "dynamic_batching { preferred_batch_size: [ 4, 16 ] max_queue_delay_microseconds: 1 }\n"), only(BATCHING + "dynamic_batching { preferred_batch_size: [ 4, 8 ] max_queue_delay_microseconds: 1 }\n"), "must be <= max batch size for m", fixed="[ 4 ]"),
    Case("preferred-above-max", only('backend: "python"\ndynamic_batching { preferred_batch_size: [ 2 ] }\n'), only(BATCHING), "(max_batch_size is 0: not set)"),
    Case("preferred-above-max", only(BATCHING + "sequence_batching { oldest { max_candidate_sequences: 4 preferred_batch_size: [ 9 ] } }\n"), only(BATCHING + "sequence_batching { oldest { max_candidate_sequences: 4 preferred_batch_size: [ 8 ] } }\n"), "sequence batching preferred batch size must be <= max batch size for m"),
    Case("priority-level", only(BATCHING + "dynamic_batching { priority_levels: 2 }\n"), only(BATCHING + "dynamic_batching { priority_levels: 2 default_priority_level: 2 }\n"), "for m (a request without a priority takes this level; 2 is the lowest)", fixed="default_priority_level: 2"),
    Case("priority-level", only(BATCHING + "dynamic_batching { priority_levels: 2 default_priority_level: 1 priority_queue_policy { key: 0 value { max_queue_size: 8 } } }\n"), only(BATCHING + "dynamic_batching { priority_levels: 2 default_priority_level: 1 priority_queue_policy { key: 1 value { max_queue_size: 8 } } }\n"), "must have priority level in range [1, 2]", fixed="key: 1"),
    Case("preserve-ordering", only(BATCHING + "dynamic_batching { preserve_ordering: true default_queue_policy { timeout_action: DELAY default_timeout_microseconds: 9 } }\n"), only(BATCHING + "dynamic_batching { preserve_ordering: true default_queue_policy { timeout_action: REJECT default_timeout_microseconds: 9 } }\n"), "Queue policy can not have DELAY", fixed="timeout_action: REJECT"),
    Case("response-cache", only(DECOUPLED + "response_cache { enable: true }\n"), only(BATCHING + "response_cache { enable: true }\n"), "'decoupled' transaction policy", fixed="enable: false"),
    Case("sequence-control", only(BATCHING + f"sequence_batching {{ control_input {{ {CORRID} }} }}\n"), only(BATCHING + f"sequence_batching {{ control_input {{ name: 'I' {CORRID} }} }}\n"), "control tensor must have a name"),
    Case("sequence-settings", only(BATCHING + "sequence_batching { direct { max_queue_delay_microseconds: 1 minimum_slot_utilization: 1.5 } }\n"), only(BATCHING + "sequence_batching { direct { max_queue_delay_microseconds: 1 minimum_slot_utilization: 1 } }\n"), "must be in range (0.0, 1.0]"),
    Case("sequence-state", only(BATCHING + STATE), {**py(BATCHING + STATE), "m/initial_state/zero": b"\0" * 8}, "No such file or directory"),
    Case("sequence-state", {**py(BATCHING + STATE), "m/initial_state/zero": b"\0" * 7}, py(BATCHING), "expects 8 bytes, but the data provided from zeroonly has 7 bytes"),
    Case("io-incomplete", only('backend: "pytorch"\ninput { name: "A" }\n'), only(BATCHING), "must specify 'data_type'"),
    Case("io-incomplete", {"m/config.pbtxt": 'backend: "dali"\ninput { name: "A" }\n', "m/1/": ""}, only(BATCHING), "unless the backend completes it", severity="warning"),
    Case("io-dims", only(change(BATCHING, "dims: [ 4 ]", "dims: [ 0 ]")), only(change(BATCHING, "dims: [ 4 ]", "dims: [ -1 ]")), "dimension must be integer >= 1, or -1"),
    Case("io-reshape", only(change(BATCHING, "dims: [ 4 ]", "dims: [ 4 ] reshape { shape: [ 3 ] }")), only(change(BATCHING, "dims: [ 4 ]", "dims: [ 4 ] reshape { shape: [ 2, 2 ] }")), "has different size for dims and reshape for m (dims [4], reshape [3])"),
    Case("io-reshape", only(change(BATCHING, "dims: [ 4 ]", "dims: [ 4 ] reshape { }")), only(change(BATCHING, "dims: [ 4 ]", "dims: [ 1 ] reshape { }")), "(dims [4], reshape []: one element)"),
    Case("io-reshape", only(change(change(BATCHING, "dims: [ 4 ]", "dims: [ 1 ] reshape { }"), "max_batch_size: 8\n", "")), only(change(BATCHING, "dims: [ 4 ]", "dims: [ 1 ] reshape { }")), "cannot have empty reshape for non-batching model"),
    Case("io-format", only(change(BATCHING, "data_type", "format: FORMAT_NCHW data_type")), only(BATCHING), "require 3 dims"),
    Case("batch-io", only(BATCHING + "batch_input { kind: BATCH_ELEMENT_COUNT target_name: 'N' data_type: TYPE_FP32 source_input: 'X' }\n"), only(BATCHING + "batch_input { kind: BATCH_ELEMENT_COUNT target_name: 'N' data_type: TYPE_FP32 source_input: 'A' }\n"), "unknown source input name 'X'"),
    Case("instance-group", only(BATCHING + "instance_group { kind: KIND_CPU gpus: [ 0 ] }\n"), only(BATCHING + "instance_group { kind: KIND_CPU }\n"), "has kind KIND_CPU but specifies one or more GPUs", fixed="kind: KIND_CPU }"),
    Case("instance-group", only(BATCHING + "instance_group { kind: KIND_GPU gpus: [ 2 ] }\n"), only(BATCHING + "instance_group { kind: KIND_GPU gpus: [ 1 ] }\n"), "invalid or unsupported gpu id 2", options={"gpus": 2}),
    Case("model-metrics", only(BATCHING + "model_metrics { metric_control { } }\n"), only(BATCHING), "metric control must specify 'metric_identifier'"),
    Case("ensemble-settings", ensemble(TWO, "instance_group { }\n") | PAIR, ensemble(TWO) | PAIR, "instance group should not be specified for ensemble 'e'", "e/config.pbtxt", fixed='platform: "ensemble"\ninput'),
    Case("ensemble-settings", ensemble(TWO) | PAIR | {"e/config.pbtxt": 'name: "e"\nensemble_scheduling {\n' + TWO + "}\n" + IO}, ensemble(TWO) | PAIR, "whose platform is not ensemble", "e/config.pbtxt", fixed='platform: "ensemble"'),
    Case("ensemble-graph", ensemble(step("m", "A=A", "B=t") + step("n", "A=z", "B=B")) | PAIR, ensemble(TWO) | PAIR, "output 'B' for ensemble 'e' is not written", "e/config.pbtxt"),
    Case("ensemble-graph", ensemble(step("m", "A=A", "B=mean") + step("n", "A=means", "B=B")) | PAIR, ensemble(TWO) | PAIR, "is unused in ensemble 'e' (nothing writes 'means'; did you mean 'mean'?)", "e/config.pbtxt", fixed='input_map { key: "A" value: "mean" }'),
    Case("ensemble-graph", ensemble(step("m", "A=A", "B=t") + step("n", "A=z", "B=B")) | PAIR, ensemble(TWO) | PAIR, "is unused in ensemble 'e' (nothing writes 'z')", "e/config.pbtxt"),
    Case("ensemble-graph", ensemble(TWO + step("n", "A=t", "B=u")) | PAIR, ensemble(TWO) | PAIR, "is unused in ensemble 'e' (nothing reads 'u')", "e/config.pbtxt"),
    Case("ensemble-tensors", ensemble(step("m", "A=A", "B=t") + step("n", "AA=t", "B=B")) | PAIR, ensemble(TWO) | PAIR, "is mapping to non-existing input AA in model n. Did you mean 'A'?", "e/config.pbtxt", fixed='input_map { key: "A" value: "t" }'),
    Case("ensemble-tensors", ensemble(TWO, "max_batch_size: 16\n") | PAIR, ensemble(TWO) | PAIR, "allows maximum batch size 16", "e/config.pbtxt", fixed="max_batch_size: 8"),
    Case("ensemble-dependency", ensemble(change(TWO, '"m"', '"mm"')) | PAIR, ensemble(TWO) | PAIR, "not available or ambiguous: mm. Did you mean 'm'?", "e/config.pbtxt", fixed='model_name: "m"'),
    Case("ensemble-dependency", ensemble(change(TWO, "-1", "2")) | PAIR, ensemble(change(TWO, "-1", "1")) | PAIR, "depends on 'm' whose required version 2 is not loaded", "e/config.pbtxt"),
    Case("ensemble-dependency", ensemble(change(TWO, "model_version: -1 ", "")) | PAIR, ensemble(TWO) | PAIR, "required version 0 is not loaded. (-1 is the latest)", "e/config.pbtxt", fixed='model_version: -1'),
    Case("ensemble-circular", ensemble(step("f", "A=A", "B=B")) | OTHER_ENSEMBLE, ensemble(TWO) | PAIR | OTHER_ENSEMBLE, "circular dependency between ensembles: e -> ... -> f -> e", "e/config.pbtxt"),
    Case("release", only(BATCHING + "model_metrics { metric_control { metric_identifier { family: 'nv_inference_first_response_histogram_ms' } histogram_options { buckets: [ 1 ] } } }\n"), only(BATCHING), "Triton 24.10 does not know model_metrics and refuses the file: it came with 24.11", options={"triton_release": "24.10"}, fixed=BATCHING),
    Case("release", {"m/config.pbtxt": 'backend: "tensorflow"\nplatform: "tensorflow_savedmodel"\n' + IO, "m/1/model.savedmodel/": ""}, only(BATCHING), "25.02 was the last release with it"),
    Case("release", onnx('backend: "onnxruntime"\n' + ONNX_IO), only(BATCHING), "does not bring the ONNX Runtime backend", options={"triton_release": "24.02"}),
    Case("release", only(change(BATCHING, "TYPE_FP32", "TYPE_BF16")), only(BATCHING), "does not know TYPE_BF16", options={"triton_release": "22.04"}),
    Case("release", {"m/config.pbtxt": 'platform: "torch_aoti"\n' + IO, "m/1/model.pt2": ""}, only(BATCHING), "does not know the platform torch_aoti: it came with 26.03"),
]  # fmt: skip

SPECIFIC = BATCHING + "version_policy { specific { versions: [ 1, 3 ] } }\n"
LABELS = change(ONNX_IO, 'output { name: "y"', 'output { label_filename: "labels.txt" name: "y"')
DIRECTORY = [
    Case("no-backend", {**py(BATCHING), "docs/readme.md": ""}, py(BATCHING), "Could not determine backend for model 'docs'", "docs"),
    Case("no-backend", {"m/config.pbtxt": "", "m/1/": ""}, {"m.onnxruntime/1/": "", **py(BATCHING)}, "Could not determine backend for model 'm'"),
    Case("no-config", {"m/1/model.onnx": scale()}, onnx(""), "backend onnxruntime completes it", "m"),
    Case("no-config", {"m/1/model.py": PY}, {"m/1/model.py": PY + "    def auto_complete_config(c): return c\n", "m/config.pbtxt": ""}, "no auto_complete_config", "m", severity="error"),
    Case("no-config", {"m/1/model.pt": ""}, py(BATCHING), "PyTorch", "m", severity="error"),
    Case("no-config", {"m/1/model.onnx": scale()}, onnx(""), "failed to open text file for read", "m", {"auto_complete": False}, severity="error"),
    Case("no-version", {"m/config.pbtxt": BATCHING, "m/model.py": PY}, py(BATCHING), "at least one version must be available under the version policy of model 'm' (make the directory m/1"),
    Case("no-version", py(change(SPECIFIC, "1, 3", "3")), py(SPECIFIC), "(there are 1)"),
    Case("version-directory", {**py(BATCHING), "m/01/": ""}, {**py(BATCHING), "m/.ipynb_checkpoints/x": "", "m/.hidden/": "", "m/warmup/": "", "m/initial_state/": "", "m/configs/": "", "m/example_inputs/": "", "m/config.pbtxt~": ""}, "ignore version directory '01' which contains leading zeros", "m/01"),
    Case("version-directory", {**py(BATCHING), "m/docs/": ""}, {**py(BATCHING), "m/__pycache__/": ""}, "ignore version directory 'docs' which fails to convert to integral number", "m/docs"),
    Case("version-directory", {**py(BATCHING), "m/1.bak/": ""}, py(BATCHING), "counts as version 1", "m/1.bak"),
    Case("missing-version", py(SPECIFIC), {**py(SPECIFIC), "m/3/model.py": PY}, "version 3 is specified for model 'm', but the version directory is not present"),
    Case("model-file", {"m/config.pbtxt": BATCHING, "m/1/models.py": PY}, py(BATCHING), "Python model file not found in", fixed='default_model_filename: "models.py"'),
    Case("model-file", {"m/config.pbtxt": 'backend: "onnxruntime"\n' + ONNX_IO, "m/1/": ""}, onnx('backend: "onnxruntime"\n' + ONNX_IO), "(version 1 holds nothing)"),
    Case("model-fit", onnx('backend: "onnxruntime"\nmax_batch_size: 8\n' + change(ONNX_IO, '"x"', '"X1"')), onnx('backend: "onnxruntime"\nmax_batch_size: 8\n' + ONNX_IO), "unexpected inference input 'X1', allowed inputs are: x"),
    Case("model-fit", onnx('backend: "onnxruntime"\nmax_batch_size: 8\n' + change(ONNX_IO, 'name: "y"', 'name: "Y"')), onnx('backend: "onnxruntime"\nmax_batch_size: 8\n' + ONNX_IO), "Did you mean 'y'?", fixed='name: "y"'),
    Case("model-fit", {**onnx('backend: "onnxruntime"\n'), "m/1/model.onnx": "this is no model"}, onnx('backend: "onnxruntime"\n'), "model.onnx is no ONNX file", "m/1/model.onnx"),
    Case("label-file", onnx('backend: "onnxruntime"\nmax_batch_size: 8\n' + LABELS), {**onnx('backend: "onnxruntime"\nmax_batch_size: 8\n' + LABELS), "m/labels.txt": "a"}, "labels.txt: No such file or directory"),
    Case("label-file", {**onnx('backend: "onnxruntime"\nmax_batch_size: 8\n' + LABELS), "m/label.txt": "a"}, py(BATCHING), "Did you mean 'label.txt'?", fixed='label_filename: "label.txt"'),
    Case("duplicate-model", {"a/m/config.pbtxt": BATCHING, "a/m/1/model.py": PY, "b/m/config.pbtxt": BATCHING, "b/m/1/model.py": PY}, {"a/m/config.pbtxt": BATCHING, "a/m/1/model.py": PY, "b/n/config.pbtxt": BATCHING, "b/n/1/model.py": PY}, "model appears in two or more repositories", "a/m"),
]  # fmt: skip

FILE = change(WARM, "zero_data: true", 'input_data_file: "a"')
WARMUP = [
    Case("warmup-input", only(BATCHING + change(WARM, '"A"', '"AA"')), only(BATCHING + WARM), 'no input "AA"; did you mean "A"?', fixed='key: "A"'),
    Case("warmup-input", only(BATCHING + 'model_warmup { name: "w" batch_size: 1 }\n'), only(BATCHING + 'model_warmup { name: "w" batch_size: 0 }\n'), "expected 1 inputs but got 0 inputs for model 'm'. Got input(s) [], but missing required input(s) ['A']"),
    Case("warmup-data", only(BATCHING + change(WARM, "zero_data: true", "zero_data: false")), only(BATCHING + WARM), "does not switch it off", fixed="zero_data: true", severity="warning"),
    Case("warmup-data", only(BATCHING + change(WARM, "zero_data: true", "")), only(BATCHING + change(WARM, "zero_data", "random_data")), "warmup setting expects input 'A' to have input_data_type set"),
    Case("warmup-data", only(BATCHING + change(WARM, "[ 4 ]", "[ -1 ]")), only(BATCHING + WARM), "warmup setting expects all variable-size dimensions are specified for input 'A'"),
    Case("warmup-batch", only(BATCHING + change(WARM, "batch_size: 1", "batch_size: 9")), only(BATCHING + change(WARM, "batch_size: 1", "batch_size: 8")), "batch size 9 for 'm', max allowed is 8", fixed="batch_size: 8"),
    Case("warmup-batch", only('backend: "python"\n' + IO + change(WARM, "batch_size: 1", "batch_size: 256")), only('backend: "python"\n' + IO + WARM), "batch size 256 for 'm', max allowed is 0", fixed="batch_size: 1"),
    Case("warmup-file", only(BATCHING + FILE), {**py(BATCHING + FILE), "m/warmup/a": b"\0" * 16}, "No such file or directory"),
    Case("warmup-file", {**py(BATCHING + FILE), "m/warmup/a": b"\0" * 15}, py(BATCHING), "warmup setting expects 16 bytes, but the data provided from aonly has 15 bytes"),
    Case("warmup-shape", only(BATCHING + change(WARM, "TYPE_FP32", "TYPE_INT32")), only(BATCHING + WARM), "is TYPE_INT32, the model's is TYPE_FP32", fixed="data_type: TYPE_FP32 dims: [ 4 ] zero_data"),
    Case("warmup-shape", only(BATCHING + change(WARM, "[ 4 ]", "[ 1, 4 ]")), only(BATCHING + WARM), "leave the batch dimension out"),
    Case("duplicate-warmup", only(BATCHING + WARM + WARM), only(BATCHING + WARM + change(WARM, '"w"', '"v"')), "two warm-up samples are named 'w'", fixed='name: "w_2"'),
]  # fmt: skip

LEVELS = "dynamic_batching { priority_levels: 2 default_priority_level: 1 }\n"
ONE = change(BATCHING, "max_batch_size: 8", "max_batch_size: 1")
ZERO = change(BATCHING, "max_batch_size: 8\n", "")
AXIS = 'backend: "python"\nmax_batch_size: 8\n' + IO.replace("[ 4 ]", "[ -1, 4 ]")
ORT = 'backend: "onnxruntime"\nmax_batch_size: 8\n' + ONNX_IO


def batcher(inside: str, config: str = BATCHING) -> dict[str, str | bytes]:
    """A Python model with a dynamic batcher."""
    return py(f"{config}dynamic_batching {{ {inside} }}\n")


def policy(inside: str, delay: int = 0, more: str = "") -> dict[str, str | bytes]:
    """A Python model with a default queue policy."""
    return batcher(f"{more} max_queue_delay_microseconds: {delay} default_queue_policy {{ {inside} }}")


def resource(count: int, kind: str = "") -> str:
    """A model whose instance needs a resource."""
    return BATCHING + f'instance_group {{ rate_limiter {{ resources {{ name: "R" count: {count} {kind} }} }} }}\n'


BATCHING_CASES = [
    Case("batch-axis-twice", py(AXIS), py(change(AXIS, "[ -1, 4 ]", "[ 4 ]")), "the leading -1 is a second one", fixed="dims: [ 4 ]"),
    Case("batch-axis-in-dims", py(change(AXIS, "max_batch_size: 8\n", "")), py(ZERO), "max_batch_size is 0"),
    Case("delay-without-batching", batcher("max_queue_delay_microseconds: 5", ONE), batcher("max_queue_delay_microseconds: 5"), "no batch can form", fixed="dynamic_batching { }"),
    Case("batching-without-max", batcher("", ZERO), batcher(""), "max_batch_size is 0 (not set): dynamic_batching runs each request alone"),
    Case("preferred-without-delay", batcher("preferred_batch_size: [ 4 ]"), batcher("preferred_batch_size: [ 4 ] max_queue_delay_microseconds: 5"), "nothing waits for the preferred sizes 4"),
    Case("delay-above-goal", batcher("max_queue_delay_microseconds: 30000"), batcher("max_queue_delay_microseconds: 20000"), "may wait 30 ms for company, and the goal is 20 ms", options={"p99_ms": 20}),
    Case("delay-above-goal", py(BATCHING + "sequence_batching { oldest { max_candidate_sequences: 2 max_queue_delay_microseconds: 30000 } }\n"), batcher(""), "goal is 20 ms", options={"p99_ms": 20}),
    Case("delay-above-timeout", policy("default_timeout_microseconds: 100", 200), policy("default_timeout_microseconds: 300", 200), "refused after 100 µs, before the queue delay of 200 µs is over"),
    Case("delay-above-timeout", policy("timeout_action: DELAY default_timeout_microseconds: 100", 200), policy("timeout_action: DELAY default_timeout_microseconds: 300", 200), "moved behind all others"),
    Case("queue-below-preferred", policy("max_queue_size: 2", 5, "preferred_batch_size: [ 4 ]"), policy("max_queue_size: 4", 5, "preferred_batch_size: [ 4 ]"), "at most 2 requests wait, so the preferred size 4 cannot form"),
    Case("timeout-without-effect", policy("allow_timeout_override: true"), policy("allow_timeout_override: true default_timeout_microseconds: 9"), "allow_timeout_override has no effect"),
    Case("timeout-without-effect", policy("timeout_action: DELAY"), policy("timeout_action: DELAY default_timeout_microseconds: 9"), "timeout_action has no effect"),
    Case("priority-without-levels", batcher("priority_queue_policy { key: 1 }"), batcher("priority_levels: 1 default_priority_level: 1 priority_queue_policy { key: 1 }"), "ignored without priority_levels", fixed="dynamic_batching { }"),
    Case("default-policy-unused", policy("max_queue_size: 9", 0, "priority_levels: 1 default_priority_level: 1 priority_queue_policy { key: 1 }"), policy("max_queue_size: 9", 0, "priority_levels: 2 default_priority_level: 1 priority_queue_policy { key: 1 }"), "default_queue_policy is used by none"),
    Case("slot-utilization-without-delay", py(BATCHING + "sequence_batching { direct { minimum_slot_utilization: 0.5 } }\n"), py(BATCHING + "sequence_batching { direct { minimum_slot_utilization: 0.5 max_queue_delay_microseconds: 5 } }\n"), "has no effect"),
    Case("sequence-idle-short", py(BATCHING + "sequence_batching { max_sequence_idle_microseconds: 5000 }\n"), py(BATCHING + "sequence_batching { max_sequence_idle_microseconds: 5000000 }\n"), "comes more than 5 ms after the one before"),
    Case("instance-count", onnx(ORT + "instance_group { count: 0 kind: KIND_CPU }\n"), onnx(ORT + "instance_group { count: 1 kind: KIND_CPU }\n"), "is 2 instances on the CPU"),
    Case("instance-count", py(BATCHING + "instance_group { count: -3 }\n"), py(BATCHING + "instance_group { count: 3 }\n"), "count is -3: for one below 1 Triton takes its default, 1", severity="warning", fixed="count: 1"),
    Case("instance-count", py(BATCHING + "instance_group { count: 0 }\n"), py(BATCHING + "instance_group { }\n"), "count is 0: for one below 1 Triton takes its default, 1", severity="warning", fixed="count: 1"),
    Case("instance-count", onnx(ORT + "instance_group { count: -3 kind: KIND_CPU }\n"), onnx(ORT + "instance_group { count: 3 kind: KIND_CPU }\n"), "count is -3: for one below 1 Triton takes its default, 2", severity="warning", fixed="count: 2"),
    Case("instance-count", onnx(ORT + "instance_group { count: -3 }\n"), onnx(ORT + "instance_group { count: 3 }\n"), "1, or 2 on the CPU with this backend", severity="warning"),
    Case("instance-count", py(BATCHING + "instance_group { count: 3 kind: KIND_GPU gpus: [ 0, 1 ] }\n"), py(BATCHING + "instance_group { count: 3 kind: KIND_GPU gpus: [ 0 ] }\n"), "3 x 2 GPUs are 6 instances"),
    Case("instance-count", py(BATCHING + "instance_group { count: 5000 }\n"), py(BATCHING), "at most 1024 are made", severity="error"),
    Case("too-many-threads", onnx(ORT + 'instance_group { count: 4 }\nparameters { key: "intra_op_thread_count" value { string_value: "4" } }\n'), onnx(ORT + 'instance_group { count: 2 }\nparameters { key: "intra_op_thread_count" value { string_value: "4" } }\n'), "4 instances x 4 threads on 8 cores", options={"cores": 8}, fixed='string_value: "2"'),
    Case("too-many-threads", onnx(ORT + "instance_group { count: 2 }\n"), onnx(ORT + "instance_group { count: 1 }\n"), "each with a thread for every core", options={"cores": 8}, fixed='string_value: "4"'),
    Case("priority-not-everywhere", ensemble(TWO) | py(BATCHING) | py(BATCHING + LEVELS, "n"), ensemble(TWO) | py(BATCHING + LEVELS) | py(BATCHING + LEVELS, "n"), "priority sent to ensemble 'e', but step 'm' declares no priority_levels", "e/config.pbtxt"),
    Case("rate-limiter-resource", py(resource(1)) | py(resource(1, "global: true"), "n"), py(resource(1)) | py(resource(1), "n"), 'Resource "R" is present as both global and device-specific resource in the model configuration. (the other way in \'m\')', "n/config.pbtxt"),
    Case("rate-limiter-resource", py(resource(4)), py(resource(3)), 'Resource count for "R" is limited to 3', options={"rate_limit_resources": ["R:3"]}),
    Case("ensemble-not-checked", ensemble(TWO) | py('backend: "python"\nmax_batch_size: 8\n') | py(BATCHING, "n"), ensemble(TWO) | PAIR, "are not in its config.pbtxt", "e/config.pbtxt"),
]  # fmt: skip

IMAGE = 'backend: "python"\nmax_batch_size: 8\n' + IO.replace(
    'input { name: "A" data_type: TYPE_FP32 dims: [ 4 ] }',
    'input { name: "A" format: FORMAT_NCHW data_type: TYPE_FP32 dims: [ 224, 224, 3 ] }',
)
TRT = 'backend: "tensorrt"\n' + IO
OV = 'backend: "openvino"\nmax_batch_size: 8\n' + IO


def ov(config: str) -> dict[str, str | bytes]:
    """A model of OpenVINO, whose file is not looked into."""
    return {"m/config.pbtxt": config, "m/1/model.xml": "<net/>"}


MEANING = [
    Case("duplicate-map-key", py(BATCHING + 'metric_tags { key: "a" } metric_tags { key: "a" }\n'), py(BATCHING + 'metric_tags { key: "a" } metric_tags { key: "b" }\n'), 'the key "a" twice'),
    Case("empty-map-key", py(BATCHING + "metric_tags: {}\n"), py(BATCHING + "metric_tags: []\n"), "an entry of 'metric_tags' with an empty key", fixed=BATCHING),
    Case("redundant-platform", onnx('platform: "onnxruntime_onnx"\n' + ORT), onnx(ORT), "no other platform than 'onnxruntime_onnx'"),
    Case("reshape-without-effect", py(change(BATCHING, "[ 4 ] }\noutput", "[ 4 ] reshape { shape: [ 4 ] } }\noutput")), py(BATCHING), "is its dims [4]", fixed=BATCHING),
    Case("dims-for-format", py(IMAGE), py(change(IMAGE, "[ 224, 224, 3 ]", "[ 3, 224, 224 ]")), "look like FORMAT_NHWC"),
    Case("accelerator-for-tensorrt", {"m/config.pbtxt": TRT + 'optimization { execution_accelerators { gpu_execution_accelerator { name: "tensorrt" } } }\n', "m/1/model.plan": ""}, onnx(ORT + 'optimization { execution_accelerators { gpu_execution_accelerator { name: "tensorrt" } } }\n'), "does nothing in a TensorRT model", fixed="execution_accelerators { }"),
    Case("fixed-batch", ov(OV), ov(OV + 'parameters { key: "ENABLE_BATCH_PADDING" value { string_value: "yes" } }\n'), "takes batches of exactly 8 rows", fixed='key: "ENABLE_BATCH_PADDING"'),
    Case("fixed-batch", ov(OV + 'parameters { key: "ENABLE_BATCH_PADDING" value { string_value: "no" } }\n'), ov(change(OV, "max_batch_size: 8", "max_batch_size: 1")), "takes batches of exactly 8 rows", fixed='string_value: "YES"'),
    Case("unknown-parameter", onnx(ORT + 'parameters { key: "INTRA_OP_THREAD_COUNT" value { string_value: "1" } }\n'), onnx(ORT + 'parameters { key: "max_length" value { string_value: "1" } }\n'), "Did you mean 'intra_op_thread_count'?", fixed='key: "intra_op_thread_count"'),
    Case("ignored-setting", py(BATCHING + "optimization { eager_batching: true }\n"), {"m/config.pbtxt": TRT + "optimization { eager_batching: true }\n", "m/1/model.plan": ""}, "TensorRT backend only", fixed="optimization { }"),
]  # fmt: skip

CASES = [*SYNTAX, *REFUSED, *DIRECTORY, *WARMUP, *BATCHING_CASES, *MEANING]
