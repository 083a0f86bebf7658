"""Names of the tensors of an exported PyTorch program, and which of them a configuration means. No framework is needed.

Leaves are counted in the order in which the program takes and gives them. A configuration may name one (source:
pytorch_backend, README, "AOT Inductor Support"):

* by its place, ``INPUT__0``, ``OUTPUT__1``: any name that ends with ``__<number>``;
* by its path, ``ARGS[0]``, ``ARGS[2][key]``, ``KWARGS[key]``, ``RESULT``, ``RESULT[0]``, ``RESULT[key]``;
* here also by what the program itself calls it: an argument of ``forward``, the key of a dictionary that it gives.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

_PLACE = re.compile(r".*?__(\d+)")
_SEQUENCES = ("builtins.tuple", "builtins.list")


class NamesError(ValueError):
    """The configuration's names do not fit the program's."""


def paths(spec: str, root: str = "") -> list[str]:
    """The paths of all leaves of a tree that PyTorch has written down as JSON (``treespec_dumps``).

    Without ``root`` the tree is that of a call, a pair of arguments and keyword arguments: ARGS and KWARGS.
    """
    tree = json.loads(spec)[1]
    if root:
        return _walk(tree, root)
    args, kwargs = tree["children_spec"]
    return _walk(args, "ARGS") + _walk(kwargs, "KWARGS")


def _walk(node: Mapping[str, Any], path: str) -> list[str]:
    kind, children = node["type"], node["children_spec"]
    if kind is None:
        return [path]
    if kind in _SEQUENCES:
        keys: Sequence[Any] = range(len(children))
    elif kind in ("builtins.dict", "collections.OrderedDict"):
        keys = json.loads(node["context"])
    elif kind == "builtins.NoneType":
        return []
    else:
        raise NamesError(f"{path} is a {kind}; there may be tensors, tuples, lists and dictionaries")
    return [leaf for key, child in zip(keys, children, strict=True) for leaf in _walk(child, f"{path}[{key}]")]


def own_name(path: str) -> str:
    """What a path's leaf is called where it has a name of its own (KWARGS[scale]: scale), else ""."""
    parts = re.findall(r"\[([^\]]*)\]", path)
    return parts[0] if len(parts) == 1 and not parts[0].isdigit() else ""


def indices(wanted: Sequence[str], leaves: Sequence[str], own: Sequence[str], what: str) -> tuple[list[int], bool]:
    """Which leaf each configured name means, and whether that was told by the names (not by their order).

    Args:
        wanted: the configuration's names in their order.
        leaves: the paths of all leaves.
        own: the names that the program has for them, "" where it has none.
        what: ``input`` or ``output``, for texts.

    Raises:
        NamesError: some names are known and others are not, two mean the same leaf, or there are too many.
    """
    known = {name: index for index, name in enumerate(own) if name} | {path: i for i, path in enumerate(leaves)}
    found = [known.get(name, _place(name)) for name in wanted]
    there = ", ".join(name or path for name, path in zip(own, leaves, strict=True))
    if all(index < 0 for index in found):
        if len(wanted) > len(leaves):
            raise NamesError(f"the configuration has {len(wanted)} {what}s, the program {len(leaves)}: {there}")
        return list(range(len(wanted))), False
    for name, index in zip(wanted, found, strict=True):
        if not 0 <= index < len(leaves):
            raise NamesError(f"the program has no {what} '{name}'; it has {there}")
    if len(set(found)) != len(found):
        raise NamesError(f"two {what}s of the configuration ({', '.join(wanted)}) mean the same one of the program")
    return found, True


def _place(name: str) -> int:
    match = _PLACE.fullmatch(name)
    return int(match[1]) if match else -1
