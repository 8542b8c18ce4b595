"""Blocks filled by threads, each of which reads a block, with O_DIRECT or buffered, and queues its copy.

Their speed depends on how little Python they run for a block. While they copy, Python's code and data leave the
processors' caches, and only one of them may run Python at a time.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray

from gdsload.backends.bounce.copier import BlockPath
from gdsload.backends.bounce.slot_layout import BlockFill, Layout
from gdsload.backends.readers import close_all, one_each, run_on, threads_of_each
from gdsload.shards.files import Files, ReadBatch
from gdsload.shards.page_cache import PROBES_OF_A_BLOCK, looks_resident
from gdsload.shards.reads import Extents
from gdsload.system.arrays import IntArray
from gdsload.system.pool import Future

SUBMITTERS = 3
"""Threads of each drive that read with O_DIRECT. A call has a whole block under way, or hundreds of reads, and takes no
processor: two blocks keep a drive busy while the third is prepared. With eight threads, passing the interpreter lock
took most of the time."""
_BELIEVED_S = 0.01
"""Seconds for which one block's answer holds for its whole shard: asking has pages read, and costs a call."""


class ThreadFill:
    """Fills blocks of a ring with parts of shards, and has them copied.

    `threads` is how many blocks are filled at once out of the page cache, by a processor each.
    """

    def __init__(self, files: Files, path: BlockPath, threads: int, where: Collection[int] | None) -> None:
        self._files, self._path = files, path
        self._believed: dict[int, tuple[float, bool]] = {}
        drives = files.drives.count
        # Reads out of the page cache take a processor each, so all drives share those; a drive takes none.
        copiers = one_each(drives, threads_of_each(drives, threads, threads), "gdsload-bounce", where)
        submitters = one_each(
            drives, threads_of_each(drives, min(threads, SUBMITTERS), None), "gdsload-bounce-direct", where
        )
        self._readers = [*copiers, *submitters]

    def run(self, layout: Layout, slot: torch.Tensor) -> Future:
        """Have a slot filled; its memory on the device is held until all has ended.

        Raises:
            FileChangedError: if the file at a path is no longer the one that was opened first.
            ReadError: if one cannot be opened.
            LoaderClosedError: after `close`.
        """
        counts = [part.stop - part.first for part in layout.parts]
        cold = np.array([self._is_cold(layout.reads, part) for part in layout.parts], bool)
        reads = self._files.reads(layout.reads, np.repeat(cold, counts))
        reading = self._path.copier.reading(len(layout.parts), reads.close)
        try:
            works = [
                (number, partial(self._fill, part, layout.within, reads, slot))
                for number, part in zip(self._whose(layout, cold), layout.parts, strict=True)
            ]
            run_on(self._readers, works, reading)
        except BaseException:
            reads.close()
            raise
        return reading

    def _is_cold(self, reads: Extents, part: BlockFill) -> bool:
        """Return whether a block is to be read with O_DIRECT: the page cache neither keeps its file nor has all of it.

        The answer is kept for a moment. If it is wrong by then, all bytes are still read, only not as fast.
        """
        first, now = int(reads.file[part.first]), time.monotonic()
        if self._files.kept[first]:
            return False
        until, cold = self._believed.get(first, (0.0, False))
        if now >= until:
            cold = not looks_resident(self._files, reads[part.first : part.stop], PROBES_OF_A_BLOCK)
            self._believed[first] = now + _BELIEVED_S, cold
        return cold

    def _whose(self, layout: Layout, cold: NDArray[np.bool_]) -> list[int]:
        """The pool of each block: those of its drive, which read with O_DIRECT if all blocks there are cold."""
        drives = self._files.drives
        each = drives.of[layout.reads.file[[part.first for part in layout.parts]]]
        submitted = np.ones(drives.count, bool)
        submitted[each[~cold]] = False
        found: list[int] = (each + drives.count * submitted[each]).tolist()  # those that submit come after the others
        return found

    def close(self) -> None:
        """Cancel blocks that were not begun, and wait for the rest; may be called twice."""
        close_all(self._readers)

    def _fill(self, part: BlockFill, within: IntArray, reads: ReadBatch, slot: torch.Tensor) -> None:
        def read(address: int) -> tuple[int, int]:
            around = reads.read(part.first, part.stop, address + within[part.first : part.stop])
            return around, reads.nbytes(part.first, part.stop) - around

        self._path.send(slot, part.low, part.nbytes, read)
