"""A tier that has some shards at hand, before a backend that reads the others.

A thread brings shards into the tier while the others are read: `Near.fill`. Where they are kept, which they are and why
there are no more is the tier's own affair.
"""

from __future__ import annotations

import threading
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from gdsload.backends.base import Backend, Completion, FileBackend, PendingRead, ShardAddresses, TierStatus
from gdsload.shards.files import Files
from gdsload.shards.reads import Extents
from gdsload.system.arrays import IntArray
from gdsload.system.threads import Worker, end_at_exit, start_all

__all__ = ["Filling", "Near", "Tiered"]


class Filling:
    """What the thread that fills a tier goes by.

    Args:
        shards: how many there are.
    """

    def __init__(self, shards: int) -> None:
        self.wanted = np.zeros(shards, bool)
        """Shards that were wanted and not there, for the tier to take back."""
        self.over = False
        """Whether it is to end."""
        self._more, self._pause = threading.Event(), threading.Event()

    def want(self, files: IntArray) -> None:
        """Note shards that are wanted and not there."""
        self.wanted[files] = True
        self._more.set()

    def wait(self) -> None:
        """Wait until some are wanted, or it is to end."""
        self._more.wait()
        self._more.clear()

    def pause(self, seconds: float) -> None:
        """Wait, but for no longer than until it is to end."""
        self._pause.wait(seconds)

    def end(self) -> None:
        """Have the thread end."""
        self.over = True
        self._pause.set()
        self._more.set()


class Near(Protocol):
    """A tier. Its methods may be called from several threads, `fill` from one."""

    ready: NDArray[np.bool_]
    """Which shards it has."""
    trouble: str
    """Why it takes no further shard; empty while it may."""
    thread: str
    """What the thread that fills it is called."""
    copies: bool
    """Whether what it has are copies, which stay as they are whatever happens to the files."""

    def read(self, wanted: Extents) -> PendingRead:
        """See `Backend.read`, of shards that it has."""

    def addresses(self) -> ShardAddresses | None:
        """See `Backend.addresses`."""

    def bytes_by_path(self) -> dict[str, int]:
        """See `Backend.bytes_by_path`."""

    def tiers(self) -> dict[str, TierStatus]:
        """See `Backend.tiers`."""

    def fill(self, far: Backend, filling: Filling) -> None:
        """Bring shards in, until there is trouble, nothing is left, or it is to end. It raises nothing.

        Args:
            far: what reads them.
            filling: what is wanted.
        """

    def give_back(self) -> None:
        """Give everything back, and wait for the GPU, which may still be reading; may be called twice."""


class Tiered(FileBackend):
    """Serves shards from a tier once they are there, and the others by another backend.

    Args:
        name: what it is called.
        files: the shards.
        near: the tier.
        far: what reads the others; closed with this.
    """

    addressable = True

    def __init__(self, name: str, files: Files, near: Near, far: Backend) -> None:
        super().__init__(files)
        self.name, self.near, self.far = name, near, far
        self._filling = Filling(len(files.sources))
        self._thread: Worker | None = None
        self._lock = threading.Lock()

    def read(self, wanted: Extents) -> PendingRead:
        """See `Backend.read`."""
        self.files.ensure_open(wanted.file)
        ready = self.near.ready[wanted.file]
        self._want(wanted.file[~ready])
        if ready.all() and len(wanted):
            return self.near.read(wanted)
        if not ready.any():
            return self.far.read(wanted)
        here, there = np.flatnonzero(ready), np.flatnonzero(~ready)
        return _joined((here, self.near.read(wanted[here])), (there, self.far.read(wanted[there])))

    def _want(self, files: IntArray) -> None:
        """Have shards brought into the tier, if it may take any."""
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
        others = files[~self.near.ready[files]] if self.near.copies else files
        if len(others):
            self.far.check(others)

    def bytes_by_path(self) -> dict[str, int]:
        """See `Backend.bytes_by_path`: also what was read to fill the tier."""
        found = self.near.bytes_by_path() | self.far.bytes_by_path()
        return {path: count for path, count in found.items() if count}

    def tiers(self) -> dict[str, TierStatus]:
        """See `Backend.tiers`."""
        return self.near.tiers() | self.far.tiers()

    def close(self) -> None:
        """See `Backend.close`."""
        self.end()
        # What is near first: registrations end before mappings, and mappings after the readers, which may be copying
        # out of them. The last to close the files is who reads them.
        self.near.give_back()
        self.far.close()

    def end(self) -> None:
        """Bring no further shard in, and wait for the thread that does."""
        self._filling.end()
        with self._lock:
            thread = self._thread
        if thread is not None:
            thread.wait()


class _Both:
    """The completion of two reads."""

    def __init__(self, first: Completion, second: Completion) -> None:
        self._parts = first, second

    @property
    def landed(self) -> bool:
        return all(part.landed for part in self._parts)

    def wait(self) -> None:
        try:
            self._parts[0].wait()
        finally:
            self._parts[1].wait()


def _joined(*parts: tuple[NDArray[np.intp], PendingRead]) -> PendingRead:
    """Two reads as one; each with the places that its extents have."""
    (here, first), (there, second) = parts
    addresses = np.empty(len(here) + len(there), np.int64)
    addresses[here], addresses[there] = first.addresses, second.addresses

    def release() -> None:
        first.release()
        second.release()

    return PendingRead(
        addresses,
        _Both(first.completion, second.completion),
        first.nbytes + second.nbytes,
        release,
        np.concatenate([first.begins, second.begins]),
    )
