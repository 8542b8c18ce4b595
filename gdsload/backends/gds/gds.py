"""The `gds` backend: NVMe to GPU memory by cuFile.

Reads go into slots of plain device memory, each registered by itself where reads are made by DMA. A slot is read into
again only after the engine has released it, which it does when the gather has ended: storage DMA is not ordered with
any stream. The path that bytes took is taken from cuFile's own counters, never from its settings.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial

import numpy as np
import torch

from gdsload.backends.base import FileBackend, PendingRead
from gdsload.backends.gds.engines import ENGINES, Engine, path_counts
from gdsload.backends.gds.slots import SlotLease, Slots
from gdsload.backends.readers import DriveReaders, one_each, threads_of_each
from gdsload.errors import GdsloadError, ReadError, ShortReadError
from gdsload.shards.files import Files
from gdsload.shards.handles import HandleTable
from gdsload.shards.reads import MAX_GAP_BYTES, PAGE_BYTES, Extents, coalesce
from gdsload.system.arrays import IntArray
from gdsload.system.numa import processors_near

__all__ = ["GdsBackend"]

_MAX_READ_BYTES = 8 * 2**20
_WORK_BYTES = _MAX_READ_BYTES // 4
_THREADS = 12


class GdsBackend(FileBackend):
    """Reads files into device memory by cuFile.

    Args:
        files: the shards; mapped or not.
        device: the GPU.
        engine: ``"cufile"``, or ``"kvikio"``; a drive that has an engine of its own is read by that.
        register: whether reads are made by DMA, so that slots are worth registering.
        batches: whether cuFile is known to make many reads by one call.
        threads: how many reads are made at once, from all drives, where a call makes one; None for as many as suits.

    Raises:
        BackendUnavailableError: if cuFile cannot be opened.
    """

    name = "gds"

    def __init__(
        self,
        files: Files,
        device: torch.device,
        *,
        engine: str = "cufile",
        register: bool = True,
        batches: bool = False,
        threads: int | None = None,
    ) -> None:
        super().__init__(files)
        self.device = device
        self.engine: Engine = (files.drive.engine or partial(ENGINES[engine], batches=batches))(device)
        self._slots = Slots(device, self.engine if register else None)
        drives = files.drives.count
        each, near = threads_of_each(drives, _THREADS, threads), processors_near(device)
        self._readers = DriveReaders(one_each(drives, each, "gdsload-gds", near))
        self._handles = HandleTable(len(files.sources), self._open, self._end)
        self._before = path_counts()

    def read(self, wanted: Extents) -> PendingRead:
        """See `Backend.read`."""
        self.files.ensure_open(wanted.file)
        drives = self.files.drives
        reads = coalesce(
            wanted,
            max_gap_bytes=MAX_GAP_BYTES, max_read_bytes=_MAX_READ_BYTES, alignment=PAGE_BYTES, turns=drives.turns,
        )  # fmt: skip
        lease = self._slots.lease(reads.extents.nbytes)
        total = int(reads.extents.nbytes.sum())
        many = total <= len(reads.extents) * self.engine.most_bytes
        if many:  # one batch is under way at a time, so each is to have reads of all drives
            chosen = drives.interleaved(reads.extents.file) if drives.count > 1 else slice(None)
            works = [(0, partial(self._read_all, reads.extents, chosen, lease))]
        else:
            parts = drives.shares(reads.extents, _WORK_BYTES)
            works = [
                (drive, partial(self._read_all, reads.extents, slice(part.start, part.stop), lease))
                for drive, part in parts
            ]
        reading = self._readers.run(works)
        addresses = (lease.base + lease.position)[reads.read_of] + reads.delta
        return PendingRead(addresses, reading, lease.nbytes, lease.release, lease.begins)

    def _read_all(self, reads: Extents, part: slice | IntArray, lease: SlotLease) -> None:
        """Make some reads. With small ones there should be no Python for each of them."""
        file, offset, base, position = reads.file[part], reads.offset[part], lease.base[part], lease.position[part]
        wanted = np.minimum(reads.nbytes[part], self.files.sizes[file] - offset)
        first = np.flatnonzero(np.diff(file, prepend=-1))
        lent = file[first]
        with torch.cuda.device(self.device):
            handles = np.repeat(self._handles.lend(lent), np.diff(np.append(first, len(file))))
            try:
                done = self.engine.read_many(handles, base, position, wanted, offset)
                for index in np.flatnonzero(done < wanted).tolist():
                    read = tuple(int(column[index]) for column in (handles, base, position, wanted, offset))
                    self._read_rest(int(file[index]), read, max(int(done[index]), 0))
            finally:
                self._handles.give(lent)
        self.note_moved(int(wanted.sum()))

    def _read_rest(self, file: int, read: tuple[int, ...], done: int) -> None:
        """Read what is left of a read that ended early, or raise why it cannot be read."""
        path, (handle, base, position, wanted, offset) = self.files.sources[file].path, read
        while done < wanted:
            try:
                count = self.engine.read(handle, base, position + done, wanted - done, offset + done)
            except Exception as error:
                if "EOF" not in str(error):  # kvikio raises this where cuFile returns 0
                    raise ReadError(
                        f"cuFile cannot read: {error}", file=path, offset=offset + done,
                        remedy='Run gdsload doctor on this path, or use backend="bounce".',
                    ) from error  # fmt: skip
                count = 0
            if count < 0:
                raise ReadError(f"cuFile cannot read: it returned {count}", file=path, offset=offset + done)
            if count == 0:
                raise ShortReadError(
                    f"the file ended {wanted - done} bytes too early", file=path, offset=offset + done,
                    remedy="It was cut short after it was opened: restore it, or write the dataset again.",
                )  # fmt: skip
            done += count

    def _open(self, file: int) -> int:
        """Register a file with the engine, which keeps a descriptor of its own."""
        with self.files.descriptor(file, direct=self.files.allows_direct(file)) as fd:
            try:
                return self.engine.open(self.files.sources[file].path, fd)
            except GdsloadError:
                raise
            except Exception as error:
                raise ReadError(
                    f"cuFile cannot register the file: {error}", file=self.files.sources[file].path,
                    remedy="Run gdsload doctor on this path: it says why.",
                ) from error  # fmt: skip

    def _end(self, handle: int) -> None:
        with suppress(Exception):  # the handle is not used any more
            self.engine.close(handle)

    def bytes_by_path(self) -> dict[str, int]:
        """See `Backend.bytes_by_path`.

        cuFile counts reads by path, not bytes, and for the whole process: where several paths were used since this
        backend was made, bytes cannot be divided among them, and are reported as ``gds-mixed``.
        """
        moved = self.moved_bytes  # before the counters
        paths = [path for path, count in path_counts().items() if count > self._before.get(path, 0)]
        if not moved:
            return {}
        return {paths[0] if len(paths) == 1 else "gds-mixed" if paths else "gds-unknown": moved}

    def close(self) -> None:
        """See `Backend.close`."""
        self._readers.close()
        self._handles.close()
        self.engine.end()
        self._slots.close()
        self.files.close()
