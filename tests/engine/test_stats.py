"""Where the time went, for whoever keeps it."""

import copy
import dataclasses
import pickle

from gdsload.engine.stats import LoaderStats


def test_they_can_be_kept():
    stats = LoaderStats(batches=3, wait_s=1.0, busy_s=4.0)
    stats.add(read_s=0.5, gather_s=0.25)
    for kept in (copy.copy(stats), copy.deepcopy(stats), pickle.loads(pickle.dumps(stats))):
        assert kept == stats
        kept.add(read_s=1.0, gather_s=0.0)
        assert stats.read_s == 0.5
    assert dataclasses.asdict(stats)["gather_s"] == 0.25
    assert stats.wait_share == 0.25


def test_a_share_is_one_at_most():
    assert LoaderStats().wait_share == 0.0
    assert LoaderStats(wait_s=2.0).wait_share == 1.0
    assert LoaderStats(wait_s=2.0, busy_s=1.0).wait_share == 1.0
