"""Compiling and launching kernels, with stand-ins of cupy, of CUDA's driver, and of two GPUs."""

import threading
from contextlib import contextmanager
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from gdsload.kernels import launch as kernels
from tests.pools import no_threads


class Machine:
    """Two GPUs, and what they are asked to do."""

    def __init__(self):
        self.current, self.context = 0, None
        self.launched = []

    @contextmanager
    def device(self, device):
        before, self.current = self.current, device.index
        yield
        self.current = before

    @contextmanager
    def inside(self, index):
        self.context = index
        yield
        self.context = None

    def launch(self, function, grid, params, stream, *, own_sync_domain):
        self.launched.append((self.current, self.context, function, grid, params, stream, own_sync_domain))


@pytest.fixture
def machine(monkeypatch):
    found = Machine()
    monkeypatch.setattr(torch.cuda, "current_device", lambda: found.current)
    monkeypatch.setattr(torch.cuda, "device", found.device)
    monkeypatch.setattr(kernels, "driver", lambda: found)
    monkeypatch.setattr(kernels, "stream_handle", lambda device: 10 + device.index)
    return found


def test_a_grid_stands_in_the_source():
    source = 'extern "C" __global__ void LAYOUT copy() { WORD found[DEPTH]; }'
    pairs, plain = kernels.Grid(4, 1024, 4, paired=True), kernels.Grid(132, 256, 8)
    assert "void __cluster_dims__(2, 1, 1) __launch_bounds__(1024, 1) copy() { WORD found[4]; }" in pairs.apply(
        source, clusters=True
    )
    assert "void __launch_bounds__(1024, 1) copy()" in pairs.apply(source, clusters=False)
    assert "void __launch_bounds__(256, 1) copy() { WORD found[8]; }" in plain.apply(source, clusters=True)


@pytest.mark.parametrize(
    ("capability", "clusters"), [((8, 9), False), ((9, 0), True), ((10, 3), True), ((12, 0), False)]
)
def test_clusters_of_two_where_the_gpu_has_them(machine, monkeypatch, capability, clusters):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _device: capability)
    seen = []

    def compiled(source, name):
        seen.append((source, name, machine.current, machine.context))
        return SimpleNamespace(kernel=SimpleNamespace(ptr=77))

    monkeypatch.setattr(kernels, "_cupy", lambda: SimpleNamespace(RawKernel=compiled))
    wanted = (f"LAYOUT WORD DEPTH // {capability}", "copy", 8, kernels.OVER_PCIE, torch.device("cuda", 1))
    made = kernels.kernel(*wanted)
    assert made == 77
    assert kernels.kernel(*wanted) == made  # compiled once
    ((source, name, *inside),) = seen
    assert (source.startswith("__cluster_dims__"), name, inside) == (clusters, "copy", [1, 1])
    assert source.endswith(f"uint2 4 // {capability}")


@pytest.mark.parametrize("index", [0, 1])
@pytest.mark.parametrize("over_pcie", [False, True])
def test_a_kernel_is_launched_on_its_device_and_stream(machine, index, over_pcie):
    params = np.arange(3, dtype=np.uint64)
    grid, device = kernels.Grid(3, 64, 4), torch.device("cuda", index)
    kernels.launch(77, device, grid, params, over_pcie=over_pcie)
    address, own_sync_domain = params.ctypes.data, index if over_pcie else None
    assert machine.launched == [(index, index, 77, (3, 64), address, 10 + index, own_sync_domain)]
    assert (machine.current, machine.context) == (0, None)


def test_without_a_driver_nothing_can_be_launched(machine, monkeypatch):
    monkeypatch.setattr(kernels, "_cupy", object)
    assert kernels.can_launch()
    monkeypatch.setattr(kernels, "driver", lambda: None)
    assert not kernels.can_launch()
    with pytest.raises(RuntimeError, match="without CUDA's driver"):
        kernels.launch(77, torch.device("cuda", 0), kernels.IN_VRAM, np.zeros(1, np.uint64))
    assert machine.launched == []


def test_what_is_prepared_is_made_once_and_one_thing_at_a_time(soon):
    made, gate, over = [], threading.Event(), threading.Event()
    kernels.prepare("a test's first", lambda: (gate.wait(10), made.append(1)))
    kernels.prepare("a test's second", lambda: 1 // 0)  # an error is for the code that needs it
    kernels.prepare("a test's first", lambda: made.append("again"))
    assert not kernels.prepared("a test's first")
    kernels.prepare("a test's last", lambda: (made.append(2), over.set()))
    assert not made
    gate.set()
    assert over.wait(10)
    soon(lambda: all(map(kernels.prepared, ("a test's first", "a test's second"))))
    assert sorted(made) == [1, 2]


def test_without_a_thread_nothing_is_prepared_and_nothing_waits_for_it():
    made = []
    with no_threads(RuntimeError("can't start new thread")):
        kernels.prepare("a test's, without a thread", lambda: made.append(1))
    assert kernels.prepared("a test's, without a thread")
    assert made == []
