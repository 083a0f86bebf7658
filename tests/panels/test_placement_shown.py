"""Where instances are is shown: devices, host policies, MIG slices, passive instances."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from panel_helpers import write_model

from workbench.session.kernel import Engine
from workbench.telemetry import load_devices

SLICES = Path(__file__).parents[1] / "recorded_devices" / "h200_seven_slices.json"
GROUPS = """instance_group [
  { kind: KIND_CPU host_policy: "fast" },
  { name: "sliced" kind: KIND_GPU gpus: [ 4 ] },
  { name: "spare" kind: KIND_CPU passive: true }
]
"""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Engine]:
    write_model(tmp_path, "double")
    config = tmp_path / "double" / "config.pbtxt"
    config.write_text(re.sub(r"instance_group.*", "", config.read_text()) + GROUPS)
    first = min(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 0
    engine = Engine(
        tmp_path,
        host_policies={"fast": {"cpu-cores": f"{first}-{first}"}},
        gpus=load_devices(SLICES),
        python_execution="process",
    )
    yield engine
    engine.close()


def test_the_devices_panel_says_where_each_instance_is(server: Engine) -> None:
    shown = server.panel("devices")
    shown.state.poll()
    shown.refresh()
    rows = re.findall(r"<tr[^>]*>(.*?)</tr>", shown._details.value)
    cells = [re.findall(r"<td[^>]*>(.*?)</td>", row) for row in rows]
    by_name = {row[0]: row for row in cells if len(row) == 6}
    first = min(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 0
    assert by_name["double_0_0"][2:5] == ["CPU", "fast", f"{first}-{first}"]
    assert by_name["sliced_0"][2].startswith("GPU 4 (MIG slice MIG-3333")
    assert by_name["spare_0"][2] == "CPU, passive"
    (model,) = server.models()
    assert (model.instances, model.healthy) == (2, 2), "a passive one executes nothing"
