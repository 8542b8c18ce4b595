"""The `gds` backend: NVMe to GPU memory by cuFile.

Reads go into slots of plain device memory, each registered by itself where reads are made by DMA. A slot is read into
again only after the engine has released it, which it does when the gather has ended: storage DMA is not ordered with
any stream. The path that bytes took is taken from cuFile's own counters, never from its settings.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from gdsload.backends.base import FileBackend, PendingRead
from gdsload.backends.gds.engines import ENGINES, Engine, path_counts
from gdsload.backends.gds.slots import Slots
from gdsload.backends.readers import Readers
from gdsload.errors import GdsloadError, ReadError, ShortReadError
from gdsload.shards.files import Files
from gdsload.shards.reads import MAX_GAP_BYTES, PAGE_BYTES, Extents, coalesce, shares

__all__ = ["GdsBackend"]

_MAX_READ_BYTES = 8 * 2**20
_WORK_BYTES = _MAX_READ_BYTES // 4
_THREADS = 12
_MOST_HANDLES = 32


@dataclass(slots=True)
class _Handle:
    """A file registered with cuFile, the context of its descriptor, and how many reads use it."""

    handle: Any
    descriptor: Any
    users: int = 0


class GdsBackend(FileBackend):
    """Reads files into device memory by cuFile.

    Args:
        files: the shards; mapped or not.
        device: the GPU.
        engine: ``"cufile"``, or ``"kvikio"``; a drive that has an engine of its own is read by that.
        register: whether reads are made by DMA, so that slots are worth registering.
        threads: how many reads are made at once.

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
        threads: int = _THREADS,
    ) -> None:
        super().__init__(files)
        self.device = device
        self.engine: Engine = (files.drive.engine or ENGINES[engine])(device)
        self._slots = Slots(device, self.engine if register else None)
        self._readers = Readers(threads, "gdsload-gds")
        self._handles: OrderedDict[int, _Handle] = OrderedDict()
        self._lock = threading.Lock()
        self._before = path_counts()

    def read(self, wanted: Extents) -> PendingRead:
        """See `Backend.read`."""
        self.files.ensure_open(wanted.file)
        reads = coalesce(wanted, max_gap_bytes=MAX_GAP_BYTES, max_read_bytes=_MAX_READ_BYTES, alignment=PAGE_BYTES)
        lease = self._slots.lease(reads.extents.nbytes)
        works = [
            partial(self._read_all, reads.extents, part, lease) for part in shares(reads.extents.nbytes, _WORK_BYTES)
        ]
        reading = self._readers.run(works)
        addresses = (lease.base + lease.position)[reads.read_of] + reads.delta
        return PendingRead(addresses, reading, lease.nbytes, lease.release, np.unique(lease.base))

    def _read_all(self, reads: Extents, chosen: range, lease: Any) -> None:
        part = slice(chosen.start, chosen.stop)
        file, offset = reads.file[part], reads.offset[part]
        wanted = np.minimum(reads.nbytes[part], self.files.sizes[file] - offset)
        columns = (column.tolist() for column in (offset, wanted, lease.base[part], lease.position[part]))
        rows = list(zip(*columns, strict=True))
        runs = [*np.flatnonzero(np.diff(file, prepend=-1)).tolist(), len(file)]
        with torch.cuda.device(self.device):
            for low, high in pairwise(runs):
                with self._handle(int(file[low])) as handle:
                    self._read_run(handle, self.files.sources[int(file[low])].path, rows[low:high])
        self.note_moved(int(wanted.sum()))

    def _read_run(self, handle: Any, path: str, rows: list[tuple[int, int, int, int]]) -> None:
        """Read parts of one file: (offset, bytes, slot's address, position in it) each.

        With small reads this is all that there is in Python for each of them, in many threads at once.
        """
        read = self.engine.read
        for offset, wanted, base, position in rows:
            done = 0
            while done < wanted:
                try:
                    count = read(handle, base, position + done, wanted - done, offset + done)
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

    @contextmanager
    def _handle(self, file: int) -> Iterator[Any]:
        with self._lock:
            entry = self._handles.get(file)
            if entry is None:
                entry = self._handles[file] = self._open(file)
            self._handles.move_to_end(file)
            entry.users += 1
        try:
            yield entry.handle
        finally:
            with self._lock:
                entry.users -= 1
                self._trim(_MOST_HANDLES)

    def _open(self, file: int) -> _Handle:
        descriptor = self.files.descriptor(file, direct=self.files.allows_direct(file))
        fd = descriptor.__enter__()
        try:
            handle = self.engine.open(self.files.sources[file].path, fd)
        except BaseException as error:
            descriptor.__exit__(None, None, None)
            if isinstance(error, GdsloadError) or not isinstance(error, Exception):
                raise
            raise ReadError(
                f"cuFile cannot register the file: {error}", file=self.files.sources[file].path,
                remedy="Run gdsload doctor on this path: it says why.",
            ) from error  # fmt: skip
        return _Handle(handle, descriptor)

    def _trim(self, keep: int) -> None:
        for file in [file for file, entry in self._handles.items() if not entry.users]:
            if len(self._handles) <= keep:
                break
            entry = self._handles.pop(file)
            with suppress(Exception):  # the handle is not used any more
                self.engine.close(entry.handle)
            entry.descriptor.__exit__(None, None, None)

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
        with self._lock:
            self._trim(0)
        self._slots.close()
        self.files.close()
