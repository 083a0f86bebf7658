"""What to do about an error: what is declared, what there is. The wire text stays Triton's; this is for the person."""

from __future__ import annotations

import difflib
import functools
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar, cast

import numpy as np

from workbench.errors import Code, ConnectionFailed, WorkbenchError
from workbench.protocol.datatypes import BY_WIRE

if TYPE_CHECKING:
    from workbench.protocol.tensors import InferenceRequest, Tensor
    from workbench.session.server import Server

P = ParamSpec("P")
R = TypeVar("R")
S = TypeVar("S", bound="Server")

_UNKNOWN_MODEL = re.compile(
    r"unknown model|requested model '.*' is not available|failed to poll from model repository|no such model"
)
_DECOUPLED = re.compile(r"support models with decoupled transaction policy")
_UNKNOWN_VERSION = re.compile(r"' version -?\d+ is not found|requested model version is not available")
_WRONG_INPUT = re.compile(r"unexpected inference input|expected (\d+ inputs|number of inputs)|missing required input")
_WRONG_OUTPUT = re.compile(r"unexpected inference output")
_WRONG_DATATYPE = re.compile(r"inference input '(?P<name>[^']*)' data-type is")
_WRONG_SHAPE = re.compile(r"unexpected shape for input '(?P<name>[^']*)'|input '(?P<bare>[^']*)' has no shape")
_MODEL_RAISED = re.compile(r"Failed to process the request\(s\) for model '")
_MODEL_DIED = re.compile(r"Failed to process the request\(s\) for model instance '|^Stub process '.*' is not healthy")
_KEPT_FROM = re.compile(r" is restricted, expecting header '|need the repository's token")
_NO_CONTROL = re.compile(r"^explicit model load / unload is not allowed")
_TOO_MANY_ROWS = re.compile(r"batch-size must be <= (?P<limit>\d+)")


_REPLAY = "server.replay() runs it again in this kernel"


def explained(
    verb: Callable[Concatenate[S, str, P], R],
) -> Callable[Concatenate[S, str, P], R]:
    """A verb of a server whose first argument is a model: its errors say what to do."""

    @functools.wraps(verb)
    def told(server: S, model: str, *args: P.args, **named: P.kwargs) -> R:
        try:
            return verb(server, model, *args, **named)
        except WorkbenchError as error:
            explain(server, model, error)
            raise

    return cast("Callable[Concatenate[S, str, P], R]", told)


def explain(server: Server, model: str, error: WorkbenchError, request: InferenceRequest | None = None) -> None:
    """Fills in the error's ``hint`` where it has none and there is something to say. Never raises."""
    if isinstance(error, ConnectionFailed):
        error.hint = server.why_gone() or error.hint
        return
    if _KEPT_FROM.search(error.message) and not error.hint:
        error.hint = (
            "wb.attach(name), or wb.connect(url, token=...) with the control plane's token (workbench serve --token, "
            "server.token), is let through over HTTP; other clients send the header: headers={...} of tritonclient"
        )
        return
    if _NO_CONTROL.search(error.message) and not error.hint:
        error.hint = "its control mode is not explicit: start it with --model-control-mode explicit --load-model '*'"
        return
    try:
        if _UNKNOWN_MODEL.search(error.message):
            error.hint = _about_models(server, model, error)
        elif request is not None and not error.hint:
            error.hint = _about_request(server, model, error.message, request)
            if not error.hint and error.code is Code.INTERNAL and len(server.captured()):  # what the model answered
                error.hint = _REPLAY
    except Exception:
        return  # the first error is the one that matters


def _about_request(server: Server, model: str, text: str, request: InferenceRequest) -> str:
    if _DECOUPLED.search(text):
        return (
            f"'{model}' may answer a request any number of times, its answers come as a stream: over HTTP from "
            f"POST /v2/models/{model}/generate_stream, over gRPC from ModelStreamInfer, from an engine in this kernel "
            "with server.engine.infer_stream(request)"
        )
    if _MODEL_RAISED.search(text) or _MODEL_DIED.search(text):
        server.captured()  # a remote Triton keeps none: nothing to say
        if _MODEL_DIED.search(text):  # what hung or killed the process would do so to this kernel
            return f"server.logs(model={model!r}) says where it was"
        return _REPLAY + ', server.logs(level="error") has the traceback'
    if _WRONG_INPUT.search(text):
        return f"the inputs of '{model}' are {describe(server.model_metadata(model)['inputs'])}"
    if _WRONG_OUTPUT.search(text):
        return f"the outputs of '{model}' are {describe(server.model_metadata(model)['outputs'])}"
    limit = _TOO_MANY_ROWS.search(text)
    if limit:
        return _about_rows(model, int(limit["limit"]))
    found = _WRONG_DATATYPE.search(text) or _WRONG_SHAPE.search(text)
    if not found:
        return ""
    name = next(value for value in found.groupdict().values() if value is not None)
    declared = {entry["name"]: entry for entry in server.model_metadata(model)["inputs"]}[name]
    tensor = next(tensor for tensor in request.inputs if tensor.name == name)
    if found.re is _WRONG_DATATYPE:
        return _about_datatype(tensor, declared)
    return _about_shape(tensor, declared, int(server.model_config(model).get("max_batch_size", 0)))


def describe(tensors: Iterable[Mapping[str, Any]]) -> str:
    """``x FP32 [-1, 4], y INT64 [-1, 1]``; -1 is any length."""
    return ", ".join(f"{entry['name']} {entry['datatype']} {_shape(entry['shape'])}" for entry in tensors) or "none"


def _shape(shape: Iterable[Any]) -> str:
    return str([int(dim) for dim in shape])


def _about_models(server: Server, model: str, error: WorkbenchError) -> str:
    models = server.models()
    if model not in models.names:
        if not models:
            return "the repository holds no model"
        near = difflib.get_close_matches(model, models.names, n=1)
        return (f"did you mean {near[0]!r}? " if near else "") + f"there are {', '.join(models.names)}"
    if error.hint:
        return error.hint
    row = models[model]
    if row.ready:
        if _UNKNOWN_VERSION.search(error.message):
            ready = [each.version for each in models if each.name == model and each.ready]
            return f"'{model}' serves version {', '.join(ready)}"
        return "it goes on with the configuration that it has; the server's log says what was wrong"
    reason = row.reason.strip()
    if reason and reason != "unloaded":
        return f"'{model}' did not load: {reason}"
    return f"'{model}' is in the repository but not loaded: load({model!r})"


def _about_rows(model: str, limit: int) -> str:
    more = "send fewer rows in a request"
    if limit == 0:
        return f"{more}; max_batch_size is 0"
    return f"{more}, or configure({model!r}, max_batch_size=...) with more than {limit}"


def _about_datatype(tensor: Tensor, declared: Mapping[str, Any]) -> str:
    row = BY_WIRE.get(str(declared["datatype"]))
    if row is None or row.wire == "BYTES":
        return f"send strings or bytes: an array of dtype object, or a list; {tensor.name} is {declared['datatype']}"
    return f"convert it: array.astype(numpy.{np.dtype(row.numpy).name}); a list is converted by itself"


def _about_shape(tensor: Tensor, declared: Mapping[str, Any], max_batch_size: int) -> str:
    full = [int(dim) for dim in declared["shape"]]
    text = f"the full shape is {full}"
    if max_batch_size > 0:
        text += f", the batch dimension (1 to {max_batch_size} rows) included"
        if _fits(tensor.shape, full[1:]):
            return f"{text}; this is one row without it: send array[None], of shape {[1, *tensor.shape]}"
        row = full[1:]
        rows, rest = divmod(tensor.data.size, math.prod(row)) if min(row, default=1) > 0 else (0, 1)
        if rest == 0 and 1 <= rows <= max_batch_size:
            return f"{text}; this has the elements of {rows} row{'s' * (rows > 1)}: array.reshape({[rows, *row]})"
    return text


def _fits(shape: Sequence[int], dims: Sequence[int]) -> bool:
    return len(shape) == len(dims) and all(want in (-1, got) for want, got in zip(dims, shape, strict=True))
