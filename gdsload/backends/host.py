"""The `host` backend: file to CPU memory. The plain reference that every other backend must equal, byte for byte.

Mapped (the default), bytes are gathered directly from the page cache; pages that are not resident yet are read before
the gather by threads. Unmapped, bytes are read into an arena: nothing then depends on the file keeping its length.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from gdsload.backends.base import Destination, FileBackend, PendingRead
from gdsload.backends.readers import close_all, one_each, run_on, threads_of_each
from gdsload.shards.files import Files, ReadBatch
from gdsload.shards.page_cache import looks_resident
from gdsload.shards.reads import MAX_GAP_BYTES, Extents, Reads, coalesce, cut
from gdsload.system.arrays import IntArray
from gdsload.system.memory import BatchPool, Lease, address_of
from gdsload.system.pool import Future, done

_MOST_TRUST = 31
_MAX_READ_BYTES, _MAX_READ_BYTES_BESIDE_DEVICE = 2**20, 2**23
"""The longest read: of a loader for the CPU, which waits for each batch, and of bytes for the host of a GPU's loader,
where groups of batches are read ahead, and each read takes the interpreter lock from the threads that make them."""
_KEPT_GAP_BYTES = 2**17
"""The largest gap that is read along into the page cache, which keeps it for a later batch: of a window of short rows,
each batch wants some here and some there."""
_THREADS, _THREADS_BESIDE_DEVICE = 16, 6
_LINE = 64


class _MakingSure:
    """The completion of extents that look resident: the thread that waits for it populates their pages.

    So a dataset from which an item is read starts no threads.
    """

    landed = True

    def __init__(self, files: Files, wanted: Extents) -> None:
        self._files, self._wanted = files, wanted

    def wait(self) -> None:
        self._files.ensure(self._wanted)


def host_side(files: Files, threads: int | None) -> HostBackend | None:
    """Reads bytes for the host, beside a backend that reads them for a device; None where it could not map them."""
    if not files.mapped:
        return None
    return HostBackend(files, threads=threads, usual=_THREADS_BESIDE_DEVICE, read_bytes=_MAX_READ_BYTES_BESIDE_DEVICE)


class HostBackend(FileBackend):
    """Reads files, mapped or not, into CPU memory.

    Args:
        threads: how many reads are made at once, from all drives; None for as many as suits.
        usual: how many suit one drive.
        read_bytes: the longest read.
    """

    name = "host"

    def __init__(
        self, files: Files, *, threads: int | None = None, usual: int = _THREADS, read_bytes: int = _MAX_READ_BYTES
    ) -> None:
        super().__init__(files)
        self._read_bytes = read_bytes
        self.in_place = files.mapped
        drives = files.drives.count
        self._readers = one_each(drives, threads_of_each(drives, usual, threads), "gdsload-host")
        self._arena = BatchPool(keep_bytes=2**28)
        self._trust = self._trusted = 0

    def read(self, wanted: Extents, _to: Destination = "device") -> PendingRead:
        self.files.ensure_open(wanted.file)
        if not self.in_place:
            return self._read(wanted)
        addresses = self.files.base[wanted.file] + wanted.offset
        missing = self.files.missing(wanted)
        # While whole shards are read into the page cache, a few places say little of the others.
        filling = missing is not None and bool(self.files.kept[wanted.file].any())
        if not self._resident(wanted, trust=not filling):
            # What is wanted alone is read from the drive, and not whole pieces.
            missing = cut(self._coalesced(wanted, _KEPT_GAP_BYTES).extents, self._read_bytes).extents
        elif missing is None or not filling:
            ready = done if missing is None else _MakingSure(self.files, wanted)
            return PendingRead(addresses, ready, count=self.counts(wanted))
        parts = self.files.drives.shares(missing, self._read_bytes)
        works = [(drive, partial(self._populate, missing, part, wanted)) for drive, part in parts]
        return PendingRead(addresses, run_on(self._readers, works), count=self.counts(wanted))

    def _resident(self, wanted: Extents, *, trust: bool) -> bool:
        """Return whether a few places of the extents are in the page cache.

        Found out by reads that must not wait: mincore and cachestat give no answer to readers who do not own the file.
        With `trust`, a dataset that was found resident again and again is checked less and less often.
        """
        if trust and self._trusted > 0:  # without a lock: threads at once may look once more, or once less
            self._trusted -= 1
            return True
        resident = looks_resident(self.files, wanted)
        self._trust = min(2 * self._trust + 1, _MOST_TRUST) if resident else 0
        self._trusted = self._trust
        return resident

    def _coalesced(self, wanted: Extents, gap_bytes: int = MAX_GAP_BYTES) -> Reads:
        turns = self.files.drives.turns
        return coalesce(wanted, max_gap_bytes=gap_bytes, max_read_bytes=self._read_bytes, turns=turns)

    def _read(self, wanted: Extents) -> PendingRead:
        reads = self._coalesced(wanted)
        room = -(-reads.extents.nbytes // _LINE) * _LINE
        lease = self._arena.lease(int(room.sum()))
        starts = address_of(lease) + np.cumsum(room) - room
        pieces = cut(reads.extents, self._read_bytes)
        into = starts[pieces.read_of] + pieces.delta
        prepared = self.files.reads(pieces.extents)
        parts = self.files.drives.shares(pieces.extents, self._read_bytes)
        reading = Future(len(parts), prepared.close)
        try:
            works = [(drive, partial(self._fill, prepared, part, into, lease)) for drive, part in parts]
            run_on(self._readers, works, reading)
        except BaseException:
            prepared.close()
            raise
        held = [lease]
        return PendingRead(reads.places(starts), reading, lease.nbytes, held.clear, count=self.counts(wanted))

    def _populate(self, reads: Extents, chosen: range, wanted: Extents) -> None:
        some = reads[chosen.start : chosen.stop]
        pieces = list(zip(some.file.tolist(), some.offset.tolist(), some.nbytes.tolist(), strict=True))
        for piece in pieces:
            self.files.will_need(*piece)
        for file, offset, nbytes in pieces:
            if nbytes:
                self.files.populate(file, offset, nbytes, wanted)

    def _fill(self, reads: ReadBatch, part: range, into: IntArray, _lease: Lease) -> None:
        """Make reads; the memory is held meanwhile, even if nobody wants it any more."""
        reads.read(part.start, part.stop, into[part.start : part.stop])

    def close(self) -> None:
        close_all(self._readers)
        self._arena.clear()
        self.files.close()
