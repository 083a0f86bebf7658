"""What is said of each backend: also where its framework is missing, broken, or takes the process with it."""

from __future__ import annotations

import sys
from importlib.util import find_spec as real_find_spec
from pathlib import Path
from typing import Any

import pytest

from workbench.backends import probe as probing
from workbench.backends.probe import names, probe


def test_there_is_a_word_on_every_backend() -> None:
    assert set(names()) >= {
        "python", "ensemble", "onnxruntime", "pytorch", "tensorrt", "tensorrt_rtx", "openvino", "tensorflow", "fil",
        "dali",
    }  # fmt: skip


def test_what_works(monkeypatch: pytest.MonkeyPatch) -> None:
    state = probe("onnxruntime")
    assert (state.works, state.device.split(", ")[0], state.install) == (True, "CPU", "")
    assert state.version[0].isdigit()
    for name in ("python", "ensemble"):
        assert probe(name).works


def test_without_any_framework_each_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probing, "find_spec", lambda name: None)
    for name in names():
        state = probe(name)
        if name in ("python", "ensemble"):
            continue
        assert (state.works, state.version, state.device) == (False, "", "")
        assert "is not installed" in state.why
        assert state.install.startswith("pip install")


def test_another_stands_in_for_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("openvino", reason="openvino is not installed")

    def without(name: str) -> Any:
        return None if name == "tensorflow" else real_find_spec(name)

    monkeypatch.setattr(probing, "find_spec", without)
    state = probe("tensorflow")
    assert state.works
    assert "OpenVINO runs SavedModels" in state.why
    assert "tensorflow" in state.install


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("raise OSError('libsomething.so: cannot open')", "libsomething.so: cannot open"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "was killed by SIGSEGV"),
        ("import sys; print('noise'); sys.exit(3)", "ended with 3"),
        ("", "AttributeError"),
    ],
)
def test_a_broken_framework_is_named_and_nothing_crashes(
    source: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "treelite.py").write_text(source)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "treelite", raising=False)
    state = probe("fil")
    assert not state.works
    assert said in state.why


def test_one_that_hangs_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "treelite.py").write_text("import threading; threading.Event().wait()")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(probing, "LIMIT_S", 1.0)
    state = probe("fil")
    assert (state.works, "takes longer than 1 s" in state.why) == (False, True)
