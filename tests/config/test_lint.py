# ruff: noqa: E501 (tables of texts that are one line in Triton, too)
from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workbench.config import RULES, ConfigDocument, LintContext, apply_fixes, fix_all, lint_config, to_json
from workbench.config.schema import root
from workbench.errors import ConfigError

IO = 'input { name: "A" data_type: TYPE_FP32 dims: [ 4 ] } output { name: "B" data_type: TYPE_FP32 dims: [ 4 ] }\n'


def rules(text: str | bytes, **options: Any) -> list[str]:
    data = text.encode() if isinstance(text, str) else text
    return [finding.rule for finding in lint_config(data, context=LintContext(**options))]


def fixed(text: str, **options: Any) -> str:
    return fix_all(text.encode(), context=LintContext(**options))[0].decode()


def test_every_parser_error_is_a_finding_at_its_place(refused_case: Any) -> None:
    findings = lint_config(refused_case.data)
    for error in refused_case.errors:
        line, column, message = error.split(":", 2)
        assert any(
            (each.line, each.column, each.severity) == (int(line), int(column), "error")
            and each.message.startswith(message.strip())
            for each in findings
        ), error


def test_every_refusal_of_triton_is_a_finding(error_case: Any) -> None:
    data = error_case.data
    if error_case.group == "noautofill_platform":
        data = re.sub(rb"(?m)^platform:.*$", b"", data) + b'\nplatform: "onnxruntime_onnx"\n'
    if error_case.group == "model_metrics":
        data += b'\nbackend: "python"\n'
    findings = lint_config(data)
    patterns = [pattern.split(". GPUs with")[0] for pattern in error_case.patterns]
    assert any(re.search(pattern, each.message) for pattern in patterns for each in findings), findings


def test_real_files_get_no_error_that_triton_would_not_give(parsed_case: Any) -> None:
    errors = [each for each in lint_config(parsed_case.data, triton_release="25.02") if each.severity == "error"]
    assert [each.rule for each in errors] in ([], ["legacy-platform"]) or "escapes backend" in errors[0].message


def test_fixes_lead_to_a_file_that_parses_and_is_stable(parsed_case: Any) -> None:
    data, left = fix_all(parsed_case.data, context=LintContext(cores=2))
    ConfigDocument.parse(data)
    assert [each.to_json() for each in lint_config(data, context=LintContext(cores=2))] == [
        each.to_json() for each in left
    ]
    assert apply_fixes(data, left) == data


@pytest.mark.parametrize(
    ("name", "rule", "says"),
    [
        ("49_sherpa_zipformer_tmpl.pbtxt", "template-placeholder", "unfilled placeholder MAX_BATCH"),
        ("50_wenet_hash_dtype_tmpl.pbtxt", "template-placeholder", "TYPE_#DTYPE"),
        ("52_cosyvoice_trtllm_tmpl.pbtxt", "template-placeholder", "${triton_max_batch_size}"),
        ("53_psytech_env_tmpl.pbtxt", "template-placeholder", "$MAX_BATCH_SIZE"),
        ("83_type_bytes_mistake.pbtxt", "unknown-enum", "TYPE_STRING"),
        ("79_dlex_custom_platform.pbtxt", "legacy-platform", "'custom'"),
        ("10_tts_decoder_warmup.pbtxt", "duplicate-warmup", "decoder"),
        ("37_craft_numeric_names.pbtxt", "batch-axis-twice", "batch axis"),
        ("20_tf_savedmodel_14in.pbtxt", "release", "25.02"),
    ],
)
def test_known_files(shared: Any, name: str, rule: str, says: str) -> None:
    findings = lint_config((shared / "cases" / "configs" / name).read_bytes())
    assert any(each.rule == rule and says in each.message for each in findings), findings
    assert all(each.line > 0 and each.column > 0 for each in findings)


@pytest.mark.parametrize(
    ("text", "rule", "after"),
    [
        ("\ufeffname: 'm'\n", "byte-order-mark", "name: 'm'\n"),
        ("name: “m”\nbackend: “b”\n", "smart-quotes", 'name: "m"\nbackend: "b"\n'),
        ("// c\nname: 'm' // d\n", "cpp-comment", "# c\nname: 'm' # d\n"),
        ("name: my_model\n", "unquoted-string", 'name: "my_model"\n'),
        ("name: 'm'\nmax_batch_size: 8.0\n", "number-form", "name: 'm'\nmax_batch_size: 8\n"),
        ("name: 'm'\nmax_batch_size: '8'\n", "number-form", "name: 'm'\nmax_batch_size: 8\n"),
        ("max_batchsize: 8\n", "unknown-field", "max_batch_size: 8\n"),
        ("maxBatchSize: 8\n", "unknown-field", "max_batch_size: 8\n"),
        ("input { data_type: FP32 }\n", "unknown-enum", "input { data_type: TYPE_FP32 }\n"),
        ("input { data_type: TYPE_BYTES }\n", "unknown-enum", "input { data_type: TYPE_STRING }\n"),
        ("instance_group { kind: GPU }\n", "unknown-enum", "instance_group { kind: KIND_GPU }\n"),
        ("input { dims: [ 1, 2, ] }\n", "trailing-comma", "input { dims: [ 1, 2 ] }\n"),
    ],
)
def test_textual_fixes(text: str, rule: str, after: str) -> None:
    assert rule in rules(text)
    assert fixed(text) == after


def test_several_mistakes_are_found_at_once_and_all_fixed() -> None:
    text = "name: my_model\nmax_batchsize: 8\ninput {\n  name: 'A'\n  data_type: TYPE_BYTES\n  dims: [ 1 ]\n}\ndynamic_batching { preferred_batch_size: 16 }\n"
    findings = lint_config(text.encode())
    assert {each.rule for each in findings} >= {"unquoted-string", "unknown-field", "unknown-enum"}
    data, left = fix_all(text.encode())
    assert [each for each in left if each.severity == "error"] == []
    assert ConfigDocument.parse(data).message.input[0].data_type == 13


def test_yaml_becomes_a_config() -> None:
    yaml = "name: m\nbackend: python\nmax_batch_size: 8\ninput:\n  - name: A\n    data_type: TYPE_FP32\n    dims: [4]\ndynamic_batching:\n  max_queue_delay_microseconds: 100\n"
    assert rules(yaml) == ["yaml-style"]
    config = to_json(ConfigDocument.parse(fixed(yaml).encode()).message, defaults=False)
    assert config == {
        "name": "m",
        "backend": "python",
        "max_batch_size": 8,
        "input": [{"name": "A", "data_type": "TYPE_FP32", "dims": [4]}],
        "dynamic_batching": {"max_queue_delay_microseconds": 100},
    }


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("dynamic_batching { max_batch_size: 8 }", "the top level"),
        ("dynamic_batching { default_queue_policy { minimum_slot_utilization: 0.5 } }", "sequence_batching.direct"),
        ("max_queue_delay_microseconds: 8", "dynamic_batching"),
    ],
)
def test_misplaced_fields_are_sent_home(text: str, where: str) -> None:
    (finding,) = lint_config(text.encode())
    assert finding.rule == "misplaced-field"
    assert where in finding.message


PLAIN = 'name: "m" backend: "python" '


@pytest.mark.parametrize(
    ("text", "options", "rule", "after"),
    [
        (PLAIN + IO, {"directory_name": "other"}, "name-not-directory", PLAIN.replace('"m"', '"other"') + IO),
        (PLAIN + IO, {"directory_name": "m"}, None, None),
        (PLAIN + IO + "max_batch_size: 4\ndynamic_batching { preferred_batch_size: [ 2, 8 ] }\n", {}, "preferred-above-max", PLAIN + IO + "max_batch_size: 4\ndynamic_batching { preferred_batch_size: [ 2 ] }\n"),
        (PLAIN + IO + "max_batch_size: 1\ndynamic_batching { max_queue_delay_microseconds: 9 }\n", {}, "delay-without-batching", PLAIN + IO + "max_batch_size: 1\ndynamic_batching { }\n"),
        (PLAIN + IO + "max_batch_size: 2\ndynamic_batching { max_queue_delay_microseconds: 9 }\n", {}, None, None),
        (PLAIN + IO + "dynamic_batching { priority_levels: 2 default_priority_level: 1 priority_queue_policy { key: 0 } }\n", {}, "priority-level", PLAIN + IO + "dynamic_batching { priority_levels: 2 default_priority_level: 1 priority_queue_policy { key: 1 } }\n"),
        (PLAIN + IO + "dynamic_batching { priority_levels: 2 default_priority_level: 1 priority_queue_policy { key: 3 } }\n", {}, "priority-level", PLAIN + IO + "dynamic_batching { priority_levels: 2 default_priority_level: 1 }\n"),
        (PLAIN + IO + 'instance_group { count: 4 }\nparameters { key: "intra_op_thread_count" value { string_value: "8" } }\n', {"cores": 8}, "too-many-threads", PLAIN + IO + 'instance_group { count: 4 }\nparameters { key: "intra_op_thread_count" value { string_value: "2" } }\n'),
        (PLAIN + IO + 'instance_group { count: 4 }\nparameters { key: "intra_op_thread_count" value { string_value: "2" } }\n', {"cores": 8}, None, None),
        (PLAIN + IO + 'parameters { key: "a" } parameters { key: "a" }\n', {}, "duplicate-map-key", None),
        ('name: "e" platform: "ensemble" ensemble_scheduling { step { model_name: "m" input_map { key: "a" value: "x" } input_map { key: "a" value: "y" } } }', {}, "duplicate-map-key", None),
        ('name: "m" backend: "tensorrt" platform: "tensorrt_plan"\n' + IO + 'optimization { execution_accelerators { gpu_execution_accelerator { name: "tensorrt" } } }\n', {}, "accelerator-for-tensorrt", 'name: "m" backend: "tensorrt" platform: "tensorrt_plan"\n' + IO + "optimization { execution_accelerators { } }\n"),
        (PLAIN + IO + "max_batch_size: 4\nresponse_cache { enable: true }\nsequence_batching { }\n", {}, "response-cache", PLAIN + IO + "max_batch_size: 4\nresponse_cache { enable: false }\nsequence_batching { }\n"),
        ('name: "m" backend: "tensorflow"\n' + IO, {}, "release", None),
        ('name: "m" backend: "tensorflow"\n' + IO, {"triton_release": "24.10"}, None, None),
        ('name: "${NAME}" backend: "python"\n' + IO, {}, "template-placeholder", None),
        (PLAIN + IO + "optimization { eager_batching: true }\n", {}, "ignored-setting", PLAIN + IO + "optimization { }\n"),
    ],
)  # fmt: skip
def test_rules_about_meaning(text: str, options: dict[str, Any], rule: str | None, after: str | None) -> None:
    found = rules(text, **options)
    if rule is None:
        assert found == []
        return
    assert rule in found
    if after is not None:
        assert fixed(text, **options) == after
        assert rule not in rules(after, **options)


def test_inflight_limit_needs_a_newer_release() -> None:
    text = 'name: "e" platform: "ensemble" ensemble_scheduling { max_inflight_requests: 4 step { model_name: "m" input_map { key: "a" value: "x" } output_map { key: "b" value: "y" } } } input { name: "x" data_type: TYPE_FP32 dims: 1 } output { name: "y" data_type: TYPE_FP32 dims: 1 }'
    assert rules(text, triton_release="25.03") == ["release"]
    assert rules(text, triton_release="25.12") == []
    assert "max_inflight_requests" not in fixed(text, triton_release="25.03")


def test_findings_as_json_are_what_the_command_prints() -> None:
    (finding,) = lint_config(b"max_batchsize: 8")
    shown = json.loads(json.dumps(finding.to_json()))
    assert shown["rule"] == "unknown-field"
    assert (shown["line"], shown["column"], shown["severity"]) == (1, 14, "error")
    assert shown["fix"]["title"] == "Write max_batch_size"
    (finding,) = lint_config(
        (PLAIN + IO + "max_batch_size: 1 dynamic_batching { max_queue_delay_microseconds: 5 }").encode()
    )
    assert finding.to_json()["fix"]["edits"] == [
        {"path": "dynamic_batching.max_queue_delay_microseconds", "op": "remove"}
    ]


def test_every_rule_that_is_reported_is_explained() -> None:
    from pathlib import Path

    import workbench.config as room

    sources = "".join(path.read_text() for path in Path(room.__file__).parent.glob("lint*.py"))
    used = set(re.findall(r'"([a-z0-9]+(?:-[a-z0-9]+)+)"', sources)) - {"utf-8", "config-pbtxt"}
    assert used <= set(RULES)
    assert all(len(rule.explanation) > 20 for rule in RULES.values())


@given(st.binary(max_size=120))
@settings(max_examples=150, deadline=None)
def test_lint_never_raises_and_fixes_never_break_a_file(data: bytes) -> None:
    mended, _ = fix_all(data)
    try:
        ConfigDocument.parse(data)
    except ConfigError:
        return
    ConfigDocument.parse(mended)


LEVELS = """dynamic_batching {
  priority_levels: 3
  default_priority_level: 1
  priority_queue_policy {
    key: 0  # urgent
    value {
      default_timeout_microseconds: 5000
      minimum_slot_utilization: 0.95
    }
  }
  priority_queue_policy { key: 2 value { default_timeout_microseconds: 20000 } }
}
"""


def test_levels_counted_from_zero_and_a_setting_of_another_scheduler() -> None:
    assert fixed(LEVELS) == (
        LEVELS.replace("      minimum_slot_utilization: 0.95\n", "")
        .replace("key: 2", "key: 3")
        .replace("key: 0", "key: 1")
    )


@pytest.mark.parametrize(
    ("text", "after"),
    [
        (
            "dynamic_batching {\n  # sizes\n  max_batch_size: 8\n  preferred_batch_size: [4, 8]\n}\n",
            "max_batch_size: 8\ndynamic_batching {\n  # sizes\n  preferred_batch_size: [4, 8]\n}\n",
        ),
        (
            "max_batch_size: 8\ndynamic_batching {\n  max_batch_size: 8\n}\n",
            "max_batch_size: 8\ndynamic_batching {\n}\n",
        ),
        (
            "max_queue_delay_microseconds: 9\nmax_batch_size: 4\n",
            "max_batch_size: 4\ndynamic_batching {\n  max_queue_delay_microseconds: 9\n}\n",
        ),
    ],
)
def test_misplaced_fields_move_home(text: str, after: str) -> None:
    assert fixed(text) == after


@pytest.mark.parametrize(
    ("text", "after"),
    [
        (
            'platform: "ensemble"\nensemble_scheduling { step {\n  input_map {\n    key: "a"\n    value: "x"\n    key: "b"\n    value: "y"\n  }\n} }\n',
            'platform: "ensemble"\nensemble_scheduling { step {\n  input_map {\n    key: "a"\n    value: "x"\n  }\n  input_map {\n    key: "b"\n    value: "y"\n  }\n} }\n',
        ),
        (
            'metric_tags { key: "a" value: "x" key: "b" value: "y" key: "c" value: "z" }\n',
            'metric_tags { key: "a" value: "x" } metric_tags { key: "b" value: "y" } metric_tags { key: "c" value: "z" }\n',
        ),
        ('metric_tags [ { key: "a" key: "b" } ]\n', 'metric_tags [ { key: "a" }, { key: "b" } ]\n'),
    ],
)
def test_two_keys_in_one_entry_become_two_entries(text: str, after: str) -> None:
    assert "two-keys" in rules(text)
    assert fixed(text) == after


def snippets(text: str) -> list[str]:
    """The configurations in a running text: lines that begin with a top-level field, to the end of its block."""
    begins = re.compile(rf"^ *(?:{'|'.join(root().fields)})\s*[:\[{{]")
    found: list[list[str]] = []
    depth, inside = 0, False
    for line in text.split("\n"):
        bare = re.sub(r"#.*", "", re.sub(r'"[^"]*"', '""', line.strip()))
        if depth == 0:
            belongs = not bare or bool(begins.match(line)) or bare[0] in "[]{}"
            if not inside and begins.match(line):
                found.append([])
            inside = bool(begins.match(line)) or (inside and belongs)
        if inside:
            found[-1].append(line)
            depth += len(re.findall(r"[\[{]", bare)) - len(re.findall(r"[\]}]", bare))
    return ["\n".join(lines) + "\n" for lines in found if any("{" in line for line in lines)]


def test_configurations_of_the_founding_texts_work_or_are_explained_and_fixed(shared: Any) -> None:
    found = [each for path in sorted((shared / "seeds").glob("*.txt")) for each in snippets(path.read_text())]
    assert len(found) >= 14
    for text in found:
        findings = lint_config(text.encode())
        assert all(each.fix is not None for each in findings if each.severity == "error"), text
        data, left = fix_all(text.encode())
        ConfigDocument.parse(data)
        assert [each for each in left if each.severity == "error"] == [], text
