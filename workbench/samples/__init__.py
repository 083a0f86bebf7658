"""The sample model repository: real models whose weights are built on the user's machine.

``minilm`` (sentence embedding), ``tokenizer`` (its tokenizer, a Python model), ``mlp_4096`` (batching pays),
``magika`` (batching does not pay), ``magika_small`` (the same on a quarter of the input), ``router`` (a cascade of the
two), ``vector_search`` (the nearest of 100,000 vectors), ``semantic_search``, the ensemble of tokenizer, minilm and
vector_search, and ``generator`` (text by a small language model, a token a response). ``more_names()`` are samples of
one backend each, built on request.
"""

from __future__ import annotations

from workbench.samples.builder import (
    BuildProgress,
    BuiltModel,
    ProgressCallback,
    build,
    default_repository,
    model_names,
    more_names,
    sources_directory,
)
from workbench.samples.wheels import SampleError, default_cache_dir

__all__ = [
    "BuildProgress",
    "BuiltModel",
    "ProgressCallback",
    "SampleError",
    "build",
    "default_cache_dir",
    "default_repository",
    "model_names",
    "more_names",
    "sources_directory",
]
