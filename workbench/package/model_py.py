"""The model.py around a function, an estimator or an exported module. It needs nothing of the workbench."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from workbench.package.tensors import Feed, Signature, wire

_TEMPLATE = '''"""{title}

Packaged by serving-workbench; Triton's Python backend runs it as it is.{needs}
"""

from __future__ import annotations

{imports}
import traceback as _traceback

import numpy as _np
import triton_python_backend_utils as pb_utils

{body}# name: (how its strings are given, whether a row is one value without an axis of its own)
_INPUTS = {inputs}
# name: (numpy dtype, whether a row is one value without an axis of its own)
_OUTPUTS = {outputs}
_BATCHES = {batches}


def _received(request):
    """The inputs of a request as they were when this was packaged."""
    feed = {{}}
    for name, (text, flat) in _INPUTS.items():
        tensor = pb_utils.get_input_tensor_by_name(request, name)
        if tensor is None:  # an optional one
            continue
        array = tensor.as_numpy()
        if text:
            array = _np.array([item.decode() for item in array.flat], dtype=text).reshape(array.shape)
        feed[name] = array[..., 0] if flat else array
    return feed


def _tensors(values, names):
    """The outputs by name: of a dictionary, a tuple, or one array."""
    if not isinstance(values, dict):
        values = dict(zip(names, values if isinstance(values, tuple) else (values,)))
    out = {{}}
    for name, (dtype, flat) in _OUTPUTS.items():
        array = values[name]
        array = _np.asarray(array.detach().cpu() if hasattr(array, "detach") else array)
        if dtype == "object" and array.dtype != object:
            array = array.astype(str)
        array = array.astype(dtype, copy=False)
        out[name] = array[..., None] if flat else array
    return out


class TritonPythonModel:
    """The packaged model behind Triton's interface."""

    def initialize(self, args):
        """Reads what lies beside this file."""
        here = os.path.dirname(os.path.abspath(__file__))
{load}

    def call(self, feed):
        """One call of the model: arrays in, arrays out."""
{call}

    def execute(self, requests):
        """Answers a batch with one call; where that fails, each request with one of its own."""
        feeds = [_received(request) for request in requests]
        if len(feeds) == 1 or not _BATCHES or any(feed.keys() != feeds[0].keys() for feed in feeds):
            return [self.answer(feed, request) for feed, request in zip(feeds, requests)]
        ends = _np.cumsum([len(next(iter(feed.values()))) for feed in feeds])[:-1]
        try:
            together = {{name: _np.concatenate([feed[name] for feed in feeds]) for name in feeds[0]}}
            outputs = _tensors(self.call(together), list(_OUTPUTS))
            parts = {{name: _np.split(array, ends) for name, array in outputs.items()}}
        except Exception:
            return [self.answer(feed, request, alone=False) for feed, request in zip(feeds, requests)]
        return [
            self.response({{name: part[index] for name, part in parts.items()}}, request)
            for index, request in enumerate(requests)
        ]

    def answer(self, feed, request, alone=True):
        """One request's answer; an error is this request's alone."""
        try:
            return self.response(_tensors(self.call(feed), list(_OUTPUTS)), request)
        except Exception:
            if alone and _BATCHES:
                raise
            return pb_utils.InferenceResponse([], error=pb_utils.TritonError(_traceback.format_exc()))

    def response(self, outputs, request):
        """The outputs that the request asks for."""
        wanted = set(request.requested_output_names())
        return pb_utils.InferenceResponse(
            [pb_utils.Tensor(name, array) for name, array in outputs.items() if not wanted or name in wanted]
        )
'''


def render(
    title: str,
    signature: Signature,
    feeds: Sequence[Feed],
    answers: Sequence[Feed],
    *,
    call: str,
    load: str = "",
    body: str = "",
    imports: Sequence[str] = (),
    needs: Sequence[str] = (),
) -> bytes:
    """The text of a model.py.

    Args:
        title: its first line.
        signature: what the model takes and gives.
        feeds: the examples: they say how strings are given.
        answers: the answers to them: they say the dtypes.
        call: the lines that answer ``feed`` (a dictionary of arrays) with a dictionary, a tuple or one array.
        load: the lines that fill ``self`` from the files of the directory ``here``.
        body: definitions that ``call`` and ``load`` use.
        imports: import statements for them.
        needs: packages that it needs, as requirements.
    """
    flat = {spec.name: signature.batching and not spec.dims for spec in (*signature.inputs, *signature.outputs)}
    given = {name: array for feed in reversed(feeds) for name, array in feed.items()}
    inputs = {spec.name: (_text(given[spec.name]), flat[spec.name]) for spec in signature.inputs}
    outputs = {name: (_dtype(array), flat[name]) for name, array in answers[0].items()}
    text = _TEMPLATE.format(
        title=title,
        needs=f" It needs {', '.join(needs)}." if needs else "",
        imports="\n".join(sorted({"import os", *imports})),
        body=f"{body.strip()}\n\n" if body.strip() else "",
        inputs=_pretty(inputs),
        outputs=_pretty(outputs),
        batches=signature.batching,
        load=_indented(load or "del here"),
        call=_indented(call),
    )
    return text.encode()


def _text(array: NDArray[Any]) -> str:
    """How strings of an example are given: ``str``, ``object``, or as bytes (empty)."""
    if array.dtype.kind == "U":
        return "str"
    return "object" if array.dtype == np.object_ and any(isinstance(item, str) for item in array.flat) else ""


def _dtype(array: NDArray[Any]) -> str:
    return "object" if wire(array) == "BYTES" else array.dtype.name


def _pretty(value: Mapping[str, Any]) -> str:
    return "{" + ", ".join(f"{key!r}: {item!r}" for key, item in value.items()) + "}"


def _indented(lines: str) -> str:
    return "\n".join(f"        {line}" if line else "" for line in lines.splitlines())
