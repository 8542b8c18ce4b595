"""Handles of files: which are open, who uses them, and that none is closed under its user."""

import errno

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gdsload.shards import handles
from gdsload.shards.handles import HandleTable, most_open
from tests.shards.threads import in_threads

FILES = 9


class Opened:
    """Opens numbers, of both signs as cuFile's are, and notes which are open."""

    def __init__(self):
        self.open, self.made = {}, 0

    def make(self, file):
        self.made += 1
        handle = self.made * (-1) ** self.made
        self.open[handle] = file
        return handle

    def end(self, handle):
        del self.open[handle]


def table_of(opened, most=3):
    return HandleTable(FILES, opened.make, opened.end, most)


calls = st.lists(st.tuples(st.booleans(), st.lists(st.integers(0, FILES - 1), min_size=1, max_size=5)), max_size=40)


@given(calls)
def test_handles_are_of_the_files_asked_for_and_stay_open_while_they_are_used(several):
    opened, held = Opened(), []
    table = table_of(opened)
    for give, chosen in several:
        files = np.array(chosen)
        if give and held:
            table.give(held.pop(0))
        else:
            found = table.lend(files)
            assert [opened.open[handle] for handle in found.tolist()] == files.tolist()
            assert len(set(found.tolist())) == len(set(chosen)), "a file that is asked for twice is opened once"
            held.append(files)
        used = {file for files in held for file in files.tolist()}
        assert used <= set(opened.open.values())
        assert len(opened.open) <= max(3, len(used)) + 5  # what a call opens before others are closed
    if several and several[0][0]:
        table.close()  # it closes what is given back
    for files in held:
        table.give(files)
    assert len(opened.open) <= 3
    table.close()
    assert opened.open == {}


def test_the_least_recently_used_ones_are_closed():
    opened = Opened()
    table = table_of(opened)
    for file in (0, 1, 2, 0, 3):
        with table.lent(file):
            pass
    assert sorted(opened.open.values()) == [0, 2, 3]


def test_threads_share_them():
    opened = Opened()
    table = table_of(opened, most=2)

    def work(seed):
        for files in np.random.default_rng(seed).integers(0, FILES, (300, 3)):
            found = table.lend(files)
            assert [opened.open.get(handle) for handle in found.tolist()] == files.tolist()
            table.give(files)

    in_threads(work, range(4))
    assert len(opened.open) <= 2


@pytest.mark.parametrize(
    ("allowed", "open_now", "most"),
    [(1024, 20, 128), (1 << 20, 20, 4096), (-1, 20, 4096), (512, 20, 64), (64, 20, 11), (64, 63, 1), (1024, 1000, 6)],
)
def test_how_many_are_kept_follows_from_how_many_a_process_may_have(monkeypatch, allowed, open_now, most):
    monkeypatch.setattr(handles.resource, "getrlimit", lambda _which: (allowed, allowed))
    monkeypatch.setattr(handles.os, "listdir", lambda _folder: [""] * open_now)
    assert most_open() == most


class Scarce(Opened):
    """Opens no more than so many."""

    def __init__(self, most):
        super().__init__()
        self.most = most

    def make(self, file):
        if len(self.open) >= self.most:
            raise OSError(errno.EMFILE, "Too many open files")
        return super().make(file)


@given(calls)
def test_where_a_process_may_have_no_more_those_that_nobody_uses_are_closed(several):
    opened = Scarce(3)
    table = table_of(opened, most=FILES)
    for _, chosen in several:
        files = np.array(chosen)
        if len(set(chosen)) > 3:
            with pytest.raises(OSError, match="Too many open files"):
                table.lend(files)
            continue
        found = table.lend(files)
        assert [opened.open[handle] for handle in found.tolist()] == files.tolist()
        table.give(files)
    table.close()
    assert opened.open == {}


def test_where_all_are_in_use_the_systems_error_comes_out():
    opened = Scarce(1)
    table = table_of(opened)
    with table.lent(1), pytest.raises(OSError, match="Too many open files"):
        table.lend_one(2)
    with table.lent(2):
        pass
