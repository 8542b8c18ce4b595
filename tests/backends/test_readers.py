"""Readers of several drives: each has its own threads, and everything that they take on ends."""

import pytest

from gdsload import LoaderClosedError
from gdsload.backends.readers import close_all, one_each, run_on, threads_of_each
from gdsload.system.pool import done
from tests.pools import Held, running


def test_a_drive_that_is_held_up_keeps_no_other_waiting():
    held, ran = Held(), []
    drives = one_each(2, 1, "gdsload-test")
    slow = run_on(drives, [(0, held), *[(0, lambda: ran.append("slow"))] * 5, (1, lambda: ran.append("quick"))])
    quick = run_on(drives, [(1, lambda: ran.append("quick"))] * 3)
    quick.wait()
    assert ran == ["quick"] * 4
    assert not slow.landed
    held.may_end.set()
    slow.wait()
    close_all(drives)
    assert ran == ["quick"] * 4 + ["slow"] * 5
    assert running() == []


def test_in_one_queue_it_does():
    """The control of the test above."""
    held, ran = Held(), []
    drives = one_each(1, 1, "gdsload-test")
    slow = run_on(drives, [(0, held)])
    quick = run_on(drives, [(0, lambda: ran.append("quick"))])
    assert held.begun.wait(30)
    assert (ran, quick.landed) == ([], False)
    held.may_end.set()
    slow.wait()
    quick.wait()
    close_all(drives)


@pytest.mark.parametrize("number", range(3))
def test_readers_that_cannot_begin_are_an_error_that_everything_has_ended_before(number):
    """Reads that were queued before it go on, so that its memory must not be freed at once."""
    held, drives = Held(), one_each(3, 1, "gdsload-test")
    drives[number].close()
    works = [(drive, held) for drive in range(3) for _ in range(2)]
    try:
        reading = run_on(drives, works)
    except LoaderClosedError:
        assert not held.begun.is_set()
        assert number == 2  # the one that is begun with
    else:
        assert held.begun.wait(30)
        assert not reading.landed
        held.may_end.set()
        with pytest.raises(LoaderClosedError, match="the loader or its backend was closed"):
            reading.wait()
    close_all(drives)
    with pytest.raises(LoaderClosedError, match="the loader or its backend was closed"):
        run_on(drives, works)
    assert run_on(drives, []) is done


@pytest.mark.parametrize(
    ("drives", "usual", "asked", "each"),
    [(1, 16, None, 16), (2, 16, None, 16), (4, 16, None, 12), (100, 16, None, 2), (100, 1, None, 1),
     (1, 16, 5, 5), (2, 16, 5, 2), (8, 16, 5, 1), (1, 3, 512, 512)],
)  # fmt: skip
def test_threads_of_each_drive(drives, usual, asked, each):
    assert threads_of_each(drives, usual, asked) == each
