"""The same panels over NVIDIA's own server: what it cannot do is said, what it can do is done."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from panel_helpers import wait_for, write_model
from real_triton import real_triton

from workbench.errors import WorkbenchError
from workbench.session.opening import connect

pytestmark = [pytest.mark.full, pytest.mark.oracle]

DELAY = "dynamic_batching.max_queue_delay_microseconds"


@pytest.fixture
def triton(oracle: Path, tmp_path: Path) -> Iterator[Any]:
    write_model(tmp_path / "repository", "double", sleep=0.001)
    options = ["--model-control-mode=explicit", "--load-model=*"]
    with real_triton(oracle, tmp_path / "repository", tmp_path / "triton.log", options) as addresses:
        server = wait_for(lambda: _connected(addresses.http), 150)
        yield server
        server.close()


def _connected(url: str) -> Any:
    try:
        server = connect(url)
        return server if any(row.ready for row in server.models()) else None
    except WorkbenchError:
        return None


def test_panels_over_a_real_triton(triton: Any, tmp_path: Path) -> None:
    overview = triton.panel("overview")
    assert "remote server" in overview._head.value
    assert "1 of 1 ready" in overview._head.value
    assert "this server gives none" in triton.panel("devices")._head.value
    assert "gives no per-request records" in triton.panel("timeline")._said.value

    config = triton.panel("config", model="double")
    config.form[DELAY].value = 2000
    wait_for(lambda: "Apply is" in config._plan.value)
    assert "reload" in config._plan.value
    config._apply.click()
    wait_for(lambda: "config_epoch" in config._result.value)
    assert int(triton.model_config("double")["dynamic_batching"]["max_queue_delay_microseconds"]) == 2000
    file = tmp_path / "repository" / "double" / "config.pbtxt"
    assert "microseconds: 100 " in file.read_text()

    sweep = triton.panel("sweep", model="double", store=None)
    sweep.form.batch.value, sweep.form.delay.value, sweep.form.load.value = "", "0, 5000", "4"
    sweep.form.seconds.value = 0.4
    sweep.run(wait=True)
    assert [point.settings[DELAY] for point in sweep.points] == [0, 5000]
    assert all(point.n > 0 for point in sweep.points), sweep.result
    assert sweep._batches.info.reasons == ("unknown",)
    assert "configuration restored" in sweep._progress.value
