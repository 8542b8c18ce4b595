"""The `bounce` backend: NVMe to a ring of pinned memory to the GPU.

Reads are laid out in a slot on the device one behind the other, and the slot is cut into blocks. A reader thread takes
a pinned block and fills it as the slot's block will look (with O_DIRECT what is not in the page cache, buffered what
is); one thread copies for all of them. Blocks are large, so that the interpreter lock is free while they are read.
"""

from __future__ import annotations

import errno
import os
import threading
import time
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray

from gdsload.backends.base import Landing
from gdsload.backends.copier import Copier
from gdsload.backends.files import ShardFiles, pread_exact
from gdsload.backends.readers import HANDED_OVER, Readers, Reading
from gdsload.backends.residency import looks_resident
from gdsload.errors import ReadError
from gdsload.gather import gather_rows, one_thread
from gdsload.pinned import Block, PinnedRing, node_of, processors_of
from gdsload.plan import Extents, coalesce
from gdsload.streams import no_room
from gdsload.units import format_bytes

__all__ = ["PINNED_BYTES", "BounceBackend"]

_PAGE = 4096
"""What O_DIRECT wants of offsets, lengths and memory, everywhere but on few devices (statx, STATX_DIOALIGN)."""
_MAX_GAP_BYTES = 16 * 1024
_MAX_BLOCK_BYTES = 8 * 2**20
_MIN_BLOCK_BYTES = 4 * 2**20
_THREADS = 8
_BELIEVED_S = 0.01
"""How long a shard that was found in the page cache is taken to be there."""
_SMALL_BYTES = 64 * 1024
"""Mean length of reads below which they are gathered from a mapping, if there is one and they are in the page cache."""
PINNED_BYTES = 2 * _THREADS * _MAX_BLOCK_BYTES
"""Two blocks for each reader: one is filled while the other is copied. More are slower: a processor's last cache holds
less of the ring, and then memory is written and read once more for each byte."""


@dataclass(frozen=True, slots=True)
class _Segments:
    """The reads that fill a block; arrays of one length, in the order of `begin`.

    Attributes:
        file: the shard.
        offset: byte offset in it, a multiple of a page.
        begin: byte position in the slot.
        nbytes: length, a multiple of a page; it may go beyond the end of the file.
    """

    file: NDArray[np.int64]
    offset: NDArray[np.int64]
    begin: NDArray[np.int64]
    nbytes: NDArray[np.int64]

    def part(self, low: int, high: int) -> _Segments:
        """Segments `low` to `high` - 1."""
        return _Segments(self.file[low:high], self.offset[low:high], self.begin[low:high], self.nbytes[low:high])

    @property
    def extents(self) -> Extents:
        """What they read."""
        return Extents(self.file, self.offset, self.nbytes)


class BounceBackend:
    """Reads files into pinned memory and copies them to a GPU.

    Args:
        files: the shards; mapped or not.
        device: the GPU.
        threads: how many reads are made at once.
        pinned_bytes: bytes of the ring.
        direct: whether to read with O_DIRECT: True and False, wherever it can be and never; None, what is not in the
            page cache.
    """

    name = "bounce"
    in_place = False

    def __init__(
        self,
        files: ShardFiles,
        device: torch.device,
        *,
        threads: int = _THREADS,
        pinned_bytes: int = PINNED_BYTES,
        direct: bool | None = None,
    ) -> None:
        self.files, self.device, self.direct = files, device, direct
        block = _MAX_BLOCK_BYTES
        while block > _PAGE and block * 2 * threads > pinned_bytes:
            block //= 2
        self._ring = PinnedRing(device, max(pinned_bytes // block, 2), block)
        node = node_of(device)
        self._readers = Readers(threads, "gdsload-bounce", processors_of(node) if node >= 0 else None)
        self._threads = threads
        self._copier = Copier(self._ring, device)
        self._moved = {"bounce-direct": 0, "bounce-buffered": 0}
        self._limited = threading.local()
        self._believed: dict[int, float] = {}
        self._lock = threading.Lock()
        self._closed = False

    def bring(self, wanted: Extents) -> Landing:
        """See `Backend.bring`."""
        self.files.ensure_open(wanted.file)
        block = self._ring.block_bytes
        reads = coalesce(wanted, max_gap_bytes=_MAX_GAP_BYTES, max_read_bytes=block, alignment=_PAGE)
        starts = np.cumsum(reads.extents.nbytes) - reads.extents.nbytes
        total = int(reads.extents.nbytes.sum())
        try:
            with torch.cuda.stream(self._copier.stream):
                slot = torch.empty(total, dtype=torch.uint8, device=self.device)
        except torch.OutOfMemoryError:
            raise no_room(self.device, f"a slot of {format_bytes(total)} (arena_bytes)") from None
        # Blocks small enough that two landings keep all readers busy, but not so small that Python takes the time.
        while block > _MIN_BLOCK_BYTES and block * self._threads > 2 * total:
            block //= 2
        blocks = _cut(reads.extents, starts, total, block)
        reading = Reading(len(blocks))
        reading = self._readers.run([partial(self._fill, segments, slot, reading) for segments in blocks], reading)
        held = [slot]
        addresses = slot.data_ptr() + starts[reads.read_of] + reads.delta
        return Landing(addresses, reading, total, held.clear)

    def _fill(self, segments: _Segments, slot: torch.Tensor, reading: Reading) -> object:
        """Read the segments of a block, and have it copied."""
        low, high = int(segments.begin[0]), int(segments.begin[-1] + segments.nbytes[-1])
        direct = self._is_cold(segments) if self.direct is None else self.direct
        block = self._ring.take()
        try:
            if self.files.mapped and not direct and high - low < len(segments.begin) * _SMALL_BYTES:
                self._gather(segments.extents, block)
            else:
                self._read_all(segments, block, direct)
            self._copier.copy(block, slot[low:high], reading)
        except BaseException:
            self._ring.give(block)
            raise
        return HANDED_OVER

    def _read_all(self, segments: _Segments, block: Block, direct: bool) -> None:
        columns = segments.file, segments.offset, segments.begin - segments.begin[0], segments.nbytes
        for file, offset, begin, nbytes in zip(*(column.tolist() for column in columns), strict=True):
            self._read(file, offset, block.memory[begin : begin + nbytes], direct)

    def _gather(self, wanted: Extents, block: Block) -> None:
        """Copy small reads out of the mapped shards: that many calls of preadv would take longer by far."""
        self.files.check(wanted.file)  # touching a mapping that was cut short would end the process
        pages = wanted.nbytes // _PAGE
        first = self.files.base[wanted.file] + wanted.offset
        within = np.arange(int(pages.sum())) - np.repeat(np.cumsum(pages) - pages, pages)
        if not hasattr(self._limited, "limit"):
            self._limited.limit = one_thread()
        gather_rows(np.repeat(first, pages) + within * _PAGE, _PAGE, block.tensor.data_ptr())
        with self._lock:
            self._moved["bounce-buffered"] += wanted.total_bytes

    def _is_cold(self, segments: _Segments) -> bool:
        """Whether a block should be read with O_DIRECT: some of its bytes are not in the page cache.

        A shard that was found there is believed for a moment. Wrongly believed, it is read all the same.
        """
        first, now = int(segments.file[0]), time.monotonic()
        if now < self._believed.get(first, 0.0):
            return False
        if not looks_resident(self.files, segments.extents):
            return True
        self._believed[first] = now + _BELIEVED_S
        return False

    def _read(self, file: int, offset: int, into: memoryview, direct: bool) -> None:
        """Fill `into`, as far as the file goes."""
        wanted, done = min(len(into), self.files.length(file) - offset), 0
        if direct and self.files.allows_direct(file):
            with self.files.descriptor(file, direct=True) as fd:
                done = _read_direct(fd, into, offset, wanted, self.files.sources[file].path)
        if done < wanted:
            with self.files.descriptor(file) as fd:
                pread_exact(fd, into[done:wanted], offset + done, self.files.sources[file].path)
        with self._lock:
            self._moved["bounce-direct"] += done
            self._moved["bounce-buffered"] += wanted - done

    def check(self, files: NDArray[np.int64]) -> None:
        """See `Backend.check`."""
        self.files.check(files)

    def bytes_by_path(self) -> dict[str, int]:
        """See `Backend.bytes_by_path`."""
        with self._lock:
            return dict(self._moved)

    def close(self) -> None:
        """See `Backend.close`."""
        if self._closed:
            return
        self._closed = True
        self._readers.close()
        self._copier.close()
        self._ring.close()
        self.files.close()


def _read_direct(fd: int, into: memoryview, offset: int, wanted: int, file: str) -> int:
    """Read with O_DIRECT up to the end of a file; returns how many of the wanted bytes there are.

    A read may end early, where the page cache holds a part, or where the device wants another alignment than ours. It
    could go on only from a page's begin, so the rest is left to whoever reads it buffered.
    """
    try:
        return min(os.preadv(fd, [into], offset), wanted)
    except OSError as error:
        if error.errno == errno.EINVAL:
            return 0
        raise ReadError(f"reading failed: {error.strerror}", file=file, offset=offset) from error


def _cut(reads: Extents, starts: NDArray[np.int64], total: int, block: int) -> list[_Segments]:
    """Cut reads that lie one behind the other at the multiples of a block; the segments of each block that has any."""
    filled = np.flatnonzero(reads.nbytes)
    starts = starts[filled]
    begin = np.union1d(starts, np.arange(0, total, block))
    end = np.append(begin[1:], total) if len(begin) else begin
    read = np.searchsorted(starts, begin, side="right") - 1
    offset = reads.offset[filled][read] + begin - starts[read]
    segments = _Segments(reads.file[filled][read], offset, begin, end - begin)
    edges = np.searchsorted(begin, np.arange(0, total + block, block)).tolist()
    return [segments.part(low, high) for low, high in pairwise(edges) if low < high]
