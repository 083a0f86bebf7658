"""The requests and batches of some seconds: a part of a ring, with who waited for whom."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from workbench.errors import NotFound
from workbench.records.columns import Columns, RecordColumns
from workbench.records.waiting import Waits, waits_of

if TYPE_CHECKING:
    import pandas as pd

Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class TimelineData:
    """Requests and batches as columns, what each request waited for, and the time (ns) that is now.

    ``model`` is the one that was asked for, empty for all; of an ensemble, or of a model that asks others, what it is
    made of is there, too. ``lost`` says how many older records the ring no longer had.
    """

    requests: Columns
    batches: Columns
    waits: Waits
    now_ns: int
    model: str = ""
    lost: int = 0

    @property
    def instances(self) -> list[tuple[str, str]]:
        """(model, instance) of each that executed a batch, in order of their names."""
        return sorted(set(zip(self.batches["model"].tolist(), self.batches["instance"].tolist(), strict=True)))

    @property
    def span_ns(self) -> tuple[int, int]:
        """From the first stamp to the last; both ``now_ns`` where nothing is there."""
        found = [self.requests["arrival"], self.requests["end"], self.batches["acquired"], self.batches["done"]]
        stamps = np.concatenate([stamp[stamp > 0] for stamp in found])
        return (int(stamps.min()), int(stamps.max())) if len(stamps) else (self.now_ns, self.now_ns)

    def frame(self) -> pd.DataFrame:
        """One row a request, with its batch and what it waited for; times in ms, ``arrival_ms`` from the first stamp.

        ``waited_ms`` is from the queue to the forming of its batch: ``busy_ms`` of it its instance was executing
        ``behind`` (the number of the last batch before), ``free_ms`` it was not. ``batch_rows``, ``batch_requests`` and
        ``reason`` are those of its batch, ``ahead`` how many batches of its model were formed while it waited.
        """
        import pandas as pd

        requests, batches, waits = self.requests, self.batches, self.waits
        has, batch = waits.batch >= 0, np.maximum(waits.batch, 0)
        behind = np.full(len(batch), -1, np.int64)
        some = waits.before > waits.first_before
        behind[some] = batches["batch_seq"][waits.order[waits.before[some] - 1]]

        def of_batch(name: str, without: int | str) -> Any:
            known = batches[name]
            return np.where(has, known[batch], np.array(without, known.dtype)) if len(known) else [without] * len(has)

        columns = {name: requests[name] for name in ("seq", "model", "request_id", "instance", "rows", "priority")}
        columns["arrival_ms"] = (requests["arrival"] - self.span_ns[0]) / 1e6
        columns["waited_ms"] = (waits.busy + waits.free) / 1e6
        columns |= {"busy_ms": waits.busy / 1e6, "free_ms": waits.free / 1e6}
        columns["compute_ms"] = (requests["compute_end"] - requests["compute_start"]) / 1e6
        columns["total_ms"] = (requests["end"] - requests["arrival"]) / 1e6
        columns |= {"batch_seq": requests["batch_seq"], "batch_rows": of_batch("rows", 0)}
        columns |= {"batch_requests": of_batch("requests", 0), "reason": of_batch("reason", "")}
        columns |= {"behind": behind, "ahead": waits.ahead}
        columns |= {name: requests[name] for name in ("parent_seq", "status", "error")}
        return pd.DataFrame(columns)


def timeline_of(
    columns: RecordColumns, now_ns: int, *, model: str | None = None, last_s: float | None = None
) -> TimelineData:
    """What ended in the last seconds: of one model and what was made for it, or of all.

    Args:
        columns: what a ring gave.
        now_ns: the time of the server's clock.
        model: None is all.
        last_s: None is all that is kept.

    Raises:
        NotFound: ``model`` has no record.
    """
    requests, batches = columns.requests, columns.batches
    waits = waits_of(requests, batches)  # of all: what is left out was waited for, too
    shown, ran = np.ones(len(requests["seq"]), np.bool_), np.ones(len(batches["batch_seq"]), np.bool_)
    if model:
        mine = requests["model"] == model
        if not mine.any():
            known = ", ".join(sorted(set(requests["model"].tolist()))) or "none"
            raise NotFound(f"no request of '{model}' is recorded", hint=f"there are records of: {known}")
        shown = mine | descendants(requests, mine)
        # what else the models of its steps did is shown as batches: it kept their instances busy
        ran = np.isin(batches["model"], list(set(requests["model"][shown].tolist())))
    if last_s is not None:
        since = now_ns - int(last_s * 1e9)
        shown, ran = shown & (requests["end"] >= since), ran & (batches["done"] >= since)
    return TimelineData(
        *_part(requests, batches, waits, shown, ran), now_ns, model=model or "", lost=columns.lost
    )  # fmt: skip


def descendants(requests: Columns, of: Mask) -> Mask:
    """The requests that were made for some, and for those, and so on."""
    found = np.zeros(len(of), np.bool_)
    new = of
    while new.any():
        made = np.isin(requests["parent_seq"], requests["seq"][new]) & ~found & ~of
        found = found | made
        new = made
    return found


def _part(requests: Columns, batches: Columns, waits: Waits, shown: Mask, ran: Mask) -> tuple[Columns, Columns, Waits]:
    """Some rows of both tables. Batches that a shown request was in or waited for stay, too."""
    keep = ran.copy()
    keep[waits.batch[shown & (waits.batch >= 0)]] = True
    some = shown & (waits.before > waits.first_before)
    keep[waits.order[waits.before[some] - 1]] = True
    number = np.cumsum(keep) - 1
    batch = waits.batch[shown]
    batch = np.where(batch >= 0, number[np.maximum(batch, 0)] if len(number) else -1, -1)
    kept_before = np.concatenate([np.zeros(1, np.int64), np.cumsum(keep[waits.order])])
    part = Waits(
        batch, waits.left[shown], waits.busy[shown], waits.free[shown], kept_before[waits.first_before[shown]],
        kept_before[waits.before[shown]], waits.ahead[shown], number[waits.order[keep[waits.order]]],
    )  # fmt: skip
    return rows_of(requests, shown), rows_of(batches, keep), part


def rows_of(table: Columns, mask: Mask) -> Columns:
    """Some rows of a table."""
    return {name: values[mask] for name, values in table.items()}


def joined(parts: Iterable[RecordColumns]) -> RecordColumns:
    """What several reads of one ring gave, one behind the other; at least one."""
    chosen = list(parts)
    requests, batches = (
        {name: np.concatenate([getattr(each, table)[name] for each in chosen]) for name in getattr(chosen[0], table)}
        for table in ("requests", "batches")
    )
    return RecordColumns(requests, batches, chosen[-1].last_seq, sum(each.lost for each in chosen))


def ended_since(columns: RecordColumns, time_ns: int) -> RecordColumns:
    """The requests and batches that ended since a time."""
    requests, batches = columns.requests, columns.batches
    recent, ran = requests["end"] >= time_ns, batches["done"] >= time_ns
    return RecordColumns(rows_of(requests, recent), rows_of(batches, ran), columns.last_seq)
