"""The same model, requests and log settings in the real tritonserver (2.51) and here: the same lines, the same answers.

What differs, and why: the line of an error that a model raised is ``pb_stub.cc:714`` there and the model's own line
here; a log file that cannot be opened is passed over there and refused here; a body that is no JSON is refused in other
words (see ``test_against_triton``).
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from log_model import CHANGES, lay_out, lines_of, play, post
from real_triton import real_triton
from test_process import process

pytestmark = [pytest.mark.full, pytest.mark.oracle, pytest.mark.timeout(300)]


def same(lines: list[str]) -> list[str]:
    return [re.sub(r"(pb_stub\.cc:714|model\.py:25)]", "RAISED]", line) for line in lines]


@pytest.mark.parametrize("options", [(), ("--log-verbose=1", "--log-format=ISO8601", "--log-warning=false")])
def test_the_same_lines_and_the_same_answers(tmp_path: Path, oracle: Path, options: tuple[str, ...]) -> None:
    repository = lay_out(tmp_path / "models")
    theirs, ours = tmp_path / "theirs.log", tmp_path / "ours.log"
    with real_triton(oracle, repository, tmp_path / "console", [*options, f"--log-file={theirs}"]) as triton:
        settings = play(triton.http, theirs)
        answers = [post(triton.http, "/v2/logging", change) for change in CHANGES]
    with process(repository, "--grpc-port=0", *options, f"--log-file={ours}") as (_, ready):
        ours_settings = play(ready[1], ours)
        ours_answers = [post(ready[1], "/v2/logging", change) for change in CHANGES]
    for status, answer in [*settings, *answers]:
        assert answer.pop("log_file", str(theirs)) == str(theirs), status
    for status, answer in [*ours_settings, *ours_answers]:
        assert answer.pop("log_file", str(ours)) == str(ours), status
    assert ours_settings == settings
    for change, found, expected in zip(CHANGES, ours_answers, answers, strict=True):
        assert found == expected, change
    expected_lines = same(lines_of(theirs.read_text()))
    assert len(expected_lines) > 20
    assert same(lines_of(ours.read_text())) == expected_lines
