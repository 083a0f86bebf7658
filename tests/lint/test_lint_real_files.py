"""The linter on files that people really use, on the sample models, and on a repository of hundreds."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest
from lint_cases import BATCHING, PY, step, write

import workbench as wb
from workbench.config import LintContext, lint_config

TENSORFLOW = {"release"}
EXPECTED: dict[str, set[str]] = {
    "10_tts_decoder_warmup": {"duplicate-warmup", "batch-axis-in-dims"},
    "11_dlis7059_full_json": {"release", "empty-map-key", "priority-without-levels"},
    "20_tf_savedmodel_14in": TENSORFLOW,
    "23_proxy_no_output": {"redundant-platform"},
    "28_facehugger_colon_lists": {"batch-axis-in-dims"},
    "34_deepstream_frcnn_tf": TENSORFLOW | {"reshape-without-effect"},
    "35_deepstream_centerface": {"batch-axis-in-dims"},
    "37_craft_numeric_names": {"batch-axis-twice"},
    "46_kserve_bert_tf": TENSORFLOW,
    "49_sherpa_zipformer_tmpl": {"template-placeholder"},
    "50_wenet_hash_dtype_tmpl": {"template-placeholder"},
    "52_cosyvoice_trtllm_tmpl": {"template-placeholder"},
    "53_psytech_env_tmpl": {"template-placeholder"},
    "55_facile_huge_batch": TENSORFLOW,
    "56_particlenet_pt_labels": {"preferred-without-delay"},
    "58_dali_partial_auto": {"io-incomplete"},
    "62_openvino_savedmodel": {"batch-axis-in-dims"},
    "67_core_runtime_escape": {"runtime-path"},
    "71_stateful_corrid_string": {"unknown-backend"},
    "76_dlex_kaldi_decoupled": {"unknown-backend"},
    "79_dlex_custom_platform": {"legacy-platform"},
    "83_type_bytes_mistake": {"unknown-enum"},
    "s05_trailing_comma_scalar_list": {"trailing-comma"},
    "s08_bool_forms": {"response-cache"},
    "s10_unknown_field": {"unknown-field"},
    "s11_bom": {"byte-order-mark"},
    "s13_float_for_int": {"number-form"},
    "s14_quoted_int": {"number-form"},
    "s16_two_schedulers": {"two-schedulers"},
    "s17_unquoted_name": {"unquoted-string"},
    "s23_empty_list": {"io-incomplete"},
    "s25_smart_quotes": {"smart-quotes"},
    "s26_yaml_style": {"yaml-style"},
    "s28_cpp_comment": {"cpp-comment"},
    "s29_newline_in_string": {"parse-error", "unknown-field"},
}
"""The rules that speak about each file of the collections; a file that is not here is clean."""


def collections(shared: Path) -> list[Path]:
    return sorted((shared / "cases").glob("configs*/*.pbtxt"))


def test_every_collected_file_gets_exactly_its_rules(shared: Path) -> None:
    files = collections(shared)
    assert set(EXPECTED) <= {path.stem for path in files}
    for path in files:
        found = {finding.rule for finding in lint_config(path.read_bytes())}
        assert found == EXPECTED.get(path.stem, set()), path.name


IN_A_DIRECTORY = {
    # file, directory, what is beside it, the rules
    "01_koina_3dmolms_pre": ("3dmolms_preprocess", "1/model.py", set()),
    "05_ocrtrt_ensemble": ("ensemble_model", "1/", {"name-not-directory", "ensemble-dependency"}),
    "08_boboy_empty": ("post_classification", "1/", {"no-backend"}),
    "13_issue_det_ort_trt": ("detection", "1/model.onnx", {"name-not-directory", "model-fit"}),
    "43_yolov8_ens_stray_commas": ("yolov8_ensemble", "1/", {"ensemble-dependency"}),
    "59_dali_specific_versions": ("dali_specific", "2/model.dali", {"missing-version"}),
    "65_core_repo_agents": ("chain_relocation", "1/", {"no-backend"}),
    "67_core_runtime_escape": ("runtime_escape", "1/", {"runtime-path"}),
    "68_core_ens_delay_brace": ("ensemble_delay", "1/", {"ensemble-dependency"}),
    "82_yolonas_two_lines": ("yolonasint8", "1/model.engine", {"model-file"}),
    "86_ner_three_instances": ("transformer", "1/", {"model-file"}),
}


@pytest.mark.parametrize("name", IN_A_DIRECTORY)
def test_what_only_the_directory_tells(shared: Path, tmp_path: Path, name: str) -> None:
    directory, beside, rules = IN_A_DIRECTORY[name]
    data = (shared / "cases" / "configs" / f"{name}.pbtxt").read_bytes()
    write(tmp_path, {f"{directory}/config.pbtxt": data, f"{directory}/{beside}": "" if beside.endswith("/") else PY})
    found = {finding.rule for report in wb.lint(tmp_path) for finding in report.findings}
    assert found - {each for each in found if each.startswith("python")} == rules


def test_the_sample_models_are_clean(sample_repository: Path) -> None:
    report = wb.lint(sample_repository, cores=4, p99_ms=50)
    assert [str(finding) for file in report for finding in file.findings] == []
    assert report.ok


def test_the_committed_models_are_clean() -> None:
    root = Path(__file__).parents[2] / "model_repository"
    for path in sorted(root.glob("*/config.pbtxt")):
        context = LintContext(directory_name=path.parent.name)
        assert [str(each) for each in lint_config(path.read_bytes(), context=context)] == [], path


def test_a_repository_of_hundreds_takes_seconds(shared: Path, tmp_path: Path) -> None:
    """Half of the models are ensembles that share preprocessing, as in the largest public repository."""
    texts = [path.read_bytes() for path in sorted((shared / "cases" / "configs").glob("*koina*.pbtxt"))]
    assert texts
    for index in range(500):
        name = f"model_{index:03}"
        if index % 2:
            text = re.sub(rb"(?m)^name ?:.*\n", b"", texts[index % len(texts)])
            write(tmp_path, {f"{name}/config.pbtxt": text, f"{name}/1/model.py": PY})
        elif index % 4:
            steps = step("model_000", "A=A", "B=t") + step(f"model_{index - 2:03}", "A=t", "B=B")
            text_of = BATCHING.replace('backend: "python"', 'platform: "ensemble"')
            write(tmp_path, {f"{name}/config.pbtxt": f"{text_of}ensemble_scheduling {{\n{steps}}}\n", f"{name}/1/": ""})
        else:
            write(tmp_path, {f"{name}/config.pbtxt": BATCHING, f"{name}/1/model.py": PY})
    started = time.process_time()
    report = wb.lint(tmp_path)
    took = time.process_time() - started
    assert sum(file.path.name == "config.pbtxt" for file in report) == 500
    assert took < 15, f"{took:.1f} s of one core"
