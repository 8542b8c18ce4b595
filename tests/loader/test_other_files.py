"""Files and backends of other libraries: bytes come from elsewhere, by the methods of `Files` alone."""

import numpy as np
import pytest

import gdsload
from gdsload import (
    BackendUnavailableError,
    FileChangedError,
    LoaderClosedError,
    ReadError,
    ShardDataset,
    ShortReadError,
)
from gdsload.backends.host import HostBackend
from gdsload.backends.request import BackendRow, OpenedBackend
from gdsload.shards.drive_order import DriveOrder
from gdsload.shards.local_files import LocalFiles
from gdsload.shards.reads import Extents
from gdsload.system.memory import memory_at
from tests.loader.taking import begin

STORE = {}
"""The bytes of each shard, by its path."""


class Fetched:
    """Files whose bytes are fetched from a store: no descriptor, no mapping, and nothing is in the page cache."""

    def __init__(self, sources, *, mapped):
        assert not mapped
        self.sources, self.mapped = tuple(sources), False
        count = len(self.sources)
        self.base, self.sizes = np.zeros(count, np.int64), np.zeros(count, np.int64)
        self.opened, self.kept = np.zeros(count, bool), np.zeros(count, bool)
        self.drives = DriveOrder(["store"] * count)
        self._closed = False

    def ensure_open(self, files):
        self.refuse_closed()
        for file in set(files.tolist()):
            self.sizes[file], self.opened[file] = len(self._bytes(file)), True

    def refuse_closed(self):
        if self._closed:
            raise LoaderClosedError("the files were closed")

    def _bytes(self, file):
        try:
            return STORE[self.sources[file].path]
        except KeyError:
            raise ReadError("the store has no such object", file=self.sources[file].path) from None

    def length(self, file):
        return int(self.sizes[file])

    def whole(self, file):
        return Extents(np.array([file]), np.array([0]), np.array([self.length(file)]))

    def check(self, files, *, believed_s=0.0):
        for file in set(files.tolist()):
            if len(self._bytes(file)) != self.sizes[file]:
                raise FileChangedError("the object is another", file=self.sources[file].path)

    def check_now(self, files):
        self.check(files)

    def check_passed(self):
        pass

    def read_into(self, file, offset, memory):
        found = self._bytes(file)[offset : offset + len(memory)]
        if len(found) < len(memory):
            raise ShortReadError("the object ends before", file=self.sources[file].path, offset=offset)
        memory[:] = found

    def reads(self, extents, direct=None):
        return FetchedReads(self, extents)

    def descriptor(self, file, *, direct=False):
        raise ReadError("it has no descriptor", file=self.sources[file].path)

    def is_resident(self, file, offset):
        return False

    def in_mappings(self, addresses):
        return np.zeros(len(addresses), bool)

    def close(self):
        self._closed = True


class FetchedReads:
    def __init__(self, files, extents):
        self._files, self._extents = files, extents

    def nbytes(self, low, high):
        return int(self._extents.nbytes[low:high].sum())

    def read(self, low, high, addresses):
        some = self._extents[low:high]
        columns = (column.tolist() for column in (some.file, some.offset, some.nbytes, addresses))
        for file, offset, nbytes, address in zip(*columns, strict=True):
            self._files.read_into(file, offset, memory_at(address, nbytes))
        return 0

    def close(self):
        pass


class FetchedDataset(ShardDataset):
    """Its shards are in the store."""

    open_files = Fetched


@pytest.fixture
def fetched(rich, monkeypatch):
    """A dataset in the store, with bytes that the files on this machine do not have any more."""
    dataset = FetchedDataset(rich, mmap=False)
    for shard in dataset.shards:
        with open(shard.file, "rb") as file:
            monkeypatch.setitem(STORE, shard.file, bytearray(file.read()))
    return dataset


def test_batches_are_those_of_local_files(fetched, load, expect_rich, shuffle, monkeypatch):
    def refuse(*_, **__):
        raise AssertionError("a local file was opened")

    monkeypatch.setattr(LocalFiles, "__init__", refuse)
    seen = []
    for batch in load(fetched, 50, shuffle, ragged="offsets", with_index=True):
        expect_rich(batch, batch["index"].tolist())
        seen += batch["index"].tolist()
    assert sorted(seen) == list(range(143))


def test_samples_by_their_index(fetched, expect_rich):
    dataset = FetchedDataset(fetched.path, mmap=False)  # dropped when the test ends, and its threads with it
    expect_rich(dataset.read_batch([7, 3], fields=["image"]), [7, 3])


def test_what_the_store_does_not_have_is_an_error_of_its_own(fetched, load, monkeypatch):
    path = fetched.shards[-1].file
    monkeypatch.delitem(STORE, path)
    with pytest.raises(ReadError, match="the store has no such object") as caught:
        list(load(fetched, 50))
    assert caught.value.file == path


def test_an_object_that_changes_is_noticed(fetched, load, monkeypatch):
    batches = begin(load(fetched, 5, memory=gdsload.Memory(prefetch=1)))
    path = fetched.shards[-1].file
    monkeypatch.setitem(STORE, path, STORE[path][:-4096])
    with pytest.raises(gdsload.GdsloadError, match=r"the object (is another|ends before)|no valid safetensors"):
        list(batches)


# --- a backend of another library ---


class Mine(HostBackend):
    name = "mine"


def open_mine(request, files, _found):
    return OpenedBackend(Mine(files, **request.threads), lambda: "mine", lambda: "it was given")


def test_a_backend_that_is_given_as_an_object_reads(fetched, plain, load, expect_rich):
    mine = BackendRow(Mine, False, open_mine)
    loader = load(plain, 100, backend=mine)
    assert (loader.backend.asked, loader.backend.chosen) == ("mine", "mine")
    assert "backend  mine: " in repr(loader)
    assert [number for batch in loader for number in batch["x"][:, 0].tolist()] == list(range(1000))
    assert loader.backend.bytes_by_path == {"mine": 32_000}
    (batch,) = load(fetched, 143, backend=mine, ragged="offsets")
    expect_rich(batch, range(143))


def test_one_that_needs_a_gpu_is_refused_without(plain):
    with pytest.raises(BackendUnavailableError, match="backend 'mine' needs a CUDA device"):
        gdsload.DataLoader(plain, device="cpu", backend=BackendRow(Mine, True, open_mine))
