"""Checks of what bytes mean: that a loader can make samples of them, and how many numbers are not finite.

Right checksums say that bytes are those that were written. They do not say that a text is UTF-8, and files that gdsload
did not write have none.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gdsload.errors import Problem
from gdsload.shards.format.dtypes import DType
from gdsload.shards.format.header import TensorEntry
from gdsload.shards.format.image_header import image_codec
from gdsload.shards.verify.opened import PIECE_BYTES, OpenShard

_SIGNATURE_BYTES = 12
_BYTES_NOT_FINITE: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
    "F8_E4M3": ((0x7F, 0xFF), ()),
    "F8_E5M2": ((0x7D, 0x7E, 0x7F, 0xFD, 0xFE, 0xFF), (0x7C, 0xFC)),
    "F8_E8M0": ((0xFF,), ()),
    "F8_E4M3FNUZ": ((0x80,), ()),
    "F8_E5M2FNUZ": ((0x80,), ()),
}
"""Of the element types of eight bits the bytes that are NaN, and those that are infinite. Numpy does not have them."""


@dataclass(frozen=True, slots=True)
class FieldBytes:
    """Consecutive bytes of a field, which in a packed column are not neighbours in the file.

    Attributes:
        name: the field's.
        dtype: its element type.
        data: the bytes.
        offset: the place of the first of them in the file.
        size: how many of them are neighbours there; 0: all.
        stride: bytes from the begin of one such group to the begin of the next.
    """

    name: str
    dtype: DType
    data: memoryview
    offset: int
    size: int = 0
    stride: int = 0

    def at(self, position: int) -> int:
        """The offset in the file of the byte of this number."""
        row, within = divmod(position, self.size) if self.size else (0, position)
        return self.offset + row * self.stride + within


class PackedRows:
    """The fields of a packed column, out of pieces of it that may end within a row.

    Args:
        opened: the shard.
        entry: the column.
    """

    def __init__(self, opened: OpenShard, entry: TensorEntry) -> None:
        self._stored, self._column, self._row_bytes = opened.shard.stored, entry.name, entry.shape[1]
        self._rest, self._offset = np.empty(0, np.uint8), entry.begin

    def fields(self, piece: memoryview) -> Iterator[FieldBytes]:
        """The fields of the rows that end in the next piece."""
        data = np.concatenate([self._rest, np.frombuffer(piece, np.uint8)])
        count, offset = len(data) // self._row_bytes, self._offset
        self._rest = data[count * self._row_bytes :]
        self._offset += count * self._row_bytes
        rows = data[: count * self._row_bytes].reshape(count, self._row_bytes)
        for name, begin in self._stored.places[self._column].items() if count else ():
            field = self._stored.schema[name]
            values = np.ascontiguousarray(rows[:, begin : begin + field.row_bytes]).reshape(-1)
            yield FieldBytes(name, field.dtype, values.data, offset + begin, field.row_bytes, self._row_bytes)


def not_finite(data: memoryview, dtype: DType) -> tuple[int, int]:
    """The number of NaNs, and of infinite numbers; a complex number is what either of its parts is."""
    if dtype.code in _BYTES_NOT_FINITE:
        counts = np.bincount(np.frombuffer(data, np.uint8), minlength=256)
        nan, infinite = (int(counts[list(codes)].sum()) for codes in _BYTES_NOT_FINITE[dtype.code])
        return nan, infinite
    if dtype.code not in ("F16", "BF16", "F32", "F64", "C64"):
        return 0, 0
    numbers: NDArray[Any]
    if dtype.code == "BF16":  # the upper half of a float32
        numbers = (np.frombuffer(data, np.uint16).astype(np.uint32) << 16).view(np.float32)
    else:
        numbers = np.frombuffer(data, dtype.name)
    return int(np.isnan(numbers).sum()), int(np.isinf(numbers).sum())


def wrong_booleans(opened: OpenShard, entry: TensorEntry, found: FieldBytes) -> Iterator[Problem]:
    """Bytes of a bool field that are neither 0 nor 1: what torch makes of them differs from operation to operation."""
    wrong = np.flatnonzero(np.frombuffer(found.data, np.uint8) > 1)
    if len(wrong):
        low, high = found.at(int(wrong[0])), found.at(int(wrong[-1])) + 1
        yield opened.problem(f"{len(wrong)} values are neither 0 nor 1", entry, low, high - low, found.name)


def wrong_texts(opened: OpenShard, entry: TensorEntry, offsets_begin: int) -> Iterator[Problem]:
    """Texts that are no UTF-8; neighbours are one problem. The offsets must have been found to be right."""
    offsets = opened.offsets(offsets_begin)
    low, samples = 0, opened.shard.samples
    while low < samples:
        room = int(offsets[low]) + PIECE_BYTES
        high = max(int(np.searchsorted(offsets, room, side="right")) - 1, low + 1)
        edges = offsets[low : high + 1]
        data = bytearray(int(edges[-1] - edges[0]))
        opened.read(memoryview(data), entry.begin + int(edges[0]))
        for first, after, reason in runs_of(text_faults(bytes(data), edges - edges[0])):
            message = f"{after - first} texts are no valid UTF-8: {reason}"
            yield _problem(opened, entry, message, offsets, (low + first, low + after))
        low = high


def wrong_images(opened: OpenShard, entry: TensorEntry, offsets_begin: int) -> Iterator[Problem]:
    """Encoded images that do not begin as one of their field's codecs does; neighbours are one problem.

    The offsets must have been found to be right.
    """
    offsets, codecs = opened.offsets(offsets_begin), opened.shard.stored.columns[entry.name].codecs

    def fault(begin: int, nbytes: int) -> str | None:
        head = bytearray(min(nbytes, _SIGNATURE_BYTES))
        opened.read(memoryview(head), entry.begin + begin)
        return None if image_codec(bytes(head)) in codecs else "another"

    faults = (fault(*place) for place in zip(offsets[:-1].tolist(), np.diff(offsets).tolist(), strict=True))
    for first, after, _ in runs_of(faults):
        message = f"{after - first} images are none of {', '.join(codecs)}"
        yield _problem(opened, entry, message, offsets, (first, after))


def _problem(
    opened: OpenShard, entry: TensorEntry, message: str, offsets: NDArray[np.int64], samples: tuple[int, int]
) -> Problem:
    """The problem of some samples of a ragged field."""
    begin, end = (int(offsets[number]) for number in samples)
    numbers = opened.first + samples[0], opened.first + samples[1]
    return Problem(message, opened.path, entry.begin + begin, entry.name, numbers, end - begin)


def runs_of(faults: Iterable[str | None]) -> Iterator[tuple[int, int, str]]:
    """Runs of samples that have a fault: the first, one after the last, and the fault of the first."""
    run: tuple[int, str] | None = None
    for number, fault in enumerate(chain(faults, [None])):
        if fault is not None:
            run = run or (number, fault)
        elif run is not None:
            yield run[0], number, run[1]
            run = None


def text_faults(data: bytes, edges: NDArray[np.int64]) -> Iterable[str | None]:
    """For each text what is wrong with it, if anything is. They end and begin at these edges of the data."""
    heads = np.frombuffer(data, np.uint8)[edges[:-1][np.diff(edges) > 0]]
    if _fault(data) is None and not ((heads & 0xC0) == 0x80).any():  # and none begins in the middle of a character
        return ()
    return (_fault(data[low:high]) for low, high in pairwise(edges.tolist()))


def _fault(text: bytes) -> str | None:
    try:
        text.decode("utf-8")
    except UnicodeDecodeError as error:
        return f"{error.reason} at byte {error.start} of the text"
    return None
