"""Batches from positions, without a GPU: where the samples are, and what happens when there is no room to find them."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import numpy as np
import pytest
import torch

from gdsload import Field, FileChangedError, ShardDataset, ShardWriter
from gdsload.backends.base import ShardAddresses
from gdsload.engine import resident as resident_module
from gdsload.engine.assemble import BatchForm
from gdsload.engine.codecs import codecs_of
from gdsload.engine.resident import ResidentGather
from gdsload.engine.steps import Job, Ordered
from gdsload.order import BlockOrder, FullOrder, MixOrder, Mixture, Schedule, SequentialOrder
from gdsload.shards.format.schema import Schema
from gdsload.shards.format.stored import StoredSchema
from gdsload.shards.shard_table import ShardTable
from gdsload.system.memory import address_of
from tests.engine.on_host import HostMaker, Ids

STORED = StoredSchema(Schema({"x": Field("int32", (2,))}))
BLOCKS = BlockOrder([600, 400], block=30, window=100, lanes=3, key=7)


class Reached:
    """A backend that says where shards are, and takes notes."""

    addressable = True

    def __init__(self, base):
        self.counted = []
        self.move(base)

    def move(self, base, *, copies=False):
        """Have the shards at other addresses from now on."""
        self.found = ShardAddresses(base, lambda nbytes: self.counted.append((base, nbytes)), copies)

    def addresses(self):
        return self.found

    def check(self, files):
        raise FileChangedError(f"{len(files)} shards")


class Maker(HostMaker):
    def __init__(self, on_host):
        super().__init__(BatchForm(codecs_of(STORED, ("x",), "offsets")), on_host)


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    """1000 samples in several shards: a wide field, and numbers after it."""
    path = tmp_path_factory.mktemp("resident") / "shards"
    with ShardWriter(path, {"wide": Field("uint8", (9000,)), "x": Field("int32", (2,))}, shard_bytes="2MiB") as writer:
        numbers = np.arange(1000, dtype=np.int32)
        writer.write_batch({"wide": np.zeros((1000, 9000), np.uint8), "x": np.stack([numbers, -numbers], 1)})
    return path


@pytest.fixture
def files(shards):
    dataset = ShardDataset(shards)
    table = ShardTable.of(dataset.sources, dataset.stored, mapped=True)
    table.ensure_open(np.arange(len(dataset.sources)))
    table.files.table, table.files.counts = table, dataset.counts
    yield table.files
    table.files.close()


def gather_over(files, order, *schedule, backend=None, maker=None):
    steps = Ordered(order, Schedule(1000, *(schedule or [64]), lanes=order.lanes))
    job, maker = Job(files.table, steps), maker or Maker(files.in_mappings)
    return ResidentGather(job, steps, backend or Reached(files.base), maker)


@pytest.mark.parametrize(("rank", "world_size"), [(0, 1), (2, 3)])
def test_batches_in_order_are_runs_of_the_shards(files, rank, world_size):
    backend = Reached(files.base)
    gather = gather_over(files, SequentialOrder(1000), 64, rank, world_size, backend=backend)
    assert gather.ready()
    assert gather.over_pcie
    schedule, taken = gather.ordered.schedule, 0
    for low in range(0, schedule.steps, 4):
        steps = range(low, min(low + 4, schedule.steps))
        for step, batch in zip(steps, gather.gather(steps), strict=True):
            start, stop = schedule.span(step)
            assert batch["x"].tolist() == [[number, -number] for number in range(start, stop)]
            taken += stop - start
    assert sum(nbytes for _, nbytes in backend.counted) == taken * 8
    assert all(base is files.base for base, _ in backend.counted)


@pytest.mark.parametrize("index", [None, "index"])
def test_the_host_plans_where_rows_are_copied_each_or_their_numbers_are_wanted(files, monkeypatch, index):
    monkeypatch.setattr(resident_module, "PositionGather", Gather)
    monkeypatch.setattr(resident_module, "rows_in_shards", lambda *_: None)
    monkeypatch.setattr(Gather, "room", 2)
    monkeypatch.setattr(resident_module, "copies_scattered_runs", lambda: True)

    def planned_by_gpu(order):
        maker = Maker(files.in_mappings)
        maker.form = replace(maker.form, index=index)
        gather = gather_over(files, order, maker=maker)
        assert gather.ready()
        return gather.planned_by_gpu

    assert planned_by_gpu(SequentialOrder(1000))
    assert planned_by_gpu(FullOrder(1000, 5)) == (index is None)
    monkeypatch.setattr(resident_module, "LONG_BYTES", 8)
    assert planned_by_gpu(SequentialOrder(1000))
    assert not planned_by_gpu(FullOrder(1000, 5))


@pytest.mark.parametrize("order", [FullOrder(1000, 5), SequentialOrder(1000)])
@pytest.mark.parametrize(("batch_size", "rank", "world_size"), [(64, 0, 1), (1000, 0, 1), (7, 2, 3), (1, 3, 4)])
def test_the_shards_of_some_steps_are_all_that_they_need(files, order, batch_size, rank, world_size):
    """They are what is looked at for changes; in order, no others are."""
    gather = gather_over(files, order, batch_size, rank, world_size)
    schedule, ends = gather.ordered.schedule, np.cumsum(files.counts)
    for low in range(0, schedule.steps, max(schedule.steps // 9, 1)):
        steps = range(low, min(low + 3, schedule.steps))
        positions = np.concatenate([order.lane_ids(0, *schedule.span(step)) for step in steps])
        needed = np.unique(np.searchsorted(ends, positions, side="right"))
        shards = gather.shards(steps).tolist()
        assert set(needed.tolist()) <= set(shards)
        if isinstance(order, SequentialOrder) and len(needed):
            assert shards == list(range(needed[0], needed[-1] + 1))


@pytest.mark.parametrize("order", [FullOrder(1000, 5), SequentialOrder(1000)])
def test_copies_need_no_look(files, gathers, order):
    """They are known by the addresses that a group is gathered from, whatever can be addressed afterwards."""
    gathers(10)
    backend = Reached(files.base)
    gather = gather_over(files, order, backend=backend)
    assert gather.ready()
    backend.move(files.base.copy(), copies=True)
    assert len(gather.shards(range(16))) == len(files.base)
    assert gather.ready()
    assert len(gather.shards(range(16))) == 0


def test_shards_that_are_kept_in_part_are_where_their_rows_are(files):
    """Memory of the GPU may come right after a mapping: the kept part's shard then seems to begin inside that."""
    kept, base = [], np.zeros(len(files.base), np.int64)
    for file, begin in enumerate(files.table.begin["x"].tolist()):
        memory = np.fromfile(files.sources[file].path, np.uint8, offset=begin)
        kept.append(memory)
        base[file] = address_of(memory) - begin
    low, high = int(base.min()), max(address_of(memory) + len(memory) for memory in kept)

    def on_host(addresses):
        inside = [(addresses >= address_of(one)) & (addresses < address_of(one) + len(one)) for one in kept]
        return (addresses >= low) & (addresses < high) & ~np.any(inside, axis=0)

    assert on_host(base).any()
    gather = gather_over(files, SequentialOrder(1000), backend=Reached(base), maker=Maker(on_host))
    assert gather.ready()
    assert not gather.over_pcie
    (batch,) = gather.gather(range(3, 4))
    assert batch["x"][:, 0].tolist() == list(range(192, 256))


@pytest.mark.parametrize("selected", [False, True])
@pytest.mark.parametrize("order", [FullOrder(1000, 5), SequentialOrder(1000), BLOCKS])
def test_long_rows_over_the_link_are_copied(files, monkeypatch, order, selected):
    """In any order; then nothing is needed of the GPU to find them."""
    monkeypatch.setattr(resident_module, "copies_scattered_runs", lambda: True)
    monkeypatch.setattr(resident_module, "LONG_BYTES", 8)
    monkeypatch.setattr(resident_module, "PositionGather", None)
    gather = gather_over(files, order)
    chosen = np.random.default_rng(0).integers(0, 1000, 1000)
    if selected:
        gather.job = replace(gather.job, ids=chosen)
    assert gather.ready()
    ids = gather.ordered.positions(range(16))
    expected = (chosen[ids] if selected else ids).tolist()
    found = [batch["x"] for low in range(0, 16, 5) for batch in gather.gather(range(low, min(low + 5, 16)))]
    assert torch.cat(found).tolist() == [[number, -number] for number in expected]


class Gather:
    """Stands in for `PositionGather`; there is room for so many of them."""

    room = 0
    asked = 0
    made: ClassVar[list] = []

    def __init__(self, _device, ends, *, side, **_options):
        Gather.asked += 1
        if Gather.asked > Gather.room:
            raise torch.OutOfMemoryError
        self.ends, self.ends_there, self.upload, self.found = ends, torch.from_numpy(ends), torch.from_numpy, []
        self.positions = []
        Gather.made.append(self)
        self.on_side_stream = side or (lambda make: make())

    def rows(self, rows, positions, outs):
        assert [len(out) for out in outs] == [positions.size] * positions.batches
        self.found.append(rows)
        self.positions.append(positions)


@pytest.fixture
def gathers(monkeypatch):
    """Says for how many gathers there is room, and whether there is for ids."""
    monkeypatch.setattr(resident_module, "PositionGather", Gather)
    monkeypatch.setattr(resident_module, "BlockIds", Ids)
    for name, value in (("asked", 0), ("made", [])):
        monkeypatch.setattr(Gather, name, value)
    monkeypatch.setattr(Ids, "made", 0)

    def set_room(gathers, ids=True):
        monkeypatch.setattr(Gather, "room", gathers)
        monkeypatch.setattr(Ids, "room", ids)

    return set_room


@pytest.mark.parametrize(("order", "room"), [(FullOrder(1000, 1), (0, True)), (BLOCKS, (10, False))])
def test_no_room_for_tables_means_that_the_host_plans(files, gathers, order, room):
    gathers(*room)
    gather = gather_over(files, order)
    assert not gather.ready()
    assert not gather.ready()
    assert Gather.asked == 1, "it would be tried for each group"


def test_what_was_found_stays_whole_while_another_base_is_looked_at(files, gathers):
    """A group may be queued when another thread has found that there is no room for the tables of a new base."""
    gathers(1)
    backend = Reached(files.base)
    gather = gather_over(files, FullOrder(1000, 1), backend=backend)
    assert gather.ready()
    (first,) = Gather.made
    backend.move(files.base.copy())
    assert not gather.ready()
    gather.gather(range(2))
    assert len(first.found) == 1
    assert [(base is files.base, nbytes) for base, nbytes in backend.counted] == [(True, 2 * 64 * 8)]
    gathers(10)
    another = gather_over(files, FullOrder(1000, 1), backend=backend)
    assert another.ready()
    backend.move(files.base)
    assert another.ready()
    another.gather(range(1))
    assert backend.counted[-1][0] is files.base


def test_ids_of_blocks_stay_when_the_shards_move(files, gathers):
    gathers(10)
    backend = Reached(files.base)
    gather = gather_over(files, BLOCKS, backend=backend)
    assert gather.ready()
    backend.move(files.base.copy())
    assert gather.ready()
    assert (Gather.asked, Ids.made) == (2, 1)


@pytest.mark.parametrize(
    ("order", "changes", "who"),
    [
        (BLOCKS, {}, "gpu"),
        (BLOCKS, {"kernel": False}, None),
        (BLOCKS, {"index": "index"}, "host"),
        (BlockOrder([600, 400], block=30, window=1, lanes=257, key=7), {}, "host"),
        (BlockOrder([600, 400], block=30, window=1, lanes=1, key=7), {"batch_size": 257}, "host"),
        (FullOrder(1000, 5), {"index": "index"}, "gpu"),
        (FullOrder(1000, 5), {"kernel": False}, None),
        (FullOrder(1000, 5), {"ids": np.arange(1000)}, "gpu"),
        (FullOrder(1000, 5), {"ids": np.arange(1001)}, "host"),
        (FullOrder(1000, 5), {"tail": "pad"}, "host"),
        (FullOrder(1000, 5), {"tail": "pad", "batch_size": 50}, "gpu"),
        (BLOCKS, {"tail": "pad"}, "host"),
        (SequentialOrder(1000), {"tail": "pad"}, "host"),
        (SequentialOrder(1000), {"tail": "pad", "kernel": False}, None),
        (SequentialOrder(1000), {"kernel": False, "index": "index"}, "gpu"),
        (SequentialOrder(1000), {"kernel": False, "ids": np.arange(1000)}, None),
        (MixOrder(Mixture((600, 400), (1, 2), 1000), shuffled=False, seed=1, epoch=0), {}, "host"),
        (MixOrder(Mixture((600, 400), (1, 2), 1000), shuffled=False, seed=1, epoch=0), {"kernel": False}, None),
    ],
)
def test_who_says_which_samples_batches_have(files, monkeypatch, order, changes, who):
    monkeypatch.setattr(resident_module, "DeviceAssembler", Maker)
    monkeypatch.setattr(resident_module, "_MOST_SELECTED", 1000)
    maker = Maker(files.in_mappings)
    maker.form = replace(maker.form, index=changes.get("index"))
    maker.gather.has_kernel = lambda: changes.get("kernel", True)
    batch_size, tail = changes.get("batch_size", 64), changes.get("tail", "share")
    steps = Ordered(order, Schedule(1000, batch_size, tail=tail, lanes=order.lanes))
    job = Job(files.table, steps, changes.get("ids"))
    gather = ResidentGather.of(job, Reached(files.base), maker)
    if who is None:
        assert not gather.ready()
        return
    assert ("host" if gather.ids_from_host else "gpu") == who


class Drawn:
    """Steps that a sampler says: the samples of each."""

    def __init__(self, batches):
        self.batches, self.steps = [np.array(batch, np.int64) for batch in batches], len(batches)

    def size(self, step):
        return len(self.batches[step])

    def positions(self, steps):
        return np.concatenate([self.batches[step] for step in steps])


SIZES = [3, 3, 0, 0, 5, 3, 1]


def drawn(files, selected=None):
    random = np.random.default_rng(2)
    positions = [random.integers(0, 1000 if selected is None else len(selected), size) for size in SIZES]
    job = Job(files.table, Drawn(positions), selected)
    maker = Maker(files.in_mappings)
    return ResidentGather(job, None, Reached(files.base), maker), [
        (batch if selected is None else selected[batch]).tolist() for batch in positions
    ]


@pytest.mark.parametrize("selected", [None, np.arange(999, 500, -2)])
def test_samples_that_the_host_says_are_gathered_in_parts_of_one_size(files, gathers, selected):
    gathers(1)
    gather, expected = drawn(files, selected)
    assert gather.ready()
    assert (gather.ids_from_host, gather.planned_by_gpu, gather.in_order) == (True, False, False)
    steps = range(1, 7)
    samples = gather.samples(steps)
    assert gather.sizes(steps) == SIZES[1:]
    assert [len(batch["x"]) for batch in gather.gather(steps, samples)] == SIZES[1:]
    found = Gather.made[-1].positions
    assert [(one.first, one.stride, one.batches, one.size) for one in found] == [
        (0, size, 1, size) for size in (3, 5, 3, 1)
    ]
    assert [one.ids.tolist() for one in found] == [batch for batch in expected[1:] if batch]
    assert gather.backend.counted == [(files.base, 8 * sum(SIZES[1:]))]


@pytest.mark.parametrize("over_pcie", [True, False])
@pytest.mark.parametrize("which", ["drawn", "blocks"])
def test_ids_are_made_aside_where_rows_keep_the_link_busy(files, gathers, which, over_pcie):
    """Out of VRAM the stream of the thread that asks is as good."""
    gathers(1)
    gather = drawn(files)[0] if which == "drawn" else gather_over(files, BLOCKS, maker=Maker(None))
    gather.maker.gather.on_host = lambda found: np.full(len(found), over_pcie)
    assert gather.ready()
    steps = range(4, 6)
    gather.gather(steps, gather.samples(steps))
    made = [tensor.tolist() for tensor in gather.maker.aside]
    assert made == ([gather.job.steps.positions(steps).tolist()] if over_pcie else [])


@pytest.mark.parametrize("over_pcie", [True, False])
def test_long_runs_over_the_link_are_better_read(files, gathers, over_pcie):
    gathers(1)
    gather, _ = drawn(files)
    gather.maker.gather.on_host = lambda found: np.full(len(found), over_pcie)
    assert gather.ready()
    assert gather.prefers_copy_engine(np.arange(1000)) == over_pcie
    assert not gather.prefers_copy_engine(np.arange(999, 0, -1))
