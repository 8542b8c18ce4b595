"""A tier that holds some shards, and a backend that reads the others.

A thread adds shards to the tier while the others are read: `Near.fill`. Where they are kept, which they are and when it
is full is decided by the tier.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from gdsload.backends.base import Backend, Destination, FileBackend, PendingRead, ShardAddresses, TierStatus, joined
from gdsload.shards.files import Files
from gdsload.shards.reads import Extents, distinct
from gdsload.system.arrays import IntArray
from gdsload.system.threads import Worker, end_at_exit, start_all

__all__ = ["Filling", "Near", "Tiered"]


class Filling:
    """Requests to the thread that fills a tier.

    By queues, which are C alone: Ctrl-C in an event's Python code would leave its lock locked, and no later `end` ends.

    Args:
        shards: number of shards.
    """

    def __init__(self, shards: int) -> None:
        self.wanted = np.zeros(shards, bool)
        """Shards that were wanted and not in the tier; the tier resets them."""
        self.over = False
        """True if the thread is to end."""
        self._more, self._end = SimpleQueue[None](), SimpleQueue[None]()

    def want(self, files: IntArray) -> None:
        """Add shards that are wanted and not in the tier."""
        self.wanted[files] = True
        if self._more.empty():
            self._more.put(None)

    def wait(self) -> None:
        """Wait until some are wanted, or the thread is to end."""
        self._more.get()

    def pause(self, seconds: float) -> None:
        """Wait for some seconds, or until the thread is to end."""
        with suppress(Empty):
            self._end.get(timeout=seconds)

    def end(self) -> None:
        """Have the thread end."""
        self.over = True
        self._end.put(None)
        self._more.put(None)


class Near(Protocol):
    """A tier. Its methods may be called from several threads, `fill` from one."""

    ready: NDArray[np.bool_]
    """Which shards it holds."""
    trouble: str
    """Why it takes no further shard; empty while it may."""
    thread: str
    """Name of the thread that fills it."""

    def read(self, wanted: Extents, to: Destination = "device") -> PendingRead:
        """See `Backend.read`, for shards that it holds."""

    def addresses(self) -> ShardAddresses | None:
        """See `Backend.addresses`."""

    def bytes_by_path(self) -> dict[str, int]:
        """See `Backend.bytes_by_path`."""

    def tiers(self) -> dict[str, TierStatus]:
        """See `Backend.tiers`."""

    def fill(self, far: Backend, filling: Filling) -> None:
        """Add shards, until there is trouble, none is left, or the thread is to end. It raises nothing.

        Args:
            far: reads them.
            filling: the requests.
        """

    def give_back(self) -> None:
        """Release everything, after the GPU has ended its reads; may be called twice."""


class Tiered(FileBackend):
    """Serves shards from a tier once it holds them, and the others by another backend.

    Args:
        name: its name.
        files: the shards.
        near: the tier.
        far: reads the others; closed with this.
    """

    addressable = True

    def __init__(self, name: str, files: Files, near: Near, far: Backend) -> None:
        super().__init__(files)
        self.name, self.near, self.far = name, near, far
        self._filling = Filling(len(files.sources))
        self._thread: Worker | None = None
        self._lock = threading.Lock()

    def read(self, wanted: Extents, to: Destination = "device") -> PendingRead:
        """See `Backend.read`."""
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
        self._filling.want(files)
        if self._thread is None:
            with self._lock:
                if self._thread is None and not self._filling.over:
                    self._thread = Worker(lambda: self.near.fill(self.far, self._filling), self.near.thread)
                    end_at_exit(self)
                    try:
                        start_all([self._thread])
                    except RuntimeError as error:  # the system has no further thread
                        self.near.trouble = f"no thread could be started: {error}"

    def addresses(self) -> ShardAddresses | None:
        """See `Backend.addresses`."""
        found = self.near.addresses()
        return self.far.addresses() if found is None and not self.near.ready.any() else found

    def check(self, files: IntArray) -> None:
        """See `Backend.check`."""
        self.far.check(files)

    def bytes_by_path(self) -> dict[str, int]:
        """See `Backend.bytes_by_path`: including bytes read to fill the tier."""
        found = self.near.bytes_by_path() | self.far.bytes_by_path()
        return {path: count for path, count in found.items() if count}

    def tiers(self) -> dict[str, TierStatus]:
        """See `Backend.tiers`."""
        return self.near.tiers() | self.far.tiers()

    def close(self) -> None:
        """See `Backend.close`."""
        self.end()
        # The tier first: registrations end before mappings, and mappings after the readers, which may be copying out of
        # them. The files are closed last, by the backend that reads them.
        self.near.give_back()
        self.far.close()

    def end(self) -> None:
        """Add no further shard, and wait for the thread that adds them."""
        self._filling.end()
        with self._lock:
            thread = self._thread
        if thread is not None:
            thread.wait()
