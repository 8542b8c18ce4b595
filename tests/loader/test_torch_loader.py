"""A ShardDataset in torch's own DataLoader."""

import os
import threading

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from gdsload import Field, ShardDataset, ShardWriter
from gdsload.loader import dataset as dataset_module
from tests.pools import Held


@pytest.fixture
def dense(tmp_path):
    """A dataset without ragged tensors, so that torch can collate it."""
    schema = {"x": Field("float32", (3,)), "n": Field("int64"), "s": "str"}
    with ShardWriter(tmp_path / "d", schema, shard_bytes=100) as writer:
        for number in range(23):
            writer.write({"x": np.full(3, number, np.float32), "n": number, "s": str(number)})
    return ShardDataset(tmp_path / "d")


def check_epoch(loader):
    seen = []
    for batch in loader:
        numbers = batch["n"].tolist()
        assert [[float(number)] * 3 for number in numbers] == batch["x"].tolist()
        assert [str(number) for number in numbers] == batch["s"]
        seen += numbers
    return seen


@pytest.mark.parametrize("shuffle", [False, True])
def test_in_the_main_process(dense, mmap, shuffle):
    dataset = ShardDataset(dense.path, mmap=mmap)
    seen = check_epoch(DataLoader(dataset, batch_size=4, shuffle=shuffle, generator=torch.Generator().manual_seed(1)))
    assert list(range(23)) == sorted(seen)
    assert shuffle != (list(range(23)) == seen)


@pytest.mark.slow
@pytest.mark.parametrize(("context", "workers"), [("fork", 2), ("spawn", 1)])
def test_in_workers(dense, context, workers):
    dense[0]  # what the workers inherit has threads and mappings already
    loader = DataLoader(
        dense, batch_size=4, num_workers=workers, multiprocessing_context=context, persistent_workers=True
    )
    for _ in range(2):
        assert list(range(23)) == check_epoch(loader)


def test_samples_of_workers_are_whole_tensors(dense):
    """A sample's storage is its own, so that sending it elsewhere sends no more than that."""
    sample = dense[7]
    assert sample["x"].untyped_storage().nbytes() == 3 * 4
    assert sample["x"].is_contiguous()
    assert not sample["x"].requires_grad


def test_a_child_that_is_forked_while_a_thread_opens_the_dataset_reads_it(
    dense, monkeypatch, in_thread, ends_in_a_child
):
    """A lock that the thread held would be copied as it is: the fork waits for it."""
    held, opened = Held(), dataset_module.SampleReader

    def slow(*given, **options):
        held()
        return opened(*given, **options)

    dataset = ShardDataset(dense.path)
    with monkeypatch.context() as patch:
        patch.setattr(dataset_module, "SampleReader", slow)
        reading = in_thread(dataset.__getitem__, 0)
        assert held.begun.wait(20)
    threading.Timer(0.2, held.may_end.set).start()
    assert ends_in_a_child(lambda: dataset[1]["n"].item() == 1 or os._exit(2))
    reading.result(timeout=20)
