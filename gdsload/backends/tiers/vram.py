"""The tier of shards that are kept in the GPU's own memory.

A thread of its own copies shards there, one after the other, by way of the backend that reads them anyway; what is not
there yet is served by that backend. Nothing is ever evicted: every epoch wants every sample once, so that no shard is
worth more than another, and a cache that went by the last use would always just have lost what comes next.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress

import numpy as np
import torch
from numpy.typing import NDArray

from gdsload.backends.base import Backend, FileBackend, PendingRead, ShardAddresses
from gdsload.backends.readers import done
from gdsload.backends.tiers.tiered import bring_by_shard
from gdsload.shards.files import Files
from gdsload.shards.reads import Extents, distinct
from gdsload.system.copies import copy_runs
from gdsload.system.streams import record, side_stream
from gdsload.system.threads import Worker, end_at_exit, start_all
from gdsload.system.units import format_bytes

__all__ = ["VramBackend"]

IntArray = NDArray[np.int64]
Span = Callable[[int], tuple[int, int]]

_READ_BYTES = 4 * 2**20
_READS = 16
"""Reads of one landing: enough for all readers, and little memory."""


class _Kept:
    """What is in VRAM, as something that brings."""

    def __init__(self, base: IntArray, begins: IntArray) -> None:
        self._base, self._begins = base, begins

    def read(self, wanted: Extents) -> PendingRead:
        files = distinct(wanted.file, len(self._base))
        return PendingRead(self._base[wanted.file] + wanted.offset, done, begins=self._begins[files])


class VramBackend(FileBackend):
    """Serves shards from VRAM once they are there, and the others by another backend.

    Args:
        files: the shards.
        device: the GPU.
        inner: what reads the shards; closed with this.
        span: says which bytes of a shard will be wanted, from the first to before the second; others are not kept.
        vram_bytes: bytes that may be kept.
    """

    addressable = True

    def __init__(self, files: Files, device: torch.device, inner: Backend, *, span: Span, vram_bytes: int) -> None:
        super().__init__(files)
        self.device, self.inner, self.vram_bytes = device, inner, vram_bytes
        self.name = f"vram+{inner.name}"
        self.kept = np.zeros(len(files.sources), bool)
        """Which shards are in VRAM."""
        self.kept_bytes = 0
        self.trouble = ""
        """Why no further shard is kept; empty while there may be more."""
        self._span = span
        self._base = np.zeros(len(files.sources), np.int64)
        self._begins = np.zeros(len(files.sources), np.int64)
        self._addresses = ShardAddresses(self._base, self._count)
        self._near = _Kept(self._base, self._begins)
        self._memory: list[torch.Tensor] = []
        self._stream = side_stream(device)
        self._thread: Worker | None = None
        self._lock = threading.Lock()
        self._gathered = 0
        self._closed = False

    def read(self, wanted: Extents) -> PendingRead:
        """See `Backend.read`."""
        self.files.ensure_open(wanted.file)
        if self._thread is None:
            self._start()
        ready = self.kept[wanted.file]
        nbytes = int(wanted.nbytes[ready].sum())
        if nbytes:
            self._count(nbytes)
        return bring_by_shard(wanted, ready, self._near, self.inner)

    def addresses(self) -> ShardAddresses | None:
        """See `Backend.addresses`."""
        if self.kept.all():
            return self._addresses
        return None if self.kept.any() else self.inner.addresses()

    def _count(self, nbytes: int) -> None:
        with self._lock:
            self._gathered += nbytes

    def check(self, files: NDArray[np.int64]) -> None:
        """See `Backend.check`. What is in VRAM stays as it is, whatever happens to its file."""
        others = files[~self.kept[files]]
        if len(others):
            self.inner.check(others)

    def bytes_by_path(self) -> dict[str, int]:
        """See `Backend.bytes_by_path`: also what was read to be kept."""
        kept = {"vram": self._gathered} if self._gathered else {}
        return kept | self.inner.bytes_by_path()

    def close(self) -> None:
        """See `Backend.close`."""
        self.end()
        if self._memory:
            torch.cuda.synchronize(self.device)  # who gathers from it may still be at it
            self._memory.clear()
        self.kept[:] = False
        self.inner.close()

    def end(self) -> None:
        """Keep no further shard, and wait for the thread that does."""
        self._closed = True
        with self._lock:
            thread = self._thread
        if thread is not None:
            thread.wait()

    def _start(self) -> None:
        with self._lock:
            if self._thread is None and not self._closed:
                self._thread = Worker(self._fill, "gdsload-vram")
                end_at_exit(self)
                try:
                    start_all([self._thread])
                except RuntimeError as error:  # the system has no further thread
                    self.trouble = f"no thread could be started: {error}"

    def _fill(self) -> None:
        for file in range(len(self.kept)):
            if self._closed:
                return
            try:
                self._keep(file)
            except torch.OutOfMemoryError:
                self.trouble = "the GPU has no memory left"
            except Exception as error:  # whoever wants the shard will meet it, too
                self.trouble = f"reading failed: {error}"
            if self.trouble:
                return

    def _keep(self, file: int) -> None:
        """Copy a shard into VRAM."""
        low, high = self._span(file)
        if self.kept_bytes + high - low > self.vram_bytes:
            self.trouble = f"the budget of {format_bytes(self.vram_bytes)} is used up"
            return
        with torch.cuda.stream(self._stream):
            memory = torch.empty(high - low, dtype=torch.uint8, device=self.device)
        offsets = np.arange(low, high, _READ_BYTES)
        for first in range(0, len(offsets), _READS):
            if self._closed:
                return
            offset = offsets[first : first + _READS]
            nbytes = np.minimum(_READ_BYTES, high - offset)
            self._copy(Extents(np.full(len(offset), file), offset, nbytes), memory[offset[0] - low :])
        # Once more, and now: who looks at the file later is told that it does not matter any more.
        self.files.watch.check_now(np.array([file]))
        self._memory.append(memory)
        self._begins[file] = memory.data_ptr()
        self._base[file] = memory.data_ptr() - low
        self.kept_bytes += high - low
        self.kept[file] = True

    def _copy(self, wanted: Extents, out: torch.Tensor) -> None:
        """Bring consecutive extents and copy them to the begin of `out`."""
        landing = self.inner.read(wanted)
        try:
            landing.completion.wait()
            with torch.cuda.stream(self._stream):
                try:
                    copy_runs(landing.addresses, wanted.nbytes, self.files.in_mappings, out)
                finally:
                    record(self._stream).synchronize()  # also of what was queued before something went wrong
        finally:
            with suppress(Exception):
                landing.completion.wait()
            landing.release()
