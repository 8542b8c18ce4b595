"""Batches whose bytes a backend reads: what is read of them and where, what is counted, and when."""

from pathlib import Path

import numpy as np
import pytest
import torch

import gdsload
from gdsload.backends import mapped as mapped_module
from gdsload.backends.host import HostBackend
from gdsload.backends.mapped import MappedBackend
from gdsload.backends.tiers.registered import RegisteredTier
from gdsload.backends.tiers.tiered import Tiered
from gdsload.engine.assemble import Assembler
from gdsload.engine.batch_source import make_now
from gdsload.engine.landed import LandedSource, of_clips, read_columns
from gdsload.engine.stats import LoaderStats
from gdsload.engine.steps import Ordered
from gdsload.errors import ReadError
from gdsload.order import OrderOptions, Schedule, make_order
from gdsload.shards.reads import Extents
from gdsload.shards.shard_table import ShardTable
from gdsload.system.memory import BatchPool, memory_at
from gdsload.testing import Fault, FaultyBackend, RecordingBackend
from tests.engine.jobs import job_over

CPU = torch.device("cpu")
SAMPLES, ROW_BYTES, BATCH = 400, 32, 10
BATCH_BYTES = BATCH * ROW_BYTES
WINDOW = 100


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    path = tmp_path_factory.mktemp("landed") / "shards"
    with gdsload.ShardWriter(path, shard_bytes=SAMPLES * ROW_BYTES // 4) as writer:
        writer.write_batch({"x": np.repeat(np.arange(SAMPLES)[:, None], ROW_BYTES // 8, axis=1)})
    return gdsload.ShardDataset(path)


@pytest.fixture
def open_source(dataset, monkeypatch):
    """Makes sources over backends, with nothing in the place of CUDA's registrations, and closes those."""
    monkeypatch.setattr(mapped_module, "register_host", lambda *_, **__: "")
    monkeypatch.setattr(mapped_module, "unregister_host", lambda *_: "")
    monkeypatch.setattr(torch.cuda, "synchronize", lambda _device: None)
    opened = []

    def open_source(make, *, mapped=True, options=None):
        options = options or OrderOptions("full", 0, 0, 1)
        order = make_order(options, dataset.counts.tolist(), 0, 0)
        steps = Ordered(order, Schedule(SAMPLES, BATCH, lanes=options.lanes))
        job, form = job_over(dataset, steps, ("x",), mapped=mapped)
        opened.append(make(job.table.files))
        return LandedSource(job, opened[-1], Assembler(form, BatchPool(2**20)), LoaderStats())

    yield open_source
    for backend in opened:
        backend.close()


def registering(files):
    return MappedBackend(files, CPU, register_bytes=2**30)


def half_registered(files):
    """A tier that has two of four shards, which are all that there is room for."""
    files.ensure_open(np.arange(4))
    near = RegisteredTier(files, CPU, register_bytes=sum(map(files.length, (1, 3))), at_once=1)
    assert [near.try_register(file) for file in (1, 3)] == ["", ""]
    near.trouble = "it is full"
    return Tiered("auto", files, near, HostBackend(files))


def moved(source):
    return sum(source.backend.bytes_by_path().values())


def made(source, steps):
    return len(source.start(steps).result(lambda: False).batches)


CASES = pytest.mark.parametrize(
    ("make", "mapped"), [(HostBackend, True), (HostBackend, False), (registering, True), (half_registered, True)]
)


@CASES
def test_bytes_are_counted_when_they_have_been_gathered(open_source, make, mapped):
    """And none of what is dropped, as at the end of an epoch that is left early."""
    source = open_source(make, mapped=mapped)
    pending = source.start(range(3))
    source.start(range(3, 5)).drop()
    assert moved(source) == 0
    pending.result(lambda: False)
    assert moved(source) == 3 * BATCH_BYTES
    source.start(range(3, 5)).drop()
    assert moved(source) == 3 * BATCH_BYTES
    assert made(source, range(3, SAMPLES // BATCH)) == SAMPLES // BATCH - 3
    assert moved(source) == SAMPLES * ROW_BYTES


@CASES
def test_what_is_read_again_is_counted_once(open_source, make, mapped):
    source = open_source(
        lambda files: FaultyBackend(make(files), Fault(lambda: ReadError("lost"), [0], when="completion")),
        mapped=mapped,
    )
    with pytest.raises(ReadError, match="lost"):
        make_now(source, 0)
    assert moved(source) == 0
    make_now(source.again(), 0)
    assert moved(source) == BATCH_BYTES


def test_each_shard_is_counted_by_its_path(open_source):
    source = open_source(half_registered)
    made(source, range(SAMPLES // BATCH))
    assert source.backend.bytes_by_path() == {"mapped": SAMPLES // 2 * ROW_BYTES, "host": SAMPLES // 2 * ROW_BYTES}


def test_a_window_is_counted_once(open_source):
    """With the first of its batches, as it has been read whole; one of which none was made is not."""
    source = open_source(HostBackend, mapped=False, options=OrderOptions("block", 10, WINDOW, 1))
    source.start(range(1)).drop()
    assert moved(source) == 0
    for step in range(SAMPLES // BATCH):
        made(source, range(step, step + 1))
        assert moved(source) == -(-(step + 1) * BATCH // WINDOW) * WINDOW * ROW_BYTES
    source.close()


class Splitting(HostBackend):
    """A backend that notes what each read was for; those for the host may fail."""

    def __init__(self, files):
        super().__init__(files, threads=1)
        self.asked, self.fails = [], False

    def read(self, wanted, to="device"):
        self.asked.append((to, wanted.offset.tolist()))
        if self.fails and to == "host":
            raise ReadError("broken")
        return super().read(wanted, to)


@pytest.fixture
def table(dataset):
    return ShardTable.of(dataset.sources, dataset.stored, mapped=False)


@pytest.fixture
def splitting(table):
    backend = Splitting(table.files)
    yield backend
    backend.close()


@pytest.mark.parametrize(
    ("first", "offsets", "expected"),
    [
        (7, range(5), [(7, 5)]),  # one row
        (7, range(-2, 3), [(5, 5)]),
        (7, (3,), [(10, 1)]),
        (7, (0, 1, 1), [(7, 1), (8, 1), (8, 1)]),
        (7, (2, 1, 0), [(9, 1), (8, 1), (7, 1)]),
        (7, range(0, 15, 5), [(7, 1), (12, 1), (17, 1)]),
        (100, range(-3, 60), [(97, 3), (100, 60)]),  # across shards, of 100 samples each
    ],
)
def test_a_window_is_read_as_one_row_where_it_is_one(table, splitting, first, offsets, expected):
    files, (extents,), (rows_of,) = of_clips(table, {"x": offsets}, np.full(3, first))
    samples = table.starts[extents.file] + (extents.offset - table.begin["x"][extents.file]) // ROW_BYTES
    assert list(zip(samples.tolist(), (extents.nbytes // ROW_BYTES).tolist(), strict=True)) == 3 * expected
    assert set(files.tolist()) == set(extents.file.tolist())
    pending, (addresses,) = read_columns(splitting, [extents])
    pending.completion.wait()
    rows = rows_of(addresses).addresses.reshape(3, -1)
    if rows.shape[1] == 1:
        rows = rows + np.arange(len(offsets)) * ROW_BYTES
    found = [[int(np.frombuffer(memory_at(int(at), 8), np.int64)[0]) for at in row] for row in rows]
    assert found == [[first + offset for offset in offsets]] * 3
    pending.release()


def columns(*offsets):
    return [Extents(np.zeros(len(some), np.int64), np.array(some, np.int64), np.full(len(some), 8)) for some in offsets]


@pytest.mark.parametrize(
    ("on_host", "asked"),
    [
        ((), [("device", [500, 600, 700, 510, 900])]),
        ((False, False, False), [("device", [500, 600, 700, 510, 900])]),
        ((True, True, True), [("host", [500, 600, 700, 510, 900])]),
        ((False, True, False), [("device", [500, 600, 510, 900]), ("host", [700])]),
        ((True, False, True), [("device", [700]), ("host", [500, 600, 510, 900])]),
    ],
)
def test_bytes_are_read_for_where_they_are_decoded(splitting, dataset, on_host, asked):
    wanted = columns([500, 600], [700], [510, 900])
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
        read_columns(recording, columns([500], [600]), (False, True))
    assert (recording.held_bytes, recording.released_early) == (0, 0)
