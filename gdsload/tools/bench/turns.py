"""One turn of a row: a ramp, which is discarded, and a time in which batches are counted."""

from __future__ import annotations

import multiprocessing
import os
import resource
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from itertools import count
from typing import Any, NamedTuple

import numpy as np

from gdsload.engine.assemble import Batch
from gdsload.system.drive_bytes import bytes_from_drives
from gdsload.system.probe.tree import Tree
from gdsload.system.streams import current_stream, has_streams, record
from gdsload.tools.bench.bench_plan import BenchPlan
from gdsload.tools.bench.by_hand import StoredRows
from gdsload.tools.bench.cache_state import resident_share
from gdsload.tools.bench.rows import LoaderRow, Row, endless, size_of, synchronise

_LEAST_PART_S = 0.25
_LOOK_S = 0.1
_UNDER_WAY = 2
"""Batches that the device may still be finishing when the next one is asked for."""
_LATE_BATCHES, _LATE_SAMPLES = 16, 4
_WARM_SHARE = 0.1
Warm = Callable[[], bool]
"""Tells whether so much of what is still to be read is in the page cache that a row's rate is not a cold one's."""
_TICKS = os.sysconf("SC_CLK_TCK")


def late_samples(plan: BenchPlan, rows: StoredRows, epoch: int) -> Warm:
    """A function that says whether more than a tenth of some samples of an epoch's last quarter are in the page cache.

    It looks at pages of their largest columns. While they are not there, the epoch is a cold one. What a row reads
    ahead of itself is not among them, but what the kernel reads around its samples may be.
    """
    random = np.random.default_rng(epoch)
    steps = random.integers(plan.batches * 3 // 4, plan.batches, _LATE_BATCHES).tolist()
    ids = np.concatenate([random.choice(some, _LATE_SAMPLES) for some in plan.ids(epoch, steps)])
    columns, _ = rows.columns(ids)
    largest = max(columns, key=lambda column: column.extents.total_bytes).extents
    middle = largest.offset + largest.nbytes // 2
    places = list(zip(map(rows.source, largest.file.tolist()), middle.tolist(), strict=True))
    return lambda: resident_share(places) > _WARM_SHARE


class Usage(NamedTuple):
    """CPU seconds of this process and its workers so far, and bytes from drives; None if the system does not say."""

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


class _Part:
    """Batches that are counted from now on until `end`."""

    def __init__(self, row: Row) -> None:
        self._row, self._events = row, deque[Any]()
        self._begun = self._now = self._finished()
        self._used, self._paths = Usage.now(), row.paths()
        self._samples = self._nbytes = 0
        self.between: list[float] = []

    @property
    def lasted_s(self) -> float:
        """Seconds up to the last batch."""
        return self._now - self._begun

    def take(self, batch: Batch) -> int:
        """Count a batch once all but the last two are on the device, as in a training loop; returns its bytes."""
        device = self._row.plan.device
        if has_streams(device):
            self._events.append(record(current_stream(device)))
            if len(self._events) > _UNDER_WAY:
                self._events.popleft().synchronize()
        else:
            synchronise(device)
        before, self._now = self._now, time.perf_counter()
        self.between.append(self._now - before)
        samples, nbytes = size_of(batch)
        self._samples += samples
        self._nbytes += nbytes
        return nbytes

    def end(self) -> dict[str, Any]:
        """Wait for the last batches; returns what was counted."""
        seconds, used = self._finished() - self._begun, Usage.now()
        known = used.drive_bytes is not None and self._used.drive_bytes is not None
        return {
            "seconds": seconds,
            "batches": len(self.between),
            "samples": self._samples,
            "bytes": self._nbytes,
            "cpu_s": used.cpu_s - self._used.cpu_s,
            "drive_bytes": max((used.drive_bytes or 0) - (self._used.drive_bytes or 0), 0) if known else None,
            "bytes_by_path": _difference(self._row.paths(), self._paths),
        }

    def _finished(self) -> float:
        """The time when all batches are on the device; nothing waits for what is read ahead."""
        device = self._row.plan.device
        if has_streams(device):
            current_stream(device).synchronize()
        else:
            synchronise(device)
        return time.perf_counter()


class Ramp:
    """The beginning of a part: until as much was handed out as had been read ahead when the row found its pace."""

    def __init__(self, row: Row, plan: BenchPlan, *, cold: bool) -> None:
        self._row, self._plan = row, plan
        self._most = max(plan.batches // 4, 1) if cold else None
        self._moved, self._read = sum(row.paths().values()), Usage.now().drive_bytes if cold else None
        self._depth, self._begun = row.depth(), time.perf_counter()  # once the row is open
        self.count = self._handed = self._since = 0

    def over(self, nbytes: int) -> bool:
        """Count a batch, and return whether what comes after it is at the row's own pace."""
        self.count += 1
        self._handed += nbytes
        waited = time.perf_counter() - self._begun
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
        if self._read is not None:  # what is not counted before it is gathered
            moved = max(moved, (Usage.now().drive_bytes or 0) - self._read)
        return moved - self._handed


def _measured(
    row: Row, plan: BenchPlan, batches: Iterator[Batch], warm: Warm | None, seconds: float
) -> tuple[dict[str, Any], list[float]]:
    """Take batches for so many seconds after a ramp, or until the page cache is warm or there are none."""
    ramp, first = Ramp(row, plan, cold=warm is not None), _Part(row)
    for batch in batches:
        if ramp.over(first.take(batch)):
            break
    part = _Part(row)
    # Cold, the last batches of an epoch are left out: they were read while nothing was measured.
    most, looked_s = 3 * plan.batches // 4 - ramp.count, 0.0
    for batch in batches:
        part.take(batch)
        if part.lasted_s >= seconds:
            break
        if warm is None:
            continue
        # After a batch that was waited for: it is the first of its group, as the one before the first was.
        if (taken := len(part.between)) >= most and taken * part.between[-1] >= part.lasted_s:
            break
        if part.lasted_s > _LEAST_PART_S and part.lasted_s - looked_s > _LOOK_S:
            looked_s = part.lasted_s
            if warm():
                break
    if not part.lasted_s:
        part = first  # the epoch has ended within its ramp, which is then all that there is to be measured
    return part.end(), part.between


def run_turn(
    row: Row, plan: BenchPlan, number: int, prepare: Callable[[int], Warm] | None = None
) -> tuple[dict[str, Any], list[float]]:
    """A turn of a row, for the record, and the seconds between its batches; turns of one number have the same order.

    Without `prepare`, epochs follow one another. With it, a turn has parts, each of one epoch at most: it is called
    before each, with the number of the epoch, and has the page cache cold, for which rows that map files are closed
    first. It returns what then says whether the page cache has become warm.
    """
    parts, between = list[dict[str, Any]](), list[float]()
    left_s, until = plan.turn_s, time.monotonic() + 3 * (plan.turn_s + plan.ramp_s)
    for part in count():
        epoch, warm = 1 + number + plan.turns * part, None
        if prepare is not None:
            if row.maps:
                row.close()
            warm = prepare(epoch)
        every = row.epoch(epoch) if prepare is not None else endless(row, epoch)
        with closing(every) as batches:
            found, times = _measured(row, plan, batches, warm, left_s)
        parts.append(found)
        between += times
        left_s -= found["seconds"]
        row.rest()
        if prepare is None or left_s <= 0 or time.monotonic() > until:
            break
    turn = totals(parts)
    rate = turn["bytes"] / turn["seconds"] / 1e9 if turn["seconds"] else 0.0
    return {"turn": number, "gb_per_s": rate, "parts": len(parts), **turn}, between


def totals(counts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The sums of what was counted in parts of a turn, or in turns."""
    found: dict[str, Any] = {
        name: sum(one[name] for one in counts) for name in ("seconds", "batches", "samples", "bytes", "cpu_s")
    }
    from_drive = [one["drive_bytes"] for one in counts]
    found["drive_bytes"] = None if None in from_drive else sum(from_drive)
    paths: Counter[str] = Counter()
    for one in counts:
        paths.update(one["bytes_by_path"])
    return found | {"bytes_by_path": dict(paths)}


def settle(row: Row, plan: BenchPlan, most_s: float) -> None:
    """Run epochs until bytes take the same paths as before: registering shards takes a while. Nothing is measured."""
    before: object = None
    started = looked = time.monotonic()
    for number in count():
        with closing(row.epoch(number)) as batches:
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
