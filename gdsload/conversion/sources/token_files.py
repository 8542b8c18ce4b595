"""Files of tokens: arrays, flat binary files and JSON lines."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gdsload.conversion.files import find_files, stamps
from gdsload.conversion.rows import BATCH_BYTES, runs, spans
from gdsload.conversion.source import Item, Part
from gdsload.conversion.sources.npy import decode_npy
from gdsload.errors import FormatError, OptionError

__all__ = ["TokenSource"]

_SUFFIXES = (".npy", ".bin", ".jsonl")
_MAX_LINE_BYTES = 2**28


class TokenSource:
    """Documents of tokens, ragged: the field ``tokens``. To make blocks of them, pack them.

    A `.npy` file is a document; those come first. Each line of a `.jsonl` file is one: a list of numbers, or an object
    that has one. Any other file (`.bin`) is a row of tokens as NumPy's `tofile` writes them, in which each document
    ends with the token `end`; without `end` all of it is one document.

    Args:
        path: such a file, or a folder of them.
        dtype: the element type of the tokens of files other than `.npy`.
        end: the token that ends a document of a binary file, and belongs to it.
        key: the key of the list, where lines are objects.

    Raises:
        OptionError: if an option has no such value.
    """

    kind = "token files"
    threads = False

    def __init__(self, path: str, *, dtype: str = "uint16", end: int | None = None, key: str = "tokens") -> None:
        try:
            self.dtype = np.dtype(dtype)
        except TypeError:
            self.dtype = np.dtype(object)
        if self.dtype.kind not in "iu":
            raise OptionError(f"dtype is {dtype!r}, no type of whole numbers")
        limits = np.iinfo(self.dtype)
        if end is not None and not limits.min <= end <= limits.max:
            raise OptionError(f"end is {end}, but tokens are {self.dtype}")
        self.path = path
        self.end = end
        self.key = key

    def describe(self) -> dict[str, Any]:
        """See `Source.describe`."""
        files = stamps(find_files(self.path, _SUFFIXES))
        return {"kind": self.kind, "files": files, "dtype": self.dtype.name, "end": self.end, "key": self.key}

    def parts(self, target_bytes: int) -> list[Part]:
        """See `Source.parts`: runs of `.npy` files, and of bytes of the others; documents lie where they begin."""
        files = find_files(self.path, _SUFFIXES)
        arrays = [file for file in files if _has(file, ".npy")]
        sizes = [os.path.getsize(file) for file in arrays]
        found = [
            Part(f"files {low} to {high - 1}", tuple(arrays[low:high]), high - low, sum(sizes[low:high]))
            for low, high in runs(sizes, target_bytes)
        ]
        for file in files:
            if file not in arrays:
                found += self._ranges(file, target_bytes)
        if not found:
            raise FormatError("there is not one token", file=self.path)
        return found

    def _ranges(self, file: str, target_bytes: int) -> list[Part]:
        name, nbytes, itemsize = os.path.basename(file), os.path.getsize(file), self.dtype.itemsize
        if not _has(file, ".jsonl"):
            if nbytes % itemsize:
                raise FormatError(f"it has {nbytes} bytes, no whole number of {self.dtype}", file=file)
            target_bytes = nbytes if self.end is None else max(target_bytes // itemsize, 1) * itemsize
        return [
            Part(f"{name}, bytes {low} to {high - 1}", (file, low, high), nbytes=high - low)
            for low, high in spans(0, nbytes, max(target_bytes, 1))
        ]

    def read(self, part: Part) -> Iterator[Item]:
        """See `Source.read`."""
        first = str(part.where[0])
        if _has(first, ".npy"):
            for file in part.where:
                yield Item(str(file), partial(_array, str(file)), 1)
            return
        low, high = int(part.where[1]), int(part.where[2])
        try:
            yield from self._lines(first, low, high) if _has(first, ".jsonl") else self._runs(first, low, high)
        except OSError as error:
            raise FormatError(f"the file cannot be read: {error.strerror}", file=first) from None

    def _lines(self, file: str, low: int, high: int) -> Iterator[Item]:
        """The lines that begin from byte `low` to `high` - 1."""
        with open(file, "rb") as opened:
            if low:  # what the byte before begins, or is in, is another's
                opened.seek(low - 1)
                _line(opened, file)
            while (place := opened.tell()) < high:
                line = _line(opened, file)
                if line.strip():
                    yield Item(f"the line at byte {place}", partial(self._document, line), 1)

    def _document(self, line: bytes) -> dict[str, Any]:
        found = json.loads(line)
        listed = found.get(self.key) if isinstance(found, dict) else found
        tokens = np.array(listed if listed != [] else np.empty(0, self.dtype))
        limits = np.iinfo(self.dtype)
        if tokens.ndim != 1 or tokens.dtype.kind not in "iu":
            raise ValueError(f"the line has no list of whole numbers: {line!r:.100}")
        if len(tokens) and not limits.min <= int(tokens.min()) <= int(tokens.max()) <= limits.max:
            raise ValueError(f"its tokens from {tokens.min()} to {tokens.max()} are not {self.dtype}: pass dtype=")
        return _one(tokens.astype(self.dtype))

    def _runs(self, file: str, low: int, high: int) -> Iterator[Item]:
        """The documents that begin from byte `low` to `high` - 1, many at once."""
        tokens = np.memmap(file, self.dtype, mode="r")
        if self.end is None:
            yield Item("all tokens", partial(_one, tokens), 1)
            return
        place = _behind(tokens, self.end, low // self.dtype.itemsize)
        stop = _behind(tokens, self.end, high // self.dtype.itemsize)
        while place < stop:
            edge = min(_behind(tokens, self.end, place + BATCH_BYTES // self.dtype.itemsize), stop)
            run = tokens[place:edge]
            edges = np.flatnonzero(run == self.end) + 1
            if not len(edges) or edges[-1] < len(run):
                edges = np.append(edges, len(run))
            offsets = np.concatenate([[0], edges])
            yield Item(f"tokens {place} to {edge - 1}", partial(dict, tokens=(run, offsets)), len(edges))
            place = edge


def _has(file: str, suffix: str) -> bool:
    return file.lower().endswith(suffix)


def _behind(tokens: NDArray[Any], end: int, place: int) -> int:
    """The first place from this one on where a document begins: behind the token that ends the one before."""
    if place == 0:
        return 0
    step = BATCH_BYTES // tokens.itemsize
    for low, high in spans(place - 1, len(tokens), step):
        found = np.flatnonzero(tokens[low:high] == end)
        if len(found):
            return low + int(found[0]) + 1
    return len(tokens)


def _line(opened: Any, file: str) -> bytes:
    line: bytes = opened.readline(_MAX_LINE_BYTES)
    if len(line) == _MAX_LINE_BYTES:
        raise FormatError(f"a line has {_MAX_LINE_BYTES} bytes or more", file=file)
    return line


def _array(file: str) -> dict[str, Any]:
    with open(file, "rb") as opened:
        tokens = decode_npy(opened.read())
    if tokens.ndim != 1 or tokens.dtype.kind not in "iu":
        raise FormatError(f"it is {tokens.dtype} of shape {tokens.shape}, no row of whole numbers", file=file)
    return _one(tokens)


def _one(tokens: NDArray[Any]) -> dict[str, Any]:
    """A batch of one document: a batch says that its field is ragged."""
    return {"tokens": (tokens, np.array([0, len(tokens)]))}
