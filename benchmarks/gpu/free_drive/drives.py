"""Simulated drives: reads of theirs move no byte, and return at once or when a model says that they would have ended.

The model has `depth` places. A read that finds all of them taken waits for the first that is free, takes `latency_s` to
be found, and is then transferred at `bytes_s`, after the reads that came before it: the link to the drive is shared.

    start = max(asked, end of the read that had the place)
    end = max(start + latency, end of the read before) + bytes / bandwidth

Ends are in the order of the reads, so one pass of numpy over a group gives them all, and the call waits for the last.
Of several drives each has its own model, and a call waits for the last of all its reads.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import re
import statistics
import threading
import time
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch

from gdsload.backends.gds.engines import Engine, one_by_one
from gdsload.backends.gds.gds import GdsBackend
from gdsload.backends.request import BackendRequest, BackendRow, OpenedBackend, one_way
from gdsload.shards.files import Files
from gdsload.shards.local_files import LocalFiles
from gdsload.system.arrays import IntArray
from gdsload.system.bulk_reads import BulkReads
from gdsload.system.cufile_batches import READS
from gdsload.system.memory import memory_at
from gdsload.system.streams import DeviceBytes

__all__ = ["FREE", "Clock", "Drive", "Speed", "Timeline", "drive_of", "parse_speed", "real", "simulated"]

FREE = "free"
_PR_SET_TIMERSLACK = 29
_UNITS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9, "GB/s": 1e9, "MB/s": 1e6}
_libc = ctypes.CDLL(None)


@dataclass(frozen=True, slots=True)
class Speed:
    """The speed of a simulated drive.

    Attributes:
        bytes_s: bytes a second.
        latency_s: seconds from the start of a read to its first byte.
        depth: how many reads it takes at once.
    """

    bytes_s: float
    latency_s: float
    depth: int


def parse_speed(text: str) -> Speed | None:
    """``"25GB/s,80us,256"``: bandwidth, latency, reads at once; None for ``"free"``.

    Raises:
        ValueError: if it is neither.
    """
    if text == FREE:
        return None
    try:
        bandwidth, latency, depth = text.replace(" ", "").split(",")
        speed = Speed(_number(bandwidth, "GB/s", "MB/s"), _number(latency, "us", "ms", "ns", "s"), int(depth))
    except ValueError:
        raise ValueError(f"{text!r} is neither {FREE!r} nor as '25GB/s,80us,256'") from None
    if min(speed.bytes_s, speed.depth) <= 0 or speed.latency_s < 0:
        raise ValueError(f"{text!r} is no drive's speed")
    return speed


def _number(text: str, *units: str) -> float:
    unit = next((unit for unit in units if text.endswith(unit)), "")
    if not unit:
        raise ValueError(text)
    return float(text.removesuffix(unit)) * _UNITS[unit]


class Clock:
    """Waits for a moment without taking a processor for it.

    The thread sleeps, with the kernel's timer slack (50 µs) switched off for it. It is woken later than it asked for by
    what `late_s` says of this machine; so much earlier it is asked for.
    """

    def __init__(self) -> None:
        self._threads = threading.local()
        self.late_s = 0.0
        late = {about_s: self._late(about_s) for about_s in (20e-6, 80e-6, 200e-6, 1e-3)}
        self.late_s = statistics.median(each for found in late.values() for each in found)
        self.measured = {
            f"{about_s * 1e6:.0f} us": {
                "late_us": 1e6 * statistics.median(found),
                "late_us_of_one_in_ten": 1e6 * sorted(found)[len(found) * 9 // 10],
            }
            for about_s, found in late.items()
        }

    def _late(self, about_s: float) -> list[float]:
        found = []
        for _ in range(50):
            until = time.perf_counter() + about_s
            self.wait(until)
            found.append(time.perf_counter() - until)
        return found

    def wait(self, until: float) -> None:
        """Return at this moment of `time.perf_counter`, or at once if it is past."""
        left = until - time.perf_counter() - self.late_s
        if left <= 0:
            return
        if not hasattr(self._threads, "exact"):
            _libc.prctl(_PR_SET_TIMERSLACK, 1, 0, 0, 0)
            self._threads.exact = True
        time.sleep(left)


class Timeline:
    """When reads of a drive end; see the module's text. Its methods may be called from several threads."""

    def __init__(self, speed: Speed) -> None:
        self._speed = speed
        self._ends = array("d", bytes(8 * speed.depth))
        self._places = np.frombuffer(self._ends)  # the same memory
        """The end of the read that has, or had, each place; they are taken in turn."""
        self._at, self._last = 0, 0.0
        self._lock = threading.Lock()

    def one(self, now: float, nbytes: int) -> float:
        """The end of a read that is asked for now."""
        speed = self._speed
        with self._lock:
            start = max(now, self._ends[self._at])
            end = max(start + speed.latency_s, self._last) + nbytes / speed.bytes_s
            self._ends[self._at] = self._last = end
            self._at = (self._at + 1) % speed.depth
        return end

    def many(self, now: float, nbytes: IntArray) -> float:
        """The end of the last of some reads that are asked for now, all together."""
        speed, low = self._speed, 0
        takes = nbytes / speed.bytes_s
        with self._lock:
            while low < len(takes):
                part = takes[low : low + speed.depth - self._at]
                places = self._places[self._at : self._at + len(part)]
                until = np.cumsum(part)
                ready = np.maximum(places, now) + speed.latency_s
                places[:] = np.maximum(np.maximum.accumulate(ready - until + part), self._last) + until
                self._last = float(places[-1])
                self._at = (self._at + len(part)) % speed.depth
                low += len(part)
            return self._last if low else now


class _Drives:
    """The ends of reads of several drives: shard i is on drive i modulo their number, by the name of its file.

    Args:
        timelines: one for each drive; none: all reads end at once.
        clock: what waits.
    """

    def __init__(self, timelines: Sequence[Timeline], clock: Clock) -> None:
        self._timelines, self._clock = timelines, clock
        self._known: dict[int, int] = {}
        """The drive of each inode: a descriptor may be another file's by the next call."""

    def many(self, fds: IntArray, nbytes: IntArray) -> None:
        """Wait for the end of some reads that are asked for now, all together."""
        if not self._timelines:
            return
        now = time.perf_counter()
        if len(self._timelines) == 1:
            self._clock.wait(self._timelines[0].many(now, nbytes))
            return
        which, place = np.unique(fds, return_inverse=True)
        drives = np.array([self.of(fd) for fd in which.tolist()])[place]
        ends = [self._timelines[drive].many(now, nbytes[drives == drive]) for drive in np.unique(drives).tolist()]
        self._clock.wait(max(ends, default=now))

    def one(self, fd: int, nbytes: int) -> None:
        """Wait for the end of a read that is asked for now."""
        if self._timelines:
            timeline = self._timelines[0 if len(self._timelines) == 1 else self.of(fd)]
            self._clock.wait(timeline.one(time.perf_counter(), nbytes))

    def of(self, fd: int) -> int:
        """The drive of an open file."""
        inode = os.fstat(fd).st_ino
        if inode not in self._known:
            self._known[inode] = drive_of(os.readlink(f"/proc/self/fd/{fd}"), len(self._timelines))
        return self._known[inode]


def drive_of(path: str, drives: int) -> int:
    """The simulated drive of a shard, by its number."""
    found = re.search(r"(\d+)\.safetensors$", path)
    return int(found[1]) % drives if found else 0


class _Reader(BulkReads):
    """Reads into host memory that move no byte.

    Args:
        drives: when they end.
        touch: whether a byte of each page is written. Memory that nobody has ever written to is one page of zeros again
            and again, out of which rows would be gathered faster than out of any other. Pinned memory is not.
    """

    def __init__(self, drives: _Drives, *, touch: bool) -> None:
        super().__init__()
        self._drives, self._touch = drives, touch

    def read(self, fds: IntArray, offsets: IntArray, nbytes: IntArray, addresses: IntArray) -> IntArray:
        """See `BulkReads.read`."""
        if self._touch and len(addresses):
            low, high = int(addresses.min()), int((addresses + nbytes).max())
            np.frombuffer(memory_at(low, high - low), np.uint8)[:: mmap.PAGESIZE] = 1
        self._drives.many(fds, nbytes)
        return nbytes

    def read_one(self, fd: int, offset: int, into: memoryview) -> int:
        """See `BulkReads.read_one`."""
        self._drives.one(fd, len(into))
        return len(into)


class _Engine:
    """Reads into a GPU's memory that move no byte: a `gdsload.backends.gds.engines.Engine`."""

    name = "simulated"
    most_bytes = 2**20

    def __init__(self, drives: _Drives) -> None:
        self._drives = drives
        self._batch = threading.Lock()

    def open(self, _path: str, fd: int) -> int:
        """See `Engine.open`."""
        return os.dup(fd)

    def close(self, handle: int) -> None:
        """See `Engine.close`."""
        os.close(handle)

    def read(self, handle: int, _base: int, _position: int, nbytes: int, _offset: int) -> int:
        """See `Engine.read`."""
        self._drives.one(handle, nbytes)
        return nbytes

    def read_many(
        self, handles: IntArray, _bases: IntArray, _positions: IntArray, nbytes: IntArray, _offsets: IntArray
    ) -> IntArray:
        """See `Engine.read_many`: one batch at a time, as cuFile does it."""
        if int(nbytes.sum()) > len(nbytes) * self.most_bytes:
            self._drives.many(handles, nbytes)
            return nbytes
        for low in range(0, len(nbytes), READS):
            with self._batch:
                self._drives.many(handles[low : low + READS], nbytes[low : low + READS])
        return nbytes

    def end(self) -> None:
        """See `Engine.end`."""

    def register(self, base: int, nbytes: int) -> None:
        """See `Engine.register`."""

    def deregister(self, base: int) -> None:
        """See `Engine.deregister`."""


class _Copies:
    """An engine that does read the bytes, by the CPU: with it the bytes of `gds` can be compared without cuFile."""

    name = "copies"
    most_bytes = 0

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def open(self, _path: str, fd: int) -> int:
        """See `Engine.open`."""
        return os.dup(fd)

    def close(self, handle: int) -> None:
        """See `Engine.close`."""
        os.close(handle)

    def read(self, handle: int, base: int, position: int, nbytes: int, offset: int) -> int:
        """See `Engine.read`."""
        with mmap.mmap(-1, -(-nbytes // mmap.PAGESIZE) * mmap.PAGESIZE) as memory:  # O_DIRECT wants whole pages
            count = min(os.preadv(handle, [memory], offset), nbytes)
            host = torch.frombuffer(bytearray(memory[:count]), dtype=torch.uint8)
        slot = torch.as_tensor(DeviceBytes(base + position, count), device=self._device)
        slot.copy_(host)  # out of memory that is not pinned: it is there when this returns
        return count

    def read_many(
        self, handles: IntArray, bases: IntArray, positions: IntArray, nbytes: IntArray, offsets: IntArray
    ) -> IntArray:
        """See `Engine.read_many`."""
        return one_by_one(self, handles, bases, positions, nbytes, offsets)

    def end(self) -> None:
        """See `Engine.end`."""

    def register(self, base: int, nbytes: int) -> None:
        """See `Engine.register`."""

    def deregister(self, base: int) -> None:
        """See `Engine.deregister`."""


@dataclass(frozen=True, slots=True)
class Drive:
    """A drive, or several, in the place of the one at hand.

    Attributes:
        files: the files on it, for `ShardDataset.open_files`.
        engine: makes what the backend `gds` reads them with.
    """

    files: type[LocalFiles]
    engine: Callable[[torch.device], Engine]

    def backend(self, name: str) -> str | BackendRow:
        """A backend of the loader, with this drive's engine if it is `gds`."""
        if name != "gds":
            return name
        return BackendRow(GdsBackend, True, partial(_open_gds, self.engine))


def _open_gds(
    engine: Callable[[torch.device], Engine], request: BackendRequest, files: Files, _found: object
) -> OpenedBackend:
    backend = GdsBackend(files, request.device, engine=engine, **request.threads)
    return one_way(backend, "gds", "asked for", "by a stand-in for cuFile")


def real(drives: int = 1, *, one_queue: bool = False) -> Drive:
    """The drive at hand, for the comparison of bytes; read, as the simulated ones are, around the page cache."""

    class Uncached(LocalFiles):
        """Local files that are never looked for in the page cache."""

        drive_key = staticmethod(lambda source: 0 if one_queue else drive_of(source.path, drives))

        def is_resident(self, file: int, offset: int) -> bool:
            """See `Files.is_resident`. Holes look as if they were there (seen on ext4, Linux 6.18)."""
            return False

    return Drive(Uncached, _Copies)


def simulated(
    speed: Speed | None, clock: Clock, device: torch.device, drives: int = 1, *, one_queue: bool = False
) -> Drive:
    """A simulated drive, or several; each loader has its own.

    Args:
        speed: what it can do; None: all of it at once.
        clock: what waits for the ends of its reads.
        device: where batches go.
        drives: how many there are; shard i is on drive i modulo this.
        one_queue: whether the loader takes them for one, and does not give each a queue.
    """

    def made() -> _Drives:
        return _Drives([] if speed is None else [Timeline(speed) for _ in range(drives)], clock)

    class Simulated(real(drives, one_queue=one_queue).files):  # type: ignore[misc]
        """Files whose reads move no byte."""

        made_reader = staticmethod(lambda: _Reader(made(), touch=device.type == "cpu"))

    return Drive(Simulated, lambda _: _Engine(made()))
