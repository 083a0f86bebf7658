"""A checkout in small, which a notebook may write to."""

from __future__ import annotations

import shutil
from pathlib import Path


def lay_out(root: Path, built: Path) -> Path:
    """A checkout in small: ``notebooks`` and ``model_repository``, whose large files are links."""

    def copy(source: str, target: str) -> None:
        if Path(source).stat().st_size > 1_000_000:
            Path(target).symlink_to(Path(source).resolve())
        else:
            shutil.copyfile(source, target)

    shutil.copytree(built, root / "model_repository", copy_function=copy, dirs_exist_ok=True)
    (root / "notebooks").mkdir(exist_ok=True)
    return root
