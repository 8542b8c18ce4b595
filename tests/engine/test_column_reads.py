"""Reads of columns: windows of consecutive samples as one row each, and bytes where they are decoded."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import gdsload
from gdsload.backends.host import HostBackend
from gdsload.engine.column_reads import of_windows, read_columns
from gdsload.errors import ReadError
from gdsload.shards.reads import Extents
from gdsload.shards.shard_table import ShardTable
from gdsload.system.memory import memory_at
from gdsload.testing import RecordingBackend

SAMPLES, ROW_BYTES = 4000, 4096


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    path = tmp_path_factory.mktemp("columns") / "shards"
    with gdsload.ShardWriter(path, shard_bytes=2**22) as writer:
        writer.write_batch({"x": np.repeat(np.arange(SAMPLES)[:, None], ROW_BYTES // 8, axis=1)})
    return gdsload.ShardDataset(path)


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
        (1000, range(-3, 60), [(997, 27), (1024, 36)]),  # across shards, of 1024 samples each
    ],
)
def test_a_window_is_read_as_one_row_where_it_is_one(table, splitting, first, offsets, expected):
    files, (extents,), (rows_of,) = of_windows(table, {"x": offsets}, np.full(3, first))
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
