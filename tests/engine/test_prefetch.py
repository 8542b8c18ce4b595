"""The prefetcher: in order, within budgets, each group once, by any thread; also where threads meet in unlucky places."""

import sys
import threading
import time
from contextlib import suppress
from queue import SimpleQueue

import numpy as np
import pytest
import torch

from gdsload.engine import prefetch
from gdsload.engine.group import Group
from gdsload.engine.limits import Limits, Runner
from gdsload.errors import LoaderClosedError, ReadError
from tests.engine.noting import ALL, Noting, drain, over

BY_CONSUMER, ONE_GROUP = Runner(0, tapers=True), Runner(0, most_groups=1)
AT_ITS_HEELS = {"prefetch_bytes": 1, "group_bytes": 1}  # there is never more than one group ahead of the consumer


class Helped(Noting):
    """One whose batches take a processor to make, so that the consumer helps."""

    takes_processor = True


RUNNERS = pytest.mark.parametrize(
    ("kind", "runner"),
    [
        (Noting, BY_CONSUMER),
        (Noting, ONE_GROUP),
        (Noting, Runner(0)),
        (Noting, Runner(1)),
        (Noting, Runner(3)),
        (Helped, Runner(2)),
    ],
    ids=["consumer", "one", "small", "1", "3", "helped"],
)


@pytest.fixture
def run(request):

    def build(source, runner, **more):
        found = over(source, runner, **more)
        request.addfinalizer(found.close)
        return found

    return build


@RUNNERS
@pytest.mark.parametrize("start", [0, 1, 7, 99, 100])
def test_whoever_runs_it_batches_come_in_order_each_once(run, kind, runner, start):
    source = kind()
    prefetcher = run(source, runner, start=start)
    assert drain(prefetcher) == (ALL[start:], None)
    assert prefetcher.get() is None
    assert [step for steps in source.started for step in steps] == list(range(start, 100))


@RUNNERS
@pytest.mark.parametrize("batches", [1, 2, 5, 16, 1000])
def test_what_is_ahead_keeps_to_the_budget_but_for_two_groups(run, kind, runner, batches):
    source = kind()
    limits = Limits(batches * 160, 0, 8 * 160, 160, 0)
    drain(run(source, runner, prefetch_bytes=batches * 160, group_bytes=8 * 160))
    assert source.most_ahead <= max(batches, 2 * limits.group())


@RUNNERS
@pytest.mark.parametrize("step", [0, 6, 99])
@pytest.mark.parametrize("when", ["failing", "lost"])
@pytest.mark.parametrize("error", [ReadError("moved away"), torch.OutOfMemoryError("no room"), TypeError("a mistake")])
def test_an_error_comes_in_its_place_after_all_batches_before(run, caplog, kind, runner, step, when, error):
    source = kind()
    getattr(source, when)[step] = error
    assert drain(run(source, runner)) == (ALL[:step], error)
    assert ("a mistake" in caplog.text) == isinstance(error, TypeError), "one that nobody expects is logged"


@RUNNERS
@pytest.mark.parametrize("when", ["failing", "lost"])
def test_what_files_and_devices_cause_may_go_well_the_second_time_and_nothing_else(run, caplog, kind, runner, when):
    source = kind()
    source.healed, getattr(source, when)[20] = True, ReadError("for a moment")
    assert drain(run(source, runner)) == (ALL, None)
    assert "for a moment" in caplog.text
    source = kind()
    source.healed, getattr(source, when)[20] = True, TypeError("a mistake")
    found, error = drain(run(source, runner))
    assert isinstance(error, TypeError)
    assert found == ALL[: len(found)]
    assert len(found) <= 20


@pytest.mark.timeout(20)
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("step", [0, 3, 60])
@pytest.mark.parametrize("when", ["failing", "lost"])
@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt])
def test_a_thread_that_is_torn_out_of_its_work_leaves_nobody_waiting(run, kind, when, step, threads):
    """Its group is lost, no group after it comes, and what was planned before is made."""
    source = Noting()
    getattr(source, when)[step] = kind("torn")
    found, error = drain(run(source, Runner(threads)))
    assert found == ALL[: len(found)]
    assert len(found) <= step
    if when == "failing":
        assert found == [ALL[step] for steps in source.started for step in steps]
    assert isinstance(error, LoaderClosedError)
    assert type(error.__cause__) is kind


@pytest.mark.parametrize(("kind", "threads"), [(TypeError, 0), (TypeError, 2), (SystemExit, 1), (SystemExit, 2)])
@pytest.mark.parametrize("source", [Noting, Helped])
def test_an_error_in_planning_ends_the_epoch(run, monkeypatch, source, kind, threads):
    """After what was planned before it; nobody waits for a batch that nobody plans, or gets one after the lost one."""
    grow, asked = Limits.group, []

    class LateError(LoaderClosedError):
        def __init__(self, text):
            time.sleep(0.05)  # another thread would have its turn now
            super().__init__(text)

    def odd(self, *most, **how):
        asked.append(threading.current_thread())
        if len(asked) >= 3 and not (kind is SystemExit and asked[-1] is threading.main_thread()):
            raise kind("a mistake")
        return grow(self, *most, **how)

    monkeypatch.setattr(Limits, "group", odd)
    monkeypatch.setattr("gdsload.engine.prefetch.LoaderClosedError", LateError)
    prefetcher = run(source(), Runner(threads))
    found, error = drain(prefetcher)
    prefetcher.close()
    assert found == ALL[: len(found)]
    if kind is TypeError:
        assert isinstance(error, TypeError)
    elif source is Noting:
        assert isinstance(error, LateError)
        assert isinstance(error.__cause__, SystemExit)
        assert len(found) < 100


@pytest.mark.parametrize("lost", [None, 55])
def test_slow_planning_loses_nothing(run, monkeypatch, lost):
    """The end of the epoch is where nothing is left to be planned and no group is there: both must be seen at once."""
    grow = Limits.group

    def slowly(self, *most, **how):
        time.sleep(0.002)
        return grow(self, *most, **how)

    monkeypatch.setattr(Limits, "group", slowly)
    for _ in range(4):
        source = Noting()
        source.finishing = lambda _steps: time.sleep(0.001)
        source.lost = {} if lost is None else {lost: ReadError("bad")}
        found, error = drain(run(source, Runner(2), start=50, **AT_ITS_HEELS))
        assert found == ALL[50:lost]
        assert (lost is None and error is None) or str(error) == "bad"


def test_many_switches_between_threads(run):
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for kind in (Noting, Helped) * 5:
            assert drain(run(kind(), Runner(2), prefetch_bytes=500, group_bytes=400)) == (ALL, None)
    finally:
        sys.setswitchinterval(before)


def test_close_while_a_consumer_waits(run, in_thread):
    source = Noting()
    source.finishing = lambda _steps: time.sleep(0.3)
    prefetcher = run(source, Runner(2))
    consumer = in_thread(drain, prefetcher)
    time.sleep(0.05)
    prefetcher.close()
    prefetcher.close()
    assert isinstance(consumer.exception(timeout=5), LoaderClosedError)
    with pytest.raises(LoaderClosedError, match="closed"):
        prefetcher.get()


def test_threads_are_there_from_start_to_close_and_stop_waits_for_none(run):
    """Before it, nobody could end them, if Ctrl-C struck."""
    before, source = set(threading.enumerate()), Noting()
    source.finishing = lambda _steps: time.sleep(0.3)
    prefetcher = run(source, Runner(2))
    assert set(threading.enumerate()) == before
    prefetcher.start()
    threads = set(threading.enumerate()) - before
    assert threads
    prefetcher.start()
    assert set(threading.enumerate()) - before <= threads  # some may have ended
    assert not prefetcher.stopped
    began = time.monotonic()
    prefetcher.stop()
    assert time.monotonic() - began < 0.2
    assert prefetcher.stopped
    prefetcher.close()
    assert not [thread for thread in threads if thread.is_alive()]


class Drawn:
    """Steps of a sampler: batches of any size, and an error in the place of the last."""

    def __init__(self, batches):
        self.batches, self.known = batches, 1

    @property
    def steps(self):
        return self.known

    def reach(self, step):
        self.known = max(self.known, min(step + 1, len(self.batches)))
        return max((len(batch) for batch in self.batches if not isinstance(batch, Exception)), default=0)

    def error(self, step):
        return self.batches[step] if isinstance(self.batches[step], Exception) else None


@pytest.mark.parametrize("threads", [0, 1, 3])
@pytest.mark.parametrize("fails_at", [None, 0, 1, 7, 29])
def test_what_a_sampler_raises_comes_in_its_place(run, fails_at, threads):
    random = np.random.default_rng(5)
    batches = [random.integers(0, 200, count).tolist() for count in random.integers(0, 9, 30)]
    error = None if fails_at is None else ValueError("the sampler is empty")
    steps = Drawn([*batches[:fails_at], *([] if error is None else [error])])
    found, raised = drain(run(Noting(batches), Runner(threads), steps=steps))
    assert found == batches[:fails_at]
    assert raised is error


def test_a_group_that_is_there_does_not_wait_for_a_slow_sampler(run):
    """Its next steps are needed for groups that come later."""
    taken, held, batches = threading.Event(), [], [[1], [2], [3], [4]]

    class Slow(Drawn):
        def reach(self, step):
            if step >= 4:  # one batch is known beyond what is planned, and one is planned
                held.append(not taken.wait(5))
            return super().reach(step)

    source = Noting(batches)
    source.landed = lambda _steps: True
    prefetcher, found = run(source, Runner(2), steps=Slow(batches), group_bytes=1, batch_bytes=32), []
    while len(found) < 2:
        found += [batch["x"][:, 0].tolist() for batch in prefetcher.get().batches]
    taken.set()
    assert found + drain(prefetcher)[0] == batches
    assert held
    assert not any(held), "what was there was handed out later than what it does not need"


@RUNNERS
def test_batches_that_are_made_in_inference_mode_can_be_trained_on(run, kind, runner):
    prefetcher = run(kind(), runner)
    with torch.inference_mode():
        ready = prefetcher.get()
    assert not ready.batches[0]["x"].is_inference()


@RUNNERS
def test_what_was_started_and_nobody_takes_is_dropped(run, kind, runner):
    source = kind()
    prefetcher = run(source, runner)
    taken = len(prefetcher.get().batches)
    prefetcher.close()
    left = [step for steps in source.started for step in steps if step >= taken]
    assert sorted(step for steps in [*source.dropped, *source.made] for step in steps if step >= taken) == left
    assert source.closed == 1


def test_close_waits_for_what_the_consumer_starts(run, in_thread):
    source, inside, go_on, order = Noting(), threading.Event(), threading.Event(), []
    source.inside = lambda: (inside.set(), go_on.wait(20), order.append("started"))
    prefetcher = run(source, BY_CONSUMER)
    getting = in_thread(prefetcher.get)
    assert inside.wait(20)
    closing = in_thread(lambda: (prefetcher.close(), order.append("closed")))
    time.sleep(0.05)
    assert not closing.done()
    go_on.set()
    closing.result(timeout=20)
    assert isinstance(getting.exception(timeout=20), LoaderClosedError)
    assert order == ["started", "closed"]


def test_a_handler_that_closes_while_a_group_is_started_ends_that(run):
    """Or it would be made after the handler, out of files that are no longer there."""
    source = Noting()
    prefetcher = run(source, BY_CONSUMER)
    source.inside = prefetcher.close
    with pytest.raises(LoaderClosedError):
        prefetcher.get()
    source.inside = lambda: None
    prefetcher.close()
    with pytest.raises(LoaderClosedError):
        prefetcher.get()
    assert not source.started
    assert source.closed


def test_a_group_that_is_claimed_while_the_epoch_is_stopped_is_dropped(run):
    """A thread that had taken it would wait for it for ever."""
    source = Helped()
    prefetcher = run(source, Runner(0))
    source.inside = prefetcher.stop
    with pytest.raises(LoaderClosedError, match="closed"):
        prefetcher.get()
    assert source.dropped == [range(1)]


@pytest.mark.parametrize("threads", [1, 3])
def test_close_while_a_thread_looks_for_room_leaves_no_thread_waiting(run, monkeypatch, in_thread, threads):
    """That takes what `close` has put there for all that wait."""
    closes, closing = [], []

    class Looked(SimpleQueue):
        def get_nowait(self):
            if closes:
                closes.pop()()
            return super().get_nowait()

    def close():
        closing.append(in_thread(prefetcher.close))
        time.sleep(0.1)  # until it waits for the threads

    monkeypatch.setattr(prefetch, "SimpleQueue", Looked)
    prefetcher = run(Noting(), Runner(threads), **AT_ITS_HEELS)
    prefetcher.get()
    time.sleep(0.05)  # until all wait for room
    closes.append(close)
    with suppress(LoaderClosedError):
        prefetcher.get()
    while not closing:
        time.sleep(0.001)
    closing[0].result(timeout=10)


def test_a_wait_for_a_group_that_nobody_claims_any_more_ends(run, monkeypatch, in_thread):
    """Without `close`: a thread of the loader's own may only ask for the end."""
    made, go_on, make = threading.Event(), threading.Event(), Group.make

    def held_after_the_second(self, *given):
        found = make(self, *given)
        if self.steps.start == 1:
            made.set()
            assert go_on.wait(20)
        return found

    monkeypatch.setattr(Group, "make", held_after_the_second)
    prefetcher = run(Noting(), Runner(1))
    prefetcher.get()
    prefetcher.get()
    assert made.wait(20)
    consumer = in_thread(prefetcher.get)
    time.sleep(0.1)  # until it waits for the third
    prefetcher.stop()
    error = consumer.exception(timeout=10)
    go_on.set()
    assert isinstance(error, LoaderClosedError)


@RUNNERS
def test_stop_and_close_after_a_fork_wait_for_nobody(run, kind, runner, in_thread, ends_in_a_child):
    """Another thread was inside, and is not in the child to come out again."""
    source, inside, go_on = kind(), threading.Event(), threading.Event()
    source.inside = lambda: (inside.set(), go_on.wait(20))
    prefetcher = run(source, runner)
    getting = in_thread(prefetcher.get)
    assert inside.wait(20)
    try:
        assert ends_in_a_child(prefetcher.close)
        prefetcher.stop()
        assert prefetcher.stopped
    finally:
        go_on.set()
        getting.exception(timeout=20)
