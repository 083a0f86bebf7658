"""Sweeps kept apart and put back, wherever the server is and however the sweeping process ends."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest
from asking import wait_until

import workbench as wb
from workbench.client import connect
from workbench.errors import ConnectionFailed, NotReady
from workbench.profiling import Progress, SweepJob, SweepResult
from workbench.records.holder import Holder
from workbench.session.journal import JournalDesk, server_here
from workbench.session.remote import TritonServer, WorkbenchServer
from workbench.session.same_server import same_server

DELAY = "dynamic_batching.max_queue_delay_microseconds"
ROW = [[1.0, 2.0, 3.0, 4.0]]
QUICK: dict[str, Any] = {"duration_s": 0.2, "warmup_s": 0.01, "min_requests": 1, "store": None, "show_progress": False}
SWEEPER = """
import sys
import workbench as wb
url, token = sys.argv[1:]
server = wb.connect(url, token=token or None)
def told(progress):
    if progress.done == 1:
        print("measured one", flush=True)
server.sweep("double", {"dynamic_batching.max_queue_delay_microseconds": [70, 80, 90]}, concurrency=1, duration_s=30,
             max_duration_s=30, warmup_s=0, store=None, show_progress=False, on_progress=told, options=None)
""".replace(", options=None", "")


def killed_sweep(url: str, token: str, seen: Callable[[], bool]) -> int:
    """Starts a sweep in a process of its own, kills it when ``seen`` is true; gives its pid."""
    with subprocess.Popen([sys.executable, "-c", SWEEPER, url, token], stderr=subprocess.PIPE) as process:
        try:
            wait_until(lambda: process.poll() is not None or seen(), 60.0)
            assert process.poll() is None, process.stderr.read().decode() if process.stderr else ""
        finally:
            process.kill()
    return process.pid


def delay_of(server: wb.Engine | WorkbenchServer | TritonServer) -> int:
    return int(server.model_config("double")["dynamic_batching"].get("max_queue_delay_microseconds", 0))


def answered(server: TritonServer) -> int:
    return int(server.statistics("double")["model_stats"][0]["inference_stats"]["success"]["count"])


@pytest.fixture
def other(process: WorkbenchServer) -> Any:
    """The same server, as another notebook has it."""
    process.revert("double")
    with wb.connect(process.url, token=process.token) as server:
        assert isinstance(server, WorkbenchServer)
        yield server


def begun_sweep(server: Any, delays: Sequence[int] = (70, 80)) -> SweepJob:
    """A sweep that has measured a point and is not at its end."""
    begun = threading.Event()
    job = server.sweep(
        "double", {DELAY: list(delays)}, wait=False, concurrency=1,
        on_progress=lambda progress: begun.set() if progress.done else None, **QUICK,
    )  # fmt: skip
    assert isinstance(job, SweepJob)
    assert begun.wait(60)
    return job


def test_a_second_sweep_is_refused_and_told_who_has_the_model(process: WorkbenchServer, other: WorkbenchServer) -> None:
    before = process.config("double").text
    job = begun_sweep(process)
    try:
        for change in (
            lambda: other.sweep("double", {DELAY: [5]}, concurrency=1, **QUICK),
            lambda: other.sweep("double", {}, concurrency=1, **QUICK),
            lambda: other.configure("double", f"{DELAY}=5"),
            lambda: other.save("double"),
        ):
            if job.done:
                break
            with pytest.raises(NotReady) as caught:
                change()
            assert f"'double' is being swept by process {os.getpid()} (sweep of 'double'" in caught.value.message
            assert "wait for it or stop it" in caught.value.hint
    finally:
        assert job.wait(60) is not None
    assert process.config("double").text == before
    assert isinstance(other.sweep("double", {DELAY: [5]}, concurrency=1, **QUICK), SweepResult)
    assert process.control.leases() == []


def test_a_killed_sweep_is_followed_at_once_and_its_configuration_is_not_taken_for_the_original(
    process: WorkbenchServer, other: WorkbenchServer
) -> None:
    process.configure("double", f"{DELAY}=123")  # applied, not saved
    before = process.config("double")
    pid = killed_sweep(process.url, process.token, lambda: delay_of(process) == 70)
    assert delay_of(process) == 70
    assert other.control.leases()[0]["holder"]["pid"] == pid
    result = other.sweep("double", {DELAY: [5]}, concurrency=1, **QUICK)
    assert isinstance(result, SweepResult)
    assert result.restored
    after = process.config("double")
    assert (after.text, after.dirty) == (before.text, True)
    process.revert("double")


def test_an_edit_after_a_killed_sweep_has_the_configuration_put_back(process: WorkbenchServer) -> None:
    process.revert("double")
    before = process.config("double").text
    killed_sweep(process.url, process.token, lambda: delay_of(process) == 70)
    with pytest.raises(NotReady, match="is being swept"):
        process.configure("double", "max_batch_size=4")
    wait_until(lambda: process.config("double").text == before and not process.control.leases())
    assert process.configure("double", "max_batch_size=4").dirty
    process.revert("double")


def test_a_lease_that_was_lost_ends_the_sweep_with_what_was_measured(
    process: WorkbenchServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    process.revert("double")
    before = process.config("double").text
    monkeypatch.setattr("workbench.session.measuring.Hold.__init__.__kwdefaults__", {"ttl_s": 0.4})
    control = process.control
    monkeypatch.setattr(control, "renew_lease", _silent_until_lost(control))
    result = process.sweep(
        "double", {DELAY: [70, 80, 90]}, concurrency=1, **{**QUICK, "duration_s": 0.8, "store": tmp_path}
    )
    assert isinstance(result, SweepResult)
    assert result.status == "failed"
    assert "not yours any more" in result.error
    assert len(result) < 3
    assert not any(point.valid for point in result)
    assert process.config("double").text == before
    assert result.restored, "the server has put it back by itself"


def test_what_somebody_applies_after_a_lost_lease_is_not_called_restored(
    process: WorkbenchServer, other: WorkbenchServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workbench.session.measuring.Hold.__init__.__kwdefaults__", {"ttl_s": 0.4})
    silent = _silent_until_lost(process.control)

    def renew(model: str, lease: str) -> None:
        if not process.control.leases() and delay_of(process) != 31:
            other.configure("double", f"{DELAY}=31")
        silent(model, lease)

    monkeypatch.setattr(process.control, "renew_lease", renew)
    result = process.sweep("double", {DELAY: [70, 80, 90]}, concurrency=1, **{**QUICK, "duration_s": 0.8})
    assert isinstance(result, SweepResult)
    assert not result.restored
    assert "could not be restored: what is loaded is not what was there" in result.error
    assert delay_of(process) == 31, "theirs is not overwritten"
    process.revert("double")


def _silent_until_lost(control: Any) -> Callable[[str, str], None]:
    """Signs of life that do not come through, until there is no lease any more; then they hear so."""
    real = control.renew_lease

    def renew(model: str, lease: str) -> None:
        if not control.leases():
            real(model, lease)

    return renew


def test_two_sweeps_of_a_remote_server_from_here_are_kept_apart(foreign: TritonServer) -> None:
    job = begun_sweep(foreign)
    try:
        with (
            wb.connect(foreign.url) as second,
            pytest.raises(NotReady, match=f"is being swept by process {os.getpid()}"),
        ):
            second.sweep("double", {DELAY: [5]}, concurrency=1, **QUICK)
    finally:
        assert job.wait(60) is not None


def test_a_sweep_of_a_remote_server_ends_when_somebody_else_changes_the_model(foreign: TritonServer) -> None:
    before = foreign.model_config("double")

    def elsewhere(progress: Progress) -> None:
        """What a sweep on another machine does: its journal is not seen here."""
        if progress.done == 1:
            with wb.connect(foreign.url) as second:
                second.configure("double", f"{DELAY}=31")

    result = foreign.sweep(
        "double", {DELAY: [70]}, concurrency=[1, 2, 3], on_progress=elsewhere, **QUICK | {"duration_s": 0.1}
    )
    try:
        assert isinstance(result, SweepResult)
        assert [bool(point.error) for point in result] == [False, True]
        assert "somebody else has changed 'double'" in result.error
        assert "(dynamic_batching)" in result.error
        assert delay_of(foreign) == 31, "theirs is not overwritten"
        assert not result.restored
        assert "could not be restored: what is loaded is not what was there (dynamic_batching)" in result.error
        foreign.load("double", config=before)
        assert foreign.sweep("double", {DELAY: [70]}, concurrency=1, **QUICK).restored, "nothing of it is left"
    finally:
        foreign.load("double", config=before)


def test_a_foreign_change_under_the_last_point_and_a_foreign_unload_are_told_too(foreign: TritonServer) -> None:
    before = foreign.model_config("double")

    def swept(meddle: Callable[[TritonServer], object]) -> SweepResult:
        def elsewhere(progress: Progress) -> None:
            if progress.done == 1:  # the only one: nothing is measured after it
                with wb.connect(foreign.url) as second:
                    meddle(second)

        result = foreign.sweep("double", {DELAY: [70]}, concurrency=1, on_progress=elsewhere, **QUICK)
        assert isinstance(result, SweepResult)
        return result

    try:
        changed = swept(lambda second: second.configure("double", f"{DELAY}=31"))
        assert not changed.restored
        assert "somebody else has changed it" in changed.error
        assert len(changed) == 1
        assert not changed[0].error, "what was measured before is as it was"
        foreign.load("double", config=before)
        unloaded = swept(lambda second: second.unload("double"))
        assert not unloaded.restored
        assert "somebody else has unloaded it" in unloaded.error
    finally:
        foreign.load("double", config=before)


def test_what_a_killed_sweep_left_on_a_remote_server_is_put_back_by_the_next_one(foreign: TritonServer) -> None:
    before = foreign.model_config("double")
    killed_sweep(foreign.url, "", lambda: delay_of(foreign) == 70)
    assert delay_of(foreign) == 70
    result = foreign.sweep("double", {DELAY: [5]}, concurrency=1, **QUICK)
    assert isinstance(result, SweepResult)
    assert [point.error for point in result] == [""]
    assert foreign.model_config("double") == before


def test_what_could_not_be_put_back_is_put_back_by_the_next_sweep_of_the_same_process(
    foreign: TritonServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = foreign.model_config("double")

    def nobody(model: str, config: Any, **how: Any) -> None:
        raise ConnectionFailed("nobody answers")

    with monkeypatch.context() as patch:
        patch.setattr(foreign, "put_back", nobody)
        result = foreign.sweep("double", {DELAY: [70]}, concurrency=1, **QUICK)
    assert not result.restored
    assert "nobody answers" in result.error
    assert delay_of(foreign) == 70
    with wb.connect(foreign.url) as again:
        assert again.config("double").dirty, "it is known to whoever connects"
    assert foreign.sweep("double", {DELAY: [5]}, concurrency=1, **QUICK).restored
    assert foreign.model_config("double") == before


def test_what_a_killed_sweep_left_on_a_remote_server_is_known_to_whoever_connects(foreign: TritonServer) -> None:
    before = foreign.model_config("double")
    killed_sweep(foreign.url, "", lambda: delay_of(foreign) == 70)
    with wb.connect(foreign.url) as again:
        assert again.config("double").dirty
        again.revert("double")
        assert again.model_config("double") == before
        # what is loaded on purpose after that is nobody's leftover
        again.configure("double", f"{DELAY}=31")
        changed = again.model_config("double")
        again.sweep("double", {DELAY: [5]}, concurrency=1, **QUICK)
        assert again.model_config("double") == changed
        again.revert("double")
    assert foreign.model_config("double") == before


def test_a_server_is_one_however_its_address_is_spelled(process: WorkbenchServer, remote: TritonServer) -> None:
    port = process.url.rsplit(":", 1)[1]
    desk, holder = JournalDesk(remote), Holder.this_process("sweep of 'double'").to_json()
    lease = desk.lease("double", holder, 15.0)
    try:
        for url in (process.url, f"{process.url}/", f"http://LOCALHOST:{port}", process.grpc_url):
            with wb.connect(url) as second:
                assert isinstance(second, TritonServer)
                with pytest.raises(NotReady, match="'double' is being swept by process"):
                    JournalDesk(second).lease("double", holder, 15.0)
    finally:
        desk.release_lease("double", lease)


def test_a_sweep_by_address_and_one_by_name_are_kept_apart(
    process: WorkbenchServer, remote: TritonServer, tmp_path: Path
) -> None:
    process.revert("double")
    before = process.config("double").text
    with wb.connect(process.grpc_url) as by_grpc:
        for mine, others in ((process, [remote, by_grpc]), (remote, [process, by_grpc]), (by_grpc, [process, remote])):
            job = begun_sweep(mine, range(70, 170))
            try:
                for other in others:
                    for change in (
                        partial(other.sweep, "double", {DELAY: [5]}, concurrency=1, **QUICK),
                        partial(other.ab, "double", {}, {DELAY: 5}, concurrency=1, store=None, show_progress=False),
                        partial(other.configure, "double", f"{DELAY}=5"),
                    ):
                        with pytest.raises(NotReady, match=f"is being swept by process {os.getpid()}") as caught:
                            change()
                        assert "wait for it or stop it" in caught.value.hint
            finally:
                result = job.stop(60)
            assert result is not None
            assert result.restored
            assert {point.config["dynamic_batching"]["max_queue_delay_microseconds"] for point in result[:1]} == {70}
    assert process.config("double").text == before
    assert process.control.leases() == []


def test_the_http_and_the_grpc_port_of_a_server_are_one(
    foreign_process: WorkbenchServer, foreign: TritonServer
) -> None:
    before = foreign.model_config("double")
    with wb.connect(foreign_process.grpc_url) as by_grpc:
        for mine, other in ((foreign, by_grpc), (by_grpc, foreign)):
            job = begun_sweep(mine, range(70, 170))
            try:
                with pytest.raises(NotReady, match=f"is being swept by process {os.getpid()}.* at {mine.url}"):
                    other.sweep("double", {DELAY: [5]}, concurrency=1, **QUICK)
            finally:
                job.stop(60)
            assert foreign.model_config("double") == before


def test_what_a_killed_sweep_left_is_put_back_by_one_at_the_other_port(
    foreign_process: WorkbenchServer, foreign: TritonServer
) -> None:
    before = foreign.model_config("double")
    killed_sweep(foreign.url, "", lambda: delay_of(foreign) == 70 and answered(foreign) > 100)
    with wb.connect(foreign_process.grpc_url) as again:
        assert again.config("double").dirty
        assert isinstance(again.sweep("double", {DELAY: [5]}, concurrency=1, **QUICK), SweepResult)
    assert foreign.model_config("double") == before
    with wb.connect(foreign.url) as last:
        assert not last.config("double").dirty, "nothing is left of it"


def test_two_servers_of_one_machine_are_not_taken_for_one(
    process: WorkbenchServer, foreign_process: WorkbenchServer, foreign: TritonServer
) -> None:
    for server in (process, foreign_process):
        server.infer("double", {"x": ROW})
    with contextlib.closing(connect(foreign.url)) as here:
        assert same_server(here, foreign_process.grpc_url, "double")
        assert not same_server(here, process.grpc_url, "double")
        # where the model has counted nothing, what the server has counted for others tells
        assert same_server(here, foreign_process.grpc_url, "spare")
        assert same_server(here, process.grpc_url, "spare") is False
        assert not same_server(here, "http://127.0.0.1:1", "double")


def test_a_server_here_is_known_by_the_machines_own_names(process: WorkbenchServer) -> None:
    port = process.url.rsplit(":", 1)[1]
    own = [entry.address for entries in psutil.net_if_addrs().values() for entry in entries]
    addresses = [address for address in own if address.count(".") == 3]
    assert addresses
    for host in (socket.gethostname(), *addresses, "0.0.0.0", "[::1]"):
        found = server_here(f"http://{host}:{port}")
        assert found is not None, host
        assert found["name"] == process.name
    assert server_here(f"http://192.0.2.7:{port}") is None


def test_what_a_killed_sweep_left_is_put_back_by_one_that_spells_the_address_otherwise(
    process: WorkbenchServer, remote: TritonServer
) -> None:
    process.revert("double")
    before = process.config("double")
    killed_sweep(remote.url, "", lambda: delay_of(remote) == 70)
    with wb.connect(process.grpc_url) as again:
        again.sweep("double", {DELAY: [5]}, concurrency=1, **QUICK)
    after = process.config("double")
    assert (after.text, after.dirty, after.effective) == (before.text, False, before.effective)


@pytest.mark.parametrize("edit", [{"max_batch_size": [4, 8]}, {"max_batch_size": [16]}, {DELAY: [70]}, {DELAY: [0]}])
def test_a_sweep_by_address_leaves_a_model_as_saved_where_it_was(
    process: WorkbenchServer, remote: TritonServer, edit: dict[str, list[int]]
) -> None:
    process.revert("double")
    before = process.config("double")
    result = remote.sweep("double", edit, concurrency=1, **QUICK)
    assert isinstance(result, SweepResult)
    assert [point.error for point in result] == [""] * len(result)
    assert result.restored
    after = process.config("double")
    assert (after.text, after.dirty) == (before.text, False)


def test_a_sweep_by_address_leaves_what_was_applied_and_not_saved(
    process: WorkbenchServer, remote: TritonServer
) -> None:
    process.configure("double", f"{DELAY}=123")
    before = process.config("double")
    result = remote.sweep("double", {DELAY: [70]}, concurrency=1, **QUICK)
    assert isinstance(result, SweepResult)
    assert result.restored
    after = process.config("double")
    assert (after.effective, after.dirty) == (before.effective, True)
    process.revert("double")


@pytest.mark.parametrize(("edits", "sizes"), [(["max_batch_size=4"], [4]), (["max_batch_size=16"], [16])])
def test_the_preferred_size_that_was_made_of_max_batch_size_goes_with_it(
    process: WorkbenchServer, remote: TritonServer, edits: list[str], sizes: list[int]
) -> None:
    process.revert("double")
    assert remote.model_config("double")["dynamic_batching"]["preferred_batch_size"] == [8]
    remote.configure("double", *edits)
    assert remote.model_config("double")["dynamic_batching"]["preferred_batch_size"] == sizes
    remote.configure("double", "max_batch_size=32", f"dynamic_batching.preferred_batch_size={sizes}")
    assert remote.model_config("double")["dynamic_batching"]["preferred_batch_size"] == sizes, "it was asked for"
    remote.revert("double")
    process.revert("double")


@pytest.mark.skipif(sys.platform == "win32", reason="no SIGTERM there")
def test_a_terminated_command_puts_the_configuration_back(process: WorkbenchServer, tmp_path: Path) -> None:
    process.revert("double")
    before = process.model_config("double")
    command = [sys.executable, "-m", "workbench.cli", "sweep", "double", "-u", process.url, "--runs", str(tmp_path)]
    command += ["--set", f"{DELAY}=[70,80,90]", "--concurrency", "1", "-p", "30000", "--warmup", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        wait_until(lambda: running.poll() is not None or delay_of(process) == 70, 60.0)
        running.send_signal(signal.SIGTERM)
        _, said = running.communicate(timeout=60)
    assert running.returncode == 130, said
    assert "stopped after" in said
    assert "--resume" in said
    assert process.model_config("double") == before  # at once; as a remote Triton it was reloaded
    process.revert("double")
