"""Example inputs as a person gives them, and what they say of a model: names, data types, dims, whether rows batch."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from workbench.errors import Cancelled, InvalidRequest, WorkbenchError
from workbench.protocol import datatypes
from workbench.protocol.tensors import as_bytes_array

Feed = dict[str, NDArray[Any]]
"""The inputs of one request, or its outputs: name -> array, the batch axis included where there is one."""

_NAME_EACH = "name as many outputs as it gives: outputs=('a', 'b'), --output a --output b"

Call = Callable[[Feed], Feed]
"""The model as a function."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """An input or output of a model: v2 data type, dims without the batch axis (-1: any).

    No dims: a row is one value. Triton has no such tensor, in its configuration and on the wire they are [1].
    """

    name: str
    datatype: str
    dims: tuple[int, ...]
    optional: bool = False


@dataclass(frozen=True, slots=True)
class Signature:
    """What a model takes and gives. ``why`` says why its requests cannot share a batch; empty where they can."""

    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    batching: bool
    why: str = ""


def as_feeds(examples: Any, names: Sequence[str], *, what: str, optional: Collection[str] = ()) -> list[Feed]:
    """Example inputs as one dictionary a request.

    Args:
        examples: a mapping name -> array; a list of such mappings; one array (or table) for a model of one input; a
            tuple of arrays, in the order of the inputs.
        names: the names of the inputs, as far as the model has some.
        what: the model, for errors.
        optional: inputs that an example need not have.

    Raises:
        InvalidRequest: they are none of that, or a value is no tensor.
    """
    if examples is None or (isinstance(examples, list | tuple | Mapping) and not examples):
        raise InvalidRequest(
            f"example_inputs are needed to package {what}",
            hint="give one request: example_inputs={'x': array}, with the batch axis (--example-inputs FILE)",
        )
    if isinstance(examples, list) and examples and all(isinstance(each, Mapping) for each in examples):
        requests: list[Mapping[str, Any]] = list(examples)
    elif isinstance(examples, Mapping):
        requests = [examples]
    elif isinstance(examples, tuple):
        requests = [dict(zip(_enough(names, len(examples)), examples, strict=False))]
    else:
        requests = [{_enough(names, 1)[0]: examples}]
    everything = dict.fromkeys(name for each in requests for name in each)
    missing = {name for each in requests for name in everything if name not in each and name not in optional}
    if missing:
        raise InvalidRequest(
            f"every example is to have the same inputs: not all have {', '.join(sorted(missing))}",
            hint="only a function's parameters with a default may be left out",
        )
    return [{name: as_array(name, value) for name, value in each.items()} for each in requests]


def _enough(names: Sequence[str], count: int) -> Sequence[str]:
    if count > len(names):
        raise InvalidRequest(f"{count} example inputs for the inputs {', '.join(names)}", hint="name them: {'x': ...}")
    return names


def as_array(name: str, value: Any) -> NDArray[Any]:
    """A value as an array that v2 has a data type for; torch tensors and tables too.

    Raises:
        InvalidRequest: it is no tensor.
    """
    array: NDArray[Any] = np.asarray(value.detach().cpu() if hasattr(value, "detach") else value)
    if array.dtype == np.object_ and not all(isinstance(item, str | bytes) for item in array.flat):
        raise InvalidRequest(f"'{name}' is no tensor: {value!r:.80}", hint="give an array of numbers or of strings")
    if array.ndim == 0:
        raise InvalidRequest(f"'{name}' has no dimension: {value!r:.80}", hint="give an array of shape [1]")
    datatypes.from_numpy(array.dtype)
    return array


def named(value: Any, names: Sequence[str]) -> Feed:
    """What a model gave, by output: a dictionary by its keys, a tuple by ``names`` or its fields, the rest as one.

    Raises:
        InvalidRequest: there are not as many outputs as names, or one is no tensor.
    """
    if isinstance(value, Mapping):
        found = {str(key): item for key, item in value.items()}
    elif isinstance(value, tuple):
        given = names or getattr(value, "_fields", None) or [f"output_{index}" for index in range(len(value))]
        if len(given) != len(value):
            raise InvalidRequest(f"{len(value)} outputs, but the names {', '.join(given)}", hint=_NAME_EACH)
        found = dict(zip(given, value, strict=True))
    else:
        if len(names) > 1:
            raise InvalidRequest(f"one output, but the names {', '.join(names)}", hint=_NAME_EACH)
        found = {names[0] if names else "output": value}
    return {name: as_array(name, item) for name, item in found.items()}


def signature(call: Call, feeds: Sequence[Feed], *, batching: bool | None, what: str) -> tuple[Signature, list[Feed]]:
    """What a model takes and gives, and its answers to the examples.

    Args:
        call: the model.
        feeds: the examples.
        batching: whether the first axis is the batch; None tries it: the rows of a request are to be answered alone
            as together.
        what: the model, for errors.

    Raises:
        InvalidRequest: an example has no rows, the model fails on one, or its rows are not answered alone as together
            where they have to be.
    """
    empty = next((name for feed in feeds for name, array in feed.items() if array.shape[:1] == (0,)), None)
    if empty is not None:
        raise InvalidRequest(f"the example of '{empty}' has no rows", hint="give at least one: a request that is real")
    answers = answered(
        call, feeds, f"{what} fails", "give an example that it takes, of the shape and type that it was made for"
    )
    why = ""
    if batching is None:
        why = next((text for text in map(_why_no_batch, [call] * len(feeds), feeds, answers) if text), "")
        batching = not why
    elif batching:
        why = next((text for text in map(_uneven, feeds, answers) if text), "")
        if why:
            raise InvalidRequest(f"requests cannot share a batch: {why}", hint="give max_batch_size=0")
    skip = 1 if batching else 0
    return Signature(specs(feeds, skip), specs(answers, skip), batching, why), answers


def answered(run: Call, feeds: Sequence[Feed], what: str, hint: str) -> list[Feed]:
    """The answers to examples.

    Raises:
        InvalidRequest: there is none; with the example, its shapes and the framework's words.
    """
    found = []
    for place, feed in enumerate(feeds):
        try:
            found.append(run(feed))
        except (Cancelled, MemoryError):
            raise
        except Exception as error:  # frameworks raise what they like
            shapes = ", ".join(f"{name} {wire(array)} {list(array.shape)}" for name, array in feed.items())
            own = error.hint if isinstance(error, WorkbenchError) else ""
            raise InvalidRequest(f"{what} on example {place}: {said(error)}", where=shapes, hint=own or hint) from error
    return found


def said(error: BaseException) -> str:
    """What a framework says is wrong, in a line: it may lead up to it, as TorchScript does, or explain it after."""
    if isinstance(error, WorkbenchError):
        return error.message
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if not lines:
        return repr(error)[:300]
    last = lines[-1] if "TorchScript interpreter" in lines[0] else lines[0]
    return f"{last:.300}"


def specs(feeds: Sequence[Feed], skip: int) -> tuple[Tensor, ...]:
    """The tensors of some requests, without the first ``skip`` axes; a dimension that differs is -1.

    What one of them has not is optional.

    Raises:
        InvalidRequest: a tensor has another datatype or another number of axes from one request to the other.
    """
    out = []
    for name in dict.fromkeys(name for feed in feeds for name in feed):
        found = [feed[name] for feed in feeds if name in feed]
        shapes = [array.shape[skip:] for array in found]
        if len({len(shape) for shape in shapes}) > 1 or len({wire(array) for array in found}) > 1:
            raise InvalidRequest(f"'{name}' differs in datatype or number of axes from one example to the other")
        dims = tuple(sizes[0] if len(set(sizes)) == 1 else -1 for sizes in zip(*shapes, strict=True))
        out.append(Tensor(name, wire(found[0]), dims, len(found) < len(feeds)))
    return tuple(out)


def wire(array: NDArray[Any]) -> str:
    """The v2 data type of an array."""
    return datatypes.from_numpy(array.dtype).wire


def _uneven(feed: Feed, answer: Feed) -> str:
    rows = {len(array) for array in feed.values()}
    if len(rows) != 1:
        return "the inputs of an example differ in their first axis"
    uneven = [name for name, array in answer.items() if len(array) != next(iter(rows))]
    return f"'{uneven[0]}' has not one row for each row of the inputs" if uneven else ""


def _why_no_batch(call: Call, feed: Feed, answer: Feed) -> str:
    why = _uneven(feed, answer)
    if why:
        return why
    rows = len(next(iter(feed.values())))
    try:
        if rows == 1:
            twice = call({name: np.concatenate([array, array]) for name, array in feed.items()})
            same = all(alike(np.concatenate([array, array]), twice[name]) for name, array in answer.items())
        else:
            same = all(
                alike(array[row : row + 1], alone[name])
                for row in (0, rows - 1)
                for alone in [call({name: array[row : row + 1] for name, array in feed.items()})]
                for name, array in answer.items()
            )
    except Exception as error:  # whatever it raises for another number of rows: it takes only this one
        return f"it takes no other number of rows ({type(error).__name__}: {error})"
    return "" if same else "a row is answered differently alone and together with others"


def alike(one: NDArray[Any], other: NDArray[Any]) -> bool:
    """Whether two answers are the same, but for the last digits of a float."""
    if one.shape != other.shape or wire(one) != wire(other):
        return False
    if one.dtype.kind in "fV":
        left, right = one.astype(np.float64), other.astype(np.float64)
        return bool(np.allclose(left, right, rtol=1e-3 if one.dtype.itemsize < 4 else 1e-4, atol=1e-5, equal_nan=True))
    if one.dtype.kind in "OSU":
        return bool((as_bytes_array(one) == as_bytes_array(other)).all())
    return bool((one == other).all())
