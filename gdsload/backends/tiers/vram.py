"""The tier of shards that are kept in the GPU's own memory.

Its thread copies shards there, one after the other, through the backend that reads them anyway. Nothing is ever
evicted: every epoch wants every sample once, so that no shard is worth more than another, and a cache that evicts the
least recently used shard would always just have evicted the next one.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import numpy as np
import torch
from numpy.typing import NDArray

from gdsload.backends.base import Backend, Destination, FileBackend, PendingRead, ShardAddresses, TierStatus
from gdsload.backends.tiers.tiered import Over
from gdsload.shards.files import Files
from gdsload.shards.reads import Extents, distinct
from gdsload.system.copies import copy_runs
from gdsload.system.pool import done
from gdsload.system.streams import on, record, side_stream
from gdsload.system.units import format_bytes

Span = Callable[[int], tuple[int, int]]

_NONE = np.zeros(0, np.int64)
_READ_BYTES = 4 * 2**20
_READS = 16
"""Extents of one read: enough for all threads, and little memory."""


class VramTier(FileBackend):
    """Shards in VRAM, of `vram_bytes` at most.

    Of each, the byte range [begin, end) that `span` returns will be wanted; other bytes are not kept.
    """

    name, thread = "vram", "gdsload-vram"

    def __init__(self, files: Files, device: torch.device, *, span: Span, vram_bytes: int) -> None:
        super().__init__(files)
        self.device, self.vram_bytes = device, vram_bytes
        self.ready = np.zeros(len(files.sources), bool)
        self.kept_bytes = 0
        self.trouble = ""
        self._span = span
        self._base = np.zeros(len(files.sources), np.int64)
        self._begins = np.zeros(len(files.sources), np.int64)
        self._addresses = ShardAddresses(self._base, self.note_moved, copies=True)
        self._memory: list[torch.Tensor] = []
        self._stream = side_stream(device)

    def read(self, wanted: Extents, _to: Destination = "device") -> PendingRead:
        files = distinct(wanted.file, len(self._base))
        addresses = self._base[wanted.file] + wanted.offset
        return PendingRead(addresses, done, begins=self._begins[files], count=self.counts(wanted), files=_NONE)

    def addresses(self) -> ShardAddresses | None:
        return self._addresses if self.ready.all() else None

    def tiers(self) -> dict[str, TierStatus]:
        count = int(self.ready.sum())
        return {"vram": TierStatus(self.vram_bytes, self.kept_bytes, count, self.moved_bytes, trouble=self.trouble)}

    def give_back(self) -> None:
        if self._memory:
            torch.cuda.synchronize(self.device)  # gathers from it may still be under way
            self._memory.clear()
        self.ready[:] = False
        self.kept_bytes = 0

    close = give_back

    def fill(self, far: Backend, _wanted: NDArray[np.bool_], over: Over) -> None:
        """See `Near.fill`: all shards, one after the other."""
        for file in range(len(self.ready)):
            if over(0):
                return
            try:
                self._keep(file, far, over)
            except torch.OutOfMemoryError:
                self.trouble = "the GPU has no memory left"
            except Exception as error:  # it is raised where the shard is read
                self.trouble = f"reading failed: {error}"
            if self.trouble:
                return

    def _keep(self, file: int, far: Backend, over: Over) -> None:
        """Copy a shard into VRAM."""
        low, high = self._span(file)
        if self.kept_bytes + high - low > self.vram_bytes:
            self.trouble = f"the budget of {format_bytes(self.vram_bytes)} is used up"
            return
        with on(self._stream):
            memory = torch.empty(high - low, dtype=torch.uint8, device=self.device)
        offsets = np.arange(low, high, _READ_BYTES)
        for first in range(0, len(offsets), _READS):
            if over(0):
                return
            offset = offsets[first : first + _READS]
            nbytes = np.minimum(_READ_BYTES, high - offset)
            self._copy(far, Extents(np.full(len(offset), file), offset, nbytes), memory[offset[0] - low :])
        # Once more, and at once: what is gathered from here is not checked after that.
        self.files.check_now(np.array([file]))
        self._memory.append(memory)
        self._begins[file] = memory.data_ptr()
        self._base[file] = memory.data_ptr() - low
        self.kept_bytes += high - low
        self.ready[file] = True

    def _copy(self, far: Backend, wanted: Extents, out: torch.Tensor) -> None:
        """Read consecutive extents and copy them to the beginning of `out`."""
        landing = far.read(wanted)
        try:
            landing.completion.wait()
            with on(self._stream):
                try:
                    copy_runs(landing.addresses, wanted.nbytes, self.files.in_mappings, out)
                finally:
                    record(self._stream).synchronize()  # also for copies that were queued before an error
        finally:
            with suppress(Exception):
                landing.completion.wait()
            landing.release()
        landing.count()
