"""Opening and closing: serve, Engine, connect, attach, and who lives how long."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

import workbench as wb
from workbench.clock import monotonic_ns, sleep
from workbench.errors import ConnectionFailed, InvalidRequest, LoadFailed, NotFound, Unsupported, WorkbenchError
from workbench.protocol.tensors import InferenceRequest, InferenceResponse
from workbench.server import runtime
from workbench.session.remote import WorkbenchServer
from workbench.session.server import Server

Closing = Callable[[Server], Server]

ROW = [[1.0, 2.0, 3.0, 4.0]]


def until(condition: Callable[[], bool], timeout_s: float = 15.0) -> bool:
    """Whether it becomes true in time."""
    end = monotonic_ns() + int(timeout_s * 1e9)
    while not condition():
        if monotonic_ns() > end:
            return False
        sleep(0.02)
    return True


def gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


@pytest.fixture(autouse=True)
def _own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No server of another test is seen."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


# -- serve ------------------------------------------------------------------------------------------------------------


def test_the_same_call_again_gives_the_same_server_and_another_call_another(
    repository: Path, closing: Closing, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = closing(wb.serve(repository))
    assert wb.serve(repository) is first
    assert wb.serve(str(repository) + "/", name=first.name) is first
    monkeypatch.chdir(repository.parent)
    assert wb.serve("models") is first
    other = closing(wb.serve(repository, models=["spare"]))
    assert other is not first
    assert other.name != first.name
    assert not other.is_model_ready("double")
    assert other.is_model_ready("spare")
    first.close()
    again = closing(wb.serve(repository))
    assert again is not first
    assert again.infer("double", {"x": ROW})["y"].shape == (1, 4)


def test_who_started_a_server_may_ask_it_what_others_may_not(repository: Path, closing: Closing) -> None:
    shut = "health,inference,statistics,model-config,metadata,model-repository:key=word"
    server = closing(wb.serve(repository, options={"http_restricted_api": shut, "repository_token": "t0k"}))
    for own in (server, wb.attach(server.name), wb.connect(server.url, token=server.token)):
        own.infer("double", {"x": ROW})
        assert own.is_live()
        assert own.statistics("double")["model_stats"][0]["inference_count"] > 0
        own.unload("spare")
        own.load("spare")
    with pytest.raises(ConnectionFailed, match="health API not restricted"):
        wb.connect(server.url)
    options = {"http_restricted_api": "statistics:key=word", "repository_token": "t0k"}
    stranger = closing(wb.connect(closing(wb.serve(repository, options=options)).url))
    for refused in (lambda: stranger.statistics("double"), lambda: stranger.unload("double")):
        with pytest.raises(WorkbenchError, match=r"what to do: .*token"):
            refused()


def test_an_ipv6_address_that_is_not_reached_is_told_in_brackets() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # whether or not this machine has IPv6, nothing answers there
        port = taken.getsockname()[1]
        with pytest.raises(ConnectionFailed) as caught:
            wb.connect(f"http://[::1]:{port}")
    assert caught.value.where == f"[::1]:{port}"


@pytest.mark.parametrize("scheme", ["http", "grpc"])
def test_a_port_where_nobody_listens_is_said_to_be_one(scheme: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and nobody else gets it; it does not listen
        url = f"{scheme}://127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(ConnectionFailed) as caught:
            wb.connect(url)
    assert caught.value.message == f"nothing listens at {url}: connection refused"
    assert "does the server run" in caught.value.hint
    assert "8000 for HTTP, 8001 for gRPC" in caught.value.hint


def test_a_host_that_is_not_known_is_said_to_be_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*address: object, **how: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    with pytest.raises(ConnectionFailed, match=r"http://gpu-box:8000 cannot be reached: .*service not known"):
        wb.connect("http://gpu-box:8000")


def test_a_server_whose_models_are_not_controlled_says_how_they_would_be(repository: Path, closing: Closing) -> None:
    remote = closing(wb.connect(closing(wb.serve(repository, control_mode="none")).url))
    for refused in (lambda: remote.load("double"), lambda: remote.unload("double")):
        with pytest.raises(WorkbenchError, match=r"what to do: .*--model-control-mode explicit"):
            refused()


def test_a_server_that_has_died_is_replaced_and_its_end_is_told(repository: Path, closing: Closing) -> None:
    first = closing(wb.serve(repository))
    os.kill(first.pid, signal.SIGKILL)
    assert until(lambda: gone(first.pid))
    with pytest.raises(ConnectionFailed) as caught:
        first.infer("double", {"x": ROW})
    assert "has ended with exit code -9" in caught.value.hint
    assert str(first.log_path) in caught.value.hint
    assert "has ended with exit code -9" in repr(first)
    assert closing(wb.serve(repository)) is not first


def test_an_owned_server_ends_when_it_is_closed(repository: Path) -> None:
    with wb.serve(repository) as server:
        assert isinstance(server, WorkbenchServer)
        assert server.owned
        pid = server.pid
        assert runtime.read(server.name)["pid"] == pid
    assert server.closed
    assert gone(pid)
    assert server.name not in [info["name"] for info in runtime.list_servers()]
    server.close()
    assert "closed" in repr(server)


PARENT = """
import sys
import workbench as wb
server = wb.serve(sys.argv[1])
import os
if sys.argv[2] == "fork":
    if os.fork() == 0:  # a data loader, say, that outlives its parent
        os.close(1)
        import time
        time.sleep(60)
        os._exit(0)
print(server.pid, flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("kind", ["alone", "fork"])
def test_an_owned_server_dies_with_its_parent_however_that_dies(repository: Path, kind: str) -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, str(repository), kind],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        children = psutil.Process(pid).children(recursive=True)
        assert not gone(pid)
        parent.kill()
        parent.wait()
        assert until(lambda: gone(pid))
        assert all(until(lambda child=child: gone(child.pid)) for child in children)  # type: ignore[misc]
        assert runtime.list_servers() == []
    finally:
        os.killpg(parent.pid, signal.SIGKILL) if kind == "fork" else parent.kill()
        parent.wait()
        for stream in (parent.stdin, parent.stdout):
            if stream is not None:
                stream.close()


ENDLESS = """
import time
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        time.sleep(3600)

    def execute(self, requests):
        return []
"""


def test_an_owned_server_dies_with_its_parent_also_while_a_model_loads_for_ever(tmp_path: Path) -> None:
    directory = tmp_path / "models" / "endless" / "1"
    directory.mkdir(parents=True)
    (directory / "model.py").write_text(ENDLESS)
    (directory.parent / "config.pbtxt").write_text(
        'backend: "python"\ninput [ { name: "x" data_type: TYPE_FP32 dims: [ 1 ] } ]\n'
        'output [ { name: "y" data_type: TYPE_FP32 dims: [ 1 ] } ]\ninstance_group [ { kind: KIND_CPU } ]\n'
    )
    parent = subprocess.Popen([sys.executable, "-c", PARENT, str(tmp_path / "models"), ""], stdin=subprocess.PIPE)
    found: list[psutil.Process] = []

    def loading() -> bool:
        found[:] = psutil.Process(parent.pid).children(recursive=True)
        return len(found) == 2  # the server and the model's process

    try:
        assert until(loading)
        parent.kill()
        parent.wait()
        assert until(lambda: gone(found[0].pid))
    finally:
        parent.kill()
        for each in found:
            with contextlib.suppress(psutil.NoSuchProcess):
                each.kill()
        parent.communicate()


DETACHED = "import sys, workbench as wb; print(wb.serve(sys.argv[1], name='lasting', detached=True).pid)"


def test_a_detached_server_goes_on_and_attach_finds_it(repository: Path, closing: Closing) -> None:
    out = subprocess.run([sys.executable, "-c", DETACHED, str(repository)], capture_output=True, check=True, text=True)
    pid = int(out.stdout)
    try:
        server = wb.attach("lasting")
        assert (server.pid, server.owned, server.name) == (pid, False, "lasting")
        assert server.repository_paths == (repository,)
        assert wb.attach().pid == pid
        assert server.infer("double", {"x": ROW})["y"].tolist() == [[2, 4, 6, 8]]
        server.close()
        assert not gone(pid)
        with pytest.raises(InvalidRequest, match="'lasting' runs already") as taken:
            wb.serve(repository, name="lasting")
        assert "attach('lasting')" in taken.value.hint
        with pytest.raises(NotFound) as caught:
            wb.attach("lastin")
        assert caught.value.hint == "running: lasting"
        closing(wb.serve(repository))
        with pytest.raises(InvalidRequest, match="several servers run") as several:
            wb.attach()
        assert "lasting" in several.value.hint
        wb.attach("lasting").shutdown()
        assert until(lambda: gone(pid))
    finally:
        if not gone(pid):
            os.kill(pid, signal.SIGKILL)


def test_two_servers_started_at_once_get_two_names(tmp_path: Path, closing: Closing) -> None:
    command = [sys.executable, "-c", PARENT]
    roots = [tmp_path / side / "models" for side in "ab"]
    for root in roots:
        root.mkdir(parents=True)
    parents = [
        subprocess.Popen([*command, str(root), ""], stdin=subprocess.PIPE, stdout=subprocess.PIPE) for root in roots
    ]
    try:
        pids = {int(parent.stdout.readline()) for parent in parents if parent.stdout is not None}
        found = runtime.list_servers()
        assert {info["pid"] for info in found} == pids
        assert {info["name"] for info in found} == {"models", "models-2"}
    finally:
        for parent in parents:
            parent.communicate(b"")
    assert until(lambda: all(gone(pid) for pid in pids))


def test_files_beside_the_notebook_do_not_shadow_what_the_server_imports(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, closing: Closing
) -> None:
    folder = tmp_path / "notebooks"
    folder.mkdir()
    for name in ("json", "numpy", "queue", "random"):
        (folder / f"{name}.py").write_text("raise SystemExit('not this one')\n")
    monkeypatch.chdir(folder)
    server = closing(wb.serve(repository))
    assert server.infer("double", {"x": ROW})["y"].tolist() == [[2.0, 4.0, 6.0, 8.0]]


def test_serve_of_an_absent_path() -> None:
    for verb in (wb.serve, wb.Engine):
        with pytest.raises(NotFound, match="no model repository at nowhere") as caught:
            verb("nowhere")
        assert caught.value.where == str(Path.cwd() / "nowhere")
        assert "model directories" in caught.value.hint


@pytest.mark.parametrize(
    ("options", "name", "text"),
    [
        pytest.param({"http-port": "no-number"}, None, "no-number", id="flag"),
        pytest.param({"backend-config": "nonsense"}, None, "nonsense", id="value"),
    ],
)
def test_a_server_that_cannot_start_says_why(
    repository: Path, options: dict[str, str], name: str | None, text: str
) -> None:
    with pytest.raises(LoadFailed, match="ended with exit code") as caught:
        wb.serve(repository, options=options, name=name)
    assert text in caught.value.where
    assert ".log" in caught.value.hint
    assert runtime.list_servers() == []


def test_models_are_loaded_by_the_control_plane_in_control_mode_none_too(repository: Path, closing: Closing) -> None:
    server = closing(wb.serve(repository, control_mode="none", options={"log_verbose": 1, "strict_readiness": False}))
    assert server.control_mode == "none"
    assert server.is_model_ready("double")
    server.unload("double")
    assert not server.is_model_ready("double")
    server.load("double")
    assert server.infer("double", {"x": ROW})["y"].shape == (1, 4)
    # As any Triton in that mode, it takes no changes without the token.
    remote = closing(wb.connect(server.url))
    with pytest.raises(Unsupported) as caught:
        remote.configure("double", "max_batch_size=4")
    assert "--model-control-mode=explicit" in caught.value.hint


def test_a_flag_may_be_given_several_times(repository: Path, closing: Closing) -> None:
    settings = ["onnxruntime,default-max-batch-size=4", "python,shm-region-prefix-name=mine"]
    server = closing(wb.serve(repository, options={"backend-config": settings}))
    assert server.is_model_ready("double")


def test_a_taken_port_is_told(repository: Path, process: WorkbenchServer) -> None:
    port = int(process.url.rpartition(":")[2])
    with pytest.raises(LoadFailed) as caught:
        wb.serve(repository, http_port=port)
    assert str(port) in caught.value.where


def test_the_log_is_the_owners_alone_and_no_link_is_followed(
    repository: Path, tmp_path: Path, closing: Closing
) -> None:
    victim = tmp_path / "victim"
    victim.write_text("mine")
    (runtime.directory() / "linked.log").symlink_to(victim)
    with pytest.raises(WorkbenchError):
        wb.serve(repository, name="linked")
    assert victim.read_text() == "mine"
    server = closing(wb.serve(repository))
    assert isinstance(server, WorkbenchServer)
    assert server.log_path is not None
    assert server.log_path.parent == runtime.directory()
    assert server.log_path.stat().st_mode & 0o077 == 0
    assert "double" in server.log()


def test_looking_for_a_server_never_removes_the_file_of_one_that_appears() -> None:
    info = runtime.ServerInfo(
        name="appearing",
        pid=os.getpid(),
        http="http://127.0.0.1:1",
        grpc="",
        metrics="",
        repositories=[],
        token="t",
        started="",
        detached=False,
        version="",
        control_mode="none",
        created=runtime.process_created(os.getpid()),
    )
    stop = threading.Event()

    def look() -> None:
        while not stop.is_set():
            with contextlib.suppress(NotFound):
                runtime.read("appearing")

    threads = [threading.Thread(target=look) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(200):
            runtime.write(info)
            assert runtime.read("appearing")["pid"] == os.getpid()
            runtime.remove("appearing")
    finally:
        stop.set()
        for thread in threads:
            thread.join()


# -- connect ----------------------------------------------------------------------------------------------------------


def test_connect_with_the_token_gives_everything_and_ends_nothing(process: WorkbenchServer) -> None:
    with wb.connect(process.url, token=process.token) as server:
        assert isinstance(server, WorkbenchServer)
        assert (server.name, server.kind, server.owned) == (process.name, "process", False)
        last = server.record_columns().last_seq
        server.infer("double", {"x": ROW}, id="far")
        assert server.records(last)["request_id"].tolist() == ["far"]
        assert server.state()["versions"]
        # Its paths are not taken for paths of this machine.
        assert server.model_directory("double") is None
    assert process.is_live()


def test_connect_without_a_token_is_connecting_to_any_triton(process: WorkbenchServer) -> None:
    with wb.connect(process.url) as server:
        assert server.kind == "remote"
        with pytest.raises(Unsupported):
            server.records()


@pytest.mark.parametrize(
    ("url", "token", "kind", "text"),
    [
        pytest.param("localhost", None, InvalidRequest, "write http://host:port", id="no scheme and no port"),
        pytest.param("127.0.0.1:9", None, ConnectionFailed, "", id="no scheme is HTTP"),
        pytest.param("ftp://host", None, InvalidRequest, "write http://host:port", id="scheme"),
        pytest.param("grpc://localhost:8001", "t", InvalidRequest, "on the HTTP port", id="token over gRPC"),
        pytest.param("http://127.0.0.1:9", None, ConnectionFailed, "", id="nobody there"),
        pytest.param("http://127.0.0.1:9", "t", ConnectionFailed, "", id="nobody there, with a token"),
        pytest.param("grpc://127.0.0.1:9", None, ConnectionFailed, "", id="nobody there, gRPC"),
    ],
)
def test_connect_to_what_is_not_there(url: str, token: str | None, kind: type[WorkbenchError], text: str) -> None:
    with pytest.raises(kind) as caught:
        wb.connect(url, token=token)
    assert text in caught.value.hint
    assert url in str(caught.value)


def test_a_wrong_token_is_refused(process: WorkbenchServer) -> None:
    with pytest.raises(WorkbenchError, match="token"):
        wb.connect(process.url, token="wrong")


# -- Engine -----------------------------------------------------------------------------------------------------------


def test_an_engine_left_open_does_not_keep_the_kernel_from_ending(repository: Path) -> None:
    code = (
        "import sys, workbench as wb\n"
        "engine = wb.Engine(sys.argv[1])\n"
        "engine.session.subscribe(lambda: None)\n"
        f"print(engine.infer('double', {{'x': {ROW}}})['y'].tolist())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(repository)], capture_output=True, text=True, timeout=30, check=False
    )
    assert (done.returncode, done.stdout.strip()) == (0, "[[2.0, 4.0, 6.0, 8.0]]"), done.stderr
    assert done.stderr == ""


def test_an_engine_answers_from_many_threads(kernel: wb.Engine) -> None:
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda n: kernel.infer("double", {"x": [[n] * 4]})["y"][0, 0], range(64)))
    assert answers == [2 * n for n in range(64)]
    assert kernel.url == ""
    assert kernel.pid == os.getpid()


def test_a_closed_engine_says_so(repository: Path) -> None:
    engine = wb.Engine(repository)
    engine.close()
    engine.close()
    with pytest.raises(WorkbenchError, match="not running"):
        engine.infer("double", {"x": ROW})
    assert not engine.is_live()
    answers: list[InferenceResponse] = []
    engine.submit(InferenceRequest("double", []), answers.append)
    assert [answer.error is not None and answer.final for answer in answers] == [True]
