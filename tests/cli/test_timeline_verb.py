"""``workbench timeline`` against a running server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from onnx_models import add_model

from workbench.cli import main
from workbench.session.opening import serve
from workbench.session.remote import WorkbenchServer


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorkbenchServer]:
    root = tmp_path_factory.mktemp("timeline")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        add_model(root, "double")
        with serve(root, name="timeline-test") as opened:
            for number in range(5):
                opened.infer("double", {"x": np.ones((1 + number % 2, 4), np.float32)}, id=f"n-{number}")
            yield opened


def test_it_prints_who_waited_and_writes_a_trace(
    server: WorkbenchServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = tmp_path / "trace.json"
    assert main(["timeline", "double", "--perfetto", str(trace)]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("Timeline of double: 5 requests, 5 batches in ")
    assert "double_0_0  5        5" in shown
    assert "https://ui.perfetto.dev" in shown
    names = {event["name"] for event in json.loads(trace.read_bytes())["traceEvents"]}
    assert {f"request {seq}" for seq in server.records().seq} <= names
    # an address of a server of the workbench is that server, not any Triton
    assert main(["timeline", "-u", server.url, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["request_id"] for row in rows] == [f"n-{number}" for number in range(5)]
    assert {row["reason"] for row in rows} == {"no_delay"}


def test_it_tells_one_request(server: WorkbenchServer, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["timeline", "--request", "n-3"]) == 0
    assert 'Request 3 "n-3" of double: ' in capsys.readouterr().out
    assert main(["timeline", "--request", "3", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["title"].startswith('Request 3 "n-3" of double')
    assert {phase["phase"] for phase in told["phases"]} >= {"queue", "compute infer"}
    assert main(["timeline", "--request", "nobody"]) == 1
    assert "no record of request 'nobody'" in capsys.readouterr().err
    assert main(["timeline", "nobody"]) == 1
    assert "there are records of: double" in capsys.readouterr().err
