"""A dictionary that forgets what was used longest ago once the sum of the weights exceeds a bound."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


def _one(_value: object) -> int:
    return 1


class Recent(Generic[K, V]):
    """Invariant: `_total` is the sum of `weigh` over all values, and at most `bound` unless a single value is
    heavier.
    """

    __slots__ = ("_items", "_total", "_weigh", "bound")

    def __init__(self, bound: int, weigh: Callable[[V], int] = _one) -> None:
        self.bound = bound
        self._weigh = weigh
        self._items: OrderedDict[K, tuple[V, int]] = OrderedDict()
        self._total = 0

    def get(self, key: K) -> V | None:
        """The value, which then counts as just used; None when it isn't there."""
        item = self._items.get(key)
        if item is None:
            return None
        self._items.move_to_end(key)
        return item[0]

    def put(self, key: K, value: V) -> None:
        """Keep a value, at the cost of those used longest ago."""
        self.drop(key)
        weight = self._weigh(value)
        self._items[key] = (value, weight)
        self._total += weight
        while self._total > self.bound and len(self._items) > 1:
            _, (_, gone) = self._items.popitem(last=False)
            self._total -= gone

    def drop(self, key: K) -> None:
        """Forget a value if it is there."""
        item = self._items.pop(key, None)
        if item is not None:
            self._total -= item[1]

    def __contains__(self, key: object) -> bool:
        return key in self._items

    def items(self) -> list[tuple[K, V]]:
        """All keys with their values, the one used longest ago first; none of them counts as used."""
        return [(key, value) for key, (value, _) in self._items.items()]

    def clear(self) -> None:
        """Forget everything."""
        self._items.clear()
        self._total = 0

    def __len__(self) -> int:
        return len(self._items)
