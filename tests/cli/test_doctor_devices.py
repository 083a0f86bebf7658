"""``workbench doctor`` shows the devices that models can be placed on, as a list that ``serve --device-list`` reads."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from workbench.cli import main
from workbench.telemetry import load_devices

RECORDED = Path(__file__).parents[1] / "recorded_devices"


@pytest.mark.parametrize("name", ["four_gpus_two_nodes", "h200_seven_slices"])
def test_devices_are_shown_and_can_be_read_back(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    devices = load_devices(RECORDED / f"{name}.json")
    monkeypatch.setattr("workbench.telemetry.find_devices", lambda: devices)
    monkeypatch.setattr("workbench.backends.probe.names", lambda: ["python"])
    assert main(["doctor", "--json"]) == 0
    path = tmp_path / "devices.json"
    path.write_text(json.dumps(json.loads(capsys.readouterr().out)["devices"]["gpus"]))
    assert load_devices(path) == devices
    assert main(["doctor"]) == 0
    shown = capsys.readouterr().out
    for device in devices:
        assert device.describe() in shown
