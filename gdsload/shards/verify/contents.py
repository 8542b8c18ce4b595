"""What bytes mean: whether a loader can make samples of them, and which of their numbers are not finite.

Right checksums say that bytes are those that were written. They do not say that a text is UTF-8, and files that gdsload
did not write have none.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray

from gdsload.errors import Problem
from gdsload.shards.format.dtypes import DType
from gdsload.shards.format.header import TensorEntry
from gdsload.shards.shard_checksums import PIECE_BYTES
from gdsload.shards.values import torch_dtype
from gdsload.shards.verify.opened import OpenShard

__all__ = ["not_finite", "wrong_booleans", "wrong_runs", "wrong_texts"]


def not_finite(data: memoryview, dtype: DType) -> tuple[int, int]:
    """How many numbers are NaN, and how many infinite."""
    kind = torch_dtype(dtype)
    if not (kind.is_floating_point or kind.is_complex):
        return 0, 0
    numbers = torch.frombuffer(data, dtype=kind)
    if dtype.itemsize == 1:
        numbers = numbers.to(torch.float32)  # torch has no such tests for eight bits
    return int(numbers.isnan().sum()), int(numbers.isinf().sum())


def wrong_booleans(opened: OpenShard, entry: TensorEntry, offset: int, data: memoryview) -> Iterator[Problem]:
    """Bytes of a bool field that are neither 0 nor 1: what torch makes of them differs from operation to operation."""
    wrong = np.flatnonzero(np.frombuffer(data, np.uint8) > 1)
    if len(wrong):
        low, high = int(wrong[0]), int(wrong[-1]) + 1
        yield opened.problem(f"{len(wrong)} values are neither 0 nor 1", entry, offset + low, high - low)


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
        for first, last, reason in wrong_runs(bytes(data), edges - edges[0]):
            begin, end = int(edges[first]), int(edges[last])
            message = f"{last - first} texts are no valid UTF-8: {reason}"
            numbers = opened.first + low + first, opened.first + low + last
            yield Problem(message, opened.path, entry.begin + begin, entry.name, numbers, end - begin)
        low = high


def wrong_runs(data: bytes, edges: NDArray[np.int64]) -> Iterator[tuple[int, int, str]]:
    """Runs of wrong texts: the first, one after the last, and what is wrong with the first."""
    if _all_right(data, edges):
        return
    run: tuple[int, str] | None = None
    for number in range(len(edges)):
        reason = _fault(data[edges[number] : edges[number + 1]]) if number + 1 < len(edges) else None
        if reason is not None:
            run = run or (number, reason)
        elif run is not None:
            yield run[0], number, run[1]
            run = None


def _all_right(data: bytes, edges: NDArray[np.int64]) -> bool:
    """Whether all are right together, and none begins in the middle of a character."""
    begins = edges[:-1][np.diff(edges) > 0]
    heads = np.frombuffer(data, np.uint8)[begins]
    return _fault(data) is None and not ((heads & 0xC0) == 0x80).any()


def _fault(text: bytes) -> str | None:
    try:
        text.decode("utf-8")
    except UnicodeDecodeError as error:
        return f"{error.reason} at byte {error.start} of the text"
    return None
