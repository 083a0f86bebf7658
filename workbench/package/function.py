"""A plain function: arrays in, arrays out."""

from __future__ import annotations

import inspect
import io
from types import FunctionType
from typing import Any

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
    feeds = as_feeds(wish.examples, names, what=f"the function '{function.__name__}'")
    needed = {each.name for each in parameters if each.default is each.empty}
    if not needed <= set(feeds[0]) <= set(names):
        raise InvalidRequest(
            f"function '{function.__name__}' takes {', '.join(names)}, the examples have {', '.join(feeds[0])}"
        )
    source = capture(function)

    def call(feed: Feed) -> Feed:
        return named(function(**feed), wish.outputs)

    found, answers = signature(call, feeds, batching=wish.batching)
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
        values += [f"{name} = _constants[{name!r}]\n" for name in source.arrays]
    body = "\n\n".join(each for each in ("".join(values), "\n\n".join(source.functions)) if each)
    version["model.py"] = render(
        f"The function {function.__name__}.", found, feeds, answers, call=f"return {source.name}(**feed)", body=body,
        imports=source.imports, needs=needs,
    )  # fmt: skip
    comment = f"The function {function.__name__} of {function.__module__}. It needs {', '.join(needs)}."
    return Made("python", found, feeds, answers, version, comment, tuple(needs))
