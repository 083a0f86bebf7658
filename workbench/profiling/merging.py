"""Several generators that send one load: what each of them sends, and their stamps put together.

Both are functions of their arguments alone, so it does not matter where the generators run as long as their clocks are
one (CLOCK_MONOTONIC is that on one machine).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from workbench.errors import InvalidRequest
from workbench.profiling.arrivals import arrivals
from workbench.profiling.intervals import nearest_rank
from workbench.profiling.load import Load
from workbench.profiling.plan import Plan
from workbench.profiling.samples import MAX_TEXTS, OK, OTHER_TEXTS, Samples


@dataclass(frozen=True, slots=True)
class Share:
    """What one of several generators sends.

    ``offsets`` are when its open loops send, ns from the common start, ``marks`` what (``arrivals``). ``classes`` has
    the number in the whole load of each class of its ``plan``, which leaves out those that it sends nothing of.
    """

    load: Load
    plan: Plan
    offsets: NDArray[np.int64]
    marks: NDArray[np.int64]
    classes: tuple[int, ...] = (0,)

    def of_the_whole(self, samples: Samples) -> Samples:
        """Its samples with the classes of the whole load."""
        return replace(samples, class_of=np.array(self.classes, np.int32)[samples.class_of])


def share_out(load: Load, plan: Plan) -> list[Share]:
    """What each of ``load.generators`` sends: put together, what one generator would have sent, to the nanosecond.

    Clients are dealt out evenly, those of all classes one after the other. Each arrival of an open loop goes to a
    generator drawn at random, with a seed spawned from the load's for each class: the parts of a Poisson process are
    then independent Poisson processes. The sequences of an open loop are divided as clients are, and their arrivals
    among the generators that have one; each part has a seed of its own, by which their lengths are drawn. The requests
    of a trace go to the generators in turn, those of one sequence all to one: each waits for the answer to the one
    before, and only who has sent that knows of it.

    Raises:
        InvalidRequest: there is nothing to send for one of them.
    """
    count = load.generators
    part = replace(load, generators=1, max_in_flight=math.ceil(load.max_in_flight / count))
    owners, *seeds = np.random.SeedSequence(load.seed).spawn(1 + count)
    parts = [replace(part, seed=int(seed.generate_state(1)[0])) for seed in seeds]
    offsets, marks = arrivals(load)
    every = tuple(range(len(plan.classes)))
    if load.trace:
        sequence = np.array(plan.sequence_of, np.int64)[marks]
        owner = np.where(sequence > 0, sequence, np.arange(len(marks))) % count
        shares = [Share(each, plan, offsets, marks, every) for each in parts]
    elif load.mix:
        shares = _of_classes(load, plan, parts, seeds)
        owner = np.zeros(len(marks), np.int64)
        for index, seed in enumerate(owners.spawn(len(load.mix))):
            mine = marks == index
            having = np.array([number for number, share in enumerate(shares) if index in share.classes])
            owner[mine] = having[np.random.Generator(np.random.PCG64(seed)).integers(0, len(having), int(mine.sum()))]
    else:
        clients, sequences = _divided(load.concurrency, count), _divided(load.sequences, count)
        owner = np.random.Generator(np.random.PCG64(owners)).integers(0, count, len(offsets))
        shares = [
            Share(
                replace(each, concurrency=max(1, clients[index]), rate=load.rate / count,
                        sequences=max(1, sequences[index])),
                plan, offsets, marks,
            )
            for index, each in enumerate(parts)
        ]  # fmt: skip
    return [_with_own(share, owner == index) for index, share in enumerate(shares)]


def _with_own(share: Share, own: NDArray[np.bool_]) -> Share:
    """Its own of all arrivals; of the marks of a mixed load those in its numbering of the classes."""
    marks = share.marks[own]
    if share.load.mix:
        marks = np.searchsorted(np.array(share.classes), marks)
    return replace(share, offsets=share.offsets[own], marks=marks)


def _of_classes(load: Load, plan: Plan, parts: Sequence[Load], seeds: Sequence[np.random.SeedSequence]) -> list[Share]:
    """Which classes each generator has, and how much of each."""
    count, dealt = load.generators, 0
    mixes: list[dict[int, Load]] = [{} for _ in parts]
    for index, (kind, (_, part)) in enumerate(zip(plan.classes, load.mix, strict=True)):
        limited = part.kind == "closed" or kind.length > 0
        many = part.concurrency if part.kind == "closed" else part.sequences
        own = _divided(many, count) if limited else [1] * count
        for turn, units in enumerate(own):
            number = (dealt + turn) % count if limited else turn
            if not units:
                continue
            sizes: dict[str, Any] = {"concurrency": units} if part.kind == "closed" else {"rate": part.rate / count}
            if part.kind == "open" and limited:
                sizes["sequences"] = units
            seed = int(np.random.SeedSequence([int(seeds[number].generate_state(1)[0]), index]).generate_state(1)[0])
            mixes[number][index] = replace(part, max_in_flight=parts[number].max_in_flight, seed=seed, **sizes)
        dealt += many if limited else 0
    if not all(mixes):
        raise InvalidRequest(
            f"{count} generators cannot divide the {dealt} clients and sequences of the classes",
            hint=f"take {max(1, dealt)} at most",
        )
    offsets, marks = arrivals(load)
    return [
        Share(
            replace(parts[number], mix=tuple((load.mix[index][0], own) for index, own in mix.items())),
            replace(plan, classes=tuple(plan.classes[index] for index in mix)),
            offsets, marks, tuple(mix),
        )
        for number, mix in enumerate(mixes)
    ]  # fmt: skip


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
    """All error texts, each once, and every request's status among them; beyond ``MAX_TEXTS`` one is for all."""
    texts: dict[str, int] = {}
    columns = []
    for part in parts:
        codes = np.arange(len(part.texts) + 1, dtype=np.int32)
        for index, text in enumerate(part.texts):
            kept = text in texts or len(texts) < MAX_TEXTS
            codes[index + 1] = texts.setdefault(text if kept else OTHER_TEXTS, len(texts) + 1)
        columns.append(np.where(part.status > OK, codes[np.maximum(part.status, 0)], part.status).astype(np.int32))
    return list(texts), np.concatenate(columns)


def _told_of(part: Samples, window: tuple[int, int]) -> Mapping[str, Any]:
    inside = (part.scheduled >= window[0]) & (part.scheduled < window[1]) & (part.sent > 0)
    inside &= ~_held(part)
    lag = np.sort((part.sent - part.scheduled)[inside] / 1e6)
    told: dict[str, Any] = {"n": len(lag), "lag_p50_ms": nearest_rank(lag, 0.5), "lag_p99_ms": nearest_rank(lag, 0.99)}
    return {**told, "cpu_s": part.cpu_s, **part.extra.get("place", {})}
