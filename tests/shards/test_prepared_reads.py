"""Reads that were prepared: all bytes of the files, for any number of reads, made by any thread."""

import mmap

import numpy as np
import pytest
import safetensors.numpy
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gdsload.errors import ReadError, ShortReadError
from gdsload.shards.catalog import open_catalog
from gdsload.shards.local_files import LocalFiles
from gdsload.shards.prepared_reads import PreparedReads
from gdsload.shards.reads import PAGE_BYTES, Extents
from gdsload.system.memory import address_of
from tests.page_cache import fail_reads, open_paths
from tests.shards.threads import in_threads

FILES, SIZE = 7, 100_003


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    found = tmp_path_factory.mktemp("prepared")
    for number in range(FILES):
        rows = np.random.default_rng(number).integers(0, 256, SIZE, np.uint8)
        safetensors.numpy.save_file({"x": rows}, found / f"{number}.safetensors")
    return found


@pytest.fixture
def opened(folder):
    files = LocalFiles(open_catalog(str(folder)).sources, mapped=False)
    files.ensure_open(np.arange(FILES))
    yield files, [path.read_bytes() for path in sorted(folder.iterdir())]
    files.close()


def lay(files, wanted):
    """Extents of whole pages, at most to the files' ends, and pages of memory for each."""
    reads = [(file, page * PAGE_BYTES, nbytes) for file, page, nbytes in wanted]
    file, offset, nbytes = np.array(reads, np.int64).reshape(-1, 3).T
    nbytes = np.minimum(nbytes, files.sizes[file] - offset)
    room = -(-nbytes // PAGE_BYTES) * PAGE_BYTES
    memory = np.frombuffer(mmap.mmap(-1, int(room.sum()) or 1), np.uint8)
    return Extents(file, offset, nbytes), memory, address_of(memory) + np.cumsum(room) - room


def check(extents, memory, addresses, contents):
    for file, offset, nbytes, address in zip(
        extents.file.tolist(), extents.offset.tolist(), extents.nbytes.tolist(), addresses.tolist(), strict=True
    ):
        low = address - address_of(memory)
        assert memory[low : low + nbytes].tobytes() == contents[file][offset : offset + nbytes]


some = st.lists(st.tuples(st.integers(0, FILES - 1), st.integers(0, 20), st.integers(1, 30_000)))
by_chance = settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])


@by_chance
@given(some, st.sampled_from([0, 1, 2, 64]), st.sampled_from(["none", "all", "some"]), st.integers(1, 9))
def test_every_byte_is_read_whatever_is_open_and_by_whatever_path(opened, wanted, most, direct, step):
    files, contents = opened
    with pytest.MonkeyPatch.context() as patched:
        for table in (files.around, files.through):
            patched.setattr(table, "most", most)
        extents, memory, addresses = lay(files, sorted(wanted))
        chosen = np.random.default_rng(step).random(len(extents)) < {"none": 0, "some": 0.5, "all": 1}[direct]
        reads = PreparedReads(files, extents, chosen)
        around = 0
        for low in range(0, len(extents), step):
            high = min(low + step, len(extents))
            found = reads.read(low, high, addresses[low:high])
            assert 0 <= found <= reads.nbytes(low, high) == int(extents.nbytes[low:high].sum())
            around += found
        reads.close()
        check(extents, memory, addresses, contents)
    assert around <= int(extents.nbytes[chosen].sum())
    assert direct != "none" or around == 0


def test_threads_share_them(opened):
    files, contents = opened
    extents, memory, addresses = lay(files, [(number % FILES, number % 24, 5000) for number in range(400)])
    reads = PreparedReads(files, extents, np.ones(400, bool))
    in_threads(lambda low: reads.read(low, low + 50, addresses[low : low + 50]), range(0, 400, 50))
    reads.close()
    check(extents, memory, addresses, contents)


@pytest.mark.parametrize("count", [1, 40])
def test_what_fails_says_why_and_descriptors_are_given_back(opened, monkeypatch, count):
    files, _ = opened
    extents, _, addresses = lay(files, [(2, 1, 4096)] * count)
    with monkeypatch.context() as patched:
        fail_reads(patched)
        reads = PreparedReads(files, extents)
        with pytest.raises(ReadError, match=r"2\.safetensors, byte 4096: reading failed"):
            reads.read(0, count, addresses)
        reads.close()
    files.close()
    assert not {*open_paths()} & {source.path for source in files.sources}


@pytest.mark.parametrize("count", [1, 40])
@pytest.mark.parametrize("direct", [False, True])
def test_a_file_that_ends_too_early(opened, count, direct):
    files, _ = opened
    extents, *_ = lay(files, [(2, 20, 9000)] * count)
    longer = Extents(extents.file, extents.offset, extents.nbytes + 40_000)
    memory = np.frombuffer(mmap.mmap(-1, 80_000 * count), np.uint8)
    reads = PreparedReads(files, longer, np.full(count, direct))
    with pytest.raises(ShortReadError, match="bytes too early"):
        reads.read(0, count, address_of(memory) + np.arange(count) * 77_824)
    reads.close()
