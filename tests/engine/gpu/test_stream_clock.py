"""The time that a GPU lost by loading, in loops on a machine whose time is only counted."""

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gdsload.engine.gpu.stream_clock import StreamClock
from gdsload.engine.stats import LoaderStats

STEPS, AHEAD, KERNELS = 60, 4, 100
LOOPS = {"loader": (20, 5, 0), "compute": (5, 20, 0), "host": (2, 5, 20)}
"""Milliseconds of a batch that the loader, the GPU and the host take."""


class Machine:
    """A host and a GPU with one stream, in milliseconds."""

    def __init__(self):
        self.now = self.free = 0
        self.capturing = self.broken = False
        self.events = 0

    def event(self):
        self.events += 1
        made = SimpleNamespace(at=None)

        def query():
            if self.broken:
                raise RuntimeError("CUDA error")
            return made.at <= self.now

        made.record = lambda _stream: setattr(made, "at", max(self.now, self.free))
        made.query, made.elapsed_time = query, lambda other: other.at - made.at
        return made

    def stream(self):
        return None if self.capturing else "a stream"

    def clock(self):
        self.stats = LoaderStats()
        return StreamClock(self.stats, self.event, self.stream)

    def loop(self, clock, loader, compute, host, sync):
        """Some steps on batches that are made while there is room for them."""
        given, taken, made = None, [], self.now
        for step in range(STEPS + 1):
            asked = clock.asked()
            if step < STEPS:
                made = max([made, *taken[step - AHEAD : step - AHEAD + 1]] if step >= AHEAD else [made]) + loader
                waited = max(made - self.now, 0)
                self.now += waited
                self.stats.host_wait_s += waited / 1000
                taken.append(self.now)
            given = clock.given(given, asked)
            if step < STEPS:
                for _ in range(KERNELS):  # a step queues kernels while it goes
                    self.free = max(self.now, self.free) + compute / KERNELS
                    self.now += host / KERNELS
                self.now = max(self.now, self.free) if sync else self.now
        self.stats.busy_s += self.now / 1000
        self.now = max(self.now, self.free)
        clock.settle()
        return self.now


def ran(loader, compute, host, sync):
    """The stats of a loop, and the share of its time that a loader without cost would have saved."""
    machine, best = Machine(), Machine()
    took = machine.loop(machine.clock(), loader, compute, host, sync)
    least = best.loop(best.clock(), 0, compute, host, sync)
    return machine, 1 - least / took


@given(loader=st.integers(1, 50), compute=st.integers(1, 50), host=st.integers(0, 50), sync=st.booleans())
def test_starved_is_what_a_loader_without_cost_would_save(loader, compute, host, sync):
    machine, truth = ran(loader, compute, host, sync)
    assert machine.stats.starved_share == pytest.approx(truth, abs=0.02)
    assert machine.stats.stream_s == pytest.approx(machine.now / 1000)


@pytest.mark.parametrize("sync", [True, False])
@pytest.mark.parametrize("bound", LOOPS)
def test_the_hosts_waiting_says_little_where_it_does_not_wait_for_the_gpu(bound, sync):
    machine, truth = ran(*LOOPS[bound], sync)
    right = machine.stats.host_wait_share == pytest.approx(truth, abs=0.02)
    assert right == (sync or bound == "host")


def test_events_are_used_again_and_nothing_is_waited_for():
    machine = Machine()
    machine.loop(machine.clock(), 5, 20, 0, sync=True)
    assert machine.events <= 6


def test_what_the_gpu_has_not_done_is_not_counted_yet():
    machine = Machine()
    clock = machine.clock()
    clock.given(None, clock.asked())
    machine.free = 50
    asked = clock.asked()
    clock.given(None, asked)
    assert machine.stats.stream_s == 0
    machine.now = 100
    clock.settle()
    assert asked.at == 50


def test_nothing_is_timed_or_asked_while_the_stream_is_captured():
    machine = Machine()
    clock = machine.clock()
    before = clock.given(None, clock.asked())
    machine.capturing = machine.broken = True
    assert clock.asked() is None
    assert clock.given(before, None) is None
    clock.settle()
    machine.capturing = machine.broken = False
    assert clock.given(None, None) is None  # the capture began between the two
    clock.settle()


def test_a_broken_gpu_is_not_reported_by_the_clock():
    machine = Machine()
    clock = machine.clock()
    asked, machine.broken = clock.asked(), True
    assert clock.given(None, asked) is not None
    assert machine.stats.starved_s == 0


def test_there_is_none_without_events_that_take_the_time():
    stats = LoaderStats()
    assert StreamClock.of(SimpleNamespace(type="cpu"), stats) is None
    assert stats.starved_s is stats.starved_share is None
