"""A full disk ends a conversion with an error that says how much is missing, and the next run goes on."""

from __future__ import annotations

import errno
import os
from typing import NamedTuple

import numpy as np
import pytest

import gdsload
from gdsload.conversion import room as room_module
from gdsload.conversion import sizes
from tests.conversion.reading import content

ROWS = 4000
FULL = r"about \d\.\d* MiB is still to be written, and \d.* are free"


class Usage(NamedTuple):
    total: int
    used: int
    free: int


@pytest.fixture(scope="module")
def array(tmp_path_factory):
    """About 4 MiB."""
    file = tmp_path_factory.mktemp("source") / "x.npy"
    np.save(file, np.random.default_rng(0).integers(0, 256, (ROWS, 1024), np.uint8))
    return file


def test_a_shuffle_that_finds_no_room_in_its_second_pass(array, tmp_path, monkeypatch):
    left = iter((2**30, 2**20, 2**20))
    monkeypatch.setattr(room_module.shutil, "disk_usage", lambda path: Usage(2**30, 0, next(left)))
    with pytest.raises(gdsload.DiskFullError, match=r"about 3\.\d* MiB is still to be written, and 1 MiB are free"):
        gdsload.convert(array, tmp_path / "out", shard_bytes="300kB", workers=1, shuffle_seed=1)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("call", "code", "known"),
    [("pwrite", errno.ENOSPC, True), ("fsync", errno.EDQUOT, True), ("pwrite", errno.ENOSPC, False)],
)
def test_a_disk_that_fills_up_meanwhile(array, tmp_path, monkeypatch, call, code, known):
    """The parts that are finished say how much is missing, where sizes are not known."""
    if not known:
        monkeypatch.setattr(sizes, "part_bytes", lambda part, schema: -1)
    gdsload.convert(array, tmp_path / "wanted", shard_bytes="300kB", workers=1)
    original, calls = getattr(os, call), []

    def failing(*arguments):
        calls.append(arguments)
        if len(calls) > 20:
            raise OSError(code, os.strerror(code))
        return original(*arguments)

    with monkeypatch.context() as patched:
        patched.setattr(os, call, failing)
        with pytest.raises(gdsload.DiskFullError, match=FULL):
            gdsload.convert(array, tmp_path / "out", shard_bytes="300kB", workers=1)
    assert not (tmp_path / "out").exists()
    left = [path.name for path in (tmp_path / ".out.gdsload-convert").iterdir()]
    assert not [name for name in left if name.startswith(".")]  # nothing half made takes room away
    assert gdsload.convert(array, tmp_path / "out", shard_bytes="300kB", workers=1).resumed > 0
    assert content(tmp_path / "out") == content(tmp_path / "wanted")
