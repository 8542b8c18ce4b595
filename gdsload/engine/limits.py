"""The limits of a prefetcher, and what runs it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from gdsload.system.share import processors

MOST_BATCHES, MOST_THREADS, _MOST_THAT_COPY = 64, 4, 12


def gatherers(*, copies: bool = False) -> int:
    """The number of threads that gather at once, where that takes a processor: as many as pay, and the consumer.

    With `copies`, each waits for the copy of what it has gathered to a device: over PCIe 5 x16, 4, 8 and 12 of them
    deliver 20, 27 and 28 GB/s of rows of 150 KB (an H100, 16 processors).
    """
    return min(_MOST_THAT_COPY if copies else MOST_THREADS, max(processors() - 1, 1)) + 1


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of a prefetcher, in bytes; those of a batch, a window and a sample are what is expected.

    Attributes:
        prefetch_bytes: bytes of batches that may be ahead of the consumer.
        arena_bytes: bytes that reads may take in an arena.
        group_bytes: about how many bytes of batches are gathered at once; small batches are gathered several at a time,
            because handing a batch from thread to thread costs as much as copying a megabyte.
        sample_bytes: expected bytes of a sample, where larger batches than expected may come.
        grown: gives the bytes of the largest batch so far that transforms of samples have made.
        landing_bytes: as `group_bytes`, of batches whose bytes land in the arena first; 0: the same.
        one_by_one: whether each batch is a group, because it takes long to make.
        read_bytes: expected bytes that a batch of encoded images is decoded from, so that reads may be further ahead
            than batches are made; 0: what is read ahead is made ahead, too.
    """

    prefetch_bytes: int
    arena_bytes: int
    group_bytes: int
    batch_bytes: int
    window_bytes: int
    sample_bytes: int = 0
    grown: Callable[[], int] = int
    landing_bytes: int = 0
    one_by_one: bool = False
    read_bytes: int = 0

    def group(self, most: int = MOST_BATCHES, *, landing: bool = False) -> int:
        """Number of batches that are made at once: `most`, or fewer within the bytes that they may have or land as."""
        if self.one_by_one:
            return 1
        nbytes = landing * self.landing_bytes or self.group_bytes
        wanted = min(nbytes, self.prefetch_bytes // 2) // max(self.batch_bytes, 1)
        return max(1, min(wanted, most))

    def ahead(self, batches: int, unmade: int) -> int:
        """Bytes ahead of the consumer that count, where making so many of the batches has not begun."""
        return unmade * self.read_bytes if self.read_bytes else batches * self.batch_bytes

    def pool_bytes(self) -> int:
        """Batch memory that is worth keeping: what is ahead of the consumer, and what it and each thread hold."""
        return self.prefetch_bytes + (gatherers() + 2) * self.group() * self.batch_bytes * 2


@dataclass(frozen=True, slots=True)
class Runner:
    """The number of threads that make batches, and the distance that they may be ahead.

    Attributes:
        threads: how many threads plan and finish groups; 0: the consumer does.
        most_groups: groups that may be ahead of the consumer, whatever the budgets allow.
        tapers: whether groups become smaller towards the epoch's end.
        most_batches: batches of a group, however small they are.
        at_once: whether a batch is there when it is asked for, though nothing is ahead.
        reason: how batches are made, in words.
        prepare: what is called, perhaps several times, after a first group: what it begins should not hold that up.
    """

    threads: int
    most_groups: int = 1 << 30
    tapers: bool = False
    most_batches: int = MOST_BATCHES
    at_once: bool = False
    reason: str = field(default="", compare=False)
    prepare: Callable[[], object] = field(default=int, compare=False)
