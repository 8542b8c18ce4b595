"""The throughput and latency of a drive: O_DIRECT reads, random and sequential, at several queue depths."""

from __future__ import annotations

import errno
import mmap
import os
import time
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import partial
from itertools import count

import numpy as np

from gdsload.errors import ReadError
from gdsload.system.arrays import IntArray
from gdsload.system.bulk_reads import BulkReads
from gdsload.system.memory import address_of
from gdsload.system.pool import Pool

_ALIGNED_BYTES = 4096
"""The alignment of O_DIRECT on all but few devices (statx, STATX_DIOALIGN)."""
_MOST_READ_BYTES = 8 * 2**20
"""Longer reads are split, as the kernel splits them."""
_MOST_FILES = 256
_BUFFER_BYTES = 16 * 2**20
_MOST_UNDER_WAY_BYTES = 512 * 2**20

DEPTHS = ((4, 1), (16, 1), (8, 8), (8, 32), (16, 256))
"""Pairs of a number of threads and the queue depth of each."""
_TIMED = (16, 1)
"""The pair of `DEPTHS` whose reads are timed one by one."""
IN_ORDER = ((1, 4), (4, 4), (16, 1))
_IN_ORDER_BYTES = 4 * 2**20


@dataclass(frozen=True, slots=True)
class DriveRate:
    """The throughput and latency of a drive.

    Attributes:
        gb_per_s: throughput of random reads of `read_bytes`, at the best queue depth.
        read_bytes: bytes of a read, a multiple of 4096.
        threads: number of threads at the best queue depth.
        depth: the best queue depth, over all threads.
        p50_ms: median latency of a read at a queue depth of 16; None if that depth was not measured.
        p99_ms: 99th percentile of the same latency.
        sequential_gb_per_s: throughput of sequential blocks of 4 MiB, at the best queue depth.
    """

    gb_per_s: float
    read_bytes: int
    threads: int
    depth: int
    p50_ms: float | None
    p99_ms: float | None
    sequential_gb_per_s: float


def measure_drive(
    files: Sequence[str],
    read_bytes: int,
    seconds: float,
    depths: Sequence[tuple[int, int]] = DEPTHS,
    in_order: Sequence[tuple[int, int]] = IN_ORDER,
) -> DriveRate:
    """Read files with O_DIRECT at several queue depths, and return the best rates.

    Args:
        files: the files; at most 256 of them are read.
        read_bytes: bytes of a random read, rounded up to a multiple of 4096, at most 8 MiB.
        seconds: the duration of the whole measurement.
        depths: pairs of a number of threads and the queue depth of each, for random reads.
        in_order: the same for sequential blocks of 4 MiB; if empty, their rate is 0.

    Raises:
        ReadError: if a file cannot be read with O_DIRECT, or no file has 4096 bytes.
    """
    step = -(-len(files) // _MOST_FILES)
    with ExitStack() as stack:
        drive = _Drive(files[:: max(step, 1)], stack)
        size = drive.fitting(read_bytes)
        each_s = seconds / (len(depths) + len(in_order))
        usable = [depth for depth in depths if depth[0] * depth[1] * size <= _MOST_UNDER_WAY_BYTES] or [min(depths)]
        found = {depth: drive.rate(depth, size, each_s) for depth in usable}
        times = np.array(drive.times)
        block = drive.fitting(_IN_ORDER_BYTES)
        ordered = max((drive.rate(depth, block, each_s, in_order=True) for depth in in_order), default=0.0)
        best = max(found, key=found.__getitem__)
        p50, p99 = np.percentile(times, [50, 99]).tolist() if len(times) else (None, None)
        return DriveRate(found[best] / 1e9, size, best[0], best[0] * best[1], p50, p99, ordered / 1e9)


class _Drive:
    """Open files, and reads of them."""

    def __init__(self, files: Sequence[str], stack: ExitStack) -> None:
        self._reader = stack.enter_context(closing(BulkReads()))
        self._fds = np.array([_open(file, stack) for file in files], np.int64)
        self._lengths = np.array([os.fstat(fd).st_size // _ALIGNED_BYTES * _ALIGNED_BYTES for fd in self._fds.tolist()])
        self._file = files[0] if files else ""
        self._random = np.random.default_rng()  # other places in every run, since the drive may have a cache
        self.times: list[float] = []
        """The latencies of the timed reads, in milliseconds."""

    def fitting(self, read_bytes: int) -> int:
        """The size of a read, reduced to the length of the longest file."""
        longest = int(self._lengths.max(initial=0))
        if not longest:
            raise ReadError(f"no file has {_ALIGNED_BYTES} bytes, so the drive cannot be measured")
        return min(-(-max(read_bytes, 1) // _ALIGNED_BYTES) * _ALIGNED_BYTES, _MOST_READ_BYTES, longest)

    def rate(self, depth: tuple[int, int], size: int, seconds: float, *, in_order: bool = False) -> float:
        """The throughput in bytes per second at a queue depth, with reads of `size` bytes.

        With `in_order` they are sequential from a random start, otherwise at random.
        """
        threads, each = depth
        order = count(int(self._random.integers(2**40))) if in_order else None
        places = Places(self._fds, self._lengths, size, self._random, order)
        timed = self.times if depth == _TIMED and not in_order else None
        found: list[float] = []
        with closing(Pool(threads, "gdsload-drive")) as pool:
            pool.run([partial(self._read, places, each, seconds, (found, timed))] * threads).wait()
        return sum(found)

    def _read(self, places: Places, each: int, seconds: float, noted: tuple[list[float], list[float] | None]) -> None:
        found, times = noted
        room = max(min(each * places.size, _BUFFER_BYTES) // places.size, 1)
        with mmap.mmap(-1, room * places.size) as memory:  # begins with a page
            view = np.frombuffer(memory, np.uint8)
            addresses = address_of(view) + np.arange(each) % room * places.size
            self._reader.read(*places(each), addresses)  # not timed: it wakes the drive
            begun = now = time.perf_counter()
            total = 0
            while now < begun + seconds:
                results = self._reader.read(*places(each), addresses)
                if (results <= 0).any():
                    why = os.strerror(-int(results.min()) or errno.EIO)
                    raise ReadError(f"reading with O_DIRECT failed: {why}", file=self._file)
                total += int(results.sum())
                before, now = now, time.perf_counter()
                if times is not None:
                    times.append((now - before) * 1e3)
            found.append(total / (now - begun))
            del view


class Places:
    """The places of reads of one size. Several threads may call it."""

    def __init__(
        self, fds: IntArray, lengths: IntArray, size: int, random: np.random.Generator, order: count[int] | None = None
    ) -> None:
        self.size, self._order = size, order
        self._drawn = random.spawn(1)[0]
        self._fds, blocks = fds[lengths >= size], lengths[lengths >= size] // _ALIGNED_BYTES
        step = size if order is not None else _ALIGNED_BYTES
        self._step, places = step, (blocks * _ALIGNED_BYTES - size) // step + 1
        self._ends = np.cumsum(places)
        self._starts = self._ends - places

    def __call__(self, number: int) -> tuple[IntArray, IntArray, IntArray]:
        """Descriptors, offsets and lengths of the next `number` reads, int64 ``[number]`` each."""
        if self._order is None:
            place = self._drawn.integers(self._ends[-1], size=number)
        else:
            place = np.array([next(self._order) for _ in range(number)]) % self._ends[-1]
        file = np.searchsorted(self._ends, place, side="right")
        return self._fds[file], (place - self._starts[file]) * self._step, np.full(number, self.size)


def _open(file: str, stack: ExitStack) -> int:
    try:
        fd = os.open(file, os.O_RDONLY | os.O_DIRECT | os.O_CLOEXEC)
    except OSError as error:
        raise ReadError(f"the file cannot be opened with O_DIRECT: {error.strerror}", file=file) from None
    stack.callback(os.close, fd)
    return fd
