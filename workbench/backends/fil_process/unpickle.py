"""Reads a pickled estimator and writes its trees as a treelite checkpoint: ``unpickle.py PICKLE CHECKPOINT``.

Run as a process of its own, which ends then: a pickle may hold any code, and what it does stays out of the server.
"""

from __future__ import annotations

import pickle
import sys
from pathlib import Path
from typing import Any


def trees_of(estimator: Any) -> Any:
    """The estimator's trees as a treelite model."""
    family = type(estimator).__module__.partition(".")[0]
    if family not in ("sklearn", "xgboost", "lightgbm"):
        raise TypeError(f"a {family}.{type(estimator).__qualname__} is no forest of a library that is known")
    import treelite

    if family == "xgboost":
        return treelite.frontend.from_xgboost(getattr(estimator, "get_booster", lambda: estimator)())
    if family == "lightgbm":
        return treelite.frontend.from_lightgbm(getattr(estimator, "booster_", estimator))
    return treelite.sklearn.import_model(estimator)


def main() -> None:
    """Converts; what goes wrong is the last line on standard error."""
    source, target = map(Path, sys.argv[1:])
    try:
        from joblib import load
    except ImportError:
        estimator = pickle.loads(source.read_bytes())
    else:  # reads plain pickles, too
        estimator = load(source)
    trees_of(estimator).serialize(target)


if __name__ == "__main__":
    main()
