"""What is read for block-shuffled steps: each window once, those of a group together, within bounds."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import gdsload
from gdsload.backends.host import HostBackend
from gdsload.engine.assemble import BatchForm
from gdsload.engine.codecs import codecs_of
from gdsload.engine.read_planner import ReadPlanner, read_columns
from gdsload.engine.steps import Job, Ordered
from gdsload.engine.windows import WindowCodec
from gdsload.errors import ReadError
from gdsload.order import OrderOptions, Schedule, make_order
from gdsload.shards.reads import Extents, concat_extents
from gdsload.shards.shard_table import ShardTable
from gdsload.system.memory import memory_at
from gdsload.testing import RecordingBackend

SAMPLES, ROW_BYTES = 4000, 4096
LANES, WINDOW, BATCH = 4, 100, 40


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    path = tmp_path_factory.mktemp("windows") / "shards"
    with gdsload.ShardWriter(path, shard_bytes=2**22) as writer:
        writer.write_batch({"x": np.repeat(np.arange(SAMPLES)[:, None], ROW_BYTES // 8, axis=1)})
    return gdsload.ShardDataset(path)


@pytest.fixture
def planned(dataset):
    opened = []

    def planned(window=WINDOW, chosen=None, world_size=1, rank=0, offsets=None):
        backend = RecordingBackend(HostBackend(ShardTable.of(dataset.sources, dataset.stored, mapped=False).files))
        opened.append(backend)
        table = ShardTable(backend.inner.files, dataset.stored)
        order = make_order(OrderOptions("block", 10, window, LANES), dataset.counts.tolist(), 3, 1)
        schedule = Schedule(SAMPLES, BATCH, rank=rank, world_size=world_size, lanes=LANES)
        job = Job(table, Ordered(order, schedule), chosen)
        codecs = codecs_of(dataset.stored, ("x",), "offsets")
        if offsets:
            codecs = {"x": WindowCodec(codecs["x"], {"x": offsets})}
        return ReadPlanner(job, backend, BatchForm(codecs)), backend, job.steps

    yield planned
    for backend in opened:
        backend.close()


def positions(slices):
    found = slices.arranged([part.rows.index[part.chosen] for part in slices.parts])
    slices.wait()
    slices.used()
    return found.tolist()


@pytest.mark.parametrize("each", [1, 3, 7, 40])
@pytest.mark.parametrize("world_size", [1, 2, 3])
@pytest.mark.parametrize("begin", [0, 13])
def test_all_windows_that_a_group_opens_are_few_reads(planned, each, world_size, begin):
    planner, backend, steps = planned(world_size=world_size, rank=world_size - 1)
    groups = [range(low, min(low + each, steps.steps)) for low in range(begin, steps.steps, each)]
    for group in groups:
        assert positions(planner.slices(group)) == steps.positions(group).tolist()
    assert backend.held_bytes == 0  # at the epoch's end no sample is left
    left = sum(steps.size(step) for step in range(begin, steps.steps))
    assert sum(wanted.total_bytes for wanted in backend.brought) == left * ROW_BYTES
    # First windows are each of another length, and so are last ones, and parts of lanes that ranks share.
    assert len(backend.brought) <= len(groups) * (1 if world_size == 1 else 3) + 4 * LANES


def test_what_is_held_is_little_more_than_a_window_of_each_lane(planned):
    planner, backend, steps = planned()
    for low in range(0, steps.steps, 2):
        positions(planner.slices(range(low, min(low + 2, steps.steps))))
    # Two steps open a window at the most; while they do, what they have used up is still held.
    assert backend.most_held_bytes <= (LANES + 2) * WINDOW * ROW_BYTES * 1.1


def test_windows_of_a_subset(planned):
    chosen = np.random.default_rng(0).permutation(SAMPLES)
    planner, _, steps = planned(chosen=chosen)
    group = range(steps.steps)
    slices = planner.slices(group)
    rows = slices.arranged([part.rows.fields["x"].addresses[part.chosen] for part in slices.parts])
    slices.wait()
    found = [np.frombuffer(memory_at(at, 8), np.int64)[0] for at in rows.tolist()]
    assert found == chosen[steps.positions(group)].tolist()
    planner.let_go()
    positions(slices)


@pytest.mark.parametrize(
    ("first", "offsets", "extents"),
    [
        (7, range(5), [(7, 5)]),  # one row
        (7, range(-2, 3), [(5, 5)]),
        (7, (3,), [(10, 1)]),
        (7, (0, 1, 1), [(7, 1), (8, 1), (8, 1)]),
        (7, (2, 1, 0), [(9, 1), (8, 1), (7, 1)]),
        (7, range(0, 15, 5), [(7, 1), (12, 1), (17, 1)]),
        (1000, range(-3, 60), [(997, 27), (1024, 36)]),  # across shards, of 1024 samples each
    ],
)
def test_a_window_is_read_as_one_row_where_it_is_one(planned, first, offsets, extents):
    planner, backend, _ = planned(chosen=np.full(SAMPLES, first), offsets=offsets)
    positions(planner.slices(range(1)))
    planner.let_go()
    table, found = planner.job.table, concat_extents(backend.brought)
    samples = table.starts[found.file] + (found.offset - table.begin["x"][found.file]) // ROW_BYTES
    each = list(zip(samples.tolist(), (found.nbytes // ROW_BYTES).tolist(), strict=True))
    assert each == extents * (len(each) // len(extents))
    assert len(each) >= BATCH


class Splitting(HostBackend):
    """A backend that says of each read what it was for; those for a device fail from a number on."""

    def __init__(self, files):
        super().__init__(files, threads=1)
        self.asked, self.fails = [], False

    def read(self, wanted, to="device"):
        self.asked.append((to, wanted.offset.tolist()))
        if self.fails and to == "host":
            raise ReadError("broken")
        return super().read(wanted, to)


@pytest.fixture
def splitting(dataset):
    backend = Splitting(ShardTable.of(dataset.sources, dataset.stored, mapped=False).files)
    yield backend
    backend.close()


def columns(*offsets):
    return [Extents(np.zeros(len(some), np.int64), np.array(some, np.int64), np.full(len(some), 8)) for some in offsets]


@pytest.mark.parametrize(
    ("on_host", "asked"),
    [
        ((), [("device", [5000, 6000, 7000, 5100, 9000])]),
        ((False, False, False), [("device", [5000, 6000, 7000, 5100, 9000])]),
        ((True, True, True), [("host", [5000, 6000, 7000, 5100, 9000])]),
        ((False, True, False), [("device", [5000, 6000, 5100, 9000]), ("host", [7000])]),
        ((True, False, True), [("device", [7000]), ("host", [5000, 6000, 5100, 9000])]),
    ],
)
def test_bytes_are_read_for_where_they_are_decoded(splitting, dataset, on_host, asked):
    wanted = columns([5000, 6000], [7000], [5100, 9000])
    pending, addresses = read_columns(splitting, wanted, on_host)
    pending.completion.wait()
    assert splitting.asked == asked
    raw = Path(dataset.sources[0].path).read_bytes()
    for column, found in zip(wanted, addresses, strict=True):
        assert [bytes(memory_at(int(at), 8)) for at in found] == [raw[low : low + 8] for low in column.offset.tolist()]
    pending.count()
    assert splitting.moved_bytes == 5 * 8
    pending.release()


def test_a_read_for_the_device_is_released_if_that_for_the_host_fails(splitting):
    recording = RecordingBackend(splitting)
    splitting.fails = True
    with pytest.raises(ReadError, match="broken"):
        read_columns(recording, columns([5000], [6000]), (False, True))
    assert (recording.held_bytes, recording.released_early) == (0, 0)
