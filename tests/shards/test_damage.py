"""Files that somebody changes while a dataset is in use: an error, or the right bytes, never wrong ones."""

from __future__ import annotations

import os
import shutil
import time

import numpy as np
import pytest

from gdsload import Field, FileChangedError, FormatError, ReadError, ShardDataset, ShardWriter
from gdsload.shards.opening import load_shard
from tests.shards.bits import flip


@pytest.fixture(params=[True, False], ids=["mapped", "unmapped"])
def opened(request, tmp_path):
    """A dataset of one shard in use, and its file."""
    with ShardWriter(tmp_path / "d") as writer:
        writer.write_batch({"x": np.arange(40_000, dtype=np.int32).reshape(100, 400)})
    dataset = ShardDataset(tmp_path / "d", mmap=request.param)
    assert list(range(400)) == dataset[0]["x"].tolist()
    return dataset, dataset.shards[0].file


def later():
    """File times tick every 1 to 4 ms: of two changes within one tick the second cannot be told from the first."""
    time.sleep(0.02)


def refuses(dataset, message):
    later()
    for index in (0, 99):
        with pytest.raises(FileChangedError, match=message):
            dataset[index]
    with pytest.raises(ReadError, match="use|gone|missing") as caught:
        dataset.__getitems__(range(100))
    assert dataset.shards[0].file == caught.value.file


@pytest.mark.parametrize("length", [lambda size: 0, lambda size: size - 4096, lambda size: size + 4096])
def test_file_cut_short_or_grown(opened, length):
    dataset, path = opened
    os.truncate(path, length(dataset.shards[0].bytes))
    refuses(dataset, "the shard was written to while the dataset was in use")


def test_file_rewritten_in_place(opened):
    dataset, path = opened
    later()
    with open(path, "r+b") as file:
        file.seek(8192)
        file.write(b"\1" * 4096)
    refuses(dataset, "the shard was written to while the dataset was in use. Open the dataset again")


def test_file_replaced_by_a_rename(opened):
    """Even by one of the same bytes: nobody has compared them."""
    dataset, path = opened
    shutil.copy2(path, path + ".new")
    os.rename(path + ".new", path)
    refuses(dataset, "the shard was replaced by another file while the dataset was in use")


def test_file_deleted(opened):
    dataset, path = opened
    os.unlink(path)
    refuses(dataset, "the shard was removed while the dataset was in use. Restore it")


def test_file_moved_away_and_back(opened):
    dataset, path = opened
    os.rename(path, path + ".away")
    refuses(dataset, "the shard was removed while the dataset was in use")
    os.rename(path + ".away", path)
    later()
    refuses(dataset, "or its rights or links were changed, while the dataset was in use. Open the dataset again")
    assert list(range(400)) == ShardDataset(os.path.dirname(path))[0]["x"].tolist()


def test_dataset_overwritten_while_in_use(small, write_small):
    """What was opened is the old dataset: no shard of the new one is taken for one of its own."""
    for mmap in (True, False):
        dataset = ShardDataset(small, mmap=mmap)
        assert int(dataset[0]["x"][0]) == 0
        write_small(small, overwrite=True)
        later()
        for index in range(20):
            with pytest.raises(FileChangedError, match="the shard was (replaced by another file|removed) while"):
                dataset[index]


# --- damage on disk that no check of the file's times can notice ---


@pytest.mark.parametrize("mmap", [True, False])
def test_any_ragged_offsets_give_rows_or_an_error(tmp_path, mmap):
    with ShardWriter(tmp_path / "d", {"x": Field("int16", (None, 3)), "s": "str"}) as writer:
        for number in range(6):
            writer.write({"x": np.full((number, 3), number, np.int16), "s": "a" * (number + 1)})
    path = ShardDataset(tmp_path / "d").shards[0].file
    with open(path, "rb") as file:
        whole, entries = file.read(), load_shard(file.fileno(), path).header.tensors
    rng = np.random.default_rng(4)
    errors = 0
    for _ in range(60):
        name = ("gdsload:offsets:x", "gdsload:offsets:s")[int(rng.integers(2))]
        value = int(
            rng.choice([-1, 0, 1, 5, 15, 16, 2**31, 2**62, 2**63 - 1, -(2**63), int(rng.integers(-(2**63), 2**63))])
        )
        at = entries[name].begin + 8 * int(rng.integers(7))
        with open(path, "wb") as file:
            file.write(whole[:at] + value.to_bytes(8, "little", signed=True) + whole[at + 8 :])
        dataset = ShardDataset(tmp_path / "d", mmap=mmap)
        for index in range(6):
            try:
                sample = dataset[index]
            except FormatError as error:
                assert "the offsets of a ragged field are damaged" in str(error)
                errors += 1
            else:
                assert len(sample["x"]) <= 15
                assert len(sample["s"]) <= 21
    assert errors > 30


NO_SUCH_HEADER = "no valid safetensors file|header is not the one|cannot be read as a shard"


@pytest.mark.parametrize("mmap", [True, False])
def test_header_damaged_on_disk(small, shard_paths, mmap):
    path = shard_paths(small)[1]
    for offset in (0, 7, 8, 9, 100, 500):
        flip(path, offset, bit=5)
        dataset = ShardDataset(small, mmap=mmap)
        with pytest.raises(FormatError, match=NO_SUCH_HEADER):
            dataset[int(dataset.counts[0])]
        flip(path, offset, bit=5)


def test_refused_shard_is_refused_again(small, shard_paths):
    """An error leaves nothing half open; and the other shards can be read."""
    flip(shard_paths(small)[1], 100)
    dataset = ShardDataset(small)
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        with pytest.raises(FormatError, match=NO_SUCH_HEADER):
            dataset[int(dataset.counts[0])]
    assert int(dataset[0]["x"][0]) == 0
    assert len(os.listdir("/proc/self/fd")) <= before + 2
