"""How many threads make groups of batches."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

import gdsload
from gdsload.engine import groups
from gdsload.engine.groups import workers


class Arena:
    """A backend that brings bytes into memory of its own."""


class Reaching(Arena):
    """One that may have all shards where the GPU can gather from them."""

    def shard_addresses(self):
        return None

    def count(self, base, nbytes):
        pass

    def check(self, files):
        pass


@pytest.mark.parametrize(
    ("backend", "takes_processor", "processors", "expected"),
    [
        (Arena(), True, 16, 4),
        (Arena(), True, 3, 2),
        (Arena(), True, 1, 1),
        (Reaching(), True, 16, 4),
        # On a GPU they only wait for it.
        (Arena(), False, 16, 1),
        (Reaching(), False, 16, 2),
        (Reaching(), False, 1, 2),
    ],
)
def test_workers(monkeypatch, backend, takes_processor, processors, expected):
    monkeypatch.setattr(groups.os, "sched_getaffinity", lambda _process: set(range(processors)))
    assert workers(backend, SimpleNamespace(takes_processor=takes_processor)) == expected


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
    monkeypatch.setattr(groups.os, "sched_getaffinity", lambda _process: set(range(processors)))
    with gdsload.ShardWriter(tmp_path / "shards") as writer:
        writer.write_batch({"x": np.zeros((8, 2**18), np.uint8)})
    options = {"prefetch_bytes": prefetch_mib * 2**20, "mmap": mmap}
    with gdsload.DataLoader(tmp_path / "shards", 2, shuffle, device="cpu", **options) as loader:
        limits = loader._limits
    assert limits.group_bytes == int(expected_mib * 2**20)
    assert limits.group() == min(int(expected_mib * 2), prefetch_mib, 64)
    assert limits.pool_bytes() >= limits.prefetch_bytes + 2 * groups.gatherers() * limits.group() * limits.batch_bytes
