"""The header of an open file, and of a shard that a dataset names."""

from __future__ import annotations

from collections.abc import Callable

from gdsload.errors import FormatError, Problem
from gdsload.shards.format.header import PREFIX_BYTES, header_bytes, parse_header
from gdsload.shards.format.shard import Shard, read_shard
from gdsload.shards.format.stored import StoredSchema
from gdsload.shards.identity import ShardSource
from gdsload.shards.local_files import pread_exact
from gdsload.shards.status import status_of


def load_shard(fd: int, file: str) -> Shard:
    """Read and check the header of an open shard.

    Raises:
        FormatError: if it is damaged, or no shard.
        ReadError: if it cannot be read.
    """
    return read_header(reading(fd, file), status_of(fd, file).st_size, file)


def reading(fd: int, file: str) -> Callable[[int, memoryview], None]:
    """A function that fills memory with an open file's bytes from an offset on."""
    return lambda offset, into: pread_exact(fd, into, offset, file)


def read_header(read: Callable[[int, memoryview], None], size: int, file: str) -> Shard:
    """Read and check the header of a shard.

    Args:
        read: fills memory with the shard's bytes from an offset on.
        size: bytes of the shard.
        file: its name in errors.

    Raises:
        FormatError: if it is damaged, or no shard.
        ReadError: if it cannot be read.
    """
    prefix = bytearray(min(PREFIX_BYTES, size))
    read(0, memoryview(prefix))
    raw = bytearray(header_bytes(bytes(prefix), size, file))
    read(0, memoryview(raw))
    return read_shard(parse_header(bytes(raw), size, file), file)


def mismatch(shard: Shard, source: ShardSource, stored: StoredSchema) -> str | None:
    """The difference between an opened shard and the one that the dataset names; None if there is none."""
    if source.sha256 is not None and shard.header.sha256 != source.sha256:
        return "its header is not the one that the index describes"
    if source.samples not in (-1, shard.samples):
        return f"it holds {shard.samples} samples, but the index says {source.samples}"
    if source.file_bytes not in (-1, shard.header.file_bytes):
        return f"it has {shard.header.file_bytes} bytes, but the index says {source.file_bytes}"
    if shard.stored != stored:
        return f"its fields are {shard.stored}, but the dataset's are {stored}"
    return None


def wrong_length(path: str, found: int, wanted: int, samples: tuple[int, int] | None) -> Problem | None:
    """The problem of a shard of another length than the index says; None if it has that one.

    Args:
        path: its file.
        found: how many bytes it has.
        wanted: how many it should have; -1 if that is not known.
        samples: those that it holds, as the dataset counts them.
    """
    if wanted in (-1, found):
        return None
    message = f"the shard has {found} bytes, but the index says {wanted}"
    return Problem(message, path, min(found, wanted), samples=samples)


def as_named(shard: Shard, source: ShardSource, stored: StoredSchema) -> Shard:
    """A shard, if it is the one that the dataset names.

    Raises:
        FormatError: if it is not.
    """
    complaint = mismatch(shard, source, stored)
    if complaint is not None:
        raise FormatError(complaint, file=source.path, remedy="Restore the shard, or write the dataset again.")
    return shard
