"""The depth of reads, with made-up clocks; with a backend that gets slow it is in tests/loader/test_reads_ahead.py."""

import math

from hypothesis import given, settings
from hypothesis import strategies as st

from gdsload.engine.pace import LEAST, MOST, Pace


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


@settings(max_examples=40)
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
