"""The share of its time for which a GPU had nothing to do, in made loops that know it."""

import time

import pytest
import torch
from torch.utils.data import Subset

from gdsload import DataLoader, PerSample, ShardDataset

pytestmark = pytest.mark.cuda
STEPS, BATCH = 24, 4
LOOPS = {"loader": (20, 5, 0), "compute": (5, 20, 0), "host": (2, 5, 20)}
"""Milliseconds of a batch that the loader, the GPU and the host take."""


def timed():
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


@pytest.fixture(scope="module")
def cycles_per_ms():
    """As the GPU's clock is once it is warm."""
    cycles = 20_000_000
    for _ in range(5):
        begin, _, end = timed(), torch.cuda._sleep(cycles), timed()
        torch.cuda.synchronize()
    return cycles / begin.elapsed_time(end)


def slow(dataset, batches, loader_ms, **options):
    """A loader that takes so long for each batch, one after the other."""

    def wait(sample):
        time.sleep(loader_ms / 1000 / BATCH)
        return sample

    chosen = Subset(ShardDataset(dataset), range(batches * BATCH))
    return DataLoader(chosen, BATCH, sample_transform=PerSample(wait, workers=1), device="cuda", **options)


@pytest.mark.parametrize("sync", [True, False])
@pytest.mark.parametrize("bound", LOOPS)
def test_six_loops(numbered, cycles_per_ms, bound, sync):
    """The truth, measured without the loader's help.

    Where the GPU has no work while the host asks for a batch, it is the time that the host spends in `next`; where the
    host runs ahead of the GPU, the time in which no kernel runs.
    """
    loader_ms, compute_ms, host_ms = LOOPS[bound]
    found = []
    with slow(numbered, STEPS, loader_ms) as loader:
        for _ in range(5):
            torch.cuda.synchronize()
            kernels, asking_s = [], 0.0
            batches, begun = iter(loader), time.perf_counter()
            for _ in range(STEPS + 1):
                asked = time.perf_counter()
                batch = next(batches, None)
                asking_s += time.perf_counter() - asked
                if batch is None:
                    break
                kernels.append((timed(), torch.cuda._sleep(int(compute_ms * cycles_per_ms)), timed()))
                time.sleep(host_ms / 1000)
                if sync:
                    torch.cuda.synchronize()
            torch.cuda.synchronize()
            took = time.perf_counter() - begun
            idle_s = took - sum(begin.elapsed_time(end) for begin, _, end in kernels) / 1000
            truth = (asking_s if sync or bound == "host" else idle_s) / took
            found.append((abs(loader.epoch_stats.starved_share - truth), truth, loader.epoch_stats.host_wait_share))
    del found[0]  # of the epoch that opens files; in others, other tests share the machine
    off, truth, _ = min(found)
    assert off <= 0.02
    assert (truth > 0.3) == (bound == "loader")
    if not sync and bound != "host":  # the host waited for the loader while the GPU had work
        assert max(abs(host_wait - truth) for _, truth, host_wait in found) > 0.1


@pytest.mark.parametrize("options", [{"cache": "vram"}, {"backend": "mapped"}, {"backend": "host"}])
def test_a_quick_loader_starves_nothing(numbered, cycles_per_ms, options):
    with DataLoader(numbered, 256, "full", device="cuda", **options) as loader:
        for _ in range(2):
            for _ in loader:
                torch.cuda._sleep(int(5 * cycles_per_ms))
        torch.cuda.synchronize()
        assert loader.epoch_stats.starved_share < 0.05


def test_stats_may_be_read_while_a_step_is_captured(numbered):
    graph = torch.cuda.CUDAGraph()
    with slow(numbered, 6, 1, reuse_buffers=True) as loader:
        batches = iter(loader)
        batch = next(batches)
        torch.cuda.synchronize()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            doubled = batch["x"] * 2
            assert loader.stats.starved_share is not None
        for same in batches:
            graph.replay()
            assert torch.equal(doubled, same["x"] * 2)
        torch.cuda.synchronize()
        assert loader.stats.starved_s > 0


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_where_there_are_no_events_there_is_no_figure(numbered, device):
    with DataLoader(numbered, 256, device=device) as loader:
        assert (loader.stats.starved_s, loader.stats.starved_share) == ((None, None) if device == "cpu" else (0, 0))
