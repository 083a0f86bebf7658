"""Files of a model directory: what they are, whether they changed, and which paths may be touched.

A model's fingerprint is split the way Triton decides between a reload and an in-place update (model_repository_manager
``IsModified``): the configuration, each version directory, and everything else.
"""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from workbench.errors import InvalidRequest

EXAMPLE_INPUTS = ("example_inputs.json", "example_inputs")
"""Files that say what to send to a model; changing them is no reload (DESIGN 5)."""

CACHES = frozenset({"__pycache__", ".ipynb_checkpoints", ".git"})
"""Folders that are no part of a model."""


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """What a model directory looked like: digests over names, sizes and modification times, not over contents.

    ``versions`` maps a version to the digest of its directory, as sorted pairs.
    """

    config: str
    versions: tuple[tuple[int, str], ...]
    others: str

    def version(self, number: int) -> str:
        """The digest of one version directory, empty when there is none."""
        return dict(self.versions).get(number, "")


def walk(directory: Path) -> Iterator[Path]:
    """Every file below a directory, sorted; caches and version control left out.

    Links to directories are followed, but for those that lead back up: they have no end.
    """
    for root, folders, files in os.walk(directory, followlinks=True):
        here = Path(root)
        folders[:] = sorted(folder for folder in folders if folder not in CACHES and not _leads_up(here / folder))
        for name in sorted(files):
            yield Path(root) / name


def _leads_up(path: Path) -> bool:
    """Whether a directory is a link to one that it is in."""
    return path.is_symlink() and path.parent.resolve().is_relative_to(path.resolve())


def stat_digest(paths: Iterator[Path] | list[Path], base: Path) -> str:
    """A digest over (relative name, size, modification time) of files; a vanished file counts as absent."""
    digest = hashlib.blake2b(digest_size=16)
    for path in paths:
        try:
            stat = path.stat()
        except OSError:
            continue
        digest.update(
            f"{path.relative_to(base)}\0{stat.st_size}\0{stat.st_mtime_ns}\n".encode("utf-8", "surrogateescape")
        )
    return digest.hexdigest()


def fingerprint(directory: Path, versions: dict[int, Path], config: Path | None) -> Fingerprint:
    """The fingerprint of a model directory."""
    folders = {path.name for path in versions.values()}
    others = [
        path
        for path in walk(directory)
        if (top := path.relative_to(directory).parts[0]) not in folders
        and top not in EXAMPLE_INPUTS
        and top not in ("config.pbtxt", "configs")
    ]
    return Fingerprint(
        config="" if config is None else stat_digest([config], config.parent),
        versions=tuple((number, stat_digest(walk(path), path)) for number, path in sorted(versions.items())),
        others=stat_digest(others, directory),
    )


def content_hash(directory: Path) -> str:
    """SHA-256 over the names and contents of every file of a model directory, example inputs and config.pbtxt left out.

    It identifies a model's weights and code in run keys and provenance, whatever its configuration and location.
    """
    return _hash(directory, lambda top: top not in (*EXAMPLE_INPUTS, "config.pbtxt", "configs"))


def example_inputs_hash(directory: Path) -> str:
    """SHA-256 over a model's example inputs: what is sent to it where no inputs are given."""
    return _hash(directory, lambda top: top in EXAMPLE_INPUTS)


def _hash(directory: Path, wanted: Callable[[str], bool]) -> str:
    digest = hashlib.sha256()
    for path in walk(directory):
        relative = path.relative_to(directory)
        if wanted(relative.parts[0]) and path.is_file():  # a pipe would never end, a dangling link has no contents
            digest.update(str(relative).encode("utf-8", "surrogateescape") + b"\0")
            digest.update(bytes.fromhex(sha256_of(path)))
    return digest.hexdigest()


def sha256_of(path: Path) -> str:
    """SHA-256 of a file's bytes, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def inside(base: Path, relative: str) -> Path | None:
    """The path named by ``relative`` below ``base``, links resolved; None if it leads out of ``base``."""
    root = base.resolve()
    path = (root / relative).resolve()
    return path if path != root and path.is_relative_to(root) else None


def read_regular(path: Path) -> bytes:
    """The bytes of a file; a pipe or a device, which might never end, is none.

    Raises:
        OSError: it cannot be read.
    """
    if path.exists() and not path.is_file() and not path.is_dir():
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return path.read_bytes()


def write_override_files(directory: Path, files: dict[str, bytes]) -> None:
    """Writes the files of a load with ``file:`` parameters (7.10); the directory then is the model's.

    Keys are paths inside the model directory, with or without the ``file:`` prefix.

    Raises:
        InvalidRequest: a path leads outside, or needs a directory where a file is (Triton's texts), or is none.
    """
    root = directory.resolve()
    for key, data in files.items():
        relative = key.removeprefix("file:")
        name = f"file:{relative}"
        try:
            path = (root / relative.lstrip("/")).resolve()
            if path == root or not path.is_relative_to(root):
                raise InvalidRequest(
                    f"Invalid file parameter '{name}' with normalized path '{path}' must stay within model directory."
                )
            if path.parent.exists() and not path.parent.is_dir():
                raise InvalidRequest(f"Invalid file parameter '{name}', directory has been created as a file")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        except (OSError, ValueError) as error:  # ValueError: a NUL in the name
            why = getattr(error, "strerror", None) or str(error)
            raise InvalidRequest(f"Invalid file parameter '{name}', {why}") from error
