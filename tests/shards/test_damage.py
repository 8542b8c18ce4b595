"""Files that somebody changes while a dataset is in use: an error, or the right bytes, never wrong ones."""

import os
import shutil
import time

import numpy as np
import pytest

from gdsload import FileChangedError, FormatError, ShardDataset, ShardWriter
from tests.shards.bits import flip, flip_unseen


def later():
    """File times tick every 1 to 4 ms: of two changes within one tick the second looks like the first."""
    time.sleep(0.02)


def replace(path):
    shutil.copy2(path, f"{path}.new")
    os.rename(f"{path}.new", path)


def move_away_and_back(path):
    os.rename(path, f"{path}.away")
    os.rename(f"{path}.away", path)


WRITTEN, CTIME = "was written to while", "was written to, or its rights or links were changed, while"
CHANGES = {
    "cut to nothing": (lambda path: os.truncate(path, 0), WRITTEN),
    "cut short": (lambda path: os.truncate(path, os.path.getsize(path) - 4096), WRITTEN),
    "grown": (lambda path: os.truncate(path, os.path.getsize(path) + 4096), WRITTEN),
    "rewritten in place": (lambda path: flip(path, 8192), WRITTEN),
    "with a new time": (os.utime, WRITTEN),
    "replaced, though by the same bytes": (replace, "was replaced by another file while"),
    "deleted": (os.unlink, "was removed while"),
    "moved away": (lambda path: os.rename(path, f"{path}.away"), "was removed while"),
    # ctime alone looks the same as a write after which the other times were put back.
    "its header, with its time put back": (lambda path: flip_unseen(path, 100), CTIME),
    "its last byte, with its time put back": (lambda path: flip_unseen(path, os.path.getsize(path) - 4097), CTIME),
    "moved away and back": (move_away_and_back, CTIME),
    "chmod": (lambda path: os.chmod(path, 0o400), CTIME),
    "hard link": (lambda path: os.link(path, f"{path}.backup"), CTIME),
    "times set to what they are": (lambda path: os.utime(path, ns=(0, os.stat(path).st_mtime_ns)), CTIME),
}


@pytest.mark.parametrize(("read_before", "mapped"), [(True, True), (False, False)])
@pytest.mark.parametrize("what", CHANGES)
def test_a_shard_that_changes_while_the_dataset_is_in_use_is_refused(tmp_path, what, read_before, mapped):
    change, message = CHANGES[what]
    with ShardWriter(tmp_path / "d", shard_bytes=160_000) as writer:
        writer.write_batch({"x": np.arange(120_000, dtype=np.int32).reshape(300, 400)})
    dataset = ShardDataset(tmp_path / "d", mmap=mapped)
    if read_before:
        assert list(range(40_000, 40_400)) == dataset[100]["x"].tolist()
    path = dataset.shards[1].file
    later()
    change(path)
    for index in (100, 199, slice(0, 300)):
        with pytest.raises(FileChangedError, match=f"the shard {message} the dataset was in use") as caught:
            dataset.__getitems__(range(300)) if isinstance(index, slice) else dataset[index]
        assert caught.value.file == path
    for index in (0, 299):
        assert int(dataset[index]["x"][0]) == 400 * index, "other shards can be read"
    if message == CTIME:
        assert len(ShardDataset(tmp_path / "d")) == 300, "opened again, it is the dataset"


def test_dataset_overwritten_while_in_use(small, write_small):
    """The opened dataset stays the old one: no shard of the new one is taken for one of its shards."""
    for mmap in (True, False):
        dataset = ShardDataset(small, mmap=mmap)
        assert int(dataset[0]["x"][0]) == 0
        write_small(small, overwrite=True)
        later()
        for index in range(20):
            with pytest.raises(FileChangedError, match="the shard was (replaced by another file|removed) while"):
                dataset[index]


# --- damage on disk that no check of the file's times can notice ---


def test_refused_shard_is_refused_again(small):
    """An error leaves nothing half open; and the other shards can be read."""
    dataset = ShardDataset(small)
    flip(dataset.shards[1].file, 100)
    dataset = ShardDataset(small)
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        with pytest.raises(FormatError, match="no valid safetensors file"):
            dataset[int(dataset.counts[0])]
    assert int(dataset[0]["x"][0]) == 0
    assert len(os.listdir("/proc/self/fd")) <= before + 2
