"""Several generators that send one load: what each of them sends, and their stamps put together.

Both are functions of their arguments alone, so it does not matter where the generators run as long as their clocks are
one (CLOCK_MONOTONIC is that on one machine).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from workbench.profiling.intervals import nearest_rank
from workbench.profiling.load import Load, schedule
from workbench.profiling.samples import MAX_TEXTS, OK, Samples


def share_out(load: Load) -> list[tuple[Load, NDArray[np.int64]]]:
    """What each of ``load.generators`` sends: its part of the load, and when (ns from the common start).

    Clients are divided evenly. Each arrival of an open loop goes to a generator drawn at random, with a seed spawned
    from the load's: the parts of a Poisson process are then independent Poisson processes, and the parts of any process
    add up to the very arrivals that one generator would have sent. The sequences of an open loop are divided as clients
    are, and each part has a seed of its own, by which their lengths are drawn.
    """
    count = load.generators
    part = replace(load, generators=1, max_in_flight=math.ceil(load.max_in_flight / count))
    arrivals, *seeds = np.random.SeedSequence(load.seed).spawn(1 + count)
    parts = [replace(part, seed=int(seed.generate_state(1)[0])) for seed in seeds]
    if load.kind == "closed":
        clients = _divided(load.concurrency, count)
        return [
            (replace(each, concurrency=own), np.empty(0, np.int64)) for each, own in zip(parts, clients, strict=True)
        ]
    offsets = schedule(load)
    owner = np.random.Generator(np.random.PCG64(arrivals)).integers(0, count, len(offsets))
    sequences = [max(1, own) for own in _divided(load.sequences, count)]
    return [
        (replace(each, rate=load.rate / count, sequences=own), offsets[owner == index])
        for index, (each, own) in enumerate(zip(parts, sequences, strict=True))
    ]


def _divided(whole: int, count: int) -> list[int]:
    return [whole // count + (index < whole % count) for index in range(count)]


def merge(parts: Sequence[Samples]) -> Samples:
    """The samples of one load that several generators have sent, as if one had.

    The window is what all of them measured. ``extra["generators"]`` keeps what each one did: ``n`` requests scheduled
    in the window, ``lag_p50_ms`` and ``lag_p99_ms`` of their sends, ``cpu_s``; and where it was, if that was elsewhere
    (``extra["place"]``: ``node``, whether that is ``here``, on this machine, and ``uncertainty_ms`` of its clock).
    ``cpu_s`` of the whole is that of this machine.

    Args:
        parts: at least one; their stamps are of one clock.
    """
    begin = max(part.window[0] for part in parts)
    window = (begin, max(begin, min(part.window[1] for part in parts)))
    scheduled = np.concatenate([part.scheduled for part in parts])
    order = np.argsort(scheduled, kind="stable")
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    first = np.cumsum([0, *(len(part.scheduled) for part in parts)])
    responses = [place[part.response_of + first[index]] for index, part in enumerate(parts)]
    response_at = np.concatenate([part.response_at for part in parts])
    by_time = np.argsort(response_at, kind="stable")
    texts, status = _statuses(parts)
    class_of = np.concatenate([part.class_of for part in parts])
    held = np.concatenate([_held(part) for part in parts])
    return Samples(
        scheduled=scheduled[order],
        sent=np.concatenate([part.sent for part in parts])[order],
        done=np.concatenate([part.done for part in parts])[order],
        status=status[order],
        texts=texts,
        window=window,
        stopped=any(part.stopped for part in parts),
        drained=all(part.drained for part in parts),
        cpu_s=sum(part.cpu_s for part in parts if part.extra.get("place", {}).get("here", True)),
        extra={
            "connections": sum(int(part.extra.get("connections", 0)) for part in parts),
            "nice": max(int(part.extra.get("nice", 0)) for part in parts),
            "generators": [_told_of(part, window) for part in parts],
            **next(({"server_lost": part.extra["server_lost"]} for part in parts if "server_lost" in part.extra), {}),
        },
        response_of=np.concatenate(responses)[by_time],
        response_at=response_at[by_time],
        class_of=class_of[order] if len(class_of) else class_of,
        held=held[order],
    )


def _held(part: Samples) -> NDArray[np.bool_]:
    """Which of its requests waited for their sequence, one entry each."""
    return part.held if len(part.held) else np.zeros(len(part.sent), np.bool_)


def _statuses(parts: Sequence[Samples]) -> tuple[list[str], NDArray[np.int32]]:
    """All error texts, each once, and every request's status among them; beyond ``MAX_TEXTS`` the last is for all."""
    texts: dict[str, int] = {}
    columns = []
    for part in parts:
        codes = np.arange(len(part.texts) + 1, dtype=np.int32)
        for index, text in enumerate(part.texts):
            known = texts.setdefault(text, len(texts) + 1) if text in texts or len(texts) < MAX_TEXTS else MAX_TEXTS
            codes[index + 1] = known
        columns.append(np.where(part.status > OK, codes[np.maximum(part.status, 0)], part.status).astype(np.int32))
    return list(texts), np.concatenate(columns)


def _told_of(part: Samples, window: tuple[int, int]) -> Mapping[str, Any]:
    inside = (part.scheduled >= window[0]) & (part.scheduled < window[1]) & (part.sent > 0)
    inside &= ~_held(part)
    lag = np.sort((part.sent - part.scheduled)[inside] / 1e6)
    told: dict[str, Any] = {"n": len(lag), "lag_p50_ms": nearest_rank(lag, 0.5), "lag_p99_ms": nearest_rank(lag, 0.99)}
    return {**told, "cpu_s": part.cpu_s, **part.extra.get("place", {})}
