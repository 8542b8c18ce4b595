"""The prefetcher, stopped in the middle of the consumer's own work."""

from __future__ import annotations

import threading
import time

import pytest

from gdsload.engine.group import Group
from gdsload.engine.limits import Limits, Runner
from gdsload.engine.prefetch import Prefetcher
from gdsload.engine.stats import LoaderStats
from gdsload.engine.steps import Steps
from gdsload.errors import LoaderClosedError
from tests.engine.noting import Noting, over


class Ten(Steps):
    """Steps of one sample each."""

    steps = 10

    def reach(self, _step):
        return 1


class Source:
    """While it starts a group, another thread stops the prefetcher."""

    takes_processor = True

    def __init__(self):
        self.dropped = []

    def start(self, steps):
        self.prefetcher.stop()
        return Pending(self, steps)

    def arena_bytes(self, _steps, _window_bytes):
        return 0

    def close(self):
        pass


class Pending:
    def __init__(self, source, steps):
        self.source, self.steps = source, steps

    def drop(self):
        self.source.dropped.append(self.steps)


def test_a_group_that_is_claimed_while_the_epoch_is_stopped_is_dropped():
    """Whoever has taken it would wait for it for ever."""
    source, limits = Source(), Limits(1 << 20, 1 << 30, 1 << 12, 8, 0)
    source.prefetcher = Prefetcher(source, Ten(), limits=limits, start=0, stats=LoaderStats(), runner=Runner(threads=0))
    with pytest.raises(LoaderClosedError, match="closed"):
        source.prefetcher.get()
    assert source.dropped == [range(1)]


def test_whoever_waits_for_a_group_that_nobody_claims_any_more_is_told(monkeypatch):
    """Without `close`: a thread of the loader's own may only ask for the end."""
    made, go_on, make, raised = threading.Event(), threading.Event(), Group.make, []

    def held_behind_the_second(self, *given):
        ready = make(self, *given)
        if self.steps.start == 1:
            made.set()
            assert go_on.wait(20)
        return ready

    monkeypatch.setattr(Group, "make", held_behind_the_second)
    prefetcher = over(Noting(), Runner(1))

    def consume():
        try:
            prefetcher.get()
        except LoaderClosedError as error:
            raised.append(error)

    prefetcher.get()
    prefetcher.get()
    assert made.wait(20)
    consumer = threading.Thread(target=consume, daemon=True)
    consumer.start()
    time.sleep(0.1)  # until it waits for the third
    prefetcher.stop()
    consumer.join(10)
    go_on.set()
    assert len(raised) == 1
    prefetcher.close()
