"""Rows in the page cache to a GPU: gathered out of the mapped shards into pinned blocks, which are copied.

To read them by a call for each, or even for each block, takes a dozen threads, and those hand the interpreter lock
round, which takes longer than a block does. So a few threads do it, and torch shares each gather out among
processors, without the lock. Copied are the rows alone, and not what lies between them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import numpy as np
import torch

from gdsload.backends.base import PendingRead
from gdsload.backends.bounce.copier import Copying
from gdsload.backends.bounce.fill_task import BouncePath
from gdsload.backends.bounce.slot_layout import GATHERED_BELOW_BYTES
from gdsload.backends.readers import Readers
from gdsload.shards.gather_host import limit_threads, take_rows
from gdsload.shards.identity import LOOK_BEFORE_S
from gdsload.shards.page_cache import looks_resident
from gdsload.shards.reads import Extents, distinct
from gdsload.system.arrays import IntArray

__all__ = ["ResidentRows"]


_THREADS = 2
"""One gathers while the other queues its copy and looks for the next block."""
_MOST_LENGTHS = 16
"""Runs of rows of one length that a landing may have: fields of one shape make one each, ragged ones many."""
_ALIGNMENT = 512
"""Where runs begin in a slot, at the least: what a GPU reads in the widest words."""


@dataclass(frozen=True, slots=True)
class _Run:
    """Rows of one length, one behind the other in a slot.

    Attributes:
        low: the first of them, among a landing's extents.
        high: the one behind the last.
        nbytes: bytes of each.
        begin: byte position in the slot.
    """

    low: int
    high: int
    nbytes: int
    begin: int


class ResidentRows:
    """Brings rows of mapped shards that are in the page cache.

    Args:
        means: what it takes to fill blocks; the shards are mapped.
        processors: how many gather at once.
        where: the processors to run on; None for any.
    """

    def __init__(self, means: BouncePath, processors: int, where: set[int] | None) -> None:
        self._means = means
        threads = min(_THREADS, processors)
        self._each = processors // threads
        self._readers = Readers(threads, "gdsload-bounce-gather", where)
        self._limited = threading.local()

    def takes(self, wanted: Extents, *, surely: bool) -> bool:
        """Whether these extents should be brought from here.

        Args:
            wanted: the extents, of open shards.
            surely: that they are in the page cache, or should be read through it, is known. Otherwise a few of their
                pages are asked for; wrongly believed, they are brought all the same.
        """
        if not len(wanted) or wanted.nbytes.max() > self._means.ring.block_bytes:
            return False
        if (
            wanted.total_bytes >= len(wanted) * GATHERED_BELOW_BYTES
            or np.count_nonzero(np.diff(wanted.nbytes)) >= _MOST_LENGTHS
        ):
            return False
        behind = wanted.offset[1:] == wanted.offset[:-1] + wanted.nbytes[:-1]
        runs = len(wanted) - np.count_nonzero(behind & (wanted.file[1:] == wanted.file[:-1]))
        if wanted.total_bytes >= runs * GATHERED_BELOW_BYTES:
            return False
        return surely or looks_resident(self._means.files, wanted)

    def read(self, wanted: Extents, allocate: Callable[[int], torch.Tensor]) -> PendingRead:
        """Start bringing extents.

        Args:
            wanted: what `takes` has answered yes to.
            allocate: makes a slot of so many bytes.
        """
        runs, total = _runs(wanted.nbytes)
        slot = allocate(total)
        addresses = np.empty(len(wanted), np.int64)
        works: list[Callable[[], None]] = []
        files = distinct(wanted.file, len(self._means.files.sources))
        for run in runs:
            addresses[run.low : run.high] = slot.data_ptr() + run.begin + np.arange(run.high - run.low) * run.nbytes
            step = self._means.ring.block_bytes // max(run.nbytes, 1)
            for low in range(run.low, run.high if run.nbytes else run.low, step):
                rows = wanted[low : min(low + step, run.high)]
                begin = run.begin + (low - run.low) * run.nbytes
                works.append(partial(self._fill, rows, slot, begin, files))
        reading = self._readers.run(works, Copying(len(works), self._means.copier))
        held = [slot]
        return PendingRead(addresses, reading, total, held.clear, np.array([slot.data_ptr()]))

    def _fill(self, rows: Extents, slot: torch.Tensor, low: int, files: IntArray) -> None:
        """Gather rows, all of one length, and have them copied."""
        shards, nbytes = self._means.files, int(rows.nbytes[0])
        if not hasattr(self._limited, "limit"):
            self._limited.limit = limit_threads(self._each)
        block = self._means.ring.take()
        try:
            self._means.copier.wait(block)
            # Touching a mapping that was cut short would end the process.
            shards.check(files, believed_s=LOOK_BEFORE_S)
            shards.guard.ensure(rows)
            take_rows(shards.base[rows.file] + rows.offset, nbytes, block.address)
            self._means.copier.copy(block, slot, low, len(rows) * nbytes)
        finally:
            self._means.ring.give(block)
        self._means.count(0, len(rows) * nbytes)

    def close(self) -> None:
        """End all gathers."""
        self._readers.close()


def _runs(nbytes: IntArray) -> tuple[list[_Run], int]:
    """The runs of one length, and the bytes of a slot for them."""
    edges = [0, *(np.flatnonzero(np.diff(nbytes)) + 1).tolist(), len(nbytes)]
    runs, begin = [], 0
    for low, high in pairwise(edges):
        run = _Run(low, high, int(nbytes[low]), begin)
        runs.append(run)
        begin += -(-(high - low) * run.nbytes // _ALIGNMENT) * _ALIGNMENT
    return runs, begin
