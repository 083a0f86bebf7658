"""From a forest's scores to what Triton's FIL backend answers. Source: fil_backend's ``TreeliteModel::predict``."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def answer(
    scores: NDArray[Any], *, values: int, tail: tuple[int, ...], classifier: bool, predict_proba: bool, threshold: float
) -> NDArray[np.float32]:
    """The output of a batch, fp32 [rows, *tail].

    ``scores`` are [rows, classes] after the model's own post-processing (softmax, sigmoid, ...), one column for a
    binary or a regression model. ``values`` is how many the output has a row; ``tail`` the same without dimensions of
    1. A binary model's two probabilities are 1 - p and p; its class is 1 above the threshold, not at it.
    """
    rows, classes = scores.shape
    if predict_proba:
        if classes == 1 and values == 2:
            scores = np.concatenate([1 - scores, scores], axis=1)
    elif classifier and classes > 1:
        scores = scores.argmax(axis=1)
    elif classifier:
        scores = scores > np.float32(threshold)
    return scores.astype(np.float32).reshape(rows, *tail)
