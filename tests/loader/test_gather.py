"""`gather`: the batch of any samples, as `read_batch` reads them, from several threads."""

import numpy as np
import pytest
import torch

import gdsload
from gdsload import SampleIndexError, ShardDataset
from gdsload.testing import fingerprint


def test_as_read_batch_reads_them(rich, mmap):
    dataset, random = ShardDataset(rich, mmap=mmap), np.random.default_rng(0)
    for count in (0, 1, 7, 200):
        indices = random.integers(-len(dataset), len(dataset), count)
        found = dataset.gather(torch.from_numpy(indices), device="cpu")
        assert fingerprint(found) == fingerprint(dataset.read_batch(indices))
    some = dataset.gather([3, 3, 1], fields=["label"], device="cpu")
    assert some.keys() == {"label"}
    assert some["label"].tolist() == [3, 3, 1]
    with pytest.raises(SampleIndexError, match=f"sample {len(dataset)} does not exist"):
        dataset.gather([len(dataset)], device="cpu")


def test_from_several_threads(rich, in_thread):
    dataset = ShardDataset(rich)

    def ask(seed):
        random = np.random.default_rng(seed)
        for _ in range(30):
            indices = random.integers(0, len(dataset), 50)
            found = dataset.gather(indices, fields=["label"], device="cpu")["label"]
            assert found.tolist() == indices.tolist()

    for asking in [in_thread(ask, seed) for seed in range(4)]:
        asking.result(timeout=20)


def test_a_failed_call_leaves_nothing_behind(own_plain):
    dataset = ShardDataset(own_plain, mmap=False)
    shard = dataset.shards[1]
    with open(shard.file, "r+b") as file:
        file.truncate(shard.bytes // 2)
    with pytest.raises(gdsload.GdsloadError):
        dataset.gather([0, dataset.shards[0].samples + shard.samples - 1], device="cpu")
    assert dataset.gather([1, 0], device="cpu")["x"][:, 0].tolist() == [1, 0]
