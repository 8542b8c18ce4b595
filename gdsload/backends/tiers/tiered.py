"""A tier that holds some shards, and a backend that reads the others.

A thread adds shards to the tier while the others are read: `Near.fill`. Where they are kept, which they are and when it
is full is decided by the tier.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from gdsload.backends.base import Backend, Destination, FileBackend, PendingRead, ShardAddresses, TierStatus, joined
from gdsload.errors import LoaderClosedError
from gdsload.shards.files import Files
from gdsload.shards.reads import Extents, distinct
from gdsload.system.arrays import IntArray
from gdsload.system.pool import Pool, done, end_at_exit

Over = Callable[[float], bool]
"""Waits up to some seconds for the end of the tier, and returns whether it is over."""


class Near(Backend, Protocol):
    """A tier. It is asked for shards that it holds alone."""

    ready: NDArray[np.bool_]
    """Which shards it holds."""
    trouble: str
    """Why it takes no further shard; empty while it may."""
    thread: str
    """Name of the thread that fills it."""

    def fill(self, far: Backend, wanted: NDArray[np.bool_], over: Over) -> None:
        """Add shards, which `far` reads, until there is trouble, none is left to be added, or it is over.

        `wanted` are those that were wanted and not in the tier. More may be at any moment; the tier resets them.
        """

    def give_back(self) -> None:
        """Release everything, after the GPU has ended its reads; may be called twice."""


class Tiered(FileBackend):
    """Serves shards from a tier once it holds them, and the others by another backend, which is closed with this."""

    addressable = True

    def __init__(self, name: str, files: Files, near: Near, far: Backend) -> None:
        super().__init__(files)
        self.name, self.near, self.far = name, near, far
        self._wanted = np.zeros(len(files.sources), bool)
        self._filler, self._filling = Pool(1, near.thread), done
        self._lock = threading.Lock()
        self._closed, self._ended = False, SimpleQueue[None]()
        end_at_exit(self)

    def read(self, wanted: Extents, to: Destination = "device") -> PendingRead:
        self.files.ensure_open(wanted.file)
        ready = self.near.ready[wanted.file]
        self._want(wanted.file[~ready])
        if ready.all() and len(wanted):
            return self.near.read(wanted, to)
        if not ready.any():
            return self.far.read(wanted, to)
        here, there = np.flatnonzero(ready), np.flatnonzero(~ready)
        near, others = self.near.read(wanted[here], to), wanted[there]
        # Said now: when these bytes land, the tier may hold copies of their shards, too, from before a file changed.
        files = None if near.files is None else distinct(others.file, len(self.near.ready))
        return joined(files, (here, near), (there, self.far.read(others, to)))

    def _want(self, files: IntArray) -> None:
        """Have shards added to the tier, if it may take any."""
        if self.near.trouble or not len(files):
            return
        self._wanted[files] = True
        if not self._filling.landed:
            return
        with self._lock:
            if self._filling.landed and not self._closed:
                try:
                    self._filling = self._filler.run([self._fill])
                except LoaderClosedError:  # meanwhile
                    pass
                except RuntimeError as error:  # the system has no further thread
                    self.near.trouble = f"no thread could be started: {error}"

    def _fill(self) -> None:
        try:
            self.near.fill(self.far, self._wanted, self._over)
        except Exception as error:
            self.near.trouble = f"filling it failed: {error}"
        if self.near.trouble or self.near.ready.all():
            self._filler.stop()  # nothing is left to do

    def _over(self, wait_s: float) -> bool:
        if wait_s and not self._closed:
            with suppress(Empty):
                self._ended.get(timeout=wait_s)
        return self._closed

    def addresses(self) -> ShardAddresses | None:
        found = self.near.addresses()
        return self.far.addresses() if found is None and not self.near.ready.any() else found

    def check(self, files: IntArray) -> None:
        self.far.check(files)

    def bytes_by_path(self) -> dict[str, int]:
        """See `Backend.bytes_by_path`: including bytes read to fill the tier."""
        found = self.near.bytes_by_path() | self.far.bytes_by_path()
        return {path: count for path, count in found.items() if count}

    def tiers(self) -> dict[str, TierStatus]:
        return self.near.tiers() | self.far.tiers()

    def close(self) -> None:
        self.end()
        # The tier first: registrations end before mappings, and mappings after the readers, which may be copying out of
        # them. The files are closed last, by the backend that reads them.
        self.near.give_back()
        self.far.close()

    def end(self) -> None:
        """Add no further shard, and wait for the thread that adds them."""
        self._closed = True
        self._ended.put(None)
        self._filler.close()
