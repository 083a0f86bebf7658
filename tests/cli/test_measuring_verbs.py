"""profile, sweep, runs and export against a running server."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from workbench.cli import main
from workbench.config import ConfigDocument
from workbench.records.runs import RunStore
from workbench.session.opening import serve
from workbench.session.remote import WorkbenchServer

pytestmark = pytest.mark.usefixtures("server")
FAST = ["-p", "400", "--warmup", "0.1"]


@pytest.fixture(scope="module")
def server(repository: Path) -> Iterator[WorkbenchServer]:
    with serve(repository, models=["magika"], name="cli-test") as opened:
        yield opened


@pytest.fixture
def runs(tmp_path: Path) -> str:
    return str(tmp_path / "runs")


def test_profile_measures_a_range_and_stores_it(runs: str, capsys: pytest.CaptureFixture[str]) -> None:
    main(["profile", "magika", "--server", "cli-test", "--concurrency-range", "1:3:2", "--runs", runs, "--json", *FAST])
    answer = json.loads(capsys.readouterr().out)
    assert [point["load"]["concurrency"] for point in answer["points"]] == [1, 3]
    assert all(point["throughput"] > 0 and point["failed"] == 0 for point in answer["points"])
    assert main(["runs", "list", "--runs", runs, "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["id"], row["kind"], row["points"], row["status"]) == (answer["run"], "profile", 2, "done")
    assert main(["runs", "show", "latest", "--runs", runs]) == 0
    assert "concurrency 3" in capsys.readouterr().out


def test_what_could_not_be_stored_is_said_and_no_success(
    runs: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from workbench.errors import InternalError
    from workbench.records.runs import Run

    def full(run: Run, *given: object, **more: object) -> int:
        raise InternalError("the run cannot be written: database or disk is full", where="here")

    monkeypatch.setattr(Run, "add_point", full)
    for json_or_not in ([], ["--json"]):
        code = main(["profile", "magika", "--server", "cli-test", "--runs", runs, *json_or_not, *FAST])
        assert code == 1
        assert "nothing was stored: the run cannot be written" in capsys.readouterr().err


def test_a_port_where_nobody_listens_is_said_with_what_to_check(runs: str, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # it does not listen
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        assert main(["profile", "magika", "-u", address, "--runs", runs, *FAST]) == 1
    said = capsys.readouterr().err
    assert f"nothing listens at http://{address}: connection refused" in said
    assert "does the server run" in said


def test_a_file_says_what_is_sent(
    runs: str, tmp_path: Path, server: WorkbenchServer, capsys: pytest.CaptureFixture[str]
) -> None:
    far = ["profile", "magika", "-u", server.url, "--runs", runs, *FAST]
    main(far)
    assert "random numbers" in (shown := capsys.readouterr().out)
    assert "--input-data FILE" in shown
    path = tmp_path / "inputs.json"
    path.write_text(json.dumps({"data": [{"bytes": {"content": [1] * 2048}}]}))
    main([*far, "--input-data", str(path)])
    assert "random numbers" not in capsys.readouterr().out
    path.write_text(json.dumps({"data": [{"bytes": {"content": [1] * 3}}]}))
    main([*far, "--input-data", str(path)])
    assert capsys.readouterr().out.count("3 elements do not fill shape [2048]") == 1
    assert main([*far, "--input-data", str(tmp_path / "none.json")]) != 0
    assert "no such file of inputs" in "".join(capsys.readouterr())


def test_why_requests_failed_and_priorities_that_change_nothing_are_said(
    runs: str, tmp_path: Path, server: WorkbenchServer, capsys: pytest.CaptureFixture[str]
) -> None:
    classes = tmp_path / "classes.json"
    classes.write_text(json.dumps({"fits": {"rate": 50, "priority": 1}, "not": {"rate": 20, "batch_size": 4}}))
    server.configure("magika", max_batch_size=2)
    try:
        main(["profile", "magika", "--server", "cli-test", "--classes", str(classes), "--runs", runs, *FAST])
        shown = capsys.readouterr().out
    finally:
        server.configure("magika", max_batch_size=16)
    assert "failed: [request id: <id_unknown>] inference request batch-size must be <= 2" in shown, shown
    assert "priorities change nothing: 'magika' has no dynamic_batching.priority_levels" in shown


def test_a_capture_without_a_request_writes_nothing_and_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    to = tmp_path / "none.trace.npz"
    assert main(["capture", "magika", "--server", "cli-test", "--for-s", "0.05", "--to", str(to)]) == 1
    assert "nothing was written" in capsys.readouterr().out
    assert not to.exists()


def test_streams_have_a_table_of_their_own(runs: str, capsys: pytest.CaptureFixture[str]) -> None:
    main(["profile", "magika", "--server", "cli-test", "--streaming", "--runs", runs, *FAST])
    shown = capsys.readouterr().out
    main(["runs", "show", "latest", "--runs", runs])
    for text in (shown, capsys.readouterr().out):
        assert "first p50 ms" in text
        assert "between p99 ms" in text
    main(["profile", "magika", "--server", "cli-test", "--runs", runs, *FAST])
    assert "first p50 ms" not in capsys.readouterr().out


def test_a_sweep_is_exported_with_its_best_configuration(
    runs: str, tmp_path: Path, repository: Path, server: WorkbenchServer, capsys: pytest.CaptureFixture[str]
) -> None:
    before = server.config("magika").text
    grid = ["--set", "max_batch_size=[2,4]", "--set", 'dynamic_batching=[{"max_queue_delay_microseconds": 100}]']
    main(["sweep", "magika", "--server", "cli-test", *grid, "--concurrency", "4", "--runs", runs, "--json", *FAST])
    answer = json.loads(capsys.readouterr().out)
    assert [point["settings"]["max_batch_size"] for point in answer["points"]] == [2, 4]
    assert server.config("magika").text == before
    if answer["best"] is None:
        pytest.fail(f"no valid point: {answer['points']}")
    main(["profile", "magika", "--server", "cli-test", "--runs", runs, "--json", *FAST])  # is no sweep
    capsys.readouterr()
    arguments = ["export", "latest", "--to", str(tmp_path / "out"), "--runs", runs, "--json"]
    assert main([*arguments, "--model-repository", str(repository)]) == 0
    written = (tmp_path / "out" / "model_repository" / "magika" / "config.pbtxt").read_text()
    assert f"max_batch_size: {answer['best']['settings']['max_batch_size']}" in written
    assert "max_queue_delay_microseconds: 100" in written
    provenance = json.loads((tmp_path / "out" / "provenance.json").read_text())
    assert provenance["models"]["magika"]["measured"]["run"] == answer["run"]
    capsys.readouterr()
    assert main([*arguments, "--model-repository", str(repository)]) == 1
    assert "exists" in json.loads(capsys.readouterr().out)["error"]


def test_an_export_has_the_edits_that_the_sweep_was_measured_with(
    runs: str, tmp_path: Path, repository: Path, server: WorkbenchServer, capsys: pytest.CaptureFixture[str]
) -> None:
    """Edits that were applied to the server and never saved: its file does not have them."""
    batching = {"max_queue_delay_microseconds": 300, "priority_levels": 2, "default_priority_level": 1}
    server.configure("magika", "instance_group[0].count=2", dynamic_batching=batching)
    try:
        main(["sweep", "magika", "--server", "cli-test", "--set", "max_batch_size=[2,4]", "--concurrency", "4",
              "--runs", runs, *FAST])  # fmt: skip
    finally:
        server.revert("magika")
    arguments = ["export", "latest", "--to", str(tmp_path / "out"), "--runs", runs]
    run = RunStore(runs).list()[-1].id
    capsys.readouterr()
    assert main([*arguments, "--model-repository", str(repository)]) == 0, capsys.readouterr()
    assert capsys.readouterr().err.startswith(f"run {run}: ")
    written = ConfigDocument.parse((tmp_path / "out" / "model_repository" / "magika" / "config.pbtxt").read_bytes())
    assert written.message.max_batch_size in (2, 4)
    assert written.message.dynamic_batching.priority_levels == 2
    assert written.message.dynamic_batching.max_queue_delay_microseconds == 300
    assert [group.count for group in written.message.instance_group] == [2]
    assert list(written.message.parameters) == ["intra_op_thread_count"]
    assert len(written.message.model_warmup) == 1


def test_a_sweep_is_resumed_and_its_values_are_shown_as_they_were_written(
    runs: str, capsys: pytest.CaptureFixture[str]
) -> None:
    sweep = ["sweep", "magika", "--server", "cli-test", "--set", "parameters[FOO]=one,two", "--runs", runs, *FAST]
    main(sweep)
    first = capsys.readouterr().out
    assert '"one"' in first
    assert "FOO" in first
    main([*sweep, "--resume"])
    again = capsys.readouterr().out
    assert again == first, "measured again"
    assert main(["runs", "list", "--runs", runs, "--json"]) == 0
    assert [row["points"] for row in json.loads(capsys.readouterr().out)] == [2]


def test_a_repository_is_exported_as_it_is(
    repository: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["export", str(repository), "--to", str(tmp_path / "out"), "--model", "magika"]) == 0
    assert "tritonserver --model-repository=" in capsys.readouterr().out
    copied = tmp_path / "out" / "model_repository" / "magika"
    assert (copied / "config.pbtxt").read_bytes() == (repository / "magika" / "config.pbtxt").read_bytes()


def test_an_unknown_model_is_named(runs: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["profile", "nothing", "--server", "cli-test", "--runs", runs, *FAST]) == 1
    shown = capsys.readouterr()
    assert "nothing" in shown.err + shown.out
