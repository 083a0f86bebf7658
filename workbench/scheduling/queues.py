"""The queue of one priority level: requests in order of arrival, and behind them those that a DELAY policy put back."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Iterator

from workbench.scheduling.interface import Item
from workbench.scheduling.settings import QueuePolicy


class DelayedQueue:
    """Items whose timeout passed under a DELAY policy, in order of arrival."""

    __slots__ = ("_by_id", "_items", "_orders")

    def __init__(self) -> None:
        self._orders: list[int] = []
        self._items: dict[int, Item] = {}
        self._by_id: dict[int, Item] = {}

    def __len__(self) -> int:
        return len(self._orders)

    def __iter__(self) -> Iterator[Item]:
        items = self._items
        return (items[order] for order in self._orders)

    def add(self, item: Item) -> None:
        """Puts the item at its place in the order of arrival."""
        insort(self._orders, item.order)
        self._items[item.order] = item
        self._by_id[item.id] = item

    def remove(self, item: Item) -> None:
        """Takes the item out; KeyError if it is not here."""
        del self._items[item.order]
        del self._by_id[item.id]
        del self._orders[bisect_left(self._orders, item.order)]

    def find(self, id: int) -> Item | None:
        """The item with this id, or None."""
        return self._by_id.get(id)


class LevelQueue:
    """What waits in one priority level, with the level's policy in the form that ``offer`` needs."""

    __slots__ = ("delayed", "live", "max_queue_size", "number", "policy", "timed")

    def __init__(self, number: int, policy: QueuePolicy) -> None:
        self.number = number
        self.policy = policy
        self.max_queue_size = policy.max_queue_size
        self.timed = policy.default_timeout_microseconds > 0
        self.live: OrderedDict[int, Item] = OrderedDict()
        self.delayed = DelayedQueue()

    def __len__(self) -> int:
        return len(self.live) + len(self.delayed)

    def __iter__(self) -> Iterator[Item]:
        yield from self.live.values()
        yield from self.delayed

    def remove(self, item: Item) -> None:
        """Takes the item out, wherever it waits; KeyError if it is not here."""
        if self.live.get(item.id) is item:
            del self.live[item.id]
        else:
            self.delayed.remove(item)

    def find(self, id: int) -> Item | None:
        """The waiting item with this id, or None."""
        return self.live.get(id) or self.delayed.find(id)

    def oldest(self) -> int | None:
        """When the item that waits longest was enqueued (ns), or None if nothing waits."""
        heads = [item.enqueued for queue in (self.live.values(), self.delayed) for item in _first(iter(queue))]
        return min(heads, default=None)


def _first(items: Iterator[Item]) -> tuple[Item, ...]:
    for item in items:
        return (item,)
    return ()
