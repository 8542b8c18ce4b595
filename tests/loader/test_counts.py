"""The counters of a running loader, and its observers."""

import logging

import pytest

import gdsload
from gdsload import Observer, ReadError
from gdsload.testing import Fault, FaultyBackend


class Noting(Observer):
    def __init__(self):
        self.samples, self.batches, self.retries = 0, 0, []

    def delivered(self, samples, ready, waited_s, next_s, step_s):
        assert 0 <= waited_s <= next_s <= step_s
        assert isinstance(ready, bool)
        self.samples += samples

    def made(self, batches, **times):
        assert min(times.values()) >= 0
        self.batches += batches

    def retried(self, steps, error):
        self.retries.append((steps, type(error)))


@pytest.mark.parametrize("ahead", [True, False])
def test_an_observer_gets_each_batch_group_and_retry(load, plain, wrap, caplog, ahead):
    noting = Noting()
    wrap(lambda inner: FaultyBackend(inner, Fault(lambda: ReadError("no"), calls=[0], when="completion", times=1)))
    loader = load(plain, 8, "full", mmap=False, ahead=ahead)
    loader.observe(noting)
    with caplog.at_level(logging.CRITICAL):
        assert len(list(loader)) == 125
    assert noting.samples == loader.stats.samples == 1000
    assert noting.batches == 125
    assert noting.retries == [(range(1), ReadError)]  # the first group is one batch
    assert (loader.stats.retries, loader.stats.read_s > 0) == (1, True)
    assert load(plain, 8).stats.observers == ()


def test_what_is_held_and_moved(load, plain):
    loader = load(plain, 10, "full", mmap=False)
    batches = iter(loader)
    next(batches)
    begun = loader.stats.as_dict()
    assert begun["batches_ahead"] > 0
    assert list(batches)
    found = loader.stats.as_dict()
    assert (found["batches"], found["samples"], found["batches_ahead"], found["arena_bytes"]) == (100, 1000, 0, 0)
    assert found["bytes"] == found["bytes/host"] == 1000 * 32
    assert found["drive_bytes"] >= 0
    loader.close()
    assert loader.stats.as_dict() | {"drive_bytes": 0} == found | {"drive_bytes": 0}


def test_the_epochs_stats_are_since_it_began(load, plain):
    loader = load(plain, 10)
    assert loader.epoch_stats.batches == 0
    for epoch in range(2):
        for step, _ in enumerate(loader, 1):
            assert loader.epoch_stats.batches == step
        found = loader.epoch_stats
        assert (found.epoch, found.batches, found.bytes_by_path) == (epoch, 100, {"host": 32_000})
        assert 0 < found.begin_s <= found.late_s <= found.host_wait_s <= found.busy_s <= loader.stats.busy_s
        assert loader.stats.batches == 100 * (epoch + 1)
    assert (loader.stats.epoch, loader.stats.reads_ahead) == (None, found.reads_ahead)
    assert str(loader.stats).startswith("all epochs: 2 k samples, 64 kB in ")


def test_a_cache_is_counted(load, numbered_images):
    loader = load(numbered_images, 5, decode={"image": gdsload.transforms.DecodeImage(size=8)}, cache="ram")
    for _ in range(2):
        list(loader)
    assert loader.epoch_stats.as_dict()["cache_hit_bytes/decoded"] > 0
    assert loader.stats.decode_s > 0
