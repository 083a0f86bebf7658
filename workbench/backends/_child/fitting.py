"""Triton's texts of a configuration that does not fit its model file. Standard library only: both sides say them."""

from __future__ import annotations

from collections.abc import Sequence


def shape_text(dims: Sequence[int]) -> str:
    """A shape as Triton writes it: ``[-1,4]``."""
    return "[" + ",".join(map(str, dims)) + "]"


def datatype_problem(model: str, kind: str, name: str, wanted: str, provided: str) -> str:
    """Why a configured data type (``TYPE_...``) is not the model's, "" where it is; ``provided`` is a v2 name or ""."""
    if wanted.removeprefix("TYPE_").replace("STRING", "BYTES") == provided:
        return ""
    return (
        f"unable to load model '{model}', configuration expects datatype {wanted} for {kind} '{name}', "
        f"model provides TYPE_{provided or 'INVALID'}"
    )


def dims_problem(
    model: str, name: str, dims: Sequence[int], provided: Sequence[int], *, batching: bool, exact: bool
) -> str:
    """Why configured dims are not the model's, "" where they are.

    Args:
        model: the model's name.
        name: the tensor's.
        dims: the configured ones, without the batch dimension.
        provided: the model's with all dimensions, -1 where they are variable.
        batching: the configuration has a batch dimension.
        exact: also a variable dimension of the model is to be written as one.
    """
    if not provided:
        if all(dim == 1 for dim in dims):
            return ""
        return (
            f"unable to load model '{model}', scalar tensor '{name}', should only provide 1 in the "
            "model configuration when the model doesn't support batching. Model configuration provided: "
            f"{shape_text(dims)}."
        )
    head = f"model '{model}', tensor '{name}': "
    if batching and provided[0] != -1:
        return (
            f"{head}for the model to support batching the shape should have at least 1 dimension and the first "
            f"dimension must be -1; but shape expected by the model is {shape_text(provided)}"
        )
    full = (-1, *dims) if batching else tuple(dims)
    if len(full) == len(provided) and all(
        own == mine for own, mine in zip(provided, full, strict=True) if exact or own != -1
    ):
        return ""
    text = (
        f"{head}the model expects {len(provided)} dimensions (shape {shape_text(provided)}) but the model "
        "configuration "
    )
    if batching:
        return text + (
            f"specifies {len(full)} dimensions (an initial batch dimension because max_batch_size > 0 followed by the "
            f"explicit tensor shape, making complete shape {shape_text(full)})"
        )
    return f"{text}specifies {len(full)} dimensions (shape {shape_text(full)})"
