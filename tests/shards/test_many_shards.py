"""Thousands of shards, few descriptors, several threads and processes."""

import os
import pickle
import resource
import shutil
import threading
import time

import numpy as np
import pytest

from gdsload import FileChangedError, SampleIndexError, ShardDataset, ShardWriter
from gdsload.system.dropped import settle_dropped
from tests.shards.threads import in_threads

SHARDS = 600


@pytest.fixture(scope="module")
def many(tmp_path_factory):
    """A dataset of 600 shards of one sample each: more than may be open, and more than are kept open."""
    path = tmp_path_factory.mktemp("many") / "d"
    with ShardWriter(path, shard_bytes=1) as writer:
        for number in range(SHARDS):
            writer.write({"x": number})
    yield path
    shutil.rmtree(path)


@pytest.mark.parametrize("mmap", [True, False])
def test_more_shards_than_a_process_may_open(many, forked, mmap):
    def work():
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
        start = time.process_time()  # the machine may be busy with other things
        dataset = ShardDataset(many, mmap=mmap)
        assert [int(sample["x"]) for sample in dataset.__getitems__([3, -1])] == [3, SHARDS - 1]
        # One by one, each read without a mapping waits for a thread, which is slow on a busy machine.
        for index in range(0, SHARDS, 1 if mmap else 20):
            assert index == int(dataset[index]["x"])
        order = np.random.default_rng(1).permutation(SHARDS)
        assert order.tolist() == [int(sample["x"]) for sample in dataset.__getitems__(order)]
        assert len(os.listdir("/proc/self/fd")) < 200
        assert time.process_time() - start < 10

    assert forked(work) == 0


@pytest.mark.parametrize("mmap", [True, False, None])
def test_pickle_is_small_whatever_the_size(many, mmap):
    dataset = ShardDataset(many, mmap=mmap)
    dataset[0]
    raw = pickle.dumps(dataset)
    assert len(raw) < 1024
    copy = pickle.loads(raw)
    assert (dataset.digest, SHARDS, 7, dataset.mmap) == (copy.digest, len(copy), int(copy[7]["x"]), copy.mmap)


def test_pickle_of_a_dataset_that_was_replaced(small, write_small):
    raw = pickle.dumps(ShardDataset(small))
    write_small(small, mark=1, overwrite=True)
    with pytest.raises(FileChangedError, match="the dataset is no longer the one that was pickled. Open it again"):
        pickle.loads(raw)
    write_small(small, mark=0, overwrite=True)
    assert len(pickle.loads(raw)) == 20  # the same content under the same name is the same dataset


@pytest.mark.parametrize("mmap", [True, False])
def test_many_threads_read_at_once(small, expect, mmap):
    dataset = ShardDataset(small, mmap=mmap)

    def read(seed):
        rng = np.random.default_rng(seed)
        for _ in range(20):
            expect(dataset, indices=rng.integers(0, 20, 15).tolist())

    in_threads(read, range(8))


@pytest.mark.parametrize("mmap", [True, False])
def test_fork_reads_on(small, expect, forked, mmap):
    dataset = ShardDataset(small, mmap=mmap)
    expect(dataset)

    def work():
        expect(dataset)
        assert forked(lambda: expect(dataset)) == 0

    assert forked(work) == 0
    expect(dataset)


def test_datasets_that_go_leave_nothing_open(small):
    def footprint():
        with open("/proc/self/maps") as maps:
            mapped = sum("safetensors" in line for line in maps)
        return len(os.listdir("/proc/self/fd")), mapped, threading.active_count()

    settle_dropped()  # what other tests have left
    before = footprint()
    for mmap in (True, False):
        dataset = ShardDataset(small, mmap=mmap)
        kept = dataset.__getitems__(range(20))
        del dataset
    settle_dropped()
    assert before == footprint()
    assert len(kept) == 20


@pytest.mark.parametrize("index", [20, -21, 2**63, np.int64(20)])
def test_index_outside(small, index):
    with pytest.raises(SampleIndexError, match="does not exist: the dataset has 20"):
        ShardDataset(small)[index]


def test_what_a_dataset_says_of_itself(small):
    dataset = ShardDataset(small)
    assert (str(small), 20, 20) == (dataset.path, len(dataset), sum(dataset.counts))
    assert dataset.num_bytes == sum(shard.bytes for shard in dataset.shards)
    assert [shard.bytes for shard in dataset.shards] == [os.path.getsize(shard.file) for shard in dataset.shards]
    assert repr(dataset).startswith(f"ShardDataset('{small}')\n  20 samples, 72 KiB in {len(dataset.shards)} shards\n")
