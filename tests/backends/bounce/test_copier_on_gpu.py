"""Pinned blocks copied to the device by many threads, and CUDA's driver as it is called for that."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from gdsload.backends.bounce import copier as copier_module
from gdsload.backends.bounce.copier import Copier
from gdsload.system.driver import driver
from gdsload.system.pinned import PinnedRing

pytestmark = pytest.mark.cuda
BLOCK, CYCLES = 2**16, 20_000_000  # about 10 ms
DEVICE = torch.device("cuda", 0)


@pytest.fixture(params=["driver", "torch"])
def copier(request, monkeypatch):
    if request.param == "torch":
        monkeypatch.setattr(copier_module, "driver", lambda: None)
    found = Copier(DEVICE)
    yield found
    found.close()


@pytest.fixture
def ring():
    found = PinnedRing(DEVICE, 6, BLOCK)
    yield found
    torch.cuda.synchronize()
    found.close()


def test_many_threads_copy_each_block_once_and_whole(copier, ring):
    """Threads that have never called torch; each block goes round many times."""
    rounds, threads = 50, 5
    out = torch.zeros(threads, rounds, BLOCK, dtype=torch.uint8, device=DEVICE)
    reading = copier.reading(rounds * threads)

    def work(thread):
        for number in range(rounds):
            block = ring.take()
            copier.wait(block)
            block.tensor.fill_((thread * rounds + number) % 251)
            copier.copy(block, out[thread, number], 0, BLOCK)
            ring.give(block)
            reading.finish()

    torch.cuda.synchronize()
    with ThreadPoolExecutor(threads) as workers:
        list(workers.map(work, range(threads)))
    reading.wait()
    expected = (torch.arange(rounds * threads) % 251).view(threads, rounds, 1).expand(-1, -1, BLOCK)
    assert torch.equal(out.cpu().long(), expected)


def test_landed_when_the_copies_are_past_and_not_when_they_are_queued(copier, ring):
    out, block = torch.zeros(BLOCK, dtype=torch.uint8, device=DEVICE), ring.take()
    torch.cuda.synchronize()
    block.tensor.fill_(7)
    with torch.cuda.stream(copier.stream):
        torch.cuda._sleep(10 * CYCLES)
    reading = copier.reading(1)
    copier.copy(block, out, 0, BLOCK)
    reading.finish()
    assert not reading.landed
    reading.wait()
    assert reading.landed
    assert out.eq(7).all()


def test_part_of_a_block(copier, ring):
    out, block = torch.zeros(BLOCK, dtype=torch.uint8, device=DEVICE), ring.take()
    torch.cuda.synchronize()
    block.tensor.fill_(9)
    copier.copy(block, out, 100, 200)
    copier.wait(block)
    assert torch.equal(out.cpu().nonzero().flatten(), torch.arange(100, 300))


def test_what_the_driver_refuses_is_said_in_its_words():
    with pytest.raises(RuntimeError, match=r"cuMemcpyHtoDAsync_v2: invalid argument \(1\)"):
        driver().copy(1, 1, 8, torch.cuda.current_stream().cuda_stream)
