"""Pools of threads that read, one for each drive."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import partial

from gdsload.system.numa import stay_on
from gdsload.system.pool import Future, Pool, Work, done
from gdsload.system.spans import in_span, profiled

_MOST = 48
"""Threads that read from all drives together, unless they are asked for: they take turns at the interpreter lock."""
_LEAST = 2
"""Threads that read from a drive, however many drives there are: one has a read under way, the next is prepared."""


def threads_of_each(drives: int, usual: int, asked: int | None) -> int:
    """The number of threads that read from each drive, where `usual` of them keep one busy.

    `asked` is for all drives together; None: as many as suits.
    """
    return max(min(usual, _MOST // drives), min(usual, _LEAST)) if asked is None else max(asked // drives, 1)


def one_each(drives: int, count: int, name: str, processors: Collection[int] | None = None) -> list[Pool]:
    """A pool of `count` threads for each drive; without `processors` they run where the thread that starts them may."""
    names = [name] if drives == 1 else [f"{name}-{number}" for number in range(drives)]
    return [Pool(count, each, partial(stay_on, processors)) for each in names]


def run_on(pools: Sequence[Pool], works: Sequence[tuple[int, Work]], future: Future | None = None) -> Future:
    """See `Pool.run`; each piece of work comes with the number of its pool.

    Each pool has a queue and threads for itself: a drive that is slow keeps no other waiting.
    """
    if not works:
        return done
    future = future or Future(len(works))
    if profiled():
        works = [(number, partial(in_span, "gdsload::read", work)) for number, work in works]
    queues: dict[int, list[Work]] = {}
    for number, work in works:
        queues.setdefault(number, []).append(work)
    begun = False
    while queues:
        number, mine = queues.popitem()
        try:
            pools[number].run(mine, future)
            begun = True
        except BaseException as error:
            if not begun:
                raise
            # What is queued goes on, so what it needs must not be freed: its future gets the error.
            for _ in range(len(mine) + sum(map(len, queues.values()))):
                future.finish(error)
            break
    return future


def close_all(pools: Sequence[Pool]) -> None:
    """See `Pool.close`."""
    for pool in pools:
        pool.close()
