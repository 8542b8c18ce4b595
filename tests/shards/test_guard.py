"""The checks before a mapping is touched: once for each piece, and only the wanted bytes have to be there."""

import errno
import mmap
import os
import threading

import numpy as np
import pytest
import safetensors.numpy
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import gdsload
from gdsload import BackendUnavailableError, FileChangedError, ReadError
from gdsload.backends import mapped
from gdsload.backends.host import HostBackend
from gdsload.shards import guard
from gdsload.shards.catalog import open_catalog
from gdsload.shards.guard import Guard
from gdsload.shards.identity import ShardSource
from gdsload.shards.local_files import LocalFiles
from gdsload.shards.shard_table import ShardTable
from gdsload.testing.conformance import extents
from tests.page_cache import unreadable

PIECE, PAGE = 2**17, mmap.PAGESIZE
SIZES = [3 * PIECE, 5 * PAGE + 17, PIECE + 1, 20 * PIECE]


class Disk:
    """Mapped files, some of whose pages cannot be read, and what is asked of them."""

    def __init__(self, sizes, *, bad=(), supported=True):
        self.sizes, self.bad, self.supported = sizes, set(bad), supported
        self.base = np.cumsum([0, *(size // PAGE * PAGE + 7 * PAGE for size in sizes[:-1])]) + 10 * PAGE
        self.populated, self.read_bytes = [], 0
        self.guard = Guard([f"file {number}" for number in range(len(sizes))], self.base, self.read)
        for file in np.random.default_rng(0).permutation(len(sizes)).tolist():
            self.guard.opened(file, sizes[file])

    def breaks(self, file, offset, nbytes):
        """The first page that cannot be read, of so many bytes."""
        pages = range(offset // PAGE, -(-(offset + nbytes) // PAGE))
        return next((page for page in pages if (file, page) in self.bad), None)

    def read(self, file, offset, nbytes):
        self.read_bytes += nbytes
        if (page := self.breaks(file, offset, nbytes)) is not None:
            raise ReadError("reading failed", file=f"file {file}", offset=max(page * PAGE, offset))

    def populate(self, address, nbytes):
        file = int(np.searchsorted(self.base, address, side="right")) - 1
        offset = address - int(self.base[file])
        assert 0 <= offset < offset + nbytes <= self.sizes[file], "only what is in a mapping"
        self.populated.append((file, offset, nbytes))
        if not self.supported:
            return errno.EINVAL
        return 0 if self.breaks(file, offset, nbytes) is None else errno.EFAULT

    def ensure(self, *found, **options):
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(guard, "populate", self.populate)
            self.guard.ensure(extents(found), **options)


@st.composite
def wanted(draw):
    file = draw(st.integers(0, len(SIZES) - 1))
    low = draw(st.integers(0, SIZES[file]) | st.sampled_from([0, PIECE - 1, PIECE, SIZES[file]]))
    low = min(low, SIZES[file])
    return file, low, min(draw(st.integers(0, 9000) | st.sampled_from([PAGE, PIECE, 3 * PIECE])), SIZES[file] - low)


BAD = st.lists(st.integers(0, 3).flatmap(lambda file: st.tuples(st.just(file), st.integers(0, SIZES[file] // PAGE))))


@settings(derandomize=True, max_examples=100)
@given(st.lists(wanted(), min_size=1, max_size=12), BAD, st.booleans())
def test_what_is_wanted_is_brought_in_and_only_its_own_pages_can_fail(found, bad, supported):
    disk = Disk(SIZES, bad=bad, supported=supported)
    broken = [disk.breaks(*extent) for extent in found if extent[2]]
    if any(page is not None for page in broken):
        with pytest.raises(ReadError, match=r"file \d, byte \d+: reading failed") as caught:
            disk.ensure(*found)
        file, offset = int(caught.value.file[-1]), caught.value.offset
        page = offset // PAGE * PAGE
        assert (file, offset // PAGE) in disk.bad
        assert any(at == file and low < page + PAGE and page < low + size for at, low, size in found)
        return
    disk.ensure(*found)
    for file, low, nbytes in found:
        for page in range(low // PAGE, -(-(low + nbytes) // PAGE) if nbytes else 0):
            begin = page * PAGE
            assert any(at == file and first <= begin < first + size for at, first, size in disk.populated)
    assert bool(disk.read_bytes) == (not supported and any(nbytes for _, _, nbytes in disk.populated)) or disk.bad
    if not disk.bad:
        assert sum(nbytes for *_, nbytes in disk.populated) <= sum(SIZES), "nothing is populated twice"
        del disk.populated[:]
        disk.ensure(*found)
        assert disk.populated == []
        assert disk.guard.missing(extents(found)) is None


@settings(derandomize=True, max_examples=100)
@given(st.lists(st.tuples(st.integers(0, 3 * PIECE), st.integers(1, 2 * PIECE)), min_size=1, max_size=12))
def test_whole_pieces_that_were_populated_are_not_asked_for_again(found):
    """As many rows as there are, which end anywhere."""
    disk, size, whole = Disk([4 * PIECE + 5]), 4 * PIECE + 5, set()
    for offset, nbytes in found:
        end = min(offset + nbytes, size)
        disk.guard.populate(0, offset, end - offset, extents([(0, offset, end - offset)]))
        whole |= {piece for piece in range(5) if offset <= piece * PIECE and min((piece + 1) * PIECE, size) <= end}
        assert [disk.guard.missing(extents([(0, piece * PIECE, 1)])) is None for piece in range(5)] == [
            piece in whole for piece in range(5)
        ]
        assert disk.guard.left == 5 - len(whole)


def test_pages_that_can_be_read_but_not_mapped(monkeypatch):
    """A hole on a full file system."""
    disk = Disk(SIZES)
    monkeypatch.setattr(guard, "populate", lambda *_: errno.EFAULT)
    with pytest.raises(ReadError, match="file 3, byte 4096: its bytes can be read, but .* Pass `mmap=False`"):
        disk.guard.ensure(extents([(3, 5000, 9)]))


def test_a_real_mapping_that_was_cut_short(files):
    """An access that would end the process is an error, and the bytes before the cut can be read."""
    os.truncate(files.sources[0].path, 3 * PAGE)
    files.ensure(extents([(0, 0, 3 * PAGE), (0, 2 * PAGE, 7)]))
    with pytest.raises(FileChangedError, match="the file became shorter while it was being read"):
        files.ensure(extents([(0, 2 * PAGE, 2 * PAGE)]))


def test_shards_are_opened_while_others_are_asked_for():
    """Marks that are made while the table grows are not lost."""
    count = 300
    sure = Guard([str(number) for number in range(count)], np.zeros(count, np.int64), lambda *_: None)
    opened, errors = threading.Semaphore(0), []

    def ask():
        for file in range(count):
            opened.acquire()
            sure.populate(file, 0, PIECE + 1, extents([(file, 0, PIECE + 1)]))
            if sure.missing(extents([(file, 0, PIECE + 1)])) is not None:
                errors.append(file)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(guard, "populate", lambda *_: 0)
        thread = threading.Thread(target=ask)
        thread.start()
        for file in range(count):
            sure.opened(file, PIECE + 1)
            opened.release()
        thread.join()
    assert errors == []
    assert sure.left == 0


def test_what_is_mapped_and_missing_is_told_while_other_shards_are_opened(tmp_path):
    """Where arrays have more than some hundred elements numpy lets other threads run while it looks for non-zeros."""
    paths = [tmp_path / str(number) for number in range(1500)]
    for path in paths:
        path.write_bytes(b"x")
    files, first = LocalFiles([ShardSource(str(path)) for path in paths], mapped=True), np.array([0])
    files.ensure_open(first)

    def open_others():
        for file in range(1, len(paths)):
            files.ensure_open(np.array([file]))

    thread = threading.Thread(target=open_others)
    thread.start()
    try:
        while thread.is_alive():
            assert len(files.missing(extents([(0, 0, 1)]))) == 1
            assert files.in_mappings(files.base[first]).all()
    finally:
        thread.join()
        files.close()


# --- who touches mappings ---


def test_offsets_are_made_sure_of_before_they_are_touched(tmp_path, monkeypatch):
    with gdsload.ShardWriter(tmp_path / "shards", {"t": gdsload.Field("int32", (None,))}) as writer:
        writer.write_batch({"t": [np.arange(number % 7, dtype=np.int32) for number in range(2000)]})
    catalog = open_catalog(str(tmp_path / "shards"))
    table = ShardTable.of(catalog.sources, catalog.stored, mapped=True)
    table.ensure_open(np.array([0]))
    unreadable(monkeypatch)
    with pytest.raises(ReadError, match=r"shard-00000.safetensors, byte \d+: reading failed: Input/output error"):
        table.extents("t", table.locate(np.array([5])))
    table.files.close()


@pytest.fixture
def files(tmp_path):
    """An open, mapped file of 100 pages and its header."""
    safetensors.numpy.save_file({"x": np.zeros((100, 4096), np.uint8)}, tmp_path / "a.safetensors")
    found = LocalFiles(open_catalog(str(tmp_path)).sources, mapped=True)
    found.ensure_open(np.array([0]))
    yield found
    found.close()


def test_rows_that_look_resident_are_made_sure_of(files, monkeypatch):
    backend = HostBackend(files)
    monkeypatch.setattr(LocalFiles, "is_resident", lambda *_: True)
    unreadable(monkeypatch)
    with pytest.raises(ReadError, match="a.safetensors, byte 8192: reading failed: Input/output error"):
        backend.read(extents([(0, 9000, 10)])).completion.wait()
    backend.close()


def test_pages_that_cannot_be_registered_because_they_cannot_be_read(files, monkeypatch):
    """CUDA only says that it could not. The pages are asked for once more, though they were populated before."""
    files.ensure(files.whole(0))
    monkeypatch.setattr(mapped, "register_host", lambda *_, **_options: "invalid argument")
    backend = mapped.MappedBackend(files, torch.device("cuda"), register_bytes=2**30)
    with pytest.raises(BackendUnavailableError, match="cannot be registered with CUDA: invalid argument"):
        backend.read(extents([(0, 9000, 10)]))
    unreadable(monkeypatch)
    with pytest.raises(ReadError, match="a.safetensors, byte 0: reading failed: Input/output error"):
        backend.read(extents([(0, 9000, 10)]))
    backend.close()
