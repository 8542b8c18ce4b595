"""The drive of each file, and reads in an order in which those of one drive follow one another."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np

from gdsload.shards.identity import ShardSource
from gdsload.shards.reads import Extents, shares
from gdsload.system.arrays import IntArray


def file_system_of(source: ShardSource) -> Hashable:
    """The file system that a shard is on, as far as it is known before it is opened."""
    return source.identity.device if source.identity else None


class DriveOrder:
    """The drives of some files.

    Args:
        keys: for each file a value that is the same for all files of a drive.

    Attributes:
        count: how many drives there are; 1 if there is no file.
        of: int64, the number of each file's drive, from 0.
        turns: int64, each file's place in an order in which those of one drive follow one another; None on one drive.
    """

    def __init__(self, keys: Sequence[Hashable]) -> None:
        known = {drive: number for number, drive in enumerate(dict.fromkeys(keys))}
        self.count = max(len(known), 1)
        self.of = np.array([known[drive] for drive in keys], np.int64)
        self.turns: IntArray | None = None
        if self.count > 1:
            self.turns = np.empty(len(self.of), np.int64)
            self.turns[np.argsort(self.of, kind="stable")] = np.arange(len(self.of))

    def firsts(self) -> list[int]:
        """The first file on each drive."""
        found: list[int] = np.unique(self.of, return_index=True)[1].tolist()
        return found

    def alone(self, files: IntArray) -> bool:
        """Return whether all of these files are on one drive."""
        return self.count == 1 or bool((self.of[files] == self.of[files[:1]]).all())

    def shares(self, reads: Extents, about: int) -> list[tuple[int, range]]:
        """Runs of reads of about so many bytes each, and of one drive each, whose number comes first."""
        if self.count == 1:
            return [(0, part) for part in shares(reads.nbytes, about)]
        drives = self.of[reads.file]
        return [(int(drives[part.start]), part) for part in shares(reads.nbytes, about, drives)]

    def interleaved(self, files: IntArray) -> IntArray:
        """An order of reads of these files in which the drives take turns, for as long as each has any left."""
        drives = self.of[files]
        by_drive = np.argsort(drives, kind="stable")
        counts = np.bincount(drives, minlength=self.count)
        turn = np.empty(len(files), np.int64)
        turn[by_drive] = np.arange(len(files)) - np.repeat(np.cumsum(counts) - counts, counts)
        return np.lexsort((drives, turn))
