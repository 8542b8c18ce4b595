"""Rows in the page cache to a GPU: gathered out of the mapped shards into pinned blocks, which are copied.

Reading them with a call for each row, or even for each block, takes a dozen threads, and passing the interpreter lock
among those takes longer than filling a block. So a few threads do it, and torch divides each gather among several
processors, without the lock. Only the rows are copied, and no bytes between them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from itertools import pairwise

import numpy as np
import torch

from gdsload.backends.base import PendingRead
from gdsload.backends.bounce.copier import BlockPath
from gdsload.shards.files import Files
from gdsload.shards.gather_host import limit_threads, take_rows
from gdsload.shards.identity import LOOK_BEFORE_S
from gdsload.shards.page_cache import looks_resident
from gdsload.shards.reads import Extents, distinct
from gdsload.system.arrays import IntArray
from gdsload.system.numa import stay_on
from gdsload.system.pool import Pool

_THREADS = 2
"""One gathers while the other queues its copy and takes the next block."""
_GATHERED_BELOW_BYTES = 64 * 1024
"""Mean length of reads below which they are gathered: longer ones are copied as fast by calls of the system."""
_MOST_LENGTHS = 16
"""Runs of rows of one length that a read may have: a field of one shape is one run, a ragged field many."""
_ALIGNMENT = 512
"""Alignment of runs in a slot, in bytes, so that a GPU can read them in its widest words."""


class ResidentRows:
    """Gathers rows of mapped shards that are in the page cache, and has them copied."""

    def __init__(self, files: Files, path: BlockPath, processors: int, where: set[int] | None) -> None:
        self._files, self._path = files, path
        threads = min(_THREADS, processors)
        self._each = processors // threads
        self._readers = Pool(threads, "gdsload-bounce-gather", partial(stay_on, where))
        self._limited = threading.local()

    def takes(self, wanted: Extents) -> bool:
        """Return whether these extents, of open shards, should be read by `read`.

        A few of their pages are looked at; if they are not all in the page cache after all, they are still read.
        """
        if not len(wanted) or wanted.nbytes.max() > self._path.ring.block_bytes:
            return False
        if wanted.total_bytes >= len(wanted) * _GATHERED_BELOW_BYTES:
            return False
        if not looks_resident(self._files, wanted):  # a look takes less than what follows
            return False
        if np.count_nonzero(wanted.nbytes[1:] != wanted.nbytes[:-1]) >= _MOST_LENGTHS:
            return False
        adjacent = wanted.offset[1:] == wanted.offset[:-1] + wanted.nbytes[:-1]
        runs = len(wanted) - int(np.count_nonzero(adjacent & (wanted.file[1:] == wanted.file[:-1])))
        return wanted.total_bytes < runs * _GATHERED_BELOW_BYTES

    def read(self, wanted: Extents, allocate: Callable[[int], torch.Tensor]) -> PendingRead:
        """Start reading extents for which `takes` returned True, into a slot that `allocate` makes of some bytes."""
        places, total = np.empty(len(wanted), np.int64), 0
        blocks: list[tuple[Extents, int]] = []  # rows of one length, and where in the slot they go
        edges = [0, *(np.flatnonzero(np.diff(wanted.nbytes)) + 1).tolist(), len(wanted)]
        for low, high in pairwise(edges):
            nbytes = int(wanted.nbytes[low])
            places[low:high] = total + np.arange(high - low) * nbytes
            step, stop = self._path.ring.block_bytes // max(nbytes, 1), high if nbytes else low
            blocks += [(wanted[at : min(at + step, high)], int(places[at])) for at in range(low, stop, step)]
            total += -(-(high - low) * nbytes // _ALIGNMENT) * _ALIGNMENT
        slot = allocate(total)
        touched = distinct(wanted.file, len(self._files.sources))
        works = [partial(self._fill, rows, slot, low, touched) for rows, low in blocks]
        reading = self._readers.run(works, self._path.copier.reading(len(works)))
        held, begin = [slot], slot.data_ptr()
        return PendingRead(begin + places, reading, total, held.clear, np.array([begin]))

    def _fill(self, rows: Extents, slot: torch.Tensor, low: int, touched: IntArray) -> None:
        """Gather rows, all of one length, and have them copied."""
        files, nbytes = self._files, int(rows.nbytes[0])
        if not hasattr(self._limited, "to"):
            limit_threads(self._each)
            self._limited.to = self._each

        def take(address: int) -> tuple[int, int]:
            # Accessing a mapping of a file that was cut short would end the process.
            files.check(touched, believed_s=LOOK_BEFORE_S)
            files.ensure(rows)
            take_rows(files.base[rows.file] + rows.offset, nbytes, address)
            return 0, len(rows) * nbytes

        self._path.send(slot, low, len(rows) * nbytes, take)

    def close(self) -> None:
        """End all gathers."""
        self._readers.close()
