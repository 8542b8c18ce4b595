"""The `auto` backend for a GPU: every shard by the best way it has at the moment.

A shard whose pages are resident is registered and from then on read by the GPU itself; all others come from the drive,
by cuFile or by bounce. A thread of its own looks which shards could be registered, so that nobody waits for it: until
it gets there, bounce reads resident pages, too. So an epoch that fills the page cache is followed by one out of it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress

import numpy as np
import torch
from numpy.typing import NDArray

from gdsload.backends.base import Backend, Completion, Landing
from gdsload.backends.files import ShardFiles
from gdsload.backends.mapped import MappedBackend
from gdsload.backends.residency import shard_is_resident
from gdsload.plan import Extents
from gdsload.threads import start_all

__all__ = ["RoutedBackend"]

IntArray = NDArray[np.int64]

_LOOK_EVERY_S = 0.25
"""How often shards are looked at that were not resident the last time: 32 reads of a byte each."""


class _Both:
    """The completion of two landings."""

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

    def make_stream_wait(self, stream: torch.Stream) -> None:
        for part in self._parts:
            part.make_stream_wait(stream)


class RoutedBackend:
    """Shares extents out between the page cache and the drive.

    Args:
        files: the shards.
        mapped: what serves registered shards.
        cold: what serves the others.
    """

    name = "auto"
    in_place = False

    def __init__(self, files: ShardFiles, mapped: MappedBackend, cold: Backend) -> None:
        self.files, self.mapped, self.cold = files, mapped, cold
        self.trouble = ""
        """Why no further shard can be registered; empty while it can."""
        self._wanted = np.zeros(len(files.sources), bool)
        self._work, self._pause = threading.Event(), threading.Event()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._closed = False

    def bring(self, wanted: Extents) -> Landing:
        """See `Backend.bring`."""
        ready = self.mapped.registered[wanted.file]
        if ready.all() and len(wanted):
            return self.mapped.bring(wanted)
        self._want(wanted.file[~ready])
        if not ready.any():
            return self.cold.bring(wanted)
        here, there = np.flatnonzero(ready), np.flatnonzero(~ready)
        first, second = self.mapped.bring(_chosen(wanted, here)), self.cold.bring(_chosen(wanted, there))
        addresses = np.empty(len(wanted), np.int64)
        addresses[here], addresses[there] = first.addresses, second.addresses
        both = _Both(first.completion, second.completion)
        return Landing(addresses, both, second.nbytes, _one_after_the_other(first.release, second.release))

    def _want(self, files: IntArray) -> None:
        """Have shards looked at."""
        if self.trouble or not len(files):
            return
        self._wanted[files] = True
        self._work.set()
        if self._thread is None:
            with self._lock:
                if self._thread is None and not self._closed:
                    self._thread = threading.Thread(target=self._look, name="gdsload-register", daemon=True)
                    start_all([self._thread])

    def _look(self) -> None:
        while not self._closed:
            self._work.wait()
            self._work.clear()
            for file in np.flatnonzero(self._wanted & self.files.opened & ~self.mapped.registered).tolist():
                if self._closed or self.trouble:
                    return
                with suppress(Exception):  # what is wrong with a file comes up where it is read
                    if shard_is_resident(self.files, file):
                        self.trouble = self.mapped.try_register(file)
                self._wanted[file] = False
            # Not `sleep`: whoever closes must not wait for it.
            self._pause.wait(_LOOK_EVERY_S)

    def check(self, files: IntArray) -> None:
        """See `Backend.check`."""
        self.files.check(files)

    def bytes_by_path(self) -> dict[str, int]:
        """See `Backend.bytes_by_path`."""
        found = {path: count for path, count in self.mapped.bytes_by_path().items() if count}
        return found | {path: count for path, count in self.cold.bytes_by_path().items() if count}

    def close(self) -> None:
        """See `Backend.close`."""
        with self._lock:
            self._closed = True
            thread, self._thread = self._thread, None
        self._pause.set()
        self._work.set()
        if thread is not None and thread.is_alive():
            thread.join()
        # Registrations end before mappings, and mappings after the readers, which may be copying out of them: the last
        # to close the files is who reads them.
        self.mapped.unregister()
        self.cold.close()


def _chosen(wanted: Extents, index: IntArray) -> Extents:
    return Extents(wanted.file[index], wanted.offset[index], wanted.nbytes[index])


def _one_after_the_other(first: Callable[[], object], second: Callable[[], object]) -> Callable[[], None]:
    def both() -> None:
        first()
        second()

    return both
