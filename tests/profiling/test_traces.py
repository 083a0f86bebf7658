"""Recorded traffic: the file, the forms that are read, and when a replay sends what."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from workbench.errors import InvalidRequest, NotFound, WorkbenchError
from workbench.profiling import Load
from workbench.profiling.arrivals import arrivals
from workbench.profiling.trace import END, START, Trace
from workbench.profiling.trace_files import read_trace
from workbench.protocol.tensors import InferenceRequest, RequestedOutput, Tensor

X = Tensor.from_numpy("X", np.arange(4, dtype=np.float32).reshape(1, 4))
T = Tensor.from_numpy("T", np.array([["naïve", ""]], object))


def request(model: str = "m", **options: Any) -> InferenceRequest:
    return InferenceRequest(model, options.pop("inputs", [X]), **options)


def traffic() -> Trace:
    step = {"sequence_id": 77, "inputs": [T]}
    return Trace.of(
        [
            (5_000_000, request(priority=2, timeout=500, parameters={"k": 1.5})),
            (1_000_000, request(id="first, by time")),
            (6_000_000, request("s", sequence_start=True, **step)),
            (9_000_000, request("s", sequence_end=True, **step)),
            (9_000_000, request(outputs=[RequestedOutput("Y")])),
        ],
        streaming=[False, False, False, False, True],
        source="a test",
    )


def test_a_trace_comes_back_from_its_file_as_it_was(tmp_path: Path) -> None:
    trace = traffic()
    path = trace.save(tmp_path / "deep" / "a.trace.npz")
    again = read_trace(path)
    assert again.to_bytes() == trace.to_bytes() == path.read_bytes()
    assert again.offsets_ns.tolist() == [0, 4_000_000, 5_000_000, 8_000_000, 8_000_000]
    assert len(again.inputs) == 2  # equal ones are kept once
    assert again.inputs[1][0].data.tolist() == [["naïve".encode(), b""]]
    assert again.sequence_of.tolist() == [0, 0, 1, 1, 0]
    assert again.flags.tolist() == [0, 0, START, END, 0]
    assert again.ids == ("first, by time", "", "", "", "")
    kinds = [again.classes[index] for index in again.class_of]
    assert [kind.model for kind in kinds] == ["m", "m", "s", "s", "m"]
    assert (kinds[1].priority, kinds[1].timeout, kinds[1].parameters) == (2, 500, {"k": 1.5})
    assert (kinds[4].outputs, kinds[4].streaming) == (("Y",), True)
    assert len({kind.name for kind in again.classes}) == len(again.classes)
    assert "5 requests in 0.0 s" in repr(again)


def triton(tmp_path: Path) -> Path:
    entries: list[dict[str, Any]] = []

    def add(id: int, model: str, at: int, name: str = "REQUEST_START", **more: Any) -> None:
        entries.append({"id": id, "model_name": model, "model_version": 1, **more})
        entries.append({"id": id, "timestamps": [{"name": "QUEUE_START", "ns": at + 900}, {"name": name, "ns": at}]})
        entries.append({"id": id, "timestamps": [{"name": "REQUEST_END", "ns": at + 9_000_000}]})

    add(1, "m", 1_000_000_000)
    add(3, "e", 1_250_000_000, "HTTP_RECV_START")
    add(4, "m", 1_251_000_000, parent_id=3)
    add(2, "m", 1_100_000_000, "GRPC_WAITREAD_START", request_id="r")
    tensor = {"name": "X", "data": "1.5,2,-3,0", "shape": "1,4", "dtype": "FP32"}
    entries.append({"id": 1, "activity": "TENSOR_QUEUE_INPUT", "tensor": tensor})
    text = {"name": "T", "data": '"a,b"', "shape": "1", "dtype": "BYTES"}
    entries.append({"id": 2, "activity": "TENSOR_QUEUE_INPUT", "tensor": text})
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(entries))
    return path


def test_a_trace_file_of_tritons_is_read(tmp_path: Path) -> None:
    trace = read_trace(triton(tmp_path))
    assert trace.offsets_ns.tolist() == [0, 100_000_000, 250_000_000]
    assert [trace.classes[index].model for index in trace.class_of] == ["m", "m", "e"]
    assert trace.input_of.tolist() == [0, -1, -1]
    assert trace.inputs[0][0].data.tolist() == [[1.5, 2, -3, 0]]
    assert any("1 requests of ensembles" in note for note in trace.notes)
    assert any("of 1 requests the inputs cannot be read" in note for note in trace.notes)


def test_perf_analyzers_intervals_are_read(tmp_path: Path) -> None:
    path = tmp_path / "intervals"
    path.write_text("1000\n\n500\n2500\n")
    trace = read_trace(path)
    assert trace.offsets_ns.tolist() == [0, 1_000_000, 1_500_000]
    assert trace.length_s == 0.004


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"", "there are no intervals"),
        (b"12\nabc\n", "'abc' is no number of microseconds"),
        (b"-5\n", "'-5' is no number"),
        (b"\xff\xfe\x00", "no trace"),
        (b"[{}]", "no trace file of Triton"),
        (b"[1, 2", "no trace file of Triton"),
        (b'[{"id": 1, "model_name": "m"}]', "no request in this trace file has a timestamp"),
        (b"PK\x03\x04rubbish", "no trace of the workbench"),
    ],
)
def test_what_is_no_trace_is_refused_in_words(tmp_path: Path, content: bytes, text: str) -> None:
    path = tmp_path / "file"
    path.write_bytes(content)
    with pytest.raises(InvalidRequest) as caught:
        Load.replay(path)
    assert text in caught.value.message
    assert str(path) in caught.value.where
    with pytest.raises(NotFound):
        Load.replay(tmp_path / "none")


@pytest.mark.parametrize("notes", ["x", [["a"]], [{}], [1]])
def test_a_trace_whose_notes_were_edited_by_hand_is_read(tmp_path: Path, notes: object) -> None:
    path = traffic().save(tmp_path / "edited.trace.npz")
    with np.load(path) as arrays:
        columns = dict(arrays)
    head = {**json.loads(columns["head"].tobytes()), "notes": notes}
    np.savez(path, **{**columns, "head": np.frombuffer(json.dumps(head).encode(), np.uint8)})  # type: ignore[arg-type]
    read = Trace.load(path)
    assert all(isinstance(note, str) for note in read.notes)
    assert len({read.notes}) == 1  # it can be told once for many


@pytest.mark.parametrize("factor", [1e-9, 1e9])
def test_a_factor_that_makes_a_trace_last_no_time_or_for_ever_is_named(tmp_path: Path, factor: float) -> None:
    path = tmp_path / "intervals"
    path.write_text("100000\n200000\n300000\n")
    with pytest.raises(InvalidRequest, match=r"the 0.6 s of the trace would take 6e[-+]\d+ s at factor 1e[-+]\d+"):
        Load.replay(path, factor=factor)


def test_a_replay_keeps_the_gaps_at_its_factor_and_begins_anew_with_the_window(tmp_path: Path) -> None:
    path = tmp_path / "intervals"
    path.write_text("100000\n200000\n300000\n")  # 0, 0.1, 0.3 s of 0.6 s
    load = Load.replay(path, factor=2.0, warmup_s=0.1)
    assert load.duration_s == load.longest_s == pytest.approx(0.3)
    assert load.rate == pytest.approx(10)
    assert load.label == "trace intervals × 2"
    times, rows = arrivals(load)
    assert (times / 1e6).tolist() == [0, 50, 100, 150, 250]
    assert rows.tolist() == [0, 1, 0, 1, 2]
    longer = Load.replay(path, factor=2.0, warmup_s=0.0, duration_s=0.5)
    assert (arrivals(longer)[0] / 1e6).tolist() == [0, 50, 150, 300, 350, 450]
    assert Load.from_json(json.loads(json.dumps(load.to_json()))) == load
    path.write_text("1\n")
    with pytest.raises(InvalidRequest, match="another one now"):
        arrivals(load)


def test_a_sequence_that_the_warm_up_would_cut_is_not_begun_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    load = Load.replay(traffic(), warmup_s=0.006)
    assert Path(load.trace).parent == tmp_path / "runs" / "traces"  # a trace without a file is kept beside the runs
    times, rows = arrivals(load)
    early = rows[times < 6_000_000].tolist()
    assert early == [0, 1]
    assert rows[times >= 6_000_000].tolist() == [0, 1, 2, 3, 4]


def test_columns_that_do_not_fit_are_refused() -> None:
    good = traffic()
    columns = {name: getattr(good, name) for name in ("class_of", "input_of", "sequence_of", "flags", "classes")}
    for change, text in (
        ({"offsets_ns": good.offsets_ns[:-1]}, "different lengths"),
        ({"offsets_ns": good.offsets_ns[::-1]}, "do not ascend"),
        ({"class_of": good.class_of + 9}, "class_of of a trace names"),
    ):
        with pytest.raises(WorkbenchError, match=text):
            Trace(**{"offsets_ns": good.offsets_ns, **columns, "inputs": good.inputs, **change})
    with pytest.raises(WorkbenchError, match="without requests"):
        Trace.of([])
