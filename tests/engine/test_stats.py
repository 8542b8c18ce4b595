"""The time that each part of the loader took, for observers."""

import copy
import dataclasses
import json
import logging
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gdsload.engine.stats import LoaderStats, Observer, short

FULL = LoaderStats(batches=3, host_wait_s=1.0, busy_s=4.0, starved_s=1.0, stream_s=8.0, bytes_by_path={"gds": 6})


def delivered(stats, *next_s):
    for seconds in next_s:
        stats.delivered(4, ready=True, waited_s=seconds / 2, next_s=seconds, step_s=seconds)


def kept_in(stats):
    return copy.copy(stats), copy.deepcopy(stats), pickle.loads(pickle.dumps(stats)), dataclasses.replace(stats)


def test_they_can_be_kept():
    stats = copy.copy(FULL)
    stats.made(1, read_s=0.5, gather_s=0.25)
    for kept in kept_in(stats):
        assert kept == stats
        kept.made(1, read_s=1.0, gather_s=0.0)
        delivered(kept, 1.0)
        assert (stats.read_s, sum(stats.next_counts)) == (0.5, 0)
    assert dataclasses.asdict(stats)["gather_s"] == 0.25
    assert (stats.host_wait_share, stats.starved_share) == (0.25, 0.125)


def test_shares_where_nothing_was_counted():
    assert LoaderStats().host_wait_share == LoaderStats().ready_share == LoaderStats(starved_s=0.0).starved_share == 0.0
    assert LoaderStats().starved_share is None
    assert LoaderStats().next_s(0.5) == 0


def test_the_difference_of_two_counts():
    now = copy.copy(FULL)
    before = copy.copy(now)
    delivered(now, 0.5)
    now.reads_ahead, now.bytes_by_path = 9, {"gds": 7, "host": 2}
    wanted = LoaderStats(starved_s=0.0, reads_ahead=9, bytes_by_path={"gds": 1, "host": 2})
    delivered(wanted, 0.5)
    assert now.since(before) == wanted
    assert LoaderStats().since(LoaderStats()).starved_s is None


@given(st.lists(st.floats(1e-7, 300), min_size=1, max_size=50), st.floats(0.01, 1))
def test_latencies_are_known_to_a_tenth(times, share):
    stats = LoaderStats()
    delivered(stats, *times)
    wanted = sorted(times)[int(np.ceil(share * len(times) - 1e-9)) - 1]
    assert stats.next_s(share) == pytest.approx(max(wanted, 1e-5), rel=0.1) or wanted > 160


def test_the_flat_dict_holds_numbers_alone():
    found = FULL.as_dict()
    assert json.loads(json.dumps(found)) == found
    assert all(type(value) in (int, float) for value in found.values())
    assert found["bytes"] == found["bytes/gds"] == 6
    assert found["starved_share"] == 0.125
    assert "starved_s" not in LoaderStats().as_dict()


@pytest.mark.parametrize(
    ("number", "text"),
    [(0, "0 B"), (7, "7 B"), (999, "999 B"), (1000, "1 kB"), (1281167, "1.28 MB"), (2e15, "2e+03 TB")],
)
def test_short_numbers(number, text):
    assert short(number, "B") == text
    assert short(number) == text.removesuffix("B").rstrip()


def test_an_epoch_is_one_line():
    stats = LoaderStats(
        samples=1281167, busy_s=61, starved_s=0.84, stream_s=60, epoch=3, bytes_by_path={"pagecache": 4e9, "gds": 189e9}
    )
    assert str(stats) == "epoch 3: 1.28 M samples, 193 GB in 61 s, 3.16 GB/s (gds 98%, pagecache 2%), starved 1.4%"
    assert str(LoaderStats(samples=1)).startswith("all epochs: 1 sample, ")
    assert str(LoaderStats()) == repr(LoaderStats()) == "all epochs: 0 samples, 0 B in 0 s, 0 B/s, waited 0.0%"


class Noting(Observer):
    def __init__(self):
        self.noted = []

    def delivered(self, *given):
        self.noted.append(given)

    def retried(self, steps, error):
        self.noted.append((steps, error))


def test_observers_get_what_the_stats_get_and_one_that_fails_is_left_out(caplog):
    good, bad, stats = Noting(), Noting(), LoaderStats()
    bad.noted = None
    stats.observers = bad, good
    delivered(stats, 0.5)
    with caplog.at_level(logging.CRITICAL):
        delivered(stats, 0.5)
    stats.made(2, read_s=0.1, gather_s=0.2)  # which it does not look at
    stats.retried(range(3), error := OSError())
    assert good.noted == [(4, True, 0.25, 0.5, 0.5)] * 2 + [(range(3), error)]
    assert stats.observers == (good,)
    assert ["not called again" in record.getMessage() for record in caplog.records] == [True]
    assert all(kept.observers == () for kept in kept_in(stats)[:-1])
    assert (stats.batches, stats.groups, stats.retries) == (2, 1, 1)
