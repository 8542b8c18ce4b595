"""Epochs of registered shards that the consumer queues itself: the CPU's batches, with no thread."""

from __future__ import annotations

import threading

import pytest
import torch

from gdsload import DataLoader
from gdsload.engine.ahead import AheadPipeline
from gdsload.engine.direct import Direct
from gdsload.testing import fingerprint

pytestmark = pytest.mark.cuda


@pytest.fixture
def taken(monkeypatch):
    """Groups that were taken, and the threads of ours that were there then."""
    pytest.importorskip("cupy")
    found = []
    real = AheadPipeline.get

    def get(self):
        found.append([one.name for one in threading.enumerate() if one.name.startswith("gdsload-")])
        return real(self)

    monkeypatch.setattr(AheadPipeline, "get", get)
    return found


def prints(loader):
    return [fingerprint(batch) for batch in loader]


@pytest.mark.parametrize("prefetch_bytes", ["1MiB", "256MiB"])
@pytest.mark.parametrize(("rank", "world_size"), [(0, 1), (1, 3)])
@pytest.mark.parametrize("shuffle", [False, "full"])
def test_batches_are_those_of_the_cpu(numbered, taken, shuffle, rank, world_size, prefetch_bytes):
    options = {"batch_size": 100, "shuffle": shuffle, "seed": 4, "rank": rank, "world_size": world_size}
    with DataLoader(numbered, device="cpu", **options) as loader:
        expected = [prints(loader) for _ in range(3)]
    with DataLoader(numbered, device="cuda", backend="mapped", prefetch_bytes=prefetch_bytes, **options) as loader:
        assert prints(loader) == expected[0]
        assert not taken
        with torch.inference_mode():
            found = list(loader)
        assert not any(batch["x"].is_inference() for batch in found)
        assert [fingerprint(batch) for batch in found] == expected[1]
        assert len(taken) > 1
        with torch.cuda.stream(torch.cuda.Stream()):
            assert prints(loader) == expected[2]
    assert not any(taken), "a thread of the loader's was there"


@pytest.mark.parametrize("where", ["start", "end"])
@pytest.mark.parametrize("group", [0, 1, 5])
def test_a_group_that_fails_is_made_the_other_way(numbered, taken, monkeypatch, group, where):
    """With all behind it, each batch once."""
    with DataLoader(numbered, 100, "full", seed=4, device="cpu") as loader:
        expected = [prints(loader) for _ in range(2)]
    with DataLoader(numbered, 100, "full", seed=4, device="cuda", backend="mapped") as loader:
        assert prints(loader) == expected[0]
        real, groups = Direct.start, []

        def start(self, steps, stopped, samples):
            groups.append(steps)
            if where == "start" and len(groups) == group + 1:
                raise RuntimeError("no such kernel")
            batches, event = real(self, steps, stopped, samples)
            return batches, Lost() if where == "end" and len(groups) == group + 1 else event

        monkeypatch.setattr(Direct, "start", start)
        assert prints(loader) == expected[1]
    assert len(groups) > group
    assert taken


class Lost:
    """An event that fails."""

    def synchronize(self):
        raise RuntimeError("an illegal memory access")

    def query(self):
        raise RuntimeError("an illegal memory access")


def test_an_epoch_that_is_dropped_half_way(numbered, taken):
    with DataLoader(numbered, 100, "full", seed=4, device="cpu") as loader:
        expected = [prints(loader) for _ in range(4)]
    with DataLoader(numbered, 100, "full", seed=4, device="cuda", backend="mapped") as loader:
        assert prints(loader) == expected[0]
        epoch = iter(loader)
        assert [fingerprint(next(epoch)) for _ in range(7)] == expected[1][:7]
        del epoch
        epoch = iter(loader)
        assert [fingerprint(next(epoch)) for _ in range(7)] == expected[2][:7]
        state = loader.state_dict()
        loader.load_state_dict(state)
        assert prints(loader) == expected[2][7:]
        assert prints(loader) == expected[3]
    assert taken
