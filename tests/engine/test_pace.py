"""The depth of reads: of the controller alone, with made-up clocks, and in a pipeline with a backend that gets slow."""

import math
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gdsload
from gdsload.engine.pace import LEAST, MOST, Pace
from gdsload.loader.loader import DataLoader
from gdsload.testing import RecordingBackend, SlowBackend


class Epoch:
    """A consumer that computes, and reads that take a while, as many under way as the depth allows."""

    def __init__(self, pace):
        self.pace, self.at = pace, 0.0
        self.landed = []  # when each group under way is there
        self.waits = []

    def run(self, groups, *, compute_s, latency_s):
        depths = []
        for _ in range(groups):
            while len(self.landed) < self.pace.depth:
                self.landed.append(self.at + latency_s)
            came = self.at + compute_s
            self.at = max(came, self.landed.pop(0))
            self.waits.append(self.at - came)
            self.pace.taken(self.at, self.waits[-1])
            depths.append(self.pace.depth)
        return depths


@given(st.lists(st.tuples(st.floats(0, 10), st.floats(0, 10)), max_size=300), st.integers(-5, 100))
def test_whatever_happens_the_depth_stays_within_bounds(steps, depth):
    pace, at = Pace(depth), 0.0
    for elapsed, waited_s in steps:
        before, at = pace.depth, at + elapsed
        pace.taken(at, waited_s)
        assert LEAST <= pace.depth <= MOST
        assert before - 1 <= pace.depth <= 2 * before


@settings(deadline=None, max_examples=40)
@given(st.floats(1e-4, 10), st.floats(0.01, 30))
def test_it_grows_until_nobody_waits_and_comes_back(compute_s, groups_late):
    """Reads that land `groups_late` groups late need about as many under way."""
    epoch = Epoch(Pace())
    depths = epoch.run(2600, compute_s=compute_s, latency_s=groups_late * compute_s)
    needed = max(math.ceil(groups_late), LEAST)
    assert max(depths) <= 2 * needed
    assert min(depths[1000:]) >= groups_late / 1.06 - 1  # a step too low, for as long as it takes to see that
    waited = sum(wait > 0.05 * (wait + compute_s) for wait in epoch.waits[1000:])
    assert waited <= 1600 / 32 + 1
    epoch.run(MOST, compute_s=compute_s, latency_s=0.0)  # what was under way still lands late
    back = epoch.run(MOST * 40, compute_s=compute_s, latency_s=0.0)
    assert back[-1] == LEAST
    assert back == sorted(back, reverse=True)


def test_one_late_landing_doubles_it_once():
    """Those that were under way already say nothing of the new depth."""
    pace = Pace()
    pace.taken(0.0, 0.0)
    for number in range(1, 9):
        pace.taken(float(number), 0.9)
        assert pace.depth == 8
    pace.taken(9.0, 0.9)
    assert pace.depth == 16


def test_the_first_group_of_an_epoch_and_short_waits_do_not_count():
    pace = Pace()
    pace.taken(1.0, 1.0)
    for number in range(2, 100):
        pace.taken(float(number), 0.04)
    assert pace.depth == LEAST


def test_it_shrinks_by_one_after_32_calm_groups_in_a_row():
    pace = Pace(10)
    for number in range(32):
        pace.taken(float(number), 0.0)
    assert pace.depth == 10  # the first one was the epoch's first
    pace.taken(32.0, 0.0)
    assert pace.depth == 9


# --- in a pipeline ---

SAMPLES, BATCH = 1500, 5
OPTIONS = {"device": "cpu", "mmap": False, "with_index": True}


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("pace") / "shards"
    with gdsload.ShardWriter(path, shard_bytes=8192) as writer:
        writer.write_batch({"x": np.repeat(np.arange(SAMPLES, dtype=np.int64)[:, None], 4, axis=1)})
    return path


@pytest.fixture
def wrapped(monkeypatch):
    """Has every loader's backend wrapped: wrapped(around)."""

    def wrap(around):
        choose = gdsload.loader.resources.choose

        def chosen(*arguments):
            found = choose(*arguments)
            return type(found)(around(found.backend), found.name, found.reason)

        monkeypatch.setattr("gdsload.loader.resources.choose", chosen)

    return wrap


@pytest.fixture
def small_groups(monkeypatch):
    """A group is a batch, so that there are many."""
    for name in ("_LEAST_GROUP_BYTES", "_MOST_GROUP_BYTES", "_GROUP_BYTES_IN_ORDER"):
        monkeypatch.setattr(f"gdsload.loader.budgets.{name}", 1)


@pytest.mark.parametrize(("depth", "shuffle"), [(1, False), (4, "block"), (7, "full"), (1000, "block")])
def test_the_batches_are_the_same_for_any_depth(path, wrapped, small_groups, depth, shuffle):
    with DataLoader(path, BATCH, shuffle, seed=3, **OPTIONS) as loader:
        expected = [batch["index"].tolist() for batch in loader]
    random = np.random.default_rng(depth)
    wrapped(lambda inner: SlowBackend(inner, lambda: random.uniform(0, 0.002)))
    with DataLoader(path, BATCH, shuffle, seed=3, **OPTIONS) as loader:
        loader.stats.reads_ahead = depth
        batches = list(loader)
    assert [batch["index"].tolist() for batch in batches] == expected
    assert all((batch["x"] == batch["index"][:, None]).all() for batch in batches)


def test_it_grows_when_the_backend_gets_slow_and_comes_back(path, wrapped, small_groups):
    delay_s = 0.0
    wrapped(lambda inner: SlowBackend(inner, lambda: delay_s))
    with DataLoader(path, BATCH, **OPTIONS) as loader:
        assert loader.stats.reads_ahead == LEAST
        delay_s = 0.01
        assert len(list(loader)) == SAMPLES // BATCH
        grown = loader.stats.reads_ahead
        assert LEAST < grown <= MOST
        delay_s = 0.0
        loader.stats.reads_ahead = 6  # or it would take more epochs than a test has time for
        while loader.stats.reads_ahead > LEAST:
            for _ in loader:
                time.sleep(0.001)  # or a slow machine's threads would change places too slowly for a consumer in haste


def test_no_depth_reads_beyond_the_budgets(path, wrapped, small_groups):
    made = []

    def around(inner):
        made.append(RecordingBackend(SlowBackend(inner, 0.005)))
        return made[-1]

    wrapped(around)
    room = 5 * 2**16  # the pool leases no less than 64 KiB
    with DataLoader(path, BATCH, "full", memory=gdsload.Memory(arena=room), **OPTIONS) as loader:
        loader.stats.reads_ahead = MOST
        assert len(list(loader)) == SAMPLES // BATCH
    assert made[0].most_held_bytes <= room
    assert made[0].held_bytes == 0


def test_a_budget_that_holds_reads_back_does_not_make_it_grow(path, wrapped, small_groups):
    wrapped(lambda inner: SlowBackend(inner, 0.005))
    with DataLoader(path, BATCH, memory=gdsload.Memory(prefetch=3 * 40 * BATCH), **OPTIONS) as loader:
        list(loader)
        assert loader.stats.reads_ahead == LEAST
