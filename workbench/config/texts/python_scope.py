"""Questions about the syntax tree of a model.py or a client: names, calls, assignments."""

from __future__ import annotations

import ast
from collections.abc import Iterator


def dotted(node: ast.AST) -> str:
    """``a.b.c`` of a name or attribute; empty for anything else."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        return ""
    return ".".join([node.id, *reversed(parts)])


def own_nodes(function: ast.AST) -> Iterator[ast.AST]:
    """Everything inside a function, but not inside functions, lambdas or classes that it defines."""
    waiting = list(ast.iter_child_nodes(function))
    while waiting:
        node = waiting.pop(0)
        yield node
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef):
            waiting = list(ast.iter_child_nodes(node)) + waiting


def imported_as(tree: ast.Module, module: str) -> set[str]:
    """The names that a module goes by."""
    out: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            out |= {alias.asname or alias.name for alias in node.names if alias.name == module}
        elif isinstance(node, ast.ImportFrom) and node.module:
            out |= {a.asname or a.name for a in node.names if f"{node.module}.{a.name}" == module}
    return out


def bound_names(tree: ast.Module) -> set[str]:
    """Every name that is bound anywhere: imports, assignments, arguments, definitions."""
    out: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            out |= {alias.asname or alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store | ast.Del):
            out.add(node.id)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.ExceptHandler):
            out.add(node.name or "")
            out |= {each.arg for each in ast.walk(node) if isinstance(each, ast.arg)}
        elif isinstance(node, ast.Lambda):
            out |= {each.arg for each in ast.walk(node.args) if isinstance(each, ast.arg)}
    return out


def assignments(tree: ast.AST) -> dict[str, list[ast.expr]]:
    """What is assigned to each name (dotted: also ``self.x``)."""
    out: dict[str, list[ast.expr]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                name = dotted(target)
                if name:
                    out.setdefault(name, []).append(node.value)
                elif isinstance(target, ast.Tuple | ast.List):
                    for each in target.elts:
                        out.setdefault(dotted(each), []).append(ast.Constant(None))
        elif isinstance(node, ast.AnnAssign | ast.AugAssign) and node.value is not None:
            out.setdefault(dotted(node.target), []).append(node.value)
    return out


def text_of(node: ast.expr | None) -> str | None:
    """The value of a string constant; None for anything else."""
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def argument(call: ast.Call, position: int, name: str) -> ast.expr | None:
    """An argument of a call by position or name."""
    if len(call.args) > position and not any(isinstance(each, ast.Starred) for each in call.args[: position + 1]):
        return call.args[position]
    return next((each.value for each in call.keywords if each.arg == name), None)
