"""A full disk ends a conversion with an error that says how much is missing, and the next run goes on."""

from __future__ import annotations

import contextlib
import errno
import os
import subprocess

import numpy as np
import pytest

import gdsload
from gdsload.conversion import room as room_module
from gdsload.conversion import sizes
from tests.conversion.reading import content

ROWS = 4000
FULL = r"about \d\.\d* MiB is still to be written, and \d.* are free"


@pytest.fixture(scope="module")
def array(tmp_path_factory):
    """About 4 MiB."""
    file = tmp_path_factory.mktemp("source") / "x.npy"
    np.save(file, np.random.default_rng(0).integers(0, 256, (ROWS, 1024), np.uint8))
    return file


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 6 MiB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=6m", "none", str(disk)], check=False, capture_output=True
    )
    if mounted.returncode:
        pytest.skip(f"a file system cannot be mounted here: {mounted.stderr.decode().strip()}")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


def free(folder):
    return os.statvfs(folder).f_bavail * os.statvfs(folder).f_frsize


@pytest.mark.parametrize("workers", [1, 2])
def test_a_disk_that_fills_up_meanwhile(array, tmp_path, small_disk, workers):
    """Somebody else fills it when a few parts are there; once there is room again, it goes on."""
    gdsload.convert(array, tmp_path / "wanted", shard_bytes="300kB", workers=1)
    other = small_disk / "other"

    def fill(samples, nbytes, parts, of):
        if parts == 4:
            with contextlib.suppress(OSError):  # another worker may just have filled it
                other.write_bytes(bytes(free(small_disk) - 200_000))

    with pytest.raises(gdsload.DiskFullError, match=FULL) as caught:
        gdsload.convert(array, small_disk / "out", shard_bytes="300kB", workers=workers, progress=fill)
    assert "of 14 parts that are finished" in str(caught.value)
    left = sorted(path.name for path in (small_disk / ".out.gdsload-convert").iterdir())
    assert not [name for name in left if name.startswith(".")]  # nothing half made takes room away
    other.unlink()
    report = gdsload.convert(array, small_disk / "out", shard_bytes="300kB", workers=workers)
    assert report.resumed >= 4
    assert content(small_disk / "out") == content(tmp_path / "wanted")


def test_a_disk_that_is_full_where_sizes_are_not_known(array, tmp_path, small_disk, monkeypatch):
    """Then the write fails; the parts that are finished say how much is missing."""
    monkeypatch.setattr(sizes, "part_bytes", lambda part, schema: -1)
    (small_disk / "other").write_bytes(bytes(4_000_000))
    with pytest.raises(gdsload.DiskFullError, match=FULL) as error:
        gdsload.convert(array, small_disk / "out", shard_bytes="300kB", workers=1)
    assert "No space left on device" in str(error.value.__cause__)
    (small_disk / "other").unlink()
    assert gdsload.convert(array, small_disk / "out", shard_bytes="300kB", workers=1).resumed >= 4
    assert gdsload.ShardDataset(small_disk / "out").verify().checked_bytes == ROWS * 1024


def test_a_shuffle_that_finds_no_room_in_its_second_pass(array, tmp_path, small_disk, monkeypatch):
    monkeypatch.setattr(room_module.Room, "check", lambda *arguments: None)
    with pytest.raises(gdsload.DiskFullError, match=r"about 3\.\d* MiB is still to be written"):
        gdsload.convert(array, small_disk / "out", shard_bytes="300kB", workers=1, shuffle_seed=1)
    assert not (small_disk / "out").exists()


@pytest.mark.parametrize("call", ["pwrite", "fsync"])
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_failing_call(array, tmp_path, monkeypatch, call, code):
    """As above, for machines on which nothing can be mounted."""
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
    assert gdsload.convert(array, tmp_path / "out", shard_bytes="300kB", workers=1).resumed > 0
    assert content(tmp_path / "out") == content(tmp_path / "wanted")
