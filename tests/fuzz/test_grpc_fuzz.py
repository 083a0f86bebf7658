"""Mutated calls and frames against a live gRPC port: it stays up, and each call ends with a status.

A wrong message must not cost the connection; wrong frames may, cleanly.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from fuzzed_server import SIZE, fuzzed_server
from grpc_cases import KINDS
from grpc_run import fuzz


def run(root: Path, count: int, seed: int) -> None:
    with fuzzed_server(root) as server:
        outcome = fuzz(server, count, seed)
        print(outcome.text(), f"{server.grown() / 2**20:.0f} MiB more than at the start")
        assert outcome.inputs >= count
        assert outcome.answers["0"] > count // 4, "many are right after all"
        assert outcome.compared > count // 10
        server.check()
        if count > 10_000:
            never = {path.rpartition("/")[2] for path in KINDS} - set(outcome.methods)
            assert never == {"CudaSharedMemoryRegister"}, "each of the others was well answered at times"


def test_a_sample_of_the_fuzz(tmp_path: Path) -> None:
    run(tmp_path, 2000, seed=1)


@pytest.mark.full
@pytest.mark.soak
@pytest.mark.timeout(3000)
def test_the_long_fuzz(tmp_path: Path) -> None:
    run(tmp_path, SIZE, seed=2)
