"""The control plane's client against a server of the workbench in a process of its own."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from test_triton_client import request_of

from workbench.client import ControlClient, HttpClient
from workbench.config import parse_edit
from workbench.errors import ConfigError, InvalidRequest, NotFound, WorkbenchError


@pytest.fixture
def control(workbench_server: object) -> Iterator[ControlClient]:
    with ControlClient(workbench_server.http, workbench_server.token) as made:  # type: ignore[attr-defined]
        yield made
        made.revert("echo")


def test_capabilities_and_state(control: ControlClient, workbench_server: object) -> None:
    capabilities = control.capabilities()
    assert capabilities["pid"] == workbench_server.pid  # type: ignore[attr-defined]
    assert "configure" in capabilities["features"]
    names = {entry.get("model") or entry.get("name") for entry in control.state()["versions"]}
    assert names == {"echo"}
    assert control.devices()


def test_the_token_is_needed(control: ControlClient) -> None:
    with ControlClient(control.url, "wrong") as stranger, pytest.raises(WorkbenchError, match="token"):
        stranger.state()


def test_configure_read_back_and_revert(control: ControlClient) -> None:
    before = control.config("echo")
    edit = parse_edit("dynamic_batching.max_queue_delay_microseconds=2500")
    dry = control.configure("echo", [edit], dry_run=True)
    assert control.config("echo")["epoch"] == before["epoch"]
    result = control.configure("echo", [edit])
    assert result["change_class"] == dry["change_class"] == "live"
    after = control.config("echo")
    assert after["epoch"] == before["epoch"] + 1
    assert after["dirty"]
    assert "max_queue_delay_microseconds: 2500" in after["text"]
    assert after["saved_text"] == before["saved_text"]
    assert after["effective"]["dynamic_batching"]["max_queue_delay_microseconds"] == 2500
    control.revert("echo")
    assert not control.config("echo")["dirty"]


def test_refused_edits_keep_tritons_text(control: ControlClient) -> None:
    with pytest.raises(InvalidRequest) as refused:
        control.configure("echo", [{"path": "max_batch_size", "op": "set", "value": -3}])
    assert refused.value.message
    with pytest.raises(WorkbenchError):
        control.config("nobody")
    assert issubclass(ConfigError, InvalidRequest)
    assert issubclass(NotFound, WorkbenchError)


def test_records_of_what_was_asked(control: ControlClient) -> None:
    cursor = control.records().last_seq
    with HttpClient(control.url) as client:
        for number in range(3):
            client.infer(request_of(rows=2, id=f"q{number}"))
    columns = control.records(cursor)
    assert columns.requests["request_id"].tolist() == ["q0", "q1", "q2"]
    assert columns.requests["rows"].tolist() == [2, 2, 2]
    assert (columns.requests["end"] >= columns.requests["arrival"]).all()
    assert (columns.requests["compute_start"] >= columns.requests["queue_start"]).all()
    assert int(columns.batches["rows"].sum()) == 6
    assert set(columns.requests["batch_seq"]) == set(columns.batches["batch_seq"])
    assert columns.lost == 0
    assert len(control.records(columns.last_seq).requests["seq"]) == 0
    assert np.unique(columns.requests["model"]).tolist() == ["echo"]


def test_events_of_an_edit(control: ControlClient) -> None:
    seen = control.events()
    last = seen[-1].seq if seen else -1
    control.configure("echo", [parse_edit("dynamic_batching.max_queue_delay_microseconds=300")])
    fresh = control.events(last)
    assert any(event.model == "echo" for event in fresh)
    assert all(event.seq > last for event in fresh)


def test_streamed_events_start_where_asked(control: ControlClient) -> None:
    first = control.events()[0]
    stream = control.stream_events(first.seq - 1, idle_s=10)
    assert next(stream) == first
    stream.close()
