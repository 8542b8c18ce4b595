"""The speed of a drive: reads around the page cache, at random and in order, with few and with many under way."""

from __future__ import annotations

import errno
import mmap
import os
import time
from collections.abc import Callable, Sequence
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
"""Longer reads are cut: the kernel cuts them, too."""
_MOST_FILES = 256
_BUFFER_BYTES = 16 * 2**20
_MOST_UNDER_WAY_BYTES = 512 * 2**20

DEPTHS = ((4, 1), (16, 1), (8, 8), (8, 32), (16, 256))
"""Threads, and reads that each has under way at once."""
_TIMED = (16, 1)
"""That of `DEPTHS` whose reads are timed one by one."""
IN_ORDER = ((1, 4), (4, 4), (16, 1))
_IN_ORDER_BYTES = 4 * 2**20


@dataclass(frozen=True, slots=True)
class DriveRate:
    """The speed of a drive.

    Attributes:
        gb_per_s: reads of `read_bytes` at random, at the best depth.
        read_bytes: bytes of a read, a multiple of 4096.
        threads: threads that read at the best depth.
        depth: reads under way at once at the best depth, all threads together.
        p50_ms: median time of one read where at most 16 are under way; None if that depth was not tried.
        p99_ms: the time that 99 of 100 reads do not exceed, likewise.
        sequential_gb_per_s: blocks of 4 MiB in order, at the best depth.
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
    """Read files with O_DIRECT at several depths, for so many seconds in all, and return the best rates.

    Args:
        files: the files; of more than 256, so many of them are read.
        read_bytes: bytes of a read at random; rounded up to 4096, and 8 MiB at most.
        seconds: how long it takes.
        depths: threads, and reads that each has under way at once, at random.
        in_order: the same, of blocks of 4 MiB in order; none: their rate is 0.

    Raises:
        ReadError: if a file cannot be read with O_DIRECT, or none is as long as a read.
    """
    step = -(-len(files) // _MOST_FILES)
    with ExitStack() as stack:
        drive = _Drive(files[:: max(step, 1)], stack)
        size = drive.fitting(read_bytes)
        each_s = seconds / (len(depths) + len(in_order))
        usable = [depth for depth in depths if depth[0] * depth[1] * size <= _MOST_UNDER_WAY_BYTES] or [min(depths)]
        found = {depth: drive.rate(depth, size, each_s, drive.at_random) for depth in usable}
        times = np.array(drive.times)
        block = drive.fitting(_IN_ORDER_BYTES)
        ordered = max((drive.rate(depth, block, each_s, drive.in_order) for depth in in_order), default=0.0)
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
        self._random = np.random.default_rng()  # others in every run: what lies below may have a cache
        self.times: list[float] = []
        """Milliseconds of each read that was timed."""

    def fitting(self, read_bytes: int) -> int:
        """The bytes of a read that some file is long enough for."""
        longest = int(self._lengths.max(initial=0))
        if not longest:
            raise ReadError(f"no file has {_ALIGNED_BYTES} bytes, so there is nothing to read at full speed")
        return min(-(-max(read_bytes, 1) // _ALIGNED_BYTES) * _ALIGNED_BYTES, _MOST_READ_BYTES, longest)

    def rate(self, depth: tuple[int, int], size: int, seconds: float, draw: Callable[[int], Places]) -> float:
        """Bytes a second of so many threads, each with so many reads of `size` bytes under way."""
        threads, each = depth
        places = draw(size)
        timed = self.times if depth == _TIMED and places.random else None
        found: list[float] = []
        with closing(Pool(threads, "gdsload-drive")) as pool:
            pool.run([partial(self._read, places, each, seconds, (found, timed))] * threads).wait()
        return sum(found)

    def at_random(self, size: int) -> Places:
        """Reads anywhere."""
        return Places(self._fds, self._lengths, size, self._random)

    def in_order(self, size: int) -> Places:
        """Reads of one block after the other, from a place that is drawn."""
        return Places(self._fds, self._lengths, size, self._random, count(int(self._random.integers(2**40))))

    def _read(self, places: Places, each: int, seconds: float, noted: tuple[list[float], list[float] | None]) -> None:
        found, times = noted
        room = max(min(each * places.size, _BUFFER_BYTES) // places.size, 1)
        with mmap.mmap(-1, room * places.size) as memory:  # begins with a page
            view = np.frombuffer(memory, np.uint8)
            addresses = address_of(view) + np.arange(each) % room * places.size
            self._reader.read(*places(each), addresses)  # which wakes the drive
            begun = now = time.perf_counter()
            total = 0
            while now < begun + seconds:
                results = self._reader.read(*places(each), addresses)
                if (results <= 0).any():
                    raise self._failed(int(results.min()))
                total += int(results.sum())
                before, now = now, time.perf_counter()
                if times is not None:
                    times.append((now - before) * 1e3)
            found.append(total / (now - begun))
            del view

    def _failed(self, result: int) -> ReadError:
        return ReadError(f"reading with O_DIRECT failed: {os.strerror(-result or errno.EIO)}", file=self._file)


class Places:
    """The places of reads of one size: descriptors, offsets and lengths of the next ones. Threads may call it."""

    def __init__(
        self, fds: IntArray, lengths: IntArray, size: int, random: np.random.Generator, order: count[int] | None = None
    ) -> None:
        self.size, self.random, self._order = size, order is None, order
        self._drawn = random.spawn(1)[0]
        self._fds, blocks = fds[lengths >= size], lengths[lengths >= size] // _ALIGNED_BYTES
        step = size if order is not None else _ALIGNED_BYTES
        self._step, places = step, (blocks * _ALIGNED_BYTES - size) // step + 1
        self._ends = np.cumsum(places)
        self._starts = self._ends - places

    def __call__(self, number: int) -> tuple[IntArray, IntArray, IntArray]:
        """Descriptors, offsets and lengths of so many reads; int64, one length."""
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
