"""Pinned memory: its pages are allocated near the GPU, as far as that can be tested without one."""

import gc
import mmap
import os

import pytest
import torch

from gdsload.errors import BackendUnavailableError
from gdsload.system import pinned
from gdsload.system.pinned import PinnedRing

CPU = torch.device("cpu")


@pytest.fixture
def registered(monkeypatch):
    """The addresses of registered memory; how many of its pages were there before."""
    found = []

    def register(device, address, nbytes):
        found.append(resident(address, nbytes))
        return ""

    monkeypatch.setattr(pinned, "register_host", register)
    monkeypatch.setattr(pinned, "unregister_host", lambda *_: "")
    return found


def resident(address, nbytes):
    """Pages of this process that are in memory, by the kernel's own account."""
    try:
        with open("/proc/self/pagemap", "rb") as file:
            file.seek(address // mmap.PAGESIZE * 8)
            entries = file.read(nbytes // mmap.PAGESIZE * 8)
    except OSError as error:
        pytest.skip(f"the kernel does not say which pages are there: {error}")
    return sum(entries[at + 7] >> 7 for at in range(0, len(entries), 8))


def test_pages_are_touched_first_by_a_thread_near_the_gpu(registered, monkeypatch):
    near, seen, allowed = {min(os.sched_getaffinity(0))}, [], os.sched_getaffinity(0)
    monkeypatch.setattr(pinned, "processors_near", lambda device: near)
    memset = pinned.ctypes.memset

    def touch(address, value, nbytes):
        seen.append(os.sched_getaffinity(0))
        memset(address, value, nbytes)

    monkeypatch.setattr(pinned.ctypes, "memset", touch)
    ring = PinnedRing(CPU, 4, 2**16)
    ring.close()
    assert seen == [near]
    assert registered == [4 * 2**16 // mmap.PAGESIZE]
    assert os.sched_getaffinity(0) == allowed


def test_where_no_node_is_known_nothing_is_touched(registered, monkeypatch):
    monkeypatch.setattr(pinned, "processors_near", lambda device: None)
    ring = PinnedRing(CPU, 4, 2**16)
    assert registered == [0]
    blocks = [ring.take() for _ in range(4)]
    assert len({block.address for block in blocks}) == 4
    for block in blocks:
        ring.give(block)
    ring.close()


@pytest.mark.parametrize("refused", [False, True])
def test_what_was_interrupted_is_unpinned_before_it_is_unmapped(registered, monkeypatch, refused):
    """CUDA remembers what is registered by its address, where other memory may be mapped next."""
    unpinned = []

    def register(_device, address, _nbytes):
        if refused:
            return "no"
        registered.append(address)
        raise KeyboardInterrupt

    def unregister(_device, address):
        with open("/proc/self/maps") as file:
            ranges = [[int(end, 16) for end in line.split()[0].split("-")] for line in file]
        unpinned.append((address, any(low <= address < high for low, high in ranges)))

    monkeypatch.setattr(pinned, "register_host", register)
    monkeypatch.setattr(pinned, "unregister_host", unregister)
    said = "256 KiB of host memory cannot be pinned for cpu: no. Lower `backend=gdsload.Bounce" if refused else None
    with pytest.raises(BackendUnavailableError if refused else KeyboardInterrupt, match=said) as caught:
        PinnedRing(CPU, 4, 2**16)
    del caught
    gc.collect()
    assert unpinned == [(address, True) for address in registered]
    assert bool(unpinned) != refused
