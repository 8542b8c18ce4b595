"""Windows on a GPU: batches are the host's, by every way that bytes travel."""

from __future__ import annotations

import numpy as np
import pytest

from gdsload import DataLoader, ShardWriter, Windows
from gdsload.testing import fingerprint

pytestmark = pytest.mark.cuda


@pytest.fixture(scope="session")
def frames(tmp_path_factory):
    """1000 rows of 20 bytes and of 4 KiB, some of them packed, in several shards."""
    path, numbers = tmp_path_factory.mktemp("frames") / "frames", np.arange(1000)
    with ShardWriter(path, shard_bytes="1MiB", pack_fields=["reward", "step"]) as writer:
        writer.write_batch(
            {
                "frame": np.random.default_rng(0).integers(0, 256, (1000, 4096), np.uint8),
                "state": numbers[:, None] * np.ones(5, np.int32),
                "reward": numbers.astype(np.float32),
                "step": numbers,
            }
        )
    return path


@pytest.mark.parametrize(
    ("backend", "cache"), [("auto", "none"), ("bounce", "none"), ("mapped", "none"), ("auto", "vram")]
)
@pytest.mark.parametrize(
    "order", [{}, {"shuffle": "full"}, {"shuffle": "block", "block": 16, "window": 64, "lanes": 2}]
)
@pytest.mark.parametrize(("length", "stride"), [(8, 1), (3, 3), (1, 1)])
def test_batches_are_those_of_the_cpu(frames, backend, cache, order, length, stride):
    windows = Windows(frames, length, stride)
    options = {"batch_size": 30, "with_index": True, **order}
    with DataLoader(windows, device="cpu", **options) as loader:
        wanted = [[fingerprint(batch) for batch in loader] for _ in range(2)]
    with DataLoader(windows, device="cuda", backend=backend, cache=cache, prefetch_bytes="8MiB", **options) as loader:
        found = [[fingerprint(batch) for batch in loader] for _ in range(2)]
    assert found == wanted
