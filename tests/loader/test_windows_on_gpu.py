"""Windows on a GPU: batches are the host's, by every way that bytes travel."""

import numpy as np
import pytest
from torch.utils.data import Subset

from gdsload import BlockShuffle, Memory, ShardWriter, Windows
from tests.on_gpu import check_as_on_cpu

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


WAYS = pytest.mark.parametrize(
    ("backend", "cache"), [("auto", "none"), ("bounce", "none"), ("mapped", "none"), ("auto", "vram")]
)
ORDERS = pytest.mark.parametrize(
    "order", [{}, {"shuffle": "full"}, {"shuffle": BlockShuffle(block=16, window=64, lanes=2)}]
)


@WAYS
@ORDERS
@pytest.mark.parametrize(
    "shape",
    [
        {"length": 8},
        {"length": 3, "stride": 3},
        {"length": 1},
        {"length": 4, "step": 5},
        {"offsets": {"frame": [0, 5, 10, 15], "state": range(-2, 18), "reward": range(20), "step": [7, 0, 7]}},
    ],
    ids=str,
)
def test_batches_are_those_of_the_cpu(frames, backend, cache, order, shape):
    """Also of offsets for each field: rows by themselves, rows in one piece, and fields of one packed column."""
    windows = Windows(frames, **shape)
    way = {"backend": backend, "cache": cache, "memory": Memory(prefetch="8MiB")}
    check_as_on_cpu(windows, way, 2, batch_size=30, with_index=True, **order)


@pytest.fixture(scope="session")
def tokens(tmp_path_factory):
    """3000 rows of 2 bytes in one shard, and in many."""
    path = tmp_path_factory.mktemp("tokens")
    for name, shard_bytes in (("one", "1GiB"), ("many", "4KiB")):
        with ShardWriter(path / name, shard_bytes=shard_bytes) as writer:
            writer.write_batch({"tokens": np.random.default_rng(0).integers(0, 50_000, 30_000, np.uint16)})
    return path


@WAYS
@ORDERS
@pytest.mark.parametrize("shards", ["one", "many"])
@pytest.mark.parametrize("length", [65, 1025])
def test_windows_of_tokens_from_any_place(tokens, backend, cache, order, shards, length):
    """One row each where they are in one shard; and where some cross shards, those of their tokens."""
    windows = Subset(Windows(tokens / shards, length), np.random.default_rng(1).permutation(28_000)[:500].tolist())
    check_as_on_cpu(windows, {"backend": backend, "cache": cache}, 2, batch_size=16, **order)
