"""The log in Triton's form, as the settings have it at that moment."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from log_model import ask, lay_out, lines_of, play, post
from test_process import process

from workbench.errors import InvalidRequest
from workbench.server.arguments import parse


def test_models_lines_have_tritons_form_file_and_line_and_follow_the_settings(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_text("what was there\n")
    repository = lay_out(tmp_path / "models")
    with process(repository, "--grpc-port=0", f"--log-file={log}") as (child, ready):
        play(ready[1])
        child.terminate()
        assert child.wait(20) == 0
    text = log.read_text()
    assert text.startswith("what was there\n")
    plain = ["I model.py:14", "E model.py:15", "W model.py:16", "I model.py:18", "W model.py:5", "E model.py:20"]
    verbose = ["I model.py:17", "I model.py:21"]
    found = lines_of(text)
    assert found[0] == 'I model.py:10] "at the start"'
    assert found[1:8] == [
        'I model.py:14] "no level"',
        'E model.py:15] "an error"',
        'W model.py:16] "named"',
        'I model.py:18] "two\\nlines \\"quoted\\" \\\\ tab\\t é 漢 \\u0001 %s %d"',
        'W model.py:5] "from a helper"',
        'E model.py:20] ""',
        'I <string>:1] "from exec"',
    ]
    places = [line.partition("]")[0] for line in found]
    assert places[8:17] == [
        "ISO I model.py:14", "ISO E model.py:15", "ISO W model.py:16", "ISO I model.py:17", "ISO I model.py:18",
        "ISO W model.py:5", "ISO E model.py:20", "ISO I model.py:21", "ISO I <string>:1",
    ]  # fmt: skip
    assert places[17:21] == ["ISO E model.py:15", "ISO W model.py:16", "ISO W model.py:5", "ISO E model.py:20"]
    assert places[21:23] == ["E model.py:15", "E model.py:20"]
    assert places[23:25] == verbose
    assert places[25:34] == [*plain[:3], verbose[0], *plain[3:], verbose[1], "I <string>:1"]
    assert found[-2].startswith("E model.py:25] \"Failed to process the request(s) for model 'talk_0_0', message: ")
    assert found[-2].endswith("ValueError: negative\\n\\nAt:\\n  " + f'{repository}/talk/1/model.py(25): execute\\n"')
    assert found[-1] == 'I model.py:29] "at the end"'


def test_flags_of_the_log_are_read_as_tritonserver_reads_them(tmp_path: Path) -> None:
    repository = lay_out(tmp_path / "models")
    flags = ("--log-verbose=true", "--log-info=0", "--log-warning=1", "--log-error=false", "--log-format=ISO8601")
    with process(repository, "--grpc-port=0", *flags) as (_, ready):
        assert post(ready[1], "/v2/logging") == (
            200,
            {
                "log_file": "", "log_info": False, "log_warning": True, "log_error": False, "log_verbose_level": 1,
                "log_format": "ISO8601",
            },
        )  # fmt: skip
        assert ask(ready[1], 1) == 200
        # the level is kept in 32 bits with a sign
        for level, kept in ((2**31 - 1, 2**31 - 1), (2**31, 0), (2**32, 0), (2**32 + 1, 1), (2**64 - 1, 0)):
            assert post(ready[1], "/v2/logging", {"log_verbose_level": level})[1]["log_verbose_level"] == kept
    for text, level in (("0", 0), ("7", 7), ("-3", 0), ("false", 0), ("True", 1)):
        assert parse([f"--model-repository={repository}", f"--log-verbose={text}"]).log_verbose == level
    for wrong in ("--log-verbose=loud", "--log-info=2", "--log-format=iso"):
        with pytest.raises(InvalidRequest, match=re.escape(wrong.partition("=")[0])):
            parse([f"--model-repository={repository}", wrong])
