"""Where the time went, for whoever keeps it."""

import copy
import dataclasses
import pickle

import pytest

from gdsload.engine.stats import LoaderStats


def test_they_can_be_kept():
    stats = LoaderStats(batches=3, host_wait_s=1.0, busy_s=4.0, starved_s=1.0, stream_s=8.0)
    stats.made(1, read_s=0.5, gather_s=0.25)
    for kept in (copy.copy(stats), copy.deepcopy(stats), pickle.loads(pickle.dumps(stats))):
        assert kept == stats
        kept.made(1, read_s=1.0, gather_s=0.0)
        assert stats.read_s == 0.5
    assert dataclasses.asdict(stats)["gather_s"] == 0.25
    assert (stats.host_wait_share, stats.starved_share) == (0.25, 0.125)


def test_shares_where_nothing_was_counted():
    assert LoaderStats().host_wait_share == LoaderStats().ready_share == LoaderStats(starved_s=0.0).starved_share == 0.0
    assert LoaderStats().starved_share is None


@pytest.mark.parametrize("starved_s", [None, 3.0])
def test_the_difference_of_two_counts(starved_s):
    found = LoaderStats(batches=5, starved_s=starved_s, reads_ahead=9).since(LoaderStats(batches=2, reads_ahead=4))
    assert found == LoaderStats(batches=3, starved_s=starved_s, reads_ahead=9)
