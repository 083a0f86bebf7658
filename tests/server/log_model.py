"""A model that logs in every way there is, and what the lines of its file look like in a server's log."""

from __future__ import annotations

import json
import re
import threading
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

CODE = """import triton_python_backend_utils as pb_utils


def helper(text):
    pb_utils.Logger.log_warn(text)


class TritonPythonModel:
    def initialize(self, args):
        pb_utils.Logger.log_info("at the start")

    def execute(self, requests):
        logger = pb_utils.Logger
        logger.log("no level")
        logger.log("an error", logger.ERROR)
        logger.log("named", level=logger.LogLevel.WARNING)
        logger.log("verbose by level", logger.VERBOSE)
        logger.log_info("two\\nlines \\"quoted\\" \\\\ tab\\t é 漢 \\x01 %s %d")
        helper("from a helper")
        logger.log_error("")
        logger.log_verbose("verbose")
        exec("logger.log_info('from exec')")
        tensors = [pb_utils.get_input_tensor_by_name(request, "IN") for request in requests]
        if tensors[0].as_numpy()[0] < 0:
            raise ValueError("negative")
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", tensor.as_numpy())]) for tensor in tensors]

    def finalize(self):
        pb_utils.Logger.log_info("at the end")
"""
CONFIG = """name: "talk" backend: "python"
input [ { name: "IN", data_type: TYPE_FP32, dims: [ 1 ] } ]
output [ { name: "OUT", data_type: TYPE_FP32, dims: [ 1 ] } ]
instance_group [ { kind: KIND_CPU } ]
"""

STAGES: tuple[dict[str, Any], ...] = (
    {},
    {"log_verbose_level": 1, "log_format": "ISO8601"},
    {"log_info": False, "log_verbose_level": 0},
    {"log_warning": False, "log_format": "default"},
    {"log_error": False, "log_verbose_level": 3},
    {"log_info": True, "log_warning": True, "log_error": True},
)
"""Changes of the log settings, one after the other, with a request after each."""

CHANGES: tuple[Any, ...] = (
    [], {}, {"log_verbose_level": -1}, {"log_verbose_level": 1.5}, {"log_verbose_level": True},
    {"log_verbose_level": "1"}, {"log_verbose_level": 2**31 - 1}, {"log_verbose_level": 2**31},
    {"log_verbose_level": 2**32}, {"log_verbose_level": 2**32 + 1}, {"log_verbose_level": 2**64 - 1},
    {"log_verbose_level": 2**64}, {"log_info": 1}, {"log_info": "true"}, {"log_info": None}, {"log_warning": None},
    {"log_file": "x"}, {"log_file": ""}, {"log_file": None}, {"log_file": 1}, {"log_format": "ISO8601"},
    {"log_format": "iso8601"}, {"log_format": ""}, {"log_format": 1}, {"log_format": None},
    {"log_info": False, "log_format": "x"}, {"log_verbose_level": 2, "log_error": "x"}, {"unknown": 1},
    {"log_info": True, "log_verbose_level": 0, "log_format": "default"},
)  # fmt: skip
"""Bodies for ``/v2/logging``."""

_STAMP = re.compile(r"[IWE]\d{4} \d\d:\d\d:\d\d\.\d{6} \d+ ")
_ISO = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ ([IWE]) \d+ ")


def lay_out(root: Path) -> Path:
    """A repository with the model ``talk``."""
    (root / "talk" / "1").mkdir(parents=True)
    (root / "talk" / "1" / "model.py").write_text(CODE)
    (root / "talk" / "config.pbtxt").write_text(CONFIG)
    return root


def post(url: str, path: str, body: Any = None) -> tuple[int, Any]:
    """A POST (a GET without a body); status and answer."""
    data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
    try:
        with urllib.request.urlopen(urllib.request.Request(url + path, data), timeout=60) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


def ask(url: str, value: float) -> int:
    """An inference; its status."""
    given = {"name": "IN", "shape": [1], "datatype": "FP32", "data": [value]}
    return post(url, "/v2/models/talk/infer", {"inputs": [given]})[0]


def settle(log: Path | None, quiet_s: float = 0.5) -> None:
    """Waits until a log no longer grows: 2.51 hands a model's lines on beside its answers, by the settings of then."""
    size, pause = -1, threading.Event()
    while log and size != (size := log.stat().st_size if log.exists() else 0):
        pause.wait(quiet_s)


def play(url: str, log: Path | None = None) -> list[tuple[int, Any]]:
    """The stages, with a request after each, and a pause where it is said which log is to settle; gives the answers."""
    answers = []
    for number, changes in enumerate(STAGES):
        settle(log)
        answers.append(post(url, "/v2/logging", changes) if changes else post(url, "/v2/logging"))
        assert ask(url, number) == 200
    settle(log)
    assert ask(url, -1) == 500
    settle(log)
    return answers


def lines_of(log: str) -> list[str]:
    """The lines of the model's file, and of errors that it raised, without time and process; letter first."""
    found = []
    for line in log.splitlines():
        if match := _STAMP.match(line):
            letter, rest = line[0], line[match.end() :]
        elif match := _ISO.match(line):
            letter, rest = f"ISO {match[1]}", line[match.end() :]
        else:
            continue
        if rest.startswith(("model.py:", "<string>:")) or "Failed to process the request(s)" in rest:
            found.append(f"{letter} {rest}")
    return found
