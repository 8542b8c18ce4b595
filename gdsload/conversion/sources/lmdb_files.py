"""LMDB environments: keys and values."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple, Unpack

from gdsload.conversion.input_files import check_file
from gdsload.conversion.reasons import reading
from gdsload.conversion.row_source import filled
from gdsload.conversion.source import Item, Part
from gdsload.conversion.sources.binary_samples import Encoding, decoded_fields
from gdsload.conversion.sources.extras import need
from gdsload.conversion.sources.pictures import ImageFileOptions, ImageSource, put
from gdsload.conversion.spread import read_apart
from gdsload.errors import FormatError

AT_ONCE_BYTES = 8 * 2**20
_FEW = 1024
_LOCK = "lock.mdb"
_DATABASE_BYTES = 48
"""How long the value is that describes a database."""
_MAX_DATABASES = 1

Pair = tuple[bytes, bytes]


class LmdbSource(ImageSource):
    """The keys and values of LMDB environments, in the order of the keys.

    Fields: ``key``, bytes, and ``value``, bytes or what `decode` makes of them. Values are never unpickled. What is
    read is the state after the last finished transaction; do not write to it meanwhile. No lock is taken, and no file
    is made. It is read by the library `lmdb`. An environment that holds databases with names is refused.

    Args:
        path: the folder with `data.mdb`, a file (`.mdb`, `.lmdb`), or a folder of such folders and files.
        decode: what values are: ``"bytes"``, ``"text"`` (UTF-8), ``"npy"``, or ``"image"`` (uint8 ``[channels,
            height, width]``, turned as its EXIF data say).
        with_key: whether the field ``key`` is made.
    """

    kind = "LMDB environment"
    threads = False
    suffixes = (".mdb", ".lmdb")
    decisive = ("decode", "with_key")

    def __init__(
        self,
        path: str,
        *,
        decode: Encoding = "bytes",
        with_key: bool = True,
        **options: Unpack[ImageFileOptions],
    ) -> None:
        super().__init__(path, **options)
        self.decode = decode
        self.with_key = with_key

    def parts(self, target_bytes: int) -> list[Part]:
        found: list[Part] = []
        for file in self.all_files():
            name = os.path.relpath(file, self.path) if file != self.path else os.path.basename(file)
            runs: KeyRuns = self._read(list_runs, file, target_bytes)
            for low, key in zip(range(0, runs.total, runs.keys), runs.begins, strict=True):
                keys = min(runs.keys, runs.total - low)
                where = (file, key.hex(), keys)
                found.append(Part(f"{name}, keys {low} to {low + keys - 1}", where, keys, keys * runs.nbytes))
        return filled(found, "key", self.path)

    def read(self, part: Part) -> Iterator[Item]:
        file, key, left = str(part.where[0]), bytes.fromhex(str(part.where[1])), int(part.where[2])
        while left:
            pairs, key, left = self._read(read_run, file, key, left, AT_ONCE_BYTES)
            for name, content in pairs:
                yield Item(f"key {name!r:.100}", partial(self._sample, name, content, f"{file}: {name!r:.100}"))

    def first_items(self) -> Iterator[Item]:
        """Those of the first keys: to list all takes longer."""
        for file in self.all_files():
            yield from self.read(Part("the first keys", (file, "", _FEW)))

    def _read(self, function: Callable[..., Any], file: str, *arguments: Any) -> Any:
        """The library's environment of a file. Any fault of it is a FormatError."""
        check_file(file)
        with reading("the LMDB file cannot be read", file):
            return read_apart(function, file, *arguments)

    def _sample(self, key: bytes, content: bytes, where: str) -> dict[str, Any]:
        found: dict[str, Any] = {"key": key} if self.with_key else {}
        put(found, decoded_fields("value", content, self.decode, self.form, where), where)
        return found

    def all_files(self) -> list[str]:
        return [file for file in super().all_files() if os.path.basename(file) != _LOCK]


class KeyRuns(NamedTuple):
    """The first keys of runs of `keys` keys, of `total` ones of about `nbytes` bytes with their values."""

    begins: list[bytes]
    keys: int
    total: int
    nbytes: int


def list_runs(file: str, target_bytes: int) -> KeyRuns:
    """The keys in runs of about so many bytes; a damaged file may kill the process that calls this.

    How long values are is not known before they are read: the bytes of the file are shared out among the keys.
    """
    with _opened(file) as (environment, transaction):
        begins, count, last = list[bytes](), 0, b""
        expected = environment.stat()["entries"]
        nbytes = os.path.getsize(file) // max(expected, 1)
        keys = max(target_bytes // max(nbytes, 1), 1)
        for key in transaction.cursor().iternext(values=False):
            if count == expected or not last < key:  # a damaged tree may have no end
                raise ValueError("it has keys that are not in order, or more of them than it says")
            if count % keys == 0:
                begins.append(key)
            count, last = count + 1, key
        if count < expected:
            raise ValueError(f"it has {count} keys, and says that it has {expected}")
        return KeyRuns(begins, keys, count, nbytes)


def read_run(file: str, begin: bytes, keys: int, most_bytes: int) -> tuple[list[Pair], bytes | None, int]:
    """Keys and values from a key on: a number of keys, or some more bytes than are asked for; see `list_runs`.

    Returns:
        The pairs, the key after them, and how many of the keys are left from that on; None and 0 at the end.

    Raises:
        FormatError: if a database with a name is among them.
    """
    with _opened(file) as (environment, transaction):
        cursor, pairs, nbytes = transaction.cursor(), list[Pair](), 0
        there = cursor.set_range(begin)
        while there and keys and nbytes < most_bytes:
            key, value = cursor.item()
            if _is_database(environment, transaction, key, value):
                raise FormatError(
                    f"it holds a database with a name, {key.decode(errors='replace')!r:.200}",
                    file=file,
                    remedy="Copy what is to be converted into an environment without names.",
                )
            pairs.append((key, value))
            nbytes += len(key) + len(value)
            keys -= 1
            there = cursor.next()
        return pairs, cursor.key() if there and keys else None, keys if there else 0


@contextmanager
def _opened(file: str) -> Iterator[tuple[Any, Any]]:
    """The environment, and a transaction. No lock file is made."""
    lmdb = need("lmdb", file=file)
    if not os.path.getsize(file):
        raise ValueError("it is empty")  # to the library that is a file which it is to write
    with (
        lmdb.open(
            file, subdir=False, readonly=True, create=False, lock=False, readahead=False, max_dbs=_MAX_DATABASES
        ) as environment,
        environment.begin() as transaction,
    ):
        pages, size = environment.info()["last_pgno"] + 1, environment.stat()["psize"]
        if pages * size > os.path.getsize(file):
            raise ValueError(f"it is cut short: it has {pages} pages of {size} bytes, and they are not all there")
        yield environment, transaction


def _is_database(environment: Any, transaction: Any, key: bytes, value: bytes) -> bool:
    """Return whether a value describes a database: the library tells when that is opened."""
    if len(value) != _DATABASE_BYTES or b"\0" in key:  # a name ends at a zero
        return False
    lmdb = need("lmdb")
    try:
        environment.open_db(key, transaction, create=False)
    except (lmdb.NotFoundError, lmdb.IncompatibleError):
        return False
    return True
