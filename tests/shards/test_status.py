"""Errors of the system about files become gdsload's, give the reason, and leave no descriptor open."""

import errno
import math
import os
import resource

import numpy as np
import pytest
from safetensors.numpy import save_file

import gdsload
from gdsload.errors import DatasetNotFoundError, GdsloadError, ReadError
from tests.page_cache import open_paths
from tests.shards.failing_calls import failing


def epoch(path, **options):
    with gdsload.DataLoader(path, 4, device="cpu", **options) as loader:
        list(loader)


ANSWERS = {
    "dataset": gdsload.ShardDataset,
    "files": lambda path: gdsload.ShardDataset(path / "plain"),
    "one file": lambda path: gdsload.ShardDataset(path / "plain/a.safetensors"),
    "epoch": lambda path: epoch(path, mmap=False),
    "mapped epoch": lambda path: epoch(path, mmap=True),
}


@pytest.fixture
def dataset(tmp_path):
    path = tmp_path / "d"
    with gdsload.ShardWriter(path, shard_bytes=4096) as writer:
        for number in range(10):
            writer.write({"x": np.full(1000, number, np.int32)})
    (path / "plain").mkdir()
    save_file({"w": np.arange(8.0)}, path / "plain/a.safetensors")
    return path


def descriptors():
    return os.listdir("/proc/self/fd")


@pytest.mark.parametrize("code", [errno.EIO, errno.EMFILE])
@pytest.mark.parametrize("name", ANSWERS)
@pytest.mark.parametrize("for_good", [False, True])
def test_a_status_that_the_system_does_not_give_is_an_error_of_gdsloads(dataset, name, code, for_good):
    """Whichever look it is that fails, alone or with all further ones."""
    raised = 0
    for number in range(1, 40):
        with failing(os, "fstat", code, first=number, last=math.inf if for_good else number) as calls:
            try:
                ANSWERS[name](dataset)
            except GdsloadError as error:
                assert os.strerror(code) in str(error)
                assert not isinstance(error, DatasetNotFoundError)
                raised += 1
        if len(calls) < number:
            break
    assert raised
    assert open_paths(dataset) == []


@pytest.mark.parametrize("code", [errno.EIO, errno.EACCES, errno.ESTALE])
def test_a_shard_that_cannot_be_looked_at_is_not_called_removed(dataset, monkeypatch, code):
    real = os.stat
    loader = gdsload.DataLoader(dataset, 1, memory=gdsload.Memory(prefetch=1))
    iterator = iter(loader)
    next(iterator)

    def stat(path, **options):
        if str(path).endswith(".safetensors"):
            raise OSError(code, os.strerror(code))
        return real(path, **options)

    monkeypatch.setattr(os, "stat", stat)
    with pytest.raises(ReadError, match=os.strerror(code)) as caught:
        list(iterator)
    assert "removed" not in str(caught.value)


@pytest.mark.parametrize("name", ANSWERS)
def test_too_many_open_files_is_not_called_a_missing_dataset(dataset, name):
    ANSWERS[name](dataset)  # what is imported then is there
    limits, held = resource.getrlimit(resource.RLIMIT_NOFILE), []
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(map(int, descriptors())) + 20, limits[1]))
        while True:
            held.append(os.open("/dev/null", os.O_RDONLY))
    except OSError as error:
        assert error.errno == errno.EMFILE
        with pytest.raises(ReadError, match=r"Too many open files.*ulimit -n"):
            ANSWERS[name](dataset)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        for fd in held:
            os.close(fd)


@pytest.mark.parametrize(("mmap", "allowed"), [(True, 30), (False, 30), (False, 60)])
def test_an_epoch_of_more_shards_than_files_may_be_open(tmp_path, mmap, allowed):
    with gdsload.ShardWriter(tmp_path / "d", shard_bytes=4096) as writer:
        for number in range(200):
            writer.write({"x": np.full(1000, number, np.int32)})
    list(gdsload.DataLoader(tmp_path / "d", 16))  # what is made once is there
    limits, loaders = resource.getrlimit(resource.RLIMIT_NOFILE), []
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (len(descriptors()) + allowed, limits[1]))
        loaders += [gdsload.DataLoader(tmp_path / "d", 64, shuffle=True, mmap=mmap) for _ in range(2)]
        for batches in zip(*loaders, strict=True):
            assert len({tuple(batch["x"][:, 0].tolist()) for batch in batches}) == 1
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert [loader.epoch for loader in loaders] == [1, 1]


@pytest.mark.parametrize("mmap", [True, False])
@pytest.mark.parametrize("link", ["the folder", "a folder above", "a file"])
def test_an_epoch_reads_what_a_link_led_to_when_the_dataset_was_opened(tmp_path, link, mmap):
    """So that a new dataset can be switched to at any time."""
    for version in (1, 2):
        with gdsload.ShardWriter(tmp_path / f"v{version}/d", shard_bytes=512) as writer:
            for number in range(60):
                writer.write({"x": np.full(4, number, np.int64)})
    target, inside = {"the folder": ("v{}/d", ""), "a folder above": ("v{}", "d")}.get(
        link, ("v{}/d/shard-00000.safetensors", "")
    )
    at = tmp_path / "now"
    at.symlink_to(target.format(1))
    loader = gdsload.DataLoader(at / inside, 2, memory=gdsload.Memory(prefetch=1), mmap=mmap)
    iterator = iter(loader)
    found = next(iterator)["x"][:, 0].tolist()
    (tmp_path / "new").symlink_to(target.format(2))
    os.rename(tmp_path / "new", at)
    for batch in iterator:
        found += batch["x"][:, 0].tolist()
    assert found == list(range(len(loader.dataset)))
    assert loader.dataset.path == str(at / inside).rstrip("/")
