"""A source of batches that takes notes, and prefetchers over it."""

from __future__ import annotations

import torch

from gdsload.engine.batch_source import PendingBatches, Ready
from gdsload.engine.limits import Limits
from gdsload.engine.prefetch import Prefetcher
from gdsload.engine.stats import LoaderStats
from gdsload.engine.steps import Ordered
from gdsload.order import OrderOptions, Schedule, make_order

SAMPLES = 500
BATCH_BYTES = 160
ALL = [list(range(start, start + 5)) for start in range(0, SAMPLES, 5)]


class Noting:
    """A source that makes batches at once, and takes notes."""

    takes_processor = False

    def __init__(self, batches=ALL):
        self.batches, self.started, self.made, self.dropped, self.closed = batches, [], [], [], 0
        self.failing: dict[int, BaseException] = {}  # at groups that hold these steps, when they are started
        self.lost: dict[int, BaseException] = {}  # the same, when they are waited for
        self.healed = False  # whether they work when they are made one by one
        self.ahead, self.most_ahead = 0, 0
        self.inside = lambda: None
        self.landed = lambda _steps: False
        self.finishing = lambda _steps: None
        self.in_arena = lambda _steps: 0

    def start(self, steps):
        self.inside()
        for step in steps:
            if step in self.failing:
                raise self.failing[step]
        self.started.append(steps)
        self.ahead += len(steps)
        self.most_ahead = max(self.most_ahead, self.ahead)
        return PendingBatches(
            lambda: self.landed(steps), lambda _stopped: self.result(steps), lambda: self.dropped.append(steps)
        )

    def result(self, steps):
        self.finishing(steps)
        for step in steps:
            if step in self.lost:
                raise self.lost[step]
        self.ahead -= len(steps)
        self.made.append(steps)
        batches = [{"x": torch.tensor(self.batches[step])[:, None]} for step in steps]
        return Ready(batches, [len(self.batches[step]) for step in steps])

    def arena_bytes(self, steps, _window_bytes):
        return self.in_arena(steps)

    def hand_over(self, _batches):
        return lambda batch: batch

    def again(self):
        found = Noting(self.batches)
        if not self.healed:
            found.failing, found.lost = self.failing, self.lost
        return found

    def close(self):
        self.closed += 1


def over(source, runner, *, start=0, steps=None, prefetch_bytes=1 << 20, group_bytes=None, **more):
    """A prefetcher over any source; to be closed."""
    group_bytes = group_bytes or (1 << 27 if runner.tapers or runner.most_groups == 1 else 1 << 10)
    steps = steps or Ordered(make_order(OrderOptions("sequential", 0, 0, 1), [SAMPLES], 0, 0), Schedule(SAMPLES, 5))
    limits = Limits(prefetch_bytes, 1 << 30, group_bytes, more.pop("batch_bytes", BATCH_BYTES), 0, **more)
    return Prefetcher(source, steps, limits=limits, start=start, stats=LoaderStats(), runner=runner)


def drain(prefetcher):
    """All batches, as the numbers of their samples, and the error after them."""
    found = []
    while (ready := prefetcher.get()) is not None:
        assert len(ready.batches) == len(ready.sizes)
        found += [batch["x"][:, 0].tolist() for batch in ready.batches]
        if ready.error is not None:
            return found, ready.error
    return found, None
