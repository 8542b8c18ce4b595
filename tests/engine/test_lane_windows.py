"""Windows that steps take samples from: each sample where it is said to be, each window read once, within bounds."""

from contextlib import closing
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gdsload
from gdsload.backends.host import HostBackend
from gdsload.engine.landed import LandedSource
from gdsload.engine.stats import LoaderStats
from gdsload.engine.steps import Ordered
from gdsload.order import BlockOrder, Schedule
from gdsload.shards import shard_table
from gdsload.shards.gather_host import gather_rows
from gdsload.system.memory import address_of
from gdsload.testing import Fault, FaultyBackend, RecordingBackend
from tests.engine.jobs import job_over
from tests.order.made import block_orders, schedules

SAMPLES, ROW_BYTES = 500, {"x": 24, "wide": 4096}
SAMPLE_BYTES = sum(ROW_BYTES.values())
BY_ID = pytest.mark.parametrize("by_id", [False, True], ids=["samples", "runs"])


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    """Each sample its number, in two fields, in some shards."""
    path = tmp_path_factory.mktemp("lanes") / "shards"
    fields = {"x": gdsload.Field("int64", (3,)), "wide": gdsload.Field("uint8", (4096,))}
    with gdsload.ShardWriter(path, fields, shard_bytes="300KiB") as writer:
        numbers = np.arange(SAMPLES)
        wide = np.repeat(numbers[:, None], 512, axis=1).view(np.uint8)
        writer.write_batch({"x": np.repeat(numbers[:, None], 3, axis=1), "wide": wide})
    return gdsload.ShardDataset(path)


class ById(LandedSource):
    by_id = True


class Opened:
    """A source of windows of samples, or of runs by their ids; and what it reads."""

    def __init__(self, dataset, order, schedule, *faults, by_id, chosen=None):
        self.steps, self.by_id = Ordered(order, schedule), by_id
        self.job, form = job_over(dataset, self.steps, tuple(dataset.schema), ids=chosen)
        self.backend = RecordingBackend(FaultyBackend(HostBackend(self.job.table.files), *faults))
        maker = SimpleNamespace(form=form, kept=None, takes_processor=True)
        self.source = (ById if by_id else LandedSource)(self.job, self.backend, maker, LoaderStats())

    def close(self):
        self.backend.close()

    @property
    def read_bytes(self):
        return sum(extents.total_bytes for extents in self.backend.reads)

    def check_all(self, begin, each):
        """All groups of so many steps, from one on; how many there are."""
        lows = range(begin, self.steps.steps, each)
        for low in lows:
            self.check(range(low, min(low + each, self.steps.steps)))
        return len(lows)

    def check(self, group):
        """Every sample of a group is where its windows say that it is."""
        slices, ids = self.source.slices(group), self.job.samples(self.steps.positions(group))
        slices.wait()
        for name, row_bytes in ROW_BYTES.items():
            held = np.empty((len(ids), row_bytes // 8), np.int64)
            addresses = self._by_id(slices, name, ids, row_bytes) if self.by_id else self._in_order(slices, name)
            gather_rows(addresses, row_bytes, address_of(held))
            assert (held == ids[:, None]).all()
        if not self.by_id:
            index = slices.arranged([part.rows.index[part.chosen] for part in slices.parts])
            assert np.array_equal(index, self.steps.positions(group))
        assert sum(part.count for part in slices.used()) == len(ids)

    def _in_order(self, slices, name):
        return slices.arranged([part.rows.fields[name].addresses[part.chosen] for part in slices.parts])

    def _by_id(self, slices, name, ids, row_bytes):
        maps = [rows.fields[name] for rows in slices.loaded()]
        assert all((np.diff(rows.ends) > 0).all() for rows in maps)
        ends, origins = (
            np.concatenate(each) for each in zip(*[(one.ends, one.addresses) for one in maps], strict=True)
        )
        by_id = ends.argsort()
        return origins[by_id[ends.searchsorted(ids, side="right", sorter=by_id)]] + ids * row_bytes


def blocks(dataset, **options):
    return BlockOrder(dataset.counts.tolist(), **{"block": 20, "window": 100, "lanes": 2, "key": 3, **options})


@st.composite
def epochs(draw):
    order, by_id = draw(block_orders(st.just([SAMPLES]), windows=200)), draw(st.booleans())
    schedule = draw(schedules(SAMPLES, order.lanes, ["share", "drop"] if by_id else ["share", "drop", "pad"]))
    chosen = None if by_id or draw(st.booleans()) else np.random.default_rng(order.key).permutation(SAMPLES)
    return order, schedule, by_id, chosen


@settings(max_examples=40)
@given(epochs(), st.data())
def test_every_sample_of_any_steps_is_in_what_was_read(dataset, epoch, data):
    """Of one rank or several, from any step on, and where steps are left out or windows let go; then nothing is held.

    Windows that others have used up meanwhile were handed out up to a step that is long past.
    """
    order, schedule, by_id, chosen = epoch
    opened = Opened(dataset, order, schedule, by_id=by_id, chosen=chosen)
    with closing(opened), pytest.MonkeyPatch.context() as patch:
        patch.setattr(shard_table, "_RUN_BYTES", data.draw(st.sampled_from([100, 2**22])))
        step, groups = data.draw(st.integers(0, max(schedule.steps - 1, 0))), 0
        while step < schedule.steps and groups < 25:
            groups += 1
            group = range(step, min(step + data.draw(st.integers(1, 9)), schedule.steps))
            opened.check(group)
            step = group.stop + data.draw(st.sampled_from([0, 0, 0, 1, 2]))
            if data.draw(st.sampled_from([False, False, True])):
                opened.source.close()
        opened.source.close()
        assert (opened.backend.held_bytes, opened.backend.released_twice) == (0, 0)


@pytest.mark.parametrize("each", [1, 7, 40])
@pytest.mark.parametrize("world_size", [1, 3])
@pytest.mark.parametrize("begin", [0, 13])
def test_all_windows_that_a_group_opens_are_few_reads(dataset, each, world_size, begin):
    order, schedule = blocks(dataset, lanes=4, window=30), Schedule(SAMPLES, 5, world_size - 1, world_size, lanes=4)
    with closing(Opened(dataset, order, schedule, by_id=False)) as opened:
        groups = opened.check_all(begin, each)
        assert opened.backend.held_bytes == 0  # at the epoch's end no sample is left
        assert opened.read_bytes == SAMPLE_BYTES * sum(schedule.size(step) for step in range(begin, schedule.steps))
        # First windows are each of another length, and so are last ones, and parts of lanes that ranks share.
        assert len(opened.backend.reads) <= groups * (1 if world_size == 1 else 3) + 4 * order.lanes


@BY_ID
def test_what_is_held_is_little_more_than_a_window_of_each_lane(dataset, by_id):
    order, schedule = blocks(dataset, lanes=4, window=25), Schedule(SAMPLES, 10, lanes=4)
    with closing(Opened(dataset, order, schedule, by_id=by_id)) as opened:
        opened.check_all(0, 2)
        # Two steps open a window at the most; while they do, what they have used up is still held.
        assert opened.backend.most_held_bytes <= (order.lanes + 2) * order.window * SAMPLE_BYTES * 1.2


@pytest.mark.parametrize("tail", ["share", "drop"])
@pytest.mark.parametrize("begin", [0, 1, 5])
def test_runs_are_read_once_and_little_else(dataset, begin, tail):
    """Of a window that was begun before, and of one that is not used up, it is little that nobody wants."""
    schedule = Schedule(SAMPLES, 12, tail=tail, lanes=2)
    with closing(Opened(dataset, blocks(dataset), schedule, by_id=True)) as opened:
        opened.check_all(begin, 3)
        wanted = sum(schedule.size(step) for step in range(begin, schedule.steps)) * SAMPLE_BYTES
        assert opened.backend.held_bytes == 0 or tail == "drop"
        assert wanted <= opened.read_bytes <= wanted * 9 // 8
        assert opened.read_bytes == wanted or begin or tail == "drop"


@BY_ID
def test_of_a_window_that_ranks_share_each_reads_its_own(dataset, by_id):
    order, read = blocks(dataset, window=250, lanes=1), 0
    for rank in range(2):
        with closing(Opened(dataset, order, Schedule(SAMPLES, 25, rank, 2), by_id=by_id)) as opened:
            assert opened.check_all(0, 1) == 10
            read += opened.read_bytes
    assert read == SAMPLES * SAMPLE_BYTES


@BY_ID
def test_what_cannot_be_read_holds_nothing(dataset, by_id):
    """The next call reads windows again."""
    fault, schedule = Fault(lambda: OSError("broken"), calls=[1, 6]), Schedule(SAMPLES, 30, lanes=3)
    with closing(Opened(dataset, blocks(dataset, window=90, lanes=3), schedule, fault, by_id=by_id)) as opened:
        failed = 0
        for step in range(schedule.steps):
            try:
                opened.check(range(step, step + 1))
            except OSError:
                failed += 1
                assert opened.backend.held_bytes == 0
                opened.check(range(step, step + 1))
        assert (failed, opened.backend.held_bytes) == (2, 0)


@BY_ID
@pytest.mark.parametrize("batch_size", [7, 60, 150])
def test_arena_memory_is_accounted_for_where_steps_take_several_windows_of_a_lane(dataset, by_id, batch_size):
    order, schedule = blocks(dataset, window=20), Schedule(SAMPLES, batch_size, lanes=2)
    with closing(Opened(dataset, order, schedule, by_id=by_id)) as opened:
        opened.source.slices(range(1)).drop()
        held, backend = [], opened.backend
        for step in range(1, schedule.steps):
            accounted = opened.source.arena_bytes(range(step, step + 1), order.window * SAMPLE_BYTES)
            before, asked = backend.held_bytes, len(backend.reads)
            held.append(opened.source.slices(range(step, step + 1)))
            new = sum(extents.total_bytes for extents in backend.reads[asked:])
            assert new <= accounted if new else accounted <= before + order.window * SAMPLE_BYTES
        for slices in held:
            slices.drop()
