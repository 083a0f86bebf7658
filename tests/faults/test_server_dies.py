"""A server that is killed takes its models' processes with it, whatever they are doing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from asking import wait_until
from fault_models import NUMBERS, add_echo, add_victim

SERVER = """
import sys, threading
import numpy as np
import workbench as wb
server = wb.serve(sys.argv[1])
for number in sys.argv[2:]:
    def ask(number=number):
        try:
            server.infer("victim", {"IN": np.array([float(number)], np.float32)})
        except wb.WorkbenchError:
            pass
    threading.Thread(target=ask, daemon=True).start()
print(server.pid, flush=True)
sys.stdin.read()
"""


def alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def busy(children: list[psutil.Process]) -> bool:
    """One is stopped, one computes for ever."""
    statuses = [child.status() for child in children]
    return psutil.STATUS_STOPPED in statuses and any(child.cpu_times().user > 1 for child in children)


@pytest.mark.parametrize("killed", ["the server", pytest.param("its owner", marks=pytest.mark.full)])
def test_all_processes_go(tmp_path: Path, killed: str) -> None:
    add_victim(tmp_path, instances=2, limit_s=0)
    add_echo(tmp_path, "other", instances=2)
    numbers = [str(NUMBERS["stops"]), str(NUMBERS["hangs with the GIL"])]
    command = [sys.executable, "-c", SERVER, str(tmp_path), *numbers]
    owner = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)
    children: list[psutil.Process] = []
    try:
        assert owner.stdout is not None
        server = psutil.Process(int(owner.stdout.readline()))
        children = server.children(recursive=True)
        assert len(children) == 4
        wait_until(lambda: busy(children), 60)
        os.kill(server.pid if killed == "the server" else owner.pid, signal.SIGKILL)
        wait_until(lambda: not any(alive(each) for each in [server, *children]), 20)
    finally:
        owner.kill()
        owner.communicate()
        for child in children:
            if alive(child):
                child.kill()
