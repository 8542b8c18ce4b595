"""Samples that the host says, for the GPU to gather: of samplers, mixtures, and orders that it cannot evaluate."""

import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, Subset

from gdsload import BlockShuffle, Field, Mix, ShardDataset, ShardWriter
from tests.loader.taking import seeded
from tests.on_gpu import check_as_on_cpu

pytestmark = pytest.mark.cuda

SAMPLES = 1200


@pytest.fixture(scope="session")
def plain(tmp_path_factory):
    """Fields of one shape each, short ones and one that is copied, in several shards."""
    path = tmp_path_factory.mktemp("told") / "shards"
    random = np.random.default_rng(3)
    fields = {"x": Field("uint8", (37,)), "long": Field("float32", (131, 127)), "label": Field("int64")}
    with ShardWriter(path, fields, shard_bytes="3MiB") as writer:
        for low in range(0, SAMPLES, 300):
            writer.write_batch(
                {
                    "x": random.integers(0, 256, (300, 37), np.uint8),
                    "long": random.standard_normal((300, 131, 127), np.float32),
                    "label": np.arange(low, low + 300),
                }
            )
    return path


def by_the_host(gathered):
    """Return whether the host has said the samples of a group that was gathered."""
    return any(samples is not None for _, samples in gathered)


def lists(seed=3):
    """Batches of any length, also of none; they need all shards."""
    random = np.random.default_rng(seed)
    return [random.integers(0, SAMPLES, size).tolist() for size in [1, 60, 60, 60, 0, 0, 200, 7, 7, 900]]


GIVEN = {
    "a tensor": lambda: {"sampler": torch.randperm(SAMPLES, generator=seeded()), "batch_size": 64},
    "lists of any length": lambda: {"batch_sampler": lists()},
    "the same again and again": lambda: {"sampler": [*range(SAMPLES), *[5, SAMPLES - 1] * 300], "batch_size": 50},
    "blocks with an index": lambda: {
        "shuffle": BlockShuffle(block=40, window=300, lanes=5), "batch_size": 64, "seed": 4
    },
    "too many windows": lambda: {"shuffle": BlockShuffle(block=1, window=1, lanes=300), "batch_size": 30},
}  # fmt: skip
WAYS = [{"backend": "mapped"}, {"cache": "vram"}]


@pytest.mark.parametrize("select", ["all", "subset", "concat"])
@pytest.mark.parametrize("way", WAYS, ids=["mapped", "vram"])
@pytest.mark.parametrize("name", GIVEN)
def test_batches_are_those_of_the_cpu(plain, gathered, name, way, select):
    dataset = ShardDataset(plain)
    if select == "subset":
        dataset = Subset(dataset, np.random.default_rng(5).permutation(SAMPLES).tolist())
    elif select == "concat":
        dataset = ConcatDataset([Subset(dataset, range(SAMPLES - 1, 499, -1)), Subset(ShardDataset(plain), range(500))])
    check_as_on_cpu(dataset, way, 3, with_index=True, **GIVEN[name]())
    assert by_the_host(gathered)


@pytest.mark.parametrize("way", WAYS, ids=["mapped", "vram"])
@pytest.mark.parametrize("shuffle", ["full", False])
def test_mixtures_are_those_of_the_cpu(plain, gathered, way, shuffle):
    parts = {"a": Subset(ShardDataset(plain), range(0, SAMPLES, 3)), "b": ShardDataset(plain)}
    mix = Mix(parts, {"a": 0.7, "b": 0.3}, samples=2000)
    check_as_on_cpu(mix, way, 3, batch_size=70, shuffle=shuffle, seed=6, with_index=True)
    assert by_the_host(gathered)


def test_an_order_that_is_mostly_that_of_the_shards_is_left_to_the_copy_engine(plain, gathered):
    options = {"sampler": torch.arange(SAMPLES), "batch_size": 500, "fields": ["x", "label"]}
    check_as_on_cpu(plain, {"backend": "mapped"}, 3, with_index=True, **options)
    assert not by_the_host(gathered)
