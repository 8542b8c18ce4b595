"""The gather: rows from absolute addresses into one dense piece of memory.

One routine for every backend and every order: it takes addresses, a row size in whole bytes, and a destination. On the
CPU all host memory is viewed as overlapping rows, so that any number of shards and arenas needs no table, and torch's
`index_select` copies the rows with torch's threads and without the interpreter lock.

Consecutive rows are copied as runs, which is as fast as a plain copy of that memory.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import numpy as np
import torch

from gdsload.shards.reads import within
from gdsload.system.arrays import IntArray
from gdsload.system.memory_views import dense_view, row_view
from gdsload.system.piece_copies import concatenate, usable

_RUN_BYTES = 16 * 1024
"""Mean length from which runs are copied one by one: such a copy takes longer than the call that starts it."""
_PIECE_BYTES, _PIECE_BYTES_ALONE = 384, 1024
"""The same for pieces of different lengths, whose elements would be addressed one by one: many copied by one call take
half the time at 512 bytes, and the same at 256; each copied by its own call takes the same at 1000, where threads wait
for each other's copies."""
_SHORT_PIECE_BYTES = 8 * 1024
"""See `gather_pieces`."""
_FEW_PIECES = 32
"""Pieces up to which copies one by one are faster than preparing that call."""
_MOST_ROWS_AT_ONCE = 1 << 22
"""Elements that a piecewise gather addresses at once: their addresses take 8 bytes each."""
_LONG_PIECE_BYTES = 1 << 20
"""Pieces from this length on are never addressed element by element: that takes many times their memory."""


def gather_rows(addresses: IntArray, row_bytes: int, out: int) -> None:
    """Copy rows of one size into dense memory.

    Args:
        addresses: host address of each row, shape ``[rows]``.
        row_bytes: bytes a row.
        out: host address of ``rows * row_bytes`` bytes for this call alone.
    """
    count = len(addresses)
    if not count or not row_bytes:
        return
    first = run_starts(addresses, row_bytes)
    if 2 * len(first) <= count and count * row_bytes >= len(first) * _RUN_BYTES:
        _copy_runs(addresses[first], np.diff(np.append(first, count)) * row_bytes, out)
        return
    take_rows(addresses, row_bytes, out)


def take_rows(addresses: IntArray, row_bytes: int, out: int) -> None:
    """Copy rows of one size into dense memory, each for itself: shared out among torch's threads, wherever they are.

    Args:
        addresses: host address of each row, shape ``[rows]``; at least one.
        row_bytes: bytes a row; at least one.
        out: host address of ``rows * row_bytes`` bytes for this call alone.
    """
    count = len(addresses)
    unit = unit_of(int(np.bitwise_or.reduce(addresses)) | row_bytes | out)
    if row_bytes == unit:
        _take(addresses, unit, out)
        return
    low, high = int(addresses.min()), int(addresses.max())
    if ((high - low) // unit + 1) * row_bytes >= 1 << 63:
        # numpy and torch count the bytes of overlapping rows as if they did not overlap.
        _copy_runs(addresses, np.full(count, row_bytes, np.int64), out)
        return
    index = torch.from_numpy((addresses - low) // unit)
    target = dense_view(unit, row_bytes, out, count)
    torch.index_select(row_view(unit, row_bytes, low, high), 0, index, out=target)


def gather_pieces(
    addresses: IntArray, lengths: IntArray, row_bytes: int, out: int, *, short_bytes: int = _SHORT_PIECE_BYTES
) -> None:
    """Copy pieces of different lengths into dense memory, one after the other.

    Args:
        addresses: host address of each piece, shape ``[pieces]``.
        lengths: rows of each piece, shape ``[pieces]``.
        row_bytes: bytes a row.
        out: host address of ``sum(lengths) * row_bytes`` bytes that are nobody else's.
        short_bytes: mean length up to which pieces are copied many by one call. By default longer ones are not: each
            copy takes longer than getting the interpreter lock back from another thread. It does not where a dozen
            threads want that lock.
    """
    filled = np.flatnonzero(lengths)
    if not row_bytes or not len(filled):
        return
    addresses, nbytes = addresses[filled], lengths[filled] * row_bytes
    first = run_starts(addresses, nbytes[:-1])
    addresses, nbytes = addresses[first], np.add.reduceat(nbytes, first)
    # Long ones by themselves: the best copy of those between them does not depend on them.
    low = 0
    for place in np.flatnonzero(nbytes >= _LONG_PIECE_BYTES).tolist():
        out = _gather_short(addresses[low:place], nbytes[low:place], row_bytes, out, short_bytes)
        ctypes.memmove(out, int(addresses[place]), length := int(nbytes[place]))
        out, low = out + length, place + 1
    _gather_short(addresses[low:], nbytes[low:], row_bytes, out, short_bytes)


def _gather_short(addresses: IntArray, nbytes: IntArray, row_bytes: int, out: int, short_bytes: int) -> int:
    """Copy pieces of which none is long, each whole or element by element; gives the address after them."""
    if not len(addresses):
        return out
    ends = np.cumsum(nbytes)
    stop = out + int(ends[-1])
    if ends[-1] >= len(nbytes) * (_PIECE_BYTES if usable() else _PIECE_BYTES_ALONE):
        _copy_runs(addresses, nbytes, out, short_bytes)
        return stop
    unit, starts, low = unit_of(int(np.bitwise_or.reduce(addresses)) | row_bytes | out), ends - nbytes, 0
    while low < len(addresses):
        high = max(low + 1, int(np.searchsorted(starts, starts[low] + _MOST_ROWS_AT_ONCE * unit)))
        counts = nbytes[low:high] // unit
        _take(np.repeat(addresses[low:high], counts) + within(counts) * unit, unit, out + int(starts[low]))
        low = high
    return stop


def limit_threads(count: int) -> None:
    """Set the number of torch's threads that share the gathers of the calling thread from now on.

    Other threads keep their number. A gather that is shared waits for the slowest thread: on busy processors, one
    thread is best.
    """
    torch.get_num_threads()  # torch sets a thread's number on its first use, and would undo what follows
    for library in _libraries():
        library.set_num_threads(count)


@contextmanager
def one_thread() -> Iterator[None]:
    """A context in which the calling thread gathers alone."""
    torch.get_num_threads()
    before = [library.get_num_threads() for library in _libraries()]
    try:
        limit_threads(1)
        yield
    finally:
        for library, count in zip(_libraries(), before, strict=True):
            library.set_num_threads(count)


@lru_cache(maxsize=1)
def _libraries() -> list[Any]:
    """The OpenMP libraries of this process, as threadpoolctl knows them."""
    from threadpoolctl import ThreadpoolController

    found: list[Any] = ThreadpoolController().select(user_api="openmp").lib_controllers
    return found


def run_starts(addresses: IntArray, nbytes: int | IntArray) -> IntArray:
    """Indices of rows that do not directly follow the one before; `nbytes`: of every row, or of each but the last."""
    joined = np.ones(len(addresses), bool)
    np.not_equal(addresses[1:], addresses[:-1] + nbytes, out=joined[1:])
    return np.flatnonzero(joined)


def cut_runs(first: IntArray, addresses: IntArray, row_bytes: int, begins: IntArray) -> IntArray:
    """The runs of rows that begin at `first`, cut where one reaches from one allocation into another.

    Args:
        first: index of each run's first row.
        addresses: address of each row. No row reaches into another allocation.
        row_bytes: bytes a row.
        begins: address of each allocation, in rising order.
    """
    starts = addresses[first]
    if not len(begins) or begins[-1] <= starts.min():  # none is inside a run
        return first
    rows = np.diff(np.append(first, len(addresses)))
    below = np.searchsorted(begins, starts, side="right")
    above = np.searchsorted(begins, starts + rows * row_bytes, side="left")
    cuts = [
        first[run] + (begins[below[run] : above[run]] - starts[run]) // row_bytes
        for run in np.flatnonzero(above > below).tolist()
    ]
    return np.sort(np.concatenate([first, *cuts]))


def unit_of(bits: int) -> int:
    """The widest integer, in bytes, of which all of the addresses and sizes or-ed into `bits` are multiples."""
    return min(bits & -bits, 8)


def _copy_runs(addresses: IntArray, nbytes: IntArray, out: int, short_bytes: int = _SHORT_PIECE_BYTES) -> None:
    short = len(addresses) > _FEW_PIECES and int(nbytes.sum()) <= len(addresses) * short_bytes
    if short and usable() and concatenate(addresses, nbytes, out):
        return  # else all are copied again: the obstacle is found again, or is gone
    # memmove, because it lets go of the interpreter lock, and copies a megabyte in 3/4 of the time of torch's copy_.
    targets = (out + np.cumsum(nbytes) - nbytes).tolist()
    for source, length, target in zip(addresses.tolist(), nbytes.tolist(), targets, strict=True):
        ctypes.memmove(target, source, length)


def _take(addresses: IntArray, unit: int, out: int) -> None:
    """Single elements: numpy's `take` is the fastest there is, but wants a plain vector around them."""
    low, high = int(addresses.min()), int(addresses.max())
    source = dense_view(unit, unit, low, (high - low) // unit + 1).numpy().reshape(-1)
    target = dense_view(unit, unit, out, len(addresses)).numpy().reshape(-1)
    np.take(source, (addresses - low) // unit, out=target, mode="clip")
