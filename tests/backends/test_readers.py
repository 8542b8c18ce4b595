"""Readers of several drives: each has its own threads, and everything that they take on ends."""

from __future__ import annotations

import pytest

from gdsload import LoaderClosedError
from gdsload.backends.readers import DriveReaders, one_each, threads_of_each
from gdsload.system.pool import done
from tests.pools import Held, running


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
        with pytest.raises(LoaderClosedError, match="the loader or its backend was closed"):
            reading.wait()
    drives.close()
    with pytest.raises(LoaderClosedError, match="the loader or its backend was closed"):
        drives.run(works)
    assert drives.run([]) is done


@pytest.mark.parametrize(
    ("drives", "usual", "asked", "each"),
    [(1, 16, None, 16), (2, 16, None, 16), (4, 16, None, 12), (100, 16, None, 2), (100, 1, None, 1),
     (1, 16, 5, 5), (2, 16, 5, 2), (8, 16, 5, 1), (1, 3, 512, 512)],
)  # fmt: skip
def test_threads_of_each_drive(drives, usual, asked, each):
    assert threads_of_each(drives, usual, asked) == each
