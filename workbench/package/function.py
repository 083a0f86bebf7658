"""A plain function: arrays in, arrays out."""

from __future__ import annotations

import contextlib
import inspect
import io
from types import FunctionType
from typing import Any, get_args, get_origin, get_type_hints

import numpy as np

from workbench.errors import InvalidRequest
from workbench.package.made import Made, Wish
from workbench.package.model_py import render
from workbench.package.source import capture, requirements
from workbench.package.tensors import Feed, as_feeds, named, signature


def from_function(function: FunctionType, wish: Wish) -> Made:
    """A model.py around the function's source.

    Raises:
        InvalidRequest: the source cannot be captured, or an example does not fit the function.
    """
    parameters = inspect.signature(function).parameters.values()
    if any(each.kind in (each.VAR_POSITIONAL, each.VAR_KEYWORD, each.POSITIONAL_ONLY) for each in parameters):
        raise InvalidRequest(
            f"function '{function.__name__}' takes any number of arguments, or arguments without a name",
            hint="give it one parameter for each input",
        )
    names = [each.name for each in parameters]
    needed = {each.name for each in parameters if each.default is each.empty}
    what = f"the function '{function.__name__}'"
    feeds = as_feeds(wish.examples, names, what=what, optional=set(names) - needed)
    for feed in feeds:
        if not needed <= set(feed) <= set(names):
            raise InvalidRequest(
                f"function '{function.__name__}' takes {', '.join(names)}, the examples have {', '.join(feed)}",
                hint="name the examples as the function does",
            )
    feeds = _as_hinted(function, feeds)
    source = capture(function)

    def call(feed: Feed) -> Feed:
        return named(function(**feed), wish.outputs)

    what = f"the function {function.__name__}"
    found, answers = signature(call, feeds, batching=wish.batching, what=what)
    needs = ["numpy", *(each for each in requirements(source.modules) if not each.startswith("numpy=="))]
    version: dict[str, Any] = {}
    values = list(source.values)
    if source.arrays:
        buffer = io.BytesIO()
        np.savez(buffer, **source.arrays)  # type: ignore[arg-type]
        version["constants.npz"] = buffer.getvalue()
        values.append(
            "_constants = _np.load(os.path.join(os.path.dirname(os.path.abspath(__file__)), 'constants.npz'))\n"
        )
        values += [
            f"{name} = _constants[{name!r}]{'[()]' if isinstance(value, np.generic) else ''}\n"  # a file has no scalars
            for name, value in source.arrays.items()
        ]
    body = "\n\n".join(each for each in ("".join(values), "\n\n".join(source.functions)) if each)
    version["model.py"] = render(
        f"The function {function.__name__}.", found, feeds, answers, call=f"return {source.name}(**feed)", body=body,
        imports=source.imports, needs=needs,
    )  # fmt: skip
    comment = f"The function {function.__name__} of {function.__module__}. It needs {', '.join(needs)}."
    return Made("python", found, feeds, answers, version, comment, tuple(needs))


def _as_hinted(function: FunctionType, feeds: list[Feed]) -> list[Feed]:
    """Examples of the data types that the function's hints name: ``NDArray[np.float32]``. Others stay as they are.

    An example is often written as a list, whose numbers are of 64 bits.
    """
    try:
        hints = get_type_hints(function)
    except Exception:  # a hint that names what is not there is nobody's fault
        return feeds
    dtypes = {name: dtype for name, hint in hints.items() if (dtype := _dtype_of(hint)) is not None}
    return [
        {
            name: array.astype(dtypes[name]) if name in dtypes and array.dtype.kind in "biuf" else array
            for name, array in feed.items()
        }
        for feed in feeds
    ]


def _dtype_of(hint: Any) -> np.dtype[Any] | None:
    """The data type in ``NDArray[np.float32]``, also where None is allowed beside it."""
    for part in (hint, *get_args(hint)):
        if get_origin(part) is not np.ndarray:
            continue
        for scalar in get_args(get_args(part)[-1]):
            if isinstance(scalar, type) and issubclass(scalar, np.bool_ | np.integer | np.floating):
                with contextlib.suppress(TypeError):  # an abstract one: np.integer
                    return np.dtype(scalar) if scalar not in (np.integer, np.floating) else None
    return None
