"""``server.capture`` in each place where a server can be, and ``workbench capture``."""

from __future__ import annotations

import json
import signal
import threading
from pathlib import Path

import numpy as np
import pytest

from workbench.cli import main
from workbench.clock import sleep
from workbench.errors import InvalidRequest, NotFound, Unsupported
from workbench.profiling.trace import Trace
from workbench.session.remote import TritonServer, WorkbenchServer
from workbench.session.server import Server


def ask(server: Server, value: float = 1.0, model: str = "double") -> None:
    server.infer(model, {"x": np.full((1, 4), value, np.float32)}, id=f"{value:g}")


def test_a_capture_lasts_as_long_as_its_with_and_is_saved_for_its_owner_alone(server: Server, tmp_path: Path) -> None:
    file = tmp_path / "new" / "traffic.trace.npz"
    with server.capture("double", to=file) as capture:
        ask(server, 1.0)
        ask(server, 2.0, "spare")
        assert capture.running
        assert "it goes on" in repr(capture)
        with pytest.raises(InvalidRequest, match="goes on"):
            capture.requests()
        sleep(0.05)
        ask(server, 3.0)
    ask(server, 4.0)
    assert not capture.running
    assert capture.stop() is capture
    found = capture.requests()
    assert [float(request.inputs[0].data[0, 0]) for _, request in found] == [1.0, 3.0]
    assert 0 < found[0][0] < found[1][0] - 0.05
    assert len(capture) == 2
    assert not capture.notes
    assert "Capture of 'double': 2 requests" in repr(capture)
    assert ("over HTTP 2" if server.kind == "process" else "over this kernel 2") in repr(capture)
    frame = capture.frame()
    assert frame["id"].tolist() == ["1", "3"]
    assert frame["shapes"].tolist() == ["x FP32 [1, 4]"] * 2
    assert frame["bytes"].tolist() == [16, 16]
    assert file.stat().st_mode & 0o777 == 0o600
    trace = Trace.load(file)
    assert (trace.offsets_ns == capture.trace.offsets_ns).all()
    assert 0.05 < trace.length_s < 60
    assert trace.source == f"capture of 'double' at {server.url or server.name}"


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"limit_mb": float("nan")}, "limit_mb must be a number above 0"),
        ({"limit_mb": float("inf")}, "limit_mb must be a number above 0"),
        ({"limit_mb": "x"}, "limit_mb must be a number above 0"),
        ({"for_s": float("nan")}, "seconds|lasts up to 3600 s"),
        ({"for_s": float("inf")}, "seconds|lasts up to 3600 s"),
        ({"to": 5}, "to must be the name of a file"),
        ({"to": "."}, "cannot be saved there"),
        ({"to": "/dev/null/traffic.npz"}, "cannot be saved there"),
        ({"to": "/proc/nobody/traffic.npz"}, "cannot be saved there"),
        ({"to": f"{'long' * 80}.npz"}, "cannot be saved there: File name too long"),
        ({"to": "a\0b.npz"}, "cannot be saved there"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_captured(
    server: Server, options: dict[str, object], text: str
) -> None:
    with pytest.raises(InvalidRequest, match=text):
        server.capture("double", **options)  # type: ignore[arg-type]


def test_it_says_what_is_not_in_it(server: Server) -> None:
    with (
        server.capture("double", limit_mb=1 / 16) as first,
        server.capture("double", limit_mb=1 / 16, keep="last") as last,
    ):
        for at in range(400):
            ask(server, at)
        with pytest.raises(InvalidRequest):
            server.infer("double", {"x": np.zeros((99, 4), np.float32)})
    for capture, where in ((first, "that came then"), (last, "that came first")):
        limit, refused = capture.notes
        assert limit.startswith("the limit of 0.0625 MB was reached after ")
        assert limit.endswith(f": the {400 - len(capture)} requests {where} are not kept")
        assert refused == "1 requests that the server refused as wrong are not in it"
        assert limit in repr(capture)
        assert limit in capture.trace.notes
    with server.capture("double", for_s=0.2) as short:
        assert short.wait() is short
    assert short.notes[0].startswith("it ended by itself after ")
    with pytest.raises(InvalidRequest, match="nothing was sent to 'double'"):
        short.trace  # noqa: B018
    with pytest.raises(NotFound, match="doubel"):
        server.capture("doubel")


def test_a_remote_triton_does_not_give_it_away(remote: TritonServer) -> None:
    with pytest.raises(Unsupported, match="does not give away what it is sent") as raised:
        remote.capture("double")
    assert "serve its repository here" in raised.value.hint


def test_an_error_inside_the_with_is_the_one_that_is_raised(server: Server) -> None:
    capture = server.capture("double")

    def work() -> None:
        with capture:
            ask(server)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        work()
    assert len(capture) == 1


def test_a_place_that_went_away_meanwhile_loses_nothing(server: Server, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    capture = server.capture("double", to=folder / "traffic.npz")
    assert not list(folder.iterdir())  # nothing of the trial stays
    ask(server)
    folder.rmdir()
    folder.write_text("a file where the folder was")
    with pytest.raises(InvalidRequest, match="cannot be saved") as raised:
        capture.stop()
    assert "capture.save(ANOTHER FILE)" in raised.value.hint
    assert len(Trace.load(capture.save(tmp_path / "other.npz"))) == 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_command_captures_until_its_time_is_over_or_it_is_told_to_end(
    number: signal.Signals, process: WorkbenchServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "traffic.trace.npz"
    stop = threading.Event()

    def client() -> None:
        while not stop.is_set():
            ask(process)
            sleep(0.01)

    def interrupt() -> None:
        while not any(each.requests > 3 and not each.ended for each in process.control.captures()):
            sleep(0.01)
        signal.raise_signal(number)

    thread = threading.Thread(target=client)
    thread.start()
    try:
        name = ["--server", process.name]
        assert main(["capture", "double", *name, "--for-s", "0.3", "--to", str(file)]) == 0
        shown = capsys.readouterr().out
        assert "Capture of 'double': " in shown
        assert "wb.Load.replay(" in shown
        assert len(Trace.load(file)) > 0
        assert file.stat().st_mode & 0o777 == 0o600
        assert main(["capture", "double", *name, "--for-s", "0.3", "--to", str(file)]) == 1  # there is one
        assert "is there already" in capsys.readouterr().err
        interrupter = threading.Thread(target=interrupt, daemon=True)
        interrupter.start()
        assert main(["capture", "double", "-u", process.url, "--to", str(file), "--overwrite", "--json"]) == 0
        told = json.loads(capsys.readouterr().out)
        assert told["file"] == str(file)
        assert told["requests"] == len(Trace.load(file)) > 3
    finally:
        stop.set()
        thread.join()
    assert main(["capture", "spare", *name, "--for-s", "0.1", "--to", str(tmp_path / "none")]) == 1
    assert not (tmp_path / "none").exists()
