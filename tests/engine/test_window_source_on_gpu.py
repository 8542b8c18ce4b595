"""Windows that are read as runs: batches are those of the CPU, wherever an epoch begins, ends, or is broken off."""

import pytest
import torch

from gdsload import BlockShuffle, DataLoader, Gds, Memory
from gdsload.engine.window_source import WindowSource
from gdsload.testing import assert_resumes_everywhere
from tests.on_gpu import check_as_on_cpu, check_each_once, epoch_prints

pytestmark = pytest.mark.cuda
BLOCKS = {"shuffle": BlockShuffle(block=7, window=30, lanes=4), "fields": ["image", "label", "odd", "fp8"]}


@pytest.fixture(params=["bounce", "gds"])
def reading(request):
    """The options of a backend that reads."""
    pytest.importorskip("cupy")
    if request.param == "gds":
        request.getfixturevalue("cufile")
    return {"backend": Gds(compat=True) if request.param == "gds" else request.param}


@pytest.fixture(autouse=True)
def made(monkeypatch):
    """How many batches were made by windows."""
    found, real = [], WindowSource.gather

    def gather(self, slices, sizes, ids):
        found.extend(sizes)
        return real(self, slices, sizes, ids)

    monkeypatch.setattr(WindowSource, "gather", gather)
    return found


@pytest.mark.parametrize(
    ("batch_size", "world_size", "more"),
    [
        (1, 1, {}),
        (13, 1, {}),
        (64, 1, {"drop_last": True}),
        (64, 1, {"memory": Memory(prefetch="8KiB")}),
        (300, 1, {}),
        (11, 3, {}),
        (8, 2, {"drop_last": True}),
        (10, 4, {}),
        (50, 2, {"shuffle": BlockShuffle(block=7, window=300, lanes=1)}),
        (20, 1, {"shuffle": BlockShuffle(block=1, window=1, lanes=7)}),
        (20, 1, {"shuffle": BlockShuffle(block=300, window=300, lanes=1)}),
    ],
)
def test_batches_are_those_of_the_cpu(varied, reading, made, batch_size, world_size, more):
    for rank in range(world_size):
        options = {**BLOCKS, "batch_size": batch_size, "seed": batch_size, "ranks": (rank, world_size), **more}
        (found,) = epoch_prints(varied, device="cuda", **reading, **options)
        assert [found] == epoch_prints(varied, device="cpu", **options)
        assert len(made) == len(found)
        made.clear()


def test_resumes_at_every_step(varied, reading, made):
    assert_resumes_everywhere(lambda: DataLoader(varied, 23, device="cuda", **reading, seed=5, **BLOCKS))
    assert made


def test_the_smallest_arena(numbered, reading, made):
    """Windows of all lanes and one more: then no group can have windows of its own beside those of others."""
    options = {"batch_size": 100, "shuffle": BlockShuffle(block=64, window=256, lanes=3), "seed": 3}
    check_as_on_cpu(numbered, {**reading, "memory": Memory(arena="4MiB")}, 2, **options)
    assert len(made) == 400


@pytest.mark.parametrize("batches", [0, 1, 30])
def test_an_epoch_that_is_broken_off(numbered, reading, batches):
    """All memory comes back, and the next epoch begins from the start."""
    options = {"batch_size": 100, "shuffle": BlockShuffle(block=64, window=512, lanes=4)}
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    with DataLoader(numbered, device="cuda", **reading, memory=Memory(prefetch="4MiB"), **options) as loader:
        epoch = iter(loader)
        for _ in range(batches):
            next(epoch)
        del epoch
        check_each_once(loader)
    torch.cuda.synchronize()
    torch.empty(1, device="cuda")  # the allocator looks now at what was being used by other streams
    assert torch.cuda.memory_allocated() <= before + 1024
