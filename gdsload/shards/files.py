"""The protocol of files: what shards read their bytes from.

Files are opened on first use and only ever read. They know nothing of what their bytes mean. `LocalFiles` are those of
this machine's file systems; a class with the same methods may fetch bytes from elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from gdsload.shards.drive_order import DriveOrder
from gdsload.shards.identity import ShardSource
from gdsload.shards.reads import Extents
from gdsload.system.arrays import IntArray


class ReadBatch(Protocol):
    """Reads into host memory, prepared. `read` may be called from several threads."""

    def nbytes(self, low: int, high: int) -> int:
        """Bytes of reads `low` to `high` - 1."""

    def read(self, low: int, high: int, addresses: IntArray) -> int:
        """Make reads `low` to `high` - 1, and return how many bytes were read with O_DIRECT.

        Args:
            low: the first one.
            high: the one after the last.
            addresses: host address of each one's first byte; where it is read with O_DIRECT a multiple of a page, and
                its memory goes on to the end of a page.

        Raises:
            ShortReadError: if a file ends before.
            ReadError: if the disk fails.
        """

    def close(self) -> None:
        """Release what the reads hold. No read may be under way; may be called twice."""


class Files(Protocol):
    """Files, by their number. Methods may be called from several threads.

    Attributes:
        sources: the files: their names, and what is known of them beforehand.
        mapped: whether open files are mapped into memory.
        base: address of each mapped file's first byte; 0 while it is not open.
        sizes: bytes of each open file.
        opened: which files are open.
        drives: which drive each file is on.
        kept: files that the page cache keeps for later epochs: they are read through it.
    """

    sources: tuple[ShardSource, ...]
    mapped: bool
    base: IntArray
    sizes: IntArray
    opened: NDArray[np.bool_]
    drives: DriveOrder
    kept: NDArray[np.bool_]

    def ensure_open(self, files: IntArray) -> None:
        """Open those of these files that are not open yet: map them, if they are to be mapped.

        Raises:
            FileChangedError: if one is not the file that it was.
            ReadError: if one cannot be opened or mapped.
            LoaderClosedError: after `close`.
        """

    def refuse_closed(self) -> None:
        """Raise `LoaderClosedError` if the files were closed."""

    def length(self, file: int) -> int:
        """Bytes of a file that is or was open."""

    def whole(self, file: int) -> Extents:
        """All bytes of a file that is or was open."""

    def check(self, files: IntArray, *, believed_s: float = 0.0) -> None:
        """Make sure that these files are still those that were opened, as often as a share of the time allows.

        Args:
            files: the files.
            believed_s: how long ago the last look may have been.

        Raises:
            FileChangedError: if one was replaced, changed or removed.
        """

    def check_now(self, files: IntArray) -> None:
        """As `check`, at once, however long it takes."""

    def check_passed(self) -> None:
        """Check all files that were passed over to save time, and not checked since."""

    def read_into(self, file: int, offset: int, memory: memoryview) -> None:
        """Fill memory with a file's bytes from an offset on.

        Raises:
            FileChangedError: if the file is no longer the one that was opened first.
            ShortReadError: if the file ends before.
            ReadError: if it cannot be opened, or the disk fails.
        """

    def reads(self, extents: Extents, direct: NDArray[np.bool_] | None = None) -> ReadBatch:
        """Prepare reads of open files into memory of the host.

        Args:
            extents: what is read, no further than the files go, best in order of the files.
            direct: which of them are read with O_DIRECT if that can be; their offsets are multiples of a page.

        Raises:
            FileChangedError: if a file is no longer the one that was opened first.
            ReadError: if one cannot be opened.
        """

    def descriptor(self, file: int, *, direct: bool = False) -> AbstractContextManager[int]:
        """An open descriptor of a file, with O_DIRECT if that is wanted and can be, for as long as the context lasts.

        Raises:
            FileChangedError: if the file is no longer the one that was opened first.
            ReadError: if it cannot be opened, or has no descriptor.
        """

    def is_resident(self, file: int, offset: int) -> bool:
        """Return whether the page at an offset of a file is in the page cache; False if that is not known."""

    def will_need(self, file: int, offset: int, nbytes: int) -> None:
        """Begin to read bytes of a file into the page cache, and no others."""

    def only(self, file: int, touched: Iterable[tuple[int, int]]) -> None:
        """Note the only parts of an open, mapped file that will be touched: first byte of each, and its end."""

    def missing(self, wanted: Extents) -> Extents | None:
        """The extents that must be populated before these of mapped files are touched; None if there are none."""

    def ensure(self, wanted: Extents) -> None:
        """Populate what is `missing` of these extents; raises as `populate` does."""

    def populate(self, file: int, offset: int, nbytes: int, wanted: Extents) -> None:
        """Read bytes of a mapped file into memory, even if they were populated before.

        Args:
            file: the file.
            offset: the first of the bytes.
            nbytes: how many they are.
            wanted: the extents that will be touched. Other bytes may be unreadable.

        Raises:
            FileChangedError: if the file ends before what is wanted does.
            ReadError: if the disk fails, or the file system does.
        """

    def in_mappings(self, addresses: IntArray) -> NDArray[np.bool_]:
        """A mask of the addresses that are in mapped files."""

    def close(self) -> None:
        """Close and unmap everything; may be called twice. Nothing may use an address of a file afterwards."""


OpenFiles = Callable[..., Files]
"""Makes the files of some `ShardSource`s; with `mapped=`, whether they may be mapped into memory."""
