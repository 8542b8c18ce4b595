"""A small cache of the values used last, for tables that are cheap to make again."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Recent(Generic[K, V]):
    """Keeps the `capacity` values that were used last, at least 1. Safe to share between threads.

    A value is made outside the lock: two threads that miss together may both make it, and both get the one
    stored first. That costs a little work now and then, but no thread waits while another one makes a value.
    """

    __slots__ = ("_capacity", "_lock", "_values")

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._lock = threading.Lock()
        self._values: OrderedDict[K, V] = OrderedDict()

    def get(self, key: K, make: Callable[[K], V]) -> V:
        """Return the value of `key`, made by `make(key)` if it is not kept."""
        with self._lock:
            if key in self._values:
                self._values.move_to_end(key)
                return self._values[key]
        made = make(key)
        with self._lock:
            value = self._values.setdefault(key, made)
            self._values.move_to_end(key)
            if len(self._values) > self._capacity:
                self._values.popitem(last=False)
            return value
