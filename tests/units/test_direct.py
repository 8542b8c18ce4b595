"""Batches from positions, without a GPU: where the samples are, and what happens when there is no room to find them."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from gdsload import Field, ShardDataset, ShardWriter
from gdsload.backends.files import ShardFiles
from gdsload.copies import copy_runs
from gdsload.engine import direct as direct_module
from gdsload.engine.direct import Direct
from gdsload.engine.stage import Job, Ordered, Selection
from gdsload.engine.table import SampleTable
from gdsload.memory import address_of
from gdsload.order import FullOrder, Schedule, SequentialOrder

CPU = torch.device("cpu")


class Reached:
    """A backend that says where shards are, and takes notes."""

    def __init__(self, base):
        self.base, self.counted = base, []

    def reachable(self):
        return self.base

    def count(self, base, nbytes):
        self.counted.append((base, nbytes))


class Maker:
    """Makes batches in host memory."""

    def __init__(self, on_host):
        self.device, self.form = CPU, SimpleNamespace(index=None)
        self.gather = SimpleNamespace(on_host=on_host, runs=self.runs, kernel=True)

    def runs(self, addresses, nbytes, out):
        copy_runs(addresses, nbytes, lambda found: np.ones(len(found), bool), out)

    def empty(self, rows, field):
        return torch.empty((rows, *field.row_shape), dtype=torch.int32)


@pytest.fixture
def files(tmp_path):
    """1000 samples in several shards, open: a wide field, and numbers behind it."""
    with ShardWriter(
        tmp_path / "shards", {"wide": Field("uint8", (9000,)), "x": Field("int32", (2,))}, shard_bytes="2MiB"
    ) as writer:
        numbers = np.arange(1000, dtype=np.int32)
        writer.write_batch({"wide": np.zeros((1000, 9000), np.uint8), "x": np.stack([numbers, -numbers], 1)})
    dataset = ShardDataset(tmp_path / "shards")
    found = ShardFiles(dataset.sources, dataset.schema, mapped=True)
    found.ensure_open(np.arange(len(dataset.sources)))
    found.counts = dataset.counts
    yield found
    found.close()


def direct_over(files, backend, maker, order=None, batch_size=64, rank=0, world_size=1):
    order = order or SequentialOrder(1000)
    steps = Ordered(order, Schedule(1000, batch_size, rank, world_size))
    return Direct(Job(SampleTable(files, files.counts), steps, Selection(), ("x",)), steps, backend, maker)


@pytest.mark.parametrize(("rank", "world_size"), [(0, 1), (2, 3)])
def test_batches_in_order_are_runs_of_the_shards(files, rank, world_size):
    backend = Reached(files.base)
    direct = direct_over(files, backend, Maker(files.in_mappings), rank=rank, world_size=world_size)
    assert direct.ready()
    assert direct.over_pcie
    schedule, taken = direct.schedule, 0
    for low in range(0, schedule.steps, 4):
        steps = range(low, min(low + 4, schedule.steps))
        for step, batch in zip(steps, direct.gather(steps), strict=True):
            start, stop = schedule.span(step)
            assert batch["x"].tolist() == [[number, -number] for number in range(start, stop)]
            taken += stop - start
    assert sum(nbytes for _, nbytes in backend.counted) == taken * 8
    assert all(base is files.base for base, _ in backend.counted)


@pytest.mark.parametrize("index", [None, "index"])
def test_the_host_plans_where_rows_are_copied_each_or_their_numbers_are_wanted(files, monkeypatch, index):
    monkeypatch.setattr(direct_module, "PositionGather", Gather)
    monkeypatch.setattr(direct_module, "Rows", lambda *_: None)
    monkeypatch.setattr(Gather, "room", 2)
    monkeypatch.setattr(direct_module, "copies_scattered_runs", lambda: True)

    def planned_by_gpu(order):
        maker = Maker(files.in_mappings)
        maker.form = SimpleNamespace(index=index)
        direct = direct_over(files, Reached(files.base), maker, order)
        assert direct.ready()
        return direct.planned_by_gpu

    assert planned_by_gpu(SequentialOrder(1000))
    assert planned_by_gpu(FullOrder(1000, 5)) == (index is None)
    monkeypatch.setattr(direct_module, "LONG_BYTES", 8)
    assert planned_by_gpu(SequentialOrder(1000))
    assert not planned_by_gpu(FullOrder(1000, 5))


@pytest.mark.parametrize("order", [FullOrder(1000, 5), SequentialOrder(1000)])
@pytest.mark.parametrize(("batch_size", "rank", "world_size"), [(64, 0, 1), (1000, 0, 1), (7, 2, 3), (1, 3, 4)])
def test_the_shards_of_some_steps_are_all_that_they_need(files, order, batch_size, rank, world_size):
    """They are what is looked at for changes; in order, no others are."""
    direct = direct_over(files, None, Maker(files.in_mappings), order, batch_size, rank, world_size)
    schedule, ends = direct.schedule, np.cumsum(files.counts)
    for low in range(0, schedule.steps, max(schedule.steps // 9, 1)):
        steps = range(low, min(low + 3, schedule.steps))
        positions = np.concatenate([order.lane_ids(0, *schedule.span(step)) for step in steps])
        needed = np.unique(np.searchsorted(ends, positions, side="right"))
        shards = direct.shards(steps).tolist()
        assert set(needed.tolist()) <= set(shards)
        if isinstance(order, SequentialOrder) and len(needed):
            assert shards == list(range(needed[0], needed[-1] + 1))


def test_shards_that_are_kept_in_part_are_where_their_rows_are(files):
    """Memory of the GPU may lie right behind a mapping: the kept part's shard then seems to begin inside that."""
    kept, base = [], np.zeros(len(files.base), np.int64)
    for file, begin in enumerate(files.begin["x"].tolist()):
        memory = np.fromfile(files.sources[file].path, np.uint8, offset=begin)
        kept.append(memory)
        base[file] = address_of(memory) - begin
    low, high = int(base.min()), max(address_of(memory) + len(memory) for memory in kept)

    def on_host(addresses):
        inside = [(addresses >= address_of(one)) & (addresses < address_of(one) + len(one)) for one in kept]
        return (addresses >= low) & (addresses < high) & ~np.any(inside, axis=0)

    assert on_host(base).any()
    direct = direct_over(files, Reached(base), Maker(on_host))
    assert direct.ready()
    assert not direct.over_pcie
    (batch,) = direct.gather(range(3, 4))
    assert batch["x"][:, 0].tolist() == list(range(192, 256))


@pytest.mark.parametrize("selected", [False, True])
@pytest.mark.parametrize("order", [FullOrder(1000, 5), SequentialOrder(1000)])
def test_long_rows_over_the_link_are_copied(files, monkeypatch, order, selected):
    """Whatever the order; then nothing is needed of the GPU to find them."""
    monkeypatch.setattr(direct_module, "copies_scattered_runs", lambda: True)
    monkeypatch.setattr(direct_module, "LONG_BYTES", 8)
    monkeypatch.setattr(direct_module, "PositionGather", None)
    direct = direct_over(files, Reached(files.base), Maker(files.in_mappings), order)
    chosen = np.random.default_rng(0).integers(0, 1000, 1000)
    if selected:
        direct._job = replace(direct._job, selection=Selection(chosen))
    assert direct.ready()
    ids = order.lane_ids(0, 0, 1000)
    expected = (chosen[ids] if selected else ids).tolist()
    found = [batch["x"] for low in range(0, 16, 5) for batch in direct.gather(range(low, min(low + 5, 16)))]
    assert torch.cat(found).tolist() == [[number, -number] for number in expected]


class Gather:
    """Stands in for `PositionGather`; there is room for so many of them."""

    room = 0
    asked = 0

    def __init__(self, _device, ends, **_options):
        Gather.asked += 1
        if Gather.asked > Gather.room:
            raise torch.OutOfMemoryError
        self.ends, self.upload, self.found = ends, torch.from_numpy, []

    def rows(self, rows, *_arguments):
        self.found.append(rows)


@pytest.fixture
def gathers(monkeypatch):
    monkeypatch.setattr(direct_module, "PositionGather", Gather)
    monkeypatch.setattr(Gather, "asked", 0)
    return lambda room: monkeypatch.setattr(Gather, "room", room)


def test_no_room_for_tables_means_that_the_host_plans(files, gathers):
    gathers(0)
    direct = direct_over(files, Reached(files.base), Maker(files.in_mappings), FullOrder(1000, 1))
    assert not direct.ready()
    assert not direct.ready()
    assert Gather.asked == 1, "it would be tried for each group"


def test_what_was_found_stays_whole_while_another_base_is_looked_at(files, gathers):
    """A group may be queued when another thread has found that there is no room for the tables of a new base."""
    gathers(1)
    backend = Reached(files.base)
    direct = direct_over(files, backend, Maker(files.in_mappings), FullOrder(1000, 1))
    assert direct.ready()
    first = direct._reach
    backend.base = files.base.copy()
    assert not direct.ready()
    direct.gather(range(2))
    assert direct._reach is first
    assert first.gather.found == [first.rows["x"]]
    assert backend.counted == [(first.base, 2 * 64 * 8)]
    gathers(10)
    another = direct_over(files, backend, Maker(files.in_mappings), FullOrder(1000, 1))
    assert another.ready()
    backend.base = files.base
    assert another.ready()
    assert another._reach.base is files.base


def test_transforms_are_done_to_each_batch_until_one_fails_or_nobody_wants_them(files):
    def transform(step, batch):
        if step == 5:
            raise ValueError("odd")
        return step, batch["x"][:, 0].tolist()

    direct = direct_over(files, Reached(files.base), Maker(lambda addresses: np.ones(len(addresses), bool)))
    direct._job = replace(direct._job, transform=transform)
    assert direct.ready()
    ready = direct.make(range(2, 8))
    assert ready.batches == [(step, list(range(64 * step, 64 * step + 64))) for step in (2, 3, 4)]
    assert (ready.sizes, type(ready.error)) == ([64] * 3, ValueError)
    assert direct.make(range(2, 8), lambda: True).batches == []
