"""Open files: few descriptors, and the same files all along."""

import os

import numpy as np
import pytest

from gdsload import DatasetNotFoundError, LoaderClosedError, ReadError, ShortReadError
from gdsload.shards import local_files as files_module
from gdsload.shards.catalog import open_catalog
from gdsload.shards.local_files import LocalFiles, open_regular, pread_exact
from tests.page_cache import open_paths


def table_of(folder, *, mapped=False):
    catalog = open_catalog(str(folder))
    return LocalFiles(catalog.sources, mapped=mapped)


def opened(table):
    """The files that have descriptors in this process."""
    paths = open_paths()
    return {file for file, source in enumerate(table.sources) if os.path.realpath(source.path) in paths}


def test_descriptors_in_use_are_not_closed(folder, monkeypatch):
    table = table_of(folder)
    monkeypatch.setattr(table.through, "most", 2)
    with table.descriptor(0) as first, table.descriptor(0) as same:
        assert first == same
        for file in range(1, 10):
            with table.descriptor(file):
                os.fstat(first)
        assert len(opened(table)) <= 3
        table.close()
        os.fstat(first)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(first)
    assert open_paths(folder) == []


def test_an_interrupted_close_goes_on_and_unmaps_nothing_twice(folder, monkeypatch):
    """A second time it could be somebody else's memory."""
    files = table_of(folder, mapped=True)
    files.ensure_open(np.arange(10))
    addresses, unmapped, really = set(files.base.tolist()), [], files_module.unmap

    def unmap(address, nbytes):
        unmapped.append(address)
        if len(unmapped) in (3, 4):
            raise KeyboardInterrupt
        really(address, nbytes)

    monkeypatch.setattr(files_module, "unmap", unmap)
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            files.close()
    files.close()
    files.close()
    assert set(unmapped) == addresses
    assert len(unmapped) == 10


@pytest.mark.parametrize("every", [True, False])
def test_closed_shards_are_not_opened_again(folder, every):
    """Return whether some of them were open, or all, which is known without a look at each."""
    files = table_of(folder, mapped=True)
    files.ensure_open(np.arange(10 if every else 2))
    files.close()
    for wanted in (np.array([0]), np.arange(10)):
        with pytest.raises(LoaderClosedError, match="the shards were closed"):
            files.ensure_open(wanted)


# --- opening and reading ---


def test_only_regular_files_are_opened(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    before = open_paths("/dev/null")
    for name in ("pipe", "link", ".", "/dev/null"):
        with pytest.raises(ReadError, match="it is no regular file"):
            open_regular(str(tmp_path / name))
    with pytest.raises(ReadError, match="It is a symbolic link to .*, which is in no folder of shards"):
        open_regular(str(tmp_path / "link"), follow_links=False)
    with pytest.raises(ReadError, match="cannot be opened: Too many levels of symbolic links"):
        open_regular(str(tmp_path / "loop"))
    with pytest.raises(DatasetNotFoundError, match="there is no such file"):
        open_regular(str(tmp_path / "none"))
    assert open_paths(tmp_path) == []
    assert open_paths("/dev/null") == before


def test_reads_may_come_in_pieces_and_end_with_the_file(tmp_path, monkeypatch):
    (tmp_path / "f").write_bytes(bytes(range(100)))
    fd = open_regular(str(tmp_path / "f"))
    real = os.preadv
    monkeypatch.setattr(os, "preadv", lambda fd, buffers, offset: real(fd, [buffers[0][:7]], offset))
    into = bytearray(50)
    pread_exact(fd, memoryview(into), 20, "f")
    assert bytes(range(20, 70)) == into
    pread_exact(fd, memoryview(b""), 1000, "f")
    with pytest.raises(ShortReadError, match="f, byte 100: the file ended 1 bytes too early. It was cut short"):
        pread_exact(fd, memoryview(into), 51, "f")
    os.close(fd)
