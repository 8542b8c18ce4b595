"""How many threads make batches, and how large groups of them are."""

import numpy as np
import pytest

import gdsload
from gdsload.engine import limits
from gdsload.engine.limits import Limits


def limits_of_a_loader(*arguments, **options):
    with gdsload.DataLoader(*arguments, device="cpu", **options) as loader:
        return loader._life.limits


@pytest.mark.parametrize(("processors", "expected"), [(16, 5), (3, 3), (2, 2), (1, 2)])
def test_threads_that_gather(monkeypatch, processors, expected):
    monkeypatch.setattr(limits, "processors", lambda: processors)
    assert limits.gatherers() == expected


@pytest.mark.parametrize(
    ("processors", "prefetch_mib", "shuffle", "mmap", "expected_mib"),
    [
        (1, 256, "full", True, 64),
        (2, 256, "full", True, 64),
        (2, 256, "block", True, 64),
        (2, 256, "full", False, 24),
        (2, 256, False, True, 8),
        (2, 1024, "full", True, 64),
        (2, 128, "full", True, 32),
        (2, 32, "full", True, 24),
        (3, 256, "full", True, 256 / 6),
        (5, 256, "full", True, 256 / 10),
        (16, 256, "full", True, 256 / 10),
        (16, 256, "full", False, 24),
        (16, 1024, "full", True, 64),
    ],
)
def test_bytes_of_a_group(tmp_path, monkeypatch, processors, prefetch_mib, shuffle, mmap, expected_mib):
    monkeypatch.setattr(limits, "processors", lambda: processors)
    with gdsload.ShardWriter(tmp_path / "shards") as writer:
        writer.write_batch({"x": np.zeros((8, 2**18), np.uint8)})
    options = {"memory": gdsload.Memory(prefetch=prefetch_mib * 2**20), "mmap": mmap}
    found = limits_of_a_loader(tmp_path / "shards", 2, shuffle, **options)
    assert found.group_bytes == int(expected_mib * 2**20)
    assert found.group() == min(int(expected_mib * 2), prefetch_mib, 64)
    assert found.pool_bytes() >= found.prefetch_bytes + 2 * limits.gatherers() * found.group() * found.batch_bytes


@pytest.mark.parametrize("batch_size", [1, 1000, 2**20])
def test_what_the_objects_of_a_small_batch_take_is_counted(tmp_path, batch_size):
    with gdsload.ShardWriter(tmp_path / "shards") as writer:
        writer.write_batch({name: np.zeros(2**20, np.uint8) for name in "abc"})
    beside = limits_of_a_loader(tmp_path / "shards", batch_size).batch_bytes - 3 * batch_size
    assert beside == (0 if batch_size == 2**20 else 600 + 3 * 300)


def test_groups_of_batches_within_the_limits():
    assert Limits(1 << 28, 0, 1 << 23, 1 << 20, 0).group() == 8
    assert Limits(1 << 28, 0, 1 << 23, 1, 0).group() == 64
    assert Limits(1 << 28, 0, 1 << 23, 1 << 30, 0).group() == 1
    assert Limits(1 << 20, 0, 1 << 23, 1 << 17, 0).group() == 4
    assert Limits(1, 0, 1 << 23, 0, 0).group() == 1
    assert Limits(1 << 28, 0, 1 << 23, 1, 0).group(256) == 256


def test_groups_whose_bytes_land_in_the_arena_may_be_larger():
    limits = Limits(1 << 28, 0, 1 << 23, 1 << 20, 0, landing_bytes=1 << 25)
    assert (limits.group(), limits.group(landing=True)) == (8, 32)
    assert Limits(1 << 25, 0, 1 << 23, 1 << 20, 0, landing_bytes=1 << 25).group(landing=True) == 16
    assert Limits(1 << 28, 0, 1 << 23, 1 << 20, 0).group(landing=True) == 8
