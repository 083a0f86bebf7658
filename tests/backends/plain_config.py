"""The configuration of a model with one input x and one output y, the same for the small models of each backend."""

from __future__ import annotations


def config(
    runs: str, kind: str = "FP32", *, rows: int = 8, dims: str = "4", out: str = "", more: str = "",
    parameters: str = "",
) -> str:  # fmt: skip
    """``runs``: the line that names backend or platform; ``parameters`` are "KEY=VALUE ...", ``more`` is any text."""
    text = f"""\
{runs}
max_batch_size: {rows}
input [ {{ name: "x" data_type: TYPE_{kind} dims: [ {dims} ] }} ]
output [ {{ name: "y" data_type: TYPE_{kind} dims: [ {out or dims} ] }} ]
instance_group [ {{ kind: KIND_CPU count: 1 }} ]
"""
    for each in parameters.split():
        key, value = each.split("=")
        text += f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}\n'
    return text + more
