"""The kernel's checksums on a GPU: those of xxhash, whatever the length and alignment."""

import numpy as np
import pytest
import torch
import xxhash

from gdsload.shards.format.checksum import BLOCK_BYTES

pytestmark = pytest.mark.cuda
DEVICE = torch.device("cuda", 0)


@pytest.fixture(scope="module")
def memory():
    """Bytes, and the same on the GPU."""
    pytest.importorskip("cupy")
    data = np.random.default_rng(0).integers(0, 256, 2**26, dtype=np.uint8)
    return data, torch.from_numpy(data).cuda()


def check(memory, starts, nbytes):
    from gdsload.kernels.checksums import queue_checksums

    data, there = memory
    made = queue_checksums(there.data_ptr() + starts, nbytes, DEVICE).cpu().numpy().view(np.uint64)
    pairs = zip(starts.tolist(), nbytes.tolist(), strict=True)
    assert made.tolist() == [xxhash.xxh3_64_intdigest(data[start : start + length].data) for start, length in pairs]


def test_every_length_up_to_2048_at_every_alignment(memory):
    starts, nbytes = np.divmod(np.arange(16 * 2049), 2049)
    check(memory, starts, nbytes)


@pytest.mark.parametrize("seed", range(5))
def test_any_lengths_at_any_places(memory, seed):
    random = np.random.default_rng(seed)
    check(memory, random.integers(0, 2**25, 500), random.integers(0, BLOCK_BYTES + 1, 500))


def test_many_whole_blocks_and_none(memory):
    check(memory, np.arange(0, 2**26, BLOCK_BYTES), np.full(2**26 // BLOCK_BYTES, BLOCK_BYTES))
    check(memory, np.arange(0, 2**26 - BLOCK_BYTES, 8191), np.full((2**26 - BLOCK_BYTES - 1) // 8191 + 1, 64))
    check(memory, np.zeros(0, np.int64), np.zeros(0, np.int64))
