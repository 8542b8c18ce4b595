"""Mapped shards: each piece is populated before the first touch of it, so that a page that cannot be read is an error.

A mapping has no way to report a failing disk: a thread that touches a page that cannot be read gets SIGBUS, which ends
the process. So pages are populated first, by a call that returns an error, once for each piece of a shard. After the
last piece, no call is made. A page that leaves memory afterwards is not populated again.
"""

from __future__ import annotations

import errno
import mmap
import os
import threading
from collections.abc import Callable, Iterable

import numpy as np

from gdsload.errors import ReadError
from gdsload.shards.reads import Extents, within
from gdsload.system.arrays import IntArray
from gdsload.system.memory import populate

_SHIFT = 17
_PIECE = 1 << _SHIFT
"""Bytes of a piece: as many as the kernel usually reads around a page that is touched. Larger ones would read bytes
that are not wanted, smaller ones take more calls."""
_MOST_PIECES = 8
"""Pieces that are populated by one call."""


class Guard:
    """Populates pieces of mapped shards, once each. Its methods may be called from any thread.

    Args:
        names: path of each shard.
        base: address of each shard's first byte, filled in as they are opened.
        read: reads bytes of a shard (its number, an offset, how many), or says why they cannot be read.
    """

    def __init__(self, names: list[str], base: IntArray, read: Callable[[int, int, int], None]) -> None:
        self._names, self._base, self._read = names, base, read
        self._begin = np.zeros(len(names), np.int64)
        """The place of each open shard if all are in one line; each begins with a whole piece."""
        self._size = np.zeros(len(names), np.int64)
        self._end = 0
        self._sure = np.zeros(0, bool)
        """For each piece of the line: True if it may be touched."""
        self._lock, self._populating = threading.Lock(), threading.Lock()
        self.left = len(names)
        """Pieces that must not be touched yet, and one for each shard that is not open: at 0, nothing is asked."""

    def opened(self, file: int, nbytes: int) -> None:
        """Note a file that was mapped.

        Args:
            file: the file.
            nbytes: its length.
        """
        count = (nbytes >> _SHIFT) + 1
        beyond = nbytes % _PIECE == 0  # the last piece has no byte: it is that of an empty extent at the file's end
        with self._lock:
            if self._size[file]:
                return
            begin, self._end = self._end, self._end + (count << _SHIFT)
            self.left += count - beyond - 1
            at = begin >> _SHIFT
            if (short := at + count - len(self._sure)) > 0:
                self._sure = np.append(self._sure, np.zeros(max(at, short), bool))
            self._sure[at + count - 1] = beyond
            self._begin[file] = begin
            self._size[file] = nbytes

    def only(self, file: int, touched: Iterable[tuple[int, int]]) -> None:
        """See `Files.only`. May be called twice."""
        idle = np.ones((int(self._size[file]) >> _SHIFT) + 1, bool)
        for low, high in touched:
            idle[low >> _SHIFT : -(-high >> _SHIFT)] = False
        self._note(np.flatnonzero(idle) + (int(self._begin[file]) >> _SHIFT))

    def missing(self, wanted: Extents) -> Extents | None:
        """See `Files.missing`: pieces, neighbours together."""
        if not self.left or not len(wanted):
            return None
        begin, sure = self._begin[wanted.file] + wanted.offset, self._sure
        first, last = begin >> _SHIFT, (begin + wanted.nbytes - 1) >> _SHIFT
        if wanted.nbytes.max() <= _PIECE and sure[first].all() and sure[last].all():
            return None
        counts = last - first + 1
        unsure = np.zeros(len(sure), bool)  # to sort what is wanted would take longer, however many pieces there are
        unsure[np.repeat(first, counts) + within(counts)] = True
        pieces = np.flatnonzero(unsure & ~sure)
        return self._joined(pieces) if len(pieces) else None

    def _joined(self, pieces: IntArray) -> Extents:
        """Pieces in rising order as extents, neighbours together."""
        line = np.flatnonzero(self._size.copy())  # others open shards, and it must not change while it is looked at
        line = line[np.argsort(self._begin[line])]
        file = line[np.searchsorted(self._begin[line], pieces << _SHIFT, side="right") - 1]
        alone = np.ones(len(pieces), bool)
        alone[1:] = (np.diff(pieces) > 1) | (np.diff(file) != 0) | (pieces[1:] % _MOST_PIECES == 0)
        first = np.flatnonzero(alone)
        last = np.append(first[1:], len(pieces)) - 1
        file, begin = file[first], self._begin[file[first]]
        offset, end = (pieces[first] << _SHIFT) - begin, (pieces[last] + 1 << _SHIFT) - begin
        return Extents(file, offset, np.minimum(end, self._size[file]) - offset)

    def ensure(self, wanted: Extents) -> None:
        if self.missing(wanted) is None:
            return
        with self._populating:  # threads that want the same pieces find them populated
            if (pieces := self.missing(wanted)) is None:
                return
            counts = -(-pieces.nbytes >> _SHIFT)
            addresses = (self._base[pieces.file] + pieces.offset).tolist()
            for index, (address, nbytes) in enumerate(zip(addresses, pieces.nbytes.tolist(), strict=True)):
                if populate(address, nbytes):
                    self.populate(int(pieces.file[index]), int(pieces.offset[index]), nbytes, wanted)
                    counts[index] = 0  # they are noted, if they may be touched
        first = (self._begin[pieces.file] + pieces.offset) >> _SHIFT
        self._note(np.repeat(first, counts) + within(counts))

    def populate(self, file: int, offset: int, nbytes: int, wanted: Extents) -> None:
        code = populate(int(self._base[file]) + offset, nbytes)
        if code and (code == errno.EFAULT or not self._is_readable(file, offset, nbytes)):
            self._bring_exactly(file, offset, offset + nbytes, wanted)
            return
        begin = int(self._begin[file]) + offset
        ends = offset + nbytes == self._size[file]  # there is nothing more in the last piece
        self._note(np.arange(-(-begin >> _SHIFT), (begin + nbytes >> _SHIFT) + ends))

    def _note(self, pieces: IntArray) -> None:
        with self._lock:
            newly = len(pieces) - int(np.count_nonzero(self._sure[pieces]))
            self._sure[pieces] = True
            self.left -= newly

    def _is_readable(self, file: int, offset: int, nbytes: int) -> bool:
        """Read bytes where the call failed, and not the pages: Linux before 5.14, or no memory for it."""
        try:
            self._read(file, offset, nbytes)
        except ReadError:
            return False
        return True

    def _bring_exactly(self, file: int, low: int, high: int, wanted: Extents) -> None:
        """Read in those of a shard's bytes `low` to `high` - 1 alone that are wanted."""
        begin, end = np.maximum(wanted.offset, low), np.minimum(wanted.offset + wanted.nbytes, high)
        inside = (wanted.file == file) & (begin < end)
        for first, last in zip(begin[inside].tolist(), end[inside].tolist(), strict=True):
            for at in range(first & -mmap.PAGESIZE, last, _PIECE):
                count = min(last - at, _PIECE)
                self._read(file, at, count)  # it raises the error, with the place
                if populate(int(self._base[file]) + at, count) == errno.EFAULT:
                    raise ReadError(
                        "its bytes can be read, but its pages cannot be mapped, as if there were no room for them: "
                        f"{os.strerror(errno.EFAULT)}",
                        file=self._names[file],
                        offset=at,
                        remedy="A file with holes needs room in its file system to be mapped. Pass `mmap=False`, say.",
                    )
