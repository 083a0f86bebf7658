"""Mutated requests against a live server: it stays up, and each is answered well or with a well-formed error."""

from __future__ import annotations

from pathlib import Path

import pytest
from fuzzed_server import SIZE, fuzzed_server
from http_run import fuzz


def run(root: Path, count: int, seed: int) -> None:
    with fuzzed_server(root) as server:
        outcome = fuzz(server, count, seed)
        print(outcome.text(), f"{server.grown() / 2**20:.0f} MiB more than at the start")
        assert outcome.inputs >= count - 4
        assert outcome.answers["200"] > count // 10, "many are right after all"
        assert outcome.compared > count // 50
        server.check()
        if count > 10_000:
            never = {kind for kind in outcome.kinds if " /v2" in kind and not outcome.well[kind]}
            cuda = "/v2/cudasharedmemory/region/{region}"
            assert never == {f"GET {cuda}/status", f"POST {cuda}/register"}, "each of the others was well answered"


def test_a_sample_of_the_fuzz(tmp_path: Path) -> None:
    run(tmp_path, 2000, seed=1)


@pytest.mark.full
@pytest.mark.soak
@pytest.mark.timeout(3000)
def test_the_long_fuzz(tmp_path: Path) -> None:
    run(tmp_path, SIZE, seed=2)
