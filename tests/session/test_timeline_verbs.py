"""``server.timeline`` and ``server.waterfall`` over real requests, in a process and in the kernel."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from ensembles import add_ensemble, step
from onnx_models import add_model

import workbench as wb
from workbench.errors import NotFound, Unsupported
from workbench.session.kernel import Engine
from workbench.session.server import Server
from workbench.session.timeline import Timeline


def ask(server: Server, id: str, rows: int = 1) -> None:
    server.infer("double", {"x": np.ones((rows, 4), np.float32)}, id=id)


def test_a_timeline_has_a_row_a_request_with_its_batch(server: Server, tmp_path: Path) -> None:
    model = "double"
    server.configure(model, "dynamic_batching.max_queue_delay_microseconds=20000")
    before = server.record_columns().last_seq
    threads = [threading.Thread(target=ask, args=(server, f"timeline-{number}")) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    timeline = server.timeline(model)
    frame = timeline.frame()
    mine = frame[frame.request_id.str.startswith("timeline-")]
    assert len(mine) == 6
    records = server.records(before).set_index("seq")
    batches = server.batches(before).set_index("batch_seq")
    for row in mine.itertuples():
        batch = batches.loc[row.batch_seq]
        assert (row.batch_rows, row.batch_requests, row.reason) == (batch["rows"], batch["requests"], batch["reason"])
        assert row.waited_ms == pytest.approx((batch["acquired"] - records.loc[row.seq].queue_start) / 1e6)
        assert row.busy_ms + row.free_ms == pytest.approx(row.waited_ms)
    assert (mine.free_ms > 5).any(), "the first of a batch waited for others"
    assert "Timeline of double" in repr(timeline)
    assert "why batches left" in repr(timeline)
    instances = timeline.instances()
    assert instances.requests.sum() == len(frame)
    assert 0 < instances.busy.iloc[0] <= 1
    figure, sources = timeline.chart()
    assert sorted(sources["requests"].data["seq"]) == sorted(frame.seq)
    assert figure.children
    trace = json.loads(timeline.perfetto(tmp_path / "trace.json").read_bytes())
    assert {f"request {seq}" for seq in frame.seq} <= {event["name"] for event in trace["traceEvents"]}


def test_a_waterfall_of_a_request_by_number_and_by_id(server: Server) -> None:
    ask(server, "waterfall", rows=3)
    found = server.waterfall("waterfall")
    record = server.records().query("request_id == 'waterfall'").iloc[-1]
    assert found.data.request.seq == record.seq
    assert found.data.request.total_ns == record.end - record.arrival
    assert repr(found).startswith(f'Request {record.seq} "waterfall" of double: ')
    assert found.sentence in repr(found)
    again = server.waterfall(int(record.seq))
    assert again.sentence == found.sentence
    assert server.timeline().waterfall("waterfall").sentence == found.sentence
    phases = again.frame().query(f"seq == {record.seq}")
    assert phases.ms.sum() == pytest.approx(found.data.request.total_ns / 1e6)
    with pytest.raises(NotFound, match="no record of request 'nobody'"):
        server.waterfall("nobody")
    with pytest.raises(NotFound, match="no request of 'spare' is recorded"):
        server.timeline("spare")


def test_in_a_notebook_they_are_charts_with_a_picture_and_a_text(kernel: Engine) -> None:
    ask(kernel, "shown")
    for shown in (kernel.timeline(last=60), kernel.waterfall("shown")):
        bundle = shown._repr_mimebundle_()
        data = bundle[0] if isinstance(bundle, tuple) else bundle
        assert data["text/plain"] == repr(shown)
        assert "<svg" in data["text/html"]
        assert "application/vnd.jupyter.widget-view+json" in data


def test_a_remote_triton_says_that_it_has_no_records(remote: Server) -> None:
    for ask_for in (remote.timeline, lambda: remote.waterfall(1)):
        with pytest.raises(Unsupported, match="gives no per-request records"):
            ask_for()
    panel = remote.panel("timeline")
    assert "gives no per-request records" in panel._said.value
    assert "No request ended here" in panel.to_html()
    panel.close()


@pytest.fixture
def pipeline(tmp_path: Path) -> Iterator[Server]:
    root = tmp_path / "repository"
    root.mkdir()
    add_model(root, "first")
    add_model(root, "second")
    add_ensemble(root, "pipeline", [step("first", "X", "middle"), step("second", "middle", "Y")])
    with wb.Engine(root) as engine:
        yield engine


def test_an_ensembles_waterfall_has_its_steps(pipeline: Server) -> None:
    pipeline.infer("pipeline", {"X": np.ones((1, 4), np.float32)}, id="whole")
    found = pipeline.waterfall("whole")
    assert [(bar.kind, bar.model) for bar in found.data.bars][:3] == [
        ("request", "pipeline"), ("child", "first"), ("child", "second"),
    ]  # fmt: skip
    assert "its steps took" in found.sentence.lower()
    data = pipeline.timeline("pipeline").data
    assert {model for model, _ in data.instances} == {"first", "second"}
    kept = Timeline.of_records(pipeline.record_columns(), model="pipeline")
    assert kept.frame().equals(pipeline.timeline("pipeline").frame())
