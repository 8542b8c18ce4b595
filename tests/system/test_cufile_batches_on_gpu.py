"""cuFile takes batches of reads, as many and as long as we make them, in its compat mode, too; none waits for a slab."""

import os
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from gdsload.backends.gds.engines import CufileEngine
from gdsload.system.cufile_batches import LONGEST_BYTES, READS

pytestmark = [pytest.mark.cuda, pytest.mark.usefixtures("cufile")]

PAGE = 4096
LENGTHS = {
    "short": np.full(3 * READS + 1, PAGE),
    "longer": np.full(2 * READS + 1, 3 * PAGE),
    "longest": np.full(READS + 1, LONGEST_BYTES),
    "mixed": np.resize([PAGE, 3 * PAGE, LONGEST_BYTES, PAGE, 17 * PAGE], 2 * READS),
}


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """16 MiB, each page of which is known by its bytes."""
    path = tmp_path_factory.mktemp("batches") / "file"
    path.write_bytes(np.random.default_rng(0).bytes(16 * 2**20))
    return path


def made(engine, handle, lengths, whole, seed):
    """Make reads of some places into memory of their own; whether every byte is right."""
    rng, ends = np.random.default_rng(seed), np.cumsum(lengths)
    offsets = rng.integers(0, (len(whole) - LONGEST_BYTES) // PAGE, len(lengths)) * PAGE
    memory = torch.zeros(int(ends[-1]), dtype=torch.uint8, device="cuda")
    torch.cuda.synchronize()
    same, positions = np.ones(len(lengths), np.int64), ends - lengths
    done = engine.read_many(same * handle, same * memory.data_ptr(), positions, lengths, offsets)
    found = memory.cpu().numpy()
    expected = np.concatenate([whole[low : low + n] for low, n in zip(offsets.tolist(), lengths.tolist(), strict=True)])
    return np.array_equal(done, lengths) and np.array_equal(found, expected)


@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS)
def test_batches_of_two_threads_within_the_slabs(path, lengths):
    engine = CufileEngine(torch.device("cuda", 0), batches=True)
    whole, fd = np.fromfile(path, np.uint8), os.open(path, os.O_RDONLY | os.O_DIRECT)
    handle = engine.open(str(path), fd)
    try:
        with ThreadPoolExecutor(2) as threads:
            each = threads.map(lambda seed: made(engine, handle, lengths, whole, seed), range(4))
            assert list(each) == [True] * 4
        assert engine.most_bytes == LONGEST_BYTES  # no batch was refused, or it would go on without
    finally:
        engine.close(handle)
        engine.end()
        os.close(fd)
