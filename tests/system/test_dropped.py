"""Dropped objects are closed in a thread of the library's, once, and before the interpreter ends."""

import _thread
import gc
import logging
import threading
from functools import partial

import pytest

from gdsload.system import dropped, pool
from tests.pools import no_threads


class Owner:
    pass


def test_it_closes_when_the_owner_is_dropped_in_a_thread_of_the_librarys_that_is_waited_for():
    names, begun, out, owner = [], threading.Event(), threading.Event(), Owner()

    def close():
        begun.set()
        out.wait(10)
        names.append((threading.current_thread().name[:15], pool.own_thread()))

    closer = dropped.Closer(owner, close)
    dropped.settle_dropped()
    assert not begun.is_set()
    del owner
    assert begun.wait(10)
    assert not closer.over
    threading.Timer(0.05, out.set).start()
    closer.settle()
    assert closer.over
    assert names == [("gdsload-closer-", True)]


@pytest.mark.parametrize("end", ["detach", "close"])
def test_nothing_is_closed_that_was_closed_otherwise(monkeypatch, end):
    """Nor is a thread started once it is detached, which at the interpreter's end Python would refuse on stderr."""
    dropped.settle_dropped()  # what other tests have left
    calls, owner, closed = [], Owner(), []
    monkeypatch.setattr(_thread, "start_new_thread", lambda *_: calls.append("a thread"))
    closer = dropped.Closer(owner, partial(closed.append, 1))
    getattr(closer, end)()
    del owner
    assert len(calls) == (end == "close")  # it is C that starts one, and asks nothing
    calls.clear()
    closer.settle()
    assert (calls, closed, closer.over) == ([], [1] * (end == "close"), True)


def test_where_no_thread_can_be_had_whoever_settles_closes(monkeypatch):
    calls, owner = [], Owner()
    with no_threads(RuntimeError("can't start new thread"), closers=True):
        monkeypatch.setattr(
            _thread, "start_new_thread", lambda *_: 0
        )  # of the thread that drops the owner, where nothing can be raised
        closer = dropped.Closer(owner, lambda: calls.append(threading.get_ident()))
        del owner
        dropped.settle_dropped()
    assert calls == [threading.get_ident()]
    assert closer.over


def test_one_that_fails_is_not_tried_for_ever(caplog):
    owner = Owner()

    def close():
        raise ValueError("it cannot be closed")

    dropped.Closer(owner, close)
    del owner
    with caplog.at_level(logging.ERROR, "gdsload"):
        dropped.settle_dropped()
    assert "could not be closed" in caplog.text
    assert caplog.text.count("ValueError: it cannot be closed") == 1


def test_one_that_ctrl_c_interrupts_is_closed_again():
    calls, owner = [], Owner()

    def close():
        calls.append(1)
        if len(calls) == 1:
            raise KeyboardInterrupt

    closer = dropped.Closer(owner, close)
    with pytest.raises(KeyboardInterrupt):
        closer.close()
    assert not closer.over
    del owner
    dropped.settle_dropped()
    assert (calls, closer.over) == ([1, 1], True)


def test_the_programs_end_closes_what_was_dropped_and_nothing_after_that():
    calls, owners = [], [Owner(), Owner()]
    first, second = (dropped.Closer(owner, partial(calls.append, number)) for number, owner in enumerate(owners))
    del owners[0]
    first.end()
    second.end()
    assert calls == [0]
    owners.clear()
    dropped.settle_dropped()
    assert (calls, first.over, second.over) == ([0], True, True)


def test_one_is_made_while_garbage_makes_others():
    """Garbage of the user's is collected where memory is taken, and may close loaders, or make some."""
    owner, others, before = Owner(), [], gc.get_threshold()

    class Circle:
        def __init__(self):
            self.circle = self

        def __del__(self):
            others.append(dropped.Closer(owner, int))

    closers = [dropped.Closer(owner, int) for _ in range(50)]
    try:
        for threshold in range(1, 80):
            Circle()
            gc.set_threshold(threshold)
            closers.append(dropped.Closer(owner, int))
            gc.set_threshold(0)
    finally:
        gc.set_threshold(*before)
    assert others
    for closer in closers + others:
        closer.detach()


def test_a_child_closes_nothing_of_its_parents(ends_in_a_child):
    calls, owners = [], [Owner()]
    closer = dropped.Closer(owners[0], partial(calls.append, 1))

    def drop():
        owners.clear()
        dropped.settle_dropped()
        assert calls == []

    assert ends_in_a_child(drop)
    closer.detach()
