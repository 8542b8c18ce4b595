"""What is dropped is closed in a thread of the library's, once, and before the interpreter ends."""

from __future__ import annotations

import _thread
import gc
import logging
import threading
from functools import partial

import pytest

from gdsload.system import dropped, pool
from tests.pools import no_threads
from tests.tracing import struck


class Owner:
    pass


def test_it_closes_when_the_owner_is_dropped_and_not_before():
    closed, owner = threading.Event(), Owner()
    dropped.Closer(owner, closed.set)
    dropped.settle_dropped()
    assert not closed.is_set()
    del owner
    assert closed.wait(10)


def test_in_a_thread_of_the_librarys_that_whoever_goes_on_waits_for():
    names, begun, out, owner = [], threading.Event(), threading.Event(), Owner()

    def close():
        begun.set()
        out.wait(10)
        names.append((threading.current_thread().name, pool.own_thread()))

    closer = dropped.Closer(owner, close)
    del owner
    assert begun.wait(10)
    assert not closer.over
    threading.Timer(0.05, out.set).start()
    closer.settle()
    assert closer.over
    assert [own for _, own in names] == [True]
    assert names[0][0].startswith("gdsload-closer-")


def test_nothing_is_closed_that_was_closed_otherwise(monkeypatch):
    """Nor is a thread started for it, which at the interpreter's end would be refused with a line on stderr."""
    dropped.settle_dropped()  # what other tests have left
    calls, owner = [], Owner()
    monkeypatch.setattr(_thread, "start_new_thread", lambda *_: calls.append("a thread"))
    closer = dropped.Closer(owner, partial(calls.append, "closed"))
    closer.detach()
    del owner
    dropped.settle_dropped()
    assert calls == []


def test_nor_is_a_thread_started_to_find_that_out(monkeypatch):
    calls, owner = [], Owner()
    monkeypatch.setattr(_thread, "start_new_thread", lambda *_: calls.append("a thread"))
    closer = dropped.Closer(owner, int)
    closer.close()
    del owner
    calls.clear()
    closer.settle()
    assert closer.over
    assert calls == []


def test_where_no_thread_can_be_had_whoever_settles_closes(monkeypatch):
    calls, owner = [], Owner()
    with no_threads(RuntimeError("can't start new thread"), closers=True):
        monkeypatch.setattr(
            _thread, "start_new_thread", lambda *_: 0
        )  # of whoever drops the owner, where nothing can be raised
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
    assert "what was dropped cannot be closed" in caplog.text
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


@pytest.mark.parametrize("line", range(1, 8))
def test_detached_while_it_closes(line):
    """As by `DataLoader.close` in another thread, wherever this one is."""
    lines, calls = [], []

    def trace(frame, event, _):
        if frame.f_code is dropped.Closer.close.__code__:
            lines.append(event)
            if lines.count("line") == line:
                closer.detach()
            return trace
        return None

    owner = Owner()
    closer = dropped.Closer(owner, partial(calls.append, 1))
    assert not struck(closer.close, trace)
    assert len(calls) <= 1
    assert closer.over


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
