"""How many batches a group has."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from gdsload.engine.batch_source import Ready
from gdsload.engine.limits import Limits, Runner
from gdsload.engine.prefetch import Prefetcher
from gdsload.engine.stats import LoaderStats
from gdsload.engine.steps import Ordered
from gdsload.order import OrderOptions, Schedule, make_order

SAMPLES, BATCH, BATCH_BYTES = 500, 5, 160


class Noting:
    """Makes batches of nothing, and notes in which groups."""

    takes_processor = False

    def __init__(self, *, lands=False):
        self.lands, self.started, self.asked = lands, [], 0

    def start(self, steps):
        self.started.append(len(steps))
        ready = Ready([{} for _ in steps], [BATCH] * len(steps))
        return SimpleNamespace(landed=lambda: True, result=lambda _stopped: ready, drop=lambda: None)

    def arena_bytes(self, steps, _window_bytes):
        self.asked += 1
        return self.lands and self.asked % 3 and len(steps) * BATCH_BYTES  # not all open a window of an order

    def close(self):
        pass


def groups_of(source, runner, **limits):
    """The groups of an epoch of 100 batches."""
    steps = Ordered(make_order(OrderOptions("sequential", 0, 0, 1), [SAMPLES], 0, 0), Schedule(SAMPLES, BATCH))
    limits = Limits(**{"prefetch_bytes": 2**20, "arena_bytes": 2**30, "batch_bytes": 160, "window_bytes": 0} | limits)
    prefetcher = Prefetcher(source, steps, limits=limits, start=0, stats=LoaderStats(), runner=runner)
    while prefetcher.get() is not None:
        pass
    prefetcher.close()
    assert sum(source.started) == 100
    return source.started


@pytest.mark.parametrize("lands", [False, True])
def test_groups_whose_bytes_land_in_the_arena_are_larger(lands):
    """From when some have been seen there, which is not before there are two groups; then they double as any do."""
    limits = {"group_bytes": 2 * BATCH_BYTES, "landing_bytes": 8 * BATCH_BYTES}
    found = groups_of(Noting(lands=lands), Runner(0), **limits)
    assert found[:7] == ([1, 2, 2, 4, 8, 8, 8] if lands else [1, *[2] * 6])


@pytest.mark.parametrize("most", [1, 12, 64])
def test_a_group_has_no_more_batches_than_its_runner_says(most):
    assert max(groups_of(Noting(), Runner(1, most_batches=most), group_bytes=2**27)) == min(most, 37)
