"""The `mapped` backend: pages of files, registered with CUDA, are read by the GPU itself.

Shards are mapped read-only and registered whole, read-only. Nothing is copied by the CPU, and no memory is used beyond
the page cache; but registered pages cannot be reclaimed, so there is a budget.

If a file is cut short, its registered pages stay, and the GPU reads their old content. So files are checked after every
gather, as with all backends; here this check is what keeps stale bytes out.
"""

from __future__ import annotations

import threading
import weakref
from collections import OrderedDict, deque

import numpy as np
import torch

from gdsload.backends.base import Destination, FileBackend, PendingRead, ShardAddresses, TierStatus
from gdsload.errors import BackendUnavailableError, BudgetError, LoaderClosedError
from gdsload.shards.files import Files
from gdsload.shards.reads import Extents, distinct
from gdsload.system.arrays import IntArray
from gdsload.system.pool import Future
from gdsload.system.streams import register_host, unregister_host
from gdsload.system.units import format_bytes

_in_process = weakref.WeakSet["MappedBackend"]()


def registered_in_process() -> int:
    """Bytes of files that this process has registered with CUDA; a file that is in two loaders counts twice."""
    return sum(backend.registered_bytes for backend in list(_in_process))


class MappedBackend(FileBackend):
    """Gathers mapped shards from the page cache.

    Beyond `register_bytes` of files at once, the least recently used shards that no pending read holds are
    unregistered.
    """

    name = "mapped"
    in_place = addressable = True

    def __init__(self, files: Files, device: torch.device, *, register_bytes: int) -> None:
        super().__init__(files)
        self.device, self.register_bytes = device, register_bytes
        self.registered = np.zeros(len(files.sources), bool)
        self.registered_bytes = self.evictions = 0
        self.trouble = ""
        """Why no further shard can be registered; empty while it can."""
        self._users: OrderedDict[int, int] = OrderedDict()  # registered shards, least recently used first
        self._over: deque[list[int]] = deque()
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
            BudgetError: if the shards of these extents alone exceed `register_bytes`.
        """
        self.files.ensure_open(wanted.file)
        needed = distinct(wanted.file, len(self.files.sources))
        with self._lock:
            self._hold(needed)
        held = Future(0)
        # A finaliser may run anywhere, also inside the lock: it only notes which read is over.
        release = weakref.finalize(held, self._over.append, needed.tolist())
        release.atexit = False
        addresses = self.files.base[wanted.file] + wanted.offset
        return PendingRead(addresses, held, 0, release, count=self.counts(wanted))

    def addresses(self) -> ShardAddresses | None:
        """See `Backend.addresses`. Once all shards are registered, none is evicted for another."""
        # Called for each group of batches: counting the registered ones would take longer than all the rest of it.
        return self._addresses if len(self._users) == len(self.registered) else None

    def try_register(self, file: int) -> str:
        """Register an open shard if it fits into the rest of the budget; returns why not, or an empty text."""
        with self._lock:
            if self._closed or self.registered[file]:
                return "" if self.registered[file] else "the loader was closed"
            if self.registered_bytes + self.files.length(file) > self.register_bytes:
                return f"the {format_bytes(self.register_bytes)} of Memory.registered are used up"
        trouble = self._pin(file)  # without the lock, or reads of other shards would wait as long as it takes
        with self._lock:
            return trouble or self._note(file)

    def _hold(self, needed: IntArray) -> None:
        """Register all that a read needs, and count the read as a user of it."""
        self._count_out()
        if self._closed:
            raise LoaderClosedError("the backend was closed")
        total = sum(self.files.length(int(file)) for file in needed)
        if total > self.register_bytes:
            raise BudgetError(
                f"a batch needs {len(needed)} shards of {format_bytes(total)} at once, but "
                f"{format_bytes(self.register_bytes)} may be registered",
                remedy="Raise `memory=gdsload.Memory(registered=...)`, shuffle by blocks, or leave the choice to "
                '`backend="auto"`.',
            )
        taken = []
        try:
            for file in needed.tolist():
                if not self.registered[file]:
                    self._make_room(self.files.length(file))
                    if trouble := self._pin(file) or self._note(file):
                        self.files.check_now(needed)  # a file cut short cannot be registered
                        whole = self.files.whole(file)
                        self.files.populate(file, 0, int(whole.nbytes[0]), whole)  # nor one that cannot be read
                        raise BackendUnavailableError(
                            f"its pages cannot be registered with CUDA: {trouble}",
                            file=self.files.sources[file].path,
                            remedy='Use `backend="bounce"`, or "auto", which does so where it must.',
                        )
                self._users[file] += 1
                self._users.move_to_end(file)
                taken.append(file)
        except BaseException:
            for file in taken:
                self._users[file] -= 1
            raise

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
        self._users[file] = 0
        return ""

    def _make_room(self, nbytes: int) -> None:
        for file in [file for file, users in self._users.items() if not users]:
            if self.registered_bytes + nbytes <= self.register_bytes:
                return
            self._unregister(file)
            self.evictions += 1
        if self.registered_bytes + nbytes > self.register_bytes:
            raise BudgetError(
                f"batches under way hold {format_bytes(self.registered_bytes)} of registered shards, and one more of "
                f"{format_bytes(nbytes)} does not fit into the {format_bytes(self.register_bytes)} that "
                "may be registered",
                remedy="Raise `memory=gdsload.Memory(registered=...)`, lower its `prefetch`, or write smaller shards.",
            )

    def _unregister(self, file: int) -> None:
        unregister_host(self.device, int(self.files.base[file]))
        self.registered[file] = False
        self.registered_bytes -= self.files.length(file)
        del self._users[file]

    def _count_out(self) -> None:
        """No longer count the reads that are over. The lock must be held."""
        while self._over:
            for file in self._over.popleft():
                if file in self._users:
                    self._users[file] -= 1

    def tiers(self) -> dict[str, TierStatus]:
        count = int(self.registered.sum())
        status = TierStatus(
            self.register_bytes, self.registered_bytes, count, self.moved_bytes, self.evictions, self.trouble
        )
        return {"pagecache": status}

    def give_back(self) -> None:
        """Remove all registrations, and make no more. Waits for the GPU, which may still be reading."""
        with self._lock:
            self._closed = True
            if self._users:
                torch.cuda.synchronize(self.device)
            for file in list(self._users):
                self._unregister(file)

    def close(self) -> None:
        self.give_back()
        self.files.close()
