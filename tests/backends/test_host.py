"""The host backend against plain reads of the files."""

import ctypes
import mmap
import os
import threading
from pathlib import Path

import numpy as np
import pytest

from gdsload import ReadError
from gdsload.backends.host import HostBackend
from gdsload.shards import guard
from gdsload.shards import page_cache as residency
from gdsload.shards.local_files import LocalFiles
from gdsload.shards.prepared_reads import PreparedReads
from gdsload.testing.conformance import extents as extents_of
from tests.backends.extents import SIZES, bytes_of, files_in
from tests.page_cache import LIBC, chill, fail_reads, in_cache


def backend_of(folder, *, mapped):
    return HostBackend(files_in(folder, mapped=mapped))


def compare(backend, contents, found):
    before = backend.bytes_by_path()["host"]
    landing = backend.read(extents_of(found))
    assert bytes_of(landing, found) == [contents[file][offset : offset + size] for file, offset, size in found]
    landing.count()
    landing.release()
    assert sum(size for _, _, size in found) == backend.bytes_by_path()["host"] - before


# --- cold and hot ---

SPREAD = [(3, offset, 3000) for offset in range(0, 7_000_000, 100_000)]


def make_cold(folder, backend):
    """Take a folder's files out of the page cache."""
    for file in np.flatnonzero(backend.files.base):
        # Pages that a process has mapped and touched stay.
        size = backend.files.sources[file].file_bytes
        LIBC.madvise(ctypes.c_void_p(int(backend.files.base[file])), ctypes.c_size_t(size), mmap.MADV_DONTNEED)
    for path in folder.iterdir():
        chill(path)


@pytest.fixture
def populated(monkeypatch):
    """The ranges that are read ahead: (address, bytes)."""
    found = []
    real = guard.populate

    def noting(at, nbytes):
        found.append((at, nbytes))
        return real(at, nbytes)

    monkeypatch.setattr(guard, "populate", noting)
    return found


@pytest.fixture
def told_by_mincore(monkeypatch):
    """Return whether a page is there. A virtual drive may read it before the kernel says that it is not (test_page_cache)."""

    def is_resident(files, file, offset):
        return bool(in_cache(Path(files.sources[file].path))[offset // mmap.PAGESIZE])

    monkeypatch.setattr(LocalFiles, "is_resident", is_resident)


@pytest.mark.usefixtures("told_by_mincore")
def test_cold_file_is_read_ahead_and_hot_one_is_not(to_close, folder, contents, populated):
    backend = to_close(backend_of(folder, mapped=True))
    backend.files.ensure_open(np.arange(len(SIZES)))
    make_cold(folder, backend)
    compare(backend, contents, SPREAD)
    covered = {(at, at + nbytes) for at, nbytes in populated}
    base = int(backend.files.base[3])
    assert all(
        any(low <= base + offset and base + offset + size <= high for low, high in covered)
        for _, offset, size in SPREAD
    )
    compare(backend, contents, SPREAD)  # the first time that they are believed to be there, they are made sure of
    del populated[:]
    for _ in range(50):
        compare(backend, contents, SPREAD)
    assert populated == []


@pytest.mark.usefixtures("told_by_mincore")
def test_what_is_in_memory_is_made_sure_of_without_a_thread(to_close, folder, contents, populated):
    """By the thread that waits, each time until it is sure: a dataset from which an item is read starts none."""
    backend = to_close(backend_of(folder, mapped=True))
    landing = backend.read(extents_of(SPREAD))
    assert landing.completion.landed
    assert populated == []
    for _ in range(2):
        landing.completion.wait()
    assert len(populated) == len(set(populated)) > 0
    assert not any(thread.name.startswith("gdsload-host") for thread in threading.enumerate())


@pytest.mark.usefixtures("told_by_mincore")
def test_memory_that_was_trusted_is_looked_at_again(to_close, folder, contents, populated):
    backend = to_close(backend_of(folder, mapped=True))
    for _ in range(100):
        compare(backend, contents, SPREAD)
    del populated[:]
    for _ in range(32):
        assert not populated
        make_cold(folder, backend)
        backend.read(extents_of(SPREAD)).completion.wait()
        if populated:
            break
    assert populated


@pytest.mark.parametrize(
    "error", [BlockingIOError(11, "not here"), OSError(95, "cannot say"), OSError(5, "broken"), None], ids=str
)
def test_pages_that_nobody_vouches_for_are_read_ahead(to_close, folder, contents, populated, monkeypatch, error):
    backend = to_close(backend_of(folder, mapped=True))
    backend.files.ensure_open(np.arange(len(SIZES)))

    def refuse(*args):
        raise error

    with monkeypatch.context() as patch:
        if error is None:
            patch.setattr(residency, "_NOWAIT", None)  # a system without the flag
        else:
            patch.setattr(os, "preadv", refuse)
            patch.setattr(residency, "_lives_in_memory", lambda _fd: False)  # wherever the tests' files are
        compare(backend, contents, [(0, 5, 70), (3, 0, 9)])
    assert len(populated) == 2


# --- what goes wrong ---


def test_disk_that_fails(to_close, folder, monkeypatch):
    backend = to_close(backend_of(folder, mapped=False))
    backend.files.ensure_open(np.arange(len(SIZES)))
    fail_reads(monkeypatch)
    landing = backend.read(extents_of([(0, 5, 70)]))
    with pytest.raises(ReadError, match="0.safetensors, byte 5: reading failed: Input/output error"):
        landing.completion.wait()


def test_memory_that_is_being_read_into_is_nobody_elses(to_close, folder, monkeypatch):
    """Not even if the thread that asked for it has dropped it."""
    backend, go_on, real = to_close(backend_of(folder, mapped=False)), threading.Event(), PreparedReads.read
    monkeypatch.setattr(PreparedReads, "read", lambda *given: (go_on.wait(20), real(*given))[1])
    first = backend.read(extents_of([(3, 0, 500_000)])).addresses[0]
    second = backend.read(extents_of([(3, 0, 500_000)]))
    assert second.addresses[0] != first
    go_on.set()
    second.completion.wait()
    second.release()


def test_a_long_extent_is_shared_out_among_threads(to_close, folder, contents, monkeypatch):
    reading, enough, read = set(), threading.Event(), PreparedReads.read

    def noting(*args):
        reading.add(threading.get_ident())
        if len(reading) == 4:
            enough.set()
        assert enough.wait(20)
        return read(*args)

    monkeypatch.setattr(PreparedReads, "read", noting)
    backend = to_close(backend_of(folder, mapped=False))
    compare(backend, contents, [(3, 0, len(contents[3]))])
