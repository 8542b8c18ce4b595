"""One epoch, with a stand-in for the pipeline: what happens when it is closed from elsewhere."""

import weakref
from collections import deque
from types import SimpleNamespace

import pytest

from gdsload.engine.batch_source import Ready
from gdsload.engine.stats import LoaderStats
from gdsload.errors import LoaderClosedError
from gdsload.loader import epoch as epoch_module
from gdsload.loader.epoch import Epoch
from gdsload.loader.state import Place


class Pipeline:
    """Delivers one group, and has its epoch closed at a given moment."""

    def __init__(self):
        self.epoch, self.closes, self.handed, self.ready = None, "", [], [Ready(["a", "b"], [1, 1])]
        self.source, self.there = self, True

    def get(self):
        if self.closes == "get":
            self.epoch.close()
        return self.ready.pop() if self.ready else None

    def hand_over(self, _batches):
        def handed(batch):
            self.handed.append(batch)
            return batch

        return handed

    def stop(self):
        pass

    close = stop


class Owner:
    def __init__(self, pipeline):
        self.stats, self._pipeline, self.clock = LoaderStats(), pipeline, None

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


def test_a_batch_is_handed_over_also_if_another_thread_closes_the_epoch_meanwhile(epoch, pipeline, monkeypatch):
    """Or it would come out without its memory having been recorded for the consumer."""

    class Closing(deque):
        def popleft(self):
            found = super().popleft()
            epoch.close()
            return found

    monkeypatch.setattr("gdsload.loader.epoch.deque", Closing)
    pipeline.epoch = epoch = Epoch(Owner(pipeline), None)
    assert next(epoch) == "a"
    assert pipeline.handed == ["a"]
    assert next(epoch, None) is None


def test_what_hands_a_group_over_is_let_go_with_the_epoch(epoch, pipeline, monkeypatch):
    """It may hold the group's batches."""

    class Holding:
        def __call__(self, batch):
            return batch

    made = []
    monkeypatch.setattr(pipeline, "hand_over", lambda _batches: made.append(weakref.ref(found := Holding())) or found)
    assert next(epoch) == "a"
    assert made[0]() is not None
    epoch.close()
    assert made[0]() is None


def test_a_batch_that_nobody_hands_over_does_not_come_out(epoch, pipeline):
    """Its memory would be used again while the consumer's kernels still read it."""
    pipeline.closes = "get"
    assert next(epoch, None) is None
    assert not pipeline.handed


@pytest.mark.parametrize("number", range(6))
def test_where_ctrl_c_strikes_the_place_is_after_what_was_handed_out(number, monkeypatch):
    """At each look at the clock: a run that is resumed there gets the batch that was not."""
    left, epoch, found = iter(range(number)), Epoch(Owner(Pipeline()), None), []

    def clock():
        if next(left, None) is None:
            raise KeyboardInterrupt
        return 0.0

    with monkeypatch.context() as patch:
        patch.setattr(epoch_module, "time", SimpleNamespace(perf_counter=clock))
        with pytest.raises(KeyboardInterrupt):
            found.extend(epoch)
    step = epoch.place.step if hasattr(epoch, "place") else 0
    assert step == len(found) == number // 3
    if number % 3:
        with pytest.raises(LoaderClosedError, match="ended with KeyboardInterrupt"):
            next(epoch)
    else:  # nothing was asked for yet
        assert [*found, *epoch] == ["a", "b"]


def test_the_gpus_time_is_taken_around_each_group_and_at_the_end(epoch, pipeline):
    noted = []
    pipeline.ready.insert(0, Ready(["c"], [1]))
    get = pipeline.get
    pipeline.get = lambda: noted.append("got") or get()
    owner = Owner(pipeline)
    owner.clock = SimpleNamespace(
        asked=lambda: noted.append("asked") or len(noted), given=lambda before, asked: noted.append((before, asked))
    )
    assert list(Epoch(owner, None)) == ["a", "b", "c"]
    assert noted == ["asked", "got", (None, 1), "asked", "got", (None, 4), "asked", "got", (None, 7)]
