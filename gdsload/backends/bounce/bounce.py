"""The `bounce` backend: NVMe to a ring of pinned memory to the GPU.

The ring is filled in two ways. Scattered rows of mapped shards that are in the page cache are gathered from there. All
else is read by threads in large blocks: with O_DIRECT if it is not in the page cache, buffered if it is.

    read(extents) ──> slot on the device, cut into blocks ──> pinned block filled ──> copied, on one stream
"""

from __future__ import annotations

import os

import numpy as np
import torch

from gdsload.backends.base import Destination, FileBackend, PendingRead
from gdsload.backends.bounce.copier import BlockPath, Copier
from gdsload.backends.bounce.fill_threads import SUBMITTERS, ThreadFill
from gdsload.backends.bounce.resident_rows import ResidentRows
from gdsload.backends.bounce.slot_layout import lay_out
from gdsload.backends.host import host_side
from gdsload.shards.files import Files
from gdsload.shards.reads import PAGE_BYTES, Extents
from gdsload.system.numa import processors_near
from gdsload.system.pinned import PinnedRing
from gdsload.system.streams import on, room_for
from gdsload.system.units import format_bytes

_MAX_BLOCK_BYTES = 8 * 2**20
_MIN_BLOCK_BYTES = 4 * 2**20
_THREADS = 8
_COPIED = 4
"""Blocks that are being copied while all threads fill theirs. With more the rate is lower and varies from run to run:
blocks are reused in turn, a processor's last-level cache holds a smaller share of them, and memory is written and read
once more for each byte (docs/design/0004)."""
_PROCESSORS = 12
"""Processors that gather resident rows at once: fewer do not keep up with the link."""
PINNED_BYTES = (_THREADS + _COPIED) * _MAX_BLOCK_BYTES


class BounceBackend(FileBackend):
    """Reads files, mapped or not, into pinned memory and copies them to a GPU.

    `threads` is how many blocks are filled at once, and how many processors gather; None for as many as keep up with
    the link.
    """

    name = "bounce"

    def __init__(
        self,
        files: Files,
        device: torch.device,
        *,
        threads: int | None = None,
        pinned_bytes: int = PINNED_BYTES,
    ) -> None:
        super().__init__(files)
        self.device, self._host = device, host_side(files, threads)
        processors, threads = threads or _PROCESSORS, threads or _THREADS
        block, at_once = _MAX_BLOCK_BYTES, max(threads, files.drives.count * SUBMITTERS)
        while block > PAGE_BYTES and block * (at_once + _COPIED) > pinned_bytes:
            block //= 2
        self._ring = PinnedRing(device, max(pinned_bytes // block, 2), block)
        where = processors_near(device)
        self._threads = threads
        self._copier = Copier(device)
        self._moved = {"bounce-direct": 0, "bounce-buffered": 0}
        path = BlockPath(self._ring, self._copier, self._count)
        self._by_threads = ThreadFill(files, path, threads, where)
        self._resident: ResidentRows | None = None
        if files.mapped:
            processors = max(min(processors, len(where or os.sched_getaffinity(0)) - 1), 1)
            self._resident = ResidentRows(files, path, processors, where)

    def read(self, wanted: Extents, to: Destination = "device") -> PendingRead:
        if to == "host" and self._host is not None:
            return self._host.read(wanted)
        self.files.ensure_open(wanted.file)
        if self._resident is not None and self._resident.takes(wanted):
            return self._resident.read(wanted, self._slot)
        layout = lay_out(wanted, self.files.sizes, self._ring.block_bytes, self._block_of, self.files.drives)
        slot = self._slot(layout.nbytes)
        reading = self._by_threads.run(layout, slot)
        held = [slot]
        begin = slot.data_ptr()
        return PendingRead(begin + layout.places, reading, layout.nbytes, held.clear, np.array([begin]))

    def _block_of(self, nbytes: int) -> int:
        """Bytes of a block: small enough that two reads keep all threads busy, and large enough for Python's cost."""
        block = self._ring.block_bytes
        while block > _MIN_BLOCK_BYTES and block * self._threads > 2 * nbytes:
            block //= 2
        return block

    def _slot(self, nbytes: int) -> torch.Tensor:
        what = f"a slot of {format_bytes(nbytes)} (Memory.arena)"
        with room_for(what, self.device), on(self._copier.stream):
            return torch.empty(nbytes, dtype=torch.uint8, device=self.device)

    def _count(self, direct: int, buffered: int) -> None:
        with self._counting:
            self._moved["bounce-direct"] += direct
            self._moved["bounce-buffered"] += buffered

    def bytes_by_path(self) -> dict[str, int]:
        moved = dict(self._moved)
        if self._host is not None and (nbytes := self._host.moved_bytes):
            moved["host"] = nbytes
        return moved

    def close(self) -> None:
        self._by_threads.close()
        if self._resident is not None:
            self._resident.close()
        self._copier.close()
        self._ring.close()
        if self._host is not None:
            self._host.close()
        self.files.close()
