"""A thread-safe LRU cache bounded by total weight, so that no input makes memory grow."""

import threading
from collections import OrderedDict
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")

LARGEST_SHARE = 8
"""Values heavier than the bound divided by this are not kept: they would displace everything else."""


class Remembered(Generic[K, V]):
    """Keeps the values put or read last, up to the weight `most` together. Thread-safe."""

    def __init__(self, most: int) -> None:
        self._most, self._weight = most, 0
        self._values: OrderedDict[K, tuple[V, int]] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._values)

    def get(self, key: K) -> V | None:
        with self._lock:
            if (found := self._values.get(key)) is None:
                return None
            self._values.move_to_end(key)
            return found[0]

    def put(self, key: K, value: V, weight: int) -> None:
        """Store a value. `weight`: approximate bytes of key and value."""
        with self._lock:
            if (known := self._values.pop(key, None)) is not None:
                self._weight -= known[1]
            if weight * LARGEST_SHARE > self._most:
                return
            self._values[key] = value, weight
            self._weight += weight
            while self._weight > self._most:
                self._weight -= self._values.popitem(last=False)[1][1]
