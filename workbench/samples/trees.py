"""The forests of the samples: trained on scikit-learn's digits, in less than a second each."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from workbench.samples.recipes import APACHE, Files, Recipe, missing

SEED = 7


def digits() -> tuple[NDArray[np.float32], NDArray[Any]]:
    """1797 digits of 64 pixels, fp32 [1797, 64], and which they are."""
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    return pixels.astype(np.float32), labels


def xgboost_ubj() -> bytes:
    """XGBoost's model in UBJSON."""
    import xgboost

    parameters = {"objective": "multi:softprob", "num_class": 10, "max_depth": 4, "nthread": 1, "seed": SEED}
    trained: Any = xgboost.train(parameters, xgboost.DMatrix(*digits()), 20)
    return bytes(trained.save_raw("ubj"))


def lightgbm_txt() -> bytes:
    """LightGBM's model as text."""
    import lightgbm

    parameters = {
        "objective": "multiclass",
        "num_class": 10,
        "num_leaves": 15,
        "num_threads": 1,
        "deterministic": True,
        "seed": SEED,
        "verbose": -1,
    }
    pixels, labels = digits()
    text: str = lightgbm.train(parameters, lightgbm.Dataset(pixels, labels), 20).model_to_string()
    return text.encode()


def forest_checkpoint() -> bytes:
    """scikit-learn's random forest as a treelite checkpoint."""
    import treelite
    from sklearn.ensemble import RandomForestClassifier

    forest = RandomForestClassifier(n_estimators=50, random_state=SEED, n_jobs=1).fit(*digits())
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "checkpoint.tl"
        treelite.sklearn.import_model(forest).serialize(path)
        return path.read_bytes()


def _recipe(model: str, summary: str, file: str, train: Callable[[], bytes]) -> Recipe:
    def make(_wheel: Path | None, _folder: Path) -> Files:
        try:
            return {file: train()}
        except ImportError as error:
            raise missing(error.name or "scikit-learn", model, extra="trees") from error

    return Recipe(
        model=model,
        summary=summary,
        version=1,
        files=(file,),
        make=make,
        origin="trained here on scikit-learn's digits",
        notice="Trees trained on the digits of scikit-learn (UCI machine learning repository, Optical Recognition of\n"
        f"Handwritten Digits, E. Alpaydin, C. Kaynak, CC BY 4.0). The trees are this project's.\n{APACHE}",
        extra="trees",
    )


FORESTS = (
    _recipe("digits_xgb", "handwritten digits by XGBoost", "1/xgboost.ubj", xgboost_ubj),
    _recipe("digits_lgbm", "handwritten digits by LightGBM", "1/model.txt", lightgbm_txt),
    _recipe(
        "digits_forest", "handwritten digits by scikit-learn's random forest", "1/checkpoint.tl", forest_checkpoint
    ),
)
"""One forest of each library."""
