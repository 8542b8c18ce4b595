"""Counters of a loader, the times of its parts, and observers."""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass, field, fields
from math import frexp
from typing import Any

from gdsload.engine.pace import LEAST

_log = logging.getLogger("gdsload")
_adding = threading.Lock()
"""One lock for all stats: a stats object that has its own could be neither copied nor pickled."""
_SHORT_S = 1e-5
"""The shortest duration of `next` that is counted as such; the later batches of a group take less."""
_PER_OCTAVE, _OCTAVES = 8, 24
_OF_NOW = ("reads_ahead", "batches_ahead", "arena_bytes", "vram_bytes", "pinned_bytes", "registered_bytes", "epoch")
"""Fields that are current values and not sums."""


class Observer:
    """Base class of observers: override methods, and pass an instance to `loader.observe`.

    The methods should return soon, because the loader calls them in the threads that do the work.
    """

    __slots__ = ()

    def delivered(self, samples: int, ready: bool, waited_s: float, next_s: float, step_s: float) -> None:
        """Called when a batch is handed out, in the consumer's thread.

        Args:
            samples: number of samples of the batch.
            ready: whether the batch was ready when the consumer asked for it.
            waited_s: seconds that the consumer waited for it.
            next_s: seconds that `next` took, including a `transform` in the consumer's thread.
            step_s: seconds since the previous batch was handed out, or since the epoch began.
        """

    def made(
        self, batches: int, *, read_s: float, gather_s: float, decode_s: float = 0.0, transform_s: float = 0.0
    ) -> None:
        """Called when a group of batches is ready, in a thread of the loader; several threads may call it at once.

        Args:
            batches: number of batches of the group.
            read_s: seconds that the thread waited for reads.
            gather_s: seconds that it gathered rows.
            decode_s: seconds that it decoded images or waited for their decoding.
            transform_s: seconds that it ran `sample_transform` and `device_transform`.
        """

    def retried(self, steps: range, error: Exception) -> None:
        """Called when a group of batches failed and is repeated batch by batch, in a thread of the loader.

        If a batch fails again, its error is raised at that batch.

        Args:
            steps: the numbers of the batches in the epoch.
            error: the error of the group.
        """


@dataclass(slots=True, repr=False)
class LoaderStats(Observer):
    """Counters of a loader over all its epochs. ``str`` gives one line.

    Attributes:
        batches: batches handed out.
        samples: samples handed out.
        ready: batches that were ready when the consumer asked for them; the batches of a group count like its first.
        groups: groups of batches that were made ahead of the consumer.
        retries: groups that failed and were repeated batch by batch.
        host_wait_s: seconds that the consumer's thread waited for batches. The GPU may have been busy meanwhile:
            `starved_s` is the time that loading costs on a GPU.
        late_s: the part of `host_wait_s` for batches that were not ready when the consumer asked for them.
        begin_s: the part of `host_wait_s` for the first batches of epochs.
        busy_s: seconds from the first `next` of each epoch to its last.
        starved_s: seconds that the GPU was idle while the consumer waited for batches, measured by events on the
            consumer's stream; None without such events, as on the CPU. ``loader.stats.starved_s`` includes all work
            that the GPU has finished. Work of the GPU on the same stream to make a batch counts; work of the host
            between a batch and its first kernel does not.
        stream_s: seconds of the consumer's stream from the first `next` of each epoch to its last.
        read_s: seconds that threads waited for reads, summed over threads.
        gather_s: seconds that threads gathered rows, summed over threads.
        decode_s: seconds that threads decoded images or waited for their decoding, summed over threads.
        transform_s: seconds that threads ran transforms ahead of the consumer, summed over threads.
        bytes_by_path: bytes read or gathered, by read path, as in `loader.backend`.
        cache_hit_bytes: the part of these bytes that was read from a cache, by its name as in `loader.cache`.
        drive_bytes: bytes that the kernel read from drives for the whole process until the end of the newest epoch,
            without hits in the page cache; None if the kernel does not count them.
        reads_ahead: the current number of groups whose reads may be in flight before one is gathered. It grows within
            the budgets when the consumer waits for reads, and slowly shrinks when it does not.
        batches_ahead: the current number of batches ahead of the consumer, ready or in progress.
        arena_bytes: bytes of the arena that reads hold now.
        vram_bytes: bytes of GPU memory that the loader holds now for caches and the arena, without its batches.
        pinned_bytes: bytes of host memory that the loaders of this process have pinned, without torch's own.
        registered_bytes: bytes of files in the page cache that these loaders have registered with CUDA.
        epoch: the number of the epoch; only in `loader.epoch_stats`.
        next_counts: a histogram of the durations of `next`; see `next_s`.
        observers: the observers that `loader.observe` has added; a copy has none.
    """

    batches: int = 0
    samples: int = 0
    ready: int = 0
    groups: int = 0
    retries: int = 0
    host_wait_s: float = 0.0
    late_s: float = 0.0
    begin_s: float = 0.0
    busy_s: float = 0.0
    starved_s: float | None = None
    stream_s: float = 0.0
    read_s: float = 0.0
    gather_s: float = 0.0
    decode_s: float = 0.0
    transform_s: float = 0.0
    bytes_by_path: dict[str, int] = field(default_factory=dict)
    cache_hit_bytes: dict[str, int] = field(default_factory=dict)
    drive_bytes: int | None = None
    reads_ahead: int = LEAST
    batches_ahead: int = 0
    arena_bytes: int = 0
    vram_bytes: int = 0
    pinned_bytes: int = 0
    registered_bytes: int = 0
    epoch: int | None = None
    next_counts: list[int] = field(default_factory=lambda: [0] * (_PER_OCTAVE * _OCTAVES))
    observers: tuple[Observer, ...] = field(default=(), compare=False)

    def __post_init__(self) -> None:
        self.next_counts = self.next_counts.copy()  # also of `dataclasses.replace`, whose result goes on by itself

    def __reduce__(self) -> tuple[object, ...]:
        return LoaderStats, tuple(getattr(self, one.name) for one in fields(self)[:-1])

    def delivered(self, samples: int, ready: bool, waited_s: float, next_s: float, step_s: float) -> None:
        """See `Observer`."""
        self.batches += 1
        self.samples += samples
        self.host_wait_s += waited_s
        if ready:
            self.ready += 1
        else:
            self.late_s += waited_s
            if next_s == step_s:  # the first of its epoch
                self.begin_s += waited_s
        self.busy_s += step_s
        if next_s > _SHORT_S:
            self.next_counts[_bucket(next_s)] += 1
        if self.observers:
            self._tell("delivered", samples, ready, waited_s, next_s, step_s)

    def made(
        self, batches: int, *, read_s: float, gather_s: float, decode_s: float = 0.0, transform_s: float = 0.0
    ) -> None:
        """See `Observer`."""
        with _adding:
            self.groups += 1
            self.read_s += read_s
            self.gather_s += gather_s
            self.decode_s += decode_s
            self.transform_s += transform_s
        if self.observers:
            times = {"read_s": read_s, "gather_s": gather_s, "decode_s": decode_s, "transform_s": transform_s}
            self._tell("made", batches, **times)

    def retried(self, steps: range, error: Exception) -> None:
        """See `Observer`."""
        with _adding:
            self.retries += 1
        if self.observers:
            self._tell("retried", steps, error)

    def _tell(self, name: str, *given: Any, **named: Any) -> None:
        """Call the observers. One that raises an error is not called again, so that the loop still gets its batch."""
        for one in self.observers:
            try:
                getattr(one, name)(*given, **named)
            except Exception:
                _log.exception("an observer of the loader failed and is not called again: %r", one)
                self.observers = tuple(other for other in self.observers if other is not one)

    def since(self, before: LoaderStats) -> LoaderStats:
        """The counters since `before`, a copy of these stats; current values stay as they are now."""
        with _adding:
            found: Any = {
                one.name: getattr(self, one.name)
                if one.name in _OF_NOW
                else _less(getattr(self, one.name), getattr(before, one.name))
                for one in fields(self)[:-1]
            }
        return LoaderStats(**found)

    @property
    def ready_share(self) -> float:
        """Share of the batches that were ready when the consumer asked for them, 0 to 1; see `ready`."""
        return self.ready / self.batches if self.batches else 0.0

    @property
    def starved_share(self) -> float | None:
        """Share of the time in which the GPU was idle because of loading, 0 to 1; see `starved_s`."""
        if self.starved_s is None:
            return None
        return self.starved_s / self.stream_s if self.stream_s else 0.0

    @property
    def host_wait_share(self) -> float:
        """Share of the time in which the consumer's thread waited for batches, 0 to 1.

        A thread that queues work for a GPU without waiting for it may wait for the loader while the GPU is busy. Then
        this share is high, and no time is lost.
        """
        return self.host_wait_s / self.busy_s if self.busy_s else 0.0

    def next_s(self, share: float) -> float:
        """A quantile of the duration of `next` in seconds, with an error of at most a tenth.

        Durations below 10 microseconds count as 10 microseconds.

        Args:
            share: the share of the calls that were not slower, such as 0.5 for the median.
        """
        left = share * self.batches - (self.batches - sum(self.next_counts))
        for bucket, count in enumerate(self.next_counts):
            if left <= 0:
                break
            left -= count
            if left <= 0:
                octave, part = divmod(bucket, _PER_OCTAVE)
                return float(_SHORT_S * 2**octave * (1 + (part + 0.5) / _PER_OCTAVE))
        return _SHORT_S if self.batches else 0.0

    def as_dict(self) -> dict[str, float]:
        """All counters and shares as one flat dict of numbers, for loggers of metrics.

        Unknown values are left out. The keys of paths and caches are like ``bytes/gds-p2p`` and
        ``cache_hit_bytes/vram``.
        """
        found: dict[str, Any] = {one.name: getattr(self, one.name) for one in fields(self)[:-2]}
        paths, hits = found.pop("bytes_by_path"), found.pop("cache_hit_bytes")
        found |= {name: getattr(self, name) for name in ("ready_share", "starved_share", "host_wait_share")}
        found |= {"next_p50_s": self.next_s(0.5), "next_p99_s": self.next_s(0.99), "bytes": sum(paths.values())}
        found |= {f"bytes/{path}": count for path, count in paths.items()}
        found |= {f"cache_hit_bytes/{cache}": count for cache, count in hits.items()}
        return {name: value for name, value in found.items() if value is not None}

    def __str__(self) -> str:
        nbytes, lost = sum(self.bytes_by_path.values()), self.starved_share
        paths = sorted(self.bytes_by_path.items(), key=lambda one: -one[1])
        shares = ", ".join(f"{path} {count / nbytes:.0%}" for path, count in paths if count)
        return (
            f"{'all epochs' if self.epoch is None else f'epoch {self.epoch}'}: "
            f"{short(self.samples)} sample{'s' * (self.samples != 1)}, {short(nbytes, 'B')} in "
            f"{self.busy_s:.3g} s, {short(nbytes / max(self.busy_s, 1e-9), 'B/s')}"
            f"{f' ({shares})' if shares else ''}, "
            f"{f'waited {self.host_wait_share:.1%}' if lost is None else f'starved {lost:.1%}'}"
        )

    __repr__ = __str__


def short(number: float, unit: str = "") -> str:
    """A number with three digits, a decimal prefix and its unit: ``1.28 M``, ``3.16 GB``."""
    for prefix in ("", "k", "M", "G", "T"):
        if number < 999.5 or prefix == "T":
            break
        number /= 1000
    return f"{number:.3g} {prefix}{unit}".rstrip()


def _bucket(seconds: float) -> int:
    """The number of the interval of times above `_SHORT_S` that a time is in."""
    fraction, octave = frexp(seconds / _SHORT_S)  # 0.5 <= fraction < 1
    return min((octave - 1) * _PER_OCTAVE + int(fraction * 2 * _PER_OCTAVE) - _PER_OCTAVE, _PER_OCTAVE * _OCTAVES - 1)


def _less(now: Any, before: Any) -> Any:
    """A count less an earlier one; of lists and dicts each of theirs."""
    if isinstance(now, dict):
        return {key: value - before.get(key, 0) for key, value in now.items()}
    if isinstance(now, list):
        return [value - earlier for value, earlier in zip(now, before, strict=True)]
    return now if now is None else now - (before or 0)
