"""The requests of a replay: captured traffic as it came."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from workbench.errors import InvalidRequest
from workbench.profiling.class_requests import Inputs, Made, Models, Prepared
from workbench.profiling.input_requests import requests_of
from workbench.profiling.load import Load
from workbench.profiling.plan import VARIANTS, ClassPlan, Plan
from workbench.profiling.trace import END, START, Trace
from workbench.profiling.trace_files import trace_of
from workbench.protocol.tensors import InferenceRequest

_LONGEST_ID = 256  # every message of a replay has room for the longest id


def of_trace(models: Models, load: Load, inputs: Inputs) -> Prepared:
    """The requests of a replay.

    Args:
        models: the models that it may go to.
        load: what says how it is replayed.
        inputs: what is sent in place of inputs that the trace does not have.

    Raises:
        ConfigError: those cannot be read, or shapes are not known.
        InvalidRequest: its requests went to several other models, or inputs do not fit.
    """
    trace = trace_of(load)
    load, redirected = _to_whom(trace, load, models.model)
    sequence_of, flags = trace.sequence_of.tolist(), _whole_flags(trace)
    requests: list[InferenceRequest] = []
    classes, notes, message_of = [], [*trace.notes, *redirected], np.zeros(len(trace), np.int64)
    for index, kind in enumerate(trace.classes):
        model = load.model or kind.model
        part = replace(
            load, model=model, priority=load.priority or kind.priority,
            timeout_s=load.timeout_s or kind.timeout / 1e6, parameters={**kind.parameters, **load.parameters},
        )  # fmt: skip
        mine = np.flatnonzero(trace.class_of == index)
        used = np.unique(trace.input_of[mine])
        base: list[InferenceRequest] = []
        place: dict[int, int] = {}
        for number in used[used >= 0].tolist():
            place[number] = len(base)
            base.append(replace(trace.request(index, number), model_name=model or models.model))
        replaced = requests_of(models, part, inputs) if -1 in used else None
        if replaced is not None:
            notes += replaced.notes
            start = len(base)
            base += replaced.requests
        wants = models.sequences(model)
        made = Made(base, 1.0, "").expanded(replace(part, sequence_length=1 if wants else 0), models)
        step = VARIANTS if wants else 1
        first = len(requests)
        for turn, row in enumerate(mine.tolist()):
            number = int(trace.input_of[row])
            at = place[number] if number >= 0 else start + turn % len(replaced.requests) if replaced else 0
            message_of[row] = first + step * at
        rows = _mean_rows(base, message_of[mine], first, step, models.largest(model))
        # HTTP's generate_stream has no sequences and priorities; what answers once is asked as it is without a stream
        bare = kind.front == "stream" and models.target.protocol == "http"
        streaming = models.streaming(model, load.streaming or (kind.streaming and not bare))
        other = model if model != models.model else ""
        classes.append(ClassPlan(first, len(base), kind.name, other, rows, streaming, 1 if wants else 0))
        requests += made
        notes += models.without_priorities(part)
    wanted = [bool(classes[int(kind)].length) for kind in trace.class_of]
    plan = Plan(
        tuple(classes), trace.class_of.tolist(), message_of.tolist(),
        [number if wants else 0 for number, wants in zip(sequence_of, wanted, strict=True)], flags,
        request_ids=tuple(each if len(each) <= _LONGEST_ID else "" for each in trace.ids),
    )  # fmt: skip
    left_out = sum(len(each) > _LONGEST_ID for each in trace.ids)
    if left_out:
        notes.append(f"{left_out} requests are sent without their id, which is longer than {_LONGEST_ID} characters")
    lost = sum(wants and not number for wants, number in zip(wanted, sequence_of, strict=True))
    if lost:
        notes.append(f"{lost} requests to a model with a sequence batcher are of no sequence: it refuses them")
    return Prepared(tuple(requests), classes[0].rows, trace.source or "a trace", tuple(dict.fromkeys(notes)), plan)


def _to_whom(trace: Trace, load: Load, model: str) -> tuple[Load, list[str]]:
    """A replay goes where its requests went. If none of them went to the model that is measured, they are meant for it.

    Raises:
        InvalidRequest: they went to several other models.
    """
    went = sorted({kind.model for kind in trace.classes})
    if load.model or not went or model in went or "" in went:
        return load, []
    if len(went) > 1:
        text = f"the trace has no request to '{model}', its requests went to {', '.join(went)}"
        raise InvalidRequest(text, hint=f"measure one of those, or send it all: Load.replay(FILE, model='{model}')")
    return replace(load, model=model), [f"what went to '{went[0]}' when it was captured is sent to '{model}'"]


def _mean_rows(
    base: Sequence[InferenceRequest], messages: NDArray[np.int64], first: int, step: int, largest: int
) -> float:
    if not largest or not len(messages):
        return 1.0
    rows = np.array(
        [request.inputs[0].shape[0] if request.inputs and request.inputs[0].shape else 1 for request in base]
    )
    return float(rows[(messages - first) // step].mean())


def _whole_flags(trace: Trace) -> list[int]:
    """Flags by which every sequence begins and ends, also where the recording began or ended within it."""
    flags = trace.flags.copy()
    numbers, first = np.unique(trace.sequence_of, return_index=True)
    _, last = np.unique(trace.sequence_of[::-1], return_index=True)
    flags[first[numbers > 0]] |= START
    flags[len(flags) - 1 - last[numbers > 0]] |= END
    return [int(flag) for flag in flags]
