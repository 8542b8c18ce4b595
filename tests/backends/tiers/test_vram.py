"""The tier in VRAM, with host memory in the GPU's place: what is kept, counted, checked, and ended."""

import ctypes
import os
import threading
import weakref
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from gdsload import Field, FileChangedError, ShardDataset, ShardWriter
from gdsload.backends.host import HostBackend
from gdsload.backends.tiers import vram
from gdsload.backends.tiers.tiered import Tiered
from gdsload.backends.tiers.vram import VramTier
from gdsload.engine.assemble import Assembler, BatchForm
from gdsload.engine.codecs import codecs_of
from gdsload.engine.on_demand import on_demand
from gdsload.shards.reads import Extents, concat_extents
from gdsload.shards.shard_table import ShardTable
from gdsload.system import pool
from gdsload.system.memory import BatchPool
from gdsload.testing import RecordingBackend
from tests.backends.extents import Reachable

SHARDS, ROWS = 4, 500
SHARD = ROWS * 256
"""Bytes that the field takes of a shard."""
SOME = 2 * SHARD + 5
"""Bytes that the field takes of two shards, and too few for a third."""


@pytest.fixture
def folder(tmp_path):
    random = np.random.default_rng(0)
    fields = {"first": Field("uint8", (300,)), "x": Field("int32", (64,)), "last": Field("uint8", (3,))}
    with ShardWriter(tmp_path / "shards", fields, shard_bytes=ROWS * (300 + 256 + 3)) as writer:
        for _ in range(SHARDS):
            writer.write_batch(
                {
                    "first": random.integers(0, 256, (ROWS, 300), np.uint8),
                    "x": random.integers(0, 2**31, (ROWS, 64), np.int32),
                    "last": random.integers(0, 256, (ROWS, 3), np.uint8),
                }
            )
    return tmp_path / "shards"


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch):
    synchronized = SimpleNamespace(synchronize=lambda: None)
    monkeypatch.setattr(vram, "side_stream", lambda _device: None)
    monkeypatch.setattr(vram, "record", lambda _stream: synchronized)
    monkeypatch.setattr(vram, "on", lambda _stream: nullcontext())
    monkeypatch.setattr(torch.cuda, "synchronize", lambda _device: None)


@pytest.fixture
def open_tier(folder):
    opened = []

    def open_one(inner=HostBackend, *, vram_bytes=2**30, fields=("x",)):
        dataset = ShardDataset(folder)
        table = ShardTable.of(dataset.sources, dataset.stored, mapped=True)
        span = partial(table.span, names=fields)
        cpu = torch.device("cpu")
        tier = VramTier(table.files, cpu, span=span, vram_bytes=vram_bytes)
        opened.append(Tiered("vram+inner", table.files, tier, inner(table.files)))
        opened[-1].table = table
        return opened[-1]

    yield open_one
    for tier in opened:
        tier.close()
    assert alive() == []


def batches_of(tier):
    """The assembler of batches of one field."""
    form = BatchForm(codecs_of(tier.table.stored, ("x",), "offsets"))
    return on_demand(tier.table, tier, Assembler(form, BatchPool(keep_bytes=0)))


def alive():
    return [thread for thread in threading.enumerate() if thread.name.startswith("gdsload-vram")]


def wait_for_filling():
    for thread in alive():
        thread.join(20)


def rows(tier, file, count=ROWS):
    """All rows of the field in a shard, as extents."""
    begin, _ = tier.table.span(file, ["x"])
    return Extents(np.full(count, file), begin + 256 * np.arange(count), np.full(count, 256))


def read_by(tier, wanted):
    landing = tier.read(wanted)
    landing.completion.wait()
    found = [ctypes.string_at(address, 256) for address in landing.addresses.tolist()]
    landing.count()
    landing.release()
    return found


def truth(tier, wanted):
    data = [Path(source.path).read_bytes() for source in tier.files.sources]
    pairs = zip(wanted.file.tolist(), wanted.offset.tolist(), strict=True)
    return [data[file][offset : offset + 256] for file, offset in pairs]


def filled(tier):
    read_by(tier, rows(tier, 0, 1))
    wait_for_filling()
    return tier


def test_kept_shards_are_their_files(open_tier):
    tier = filled(open_tier())
    assert tier.near.ready.all()
    assert tier.near.trouble == ""
    for file in range(SHARDS):
        wanted = rows(tier, file)
        assert read_by(tier, wanted) == truth(tier, wanted)
    assert tier.near.kept_bytes == SHARDS * ROWS * 256  # bytes before and after the field are not kept
    assert np.array_equal(tier.addresses().base, tier.near._base)


def test_a_budget_for_some(open_tier):
    tier = filled(open_tier(vram_bytes=SOME))
    assert tier.near.ready.tolist() == [True, True, False, False]
    assert "used up" in tier.near.trouble
    assert tier.addresses() is None
    both = concat_extents([rows(tier, file, 7) for file in (3, 0)])
    before = tier.bytes_by_path()
    assert before == {"host": (2 * ROWS + 1) * 256}  # what the tier has copied, and the row that it was filled by
    landing = tier.read(both)
    landing.completion.wait()
    landing.release()
    assert tier.bytes_by_path() == before  # nobody has gathered them
    assert read_by(tier, both) == truth(tier, both)
    assert tier.bytes_by_path() == {"vram": 7 * 256, "host": before["host"] + 7 * 256}


def test_bytes_are_counted_where_they_were_gathered(open_tier):
    """A batch that was begun out of the page cache is none of VRAM's, whatever has been kept since."""
    tier = open_tier(Reachable)
    found = tier.addresses()
    assert found.base is tier.files.base
    filled(tier)
    far, near = tier.far.moved_bytes, tier.near.moved_bytes
    found.count(1000)
    assert (tier.far.moved_bytes, tier.near.moved_bytes) == (far + 1000, near)
    tier.addresses().count(10)
    assert (tier.far.moved_bytes, tier.near.moved_bytes) == (far + 1000, near + 10)


def test_a_shard_that_changes_while_it_is_copied_is_not_kept(open_tier, monkeypatch):
    """Also if somebody has just looked at it: nobody ever will again."""
    tier = open_tier()
    copied = VramTier._copy

    def copy_and_spoil(self, far, wanted, out):
        copied(self, far, wanted, out)
        if wanted.file[0] == 2:
            self.files.check(np.array([2]))
            os.utime(self.files.sources[2].path, ns=(1, 1))

    monkeypatch.setattr(VramTier, "_copy", copy_and_spoil)
    filled(tier)
    assert tier.near.ready.tolist() == [True, True, False, False]
    assert "written to" in tier.near.trouble


@pytest.mark.parametrize("lacks", ["memory", "thread"])
def test_what_the_system_has_no_more_of_is_no_failure(open_tier, monkeypatch, lacks):
    tier, real, starts = open_tier(), torch.empty, threading.Thread.start

    def empty(size, **options):
        if tier.near.ready.sum() == 1:
            raise torch.OutOfMemoryError
        return real(size, **options)

    def refused(thread):
        if lacks == "thread" and thread.name.startswith(VramTier.thread):
            raise RuntimeError("can't start new thread")
        starts(thread)

    monkeypatch.setattr(vram.torch, "empty", empty)
    monkeypatch.setattr(threading.Thread, "start", refused)
    filled(tier)
    assert tier.near.ready.sum() == (lacks == "memory")
    assert ("the GPU has no memory left" if lacks == "memory" else "can't start") in tier.near.trouble
    wanted = rows(tier, 3, 5)
    assert read_by(tier, wanted) == truth(tier, wanted)


def test_the_thread_ends_with_the_interpreter(open_tier, monkeypatch, own_end, soon, in_thread):
    """A loader that nobody has closed: its backend is not, either, but no thread goes on copying."""
    tier = open_tier()
    begun, go_on = threading.Event(), threading.Event()
    copied = VramTier._copy

    def slow_copy(self, far, wanted, out):
        begun.set()
        go_on.wait(20)
        copied(self, far, wanted, out)

    monkeypatch.setattr(VramTier, "_copy", slow_copy)
    read_by(tier, rows(tier, 0, 1))
    assert begun.wait(20)
    ending = in_thread(pool.end_all)
    soon(lambda: tier._closed)
    go_on.set()
    ending.result(timeout=20)
    assert alive() == []
    assert tier.near.ready.sum() <= 1


@pytest.mark.parametrize(
    ("files", "checked"), [([0, 3, 1, 2, 2], [2, 3]), ([1, 0], []), ([3, 3], [3])], ids=["both", "kept", "not kept"]
)
def test_only_what_is_not_kept_is_looked_at(open_tier, files, checked):
    """A copy stays what it is, whatever happens to its file."""
    tier = filled(open_tier(lambda files: RecordingBackend(HostBackend(files)), vram_bytes=SOME))
    assert tier.near.ready.tolist() == [True, True, False, False]
    found = batches_of(tier)(ROWS * np.array(files))["x"].numpy().tobytes()
    assert found == b"".join(truth(tier, concat_extents([rows(tier, file, 1) for file in files])))
    assert [file for some in tier.far.checked for file in some] == checked


class Late:
    """The completion of a read that lands when the tier holds all shards, one of which is written to then."""

    landed = False

    def __init__(self, tier, file):
        self.tier, self.file = tier, file

    def wait(self):
        wait_for_filling()
        assert self.tier.near.ready.all()
        begin, _ = self.tier.table.span(self.file, ["x"])
        path = Path(self.tier.files.sources[self.file].path)
        with path.open("r+b") as file:
            file.seek(begin)
            file.write(bytes(256))
        os.utime(path, ns=(1, 1))


@pytest.mark.parametrize("kept", [0, 2], ids=["none kept", "some kept"])
def test_what_was_read_before_it_was_kept_is_looked_at(open_tier, soon, kept):
    """The tier has the old bytes of the shard, and is ready when they are checked, but the read has the new ones."""
    started = threading.Event()

    class Slow(HostBackend):
        def read(self, wanted, to="device"):
            landing = super().read(wanted, to)
            if threading.current_thread() in alive():
                assert wanted.file[0] < kept or started.wait(20)
            elif 3 in wanted.file:
                started.set()
                return replace(landing, completion=Late(tier, 3))
            return landing

    tier = open_tier(Slow)
    if kept:
        read_by(tier, rows(tier, 0))
        soon(tier.near.ready[:kept].all)
    with pytest.raises(FileChangedError, match="written to"):
        batches_of(tier)(ROWS * np.array([0, 3, 3]))


class Filling(RuleBasedStateMachine):
    """Reads that end in any order, of a tier that is filled step by step until its budget is used up."""

    def __init__(self, open_tier, memory):
        super().__init__()
        self.open_tier, self.memory = open_tier, memory

    @initialize(budget=st.sampled_from([SHARD - 1, SOME, SHARDS * SHARD]))
    def open(self, budget):
        self.tier, self.budget = self.open_tier(vram_bytes=budget), budget
        self.reads, self.state, self.states, self.may_go = [], "", SimpleQueue(), SimpleQueue()
        fill = self.tier.near.fill

        def step_by_step(far, wanted, over):
            fill(far, wanted, lambda seconds: self.states.put("paused") or self.may_go.get(timeout=20) or over(seconds))
            self.states.put("ended")

        self.tier.near.fill = step_by_step

    @rule(file=st.integers(0, SHARDS - 1), count=st.integers(1, 5))
    def read(self, file, count):
        wanted = rows(self.tier, file, count)
        self.reads.append((self.tier.read(wanted), truth(self.tier, wanted)))
        self.state = self.state or self.states.get(timeout=20)

    @precondition(lambda self: self.state == "paused")
    @rule()
    def fill(self):
        self.may_go.put(None)
        self.state = self.states.get(timeout=20)

    @precondition(lambda self: self.reads)
    @rule(which=st.integers(0, 99))
    def end(self, which):
        landing, right = self.reads.pop(which % len(self.reads))
        landing.completion.wait()
        assert [ctypes.string_at(address, 256) for address in landing.addresses.tolist()] == right
        landing.release()

    @invariant()
    def what_is_held_is_within_the_budget(self):
        status = self.tier.tiers()["vram"]
        assert status.held_bytes == status.shards * SHARD <= sum(self.memory.values()) <= self.budget
        assert self.state != "ended" or status.trouble or status.shards == SHARDS

    def teardown(self):
        for _ in range(len(self.reads)):
            self.end(0)
        for _ in range(2 * SHARDS):  # it looks that often whether it is over
            self.may_go.put(None)
        self.tier.close()
        status = self.tier.tiers()["vram"]
        assert (self.memory, status.shards, status.held_bytes, alive()) == ({}, 0, 0, [])


def test_a_tier_holds_what_is_read_from_it_within_its_budget_and_gives_all_back(open_tier, monkeypatch):
    real, memory = torch.empty, {}

    def empty(nbytes, **options):
        found = real(nbytes, **options)
        memory[id(found)] = nbytes
        weakref.finalize(found, memory.pop, id(found))
        return found

    monkeypatch.setattr(vram.torch, "empty", empty)
    run_state_machine_as_test(
        partial(Filling, open_tier, memory),
        settings=settings(derandomize=True, deadline=None, max_examples=12, stateful_step_count=30),
    )
