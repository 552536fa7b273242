"""What was computed once and is likely to be asked for again, up to a weight, so that no input makes memory grow."""

import threading
from collections import OrderedDict
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")

LARGEST_SHARE = 8
"""What weighs more than one part in so many of all is not kept: it would drive out everything else."""


class Remembered(Generic[K, V]):
    """The values that were put or asked for last, of the weight `most` together. May be used from several threads."""

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
        """`weight` is about how many bytes the key and the value take."""
        with self._lock:
            if (known := self._values.pop(key, None)) is not None:
                self._weight -= known[1]
            if weight * LARGEST_SHARE > self._most:
                return
            self._values[key] = value, weight
            self._weight += weight
            while self._weight > self._most:
                self._weight -= self._values.popitem(last=False)[1][1]
