"""The first batch is there soon, however large the dataset; and a loader by itself costs next to nothing."""

import time

import pytest
from torch.utils.data import Subset

import gdsload
from gdsload import DataLoader, Memory
from tests.loader.conftest import write_plain

MOST_S = 0.25
"""The aim is 0.05 s; the rest is for machines that do other things as well. The best of several counts."""


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    return write_plain(tmp_path_factory.mktemp("large") / "large", 100_000, width=64, shard_bytes="8MiB")


@pytest.mark.parametrize("shuffle", [False, True, "full", "block"])
def test_the_first_batch_of_a_hundred_thousand_samples(large, shuffle, mmap, record_property):
    times = []
    for _ in range(7):
        began = time.perf_counter()
        with DataLoader(large, 256, shuffle, device="cpu", mmap=mmap, memory=Memory(arena="4GiB")) as loader:
            assert len(next(iter(loader))["x"]) == 256
            times.append(time.perf_counter() - began)
        if times[-1] < MOST_S:
            break
    record_property("first_batch_s", min(times))
    assert min(times) < MOST_S


def test_the_state_of_a_large_subset_is_quick_after_the_first(large):
    """Frameworks ask for it at every step."""
    with DataLoader(Subset(gdsload.ShardDataset(large), range(1, 100_000)), 256, device="cpu") as loader:
        loader.state_dict()
        began = time.perf_counter()
        for _ in range(100):
            loader.state_dict()
        assert time.perf_counter() - began < 0.1
