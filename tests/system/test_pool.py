"""A pool of threads: all work that it takes on ends, whoever waits for it and whoever closes it."""

from __future__ import annotations

import contextlib
import gc
import os
import sys
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gdsload import LoaderClosedError
from gdsload.system import pool as pool_module
from gdsload.system.numa import stay_on
from gdsload.system.pool import Future, Pool, done
from tests.pools import Held, running


@pytest.fixture
def pool():
    found = Pool(1, "gdsload-test")
    yield found
    found.close()


def fail(error):
    raise error


# --- what is done, and what is raised ---


@settings(derandomize=True, deadline=None, max_examples=80)
@given(st.lists(st.lists(st.booleans(), max_size=12), max_size=6), st.integers(1, 5))
def test_all_work_is_done_once_and_has_ended_when_wait_comes_back(rounds, threads):
    pool, ran, lock = Pool(threads, "gdsload-test"), [], threading.Lock()

    def work(place, fails):
        with lock:
            ran.append(place)
        if fails:
            raise ValueError(place)

    def pieces(number, fails):
        return [lambda place=(number, at), fail=fail: work(place, fail) for at, fail in enumerate(fails)]

    futures = [pool.run(pieces(number, fails)) for number, fails in enumerate(rounds)]
    for number, (future, fails) in enumerate(zip(futures, rounds, strict=True)):
        failing = [(number, at) for at, fail in enumerate(fails) if fail]
        try:
            future.wait()
        except ValueError as error:
            assert error.args[0] in failing
        else:
            assert not failing
        assert future.landed
        assert sum(place[0] == number for place in ran) == len(fails)
    places = [(number, at) for number, fails in enumerate(rounds) for at in range(len(fails))]
    assert sorted(ran) == places
    assert threads > 1 or ran == places
    pool.close()
    assert running() == []


@settings(derandomize=True, deadline=None, max_examples=50)
@given(st.lists(st.sampled_from(["fine", "a", "b", "c"]), min_size=1, max_size=8))
def test_the_first_error_is_the_one_that_is_raised_and_not_before_the_last_part(outcomes):
    future, waited = Future(len(outcomes)), []

    def wait():
        with contextlib.suppress(OSError):
            future.wait()
        waited.append(1)

    waiting = threading.Thread(target=wait)
    waiting.start()
    for outcome in outcomes:
        assert not future.landed
        waiting.join(0.001)
        assert not waited
        future.finish(None if outcome == "fine" else OSError(outcome))
    assert future.landed
    waiting.join(20)
    assert waited
    errors = [outcome for outcome in outcomes if outcome != "fine"]
    for _ in range(2):
        if errors:
            with pytest.raises(OSError, match=f"^{errors[0]}$"):
                future.wait()
        else:
            future.wait()


def test_errors_that_are_no_exceptions_are_handed_on_too(pool):
    def leave():
        sys.exit("as a library might")

    with pytest.raises(SystemExit, match="as a library might"):
        pool.run([leave]).wait()
    pool.run([bool]).wait()


def test_no_work_is_done_at_once_and_starts_no_thread(pool):
    assert pool.run([]) is done
    done.wait()
    assert done.landed
    assert running() == []


def test_many_wait_for_one_future(pool):
    held = Held()
    good, bad = pool.run([held]), pool.run([[].pop])
    with ThreadPoolExecutor(8) as threads:
        goods = [threads.submit(good.wait) for _ in range(4)]
        bads = [threads.submit(bad.wait) for _ in range(4)]
        time.sleep(0.02)
        assert not any(future.done() for future in goods + bads)
        held.may_end.set()
        assert [future.result(30) for future in goods] == [None] * 4
        for future in bads:
            with pytest.raises(IndexError, match="pop from empty list"):
                future.result(30)


@pytest.mark.parametrize("recorded", [True, False])
def test_the_last_part_is_noted_before_anybody_goes_on(pool, recorded):
    seen = []

    def note():
        seen.append(future.landed)
        return Passed()

    future = Future(3, after=note if not recorded else None, record=note if recorded else None)
    assert pool.run([bool] * 3, future) is future
    future.wait()
    assert seen == [False]
    assert future.landed


@pytest.mark.parametrize("part", [None, OSError("read")])
@pytest.mark.parametrize("by", ["after", "record"])
def test_noting_that_fails_is_an_error_like_any_other_and_nobody_waits_for_ever(part, by):
    future = Future(1, **{by: partial(fail, ValueError("noted"))})
    future.finish(part)
    with pytest.raises(OSError if part else ValueError, match="read" if part else "noted"):
        future.wait()


def test_ctrl_c_while_the_last_part_is_noted_is_not_swallowed_and_nobody_waits_for_ever():
    future = Future(1, partial(fail, KeyboardInterrupt()))
    for call in (future.finish, future.wait):
        with pytest.raises(KeyboardInterrupt):
            call()
        assert future.landed


class Passed:
    """An event of a device; it is recorded once the parts have ended, and passed when it is waited for."""

    def __init__(self):
        self.over = False

    def query(self):
        return self.over

    def synchronize(self):
        self.over = True


@pytest.mark.parametrize("error", [None, OSError("read")])
@pytest.mark.parametrize("after", [None, partial(fail, OSError("read"))])
def test_what_is_queued_on_a_device_is_waited_for_whatever_fails(error, after):
    events = [Passed()]
    future = Future(2, after, events.pop)
    event = events[0]
    future.finish(error)
    assert events
    future.finish()
    assert not events
    assert not future.landed
    with pytest.raises(OSError, match="read") if error or after else contextlib.nullcontext():
        future.wait()
    assert event.over
    assert future.landed


def test_an_event_that_fails_has_landed_and_its_error_is_raised():
    event = Passed()
    event.query = event.synchronize = partial(fail, RuntimeError("the GPU"))
    future = Future(1, record=lambda: event)
    future.finish()
    assert future.landed
    with pytest.raises(RuntimeError, match="the GPU"):
        future.wait()


def test_work_that_is_done_holds_no_memory(pool):
    class Piece:
        def __call__(self):
            pass

    piece = Piece()
    alive = weakref.ref(piece)
    pool.run([piece]).wait()
    del piece
    for _ in range(100):
        gc.collect()
        if alive() is None:
            break
        time.sleep(0.01)
    assert alive() is None


# --- threads ---


def test_threads_work_at_once():
    pool, barrier = Pool(4, "gdsload-test"), threading.Barrier(4, timeout=30)
    pool.run([barrier.wait] * 4).wait()
    assert sorted(running()) == [f"gdsload-test-{number}" for number in range(4)]
    pool.close()
    assert running() == []


def test_threads_run_on_their_processors_and_nobody_else_does():
    before = os.sched_getaffinity(0)
    chosen, found = {min(before)}, []
    pool = Pool(2, "gdsload-test", partial(stay_on, chosen))
    pool.run([lambda: found.append(os.sched_getaffinity(0))] * 4).wait()
    pool.close()
    assert found == [chosen] * 4
    assert os.sched_getaffinity(0) == before


@pytest.mark.parametrize("error", [RuntimeError("can't start new thread"), KeyboardInterrupt()], ids=repr)
@pytest.mark.parametrize("begun", [0, 1])
def test_threads_that_could_not_be_started_leave_no_work_undone(monkeypatch, error, begun):
    pool, start_all, ran = Pool(2, "gdsload-test"), pool_module.start_all, []

    def struck(workers):
        start_all(workers[:begun])
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(pool_module, "start_all", struck)
        with contextlib.suppress(RuntimeError, KeyboardInterrupt):
            pool.run([lambda: ran.append(1)]).wait()
    # One thread does it all where there can be no others; with none, or after Ctrl-C, nothing was begun.
    assert ran == ([1] if begun and isinstance(error, RuntimeError) else [])
    pool.run([lambda: ran.append(2)] * 2).wait()
    assert ran[-2:] == [2, 2]
    pool.close()
    assert running() == []


def test_a_system_that_is_out_of_threads_is_no_reason_to_hang(pool, monkeypatch):
    def refuse(thread):
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        for _ in range(3):
            with pytest.raises(RuntimeError, match="can't start new thread"):
                pool.run([bool])
    pool.run([bool]).wait()


# --- closing ---


def test_close_turns_away_what_nobody_has_begun(pool):
    held, ran = Held(), []
    first, second = pool.run([held]), pool.run([lambda: ran.append(1)] * 5)
    assert held.begun.wait(30)
    closing = threading.Thread(target=pool.close)
    closing.start()
    with pytest.raises(LoaderClosedError, match="the loader or its backend was closed before this work was done"):
        second.wait()
    assert second.landed
    assert not first.landed
    assert closing.is_alive()
    held.may_end.set()
    first.wait()
    closing.join(30)
    assert (closing.is_alive(), ran, running()) == (False, [], [])


@pytest.mark.parametrize("worked", [True, False])
def test_nothing_is_taken_on_after_close(pool, worked):
    if worked:
        pool.run([bool]).wait()
    pool.close()
    pool.close()
    with pytest.raises(LoaderClosedError, match="the loader or its backend was closed"):
        pool.run([bool])
    assert pool.run([]) is done
    assert running() == []


class _ClosedMeanwhile(list):
    """Pieces of work; the pool are closed when the first has been queued."""

    def __init__(self, pieces, pool):
        super().__init__(pieces)
        self.pool = pool

    def __iter__(self):
        yield self[0]
        self.pool.close()
        yield from self[1:]


@pytest.mark.parametrize("guarded", [True, False])
def test_work_that_is_queued_while_another_thread_closes_is_turned_away(pool, monkeypatch, guarded):
    if not guarded:  # the negative control
        monkeypatch.setattr(pool, "_cancel", lambda: None)
    future = pool.run(_ClosedMeanwhile([bool, bool, bool], pool))
    assert future.landed is guarded
    if guarded:
        with pytest.raises(LoaderClosedError, match="the loader or its backend was closed before this work was done"):
            future.wait()


def test_nothing_hangs_when_many_threads_run_work_and_one_closes():
    def work(pool):
        while True:
            pool.run([bool] * 5).wait()

    for _ in range(20):
        pool = Pool(3, "gdsload-test")
        with ThreadPoolExecutor(4) as threads:
            working = [threads.submit(work, pool) for _ in range(4)]
            time.sleep(0.005)
            pool.close()
            assert all(isinstance(one.exception(30), LoaderClosedError) for one in working)
        assert running() == []
