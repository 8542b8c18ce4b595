"""The `gds` backend: NVMe to GPU memory by cuFile.

Reads go into slots of plain device memory, each registered by itself where reads are made by DMA. A slot is read into
again only after the engine has released it, which it does when the gather has ended: storage DMA is not ordered with
any stream. The path that bytes took is taken from cuFile's own counters, never from its settings.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial

import numpy as np
import torch

from gdsload.backends.base import Destination, FileBackend, PendingRead
from gdsload.backends.gds.engines import ENGINES, Engine, path_counts
from gdsload.backends.gds.slots import SlotLease, Slots
from gdsload.backends.host import host_side
from gdsload.backends.readers import close_all, one_each, run_on, threads_of_each
from gdsload.errors import GdsloadError, ReadError, ShortReadError
from gdsload.shards.files import Files
from gdsload.shards.handles import HandleTable, lent_once
from gdsload.shards.reads import MAX_GAP_BYTES, PAGE_BYTES, Extents, coalesce
from gdsload.system.arrays import IntArray
from gdsload.system.cufile_batches import ReadsUnderWayError
from gdsload.system.numa import processors_near
from gdsload.system.pool import Future

_MAX_READ_BYTES = 8 * 2**20
_WORK_BYTES = _MAX_READ_BYTES // 4
_THREADS = 12


class GdsBackend(FileBackend):
    """Reads files, mapped or not, into device memory by cuFile.

    Args:
        engine: ``"cufile"``, ``"kvikio"``, or what makes an engine for a device.
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
        engine: str | Callable[[torch.device], Engine] = "cufile",
        register: bool = True,
        batches: bool = False,
        threads: int | None = None,
    ) -> None:
        super().__init__(files)
        self.device = device
        made = partial(ENGINES[engine], batches=batches) if isinstance(engine, str) else engine
        self.engine: Engine = made(device)
        self._slots = Slots(device, self.engine if register else None)
        drives = files.drives.count
        each, near = threads_of_each(drives, _THREADS, threads), processors_near(device)
        self._threads = drives * each
        self._readers = one_each(drives, each, "gdsload-gds", near)
        self._handles = HandleTable(len(files.sources), self._open, self._end)
        self._host = host_side(files, threads)
        self._before = path_counts()

    def read(self, wanted: Extents, to: Destination = "device") -> PendingRead:
        if to == "host" and self._host is not None:
            return self._host.read(wanted)
        self.files.ensure_open(wanted.file)
        drives = self.files.drives
        reads = coalesce(
            wanted,
            max_gap_bytes=MAX_GAP_BYTES, max_read_bytes=_MAX_READ_BYTES, alignment=PAGE_BYTES, turns=drives.turns,
        )  # fmt: skip
        lease = self._slots.lease(reads.extents.nbytes)
        total = int(reads.extents.nbytes.sum())
        works: list[tuple[int, slice | IntArray]]
        if total <= len(reads.extents) * self.engine.most_bytes:
            # One batch is under way at a time, so each is to have reads of all drives.
            works = [(0, drives.interleaved(reads.extents.file) if drives.count > 1 else slice(None))]
        else:
            # No more of them than there are threads, as each costs a wake-up; but none need be long.
            parts = drives.shares(reads.extents, max(_WORK_BYTES, total // self._threads))
            works = [(drive, slice(part.start, part.stop)) for drive, part in parts]
        reading = self._start(reads.extents, lease, works)
        addresses = reads.places(lease.base + lease.position)
        return PendingRead(addresses, reading, lease.nbytes, lease.release, lease.begins)

    def _start(self, reads: Extents, lease: SlotLease, parts: Sequence[tuple[int, slice | IntArray]]) -> Future:
        """Have reads made, in parts of one drive each. Their handles are given back after the last one.

        All is computed here, so that threads that make some of them have next to nothing to compute.
        """
        asked = np.minimum(reads.nbytes, self.files.sizes[reads.file] - reads.offset)  # they end with the file
        lent, counts = lent_once(reads.file)
        columns = np.repeat(self._handles.lend(lent), counts), lease.base, lease.position, asked, reads.offset
        reading = Future(len(parts), partial(self._handles.give, lent))
        try:
            works = [(drive, partial(self._read_all, reads.file, columns, part, lease)) for drive, part in parts]
            return run_on(self._readers, works, reading)
        except BaseException:
            self._handles.give(lent)
            raise

    def _read_all(self, file: IntArray, of_all: tuple[IntArray, ...], part: slice | IntArray, lease: SlotLease) -> None:
        """Make some reads. With small ones there should be no Python for each of them.

        `of_all` is what `Engine.read_many` takes, of all reads; `part` selects those to make. `lease` holds their
        memory until all have ended.
        """
        columns = [column[part] for column in of_all]
        wanted = columns[3]
        with torch.cuda.device(self.device):
            try:
                done = self.engine.read_many(*columns)
            except ReadsUnderWayError as error:
                self._slots.abandon(lease)
                raise ReadError(
                    str(error), remedy='Run gdsload doctor on this dataset, or use `backend="bounce"`.'
                ) from error
            if (done < wanted).any():
                for index in np.flatnonzero(done < wanted).tolist():
                    read = tuple(int(column[index]) for column in columns)
                    self._read_rest(int(file[part][index]), read, max(int(done[index]), 0))
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
                        remedy='Run gdsload doctor on this path, or use `backend="bounce"`.',
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
        """Register a file with the engine, which keeps its own descriptor."""
        with self.files.descriptor(file, direct=True) as fd:
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
        found = {} if self._host is None else self._host.bytes_by_path()
        if moved:
            found[paths[0] if len(paths) == 1 else "gds-mixed" if paths else "gds-unknown"] = moved
        return {path: count for path, count in found.items() if count}

    def close(self) -> None:
        close_all(self._readers)
        self._handles.close()
        self.engine.end()
        try:
            self._slots.close()
        finally:
            if self._host is not None:
                self._host.close()
            self.files.close()
