"""Model repositories: which models there are, where, in which versions.

Sources: model_repository_manager.cc, model_lifecycle.cc, model_config_utils.cc (``stoll`` on directory names).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workbench.errors import InternalError, InvalidRequest, NotFound
from workbench.repository.files import Fingerprint, fingerprint

NOT_VERSIONS = ("warmup", "initial_state", "configs")
"""Directories beside the versions that Triton skips."""

_STOLL = re.compile(r"\s*([+-]?\d+)", re.ASCII)
_INT64_MAX = 2**63 - 1
_BAD_NAME = "invalid model name '{name}', model name must not contain path traversal characters"
DUPLICATE_REASON = "model appears in two or more repositories"


@dataclass(frozen=True, slots=True)
class ModelSource:
    """A model directory as it was when it was read.

    ``config_bytes`` is None when there is no config.pbtxt; ``config_path`` is where it is, or would be written.
    ``versions`` maps every version found to its directory; ``warnings`` are lines for the log.
    """

    name: str
    repository: Path
    directory: Path
    config_path: Path
    config_bytes: bytes | None
    versions: dict[int, Path]
    fingerprint: Fingerprint
    warnings: tuple[str, ...] = ()


def check_name(name: str) -> None:
    """Refuses names that cannot be a model's (texts of 7.9).

    Raises:
        InvalidRequest: the name is empty or holds a path separator or ``..``.
    """
    if not name:
        raise InvalidRequest("Model name cannot be empty. Please enter a valid name to deploy.")
    if "/" in name or ".." in name or "\0" in name or name == ".":
        raise InvalidRequest(_BAD_NAME.format(name=name))


def list_models(repositories: Sequence[Path]) -> dict[str, tuple[Path, ...]]:
    """The model directories of all repositories: name -> where it is (more than one place is a duplicate).

    Hidden directories are no models. A repository that cannot be read is an error, so that a typing mistake is seen.

    Raises:
        NotFound: a repository is not a directory.
    """
    found: dict[str, list[Path]] = {}
    for repository in repositories:
        if not repository.is_dir():
            raise NotFound(
                f"failed to stat file {repository}",
                where=str(repository),
                hint="name an existing directory that holds one directory for each model",
            )
        for path in sorted(repository.iterdir()):
            if path.is_dir() and not path.name.startswith((".", "__")):
                found.setdefault(path.name, []).append(path)
    return {name: tuple(paths) for name, paths in sorted(found.items())}


def find_model(repositories: Sequence[Path], name: str) -> Path:
    """The directory of one model.

    Raises:
        NotFound: no repository has it.
        InvalidRequest: two or more have it.
    """
    check_name(name)
    places = [repository / name for repository in repositories if (repository / name).is_dir()]
    if not places:
        raise NotFound(
            f"model '{name}' not found in any model repository",
            where=", ".join(str(repository) for repository in repositories),
            hint="check the spelling; `repository_index` lists what there is",
        )
    if len(places) > 1:
        raise InvalidRequest(DUPLICATE_REASON, where=", ".join(map(str, places)), hint="remove or rename one of them")
    return places[0]


def find_versions(directory: Path) -> tuple[dict[int, Path], list[str]]:
    """The version directories of a model and warnings about those that are ignored.

    A name counts when C++ ``stoll`` reads a number from its start, as in Triton, whatever follows; names with leading
    zeros are ignored with a warning (7.2).
    """
    versions: dict[int, Path] = {}
    warnings: list[str] = []
    for path in sorted(directory.iterdir()):
        if not path.is_dir() or path.name in NOT_VERSIONS:
            continue
        match = _STOLL.match(path.name)
        if match is None:
            continue
        if path.name.startswith("0"):
            warnings.append(
                f"ignore version directory '{path.name}' which contains leading zeros in its directory name"
            )
            continue
        number = int(match.group(1))
        if number <= 0:
            warnings.append(f"ignore version directory '{path.name}' which is not a positive whole number")
            continue
        if number > _INT64_MAX:  # Triton ends with an uncaught std::out_of_range
            warnings.append(f"ignore version directory '{path.name}': versions end at {_INT64_MAX}")
            continue
        if str(number) != path.name:
            # Triton takes "2_old" for version 2 and then looks into a directory "2": the load fails where there is none
            warnings.append(f"version directory '{path.name}' counts as version {number}; rename it if it is none")
        versions[number] = directory / str(number)
    return versions, warnings


def read_model(directory: Path, config_name: str = "") -> ModelSource:
    """Reads a model directory: its configuration as bytes, its versions, its fingerprint.

    ``config_name`` picks ``configs/NAME.pbtxt`` where there is one (7.16).

    Raises:
        InternalError: the directory or its configuration cannot be read.
    """
    name = directory.name
    config_path = directory / "config.pbtxt"
    if config_name:
        named = directory / "configs" / f"{config_name}.pbtxt"
        if named.is_file():
            config_path = named
    try:
        config_bytes = config_path.read_bytes() if config_path.is_file() else None
        versions, warnings = find_versions(directory)
        print_ = fingerprint(directory, versions, config_path if config_bytes is not None else None)
    except OSError as error:
        raise InternalError(
            f"failed to load '{name}', failed to poll from model repository", where=str(directory), hint=str(error)
        ) from error
    return ModelSource(name, directory.parent, directory, config_path, config_bytes, versions, print_, tuple(warnings))


def select_versions(available: Sequence[int], policy: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The versions that a ``version_policy`` message serves, and those it names but that do not exist.

    No policy is ``latest { num_versions: 1 }`` (7.2).
    """
    choice = policy.WhichOneof("policy_choice") if policy is not None else None
    ordered = sorted(available)
    if choice == "all":
        return tuple(ordered), ()
    if choice == "specific":
        wanted = list(dict.fromkeys(policy.specific.versions))
        served = sorted(number for number in wanted if number in available)
        return tuple(served), tuple(number for number in wanted if number not in available)
    count = policy.latest.num_versions if choice == "latest" else 1
    return tuple(ordered[-max(1, count) :]), ()
