"""Reads keys, and runs of keys with their values, of an environment, by the library `lmdb`.

A damaged file may kill the process that calls these functions. No lock file is made. They raise the library's errors,
and `ValueError`: the caller knows which file it is.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from gdsload.conversion.reasons import as_pasted
from gdsload.conversion.sources.extras import need
from gdsload.errors import FormatError, OptionError

__all__ = ["KeyRuns", "list_runs", "read_run"]

_DATABASE_BYTES = 48
"""How long the value is that describes a database."""
_MAX_DATABASES = 1024

Pair = tuple[bytes, bytes]


class KeyRuns(NamedTuple):
    """The first keys of runs of `keys` keys of a database, of `total` ones of about `nbytes` bytes with their values.

    The names of other databases in it are among the keys.
    """

    begins: list[bytes]
    keys: int
    total: int
    nbytes: int


def list_runs(file: str, database: str | None, target_bytes: int) -> KeyRuns:
    """The keys in runs of about so many bytes.

    How long values are is not known before they are read: the bytes of the file are shared out among the keys.
    """
    with _opened(file, database) as (_, transaction, found):
        begins, count, last = list[bytes](), 0, b""
        unordered = any(found.flags(transaction)[how] for how in ("reverse_key", "integerkey"))
        expected = transaction.stat(found)["entries"]
        nbytes = os.path.getsize(file) // max(expected, 1)
        keys = max(target_bytes // max(nbytes, 1), 1)
        for key in transaction.cursor(found).iternext(values=False):
            if count == expected or not (unordered or last < key):  # a damaged tree may have no end
                raise ValueError("it has keys that are not in order, or more of them than it says")
            if count % keys == 0:
                begins.append(key)
            count, last = count + 1, key
        if count < expected:
            raise ValueError(f"it has {count} keys, and says that it has {expected}")
        return KeyRuns(begins, keys, count, nbytes)


def read_run(
    file: str, database: str | None, begin: bytes, keys: int, most_bytes: int
) -> tuple[list[Pair], bytes | None, int]:
    """Keys and values from a key on: a number of keys, or some more bytes than are asked for.

    Returns:
        The pairs, the key after them, and how many of the keys are left from that on; None and 0 at the end.

    Raises:
        OptionError: if another database is among them, and the one without a name was not asked for.
    """
    with _opened(file, database) as (environment, transaction, found):
        cursor, pairs, nbytes = transaction.cursor(found), list[Pair](), 0
        there = cursor.set_range(begin)
        while there and keys and nbytes < most_bytes:
            key, value = cursor.item()
            if database or not _is_database(environment, transaction, key, value):
                pairs.append((key, value))
                nbytes += len(key) + len(value)
            elif database is None:
                raise _named(key, file)
            keys -= 1
            there = cursor.next()
        return pairs, cursor.key() if there and keys else None, keys if there else 0


@contextmanager
def _opened(file: str, database: str | None) -> Iterator[tuple[Any, Any, Any]]:
    """The environment, a transaction, and the database."""
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
        try:
            found = environment.open_db(database.encode() if database else None, transaction, create=False)
        except (lmdb.NotFoundError, lmdb.IncompatibleError):
            raise OptionError(f"there is no database {database!r}", file=file) from None
        if found.flags(transaction)["dupsort"]:
            raise FormatError(
                "its keys may have several values each (dupsort)", file=file, remedy="Copy it into one without them."
            )
        yield environment, transaction, found


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


def _named(key: bytes, file: str) -> OptionError:
    name = key.decode(errors="replace")
    return OptionError(
        f"it holds another database, {name!r:.200}",
        file=file,
        remedy=f"Pass `database={as_pasted(name)}` to read that; `database=''` reads what has no name.",
    )
