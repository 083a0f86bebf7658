"""The public verbs do the same in every place."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import workbench as wb
from workbench.config import Edit
from workbench.errors import ConfigError, InvalidRequest, NotFound, NotReady, TimedOut, Unsupported, WorkbenchError
from workbench.session.remote import TritonServer, WorkbenchServer
from workbench.session.results import ConfigureResult, SaveResult
from workbench.session.server import Server

DELAY = "dynamic_batching.max_queue_delay_microseconds"
ROW = [[1.0, 2.0, 3.0, 4.0]]


def delay_of(server: Server) -> int:
    return int(server.model_config("double")["dynamic_batching"]["max_queue_delay_microseconds"])


def file_of(server: Server) -> Path:
    return server.repository_paths[0] / "double" / "config.pbtxt"


# -- models and inference ---------------------------------------------------------------------------------------------


def test_models_are_listed_with_state_and_reason(server: Server) -> None:
    models = server.models()
    assert models.names == ["broken", "double", "spare"]
    assert models["double"].ready
    assert models["double"].instances == models["double"].healthy == 1
    assert (models["double"].backend, models["double"].max_batch_size) == ("onnxruntime", 8)
    assert not models["broken"].ready
    assert "many" in models["broken"].reason
    assert "many" in repr(server)
    with pytest.raises(WorkbenchError) as caught:
        server.config("broken")
    assert "many" in caught.value.hint
    assert list(models.to_frame()["name"]) == models.names
    with pytest.raises(KeyError, match="there are broken, double, spare"):
        models["triple"]


@pytest.mark.parametrize(
    "x",
    [
        pytest.param(np.array(ROW, np.float32), id="array"),
        pytest.param(ROW, id="list, made the declared datatype"),
        pytest.param([[1, 2, 3, 4]], id="integers"),
        pytest.param(np.array(ROW, np.float32)[:, ::-1][:, ::-1], id="a view"),
    ],
)
def test_infer(anywhere: Server, x: Any) -> None:
    result = anywhere.infer("double", {"x": x}, id="mine", outputs=["y"])
    np.testing.assert_array_equal(result["y"], [[2, 4, 6, 8]])
    assert result["y"].dtype == np.float32
    assert (result.id, result.model_version, list(result)) == ("mine", 1, ["y"])
    assert "y       FP32      [1, 4]  [2, 4, 6, 8]" in repr(result)
    with pytest.raises(KeyError, match="the model gave 'y'"):
        result["z"]


@pytest.mark.parametrize(
    ("model", "inputs", "kind", "text", "hint"),
    [
        pytest.param(
            "doubel", {"x": ROW}, NotFound, "unknown model: 'doubel'", "did you mean 'double'? there are", id="model"
        ),
        pytest.param("broken", {"x": ROW}, NotFound, "unknown model: 'broken'", "'broken' ", id="not loaded"),
        pytest.param(
            "double",
            {"z": ROW},
            InvalidRequest,
            "unexpected inference input 'z'",
            "inputs of 'double' are x FP32 [-1, 4]",
            id="name",
        ),
        pytest.param(
            "double",
            {},
            InvalidRequest,
            "expected 1 inputs but got 0",
            "inputs of 'double' are x FP32 [-1, 4]",
            id="none",
        ),
        pytest.param(
            "double",
            {"x": [1, 2, 3, 4]},
            InvalidRequest,
            "Expected [-1,4], got [4]",
            "send array[None], of shape [1, 4]",
            id="one row",
        ),
        pytest.param(
            "double",
            {"x": list(range(8))},
            InvalidRequest,
            "Expected [-1,4], got [8]",
            "the elements of 2 rows: array.reshape([2, 4])",
            id="flat rows",
        ),
        pytest.param("double", {"x": 1.0}, InvalidRequest, "has no shape", "the full shape is [-1, 4]", id="scalar"),
        pytest.param(
            "double",
            {"x": [[1, 2]]},
            InvalidRequest,
            "Expected [-1,4], got [1,2]",
            "the full shape is [-1, 4], the batch dimension (1 to 8 rows)",
            id="shape",
        ),
        pytest.param(
            "double",
            {"x": np.ones((1, 4))},
            InvalidRequest,
            "data-type is 'FP64', but model 'double' expects 'FP32'",
            "astype(numpy.float32)",
            id="dtype",
        ),
        pytest.param(
            "double",
            {"x": np.ones((9, 4), np.float32)},
            InvalidRequest,
            "batch-size must be <= 8",
            "max_batch_size=...",
            id="rows",
        ),
        pytest.param("double", {"x": "no number"}, InvalidRequest, "cannot be made FP32", "", id="value"),
        pytest.param("double", [ROW], InvalidRequest, "must be a mapping", "{'INPUT': array}", id="no mapping"),
    ],
)
def test_a_wrong_request_gets_tritons_text_and_says_what_to_do(
    anywhere: Server, model: str, inputs: Any, kind: type[WorkbenchError], text: str, hint: str
) -> None:
    with pytest.raises(kind) as caught:
        anywhere.infer(model, inputs)
    assert text in caught.value.message
    assert hint in caught.value.hint
    assert anywhere.infer("double", {"x": ROW})["y"].shape == (1, 4)


def test_an_unknown_version_is_answered_with_those_that_there_are(anywhere: Server) -> None:
    with pytest.raises(NotFound, match="'double' version 7 is not found") as caught:
        anywhere.infer("double", {"x": ROW}, version=7)
    assert caught.value.hint == "'double' serves version 1"


SLOW = """
import time
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        time.sleep(0.4)
        return [pb_utils.InferenceResponse([pb_utils.get_input_tensor_by_name(r, "x")]) for r in requests]
"""


@pytest.mark.parametrize("place", ["process", "kernel", "remote"])
def test_an_answer_that_does_not_come_in_time_is_the_same_error_everywhere(
    tmp_path: Path, place: str, closing: Callable[[Server], Server]
) -> None:
    directory = tmp_path / "slow" / "1"
    directory.mkdir(parents=True)
    (directory / "model.py").write_text(SLOW)
    (directory.parent / "config.pbtxt").write_text(
        'backend: "python"\nmax_batch_size: 4\ninput [ { name: "x" data_type: TYPE_FP32 dims: [ 4 ] } ]\n'
        'output [ { name: "x" data_type: TYPE_FP32 dims: [ 4 ] } ]\ninstance_group [ { kind: KIND_CPU } ]\n'
    )
    server = closing(wb.Engine(tmp_path) if place == "kernel" else wb.serve(tmp_path))
    if place == "remote":
        server = closing(wb.connect(server.url))
    with pytest.raises(TimedOut, match=r"no answer from model 'slow' within 0.1 s"):
        server.infer("slow", {"x": ROW}, timeout_s=0.1)
    assert server.infer("slow", {"x": ROW}).id == ""


@pytest.mark.parametrize("verb", ["config", "model_config", "model_metadata", "statistics", "load"])
def test_an_unknown_model_is_answered_with_the_models_that_there_are(anywhere: Server, verb: str) -> None:
    with pytest.raises(WorkbenchError) as caught:
        getattr(anywhere, verb)("nope")
    assert "there are broken, double, spare" in caught.value.hint


def test_unload_and_load(server: Server) -> None:
    server.unload("spare")
    with pytest.raises((NotFound, NotReady)) as caught:
        server.infer("spare", {"x": ROW})
    assert "load('spare')" in caught.value.hint
    assert not server.is_model_ready("spare")
    server.load("spare")
    assert server.is_model_ready("spare")
    assert server.infer("spare", {"x": ROW})["y"].shape == (1, 4)


def test_load_with_another_configuration(server: Server) -> None:
    before = server.model_config("spare")
    server.load("spare", config={**before, "max_batch_size": 3, "dynamic_batching": {}})
    assert server.model_config("spare")["max_batch_size"] == 3
    server.load("spare", config=before)
    assert server.model_config("spare") == before


# -- configuration ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("edits", "fields", "config"),
    [
        pytest.param([f"{DELAY}=700"], {}, {"delay": 700}, id="text"),
        pytest.param([{"path": DELAY, "op": "set", "value": 701}], {}, {"delay": 701}, id="mapping"),
        pytest.param([Edit(DELAY, "set", 702)], {}, {"delay": 702}, id="Edit"),
        pytest.param([], {"dynamic_batching__max_queue_delay_microseconds": 703}, {"delay": 703}, id="keyword"),
        pytest.param([f"{DELAY}=704"], {"max_batch_size": 5}, {"delay": 704, "rows": 5}, id="several at once"),
        pytest.param([], {"dynamic_batching": None}, {}, id="None removes"),
    ],
)
def test_configure_takes_edits_in_every_form(
    server: Server, edits: list[Any], fields: dict[str, Any], config: dict[str, int]
) -> None:
    before = file_of(server).read_bytes()
    epoch = server.config("double").epoch
    result = server.configure("double", *edits, **fields)
    assert type(result) is ConfigureResult
    assert (result.epoch, result.dirty) == (epoch + 1, True)
    now = server.model_config("double")
    if "delay" in config:
        assert now["dynamic_batching"]["max_queue_delay_microseconds"] == config["delay"]
        assert result.change_class == "live"
    else:
        assert not now.get("dynamic_batching")
    assert now["max_batch_size"] == config.get("rows", 8)
    assert result.config == now
    assert file_of(server).read_bytes() == before
    view = server.config("double")
    assert (view.epoch, view.dirty, view.saved_text.encode()) == (result.epoch, True, before)
    assert view.effective == now
    assert view.diff.splitlines()[2:] == result.diff.splitlines()[2:] != []
    assert "applied, not saved" in repr(view)
    for word in ("double: ", f"config_epoch {result.epoch}", "Triton would", result.diff.splitlines()[-1]):
        assert word in repr(result)


def test_a_dry_run_says_what_would_happen_and_changes_nothing(server: Server) -> None:
    before = server.config("double")
    result = server.configure("double", f"{DELAY}=900", dry_run=True)
    assert "900" in result.diff
    assert server.config("double") == before


@pytest.mark.parametrize(
    ("edits", "text"),
    [
        pytest.param(["max_batch_size=-1"], "'max_batch_size' must be non-negative value for double", id="value"),
        pytest.param([f"{DELAY}=5", "nonsense=1"], "nonsense", id="the second of two"),
        pytest.param(["max_batch_size"], "max_batch_size", id="no edit"),
        pytest.param(["max_batch_size=eight"], "", id="no JSON"),
        pytest.param(["dynamic_batching.preferred_batch_size=[99]"], "preferred", id="refused by Triton"),
    ],
)
def test_a_refused_edit_leaves_all_as_it_was(server: Server, edits: list[str], text: str) -> None:
    before = server.config("double")
    with pytest.raises(ConfigError) as caught:
        server.configure("double", *edits)
    assert text in str(caught.value)
    assert server.config("double") == before
    assert server.infer("double", {"x": ROW})["y"].shape == (1, 4)


def test_configure_needs_an_edit(server: Server) -> None:
    with pytest.raises(InvalidRequest, match="nothing to configure"):
        server.configure("double")


def test_save_writes_what_is_applied_and_revert_goes_back_to_the_file(server: Server) -> None:
    original = file_of(server).read_bytes()
    try:
        server.configure("double", f"{DELAY}=1234")
        saved = server.save("double")
        assert type(saved) is SaveResult
        assert saved.path == str(file_of(server))
        assert "+dynamic_batching { max_queue_delay_microseconds: 1234 }" in saved.diff
        assert file_of(server).read_bytes() == original.replace(b"microseconds: 0", b"microseconds: 1234")
        assert not server.config("double").dirty
        assert "nothing to save" in repr(server.save("double"))
        server.configure("double", f"{DELAY}=1")
        back = server.revert("double")
        assert not back.dirty
        assert delay_of(server) == 1234
    finally:
        file_of(server).write_bytes(original)
        server.revert("double")
    assert delay_of(server) == 0


# -- what is told -----------------------------------------------------------------------------------------------------


def test_statistics_count_requests(anywhere: Server) -> None:
    before = anywhere.statistics("double").to_frame().iloc[0]
    anywhere.infer("double", {"x": ROW * 3})
    after = anywhere.statistics("double").to_frame().iloc[0]
    assert after["requests"] == before["requests"] + 1
    assert after["inferences"] == before["inferences"] + 3
    assert after["compute_infer_ms"] > 0
    assert "compute_infer_ms" in repr(anywhere.statistics())


def test_records_batches_and_events(server: Server) -> None:
    last = server.record_columns().last_seq
    server.infer("double", {"x": ROW * 2}, id="recorded")
    records = server.records(last)
    assert records["request_id"].tolist() == ["recorded"]
    row = records.iloc[0]
    assert row["arrival"] <= row["compute_start"] <= row["end"]
    assert (row["rows"], row["model"]) == (2, "double")
    assert server.batches(last)["rows"].tolist()[-1] == 2
    seq = server.events()[-1].seq
    server.configure("double", f"{DELAY}=10")
    assert any(event.kind == "epoch" and event.model == "double" for event in server.events(seq))


def test_devices_tell_of_cpu_and_memory(server: Server) -> None:
    devices = server.devices()
    assert devices["cpu"]["memory_used_bytes"] > 0


# -- a remote Triton --------------------------------------------------------------------------------------------------


def test_what_a_remote_triton_cannot_do_is_said_in_words(remote: Server) -> None:
    for verb in (remote.records, remote.batches, remote.devices, remote.events, lambda: remote.save("double")):
        with pytest.raises(Unsupported) as caught:
            verb()
        assert remote.url in caught.value.message
        assert caught.value.hint
    with pytest.raises(Unsupported, match="not on this machine"):
        remote.export("/nowhere/at/all")


def test_a_remote_triton_is_configured_by_a_load_with_an_override(remote: Server, process: Server) -> None:
    original = remote.model_config("double")
    text = file_of(process).read_bytes()
    same = remote.configure("double", f"{DELAY}=0")
    assert (same.change_class, same.dirty, same.diff) == ("none", False, "")
    planned = remote.configure("double", f"{DELAY}=77", dry_run=True)
    assert (planned.change_class, planned.took_ms) == ("reload", 0.0)
    assert "77" in planned.diff
    assert remote.model_config("double") == original
    result = remote.configure("double", f"{DELAY}=77")
    assert (result.change_class, result.dirty) == ("reload", True)
    assert "reloaded" in result.reasons[0]
    assert delay_of(remote) == 77
    assert remote.config("double").dirty
    assert remote.models()["double"].dirty
    assert file_of(process).read_bytes() == text
    remote.configure("double", f"{DELAY}=78")
    back = remote.revert("double")
    assert not back.dirty
    assert "77" not in back.diff
    assert remote.model_config("double") == original
    assert remote.revert("double").change_class == "none"


def test_a_revert_by_address_leaves_no_override_behind(
    foreign: TritonServer, foreign_process: WorkbenchServer, remote: Server, process: Server
) -> None:
    """By what the server itself says: a normalised override in place of the file is not what was there."""
    for server, itself, how in (
        (foreign, foreign_process, "it was unloaded and loaded again"),
        (remote, process, "it is as its file has it"),
    ):
        itself.revert("double")
        before = itself.config("double")
        server.configure("double", f"{DELAY}=77")
        server.configure("double", "max_batch_size=4")
        back = server.revert("double")
        after = itself.config("double")
        assert (after.text, after.dirty, after.effective) == (before.text, False, before.effective)
        assert how in back.reasons[0]
        assert (back.change_class, back.dirty) == ("reload", False)
        assert server.infer("double", {"x": ROW})["y"].shape == (1, 4)
        assert server.revert("double").change_class == "none"


def test_a_revert_by_address_after_a_sweep_takes_the_sweeps_override_away(
    foreign: TritonServer, foreign_process: WorkbenchServer
) -> None:
    foreign_process.revert("double")
    before = foreign_process.config("double")
    quick = {"duration_s": 0.1, "warmup_s": 0.01, "min_requests": 1, "store": None, "show_progress": False}
    assert foreign.sweep("double", {DELAY: [70]}, concurrency=1, **quick).restored
    back = foreign.revert("double")
    after = foreign_process.config("double")
    assert (after.text, after.dirty) == (before.text, False)
    assert "as its file has it" in back.reasons[0]


def test_a_revert_by_address_restores_what_was_no_files(
    foreign: TritonServer, foreign_process: WorkbenchServer
) -> None:
    try:
        with wb.connect(foreign.url) as somebody:
            somebody.configure("double", "max_batch_size=4")
        before = foreign.model_config("double")
        foreign.configure("double", f"{DELAY}=77")
        back = foreign.revert("double")
        assert foreign.model_config("double") == before
        assert "what was there is not what its file says" in back.reasons[0]
        assert not back.dirty
    finally:
        foreign_process.revert("double")


def test_a_revert_by_address_of_a_model_whose_file_is_broken_keeps_it_serving(
    foreign: TritonServer, foreign_process: WorkbenchServer
) -> None:
    path = file_of(foreign_process)
    text, before = path.read_text(), foreign.model_config("double")
    foreign.configure("double", f"{DELAY}=77")
    try:
        path.write_text("no configuration")
        back = foreign.revert("double")
        assert "its file could not be loaded" in back.reasons[0]
        assert foreign.model_config("double") == before
        assert foreign.infer("double", {"x": ROW})["y"].shape == (1, 4)
    finally:
        path.write_text(text)
        foreign_process.unload("double")
        foreign_process.load("double")


def test_a_remote_triton_refuses_a_wrong_configuration_and_stays_as_it_was(remote: Server) -> None:
    before = remote.model_config("double")
    with pytest.raises(WorkbenchError, match="failed to load 'double'") as caught:
        remote.configure("double", "max_batch_size=-1")
    assert "the server's log says" in caught.value.hint
    assert remote.model_config("double") == before
    assert not remote.config("double").dirty


def test_configure_takes_what_numpy_computes(server: Server) -> None:
    server.configure("double", dynamic_batching__preferred_batch_size=np.arange(2, 5))
    server.configure("double", {"path": DELAY, "op": "set", "value": np.int32(700)})
    batching = server.model_config("double")["dynamic_batching"]
    assert batching["preferred_batch_size"] == [2, 3, 4]
    assert delay_of(server) == 700


@pytest.mark.parametrize("value", [2**70, "\udcff", object()])
def test_values_that_no_configuration_can_hold_are_refused_in_words(server: Server, value: Any) -> None:
    with pytest.raises(WorkbenchError):
        server.configure("double", max_batch_size=value)
    with pytest.raises(WorkbenchError):
        server.load("double", config={"name": "double", "max_batch_size": value})
    assert server.infer("double", {"x": ROW})["y"].shape == (1, 4)


def test_a_text_without_utf8_form_is_refused(anywhere: Server) -> None:
    with pytest.raises(InvalidRequest, match="string 1 has no UTF-8 form"):
        anywhere.infer("double", {"x": np.array([["a", "\udcff"]], object)})
