"""Threads that are waited for, whatever strikes meanwhile; and threads while the interpreter is taken down."""

from __future__ import annotations

import _thread
import gc
import os
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import pytest

import gdsload
from gdsload import LoaderClosedError
from gdsload.system import threads
from tests.tracing import struck


@pytest.fixture
def ending(own_end):
    threads.note_exit()


@pytest.fixture
def loader(tmp_path):
    with gdsload.ShardWriter(tmp_path / "shards") as writer:
        writer.write_batch({"x": np.arange(100)})
    with gdsload.DataLoader(tmp_path / "shards", 10, device="cpu") as found:
        yield found


@pytest.mark.usefixtures("own_end")
def test_nobody_is_kept_before():
    began = time.monotonic()
    thread = threading.Thread(target=threads.park_at_exit)
    thread.start()
    thread.join()
    assert time.monotonic() - began < 1


@pytest.mark.usefixtures("ending")
def test_who_takes_it_down_is_not_kept(loader):
    assert sum(len(batch["x"]) for batch in loader) == 100
    loader.close()
    with pytest.raises(LoaderClosedError, match="closed"):
        next(iter(loader))


@pytest.mark.usefixtures("ending")
def test_others_stay_where_they_ask_for_a_batch_and_not_longer_than_somebody_can_wait(loader, monkeypatch):
    taken = []
    monkeypatch.setattr(threads, "_TAKEN_DOWN_S", 0.4)
    thread = threading.Thread(target=lambda: taken.append(next(iter(loader))), daemon=True)
    thread.start()
    thread.join(0.2)
    assert thread.is_alive()
    assert not taken
    thread.join(10)
    assert len(taken) == 1


@pytest.fixture
def held():
    """A worker that works until its event is set: held()."""
    made = []

    def start():
        out = threading.Event()
        worker = threads.Worker(out.wait, "held")
        threads.start_all([worker])
        made.append((worker, out))
        return worker, out

    yield start
    for worker, out in made:
        out.set()
        worker.wait()


def test_who_was_interrupted_while_waiting_waits_again(held, interrupted):
    worker, out = held()
    for _ in range(3):
        interrupted(0.02, worker.wait)
    threading.Timer(0.1, out.set).start()
    worker.wait()
    assert out.is_set()
    assert worker not in threading.enumerate()


@pytest.mark.skipif(sys.version_info >= (3, 13), reason="mended in Python 3.13")
def test_a_plain_join_takes_a_thread_for_dead_then(interrupted):
    """Without which a `Worker` would not be needed."""
    out = threading.Event()
    thread = threading.Thread(target=out.wait, daemon=True)
    thread.start()
    interrupted(0.02, thread.join)
    assert not thread.is_alive()
    assert thread in threading.enumerate()
    out.set()


def test_several_wait_at_once(held):
    worker, out = held()
    with ThreadPoolExecutor(4) as several:
        waiting = [several.submit(lambda: (worker.wait(), out.is_set())[1]) for _ in range(4)]
        time.sleep(0.02)
        assert not any(one.done() for one in waiting)
        out.set()
        assert [one.result(10) for one in waiting] == [True] * 4


def test_one_that_was_never_started_is_not_waited_for():
    threads.Worker(lambda: None, "never").wait()


def test_one_that_a_child_starts_is_waited_for_there(ends_in_a_child):
    worked = []
    worker = threads.Worker(lambda: (time.sleep(0.1), worked.append(1)), "made before the fork")

    def use():
        threads.start_all([worker])
        worker.wait()
        if not worked:
            os._exit(2)

    assert ends_in_a_child(use)


def test_nobody_waits_for_himself_and_one_whose_work_fails_has_ended(monkeypatch):
    seen = []
    monkeypatch.setattr(threading, "excepthook", lambda found: seen.append(str(found.exc_value)))

    def work():
        worker.wait()

    worker = threads.Worker(work, "own")
    threads.start_all([worker])
    worker.wait()
    assert seen == ["a thread cannot wait for its own end"]


def test_starting_may_be_interrupted_and_done_again(monkeypatch):
    def struck(*_):
        raise KeyboardInterrupt

    made = []
    workers = [threads.Worker(lambda: made.append(1), "w") for _ in range(3)]
    with monkeypatch.context() as patch:
        patch.setattr(_thread, "start_new_thread", struck)
        with pytest.raises(KeyboardInterrupt):
            threads.start_all(workers)
    workers[1].start_once()
    for _ in range(2):
        threads.start_all(workers)
    for worker in workers:
        worker.wait()
    assert made == [1, 1, 1]


def test_all_calls_are_made_whatever_strikes():
    made = []

    def call(number, strikes):
        made.append(number)
        if made.count(number) <= strikes:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        threads.call_all(partial(call, number, strikes) for number, strikes in enumerate([0, 1, 5, 0]))
    assert made == [0, 1, 1, 2, 2, 3]
    threads.call_all([made.clear])
    assert made == []


class One:
    pass


class TestLiving:
    def test_those_that_somebody_holds(self):
        living, held = threads.WeakList(), [One() for _ in range(3)]
        for one in held:
            living.add(one)
        assert list(living) == held
        del held[1], one
        assert list(living) == held
        living.clear()
        assert list(living) == []

    def test_the_gone_take_no_room(self):
        living, kept = threads.WeakList(), One()
        living.add(kept)
        for _ in range(1000):
            living.add(One())
        assert len(living._refs) <= 3
        assert list(living) == [kept]

    def test_from_many_threads(self):
        living = threads.WeakList()

        def work(_number):
            made = [One() for _ in range(300)]
            for one in made:
                living.add(one)
            return made[::3]

        with ThreadPoolExecutor(4) as working:
            kept = [one for some in working.map(work, range(4)) for one in some]
        assert {id(one) for one in living} == {id(one) for one in kept}
        assert len(kept) == 400


class Owner:
    pass


class TestClosers:
    """What closes something once its owner was dropped."""

    def test_it_closes_when_the_owner_is_dropped_and_not_before(self):
        closed, owner = threading.Event(), Owner()
        threads.Closer(owner, closed.set)
        threads.settle_dropped()
        assert not closed.is_set()
        del owner
        assert closed.wait(10)

    def test_in_a_thread_of_the_librarys_that_whoever_goes_on_waits_for(self):
        names, out, owner = [], threading.Event(), Owner()

        def close():
            out.wait(10)
            names.append((threading.current_thread().name, threads.own_thread()))

        closer = threads.Closer(owner, close)
        del owner
        assert not closer.over
        out.set()
        closer.settle()
        assert closer.over
        assert [own for _, own in names] == [True]
        assert names[0][0].startswith("gdsload-closer-")

    def test_nothing_is_closed_that_was_closed_otherwise(self, monkeypatch):
        """Nor is a thread started for it, which at the interpreter's end would be refused with a line on stderr."""
        threads.settle_dropped()  # what other tests have left
        calls, owner = [], Owner()
        monkeypatch.setattr(_thread, "start_new_thread", lambda *_: calls.append("a thread"))
        closer = threads.Closer(owner, partial(calls.append, "closed"))
        closer.detach()
        del owner
        threads.settle_dropped()
        assert calls == []

    def test_nor_is_a_thread_started_to_find_that_out(self, monkeypatch):
        calls, owner = [], Owner()
        monkeypatch.setattr(_thread, "start_new_thread", lambda *_: calls.append("a thread"))
        closer = threads.Closer(owner, int)
        closer.close()
        del owner
        calls.clear()
        closer.settle()
        assert closer.over
        assert calls == []

    def test_where_no_thread_can_be_had_whoever_settles_closes(self, monkeypatch):
        asked = []

        def refused(*_):
            asked.append(1)
            if len(asked) > 1:  # the first to ask is whoever drops the owner, where nothing can be raised
                raise RuntimeError("can't start new thread")

        monkeypatch.setattr(_thread, "start_new_thread", refused)
        calls, owner = [], Owner()
        closer = threads.Closer(owner, lambda: calls.append(threading.get_ident()))
        del owner
        threads.settle_dropped()
        assert calls == [threading.get_ident()]
        assert closer.over

    def test_one_that_fails_is_not_tried_for_ever(self, monkeypatch):
        errors, owner = [], Owner()

        def close():
            raise ValueError("it cannot be closed")

        monkeypatch.setattr(threading, "excepthook", errors.append)
        threads.Closer(owner, close)
        del owner
        threads.settle_dropped()
        assert [str(error.exc_value) for error in errors] == ["it cannot be closed"]

    @pytest.mark.parametrize("line", range(1, 8))
    def test_detached_while_it_closes(self, line):
        """As by `DataLoader.close` in another thread, wherever this one is."""
        lines, calls = [], []

        def trace(frame, event, _):
            if frame.f_code is threads.Closer.close.__code__:
                lines.append(event)
                if lines.count("line") == line:
                    closer.detach()
                return trace
            return None

        owner = Owner()
        closer = threads.Closer(owner, partial(calls.append, 1))
        assert not struck(closer.close, trace)
        assert len(calls) <= 1
        assert closer.over

    def test_one_is_made_while_garbage_makes_others(self):
        """Garbage of the user's is collected where memory is taken, and may close loaders, or make some."""
        owner, others, before = Owner(), [], gc.get_threshold()

        class Circle:
            def __init__(self):
                self.circle = self

            def __del__(self):
                others.append(threads.Closer(owner, int))

        closers = [threads.Closer(owner, int) for _ in range(50)]
        try:
            for threshold in range(1, 80):
                Circle()
                gc.set_threshold(threshold)
                closers.append(threads.Closer(owner, int))
                gc.set_threshold(0)
        finally:
            gc.set_threshold(*before)
        assert others
        for closer in closers + others:
            closer.detach()

    def test_a_child_closes_nothing_of_its_parents(self, ends_in_a_child):
        calls, owners = [], [Owner()]
        closer = threads.Closer(owners[0], partial(calls.append, 1))

        def drop():
            owners.clear()
            threads.settle_dropped()
            assert calls == []

        assert ends_in_a_child(drop)
        closer.detach()


def test_the_end_waits_for_ever_only_as_long_as_nobody_strikes(monkeypatch, own_end, held, interrupted):
    worker, _ = held()
    monkeypatch.setattr(threads, "_LOOK_EVERY_S", 0.01)
    monkeypatch.setattr(threads, "_GRACE_S", 0.1)
    interrupted(0.1, worker.wait)
    interrupted(0.3, worker.wait)  # before the end, nothing has become shorter
    threads.note_exit()
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        worker.wait()
    assert 0.05 < time.monotonic() - began < 5
