"""The table of a dataset's shard files: opened lazily, checked against the index, and few at a time.

A shard is opened on first use: its header is read, checked, and compared with the index. Descriptors are kept for the
least recently used few only, because a dataset may have more shards than a process may have open files.
"""

from __future__ import annotations

import os
import stat
import threading
from collections import OrderedDict
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from gdsload.errors import (
    DatasetNotFoundError,
    FileChangedError,
    FormatError,
    LoaderClosedError,
    ReadError,
    ShortReadError,
)
from gdsload.shards.format.header import PREFIX_BYTES, header_bytes, parse_header
from gdsload.shards.format.schema import Schema
from gdsload.shards.format.shard import Shard, read_shard
from gdsload.shards.gather_host import gather_rows
from gdsload.shards.guard import Guard
from gdsload.shards.identity import ShardSource, Watch, gone
from gdsload.shards.reads import Extents, distinct
from gdsload.shards.shard_checksums import is_as_written
from gdsload.system.memory import address_of, map_file, unmap

__all__ = ["ShardFiles", "load_named", "load_shard", "mismatch", "open_regular", "pread_exact"]

IntArray = NDArray[np.int64]
_MAX_OPEN = 64


def open_regular(path: str, *, follow_links: bool = True, flags: int = 0, folder: int | None = None) -> int:
    """Open a regular file for reading; anything else (a pipe would block for ever) is refused.

    Args:
        path: its path.
        follow_links: whether it may be a symbolic link.
        flags: further flags for open(2).
        folder: descriptor of the folder it is in, to have it from there even if the folder is moved meanwhile.

    Raises:
        DatasetNotFoundError: if there is no such file.
        ReadError: if it cannot be opened or is no regular file.
    """
    flags |= os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | (0 if follow_links else os.O_NOFOLLOW)
    try:
        fd = os.open(path if folder is None else os.path.basename(path), flags, dir_fd=folder)
    except FileNotFoundError:
        raise DatasetNotFoundError("there is no such file", file=path) from None
    except OSError as error:
        link = not follow_links and os.path.islink(path)
        hint = "It is a symbolic link, which a dataset must not contain." if link else None
        raise ReadError(f"the file cannot be opened: {error.strerror}", file=path, remedy=hint) from None
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise ReadError("it is no regular file", file=path)
    return fd


def pread_exact(fd: int, into: memoryview, offset: int, file: str) -> None:
    """Fill `into` with the bytes at `offset`.

    Raises:
        ShortReadError: if the file ends before.
        ReadError: if the disk fails.
    """
    position = 0
    while position < len(into):
        try:
            count = os.preadv(fd, [into[position:]], offset + position)
        except OSError as error:
            raise ReadError(f"reading failed: {error.strerror}", file=file, offset=offset + position) from error
        if count == 0:
            raise ShortReadError(
                f"the file ended {len(into) - position} bytes too early",
                file=file,
                offset=offset + position,
                remedy="It was cut short after it was written: restore it, or write the dataset again.",
            )
        position += count


def load_shard(fd: int, file: str) -> Shard:
    """Read and check the header of an open shard.

    Raises:
        FormatError: if it is damaged.
        ReadError: if it cannot be read.
    """
    size = os.fstat(fd).st_size
    prefix = bytearray(min(PREFIX_BYTES, size))
    pread_exact(fd, memoryview(prefix), 0, file)
    raw = bytearray(header_bytes(bytes(prefix), size, file))
    pread_exact(fd, memoryview(raw), 0, file)
    return read_shard(parse_header(bytes(raw), size, file), file)


def mismatch(shard: Shard, source: ShardSource, schema: Schema) -> str | None:
    """In what an opened shard is not the one that the dataset names; None if it is."""
    if source.sha256 is not None and shard.header.sha256 != source.sha256:
        return "its header is not the one that the index describes"
    if source.samples not in (-1, shard.samples):
        return f"it holds {shard.samples} samples, but the index says {source.samples}"
    if source.file_bytes not in (-1, shard.header.file_bytes):
        return f"it has {shard.header.file_bytes} bytes, but the index says {source.file_bytes}"
    if shard.schema != schema:
        return f"its fields are {shard.schema}, but the dataset's are {schema}"
    return None


def load_named(fd: int, source: ShardSource, schema: Schema) -> Shard:
    """Read and check the header of an open shard that a dataset names.

    Raises:
        FormatError: if it is damaged, or not the one that the dataset names.
        ReadError: if it cannot be read.
    """
    shard = load_shard(fd, source.path)
    complaint = mismatch(shard, source, schema)
    if complaint is not None:
        raise FormatError(complaint, file=source.path, remedy="Restore the shard, or write the dataset again.")
    return shard


def _touched(shard: Shard) -> list[tuple[int, int]]:
    """All that is ever touched of a mapped shard: its fields' rows and offsets."""
    found = []
    for name, column in shard.columns.items():
        found.append((column.begin, column.begin + column.rows * shard.schema[name].row_bytes))
        if column.offsets_begin is not None:
            found.append((column.offsets_begin, column.offsets_begin + 8 * (shard.samples + 1)))
    return found


class _Lent:
    """A descriptor, for as long as the context lasts. No generator: this is done for each read."""

    __slots__ = ("_direct", "_entry", "_file", "_files")

    def __init__(self, files: ShardFiles, file: int, direct: bool) -> None:
        self._files, self._file, self._direct = files, file, direct

    def __enter__(self) -> int:
        self._entry = self._files.lend(self._file, self._direct)
        return self._entry[0]

    def __exit__(self, *_: object) -> None:
        self._files.take_back(self._entry)


class ShardFiles:
    """The open shards of a dataset.

    Args:
        sources: the shards, in order.
        schema: what each must hold.
        mapped: whether shards are mapped into memory; if not, they are only ever read with preadv.
    """

    def __init__(self, sources: Sequence[ShardSource], schema: Schema, *, mapped: bool) -> None:
        self.sources, self.schema, self.mapped = tuple(sources), schema, mapped
        count = len(self.sources)
        self.base = np.zeros(count, np.int64)
        """Address of each mapped shard's first byte; 0 while it is not open."""
        self.begin = {name: np.zeros(count, np.int64) for name in schema}
        """Byte offset of each field in each open shard."""
        self.rows = {name: np.zeros(count, np.int64) for name in schema}
        """Number of rows of each field in each open shard."""
        self.offsets = {name: np.zeros(count, np.int64) for name, field in schema.items() if field.ragged}
        """Host address of the int64 row offsets of each ragged field in each open shard."""
        self.sizes = np.zeros(count, np.int64)
        """Bytes of each open shard."""
        self.opened = np.zeros(count, bool)
        self._unopened = count
        self._mapped_bytes = np.zeros(count, np.int64)
        self.watch = Watch(self.sources, self._as_written)
        """Whether the shards are still the files that were opened."""
        self.guard = Guard([source.path for source in self.sources], self.base, self._read)
        """Which bytes of mapped shards may be touched."""
        self._held: dict[int, list[NDArray[np.int64]]] = {}
        self._descriptors: OrderedDict[tuple[int, bool], list[int]] = OrderedDict()
        self._direct: dict[int, bool] = {}
        self._lock = threading.RLock()
        self._closed = False

    def ensure_open(self, files: IntArray) -> None:
        """Open those of these shards that are not open yet.

        Raises:
            FormatError: if one is damaged or not the shard that the index describes.
            ReadError: if one cannot be opened.
            LoaderClosedError: after `close`.
        """
        if not self._unopened or self.opened[files].all():  # the first is known at once, and holds from then on
            return
        for file in distinct(files, len(self.sources)):
            with self._lock:
                if self._closed:
                    raise LoaderClosedError("the shards were closed")
                if not self.opened[file]:
                    self._open(int(file))

    def _open(self, file: int) -> None:
        with self.descriptor(file) as fd:
            name = self.sources[file].path
            shard = load_named(fd, self.sources[file], self.schema)
            if self.mapped:
                self._mapped_bytes[file] = shard.header.file_bytes
                self.base[file] = map_file(fd, shard.header.file_bytes, name)
                self.guard.opened(file, shard.header.file_bytes, _touched(shard))
            for field, column in shard.columns.items():
                self.begin[field][file], self.rows[field][file] = column.begin, column.rows
                if column.offsets_begin is not None:
                    self.offsets[field][file] = self._offsets(fd, file, column.offsets_begin, shard.samples)
            self.sizes[file] = self.length(file)
            self.opened[file] = True
            self._unopened -= 1

    def _offsets(self, fd: int, file: int, begin: int, samples: int) -> int:
        if self.mapped:
            return int(self.base[file]) + begin
        offsets = np.empty(samples + 1, np.int64)
        pread_exact(fd, offsets.data.cast("B"), begin, self.sources[file].path)
        self._held.setdefault(file, []).append(offsets)
        return address_of(offsets)

    def _read(self, file: int, offset: int, nbytes: int) -> None:
        """Read bytes of a mapped shard only to learn whether they can be read."""
        path = self.sources[file].path
        with self.descriptor(file) as fd:
            try:
                pread_exact(fd, memoryview(bytearray(nbytes)), offset, path)
            except ShortReadError:
                raise FileChangedError(
                    "the file became shorter while it was being read",
                    file=path,
                    remedy="Do not write to a dataset in use.",
                ) from None

    def rows_of(self, name: str, file: IntArray, row: IntArray) -> IntArray:
        """For each of some samples of a ragged field, where it begins and ends in its shard's rows.

        Args:
            name: the field.
            file: each sample's shard, which is open.
            row: the sample's number in its shard.

        Returns:
            Row numbers, as they are in the file, shape ``[samples, 2]``.

        Raises:
            ReadError: if they cannot be read.
        """
        at = self.offsets[name][file] + row * 8
        if self.mapped and self.guard.left:
            self.guard.ensure(Extents(file, at - self.base[file], np.full(len(at), 16)), lasting=True)
        pairs = np.empty((len(at), 2), np.int64)
        gather_rows(at, 16, address_of(pairs))
        return pairs

    def descriptor(self, file: int, *, direct: bool = False) -> _Lent:
        """An open descriptor of a shard, for as long as the context lasts.

        Args:
            file: the shard.
            direct: open it with O_DIRECT. Ask `allows_direct` whether that can be.

        Raises:
            FileChangedError: if the file at its path is no longer the one that was opened first.
            ReadError: if it cannot be opened.
        """
        return _Lent(self, file, direct)

    def take_back(self, entry: list[int]) -> None:
        """Count one user of an entry less."""
        with self._lock:
            entry[1] -= 1
            if len(self._descriptors) > _MAX_OPEN or self._closed:
                self._trim()

    def allows_direct(self, file: int) -> bool:
        """Whether the shard can be opened with O_DIRECT; some file systems have none."""
        found = self._direct.get(file)
        if found is not None:
            return found
        with self._lock:
            if file not in self._direct:
                try:
                    with self.descriptor(file, direct=True):
                        self._direct[file] = True
                except FileChangedError:
                    raise
                except ReadError:
                    self._direct[file] = False
            return self._direct[file]

    def length(self, file: int) -> int:
        """Bytes of a shard that is or was open."""
        return self.watch.length(file)

    def whole(self, file: int) -> Extents:
        """All bytes of a shard that is or was open."""
        return Extents(np.array([file]), np.array([0]), np.array([self.length(file)]))

    def in_mappings(self, addresses: IntArray) -> NDArray[np.bool_]:
        """Which of these addresses lie in mapped shards."""
        files = np.flatnonzero(self.base)
        if not len(files):
            return np.zeros(len(addresses), bool)
        files = files[np.argsort(self.base[files])]
        starts = self.base[files]
        ends = starts + self._mapped_bytes[files]
        at = np.searchsorted(starts, addresses, side="right") - 1
        return (at >= 0) & (addresses < ends[at])

    def lend(self, file: int, direct: bool) -> list[int]:
        """The entry [descriptor, users] of a file, with one user more; see `descriptor`."""
        key = (file, direct)
        with self._lock:
            entry = self._descriptors.get(key)
            if entry is None:
                source = self.sources[file]
                flags = os.O_DIRECT if direct else 0
                try:
                    fd = open_regular(source.path, follow_links=source.follow_links, flags=flags)
                except DatasetNotFoundError:
                    raise gone(source.path) from None
                try:
                    self.watch.opened(file, os.fstat(fd))
                except FileChangedError:
                    os.close(fd)
                    raise
                entry = self._descriptors[key] = [fd, 0]
            self._descriptors.move_to_end(key)
            entry[1] += 1
            return entry

    def _trim(self) -> None:
        keep = 0 if self._closed else _MAX_OPEN
        for key in [key for key, entry in self._descriptors.items() if entry[1] == 0]:
            if len(self._descriptors) <= keep:
                break
            os.close(self._descriptors.pop(key)[0])

    def _as_written(self, file: int) -> bool | None:
        """Whether a shard's bytes are those that were written; None if it has no checksums."""
        source = self.sources[file]
        with self.descriptor(file) as fd:
            try:
                shard = load_named(fd, source, self.schema)
            except FormatError:
                return False
            return is_as_written(shard, lambda into, offset: pread_exact(fd, into, offset, source.path))

    def check(self, files: IntArray, *, believed_s: float = 0.0) -> None:
        """See `Watch.check`."""
        self.watch.check(files, believed_s=believed_s)

    def close(self) -> None:
        """Close and unmap everything; may be called twice. Nothing may use an address of a shard afterwards."""
        with self._lock:
            self._closed = True
            self._trim()
            for file in np.flatnonzero(self.base).tolist():
                address, self.base[file] = int(self.base[file]), 0  # an interrupted close must not unmap anything twice
                unmap(address, self.length(file))
            self.opened[:] = False
            self._unopened = len(self.opened)
            self._held.clear()
