"""Counters of a loader, the times of its parts, and observers of both."""

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
"""Seconds of a `next` that count as the shortest: those of the other batches of a group, for which no more is done."""
_PER_OCTAVE, _OCTAVES = 8, 24
_OF_NOW = ("reads_ahead", "batches_ahead", "arena_bytes", "vram_bytes", "pinned_bytes", "registered_bytes", "epoch")
"""Fields that are of a moment, and no sums."""


class Observer:
    """Methods that a loader calls while it runs; override those that are wanted, and pass it to `loader.observe`.

    A call should return soon: it is made where the work is done.
    """

    __slots__ = ()

    def delivered(self, samples: int, ready: bool, waited_s: float, next_s: float, step_s: float) -> None:
        """A batch is handed out, in the consumer's thread.

        Args:
            samples: of the batch.
            ready: whether it was there when it was asked for.
            waited_s: seconds that the thread waited for it.
            next_s: seconds that `next` took, a `transform` in the consumer's thread included.
            step_s: seconds since the batch before it was handed out, or since the epoch began.
        """

    def made(
        self, batches: int, *, read_s: float, gather_s: float, decode_s: float = 0.0, transform_s: float = 0.0
    ) -> None:
        """A group of batches is made, in a thread of the loader's; several may call this at the same time.

        Args:
            batches: of the group.
            read_s: seconds that the thread waited for bytes.
            gather_s: seconds that it gathered them.
            decode_s: seconds that it decoded images, or waited for it.
            transform_s: seconds of what was called ahead of the consumer: `sample_transform`, `device_transform`.
        """

    def retried(self, steps: range, error: Exception) -> None:
        """The batches of some steps could not be made together, and are tried one by one, in a thread of the loader's.

        If that fails, too, the error is raised at the batch that it belongs to.
        """


@dataclass(slots=True, repr=False)
class LoaderStats(Observer):
    """The counts of a loader since it was made, over all its epochs. As text they are one line.

    Attributes:
        batches: batches handed out.
        samples: samples handed out.
        ready: batches that were there when they were asked for; those of a group count as its first one does.
        groups: groups of batches that were made, ahead of the consumer.
        retries: groups that could not be made at once, and were tried batch by batch.
        host_wait_s: seconds that the consumer's thread waited for a batch. A GPU may have had work meanwhile: whether
            loading cost anything is what `starved_s` says.
        late_s: seconds of these for batches that were not there when they were asked for.
        begin_s: seconds of these for the first batches of epochs.
        busy_s: seconds from the first `next` of each epoch to its last.
        starved_s: seconds that the GPU had nothing to do while batches were waited for, by events on the stream that
            the consumer gets them on; None where there are no such events, as on the CPU. It is up to date when it is
            read as ``loader.stats.starved_s``, but for work that the GPU has not ended yet. What the GPU does on that
            very stream to make a batch counts, too; what the host does between a batch and its first kernel does not.
        stream_s: seconds of that stream from the first `next` of each epoch to its last.
        read_s: seconds that threads waited for reads, summed over threads.
        gather_s: seconds that threads spent gathering, summed over threads.
        decode_s: seconds that threads spent on decoding images, or waiting for it, likewise.
        transform_s: seconds that threads spent on transforms ahead of the consumer, likewise.
        bytes_by_path: bytes read or gathered, by the path they took, as in `loader.backend`.
        cache_hit_bytes: of these, bytes that came from a cache, by its name as in `loader.cache`.
        drive_bytes: bytes that the kernel has read from drives for this whole process, up to the newest epoch's end;
            None if it does not say. Of what is in the page cache there are none.
        reads_ahead: groups of batches whose reads may be under way before one is gathered, at this moment. It grows
            when the consumer has to wait for reads, within the budgets, and slowly shrinks when it does not.
        batches_ahead: batches that are ahead of the consumer at this moment, made or being made.
        arena_bytes: bytes of the arena that reads hold at this moment.
        vram_bytes: bytes of GPU memory that the loader holds beside its batches at this moment: caches and arena.
        pinned_bytes: bytes of host memory that loaders of this process have pinned, beside torch's own.
        registered_bytes: bytes of files in the page cache that they have registered with CUDA.
        epoch: the epoch's number, of `loader.epoch_stats`.
        next_counts: how many calls of `next` took how long; see `next_s`.
        observers: those that are called, too, as `loader.observe` has added them; a copy has none.
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
        """Call the observers. One that raises an error is not called again: the batch is nevertheless there."""
        for one in self.observers:
            try:
                getattr(one, name)(*given, **named)
            except Exception:
                _log.exception("an observer of the loader has failed, and is not called again: %r", one)
                self.observers = tuple(other for other in self.observers if other is not one)

    def since(self, before: LoaderStats) -> LoaderStats:
        """The counts since these stats were a copy of `before`; what is of a moment is of this one."""
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
        """Share of the batches that were there when they were asked for, 0 to 1; see `ready`."""
        return self.ready / self.batches if self.batches else 0.0

    @property
    def starved_share(self) -> float | None:
        """Share of its time for which the GPU had nothing to do because of loading, 0 to 1; see `starved_s`."""
        if self.starved_s is None:
            return None
        return self.starved_s / self.stream_s if self.stream_s else 0.0

    @property
    def host_wait_share(self) -> float:
        """Share of its time for which the consumer's thread waited for batches, 0 to 1.

        Where that thread queues work for a GPU and does not wait for it, it may wait for the loader while the GPU is
        busy: then this is high, and nothing is lost.
        """
        return self.host_wait_s / self.busy_s if self.busy_s else 0.0

    def next_s(self, share: float) -> float:
        """Seconds within which so large a share of the calls of `next` returned, to a tenth; 0.5: the median.

        Those below 10 microseconds count as that.
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
        """All counts and shares as one flat dict of numbers, as loggers of metrics take them.

        What is not known is left out. Bytes of a path or a cache have the keys ``bytes/gds``, ``cache_hit_bytes/vram``.
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
    """A number in three digits and a decimal prefix, with its unit: ``1.28 M``, ``3.16 GB``."""
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
