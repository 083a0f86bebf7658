"""The sample repository for tests: its weights, which take long to make, are made once for all runs and processes."""

from __future__ import annotations

import fcntl
import hashlib
import shutil
from importlib.metadata import version
from pathlib import Path

import workbench.samples
from workbench.samples import build, model_names, sources_directory
from workbench.samples.builder import NOTICE, STAMP
from workbench.samples.recipes import RECIPES, Recipe


def build_kept(target: Path, kept: Path) -> None:
    """Builds the sample repository in ``target`` with the weights in ``kept`` where it has them; adds those it lacks.

    The files are the same, by links where the file system has them: nobody may write to them, and who did is found the
    next time. Weights that other code has made are thrown away, since who changes a recipe may have forgotten its
    version; configurations and sources are never kept.
    """
    kept.mkdir(parents=True, exist_ok=True)
    with (kept / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # a second process waits, and finds everything made
        weights = kept / _made_by()
        for old in kept.iterdir():
            if old.is_dir() and old != weights:
                shutil.rmtree(old)
        for recipe in map(RECIPES.__getitem__, model_names()):
            for name in recipe.sources:  # without these a build takes the weights for outdated
                (target / recipe.model / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(sources_directory() / recipe.model / name, target / recipe.model / name)
            _link_weights(recipe, weights, target)
        for model in build(target):
            if model.built:
                _link_weights(RECIPES[model.name], target, weights)
            elif model.note != "up to date":
                shutil.rmtree(weights)
                raise AssertionError(f"a test has written to the sample repository: {model}")


def _made_by() -> str:
    sources = Path(workbench.samples.__file__).parent
    digest = hashlib.sha256(repr([version(name) for name in ("numpy", "onnx")]).encode())
    for path in sorted(sources.rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def _link_weights(recipe: Recipe, source: Path, target: Path) -> None:
    """With the stamp first away and last there: no build touches weights without one, so half a copy must have none."""
    if not (source / recipe.model / STAMP).is_file():
        return
    (target / recipe.model / STAMP).unlink(missing_ok=True)
    for name in (*recipe.files, NOTICE, STAMP):
        _link(source / recipe.model / name, target / recipe.model / name)


def _link(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    target.unlink(missing_ok=True)
    try:
        target.hardlink_to(source)
    except OSError:  # another file system
        shutil.copyfile(source, target)
