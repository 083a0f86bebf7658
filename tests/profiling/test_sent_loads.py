"""Classes, sequences, replays and shared memory, sent to real models: what reaches them is what was asked for."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from real_triton import real_triton

import workbench as wb
from workbench.errors import InvalidRequest, WorkbenchError
from workbench.profiling import Point
from workbench.profiling.trace import Trace
from workbench.protocol.tensors import InferenceRequest, Tensor

SHORT = {"warmup_s": 0.1, "max_warmup_s": 0.1, "duration_s": 0.4, "max_duration_s": 0.4, "min_requests": 0}

# Writes down each request that it gets: correlation id, START, END, value, rows, priority and a parameter.
NOTES = """\
import json
import os
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        path = os.path.join(args["model_repository"], "..", args["model_name"] + ".jsonl")
        self.book = open(path, "a", buffering=1)

    def execute(self, requests):
        answers = []
        for request in requests:
            def get(name):
                tensor = pb_utils.get_input_tensor_by_name(request, name)
                return None if tensor is None else tensor.as_numpy()

            x, id = get("X"), get("CORRID")
            entry = {"x": x.reshape(-1).tolist(), "parameters": json.loads(request.parameters() or "{}")}
            entry["timeout"] = request.timeout()
            if id is not None:
                id = id.reshape(-1)[0]
                entry["id"] = id.decode() if isinstance(id, bytes) else int(id)
                entry["flags"] = [int(get("START").reshape(-1)[0]), int(get("END").reshape(-1)[0])]
            if id is None or get("READY").any():  # else it fills the place of a sequence that waits
                self.book.write(json.dumps(entry) + "\\n")
            answers.append(pb_utils.InferenceResponse([pb_utils.Tensor("Y", x)]))
        return answers
"""
CONTROLS = """\
sequence_batching {
  max_sequence_idle_microseconds: 60000000
  control_input [
    { name: "START" control [ { kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] } ] },
    { name: "END" control [ { kind: CONTROL_SEQUENCE_END int32_false_true: [ 0, 1 ] } ] },
    { name: "READY" control [ { kind: CONTROL_SEQUENCE_READY int32_false_true: [ 0, 1 ] } ] },
    { name: "CORRID" control [ { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_%s } ] }
  ]
}
"""
LEVELS = "dynamic_batching { priority_levels: 3 default_priority_level: 2 }"


def write_model(root: Path, name: str, tail: str) -> None:
    (root / name / "1").mkdir(parents=True)
    (root / name / "1" / "model.py").write_text(NOTES)
    (root / name / "config.pbtxt").write_text(
        f'name: "{name}" backend: "python" max_batch_size: 8\n'
        'input [ { name: "X" data_type: TYPE_INT32 dims: [ 1 ] } ]\n'
        'output [ { name: "Y" data_type: TYPE_INT32 dims: [ 1 ] } ]\n' + tail
    )


STREAMS = {"data": [[{"X": [1]}, {"X": [2]}, {"X": [3]}], [{"X": [10]}]]}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("models")
    write_model(root, "notes", LEVELS)
    write_model(root, "sums", CONTROLS % "INT32")
    write_model(root, "texts", CONTROLS % "STRING")
    (root / "sums" / "example_inputs.json").write_text(json.dumps(STREAMS))
    (root / "texts" / "example_inputs.json").write_text(json.dumps(STREAMS))
    (root / "notes" / "example_inputs.json").write_text('{"data": [{"X": [5]}]}')
    return root


@pytest.fixture(scope="module")
def server(root: Path) -> Iterator[wb.session.remote.WorkbenchServer]:  # type: ignore[name-defined]
    with wb.serve(root, options={"allow_client_shm": True}) as opened:
        yield opened


@pytest.fixture
def book(root: Path) -> Any:
    """What a model has got since the test began."""
    paths = {model: root / f"{model}.jsonl" for model in ("notes", "sums", "texts")}
    before = {model: path.stat().st_size if path.exists() else 0 for model, path in paths.items()}

    def read(model: str) -> list[dict[str, Any]]:
        return [json.loads(line) for line in paths[model].read_bytes()[before[model] :].splitlines()]

    return read


def sequences(entries: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """The requests of each sequence, in the order in which the model got them; each is whole."""
    found: dict[Any, list[dict[str, Any]]] = {}
    for entry in entries:
        found.setdefault(entry["id"], []).append(entry)
    for steps in found.values():
        flags = [tuple(step["flags"]) for step in steps]
        assert [start for start, _ in flags] == [1] + [0] * (len(steps) - 1), flags
        assert [end for _, end in flags] == [0] * (len(steps) - 1) + [1], flags
    return list(found.values())


def books_agree(point: Point) -> bool:
    return not any("counted" in reason or "lost" in reason or "others used" in reason for reason in point.reasons)


@pytest.mark.parametrize(
    ("model", "protocol"),
    [
        ("sums", "http"),
        pytest.param("texts", "http", marks=pytest.mark.full),
        pytest.param("sums", "grpc", marks=pytest.mark.full),
        ("texts", "grpc"),
        ("sums", "kernel"),
        pytest.param("texts", "kernel", marks=pytest.mark.full),
    ],
)
def test_sequences_reach_the_model_whole_and_in_order(
    server: Any, root: Path, book: Any, model: str, protocol: str
) -> None:
    loads = [wb.Load.closed(3, **SHORT), wb.Load.open(80, "bursty", sequences=5, **SHORT)]
    target = wb.Engine(root, models=[model]) if protocol == "kernel" else server
    target = wb.connect(server.grpc_url) if protocol == "grpc" else target
    try:
        for load in loads:
            point = target.profile(model, load, inputs=root / model / "example_inputs.json")
            assert point.errors == {}
            assert point.n > 20
            assert books_agree(point)
    finally:
        if target is not server:
            target.close()
    found = sequences(book(model))
    values = Counter(tuple(step["x"][0] for step in steps) for steps in found)
    # One that the end of the load cut short is closed with what was sent last.
    cut = {key: count for key, count in values.items() if key not in {(1, 2, 3), (10,)}}
    assert sum(cut.values()) <= 2 * 5
    assert abs(values[1, 2, 3] - values[(10,)]) <= 2 * 5
    assert values[1, 2, 3] > 5


@pytest.mark.full
def test_lengths_of_sequences_vary_as_asked(server: Any, book: Any) -> None:
    load = wb.Load.closed(4, sequence_length=10, sequence_length_variation=0.3, **{**SHORT, "duration_s": 1.0})
    point = server.profile("sums", load, inputs=[{"X": [[value]]} for value in range(7)])
    assert point.errors == {}
    lengths = [len(steps) for steps in sequences(book("sums"))]
    whole = sorted(lengths)[4:]  # the last of each client may be cut short
    assert set(whole) <= set(range(7, 14))
    assert len(set(whole)) > 3


def test_each_class_has_its_own_load_and_figures(server: Any, book: Any, tmp_path: Path) -> None:
    load = wb.Load.classes(
        {
            "urgent": wb.Load.open(60, "constant", priority=1, timeout_s=2.0),
            "bulk": wb.Load.closed(2, priority=3, batch_size=4, parameters={"tenant": "b", "k": 3}),
            "stateful": wb.Load.closed(2, model="sums"),
        },
        **SHORT,
    )
    result = server.sweep(
        "notes", {}, load=load, inputs={"urgent": {"X": [[1]]}, "bulk": {"X": [[2]] * 4}}, store=tmp_path,
        show_progress=False, keep_samples=True,
    )  # fmt: skip
    (point,) = result
    assert list(point.classes) == ["urgent", "bulk", "stateful"]
    urgent, bulk, stateful = point.classes.values()
    assert urgent.n == pytest.approx(24, abs=1)
    assert urgent.failed == 0
    assert urgent.throughput == pytest.approx(60, rel=0.2)
    assert bulk.throughput == pytest.approx(4 * bulk.n / 0.4, rel=0.1)
    assert sum(of.n for of in point.classes.values()) == point.n
    assert sum(of.throughput for of in point.classes.values()) == pytest.approx(point.throughput)
    assert min(of.p50_ms for of in point.classes.values()) <= point.p50_ms <= point.p99_ms
    assert books_agree(point)
    entries = book("notes")
    ones = [entry for entry in entries if entry["x"] == [1]]
    assert {entry["timeout"] for entry in ones} == {2_000_000}
    fours = [entry for entry in entries if entry["x"] == [2] * 4]
    assert {(entry["parameters"]["tenant"], entry["parameters"]["k"]) for entry in fours} == {("b", 3)}
    assert len(ones) + len(fours) == len(entries)
    assert len(sequences(book("sums"))) > 3
    assert f"urgent (60/s constant priority 1): {urgent.throughput:.1f} infer/s" in repr(point)
    row = result.to_frame().iloc[0]
    assert (row.bulk_p99_ms, row.stateful_n, row.urgent_failed) == (bulk.p99_ms, stateful.n, 0)
    with wb.runs(tmp_path).open(result.run_id) as run:
        assert Point.from_json(next(iter(run.points()))).to_json() == point.to_json()
        assert "urgent_p50_ms" in run.frame().columns
        assert run.points()[0]["label"] == load.label
        kept = run.samples(int(run.points()[0]["id"]))
        gaps = np.diff(kept["scheduled"][kept["class_of"] == 0])  # of the urgent ones alone: 60/s, and evenly
        assert np.median(gaps) == pytest.approx(1e9 / 60, rel=0.01)


@pytest.mark.full
def test_two_generators_divide_classes_with_sequences(server: Any, book: Any) -> None:
    """Each sequence stays with the generator that has begun it."""
    parts = {
        "urgent": wb.Load.open(60, priority=1),
        "loops": wb.Load.closed(3, model="sums"),
        "asked": wb.Load.open(60, model="sums", sequences=1),  # of which only one of the two can have any
    }
    point = server.profile("notes", wb.Load.classes(parts, generators=2, **SHORT))
    assert point.errors == {}
    assert all(figures.n > 5 for figures in point.classes.values())
    assert books_agree(point)
    assert len(sequences(book("sums"))) > 4


def test_the_failures_of_a_class_are_its_own(server: Any) -> None:
    load = wb.Load.classes({"good": wb.Load.closed(1), "bad": wb.Load.closed(1, batch_size=9)}, **SHORT)
    point = server.profile("notes", load)
    good, bad = point.classes["good"], point.classes["bad"]
    assert good.failed == 0 < good.n
    assert bad.n == 0 < bad.failed == point.failed
    assert any("batch-size must be <= 8" in text for text in bad.errors)
    assert math.isnan(bad.p99_ms)


@pytest.mark.parametrize("protocol", ["http", pytest.param("grpc", marks=pytest.mark.full)])
def test_shared_memory_carries_what_the_messages_would(server: Any, book: Any, protocol: str) -> None:
    target = wb.connect(server.grpc_url) if protocol == "grpc" else server
    load = wb.Load.classes(
        {"a": wb.Load.closed(2), "b": wb.Load.closed(1, model="sums")}, shared_memory="system", **SHORT
    )
    given = [{"X": [[value]]} for value in (7, 8, 9)]
    regions = set(Path("/dev/shm").glob("workbench_load_*"))
    point = target.profile("notes", load, inputs=given)
    assert point.errors == {}
    assert {entry["x"][0] for entry in book("notes")} == {7, 8, 9}
    assert {entry["x"][0] for entry in book("sums")} == {7, 8, 9}
    sequences(book("sums"))
    assert set(Path("/dev/shm").glob("workbench_load_*")) == regions
    if target is not server:
        target.close()


@pytest.mark.full
def test_where_memory_is_not_shared_it_is_said(root: Path) -> None:
    with wb.Engine(root, models=["notes"]) as engine:
        point = engine.profile("notes", wb.Load.closed(1, shared_memory="system", **SHORT))
    assert any("shared memory was not used" in note for note in point.notes)
    with (
        wb.serve(root, models=["notes"], name="no-shm") as closed,
        pytest.raises(WorkbenchError, match="cannot share memory with the server") as caught,
    ):
        closed.profile("notes", wb.Load.closed(1, shared_memory="system", **SHORT))
    assert "--allow-client-shm" in caught.value.hint


def recorded() -> Trace:
    """Half a second: 25 requests of two priorities to one model, and two sequences to another."""

    def tensor(value: int) -> Tensor:
        return Tensor.from_numpy("X", np.array([[value]], np.int32))

    requests = [
        (20_000_000 * index, InferenceRequest("notes", [tensor(100 + index)], priority=1 + index % 2))
        for index in range(25)
    ]
    for id, begin in ((5, 0), (6, 1)):
        requests += [
            (
                (begin + 3 * index) * 10_000_000,
                InferenceRequest(
                    "sums",
                    [tensor(id * 10 + index)],
                    sequence_id=id,
                    sequence_start=index == 0,
                    sequence_end=index == 3,
                ),
            )
            for index in range(4)
        ]
    return Trace.of(requests)


@pytest.mark.parametrize("generators", [1, 3])
def test_a_trace_is_replayed_at_its_factor_with_its_inputs_classes_and_sequences(
    server: Any, book: Any, tmp_path: Path, generators: int
) -> None:
    path = recorded().save(tmp_path / "half.trace.npz")
    point = server.profile("notes", wb.Load.replay(path, factor=0.5, warmup_s=0.0, generators=generators))
    assert point.errors == {}
    assert point.n == 33
    assert point.duration_s == pytest.approx(1.0, rel=0.15)
    assert point.load.label == "trace half × 0.5"
    assert sorted(entry["x"][0] for entry in book("notes")) == list(range(100, 125))
    assert sorted([step["x"][0] for step in steps] for steps in sequences(book("sums"))) == [
        [50, 51, 52, 53],
        [60, 61, 62, 63],
    ]
    figures = {name: (of.model, of.n) for name, of in point.classes.items()}
    assert figures == {"notes priority 1": ("", 13), "notes priority 2": ("", 12), "sums": ("sums", 8)}
    assert books_agree(point)
    frame = point.row()
    assert frame["distribution"] == "trace"


def test_a_replay_reaches_the_model_that_is_measured(server: Any, book: Any, tmp_path: Path) -> None:
    """What was captured of one model is meant for another where that is measured; of several, nobody can tell."""
    tensor = Tensor.from_numpy("X", np.array([[7]], np.int32))
    of_one = Trace.of([(10_000_000 * at, InferenceRequest("before", [tensor])) for at in range(5)])
    point = server.profile("notes", wb.Load.replay(of_one.save(tmp_path / "one.trace.npz"), warmup_s=0.0))
    assert (point.n, point.errors) == (5, {})
    assert [entry["x"][0] for entry in book("notes")] == [7] * 5
    assert "what went to 'before' when it was captured is sent to 'notes'" in point.notes
    of_two = Trace.of([(10_000_000 * at, InferenceRequest(f"m{at}", [tensor])) for at in range(2)])
    with pytest.raises(InvalidRequest, match="no request to 'notes', its requests went to m0, m1"):
        server.profile("notes", wb.Load.replay(of_two.save(tmp_path / "two.trace.npz"), warmup_s=0.0))


@pytest.mark.parametrize("protocol", ["http", pytest.param("grpc", marks=pytest.mark.full), "kernel"])
def test_requests_of_a_trace_have_their_ids_and_one_that_is_too_long_is_said(
    server: Any, root: Path, tmp_path: Path, protocol: str
) -> None:
    names = ["a", "", 'quoted "b", and more', "c" * 256, "d" * 257, "a"]
    tensor = Tensor.from_numpy("X", np.array([[1]], np.int32))
    requests = [InferenceRequest("notes", [tensor], id=name) for name in names]
    trace = Trace.of([(20_000_000 * at, each) for at, each in enumerate(requests)])
    replay = wb.Load.replay(trace.save(tmp_path / "named.trace.npz"), warmup_s=0.0)
    target = wb.Engine(root, models=["notes"]) if protocol == "kernel" else server
    asked = wb.connect(server.grpc_url) if protocol == "grpc" else target
    try:
        with target.capture("notes") as capture:
            point = asked.profile("notes", replay)
    finally:
        for each in {id(asked): asked, id(target): target}.values():
            if each is not server:
                each.close()
    assert point.errors == {}
    assert [each.id for _, each in capture.requests()] == [*names[:4], "", "a"]
    assert "1 requests are sent without their id, which is longer than 256 characters" in point.notes


def test_intervals_of_perf_analyzer_send_the_models_example_inputs(server: Any, book: Any, tmp_path: Path) -> None:
    path = tmp_path / "intervals"
    path.write_text("20000\n5000\n" * 10)
    point = server.profile("notes", wb.Load.replay(path, warmup_s=0.0))
    assert (point.n, point.errors, point.classes) == (20, {}, {})
    assert {entry["x"][0] for entry in book("notes")} == {5}


@pytest.mark.full
def test_a_sweep_is_resumed_where_inputs_and_trace_are_the_same(server: Any, tmp_path: Path) -> None:
    rows = tmp_path / "rows.csv"
    rows.write_text("X\n1\n2\n")
    replay = wb.Load.replay(recorded().save(tmp_path / "half.npz"), factor=2.0, warmup_s=0.0)
    load = wb.Load.classes({"a": wb.Load.closed(1), "b": wb.Load.closed(1, inputs=str(rows))}, **SHORT)
    about = {"load": [load, replay], "store": tmp_path / "runs", "show_progress": False}
    frame = pd.DataFrame({"X": [4, 5]})
    first = server.sweep("notes", {}, inputs=frame, **about)

    def again(inputs: Any) -> list[bool]:
        resumed = server.sweep("notes", {}, inputs=inputs, resume=first.run_id, **about)
        return [one.started == two.started for one, two in zip(first, resumed, strict=True)]

    assert again(frame) == [True, True]
    assert again(pd.DataFrame({"X": [4, 6]})) == [False, False]
    first = server.sweep("notes", {}, inputs=frame, **about)
    rows.write_text("X\n1\n3\n")
    assert again(frame) == [False, True]


def test_a_load_is_said_once(server: Any) -> None:
    with pytest.raises(InvalidRequest, match="concurrency, duration_s beside it would say it twice"):
        server.profile("notes", wb.Load.closed(1), concurrency=2, duration_s=1.0)


@pytest.mark.full
@pytest.mark.oracle
def test_a_real_triton_takes_all_of_it(root: Path, oracle: Path, book: Any, tmp_path: Path) -> None:
    log = tmp_path / "triton.log"
    with real_triton(oracle, root, log) as addresses:
        for url in (addresses.http, f"grpc://{addresses.grpc}"):
            with wb.connect(url) as server:
                steps = json.dumps({"data": [[{"X": [1]}, {"X": [2]}, {"X": [3]}], [{"X": [10]}]]})
                (tmp_path / "steps.json").write_text(steps)
                load = wb.Load.classes(
                    {
                        "urgent": wb.Load.open(50, "gamma", priority=1),
                        "bulk": wb.Load.closed(2, priority=2, batch_size=4),
                        "sums": wb.Load.closed(2, model="sums", inputs=str(tmp_path / "steps.json")),
                        "bursts": wb.Load.open(50, "bursty", model="sums", inputs=str(tmp_path / "steps.json")),
                    },
                    shared_memory="system",
                    **SHORT,
                )
                point = server.profile("notes", load, inputs="zero")
                assert point.errors == {}, log.read_text()[-2000:]
                assert all(of.n > 5 for of in point.classes.values())
                assert books_agree(point)
                replayed = server.profile("notes", wb.Load.replay(recorded().save(tmp_path / "half.npz"), warmup_s=0.0))
                assert (replayed.n, replayed.errors) == (33, {})
    # 2.51 itself fails where two sequences of a batch have texts for ids: "unexpected number of string elements 2".
    assert len(sequences(book("sums"))) > 16
