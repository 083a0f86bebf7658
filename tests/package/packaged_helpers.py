"""Functions to package, which live in a module of their own."""

from __future__ import annotations

import functools
import math

import numpy as np
from numpy import exp
from numpy.typing import NDArray

SCALE = 2.5
LABELS = ("cold", "warm", "hot")
HALF = np.float16(1.5)

WEIGHTS = np.arange(12, dtype=np.float32).reshape(4, 3)
LOG = open(__file__)  # noqa: SIM115, PTH123 - what cannot be written into a model.py


def scaled(x: np.ndarray) -> np.ndarray:
    """A helper."""
    return (x * SCALE).astype(np.float32)


@functools.lru_cache(maxsize=4)
def factor(kind: str) -> float:
    return math.sqrt(4.0) if kind == "double" else 1.0


def score(x: np.ndarray, kind: str = "double") -> dict[str, np.ndarray]:
    """A function with a helper, constants, an array, a decorator and imports."""
    linear = scaled(x) @ WEIGHTS * factor(kind)
    return {"scores": linear.astype(np.float32), "total": exp(-np.abs(linear)).sum(axis=1).astype(np.float64)}


def shout(text: np.ndarray, times: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    said = np.array(
        [[f"{item.upper()}!" * int(n) for item, n in zip(*pair, strict=True)] for pair in zip(text, times, strict=True)]
    )
    return said, np.char.str_len(said)


def centred(x: np.ndarray) -> np.ndarray:
    """A row depends on the others: no batch."""
    return x - x.mean(axis=0)


def logs(x: np.ndarray) -> np.ndarray:
    LOG.readline()
    return x


def counts(x: np.ndarray) -> np.ndarray:
    global SCALE
    SCALE += 1
    return x


class Holder:
    pass


def uses_a_class(x: np.ndarray) -> np.ndarray:
    return x * isinstance(x, Holder)


def made(offset: float):
    def shifted(x: np.ndarray) -> np.ndarray:
        return x + offset

    return shifted


async def later(x: np.ndarray) -> np.ndarray:
    return x


def any_number(*arrays: np.ndarray) -> np.ndarray:
    return arrays[0]


def random(x: np.ndarray) -> np.ndarray:
    return x + np.random.default_rng().random(x.shape)


nameless = lambda x: x  # noqa: E731


def weighed(x: np.ndarray, weight: np.ndarray | None = None) -> np.ndarray:
    """An input that need not be there."""
    return x if weight is None else (x * weight).astype(np.float32)


def hinted(x: NDArray[np.float32], n: NDArray[np.integer]) -> NDArray[np.float32]:
    """Hints name data types."""
    return x * n.astype(np.float32)


def in_halves(x: np.ndarray) -> dict[str, np.ndarray]:
    kind = type(HALF).__name__
    return {"scaled": x * HALF, "kind": np.array([kind] * len(x))}
