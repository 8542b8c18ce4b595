"""Arrays on a GPU are the host's, whether they go through pinned memory that is used again or not."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from gdsload.engine.gpu.staged_uploads import StagedUploads

pytestmark = pytest.mark.cuda
DEVICE = torch.device("cuda", 0)


def arrays_of(seed):
    """Of many sizes, of which not all find room at once; of other layouts, empty, and read-only."""
    random = np.random.default_rng(seed)
    sizes = [1, 0, 7, 1000, 65_536, 65_537, 131_072, 3, 300_000, 5]
    found = [random.integers(0, 2**60, size) for size in sizes]
    found += [random.integers(0, 256, (3, 5)).astype(np.uint8), random.integers(0, 99, (4, 6))[:, ::2]]
    found += [random.integers(0, 2**30, 11).astype(np.int32), random.integers(0, 9, 4)]
    found[-1].flags.writeable = False
    return found


@pytest.mark.parametrize("again", [True, False])
def test_arrays_arrive(again):
    upload, stream = StagedUploads(DEVICE), torch.cuda.Stream(DEVICE)

    def groups(seed):
        kept = []
        for number in range(4):
            arrays = arrays_of((seed, number))
            with torch.cuda.stream(stream):
                if again:
                    with upload.until_synchronized():
                        kept += [(array, upload(array)) for array in arrays]
                        stream.synchronize()
                else:
                    kept += [(array, upload(array)) for array in arrays]
        stream.synchronize()
        return kept

    with ThreadPoolExecutor(3) as pool:
        for array, found in [pair for kept in pool.map(groups, range(3)) for pair in kept]:
            assert (found.device, found.shape) == (DEVICE, array.shape)
            assert np.array_equal(found.cpu().numpy(), array)
            assert found.cpu().numpy().dtype == array.dtype
