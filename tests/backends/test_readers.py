"""Threads that read: everything that they take on ends, whoever waits for it and whoever closes them."""

from __future__ import annotations

import contextlib
import gc
import os
import sys
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gdsload import LoaderClosedError
from gdsload.backends import readers as readers_module
from gdsload.backends.readers import DriveReaders, Readers, Reading, done, one_each, threads_of_each


@pytest.fixture
def readers():
    found = Readers(1, "gdsload-test")
    yield found
    found.close()


def running():
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("gdsload-test")]


class Held:
    """Work that a thread is held up by."""

    def __init__(self):
        self.begun, self.may_end = threading.Event(), threading.Event()

    def __call__(self):
        self.begun.set()
        assert self.may_end.wait(30)


# --- what is done, and what is raised ---


@settings(derandomize=True, deadline=None, max_examples=80)
@given(st.lists(st.lists(st.booleans(), max_size=12), max_size=6), st.integers(1, 5))
def test_all_work_is_done_once_and_has_ended_when_wait_comes_back(rounds, threads):
    readers, ran, lock = Readers(threads, "gdsload-test"), [], threading.Lock()

    def work(place, fails):
        with lock:
            ran.append(place)
        if fails:
            raise ValueError(place)

    def pieces(number, fails):
        return [lambda place=(number, at), fail=fail: work(place, fail) for at, fail in enumerate(fails)]

    readings = [readers.run(pieces(number, fails)) for number, fails in enumerate(rounds)]
    for number, (reading, fails) in enumerate(zip(readings, rounds, strict=True)):
        failing = [(number, at) for at, fail in enumerate(fails) if fail]
        try:
            reading.wait()
        except ValueError as error:
            assert error.args[0] in failing
        else:
            assert not failing
        assert reading.landed
        assert sum(place[0] == number for place in ran) == len(fails)
    places = [(number, at) for number, fails in enumerate(rounds) for at in range(len(fails))]
    assert sorted(ran) == places
    assert threads > 1 or ran == places
    readers.close()
    assert running() == []


@settings(derandomize=True, deadline=None, max_examples=50)
@given(st.lists(st.sampled_from(["fine", "a", "b", "c"]), min_size=1, max_size=8))
def test_the_first_error_is_the_one_that_is_raised_and_not_before_the_last_part(outcomes):
    reading, waited = Reading(len(outcomes)), []

    def wait():
        with contextlib.suppress(OSError):
            reading.wait()
        waited.append(1)

    waiting = threading.Thread(target=wait)
    waiting.start()
    for outcome in outcomes:
        assert not reading.landed
        waiting.join(0.001)
        assert not waited
        reading.finish(None if outcome == "fine" else OSError(outcome))
    assert reading.landed
    waiting.join(20)
    assert waited
    errors = [outcome for outcome in outcomes if outcome != "fine"]
    for _ in range(2):
        if errors:
            with pytest.raises(OSError, match=f"^{errors[0]}$"):
                reading.wait()
        else:
            reading.wait()


def test_errors_that_are_no_exceptions_are_handed_on_too(readers):
    def leave():
        sys.exit("as a library might")

    with pytest.raises(SystemExit, match="as a library might"):
        readers.run([leave]).wait()
    readers.run([bool]).wait()


def test_no_work_is_done_at_once_and_starts_no_thread(readers):
    assert readers.run([]) is done
    done.wait()
    assert done.landed
    assert running() == []


def test_landed_does_not_wait(readers):
    held = Held()
    reading = readers.run([held, bool])
    assert held.begun.wait(30)
    assert not reading.landed
    held.may_end.set()
    reading.wait()
    assert reading.landed


def test_many_wait_for_one_reading(readers):
    held = Held()
    good, bad = readers.run([held]), readers.run([[].pop])
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


class Noted(Reading):
    """Notes when its last part has ended; that may fail."""

    trouble = None

    def _last(self):
        self.seen = self.landed, self._gate.locked()
        if self.trouble:
            raise self.trouble


def test_the_last_part_is_noted_before_anybody_is_told(readers):
    reading = Noted(3)
    assert readers.run([bool] * 3, reading) is reading
    reading.wait()
    assert reading.seen == (False, True)
    assert reading.landed


@pytest.mark.parametrize("part", [None, OSError("read")])
def test_noting_that_fails_is_an_error_like_any_other_and_nobody_waits_for_ever(part):
    reading = Noted(1)
    reading.trouble = ValueError("noted")
    reading.finish(part)
    with pytest.raises(OSError if part else ValueError, match="read" if part else "noted"):
        reading.wait()


def test_work_that_is_done_holds_no_memory(readers):
    class Piece:
        def __call__(self):
            pass

    piece = Piece()
    alive = weakref.ref(piece)
    readers.run([piece]).wait()
    del piece
    for _ in range(100):
        gc.collect()
        if alive() is None:
            break
        time.sleep(0.01)
    assert alive() is None


# --- threads ---


def test_threads_work_at_once():
    readers, barrier = Readers(4, "gdsload-test"), threading.Barrier(4, timeout=30)
    readers.run([barrier.wait] * 4).wait()
    assert sorted(running()) == [f"gdsload-test-{number}" for number in range(4)]
    readers.close()
    assert running() == []


def test_threads_run_on_their_processors_and_nobody_else_does():
    before = os.sched_getaffinity(0)
    chosen, found = {min(before)}, []
    readers = Readers(2, "gdsload-test", chosen)
    readers.run([lambda: found.append(os.sched_getaffinity(0))] * 4).wait()
    readers.close()
    assert found == [chosen] * 4
    assert os.sched_getaffinity(0) == before


def test_processors_that_there_are_not_are_no_obstacle():
    readers, found = Readers(1, "gdsload-test", {1023}), []
    readers.run([lambda: found.append(os.sched_getaffinity(0))]).wait()
    readers.close()
    assert found == [os.sched_getaffinity(0)]


def test_ctrl_c_while_threads_are_being_started_leaves_no_work_undone(readers, monkeypatch):
    def struck(_):
        raise KeyboardInterrupt

    done = []
    with monkeypatch.context() as patch:
        patch.setattr(readers_module, "start_all", struck)
        with pytest.raises(KeyboardInterrupt):
            readers.run([lambda: done.append(1)])
    reading = readers.run([lambda: done.append(2)])
    reading.wait()
    assert done == [2]


def test_a_system_that_is_out_of_threads_is_no_reason_to_hang(readers, monkeypatch):
    def refuse(thread):
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        for _ in range(3):
            with pytest.raises(RuntimeError, match="can't start new thread"):
                readers.run([bool])
    readers.run([bool]).wait()


# --- closing ---


def test_close_turns_away_what_nobody_has_begun(readers):
    held, ran = Held(), []
    first, second = readers.run([held]), readers.run([lambda: ran.append(1)] * 5)
    assert held.begun.wait(30)
    closing = threading.Thread(target=readers.close)
    closing.start()
    with pytest.raises(LoaderClosedError, match="the backend was closed before these bytes were read"):
        second.wait()
    assert second.landed
    assert not first.landed
    assert closing.is_alive()
    held.may_end.set()
    first.wait()
    closing.join(30)
    assert (closing.is_alive(), ran, running()) == (False, [], [])


def test_nothing_is_taken_on_after_close(readers):
    readers.run([bool]).wait()
    readers.close()
    readers.close()
    with pytest.raises(LoaderClosedError, match="the backend was closed"):
        readers.run([bool])
    assert readers.run([]) is done
    assert running() == []


def test_readers_that_never_worked_can_be_closed():
    readers = Readers(3, "gdsload-test")
    readers.close()
    with pytest.raises(LoaderClosedError, match="the backend was closed"):
        readers.run([bool])
    assert running() == []


class _ClosedMeanwhile(list):
    """Pieces of work; the readers are closed when the first has been queued."""

    def __init__(self, pieces, readers):
        super().__init__(pieces)
        self.readers = readers

    def __iter__(self):
        yield self[0]
        self.readers.close()
        yield from self[1:]


@pytest.mark.parametrize("guarded", [True, False])
def test_work_that_is_queued_while_another_thread_closes_is_turned_away(readers, monkeypatch, guarded):
    if not guarded:  # the negative control
        monkeypatch.setattr(readers, "_turn_away", lambda: None)
    reading = readers.run(_ClosedMeanwhile([bool, bool, bool], readers))
    assert reading.landed is guarded
    if guarded:
        with pytest.raises(LoaderClosedError, match="the backend was closed before these bytes were read"):
            reading.wait()


def test_nothing_hangs_when_many_threads_run_work_and_one_closes():
    for _ in range(20):
        readers, ended = Readers(3, "gdsload-test"), []

        def work(readers=readers, ended=ended):
            try:
                while True:
                    readers.run([bool] * 5).wait()
            except LoaderClosedError:
                ended.append(1)

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        time.sleep(0.005)
        readers.close()
        for thread in threads:
            thread.join(30)
        assert len(ended) == 4
        assert running() == []


def test_ctrl_c_in_the_last_part_is_not_swallowed_and_nobody_waits_for_ever():
    reading = Noted(1)
    reading.trouble = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        reading.finish()
    assert reading.landed
    with pytest.raises(KeyboardInterrupt):
        reading.wait()


# --- several drives ---


def test_a_drive_that_is_held_up_keeps_no_other_waiting():
    held, ran = Held(), []
    drives = DriveReaders(one_each(2, 1, "gdsload-test"))
    slow = drives.run([(0, held), *[(0, lambda: ran.append("slow"))] * 5, (1, lambda: ran.append("quick"))])
    quick = drives.run([(1, lambda: ran.append("quick"))] * 3)
    quick.wait()
    assert ran == ["quick"] * 4
    assert not slow.landed
    held.may_end.set()
    slow.wait()
    drives.close()
    assert ran == ["quick"] * 4 + ["slow"] * 5
    assert running() == []


def test_in_one_queue_it_does():
    """The control of the test above."""
    held, ran = Held(), []
    drives = DriveReaders(one_each(1, 1, "gdsload-test"))
    slow = drives.run([(0, held)])
    quick = drives.run([(0, lambda: ran.append("quick"))])
    assert held.begun.wait(30)
    assert (ran, quick.landed) == ([], False)
    held.may_end.set()
    slow.wait()
    quick.wait()
    drives.close()


@pytest.mark.parametrize("number", range(3))
def test_readers_that_cannot_begin_are_an_error_that_everything_has_ended_before(number):
    """What was queued before it still reads, so that its memory must not be freed at once."""
    held, each = Held(), one_each(3, 1, "gdsload-test")
    each[number].close()
    drives = DriveReaders(each)
    works = [(drive, held) for drive in range(3) for _ in range(2)]
    try:
        reading = drives.run(works)
    except LoaderClosedError:
        assert not held.begun.is_set()
        assert number == 2  # the one that is begun with
    else:
        assert held.begun.wait(30)
        assert not reading.landed
        held.may_end.set()
        with pytest.raises(LoaderClosedError, match="the backend was closed"):
            reading.wait()
    drives.close()
    with pytest.raises(LoaderClosedError, match="the backend was closed"):
        drives.run(works)
    assert drives.run([]) is done


@pytest.mark.parametrize(
    ("drives", "usual", "asked", "each"),
    [(1, 16, None, 16), (2, 16, None, 16), (4, 16, None, 12), (100, 16, None, 2), (100, 1, None, 1),
     (1, 16, 5, 5), (2, 16, 5, 2), (8, 16, 5, 1), (1, 3, 512, 512)],
)  # fmt: skip
def test_threads_of_each_drive(drives, usual, asked, each):
    assert threads_of_each(drives, usual, asked) == each
