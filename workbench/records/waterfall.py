"""Where the time of one request went: its phases, what it waited for, who shared its batch, what was made for it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from workbench.errors import NotFound
from workbench.records.columns import Columns, RecordColumns
from workbench.records.waiting import Waits, short_number, waits_of

Kind = Literal["request", "child", "mate", "before"]
MAX_MATES = 12
MAX_CHILDREN = 40
_SHOWN_PART = 0.05
"""Parts of the time that are told in the sentence."""

PHASES = (
    ("before the queue", "arrival", "queue_start"),
    ("queue", "queue_start", "compute_start"),
    ("compute input", "compute_start", "compute_input_end"),
    ("compute infer", "compute_input_end", "compute_output_start"),
    ("compute output", "compute_output_start", "compute_end"),
    ("answer", "compute_end", "end"),
)
"""The phases of a request: name, stamp at which it begins, stamp at which it ends."""

_REASONS = {
    "full": "it was full",
    "preferred": "it had a preferred size",
    "delay": "the queue delay was over",
    "no_delay": "nothing was to be waited for",
    "shapes": "the next request had another shape",
    "inputs": "the next request had other inputs",
    "direct": "the model does not batch",
    "sequence": "the sequence batcher formed it",
    "drain": "the model was unloading",
    "inline": "it ran where it was asked",
}


def phases_of(request: Mapping[str, Any]) -> list[tuple[str, int, int]]:
    """(name, begin, end) in ns of the phases of a request; those that it never reached are left out."""
    found, at = [], int(request["arrival"])
    for name, _, end in PHASES:
        stamp = int(request[end])
        if stamp > at:
            # a request that was never computed waited until it was refused
            found.append(("queue" if name == "answer" and not request["compute_start"] else name, at, stamp))
            at = stamp
    return found


@dataclass(frozen=True, slots=True)
class Bar:
    """One line of a waterfall: a request with its phases, or a batch that kept its instance busy (kind ``before``).

    ``depth`` is how many requests up it was made for; ``phases`` are (name, begin, end) in ns.
    """

    kind: Kind
    seq: int
    model: str
    instance: str
    rows: int
    batch_seq: int
    phases: tuple[tuple[str, int, int], ...]
    depth: int = 0
    status: str = "ok"
    request_id: str = ""

    @property
    def label(self) -> str:
        """What it is, in a few words."""
        if self.kind == "before":
            return f"{'  ' * self.depth}batch {short_number(self.batch_seq)} on {self.instance}"
        return f"{'  ' * self.depth}{self.seq} {self.model}"

    @property
    def total_ns(self) -> int:
        """From its first stamp to its last."""
        return self.phases[-1][2] - self.phases[0][1] if self.phases else 0


@dataclass(frozen=True, slots=True)
class WaterfallData:
    """One request: ``bars[0]`` is it, then what it waited for, what was made for it, who shared its batch.

    ``sentence`` says where its time went, ``notes`` what else to know.
    """

    bars: tuple[Bar, ...]
    sentence: str
    notes: tuple[str, ...] = ()

    @property
    def request(self) -> Bar:
        """The request itself."""
        return self.bars[0]

    @property
    def title(self) -> str:
        """The request in a few words."""
        bar = self.request
        known = f' "{bar.request_id}"' if bar.request_id else ""
        failed = "" if bar.status == "ok" else f", failed ({bar.status.lower()})"
        return f"Request {bar.seq}{known} of {bar.model}: {ms(bar.total_ns)}{failed}"

    def to_text(self, width: int = 48) -> str:
        """Bars of letters: ``.`` before the queue, ``-`` queue, ``i`` input, ``#`` infer, ``o`` output, ``=`` answer,
        ``x`` another batch on its instance."""
        begin = min(start for bar in self.bars for _, start, _ in bar.phases)
        end = max(stop for bar in self.bars for _, _, stop in bar.phases)
        scale = width / max(1, end - begin)
        labels = [bar.label for bar in self.bars]
        wide = max(map(len, labels))
        lines = [self.title, self.sentence, *self.notes, ""]
        lines.append(f"{'':{wide}}  |{'0':<{width - 12}}{ms(end - begin):>12}|")
        for label, bar in zip(labels, self.bars, strict=True):
            drawn = [" "] * width
            for name, start, stop in bar.phases:
                left, right = int((start - begin) * scale), int(np.ceil((stop - begin) * scale))
                for at in range(min(left, width - 1), min(max(right, left + 1), width)):
                    drawn[at] = _LETTERS[name]
            lines.append(f"{label:{wide}}  |{''.join(drawn)}| {ms(bar.total_ns)}{_beside(bar)}")
        lines.append("- queue, i compute input, # compute infer, o compute output, . before, = answer, x other batch")
        return "\n".join(lines)


_LETTERS = {
    "before the queue": ".", "queue": "-", "compute input": "i", "compute infer": "#", "compute output": "o",
    "answer": "=", "other batch": "x", "steps": "#",
}  # fmt: skip


def _beside(bar: Bar) -> str:
    if bar.kind == "before":
        return f", {_count(bar.rows, 'row')}"
    where = f" on {bar.instance}" if bar.instance else ""
    return {"mate": ", same batch", "child": where, "request": where}[bar.kind]


def ms(ns: float) -> str:
    """A duration with its unit: as many digits as say something."""
    value = ns / 1e6
    return f"{value:,.1f} ms" if value >= 10 else f"{value:.2f} ms" if value >= 0.1 else f"{value:.3f} ms"


def waterfall_of(columns: RecordColumns, request: int | str) -> WaterfallData:
    """The waterfall of a request.

    Args:
        columns: all that the ring has.
        request: the ``seq`` of its record, or its id as a text: of several with this id the newest.

    Raises:
        NotFound: it has no record (any more).
    """
    return _Maker(columns.requests, columns.batches, waits_of(columns.requests, columns.batches)).make(request)


class _Maker:
    def __init__(self, requests: Columns, batches: Columns, waits: Waits) -> None:
        self._requests = requests
        self._batches = batches
        self._waits = waits

    def make(self, wanted: int | str) -> WaterfallData:
        name = "request_id" if isinstance(wanted, str) else "seq"
        found = np.flatnonzero(self._requests[name] == wanted)
        if not len(found):
            raise NotFound(
                f"no record of request {wanted!r}",
                hint="it runs still, or ended too long ago for its record to be kept; "
                "records() lists those that are (seq as a number, request_id as a text)",
            )
        asked = found[self._requests["parent_seq"][found] < 0]  # what is made for a request has its id, too
        if len(asked):
            found = asked
        row = int(found[np.argmax(self._requests["arrival"][found])])
        notes = []
        if len(found) > 1:
            notes.append(f"Of {len(found)} requests with this {'id' if name == 'request_id' else 'number'} the newest.")
        bars = [self._bar(row, "request", 0), *self._befores(row, 0)]
        children = list(self._descendants(row, 1))
        for child, depth in children[:MAX_CHILDREN]:
            bars += [self._bar(child, "child", depth), *self._befores(child, depth)]
        if len(children) > MAX_CHILDREN:
            notes.append(f"{len(children) - MAX_CHILDREN} more requests were made for it.")
        mates = self._mates(row)
        bars += [self._bar(mate, "mate", 0) for mate in mates[:MAX_MATES]]
        if len(mates) > MAX_MATES:
            notes.append(f"{len(mates) - MAX_MATES} more requests were in its batch.")
        if self._requests["error"][row]:
            notes.append(str(self._requests["error"][row]))
        return WaterfallData(tuple(bars), self._sentence(row), tuple(notes))

    # -- bars -----------------------------------------------------------------------------------------------------

    def _record(self, row: int) -> dict[str, Any]:
        return {name: values[row] for name, values in self._requests.items()}

    def _bar(self, row: int, kind: Kind, depth: int) -> Bar:
        record = self._record(row)
        phases = phases_of(record)
        if self._is_pipeline(row):
            phases = [("steps" if name == "compute infer" else name, *span) for name, *span in phases]  # type: ignore[misc]
        return Bar(
            kind, int(record["seq"]), record["model"], record["instance"], int(record["rows"]),
            int(record["batch_seq"]), tuple(phases), depth, record["status"], record["request_id"],
        )  # fmt: skip

    def _is_pipeline(self, row: int) -> bool:
        return not self._requests["instance"][row] and self._requests["compute_start"][row] > 0

    def _befores(self, row: int, depth: int) -> list[Bar]:
        """The batches that it waited for, where the wait is worth telling."""
        if self._waits.busy[row] < _SHOWN_PART * self._total(row):
            return []
        bars = []
        for batch in self._waits.batches_before(row)[-3:]:
            kept = {name: values[batch] for name, values in self._batches.items()}
            begin = max(int(kept["acquired"]), int(self._requests["arrival"][row]))
            span = (("other batch", begin, max(begin, int(kept["done"]))),)
            bars.append(
                Bar("before", -1, kept["model"], kept["instance"], int(kept["rows"]), int(kept["batch_seq"]), span,
                    depth + 1)
            )  # fmt: skip
        return bars

    def _children(self, row: int) -> list[int]:
        made = np.flatnonzero(self._requests["parent_seq"] == self._requests["seq"][row])
        return [int(child) for child in made[np.argsort(self._requests["arrival"][made], kind="stable")]]

    def _descendants(self, row: int, depth: int) -> Iterator[tuple[int, int]]:
        for child in self._children(row):
            yield child, depth
            if depth < 8:  # nobody's pipeline is deeper, and a record may be wrong
                yield from self._descendants(child, depth + 1)

    def _mates(self, row: int) -> list[int]:
        batch = self._waits.batch[row]
        if batch < 0:
            return []
        same = np.flatnonzero(self._waits.batch == batch)
        return [int(mate) for mate in same[np.argsort(self._requests["arrival"][same], kind="stable")] if mate != row]

    def _total(self, row: int) -> int:
        return max(1, int(self._requests["end"][row] - self._requests["arrival"][row]))

    # -- words ----------------------------------------------------------------------------------------------------

    def _sentence(self, row: int) -> str:
        parts = [(ns, text) for ns, text in self._parts(row) if ns >= _SHOWN_PART * self._total(row)]
        if not parts:
            return "Nothing took a part of its time that is worth telling."
        text = "; ".join(text for _, text in parts)
        return f"{text[0].upper()}{text[1:]}."

    def _parts(self, row: int) -> Iterator[tuple[int, str]]:
        record = self._record(row)
        queued = max(0, int(record["queue_start"]) - int(record["arrival"]))
        yield queued, f"{ms(queued)} before it was queued"
        yield from self._waiting(row)
        if self._is_pipeline(row):
            held = int(record["compute_start"]) - int(record["queue_start"])
            yield held, f"waited {ms(held)} until its first step began (max_inflight_requests)"
            yield from self._steps(row, "its steps took")
        elif record["compute_start"]:
            yield from self._running(row)
        if record["compute_start"]:
            answer = int(record["end"]) - int(record["compute_end"])
            yield answer, f"{ms(answer)} until the answer was on its way"

    def _waiting(self, row: int) -> Iterator[tuple[int, str]]:
        busy, free = int(self._waits.busy[row]), int(self._waits.free[row])
        batch = int(self._waits.batch[row])
        if batch < 0:
            if not self._requests["compute_start"][row]:
                status = self._requests["status"][row].lower()
                behind = self._said_meanwhile(row)
                yield busy + free, f"waited {ms(busy + free)} in the queue{behind} and was refused ({status})"
            return
        instance = self._batches["instance"][batch]
        yield busy, f"waited {ms(busy)} for instance {instance}, busy with {self._said_before(row)}"
        reason = self._batches["reason"][batch]
        if reason == "delay":
            why = "for more requests to share its batch (max_queue_delay_microseconds)"
        elif reason in ("full", "preferred", "shapes", "inputs"):
            why = f"for its batch to fill, until {_REASONS[reason]}"
        else:
            why = f"in the queue while {instance} was free"
            if free > 1_000_000:
                why += " (held by the rate limiter, its sequence or a busy event loop)"
        yield free, f"waited {ms(free)} {why}"
        held = int(self._requests["compute_start"][row] - self._waits.left[row])
        yield held, f"{ms(held)} until {instance} began with its batch"

    def _said_before(self, row: int) -> str:
        return self._said_batches(self._waits.batches_before(row)) or "earlier batches"

    def _said_meanwhile(self, row: int) -> str:
        """What the instances of its model did while a request waited that none of them ever took."""
        since, until = self._requests["queue_start"][row], self._requests["end"][row]
        batches = self._batches
        meanwhile = (batches["acquired"] < until) & (batches["done"] > since)
        rows = np.flatnonzero(meanwhile & (batches["model"] == self._requests["model"][row]))
        rows = rows[np.argsort(batches["acquired"][rows], kind="stable")]
        instances = sorted(set(batches["instance"][rows].tolist()))
        if not instances:
            return ""
        who = instances[0] if len(instances) == 1 else f"{len(instances)} instances"
        verb = "was" if len(instances) == 1 else "were"
        return f" while {who} {verb} busy with {self._said_batches(rows.tolist())}"

    def _said_batches(self, batches: list[int]) -> str:
        """Batches (rows of their table) in words, "" for none. Of a model that does not batch they are requests."""
        if not batches:
            return ""
        rows = _count(int(self._batches["rows"][batches].sum()), "row")
        what, plural = "batch", "batches"
        numbers = [short_number(number) for number in self._batches["batch_seq"][batches].tolist()]
        if (self._batches["reason"][batches] == "direct").all():
            asked = [np.flatnonzero(self._waits.batch == batch) for batch in batches]
            if all(len(found) == 1 for found in asked):
                what, plural = "request", "requests"
                numbers = [int(self._requests["seq"][found[0]]) for found in asked]
        if len(numbers) == 1:
            return f"{what} {numbers[0]} ({rows})"
        if len(numbers) <= 3:
            return f"{plural} {', '.join(map(str, numbers[:-1]))} and {numbers[-1]} ({rows})"
        return f"{len(numbers)} {plural} up to {what} {numbers[-1]} ({rows} together)"

    def _running(self, row: int) -> Iterator[tuple[int, str]]:
        record = self._record(row)
        ran = int(record["compute_end"]) - int(record["compute_start"])
        batch = int(self._waits.batch[row])
        text = f"ran {ms(ran)}"
        if record["instance"]:
            text += f" on {record['instance']}"
        if batch >= 0:
            others = int(self._batches["requests"][batch]) - 1
            rows = _count(int(self._batches["rows"][batch]), "row")
            reason = self._batches["reason"][batch]
            company = f"with {_count(others, 'other request')}" if others else "alone"
            why = _REASONS.get(reason, reason)
            text += f" in batch {short_number(record['batch_seq'])}, {company} ({rows}; formed because {why})"
        parts = {name: end - begin for name, begin, end in phases_of(record)}
        slow = [f"{ms(parts[name])} of it {name}" for name in ("compute input", "compute output")
                if parts.get(name, 0) > 0.2 * ran]  # fmt: skip
        made = "".join(f", {each}" for each in slow)
        yield ran, text + made
        yield from self._steps(row, "of that, requests to other models took")

    def _steps(self, row: int, begin: str) -> Iterator[tuple[int, str]]:
        """What was made for a request, and of that which took longest, in its own words."""
        children = self._children(row)
        if not children:
            return
        spent = _covered([(int(self._requests["arrival"][c]), int(self._requests["end"][c])) for c in children])
        slowest = max(children, key=self._total)
        model = self._requests["model"][slowest]
        own = [_as_clause(text) for ns, text in self._parts(slowest) if ns >= 0.2 * self._total(slowest)]
        why = " and ".join(own)
        which = f"{model} (request {self._requests['seq'][slowest]}) {ms(self._total(slowest))}"
        longest = f", the longest {which}" if len(children) > 1 else f" ({which})"
        yield spent, f"{begin} {ms(spent)}{longest}" + (f", which {why}" if why else "")


def _as_clause(text: str) -> str:
    return text if text.startswith(("waited", "ran")) else f"had {text}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _covered(spans: list[tuple[int, int]]) -> int:
    """The length that spans cover together."""
    total, reached = 0, 0
    for begin, end in sorted(spans):
        total += max(0, end - max(begin, reached))
        reached = max(reached, end)
    return total
