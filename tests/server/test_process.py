"""The server as a process: command line, the ready line, signals, the owner's death."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from workbench.errors import InvalidRequest
from workbench.server import runtime
from workbench.server.arguments import backend_config, parse, without_effect
from workbench.server.main import main

READY = re.compile(r"workbench: ready http=(\S+) grpc=\S+ metrics=(\S+) name=(\S+) pid=(\d+)\n")


@contextmanager
def process(repository: Path, *flags: str, **popen: Any) -> Iterator[tuple[subprocess.Popen[str], re.Match[str]]]:
    command = [sys.executable, "-m", "workbench.server", f"--model-repository={repository}", "--http-port=0"]
    child = subprocess.Popen(
        [*command, "--metrics-port=0", "--grpc-port=0", *flags],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **popen,
    )
    try:
        assert child.stdout is not None
        assert child.stderr is not None
        line = child.stdout.readline()
        match = READY.fullmatch(line)
        assert match, line + child.stderr.read()
        yield child, match
    finally:
        if child.poll() is None:
            child.kill()
        child.communicate()


def status(url: str) -> int:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


def test_a_name_is_not_taken_from_the_server_that_has_it(repository: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with process(repository, "--name", "first") as (child, _):
        assert (
            main(
                [
                    f"--model-repository={repository}",
                    "--http-port=0",
                    "--metrics-port=0",
                    "--grpc-port=0",
                    "--name=first",
                ]
            )
            == 1
        )
        assert "a server named 'first' runs already" in capfd.readouterr().err
        assert runtime.read("first")["pid"] == child.pid


def test_it_says_where_it_is_and_stops_cleanly_on_sigterm(repository: Path) -> None:
    with process(repository, "--name", "stopper", "--id", "mine", "--grpc-infer-thread-count=4") as (child, ready):
        http, metrics, name, pid = ready.groups()
        assert (name, int(pid)) == ("stopper", child.pid)
        assert status(f"{http}/v2/health/ready") == 200
        assert status(metrics) == 200
        info = runtime.read("stopper")
        assert (info["http"], info["pid"], info["control_mode"]) == (http, child.pid, "none")
        child.send_signal(signal.SIGTERM)
        _, log = child.communicate(timeout=20)
        assert child.returncode == 0
        assert re.search(r'^I\d{4} \d\d:\d\d:\d\d\.\d{6} \d+ \S+:\d+\] "Started HTTPService at 127', log, re.MULTILINE)
        assert "--grpc-infer-thread-count is tritonserver's and has no effect here" in log
    assert "stopper" not in [entry["name"] for entry in runtime.list_servers()]


def test_a_signal_ends_it_while_models_still_load(tmp_path: Path) -> None:
    (tmp_path / "endless" / "1").mkdir(parents=True)
    (tmp_path / "endless" / "1" / "model.py").write_text(
        "import pathlib, time\n\n\nclass TritonPythonModel:\n    def initialize(self, args):\n"
        f"        pathlib.Path({str(tmp_path / 'begun')!r}).touch()\n        time.sleep(600)\n\n"
        "    def execute(self, requests):\n        return []\n"
    )
    (tmp_path / "endless" / "config.pbtxt").write_text('backend: "python"\n')
    child = subprocess.Popen(
        [sys.executable, "-m", "workbench.server", f"--model-repository={tmp_path}", "--http-port=0"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        for _ in range(1000):
            if (tmp_path / "begun").exists():
                break
            threading.Event().wait(0.02)
        children = psutil.Process(child.pid).children(recursive=True)
        assert children
        child.terminate()
        assert child.wait(30) == 1
        assert psutil.wait_procs(children, 10)[1] == [], "the model's process has gone as well"
    finally:
        child.kill()
        child.wait()


def test_an_owned_server_dies_with_its_owner(repository: Path) -> None:
    read, write = os.pipe()
    try:
        with process(repository, "--owner-fd", str(read), pass_fds=(read,)) as (child, _):
            os.close(write)
            write = -1
            child.communicate(timeout=20)
            assert child.returncode == 0
    finally:
        os.close(read)
        if write >= 0:
            os.close(write)


def test_an_owned_server_dies_when_its_owner_is_killed(repository: Path, tmp_path: Path) -> None:
    script = (
        "import os, subprocess, sys\n"
        "read, write = os.pipe()\n"
        "child = subprocess.Popen([sys.executable, '-m', 'workbench.server', '--model-repository', sys.argv[1],\n"
        "    '--http-port=0', '--metrics-port=0', '--grpc-port=0', '--owner-fd', str(read)], pass_fds=(read,),\n"
        "    stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)\n"
        "os.close(read)\n"
        "print(child.stdout.readline(), flush=True)\n"
        "input()\n"
    )
    owner = subprocess.Popen(
        [sys.executable, "-c", script, str(repository)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert owner.stdout is not None
    match = READY.match(owner.stdout.readline())
    assert match
    server = psutil.Process(int(match[4]))
    owner.kill()
    owner.communicate()
    server.wait(20)


def test_a_shutdown_request_ends_the_process(repository: Path) -> None:
    with process(repository, "--token", "s3cret") as (child, ready):
        request = urllib.request.Request(f"{ready[1]}/v2/workbench/shutdown", method="POST")
        with pytest.raises(urllib.error.HTTPError, match="401"):
            urllib.request.urlopen(request, timeout=5)
        request.add_header("Authorization", "Bearer s3cret")
        with urllib.request.urlopen(request, timeout=5) as answer:
            assert answer.status == 200
        child.communicate(timeout=20)
        assert child.returncode == 0


def test_a_port_in_use_is_said_in_words(repository: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with process(repository) as (_, ready):
        port = ready[1].rpartition(":")[2]
        code = main([f"--model-repository={repository}", f"--http-port={port}", "--metrics-port=0", "--grpc-port=0"])
    assert code == 1
    assert f"Socket '127.0.0.1:{port}' already in use" in capfd.readouterr().err


def test_a_model_that_fails_decides_whether_the_server_starts(
    tmp_path: Path, write: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path, "good", "FP32", [4])
    write(tmp_path, "broken", "FP32", [4])
    (tmp_path / "broken" / "1" / "model.onnx").write_bytes(b"nonsense")
    assert main([f"--model-repository={tmp_path}", "--http-port=0", "--metrics-port=0", "--grpc-port=0"]) == 1
    assert "error: creating server:" in capfd.readouterr().err
    with process(tmp_path, "--exit-on-error=false") as (_, ready):
        assert status(f"{ready[1]}/v2/health/live") == 200
        assert status(f"{ready[1]}/v2/health/ready") == 400
        assert status(f"{ready[1]}/v2/models/good/ready") == 200
        assert status(f"{ready[1]}/v2/models/broken/ready") == 400


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        ([], "--model-repository must be specified"),
        (["--model-repository=/nowhere/at/all"], "failed to stat file /nowhere/at/all"),
        (["--model-repository=.", "--htp-port=1"], "unrecognized option '--htp-port'"),
        (["--model-repository=.", "--http-port=70000"], "is no port"),
        (["--model-repository=.", "--allow-http=maybe"], "invalid value for bool option: maybe"),
        (["--model-repository=.", "--load-model=x"], "--load-model requires --model-control-mode=explicit"),
        (["--model-repository=.", "--http-restricted-api=x:k=v"], "unknown restricted api 'x'"),
        (["--model-repository=.", "--model-control-mode=odd"], "invalid choice: 'odd'"),
        (["--model-repository=.", "--http-max-input-size=0"], "--http-max-input-size must be greater than 0"),
    ],
)
def test_a_wrong_command_line_is_said_in_words(flags: list[str], text: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(flags) == 2
    assert text in capfd.readouterr().err


def test_tritons_flags_are_read() -> None:
    args = parse(
        ["--model-repository", ".", "--model-store=.", "--strict-readiness=0", "--exit-on-error", "false",
         "--grpc-max-response-pool-size", "8", "--cuda-memory-pool-byte-size=0:64",
         "--model-control-mode=explicit", "--load-model=*"]
    )  # fmt: skip
    assert args.model_repository == [".", "."]
    assert (args.strict_readiness, args.exit_on_error) == (False, False)
    assert without_effect(args) == ["--grpc-max-response-pool-size", "--cuda-memory-pool-byte-size"]
    assert backend_config(["onnxruntime,a=1", "onnxruntime,b=2", "default-max-batch-size=8"]) == {
        "onnxruntime": {"a": "1", "b": "2"},
        "": {"default-max-batch-size": "8"},
    }
    with pytest.raises(InvalidRequest, match="--backend-config option format"):
        backend_config(["onnxruntime"])
