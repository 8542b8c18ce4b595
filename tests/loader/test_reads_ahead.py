"""The depth of reads, in a loader whose backend gets slow; tests/engine/test_pace.py has the controller alone."""

import random
import time

import pytest

from gdsload import Memory
from gdsload.engine.pace import LEAST, MOST
from gdsload.testing import RecordingBackend, SlowBackend
from tests.loader.taking import prints

pytestmark = pytest.mark.usefixtures("small_groups")


@pytest.mark.parametrize("depth", [1, 7, 1000])
def test_batches_are_the_same_for_any_depth(load, plain, wrap, order, depth):
    expected, delays = prints(load(plain, 10, **order)), random.Random(depth)
    wrap(lambda inner: SlowBackend(inner, lambda: delays.uniform(0, 0.002)))
    loader = load(plain, 10, mmap=False, **order)
    loader.stats.reads_ahead = depth
    assert prints(loader) == expected


def test_it_grows_when_the_backend_gets_slow_and_comes_back(load, plain, wrap):
    delay_s = 0.0
    wrap(lambda inner: SlowBackend(inner, lambda: delay_s))
    loader = load(plain, 5, mmap=False)
    assert loader.stats.reads_ahead == LEAST
    delay_s = 0.01
    assert len(list(loader)) == 200
    assert LEAST < loader.stats.reads_ahead <= MOST
    delay_s = 0.0
    loader.stats.reads_ahead = 6  # or it would take more epochs than a test has time for
    while loader.stats.reads_ahead > LEAST:
        for _ in loader:
            time.sleep(0.001)  # or a slow machine's threads would change places too slowly for a consumer in haste


def test_no_depth_reads_beyond_the_budgets(load, plain, wrap):
    made = wrap(lambda inner: RecordingBackend(SlowBackend(inner, 0.005)))
    room = 5 * 2**16  # the pool leases no less than 64 KiB
    loader = load(plain, 5, "full", mmap=False, memory=Memory(arena=room))
    loader.stats.reads_ahead = MOST
    assert len(list(loader)) == 200
    assert made[0].most_held_bytes <= room
    assert made[0].held_bytes == 0


def test_a_budget_that_holds_reads_back_does_not_make_it_grow(load, plain, wrap):
    wrap(lambda inner: SlowBackend(inner, 0.003))
    loader = load(plain, 5, mmap=False, memory=Memory(prefetch=3 * 5 * 32))
    list(loader)
    assert loader.stats.reads_ahead == LEAST
