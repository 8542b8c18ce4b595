"""One epoch, with a stand-in for the pipeline: what happens when it is closed from elsewhere."""

from __future__ import annotations

import pytest

from gdsload.engine.batch_source import Ready
from gdsload.engine.stats import LoaderStats
from gdsload.loader.epoch import Epoch
from gdsload.loader.state import Place


class Pipeline:
    """Delivers one group, and has its epoch closed at a moment that is told."""

    def __init__(self):
        self.epoch, self.closes, self.handed, self.ready = None, "", [], [Ready(["a", "b"], [1, 1])]
        self.source = self

    def get(self):
        if self.closes == "get":
            self.epoch.close()
        return self.ready.pop() if self.ready else None

    def hand_over(self, batch):
        self.handed.append(batch)
        return batch

    def stop(self):
        pass

    close = stop


class Owner:
    def __init__(self, pipeline):
        self.stats, self._pipeline = LoaderStats(), pipeline

    def check_usable(self):
        pass

    def batches(self):
        return 2

    def check_world(self, place):
        assert place is self.place

    def begin(self, epoch):
        epoch.place = self.place = Place(0, 0, None)
        epoch.reads_from(self._pipeline)

    def ended(self, epoch):
        pass


@pytest.fixture
def pipeline():
    return Pipeline()


@pytest.fixture
def epoch(pipeline):
    pipeline.epoch = Epoch(Owner(pipeline), None)
    return pipeline.epoch


def test_every_batch_is_handed_over(epoch, pipeline):
    assert list(epoch) == ["a", "b"] == pipeline.handed


def test_a_batch_that_nobody_hands_over_does_not_come_out(epoch, pipeline):
    """Its memory would be used anew while the consumer's kernels still read it."""
    pipeline.closes = "get"
    assert next(epoch, None) is None
    assert not pipeline.handed


def test_closed_between_two_batches(epoch, pipeline):
    assert next(epoch) == "a"
    epoch.close()
    assert next(epoch, None) is None
    assert pipeline.handed == ["a"]
