"""What is read of windows whose samples the GPU works out: their runs, in which each sample of a group is found."""

from __future__ import annotations

from contextlib import closing

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gdsload
from gdsload.backends.host import HostBackend
from gdsload.engine.assemble import BatchForm
from gdsload.engine.codecs import codecs_of
from gdsload.engine.read_planner import ReadPlanner
from gdsload.engine.steps import Job, Ordered
from gdsload.order import BlockOrder, Schedule
from gdsload.shards import shard_table
from gdsload.shards.gather_host import gather_rows
from gdsload.shards.shard_table import ShardTable
from gdsload.system.memory import address_of
from gdsload.testing import Fault, FaultyBackend, RecordingBackend

SAMPLES = 500


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    """Each sample its number, in two fields, in some shards."""
    path = tmp_path_factory.mktemp("runs") / "shards"
    fields = {"x": gdsload.Field("int64", (3,)), "wide": gdsload.Field("uint8", (48,))}
    with gdsload.ShardWriter(path, fields, shard_bytes="8KiB") as writer:
        numbers = np.arange(SAMPLES)
        wide = np.repeat(numbers[:, None], 6, axis=1).view(np.uint8)
        writer.write_batch({"x": np.repeat(numbers[:, None], 3, axis=1), "wide": wide})
    return gdsload.ShardDataset(path)


class Planned:
    """A planner, and what it reads."""

    def __init__(self, dataset, order, schedule, *faults):
        self.backend = RecordingBackend(
            FaultyBackend(HostBackend(ShardTable.of(dataset.sources, dataset.stored, mapped=False).files), *faults)
        )
        self.table = ShardTable(self.backend.inner.inner.files, dataset.stored)
        self.steps, self.columns = Ordered(order, schedule), tuple(dataset.stored.columns)
        form = BatchForm(codecs_of(dataset.stored, tuple(dataset.schema), "offsets"))
        self.planner = ReadPlanner(Job(self.table, self.steps), self.backend, form, by_id=True)

    def close(self):
        self.backend.close()

    def check(self, group):
        """Every sample of a group is where its windows say that it lies."""
        ids, slices = self.steps.positions(group), self.planner.slices(group)
        slices.wait()
        for name in self.columns:
            maps, row_bytes = [rows.fields[name] for rows in slices.loaded()], 24 if name == "x" else 48
            assert all((np.diff(rows.ends) > 0).all() for rows in maps)
            ends = np.concatenate([rows.ends for rows in maps])
            by_id = ends.argsort()
            run = by_id[ends.searchsorted(ids, side="right", sorter=by_id)]
            held = np.empty((len(ids), row_bytes // 8), np.int64)
            origins = np.concatenate([rows.addresses for rows in maps])
            gather_rows(origins[run] + ids * row_bytes, row_bytes, address_of(held))
            assert (held == ids[:, None]).all()
        assert sum(part.count for part in slices.used()) == len(ids)


@st.composite
def epochs(draw):
    order = BlockOrder(
        [draw(st.just(SAMPLES))],
        block=draw(st.integers(1, 60)),
        window=draw(st.one_of(st.integers(1, 5), st.integers(1, 200))),
        lanes=draw(st.integers(1, 9)),
        key=draw(st.integers(0, 2**64 - 1)),
    )
    world_size = draw(st.sampled_from([1, 1, 2, 3, 4]))
    return order, Schedule(
        SAMPLES,
        draw(st.integers(1, 120)),
        draw(st.integers(0, world_size - 1)),
        world_size,
        draw(st.sampled_from(["share", "drop"])),
        order.lanes,
    )


@settings(deadline=None, max_examples=25)
@given(epochs(), st.data())
def test_every_sample_of_any_steps_is_in_the_runs_that_were_read(dataset, epoch, data):
    """Of one rank or several, from any step on, and where steps are left out; then nothing is held."""
    order, schedule = epoch
    with closing(Planned(dataset, order, schedule)) as planned, pytest.MonkeyPatch.context() as patch:
        patch.setattr(shard_table, "_RUN_BYTES", data.draw(st.sampled_from([100, 2**22])))
        step = data.draw(st.integers(0, max(schedule.steps - 1, 0)))
        while step < schedule.steps:
            group = range(step, min(step + data.draw(st.integers(1, 9)), schedule.steps))
            planned.check(group)
            step = group.stop + data.draw(st.sampled_from([0, 0, 0, 1]))
        planned.planner.let_go()
        assert planned.backend.held_bytes == 0


@pytest.mark.parametrize("tail", ["share", "drop"])
@pytest.mark.parametrize("begin", [0, 1, 5])
def test_blocks_are_read_once_and_little_else(dataset, begin, tail):
    """Of a window that was begun before, and of one that is not used up, it is little that nobody wants."""
    order = BlockOrder(dataset.counts.tolist(), block=20, window=100, lanes=2, key=3)
    schedule = Schedule(SAMPLES, 12, tail=tail, lanes=2)
    with closing(Planned(dataset, order, schedule)) as planned:
        for low in range(begin, schedule.steps, 3):
            planned.check(range(low, min(low + 3, schedule.steps)))
        wanted = sum(schedule.size(step) for step in range(begin, schedule.steps)) * 72
        assert planned.backend.held_bytes == 0 or tail == "drop"
        brought = sum(extents.total_bytes for extents in planned.backend.brought)
        assert wanted <= brought <= wanted * 9 // 8
        assert brought == wanted or begin or tail == "drop"


def test_what_a_window_of_several_ranks_has_is_read_by_whom_it_belongs_to(dataset):
    """Not the whole of it by each."""
    order = BlockOrder(dataset.counts.tolist(), block=20, window=250, lanes=1, key=3)
    brought = 0
    for rank in range(2):
        with closing(Planned(dataset, order, Schedule(SAMPLES, 25, rank, 2))) as planned:
            for step in range(10):
                planned.check(range(step, step + 1))
            brought += sum(extents.total_bytes for extents in planned.backend.brought)
    assert brought == SAMPLES * 72


def test_what_cannot_be_read_holds_nothing(dataset):
    """The next call reads windows anew."""
    order, error = BlockOrder(dataset.counts.tolist(), block=20, window=90, lanes=3, key=3), OSError("broken")
    schedule = Schedule(SAMPLES, 30, lanes=3)
    with closing(Planned(dataset, order, schedule, Fault(lambda: error, calls=[1, 6]))) as planned:
        failed = 0
        for step in range(schedule.steps):
            try:
                planned.check(range(step, step + 1))
            except OSError:
                failed += 1
                assert planned.backend.held_bytes == 0
                planned.check(range(step, step + 1))
        assert failed == 2
        assert planned.backend.held_bytes == 0
