"""Epochs of registered shards that the consumer queues itself: the CPU's batches, with no thread."""

import gc
import threading
import time

import pytest
import torch

from gdsload import DataLoader, Memory
from gdsload.engine.resident_source import ResidentSource
from tests.loader.taking import prints
from tests.on_gpu import epoch_prints
from tests.pools import own_threads

pytestmark = pytest.mark.cuda


@pytest.fixture
def taken(monkeypatch):
    """Groups that the consumer started, and the threads of ours that were there then."""
    pytest.importorskip("cupy")
    found = []
    gc.collect()
    until = time.monotonic() + 20
    while own_threads() and time.monotonic() < until:  # what other tests' loaders that were dropped still have to end
        time.sleep(0.01)
    real = ResidentSource.start

    def start(self, steps):
        if threading.current_thread() is threading.main_thread():
            found.append(own_threads())
        return real(self, steps)

    monkeypatch.setattr(ResidentSource, "start", start)
    return found


@pytest.mark.parametrize("prefetch_bytes", ["1MiB", "256MiB"])
@pytest.mark.parametrize(("rank", "world_size"), [(0, 1), (1, 3)])
@pytest.mark.parametrize("shuffle", [False, "full"])
def test_batches_are_those_of_the_cpu(numbered, taken, shuffle, rank, world_size, prefetch_bytes):
    options = {"batch_size": 100, "shuffle": shuffle, "seed": 4, "ranks": (rank, world_size)}
    expected = epoch_prints(numbered, 3, device="cpu", **options)
    with DataLoader(
        numbered, device="cuda", backend="mapped", memory=Memory(prefetch=prefetch_bytes), **options
    ) as loader:
        assert prints(loader) == expected[0]
        assert not taken
        with torch.inference_mode():
            found = list(loader)
        assert not any(batch["x"].is_inference() for batch in found)
        assert prints(found) == expected[1]
        assert len(taken) > 1
        with torch.cuda.stream(torch.cuda.Stream()):
            assert prints(loader) == expected[2]
    assert not any(taken), f"threads of loaders were there: {taken}"
