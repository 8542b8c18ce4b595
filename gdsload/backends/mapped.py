"""The `mapped` backend: pages of files, registered with CUDA, are read by the GPU itself.

Shards are mapped read-only and registered whole, read-only. Nothing is copied by the CPU, and no memory is used beyond
the page cache; but registered pages cannot be reclaimed, so there is a budget. What is registered stays so until the
backend is closed.

If a file is cut short, its registered pages stay, and the GPU reads their old content. So files are checked after every
gather, as with all backends; here this check is what keeps stale bytes out.
"""

from __future__ import annotations

import threading
import weakref

import numpy as np
import torch

from gdsload.backends.base import Destination, FileBackend, PendingRead, ShardAddresses, TierStatus
from gdsload.errors import BackendUnavailableError, BudgetError, LoaderClosedError
from gdsload.shards.files import Files
from gdsload.shards.reads import Extents, distinct
from gdsload.system.arrays import IntArray
from gdsload.system.pool import done
from gdsload.system.streams import register_host, unregister_host
from gdsload.system.units import format_bytes

_in_process = weakref.WeakSet["MappedBackend"]()


def registered_in_process() -> int:
    """Bytes of files that this process has registered with CUDA; a file that is in two loaders counts twice."""
    return sum(backend.registered_bytes for backend in list(_in_process))


class MappedBackend(FileBackend):
    """Gathers mapped shards from the page cache, of which `register_bytes` may be registered."""

    name = "mapped"
    in_place = addressable = True

    def __init__(self, files: Files, device: torch.device, *, register_bytes: int) -> None:
        super().__init__(files)
        self.device, self.register_bytes = device, register_bytes
        self.registered = np.zeros(len(files.sources), bool)
        self.registered_bytes, self._left = 0, len(files.sources)
        self.trouble = ""
        """Why no further shard can be registered; empty while it can."""
        self._lock = threading.Lock()
        self._addresses = ShardAddresses(files.base, self.note_moved)
        self._closed = False
        _in_process.add(self)

    @staticmethod
    def refusal(device: torch.device, *, mapped: bool) -> tuple[str, str] | None:
        """Why the backend cannot work with a device, and the remedy; None if it may.

        Whether pages can be registered is known only after the first shard.
        """
        if device.type != "cuda" or torch.version.hip:
            return f"pages of files cannot be registered for {device.type}", 'Use `backend="bounce"`.'
        return None if mapped else ("the files are not mapped", "Leave `mmap=False` out.")

    def read(self, wanted: Extents, _to: Destination = "device") -> PendingRead:
        """See `Backend.read`.

        Raises:
            BackendUnavailableError: if a shard cannot be registered.
            BudgetError: if no more of `register_bytes` is left for one.
        """
        self.files.ensure_open(wanted.file)
        needed = distinct(wanted.file, len(self.files.sources))
        if not self.registered[needed].all():
            with self._lock:
                self._register(needed)
        return PendingRead(self.files.base[wanted.file] + wanted.offset, done, count=self.counts(wanted))

    def addresses(self) -> ShardAddresses | None:
        # Called for each group of batches: counting the registered ones would take longer than all the rest of it.
        return None if self._left else self._addresses

    def try_register(self, file: int) -> str:
        """Register an open shard if it fits into the rest of the budget; returns why not, or an empty text."""
        with self._lock:
            if self._closed or self.registered[file]:
                return "" if self.registered[file] else "the loader was closed"
            if self._is_full(file):
                return f"the {format_bytes(self.register_bytes)} of Memory.registered are used up"
        trouble = self._pin(file)  # without the lock, or reads of other shards would wait as long as it takes
        with self._lock:
            return trouble or self._note(file)

    def _is_full(self, file: int) -> bool:
        return self.registered_bytes + self.files.length(file) > self.register_bytes

    def _register(self, needed: IntArray) -> None:
        """Register all that a read needs. The lock must be held."""
        if self._closed:
            raise LoaderClosedError("the backend was closed")
        for file in needed[~self.registered[needed]].tolist():
            if self._is_full(file):
                raise BudgetError(
                    f"batches need more shards than fit into the {format_bytes(self.register_bytes)} that may be "
                    "registered",
                    file=self.files.sources[file].path,
                    remedy='Raise `memory=gdsload.Memory(registered=...)`, or leave the choice to `backend="auto"`.',
                )
            if trouble := self._pin(file) or self._note(file):
                self.files.check_now(needed)  # a file cut short cannot be registered
                whole = self.files.whole(file)
                self.files.populate(file, 0, int(whole.nbytes[0]), whole)  # nor one that cannot be read
                raise BackendUnavailableError(
                    f"its pages cannot be registered with CUDA: {trouble}",
                    file=self.files.sources[file].path,
                    remedy='Use `backend="bounce"`, or "auto", which does so where it must.',
                )

    def _pin(self, file: int) -> str:
        address = int(self.files.base[file])
        try:
            return register_host(self.device, address, self.files.length(file), read_only=True)
        except BaseException:  # Ctrl-C: nobody would remove what it has registered
            unregister_host(self.device, address)
            raise

    def _note(self, file: int) -> str:
        """Count a shard whose pages have been registered. The lock must be held."""
        if self._closed:
            unregister_host(self.device, int(self.files.base[file]))
            return "the loader was closed"
        self.registered[file] = True
        self.registered_bytes += self.files.length(file)
        self._left -= 1
        return ""

    def tiers(self) -> dict[str, TierStatus]:
        count = int(self.registered.sum())
        status = TierStatus(self.register_bytes, self.registered_bytes, count, self.moved_bytes, trouble=self.trouble)
        return {"pagecache": status}

    def give_back(self) -> None:
        """Remove all registrations, and make no more. Waits for the GPU, which may still be reading."""
        with self._lock:
            self._closed = True
            if self.registered_bytes:
                torch.cuda.synchronize(self.device)
            for file in np.flatnonzero(self.registered).tolist():
                unregister_host(self.device, int(self.files.base[file]))
                self.registered[file] = False
                self.registered_bytes -= self.files.length(file)
                self._left += 1

    def close(self) -> None:
        self.give_back()
        self.files.close()
