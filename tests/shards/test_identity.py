"""Looks whether files are still those that were opened: how often, and what they cost. Changes: test_damage.py."""

import os
import time

import numpy as np
import pytest

from gdsload import FileChangedError
from gdsload.shards import identity as identity_module
from gdsload.shards.catalog import open_catalog
from gdsload.shards.identity import LOOK_BEFORE_S
from gdsload.shards.shard_table import ShardTable
from tests.shards.bits import flip_unseen


@pytest.fixture
def opened():
    """Opens all files of a folder, until the end of the test."""
    tables = []

    def open_all(folder, *, mapped=False):
        catalog = open_catalog(str(folder))
        tables.append(ShardTable.of(catalog.sources, catalog.stored, mapped=mapped).files)
        tables[-1].ensure_open(np.arange(len(catalog.sources)))
        time.sleep(0.02)  # file times tick every 1 to 4 ms
        return tables[-1]

    yield open_all
    for table in tables:
        table.close()


@pytest.fixture
def clock(monkeypatch):
    """A clock that only looks move on, each by so many seconds; with the names of the files that were looked at."""

    class Clock:
        def __init__(self):
            self.now, self.each_s, self.looked = 1000.0, 0.0, []

    clock, stat = Clock(), os.stat

    def slow_stat(path, **options):
        clock.now += clock.each_s
        if str(path).endswith(".safetensors"):
            clock.looked.append(os.path.basename(path)[0])
        return stat(path, **options)

    monkeypatch.setattr(identity_module.time, "monotonic", lambda: clock.now)
    monkeypatch.setattr(identity_module.os, "stat", slow_stat)
    return clock


@pytest.fixture
def passing(opened, folder, clock):
    """All files of a folder, over which looks pass for a while: the last one took long."""
    table = opened(folder)
    table.check(np.arange(10))
    clock.each_s = 1.0
    table.check(np.array([0]))
    clock.looked.clear()
    return table


def test_no_look_is_believed_but_before_a_read(opened, folder, clock):
    table = opened(folder)
    for _ in range(3):
        table.check(np.array([1, 2, 1]))
    assert clock.looked == ["1", "2"] * 3
    table.check(np.array([1, 2, 3]), believed_s=LOOK_BEFORE_S)
    assert clock.looked[6:] == ["3"]
    clock.now += LOOK_BEFORE_S
    table.check(np.array([2]), believed_s=LOOK_BEFORE_S)
    assert clock.looked[7:] == ["2"]


def test_looking_takes_a_share_of_the_time_and_no_more(opened, folder, clock):
    """Where looking takes long (many shards, a slow file system), it is done less often."""
    table = opened(folder)
    clock.each_s, began, looking = 0.05, clock.now, 0.0
    while clock.now < began + 100:
        before = clock.now
        table.check(np.arange(10))
        looking += clock.now - before
        clock.now += 0.01
    assert 0.03 < looking / (clock.now - began) < 0.06


def test_what_was_passed_over_is_looked_at_in_the_end_and_nothing_else(passing, clock):
    table = passing
    table.check(np.array([3, 5, 3]))
    clock.now += 1e-6
    table.check(np.array([5, 7]))
    assert clock.looked == []
    clock.each_s = 0.0
    table.check_passed()
    assert clock.looked == ["3", "5", "7"]
    table.check_passed()
    assert clock.looked == ["3", "5", "7"]
    clock.now += 100
    table.check(np.arange(10))
    clock.looked.clear()
    table.check_passed()
    assert clock.looked == []


def test_a_look_that_began_before_the_read_does_not_count(passing, folder, clock, monkeypatch):
    """Another thread's batch is passed over while a look is under way that may have been at the file already."""
    table, stat = passing, os.stat

    def meanwhile(path, **options):
        found = stat(path, **options)
        monkeypatch.setattr(identity_module.os, "stat", stat)
        clock.now += 1
        table.check(np.array([4]))  # passed over
        flip_unseen(folder / "4.safetensors", 80)
        return found

    monkeypatch.setattr(identity_module.os, "stat", meanwhile)
    table.check_now(np.array([4]))
    with pytest.raises(FileChangedError, match=r"4.safetensors: the shard was written to"):
        table.check_passed()


def test_who_notes_late_what_it_passed_over_takes_no_other_note_back(passing, clock, monkeypatch):
    """A thread loses the processor right after it has asked the clock; another looks at the file, and a third passes it over."""
    table = passing

    def meanwhile():
        began = clock.now
        monkeypatch.setattr(identity_module.time, "monotonic", lambda: clock.now)
        clock.now += 1
        table.check_now(np.array([4]))
        clock.now += 1
        table.check(np.array([4]))
        return began

    monkeypatch.setattr(identity_module.time, "monotonic", meanwhile)
    table.check(np.array([4]))
    clock.looked.clear()
    table.check_passed()
    assert clock.looked == ["4"]


@pytest.mark.parametrize(("looks", "each_s"), [(1, 0.2), (4, 0.05)])
def test_looks_that_took_long_by_chance(opened, folder, clock, looks, each_s):
    """The process did not have its turn: soon afterwards a file that was cut short is found out all the same."""
    table = opened(folder)
    clock.each_s = each_s
    for _ in range(looks):
        table.check(np.array([1]))
        clock.now += 0.015
    clock.each_s = 0.0
    os.truncate(folder / "1.safetensors", 8)
    with pytest.raises(FileChangedError, match="written to"):
        table.check(np.array([1]))


def test_looking_now_is_nothing_that_other_looks_pay_for(opened, folder, clock):
    """Nor is a file ever trusted that was not looked at once."""
    table = opened(folder)
    clock.each_s = 10
    table.check_now(np.array([1]))
    table.check(np.array([1]))
    assert clock.looked == ["1", "1"]
    clock.now += 100
    table.check(np.array([1, 2]))
    assert clock.looked[2:] == ["2"]
    clock.now += 300
    table.check(np.array([1]))
    assert clock.looked[3:] == ["1"]
