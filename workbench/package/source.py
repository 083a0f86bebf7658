"""The source of a plain function with all that it uses: imports, helper functions, simple values, arrays.

What cannot be written down (an open file, a model object, a class of the notebook) is refused by name.
"""

from __future__ import annotations

import ast
import builtins
import dis
import importlib.metadata
import inspect
import sys
import sysconfig
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from workbench.errors import InvalidRequest

_SIMPLE = (type(None), bool, int, float, complex, str, bytes)

_WHOLE = ("numpy",)
"""Packages that give their modules without a further import, which may fail in another release: ``numpy.char`` is a
module of its own from numpy 2 on only."""


@dataclass(slots=True)
class Source:
    """Python text that defines a function in a module of its own.

    ``arrays`` are numpy arrays and scalars that it uses by name; ``modules`` the top-level packages that it imports.
    """

    name: str
    imports: list[str] = field(default_factory=list)
    values: list[str] = field(default_factory=list)
    functions: list[str] = field(default_factory=list)
    arrays: dict[str, NDArray[Any] | np.generic[Any]] = field(default_factory=dict)
    modules: set[str] = field(default_factory=set)


def capture(function: FunctionType) -> Source:
    """A function's source and what it needs.

    Raises:
        InvalidRequest: its source is not to be had, or it uses something that cannot be written down; the text names
            it.
    """
    collector = _Collector(function.__name__)
    collector.function(function.__name__, function)
    return collector.source


class _Collector:
    def __init__(self, name: str) -> None:
        self.source = Source(name)
        self._seen: dict[str, Any] = {}

    def function(self, name: str, function: FunctionType) -> None:
        """Takes a function in, after all that it uses."""
        if function.__name__ != name:
            raise self._refuse(
                f"'{name}' is the function '{function.__name__}' under another name", "call it by its own"
            )
        inner = _plain(function)
        node, text = self._text(inner)
        self._seen.setdefault(name, function)
        for used, value in self._used(inner, node):
            self._take(used, value, inner.__name__, node)
        self.source.functions.append(text)

    def _text(self, function: FunctionType) -> tuple[ast.FunctionDef, str]:
        name = function.__name__
        if name == "<lambda>":
            raise self._refuse("a lambda has no name", "write it as def")
        if inspect.iscoroutinefunction(function) or inspect.isgeneratorfunction(function):
            raise self._refuse(f"'{name}' is a generator or a coroutine", "write the model.py itself: %%triton_model")
        try:
            text = textwrap.dedent(inspect.getsource(function))
            (node,) = ast.parse(text).body
        except (OSError, TypeError, SyntaxError, ValueError) as error:
            raise self._refuse(
                f"the source of '{name}' is not to be had ({error})", "define it in a file or a cell"
            ) from None
        if not isinstance(node, ast.FunctionDef):
            raise self._refuse(f"'{name}' is not defined by a def of its own", "write it as def")
        return node, text.rstrip() + "\n"

    def _used(self, function: FunctionType, node: ast.FunctionDef) -> Iterator[tuple[str, Any]]:
        cells = function.__closure__ or ()
        for name, cell in zip(function.__code__.co_freevars, cells, strict=True):
            try:
                yield name, cell.cell_contents
            except ValueError:
                raise self._refuse(f"'{name}' of '{function.__name__}' has no value yet", "set it first") from None
        outside = [*node.decorator_list, *node.args.defaults, *(each for each in node.args.kw_defaults if each)]
        names = {each.id: None for part in outside for each in ast.walk(part) if isinstance(each, ast.Name)}
        names.update(dict.fromkeys(self._globals(function.__code__, function.__name__)))
        for name in names:
            if name in function.__globals__:
                yield name, function.__globals__[name]
            elif not hasattr(builtins, name) and name not in function.__code__.co_freevars:
                raise self._refuse(f"'{function.__name__}' uses '{name}', which is not defined", "define it first")

    def _globals(self, code: CodeType, function: str) -> Iterator[str]:
        for step in dis.get_instructions(code):
            if step.opname in ("STORE_GLOBAL", "DELETE_GLOBAL"):
                raise self._refuse(f"'{function}' sets the global '{step.argval}'", "give it as a result instead")
            if step.opname == "LOAD_GLOBAL":
                yield str(step.argval)
        for constant in code.co_consts:
            if isinstance(constant, CodeType):
                yield from self._globals(constant, function)

    def _take(self, name: str, value: Any, user: str, node: ast.FunctionDef) -> None:
        if name in self._seen:
            if self._seen[name] is not value:
                raise self._refuse(f"'{name}' means two different things", "rename one of them")
            if not isinstance(value, ModuleType):
                return
        self._seen[name] = value
        if isinstance(value, ModuleType):
            self._module(name, value, user, node)
        elif isinstance(_plain(value), FunctionType) and not _installed(value.__module__):
            self.function(name, value)
        elif isinstance(value, np.ndarray | np.generic) and value.dtype != np.object_:
            self.source.arrays[name] = value
        elif _is_simple(value):
            self.source.values.append(f"{name} = {value!r}\n")
        else:
            self._named(name, value, user)

    def _module(self, name: str, module: ModuleType, user: str, node: ast.FunctionDef) -> None:
        full = module.__name__
        if not _installed(full):
            raise self._refuse(
                f"'{user}' uses the module '{full}', which is a file of yours",
                f"import its functions: from {full} import ...",
            )
        self._import(f"import {full}" if full == name else f"import {full} as {name}", full)
        for each in ast.walk(node):  # scipy.special.expit needs scipy.special
            chain = _chain(each)
            if chain is not None and chain[0] == name and full not in _WHOLE:
                for end in range(2, len(chain)):
                    deeper = ".".join((full, *chain[1:end]))
                    if deeper in sys.modules:
                        self._import(f"import {deeper}", full)

    def _named(self, name: str, value: Any, user: str) -> None:
        """Something that a module has under a name: a class, a built-in, a ufunc."""
        own = getattr(value, "__name__", "")
        for module in (getattr(value, "__module__", None), "numpy"):
            if not isinstance(module, str) or not own or not _installed(module):
                continue
            if module != "builtins" and getattr(sys.modules.get(module), own, None) is value:
                text = f"from {module} import {own}"
                self._import(text if own == name else f"{text} as {name}", module)
                return
        kind = f"the class '{own}'" if isinstance(value, type) else f"a {type(value).__module__}.{type(value).__name__}"
        raise self._refuse(
            f"'{user}' uses '{name}', {kind}: it cannot be written into model.py",
            "use numbers, strings, arrays, functions and installed modules; package an estimator or module itself",
        )

    def _import(self, line: str, module: str) -> None:
        if line not in self.source.imports:
            self.source.imports.append(line)
        self.source.modules.add(module.partition(".")[0])

    def _refuse(self, text: str, hint: str) -> InvalidRequest:
        return InvalidRequest(text, where=f"function '{self.source.name}'", hint=hint)


def _plain(value: Any) -> Any:
    """A function without its decorators, as far as they say what they wrap; anything else as it is."""
    return inspect.unwrap(value) if callable(value) and hasattr(value, "__wrapped__") else value


def _chain(node: ast.AST) -> tuple[str, ...] | None:
    """``a.b.c`` as a tuple of names."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return (node.id, *reversed(parts)) if isinstance(node, ast.Name) and parts else None


def _is_simple(value: Any) -> bool:
    if isinstance(value, list | tuple | set | frozenset) and type(value) in (list, tuple, set):
        return all(map(_is_simple, value)) and bool(value or not isinstance(value, set))
    if type(value) is dict:
        return all(_is_simple(key) and _is_simple(item) for key, item in value.items())
    return type(value) in _SIMPLE and repr(value) not in ("inf", "-inf", "nan")


def _installed(module: str | None) -> bool:
    """Whether a module comes from Python or from an installed package, so that another machine can have it."""
    top = (module or "").partition(".")[0]
    if not top or top == "__main__":
        return False
    if top in sys.stdlib_module_names:
        return True
    file = getattr(sys.modules.get(top), "__file__", None)
    if file is None:
        paths = list(getattr(sys.modules.get(top), "__path__", ()))
        file = paths[0] if paths else None
    places = {sysconfig.get_path(name) for name in ("purelib", "platlib")}
    return file is not None and any(Path(file).is_relative_to(place) for place in places if place)


def requirements(modules: set[str]) -> list[str]:
    """The packages behind top-level modules, pinned as they are installed here: ``scikit-learn==1.6.0``."""
    homes = importlib.metadata.packages_distributions()
    names = {homes[module][0] for module in modules if module in homes and module not in sys.stdlib_module_names}
    return sorted(f"{name}=={importlib.metadata.version(name)}" for name in names)
