"""LMDB environments: keys and values."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Unpack

from gdsload.conversion.input_files import check_file
from gdsload.conversion.reasons import reading
from gdsload.conversion.row_source import filled
from gdsload.conversion.source import Item, Part
from gdsload.conversion.sources.binary_samples import Encoding, decoded_fields
from gdsload.conversion.sources.extras import need
from gdsload.conversion.sources.pictures import ImageFileOptions, ImageForm, ImageSource, put
from gdsload.errors import FormatError

_LOCK = "lock.mdb"
_DATABASE_BYTES = 48
"""How long the value is that describes a database."""
_MAX_DATABASES = 1

_environments: dict[tuple[int, str], tuple[Any, int]] = {}
"""The open environments, by process and file, each with the number of its users."""
_guard = threading.Lock()


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
    crashes = True
    suffixes = (".mdb", ".lmdb")
    decisive = ("decode", "with_key")

    def __init__(
        self, path: str, *, decode: Encoding = "bytes", with_key: bool = True, **options: Unpack[ImageFileOptions]
    ) -> None:
        super().__init__(path, **options)
        self.decode, self.with_key = decode, with_key

    def parts(self, target_bytes: int) -> list[Part]:
        found: list[Part] = []
        for file in self.all_files():
            name = os.path.relpath(file, self.path) if file != self.path else os.path.basename(file)
            for low, key, keys, nbytes in _key_runs(file, target_bytes):
                part = f"{name}, keys {low} to {low + keys - 1}"
                found.append(Part(part, (file, key.hex(), keys), keys, keys * nbytes))
        return filled(found, "key", self.path)

    def read(self, part: Part) -> Iterator[Item]:
        file, begin, left = str(part.where[0]), bytes.fromhex(str(part.where[1])), int(part.where[2])
        form = self.form  # whose first look opens files, which the library opens but once in a process
        with _opened(file) as (environment, transaction):
            cursor = transaction.cursor()
            there = cursor.set_range(begin)
            while there and left:
                key, value = cursor.item()
                if _is_database(environment, transaction, key, value):
                    raise FormatError(
                        f"it holds a database with a name, {key.decode(errors='replace')!r:.200}",
                        file=file,
                        remedy="Copy what is to be converted into an environment without names.",
                    )
                yield Item(f"key {key!r:.100}", partial(self._sample, key, value, form, f"{file}: {key!r:.100}"))
                left, there = left - 1, cursor.next()

    def first_items(self) -> Iterator[Item]:
        """Those of the first keys: to list all takes longer."""
        for file in self.all_files():
            yield from self.read(Part("the first keys", (file, "", sys.maxsize)))

    def _sample(self, key: bytes, content: bytes, form: ImageForm, where: str) -> dict[str, Any]:
        found: dict[str, Any] = {"key": key} if self.with_key else {}
        put(found, decoded_fields("value", content, self.decode, form, where), where)
        return found

    def all_files(self) -> list[str]:
        return [file for file in super().all_files() if os.path.basename(file) != _LOCK]


def _key_runs(file: str, target_bytes: int) -> Iterator[tuple[int, bytes, int, int]]:
    """The keys in runs of about so many bytes: number and bytes of the first one, how many, and about their bytes each.

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
    for number, key in enumerate(begins):
        yield number * keys, key, min(keys, count - number * keys), nbytes


@contextmanager
def _opened(file: str) -> Iterator[tuple[Any, Any]]:
    """The environment, and a transaction; whatever is wrong with them is a FormatError. No lock file is made."""
    lmdb = need("lmdb", file=file)
    check_file(file)
    with reading("the LMDB file cannot be read", file):
        if not os.path.getsize(file):
            raise ValueError("it is empty")  # to the library that is a file which it is to write
        with _shared(lmdb, file) as environment, environment.begin() as transaction:
            pages, size = environment.info()["last_pgno"] + 1, environment.stat()["psize"]
            if pages * size > os.path.getsize(file):
                raise ValueError(f"it is cut short: it has {pages} pages of {size} bytes, and they are not all there")
            yield environment, transaction


@contextmanager
def _shared(lmdb: Any, file: str) -> Iterator[Any]:
    """The environment of a file. The library opens one but once in a process, where the threads of an executor read."""
    how = {"readonly": True, "create": False, "lock": False, "readahead": False, "max_dbs": _MAX_DATABASES}
    key = os.getpid(), os.path.realpath(file)
    with _guard:
        environment, users = _environments.get(key) or (lmdb.open(file, subdir=False, **how), 0)
        _environments[key] = environment, users + 1
    try:
        yield environment
    finally:
        with _guard:
            environment, users = _environments.pop(key)
            if users > 1:
                _environments[key] = environment, users - 1
            else:
                environment.close()


def _is_database(environment: Any, transaction: Any, key: bytes, value: bytes) -> bool:
    """Return whether a value describes a database: the library tells when that is opened."""
    if len(value) != _DATABASE_BYTES or b"\0" in key:  # a name ends at a zero
        return False
    lmdb = need("lmdb")
    try:
        with _guard:  # the library opens one database at a time
            environment.open_db(key, transaction, create=False)
    except (lmdb.NotFoundError, lmdb.IncompatibleError):
        return False
    return True
