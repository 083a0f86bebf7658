"""A bare ``def execute(inputs, outputs)`` rewritten as what the Python backend calls."""

from __future__ import annotations

import ast

from workbench.config.texts.nodes import Offsets
from workbench.config.texts.source import Change


def as_model(function: ast.FunctionDef, text: str, offsets: Offsets, outputs: list[str]) -> Change | None:
    """The function as a class TritonPythonModel; None where its body cannot be carried over line by line.

    ``outputs``: the names of the model's outputs, where known; otherwise they are OUTPUT0, OUTPUT1, ...
    """
    names = [each.arg for each in function.args.args]
    if len(names) != 2 or function.args.defaults or function.decorator_list:
        return None
    given, made = names
    changes: list[Change] = []
    for node in ast.walk(function):
        if isinstance(node, ast.Return | ast.Yield | ast.YieldFrom | ast.FunctionDef) and node is not function:
            return None
    for statement in function.body:
        call = statement.value if isinstance(statement, ast.Expr) else None
        index = _output_index(call, made)
        if isinstance(call, ast.Call) and index is not None:
            start, end = offsets.span(statement)
            first, last = offsets.span(call.args[0])
            name = outputs[index] if index < len(outputs) else f"OUTPUT{index}"
            array = _applied(text, first, last, _uses(call.args[0], given, offsets))
            changes.append((start, end, f'output_tensors.append(pb_utils.Tensor("{name}", {array}))'))
        elif any(isinstance(node, ast.Name) and node.id == made for node in ast.walk(statement)):
            return None
        else:
            changes += _uses(statement, given, offsets)
    if not any("output_tensors" in change[2] for change in changes):
        return None
    begin, end = offsets.span(function)
    body_start = offsets.at(function.body[0].lineno, 0)
    body = _applied(text, body_start, end, changes)
    indent = " " * function.body[0].col_offset
    lines = [line.removeprefix(indent) for line in body.split("\n")]
    inner = "\n".join(f"            {line}" if line.strip() else "" for line in lines)
    new = (
        "import triton_python_backend_utils as pb_utils\n\n\nclass TritonPythonModel:\n"
        "    def execute(self, requests):\n        responses = []\n        for request in requests:\n"
        f"            output_tensors = []\n{inner}\n"
        "            responses.append(pb_utils.InferenceResponse(output_tensors=output_tensors))\n"
        "        return responses"
    )
    return begin, end, new


def _uses(node: ast.AST, given: str, offsets: Offsets) -> list[Change]:
    """The inputs as a request has them, wherever the list of inputs is used."""
    names = [each for each in ast.walk(node) if isinstance(each, ast.Name) and each.id == given]
    return [(*offsets.span(each), "request.inputs()") for each in names]


def _applied(text: str, begin: int, end: int, changes: list[Change]) -> str:
    """A part of a text with changes made."""
    out = text[begin:end]
    for start, stop, new in sorted(changes, reverse=True):
        out = out[: start - begin] + new + out[stop - begin :]
    return out


def _output_index(call: ast.expr | None, made: str) -> int | None:
    """Which output ``outputs[i].set_data_from_numpy(array)`` sets."""
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute) or len(call.args) != 1:
        return None
    target = call.func.value
    if call.func.attr != "set_data_from_numpy" or not isinstance(target, ast.Subscript):
        return None
    if not isinstance(target.value, ast.Name) or target.value.id != made:
        return None
    index = target.slice
    return index.value if isinstance(index, ast.Constant) and type(index.value) is int else None
