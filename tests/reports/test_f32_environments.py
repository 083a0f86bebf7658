"""F32: the environment that a model names is the one that runs it, or the load says where it looked."""

from __future__ import annotations

import re
import sys
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from workbench.engine import EngineOptions, InferenceEngine
from workbench.errors import WorkbenchError
from workbench.protocol.tensors import InferenceRequest, Tensor

CONFIG = """backend: "python"
input { name: "IN" data_type: TYPE_FP32 dims: [ -1 ] }
output { name: "OUT" data_type: TYPE_STRING dims: [ -1 ] }
parameters { key: "EXECUTION_ENV_PATH" value { string_value: "PLACE" } }
"""
MODEL = """
import os
import numpy as np
import triton_python_backend_utils as pb_utils
import only_here

class TritonPythonModel:
    def execute(self, requests):
        said = [only_here.WORD, os.environ.get("ACTIVATED", "")]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array(said, object))]) for _ in requests]
"""


def environment(root: Path, word: str, *, activate: bool = True) -> Path:
    """An environment with a package that no other has, in conda-pack's layout."""
    (root / "bin").mkdir(parents=True)
    (root / "lib" / "own").mkdir(parents=True)
    (root / "lib" / "own" / "only_here.py").write_text(f"WORD = {word!r}\n")
    (root / "bin" / "python3").write_text(
        f'#!/bin/sh\nPYTHONPATH="$(dirname "$0")/../lib/own" exec {sys.executable} "$@"\n'
    )
    (root / "bin" / "python3").chmod(0o755)
    (root / "bin" / "python").symlink_to("python3")
    if activate:
        (root / "bin" / "activate").write_text("export ACTIVATED=yes\n")
    return root


def packed(root: Path, archive: Path) -> Path:
    with tarfile.open(archive, "w:gz") as file:
        for part in sorted(root.iterdir()):
            file.add(part, part.name)
    return archive


@pytest.fixture
def engine(tmp_path: Path) -> Any:
    (tmp_path / "models").mkdir()
    engine = InferenceEngine(EngineOptions((tmp_path / "models",), gpus=()))
    engine.start()
    yield engine
    engine.stop(5)


def put(tmp_path: Path, place: str) -> Path:
    version = tmp_path / "models" / "m" / "1"
    version.mkdir(parents=True, exist_ok=True)
    (version / "model.py").write_text(MODEL)
    (version.parent / "config.pbtxt").write_text(CONFIG.replace("PLACE", place))
    return version.parent


def ask(engine: InferenceEngine) -> list[str]:
    answer = engine.infer(InferenceRequest("m", [Tensor.from_numpy("IN", np.ones(1, np.float32))]))
    return [each.decode() for each in answer.as_numpy("OUT").tolist()]


def test_f32_server_8290_an_archive_beside_the_model_is_unpacked_and_activated(
    engine: InferenceEngine, tmp_path: Path
) -> None:
    directory = put(tmp_path, "$$TRITON_MODEL_DIRECTORY/env.tar.gz")
    archive = packed(environment(tmp_path / "first", "packed"), directory / "env.tar.gz")
    engine.load("m")
    assert ask(engine) == ["packed", "yes"]
    archive.unlink()
    packed(environment(tmp_path / "second", "packed anew"), archive)
    engine.load("m")
    assert ask(engine) == ["packed anew", "yes"], "another archive in its place is another environment"


@pytest.mark.parametrize("activate", [True, False])
def test_f32_server_8290_a_plain_directory(engine: InferenceEngine, tmp_path: Path, activate: bool) -> None:
    root = environment(tmp_path / "env with 'a space", "plain", activate=activate)
    put(tmp_path, str(root))
    engine.load("m")
    assert ask(engine) == ["plain", "yes" if activate else ""]


@pytest.mark.parametrize(
    ("place", "text", "hint"),
    [
        ("env.tar.gz", "not found, looked in '{here}/env.tar.gz'", "write $$TRITON_MODEL_DIRECTORY/env.tar.gz"),
        ("/host/env.tar.gz", "not found, looked in '/host/env.tar.gz'", "an absolute path that the server can see"),
        ("$$TRITON_MODEL_DIRECTORY/nope", "not found, looked in '{models}/m/nope'", "starts with"),
        ("$$TRITON_MODEL_DIRECTORY/config.pbtxt", "cannot be unpacked: ", "as conda-pack makes it"),
        ("$$TRITON_MODEL_DIRECTORY/1", "is no Python environment: it has no bin/python", "bin/ at its top"),
    ],
)
def test_f32_server_8290_never_goes_on_with_the_wrong_environment(
    engine: InferenceEngine, tmp_path: Path, place: str, text: str, hint: str
) -> None:
    directory = put(tmp_path, place)
    packed(environment(tmp_path / "env", "packed"), directory / "env.tar.gz")
    expected = text.format(here=Path.cwd(), models=tmp_path / "models")
    with pytest.raises(WorkbenchError, match=re.escape(f"EXECUTION_ENV_PATH '{place}' {expected}")) as caught:
        engine.load("m")
    assert hint in str(caught.value) + caught.value.hint
    assert not engine.is_model_ready("m")


def test_f32_server_8290_a_thread_has_no_environment_of_its_own(tmp_path: Path) -> None:
    root = environment(tmp_path / "env", "own")
    directory = put(tmp_path, str(root))
    engine = InferenceEngine(EngineOptions((tmp_path / "models",), gpus=(), python_execution="thread"))
    engine.start()
    try:
        assert ask(engine) == ["own", "yes"], "in a process, although the others run on threads"
        with (directory / "config.pbtxt").open("a") as file:
            file.write('parameters { key: "WORKBENCH_EXECUTION" value { string_value: "thread" } }\n')
        with pytest.raises(WorkbenchError, match="EXECUTION_ENV_PATH takes a process, WORKBENCH_EXECUTION is 'thread'"):
            engine.load("m")
    finally:
        engine.stop(5)
