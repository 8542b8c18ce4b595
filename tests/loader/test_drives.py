"""A dataset's drive brings its samples; what says where they are is read from its files."""

from __future__ import annotations

import errno
import os

import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset

import gdsload
from gdsload import OptionError, ShardDataset
from gdsload.shards.drive import LOCAL, Drive
from gdsload.shards.files import Files
from gdsload.shards.page_cache import file_is_resident
from gdsload.system.memory import memory_at


class Sevens:
    """Reads bytes that are all 7."""

    closed = 0

    def __init__(self):
        self.reads = 0

    def read(self, fds, _offsets, nbytes, addresses):
        assert all(map(os.fstat, fds.tolist()))  # open files, as for reads of the system's
        self.reads += len(fds)
        for address, count in zip(addresses.tolist(), nbytes.tolist(), strict=True):
            memory_at(address, count)[:] = b"\7" * count
        return nbytes.copy()

    def read_one(self, _fd, _offset, into):
        into[:] = b"\7" * len(into)
        return len(into)

    def close(self):
        Sevens.closed += 1


class OfSevens(ShardDataset):
    """Shards on a drive of sevens."""

    drive = Drive(Sevens)


def test_samples_come_from_the_drive(plain, load):
    before = Sevens.closed
    loader = load(OfSevens(plain), 100, "full", mmap=False)
    assert all((batch["x"] == 0x07070707).all() for batch in loader)
    loader.close()
    assert Sevens.closed == before + 1


def test_a_sample_by_its_index_does_too(plain):
    assert OfSevens(plain, mmap=False)[3]["x"].tolist() == [0x07070707] * 8
    assert OfSevens(plain, mmap=True)[3]["x"].tolist() == [3] * 8  # out of the page cache nothing is read


def test_offsets_are_read_from_the_files(rich, load, expect_rich):
    loader = load(OfSevens(rich), 143, fields=["points", "codes"], mmap=False, ragged="offsets")
    reference = load(rich, 143, fields=["points", "codes"], ragged="offsets")
    (found,), (expected,) = loader, reference
    for name in ("points", "codes"):
        assert torch.equal(found[name][1], expected[name][1])
        assert found[name][0].view(torch.uint8).unique().tolist() == [7]


class Failing(Sevens):
    """Every read fails."""

    def read(self, fds, _offsets, _nbytes, _addresses):
        return np.full(len(fds), -errno.EIO)

    def read_one(self, *_):
        raise OSError(errno.EIO, os.strerror(errno.EIO))


def test_what_a_drive_does_not_bring_is_read_by_the_system(plain, load):
    class OnFailing(ShardDataset):
        drive = Drive(Failing)

    (batch,) = load(OnFailing(plain), 1000, mmap=False)
    assert batch["x"][:, 0].tolist() == list(range(1000))


def test_one_loader_has_one_drive(plain):
    both = ConcatDataset([ShardDataset(plain), OfSevens(plain)])
    with pytest.raises(OptionError, match="on different drives"):
        gdsload.DataLoader(both, device="cpu")
    assert ShardDataset.drive is LOCAL


def test_the_page_cache_of_another_drive_is_no_evidence(plain):
    dataset = ShardDataset(plain)  # which was just written, so that its pages are there
    for cached in (True, False):
        files = Files(dataset.sources, mapped=False, drive=Drive(cached=cached))
        files.ensure_open(np.arange(len(dataset.shards)))
        assert file_is_resident(files, 0) == cached
        files.close()
