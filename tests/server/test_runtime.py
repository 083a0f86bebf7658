"""Runtime files: who can read them, what happens to stale ones."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from workbench.errors import InvalidRequest, NotFound, NotReady
from workbench.server import runtime


@pytest.fixture(autouse=True)
def _state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))


def info(name: str, pid: int | None = None, started: str = "2026-01-01T00:00:00+00:00") -> runtime.ServerInfo:
    number = os.getpid() if pid is None else pid
    return runtime.ServerInfo(
        name=name,
        pid=number,
        http="http://127.0.0.1:1",
        grpc="",
        metrics="",
        repositories=["/models"],
        token="secret",
        started=started,
        detached=False,
        version="0",
        control_mode="explicit",
        created=runtime.process_created(number),
    )


def test_only_the_owner_can_read_it(tmp_path: Path) -> None:
    path = runtime.write(info("mine"))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert runtime.read("mine") == info("mine")
    assert [entry["name"] for entry in runtime.list_servers()] == ["mine"]
    assert list(path.parent.iterdir()) == [path], "no half-written file is left behind"


def test_servers_are_listed_oldest_first() -> None:
    runtime.write(info("new", started="2026-01-02T00:00:00+00:00"))
    runtime.write(info("old"))
    assert [entry["name"] for entry in runtime.list_servers()] == ["old", "new"]


def test_the_file_of_a_process_that_is_gone_is_dropped() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    path = runtime.write(info("gone", child.pid))
    assert runtime.read("gone")["pid"] == child.pid
    child.kill()
    child.wait()
    assert runtime.list_servers() == []
    assert not path.exists()
    with pytest.raises(NotFound, match="no server named 'gone'"):
        runtime.read("gone")


def test_a_number_that_another_process_has_got_is_not_taken_for_it() -> None:
    reused = info("reused")
    reused["created"] -= 3600
    runtime.write(reused)
    assert runtime.list_servers() == []


def test_broken_files_are_dropped() -> None:
    for name, text in (("a", "{"), ("b", "[]"), ("c", '{"name": "c"}')):
        (runtime.directory() / f"{name}.json").write_text(text)
    assert runtime.list_servers() == []


@pytest.mark.parametrize("name", ["", "../x", "a/b", ".hidden", "a" * 65, "a b"])
def test_names_cannot_leave_the_folder(name: str) -> None:
    with pytest.raises(InvalidRequest, match="cannot name a server"):
        runtime.read(name)


def test_a_free_name_is_found() -> None:
    assert runtime.free_name("model repository!") == "model-repository"
    runtime.write(info("models"))
    assert runtime.free_name("models") == "models-2"


def test_only_its_own_file_is_removed() -> None:
    path = runtime.write(info("mine"))
    runtime.remove("mine", os.getpid() + 1)
    assert path.exists()
    runtime.remove("mine", os.getpid())
    assert not path.exists()


@pytest.mark.parametrize("place", ["file", "file/state"])
def test_a_place_that_cannot_be_had_is_said_in_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / place))
    for ask in (runtime.list_servers, lambda: runtime.read("a"), lambda: runtime.write(info("a"))):
        with pytest.raises(NotReady, match="the folder of running servers cannot be used") as caught:
            ask()
        assert str(tmp_path / place) in caught.value.where
        assert "XDG_STATE_HOME" in caught.value.hint


@pytest.mark.parametrize("value", ["", "relative/state"])
def test_a_state_home_that_is_no_absolute_path_does_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", value)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert runtime.directory() == tmp_path / "home" / ".local" / "state" / "serving-workbench" / "servers"
    assert not (tmp_path / "relative").exists()
