"""Whether two addresses lead to one server, by what it has counted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from workbench.client import TritonClient, connect
from workbench.clock import monotonic_ns, sleep
from workbench.errors import ConnectionFailed, WorkbenchError

_ROUNDS = 3
"""So many readings must agree, or disagree, with none of the other kind between them."""

_CHANCE = 1e-5
"""Readings must agree so closely that another server would not: by the share of the whole that is counted while one is
taken."""

_GAP_S = 0.1


def same_server(client: TritonClient, url: str, model: str, wait_s: float = 0.0) -> bool | None:
    """Whether another address leads to the server of a client. None where that cannot be known.

    Triton says nothing of itself by which it could be known. But the times that it has added up for a model, in
    nanoseconds, no other server has: what the other address tells lies between two readings of this one. Where that
    model has counted nothing, the times of all models are held against each other.

    Args:
        client: of the one address.
        url: the other one.
        model: a model that both should have; it, or another one, must have answered a request, of one of the two at
            least.
        wait_s: how long to wait for that.
    """
    try:
        other = connect(url)
    except WorkbenchError as error:
        return False if isinstance(error, ConnectionFailed) else None
    try:
        return _agree(client, other, model, monotonic_ns() + int(wait_s * 1e9))
    except ConnectionFailed:
        return False
    finally:
        other.close()


def _agree(client: TritonClient, other: TritonClient, model: str, until: int) -> bool | None:
    agreed, differed, chance, read = 0, 0, 1.0, 0
    while True:
        found = _reading(client, other, model)
        if found is None:
            found = _reading(client, other, "")
        read += found is not None
        if found is not None and found > 0:
            agreed, differed, chance = agreed + 1, 0, chance * min(1.0, found)
        elif found is not None:
            agreed, differed, chance = 0, differed + 1, 1.0
        if differed == _ROUNDS or (agreed >= _ROUNDS and chance < _CHANCE):
            return agreed > 0
        if monotonic_ns() >= until and (found is None or read >= 4 * _ROUNDS):
            return None
        sleep(_GAP_S)


def _reading(client: TritonClient, other: TritonClient, model: str) -> float | None:
    """The share of the time counted for a model ("": for all) that passed while it was read, where the other one's lies
    between; 0 where that does not; None where it says nothing."""
    try:
        before, between, after = (_counts(each.statistics(model)) for each in (client, other, client))
    except ConnectionFailed:
        raise
    except WorkbenchError:
        return None  # one has no such model, or none at this moment
    if before.keys() != after.keys() or any(after[key] < count for key, count in before.items()):
        return None  # it was loaded anew meanwhile
    times = sum(count for (*_, kind), count in after.items() if kind == "success")
    if not times:  # what failed has times, too, but those of another server are as small
        return 0.0 if any(count for (*_, kind), count in between.items() if kind == "success") else None
    if between.keys() != before.keys():
        return 0.0
    if any(not before[key] <= count <= after[key] for key, count in between.items()):
        return 0.0
    passed = times - sum(count for (*_, kind), count in before.items() if kind == "success")
    return max(passed, 1) / times


def _counts(statistics: Mapping[str, Any]) -> dict[tuple[str, str, str], int]:
    """Nanoseconds by model, version and kind."""
    return {
        (str(entry.get("name", "")), str(entry.get("version", "")), kind): int(times.get("ns", 0))
        for entry in statistics.get("model_stats", ())
        for kind, times in (entry.get("inference_stats") or {}).items()
    }
