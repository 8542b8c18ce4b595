"""One turn of a row: a ramp, which is discarded, and a time in which batches are counted."""

from __future__ import annotations

import multiprocessing
import os
import resource
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from itertools import count
from typing import Any, NamedTuple, cast

import numpy as np
import torch

from gdsload.engine.assemble import Batch
from gdsload.system.drive_bytes import bytes_from_drives
from gdsload.system.probe.tree import Tree
from gdsload.system.streams import current_stream, has_streams, record
from gdsload.tools.bench.bench_plan import BenchPlan
from gdsload.tools.bench.by_hand import StoredRows
from gdsload.tools.bench.cache_state import resident_share
from gdsload.tools.bench.rows import LoaderRow, Row, endless, sample_bytes, synchronise

LEAST_BATCHES = 20
"""Batches of a turn below which chance weighs more than the row."""
_LEAST_PART_S = 0.25
_LOOK_S = 0.1
_UNDER_WAY = 2
"""Batches that the device may still be finishing when the next one is asked for."""
_LATE_BATCHES, _LATE_SAMPLES = 16, 4
_WARM_SHARE = 0.1
Warm = Callable[[], bool]
"""Tells whether so much of what is still to be read is in the page cache that a row's rate is not a cold one's."""
_TICKS = os.sysconf("SC_CLK_TCK")


class LateSamples:
    """Some samples of the last quarter of an epoch, with the pages of their largest columns.

    While they are not in the page cache, the epoch is a cold one. What a row reads ahead of itself is not among them,
    but what the kernel reads around its samples may be.
    """

    def __init__(self, plan: BenchPlan, rows: StoredRows, epoch: int) -> None:
        random = np.random.default_rng(epoch)
        steps = random.integers(plan.batches * 3 // 4, plan.batches, _LATE_BATCHES).tolist()
        ids = np.concatenate([random.choice(some, _LATE_SAMPLES) for some in plan.ids(epoch, steps)])
        columns, _ = rows.columns(ids)
        largest = max(columns, key=lambda column: column.extents.total_bytes).extents
        middle = largest.offset + largest.nbytes // 2
        self._places = list(zip(map(rows.source, largest.file.tolist()), middle.tolist(), strict=True))

    def warm(self) -> bool:
        """Return whether more than a tenth of them are in the page cache."""
        return resident_share(self._places) > _WARM_SHARE


class Usage(NamedTuple):
    """The use that this process and its workers have made of the machine so far.

    Attributes:
        cpu_s: seconds of processors.
        drive_bytes: bytes that were fetched from drives for them; None if the system does not say.
    """

    cpu_s: float
    drive_bytes: int | None

    @classmethod
    def now(cls) -> Usage:
        """As of this moment."""
        used = resource.getrusage(resource.RUSAGE_SELF)
        cpu_s, drive_bytes = used.ru_utime + used.ru_stime, bytes_from_drives()
        for child in multiprocessing.active_children():
            fields = (Tree().text(f"/proc/{child.pid}/stat") or "").rpartition(")")[2].split()
            cpu_s += sum(map(int, fields[11:13])) / _TICKS
            more = bytes_from_drives(str(child.pid))
            drive_bytes = None if drive_bytes is None or more is None else drive_bytes + more
        return cls(cpu_s, drive_bytes)


class _Arrivals:
    """Waits for batches on the device: for all but the last two, as a training loop would have it."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._events: deque[Any] = deque()

    def wait(self) -> None:
        """Note a batch, and wait for an earlier one."""
        if has_streams(self._device):
            self._events.append(record(current_stream(self._device)))
            if len(self._events) > _UNDER_WAY:
                self._events.popleft().synchronize()
        else:
            synchronise(self._device)

    def all(self) -> float:
        """Wait for all of them, but for nothing that is read ahead; returns the time then."""
        self._events.clear()
        if has_streams(self._device):
            current_stream(self._device).synchronize()
        else:
            synchronise(self._device)
        return time.perf_counter()


class _Turn:
    """The counts of a turn, which may have several parts."""

    def __init__(self, row: Row, plan: BenchPlan) -> None:
        self.row, self.plan, self.arrivals = row, plan, _Arrivals(plan.device)
        self.seconds = self.cpu_s = 0.0
        self.nbytes = self.samples = 0
        self.drive_bytes: int | None = 0
        self.parts = 0
        self.between: list[float] = []
        self.paths: dict[str, int] = {}

    def part(self, batches: Iterator[Batch], warm: Warm | None) -> None:
        """Take batches until there were enough, or the page cache is warm; with `warm` they may end before."""
        started, used, paths = time.perf_counter(), Usage.now(), self.row.paths()
        ramp, now = Ramp(self.row, self.plan, used, cold=warm is not None), started
        between, some = list[float](), (0, 0)
        for batch in batches:
            self.arrivals.wait()
            before, now = now, time.perf_counter()
            between.append(now - before)
            some = some[0] + _samples(batch), some[1] + (nbytes := sample_bytes(batch))
            if ramp.over(nbytes) and self._measured(batches, warm, 3 * self.plan.batches // 4 - ramp.count):
                return
        # The epoch has ended within its ramp, which is then all that there is to be measured.
        self.between += between
        self._count(started, used, paths, some)

    def _measured(self, batches: Iterator[Batch], warm: Warm | None, most: int) -> bool:
        """Measure the batches that follow; returns False if there are none.

        With `warm` they are `most` of them at the most: the last ones of an epoch were read while nothing was measured.
        """
        first, used, paths = self.arrivals.all(), Usage.now(), self.row.paths()
        now = looked = first
        low = len(self.between)
        some = 0, 0
        for batch in batches:
            some = some[0] + _samples(batch), some[1] + sample_bytes(batch)
            self.arrivals.wait()
            before, now = now, time.perf_counter()
            self.between.append(now - before)
            if self.seconds + now - first >= self.plan.turn_s:
                break
            # After a batch that was waited for: it is the first of its group, as the one before the first was.
            if (
                warm is not None
                and (taken := len(self.between) - low) >= most
                and taken * (now - before) >= now - first
            ):
                break
            if warm is not None and now - looked > _LOOK_S and now - first > _LEAST_PART_S:
                looked = now
                if warm():
                    break
        if now == first:
            return False
        self._count(first, used, paths, some)
        return True

    def _count(self, first: float, used: Usage, paths: dict[str, int], some: tuple[int, int]) -> None:
        """Add what was measured from a moment on to the turn: samples, and their bytes."""
        end, ended = self.arrivals.all(), Usage.now()
        self.parts += 1
        self.seconds += end - first
        self.samples += some[0]
        self.nbytes += some[1]
        self.cpu_s += ended.cpu_s - used.cpu_s
        if self.drive_bytes is None or ended.drive_bytes is None or used.drive_bytes is None:
            self.drive_bytes = None
        else:
            self.drive_bytes += max(ended.drive_bytes - used.drive_bytes, 0)
        for path, moved in _difference(self.row.paths(), paths).items():
            self.paths[path] = self.paths.get(path, 0) + moved

    def record(self, number: int) -> dict[str, Any]:
        """The turn, for the record."""
        return {
            "turn": number,
            "gb_per_s": self.nbytes / self.seconds / 1e9 if self.seconds else 0.0,
            "seconds": self.seconds,
            "batches": len(self.between),
            "samples": self.samples,
            "bytes": self.nbytes,
            "parts": self.parts,
            "cpu_s": self.cpu_s,
            "drive_bytes": self.drive_bytes,
            "bytes_by_path": self.paths,
        }


class Ramp:
    """The beginning of a part: until as much was handed out as had been read ahead when the row found its pace."""

    def __init__(self, row: Row, plan: BenchPlan, used: Usage, *, cold: bool) -> None:
        self._row, self._plan, self._started = row, plan, time.perf_counter()
        self._most = max(plan.batches // 4, 1) if cold else None
        self._moved, self._used = sum(row.paths().values()), used if cold else None
        self._depth = row.depth()
        self.count = self._handed = self._since = 0

    def over(self, nbytes: int) -> bool:
        """Count a batch, and return whether what comes after it is at the row's own pace."""
        self.count += 1
        self._handed += nbytes
        waited = time.perf_counter() - self._started
        if (depth := self._row.depth()) != self._depth:
            self._depth, self._since = depth, self._handed
        if self._most is not None and self.count >= self._most:
            return True  # a short epoch has to have something left to be measured
        if waited < self._plan.ramp_s or self.count <= self._row.ahead:
            return False
        # Of a slow row there would be nothing but a ramp.
        return self._handed - self._since >= self._ahead() or waited > self._plan.turn_s + 3 * self._plan.ramp_s

    def _ahead(self) -> int:
        """Bytes that were read and not handed out, as far as that is known."""
        moved = sum(self._row.paths().values()) - self._moved
        if self._used is not None and self._used.drive_bytes is not None:  # what is not counted before it is gathered
            moved = max(moved, (Usage.now().drive_bytes or 0) - self._used.drive_bytes)
        return moved - self._handed


def run_turn(
    row: Row, plan: BenchPlan, number: int, prepare: Callable[[int], Warm] | None = None
) -> tuple[dict[str, Any], list[float]]:
    """A turn of a row that is open.

    Without `prepare`, epochs follow one another. With it, a turn has parts, each of one epoch at most: it is called
    before each, with the number of the epoch, and has the page cache cold, for which rows that map files are closed
    first. It returns what then says whether the page cache has become warm.

    Args:
        row: the row.
        plan: what is measured.
        number: of the turn, so that all rows of a round have the same order.
        prepare: see above.

    Returns:
        The turn, for the record, and the seconds between its batches.
    """
    turn = _Turn(row, plan)
    until = time.monotonic() + 3 * (plan.turn_s + plan.ramp_s)
    for part in count():
        epoch, warm = 1 + number + plan.turns * part, None
        if prepare is not None:
            if row.maps:
                row.close()
            warm = prepare(epoch)
        row.open()
        every = row.epoch(epoch) if prepare is not None else endless(row, epoch)
        with closing(cast("Any", every)) as batches:
            turn.part(batches, warm)
        row.rest()
        if prepare is None or turn.seconds >= plan.turn_s or time.monotonic() > until:
            break
    return turn.record(number), turn.between


def settle(row: Row, plan: BenchPlan, most_s: float) -> None:
    """Run epochs until bytes take the same paths as before: registering shards takes a while. Nothing is measured."""
    row.open()
    before: object = None
    started = looked = time.monotonic()
    for number in count():
        with closing(cast("Any", row.epoch(number))) as batches:
            for _ in batches:
                if (now := time.monotonic()) - started > most_s:
                    row.rest()
                    return
                if now - looked > 2 * _LEAST_PART_S and number:
                    break
        synchronise(plan.device)
        looked, state = time.monotonic(), _paths_of(row)
        if state == before:
            return
        before = state


def _paths_of(row: Row) -> object:
    """The state that changes while shards are being registered: the shares of paths, and the bytes that are kept."""
    moved = row.paths()
    shares = {path: round(nbytes / max(sum(moved.values()), 1), 1) for path, nbytes in moved.items()}
    tiers = row.loader.cache.tiers.values() if isinstance(row, LoaderRow) else ()
    return shares, [tier.held_bytes for tier in tiers]


def _samples(batch: Batch) -> int:
    value = next(iter(batch.values()))
    return len(value[1]) - 1 if isinstance(value, tuple) else len(value)


def _difference(after: dict[str, int], before: dict[str, int]) -> dict[str, int]:
    """The bytes moved between two readings of the counters, by path."""
    if before.keys() - after.keys():
        # cuFile's counters do not separate bytes by path, so all of them have a common name.
        return {"+".join(after): sum(after.values()) - sum(before.values())}
    found = {path: nbytes - before.get(path, 0) for path, nbytes in after.items()}
    return {path: nbytes for path, nbytes in found.items() if nbytes}


def spread(values: Sequence[float]) -> dict[str, float]:
    """Median and quartiles."""
    q1, median, q3 = np.percentile(values, [25, 50, 75]).tolist()
    return {"median": median, "q1": q1, "q3": q3}
