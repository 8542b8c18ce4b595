"""The `auto` backend for a GPU: every shard by the best way it has at the moment.

A shard whose pages are resident is registered and from then on read by the GPU itself; all others come from the drive,
by cuFile or by bounce. A thread of its own looks which shards could be registered, so that nobody waits for it: until
it gets there, bounce reads resident pages, too. So an epoch that fills the page cache is followed by one out of it.
"""

from __future__ import annotations

import os
import threading
from contextlib import suppress

import numpy as np
from numpy.typing import NDArray

from gdsload.backends.base import Backend, FileBackend, PendingRead, ShardAddresses
from gdsload.backends.mapped import MappedBackend
from gdsload.backends.tiers.tiered import bring_by_shard
from gdsload.shards.files import Files
from gdsload.shards.page_cache import shard_is_resident
from gdsload.shards.reads import Extents
from gdsload.system.threads import Worker, end_at_exit, start_all

__all__ = ["RoutedBackend"]

IntArray = NDArray[np.int64]

_FILL_BYTES = 4 * 2**20
_LOOK_EVERY_S = 0.25
"""How often shards are looked at that were not resident the last time: 32 reads of a byte each."""


class RoutedBackend(FileBackend):
    """Shares extents out between the page cache and the drive.

    Args:
        files: the shards.
        mapped: what serves registered shards.
        cold: what serves the others.
        fill: whether shards that are not resident are read into the page cache, as long as they could be registered.
    """

    name = "auto"
    addressable = True

    def __init__(self, files: Files, mapped: MappedBackend, cold: Backend, *, fill: bool = False) -> None:
        super().__init__(files)
        self.mapped, self.cold, self.fill = mapped, cold, fill
        self.trouble = ""
        """Why no further shard can be registered; empty while it can."""
        self._wanted = np.zeros(len(files.sources), bool)
        self._work, self._pause = threading.Event(), threading.Event()
        self._thread: Worker | None = None
        self._lock = threading.Lock()
        self._closed = False

    def read(self, wanted: Extents) -> PendingRead:
        """See `Backend.read`."""
        ready = self.mapped.registered[wanted.file]
        self._want(wanted.file[~ready])
        return bring_by_shard(wanted, ready, self.mapped, self.cold)

    def _want(self, files: IntArray) -> None:
        """Have shards looked at."""
        if self.trouble or not len(files):
            return
        self._wanted[files] = True
        self._work.set()
        if self._thread is None:
            with self._lock:
                if self._thread is None and not self._closed:
                    self._thread = Worker(self._look, "gdsload-register")
                    end_at_exit(self)
                    try:
                        start_all([self._thread])
                    except RuntimeError as error:  # the system has no further thread
                        self.trouble = f"no thread could be started: {error}"

    def _look(self) -> None:
        while not self._closed:
            self._work.wait()
            self._work.clear()
            for file in np.flatnonzero(self._wanted & self.files.opened & ~self.mapped.registered).tolist():
                if self._closed or self.trouble:
                    return
                with suppress(Exception):  # what is wrong with a file comes up where it is read
                    if shard_is_resident(self.files, file) or self._filled(file):
                        self.trouble = self.mapped.try_register(file)
                self._wanted[file] = False
            # Not `sleep`: whoever closes must not wait for it.
            self._pause.wait(_LOOK_EVERY_S)

    def _filled(self, file: int) -> bool:
        """Read a shard into the page cache, if that is wanted and it can stay there."""
        if not self.fill or not self.mapped.has_room(file):
            return False
        scratch = memoryview(bytearray(_FILL_BYTES))
        with self.files.descriptor(file) as fd:
            for offset in range(0, self.files.length(file), _FILL_BYTES):
                if self._closed:
                    return False
                os.preadv(fd, [scratch], offset)
        return True

    def addresses(self) -> ShardAddresses | None:
        """See `Backend.addresses`."""
        return self.mapped.addresses()

    def bytes_by_path(self) -> dict[str, int]:
        """See `Backend.bytes_by_path`."""
        found = {path: count for path, count in self.mapped.bytes_by_path().items() if count}
        return found | {path: count for path, count in self.cold.bytes_by_path().items() if count}

    def close(self) -> None:
        """See `Backend.close`."""
        self.end()
        # Registrations end before mappings, and mappings after the readers, which may be copying out of them: the last
        # to close the files is who reads them.
        self.mapped.unregister()
        self.cold.close()

    def end(self) -> None:
        """Register no further shard, and wait for the thread that does."""
        self._closed = True
        with self._lock:
            thread = self._thread
        self._pause.set()
        self._work.set()
        if thread is not None:
            thread.wait()
