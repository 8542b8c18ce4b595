"""Streams of bytes, packed by gzip or not. A length in a file counts only once its bytes are there."""

from __future__ import annotations

import gzip
import os
import zlib
from typing import IO, cast

from gdsload.errors import FormatError

DAMAGED = (OSError, EOFError, zlib.error)
"""Errors of a stream that cannot be read or unpacked."""

_GZIP = b"\x1f\x8b"
_PIECE_BYTES = 2**22
MAX_LINE_BYTES = 2**28


def unpacked(raw: IO[bytes], *, packed: bool) -> IO[bytes]:
    """A file's bytes, unpacked if gzip has packed it."""
    return cast("IO[bytes]", gzip.GzipFile(fileobj=raw)) if packed else raw


def unpacked_by_magic(raw: IO[bytes]) -> tuple[IO[bytes], int]:
    """A file's bytes, unpacked if it begins as gzip's files do, and their number; -1 if it is packed."""
    packed = raw.read(len(_GZIP)) == _GZIP
    raw.seek(0)
    return unpacked(raw, packed=packed), -1 if packed else os.fstat(raw.fileno()).st_size


def exactly(stream: IO[bytes], count: int, failed: str = "it ends too early") -> bytes:
    """As many bytes, without memory for more than are there.

    Raises:
        ValueError: if there are fewer; its text is what `failed` says.
    """
    pieces, left = [], count
    while left and (piece := stream.read(min(left, _PIECE_BYTES))):
        pieces.append(piece)
        left -= len(piece)
    if left:
        raise ValueError(failed)
    return b"".join(pieces)


def read_line(stream: IO[bytes], file: str, remedy: str, most: int | None = None) -> bytes:
    """The next line with its end; empty at the end of the stream.

    Raises:
        FormatError: if it is too long.
    """
    most = most or MAX_LINE_BYTES
    line = stream.readline(most)
    if len(line) == most:
        raise FormatError(f"a line has {most} bytes or more", file=file, remedy=remedy)
    return line
