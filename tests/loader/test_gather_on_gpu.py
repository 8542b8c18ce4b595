"""`gather` on a GPU: bytes are those that the host reads, on whatever stream the caller is."""

import time

import numpy as np
import pytest
import torch

from gdsload import ShardDataset
from gdsload.testing import fingerprint

pytestmark = pytest.mark.cuda


@pytest.mark.parametrize("mmap", [True, False])
def test_as_read_batch_reads_them(varied, mmap):
    dataset, random = ShardDataset(varied, mmap=mmap), np.random.default_rng(0)
    for fields in (None, ["label"], ["image", "odd"]):
        for count in (0, 1, 7, 200, 200, 200):
            indices = torch.from_numpy(random.integers(-len(dataset), len(dataset), count))
            found = dataset.gather(indices.cuda(), fields=fields)
            assert fingerprint(found) == fingerprint(dataset.read_batch(indices, fields=fields))
            time.sleep(0.02)  # shards are being registered meanwhile: what is read first is gathered later


def test_what_is_dropped_is_not_gathered_into_while_it_is_read(numbered):
    """The batch is the stream's that was current: kernels queued there still read it when it has been dropped."""
    dataset, found, wanted, random = ShardDataset(numbered), [], [], np.random.default_rng(1)
    with torch.cuda.stream(torch.cuda.Stream()):
        for _ in range(40):
            indices = random.integers(0, len(dataset), 1000)
            rows = dataset.gather(indices, device="cuda")["x"]
            torch.cuda._sleep(2_000_000)
            found.append(rows[:, 0].clone())
            del rows
            wanted.append(indices)
    torch.cuda.synchronize()
    assert [rows.tolist() for rows in found] == [rows.tolist() for rows in wanted]
