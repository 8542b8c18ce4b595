"""The speed of a drive."""

import time

import numpy as np
import pytest

from gdsload.errors import ReadError
from gdsload.system import drive_rate
from gdsload.system.drive_rate import measure_drive


@pytest.fixture
def files(tmp_path):
    for number, size in enumerate((100, 8192, 5 * 4096 + 7)):
        (tmp_path / f"{number}").write_bytes(bytes(size))
    return [str(path) for path in sorted(tmp_path.iterdir())]


def test_the_best_depth_is_the_rate(files, monkeypatch):
    class Slow(drive_rate.BulkReads):
        """As fast as there are threads, and the faster the more of its reads are under way."""

        def read(self, fds, offsets, nbytes, addresses):
            time.sleep(0.01 + 0.001 * len(fds))
            return nbytes

    monkeypatch.setattr(drive_rate, "BulkReads", Slow)
    found = measure_drive(files, 5000, 1.0, ((1, 1), (2, 20), (2, 1)), in_order=((2, 1),))
    assert (found.threads, found.depth, found.read_bytes, found.p50_ms) == (2, 40, 8192, None)
    assert found.gb_per_s == pytest.approx(2 * 20 * 8192 / 0.03 / 1e9, rel=0.5)
    assert 0 < found.sequential_gb_per_s < found.gb_per_s


@pytest.mark.parametrize(("asked", "read"), [(1, 4096), (4097, 8192), (10**9, 5 * 4096)])
def test_reads_are_whole_pages_that_some_file_has(files, asked, read):
    found = measure_drive(files, asked, 0.16)
    assert found.read_bytes == read
    assert min(found.gb_per_s, found.sequential_gb_per_s) > 0
    assert 0 < found.p50_ms <= found.p99_ms


def test_all_places_are_read_and_none_beyond(files):
    fds, lengths = np.array([7, 8, 9]), np.array([0, 8192, 5 * 4096])
    for order in (None, drive_rate.count()):
        draw = drive_rate.Places(fds, lengths, 8192, np.random.default_rng(0), order)
        found = {(fd, offset, nbytes) for fd, offset, nbytes in zip(*map(np.ndarray.tolist, draw(200)), strict=True)}
        places = range(0, 3 * 4096 + 1, 4096) if order is None else range(0, 2 * 8192, 8192)
        assert found == {(8, 0, 8192), *((9, offset, 8192) for offset in places)}


def test_files_that_cannot_be_read_around_the_page_cache_are_refused(files, tmp_path):
    with pytest.raises(ReadError, match="no file has 4096 bytes"):
        measure_drive(files[:1], 4096, 0.1)
    with pytest.raises(ReadError, match="cannot be opened with O_DIRECT"):
        measure_drive([str(tmp_path / "nothing")], 4096, 0.1)
