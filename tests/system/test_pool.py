"""A pool of threads: all work that it takes on ends, for any thread that waits for it or closes it."""

import contextlib
import gc
import signal
import sys
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gdsload
from gdsload import LoaderClosedError
from gdsload.system import pool as pool_module
from gdsload.system.pool import Future, Pool, WeakList, done, end_all, end_at_exit
from tests.pools import Held, no_threads, running


@pytest.fixture
def pool():
    found = Pool(1, "gdsload-test")
    yield found
    found.close()


def fail(error):
    raise error


# --- what is done, and what is raised ---


@settings(derandomize=True, max_examples=50)
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


@settings(derandomize=True, max_examples=25)
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


def test_errors_that_are_no_exceptions_are_handed_on_too_and_the_thread_goes_on(pool):
    with pytest.raises(SystemExit, match="as a library might"):
        pool.run([partial(sys.exit, "as a library might")]).wait()
    pool.run([bool]).wait()


@pytest.mark.parametrize("by", ["after", "record"])
def test_the_last_part_is_noted_before_anybody_goes_on(pool, by):
    seen = []

    def note():
        seen.append(future.landed)
        return Passed()

    future = Future(3, **{by: note})
    assert pool.run([bool] * 3, future) is future
    future.wait()
    assert seen == [False]
    assert future.landed


@pytest.mark.parametrize("part", [None, OSError("read")])
@pytest.mark.parametrize("by", ["after", "record"])
@pytest.mark.parametrize("error", [ValueError("noted"), KeyboardInterrupt("noted")], ids=["error", "Ctrl-C"])
def test_noting_that_fails_is_an_error_like_any_other_and_nobody_waits_for_ever(part, by, error):
    """Ctrl-C is also raised in the thread that it strikes."""
    future = Future(1, **{by: partial(fail, error)})
    struck = isinstance(error, KeyboardInterrupt)
    with pytest.raises(KeyboardInterrupt) if struck else contextlib.nullcontext():
        future.finish(part)
    assert future.landed
    with pytest.raises(type(part or error), match="read" if part else "noted"):
        future.wait()


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


def test_threads_work_at_once_and_each_begins_and_ends_by_a_call():
    calls, barrier = [], threading.Barrier(4, timeout=30)
    begin, end = (lambda what=what: calls.append((what, threading.get_ident())) for what in ("begin", "end"))
    pool = Pool(4, "gdsload-test", begin, end)
    pool.run([barrier.wait] * 4).wait()
    assert sorted(running()) == [f"gdsload-test-{number}" for number in range(4)]
    assert [what for what, _ in calls] == ["begin"] * 4
    pool.close()
    assert running() == []
    assert sorted(calls[4:]) == sorted(("end", thread) for _, thread in calls[:4])


@pytest.mark.parametrize("begun", [0, 1])
def test_threads_that_could_not_be_started_leave_no_work_undone(begun):
    pool, ran = Pool(2, "gdsload-test"), []
    with no_threads(RuntimeError("can't start new thread"), begun):
        for _ in range(2):
            with pytest.raises(RuntimeError, match="can't start") if not begun else contextlib.nullcontext():
                pool.run([lambda: ran.append(1)]).wait()
    # One thread does it all where there can be no others; with none, nothing was begun.
    assert ran == [1, 1] * begun
    pool.run([lambda: ran.append(2)] * 2).wait()
    assert ran[-2:] == [2, 2]
    pool.close()
    assert running() == []


def test_a_pool_whose_start_was_interrupted_has_its_threads_for_the_next_work(monkeypatch):
    pool, ran, go_on, plain = Pool(2, "gdsload-test"), [], threading.Event(), threading.Thread.start

    def slow(thread):
        if not go_on.is_set():
            time.sleep(0.05)  # by then the main thread waits
            signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
            assert go_on.wait(10)
        plain(thread)

    monkeypatch.setattr(threading.Thread, "start", slow)
    with pytest.raises(KeyboardInterrupt):
        pool.run([lambda: ran.append(1)])
    go_on.set()
    pool.run([lambda: ran.append(2)] * 2).wait()
    assert (ran, len(running())) == ([2, 2], 2)
    pool.close()
    assert running() == []


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


@pytest.mark.parametrize("end", [Pool.close, Pool.stop, Pool.finish])
def test_nothing_is_taken_on_after_the_end(pool, end):
    for _ in range(2):
        end(pool)
        with pytest.raises(LoaderClosedError, match="the loader or its backend was closed"):
            pool.run([bool])
    assert pool.run([]) is done


class _ClosedMeanwhile(list):
    """Pieces of work; the pool is closed when the first has been queued."""

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
        monkeypatch.setattr(pool, "cancel", lambda: None)
    future = pool.run(_ClosedMeanwhile([bool, bool, bool], pool))
    assert future.landed is guarded
    if guarded:
        with pytest.raises(LoaderClosedError, match="the loader or its backend was closed before this work was done"):
            future.wait()


# --- waiting ---


@pytest.fixture
def held(pool):
    """Work that a thread is held up by, and its future."""
    work = Held()
    future = pool.run([work])
    assert work.begun.wait(30)
    yield work, future
    work.may_end.set()


@pytest.mark.parametrize("what", ["the work", "the threads"])
def test_who_was_interrupted_while_waiting_waits_again(pool, held, interrupted, what):
    work, future = held
    wait = future.wait if what == "the work" else pool.close
    for _ in range(3):
        interrupted(0.02, wait)
    threading.Timer(0.1, work.may_end.set).start()
    wait()
    assert work.may_end.is_set()
    assert bool(running()) == (what == "the work")


def test_closed_in_one_of_its_threads_it_waits_for_the_others():
    pool, held, closing = Pool(2, "gdsload-test"), Held(), threading.Event()

    def close():
        held.begun.wait(30)
        closing.set()
        pool.close()
        assert held.may_end.is_set()

    found = pool.run([held, close])
    assert closing.wait(30)
    time.sleep(0.02)
    assert not found.landed
    held.may_end.set()
    found.wait()
    pool.close()


def test_stop_does_not_wait(pool, held):
    work, future = held
    turned_away = pool.run([bool])
    pool.stop()
    with pytest.raises(LoaderClosedError, match="was closed before this work was done"):
        turned_away.wait()
    assert (future.landed, pool.ended) == (False, False)
    work.may_end.set()
    pool.close()
    assert (future.landed, pool.ended) == (True, True)


def test_finish_has_all_work_done_that_was_given_and_was_not_cancelled(pool, held):
    work, future = held
    ran = []
    turned_away = pool.run([partial(ran.append, "cancelled")])
    pool.cancel()
    later = pool.run([partial(ran.append, number) for number in range(5)])
    threading.Timer(0.02, work.may_end.set).start()
    pool.finish()
    assert (future.landed, later.landed, ran, running()) == (True, True, [0, 1, 2, 3, 4], [])
    with pytest.raises(LoaderClosedError, match="was closed before this work was done"):
        turned_away.wait()


def test_a_child_does_not_wait_for_the_threads_of_its_parent(pool, held, ends_in_a_child):
    assert ends_in_a_child(pool.close)


def test_the_end_waits_for_ever_only_as_long_as_nobody_strikes(monkeypatch, own_end, held, interrupted):
    _work, future = held
    monkeypatch.setattr(pool_module, "_LOOK_EVERY_S", 0.01)
    monkeypatch.setattr(pool_module, "_GRACE_S", 0.1)
    interrupted(0.05, future.wait)
    interrupted(0.2, future.wait)  # before the end, nothing has become shorter
    pool_module.program_end.began = time.monotonic()
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        future.wait()
    assert 0.05 < time.monotonic() - began < 5
    pool_module.program_end.interrupted = False  # the thread may take longer than that to end


@pytest.mark.parametrize("error", [KeyboardInterrupt(), ValueError("it cannot end")], ids=repr)
def test_the_end_ends_all_whatever_strikes(monkeypatch, own_end, error):
    class Owner:
        def __init__(self, strikes):
            self.strikes, self.ends = strikes, 0

        def end(self):
            self.ends += 1
            if self.ends <= self.strikes:
                raise error

    monkeypatch.setattr(pool_module, "_endless", WeakList())
    owners = [Owner(strikes) for strikes in (0, 1, 5, 0)]
    for owner in owners:
        end_at_exit(owner)
    fails = pytest.raises(ValueError, match="it cannot end") if str(error) else contextlib.nullcontext()
    with fails:
        end_all()
    assert [owner.ends for owner in owners] == [2, 2, 2, 2]
    assert pool_module.program_end.began <= time.monotonic()


# --- consumers in daemon threads, while the interpreter is taken down ---


@pytest.mark.usefixtures("own_end")
@pytest.mark.parametrize("ending", [True, False])
def test_others_stay_where_they_ask_for_a_batch_and_not_longer_than_somebody_can_wait(tmp_path, monkeypatch, ending):
    with gdsload.ShardWriter(tmp_path / "shards") as writer:
        writer.write_batch({"x": np.arange(100)})
    taken = []
    with gdsload.DataLoader(tmp_path / "shards", 10, device="cpu") as loader:
        if ending:
            pool_module.program_end.began = time.monotonic()
        monkeypatch.setattr(pool_module, "_TAKEN_DOWN_S", 0.4)
        thread = threading.Thread(target=lambda: taken.append(next(iter(loader))), daemon=True)
        thread.start()
        thread.join(0.2 if ending else 10)
        assert (thread.is_alive(), len(taken)) == (ending, not ending)
        thread.join(10)
        assert len(taken) == 1
        assert sum(len(batch["x"]) for batch in loader) == 100  # who takes it down is not kept


# --- weak lists ---


class One:
    pass


class TestWeakLists:
    def test_those_that_somebody_holds_and_the_gone_take_no_room(self):
        living, held = WeakList(), [One() for _ in range(3)]
        for one in held:
            living.add(one)
        del held[1], one
        assert list(living) == held
        for _ in range(1000):
            living.add(One())
        assert list(living) == held
        assert sys.getsizeof(living._refs) < 1000
        living.clear()
        assert list(living) == []

    def test_from_many_threads(self):
        living = WeakList()

        def work(_number):
            made = [One() for _ in range(300)]
            for one in made:
                living.add(one)
            return made[::3]

        with ThreadPoolExecutor(4) as working:
            kept = [one for some in working.map(work, range(4)) for one in some]
        assert {id(one) for one in living} == {id(one) for one in kept}
        assert len(kept) == 400
