"""Launching kernels by way of cupy, with cupy's and CUDA's stand-ins: what cupy refuses is refused."""

from __future__ import annotations

from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch

from gdsload.engine import kernels


class Machine:
    """Two GPUs whose default streams are current, and cupy, whose streams belong to the device they were made on."""

    def __init__(self):
        self.current = 0
        self.launched = []
        self.inside = None

    @contextmanager
    def device(self, device):
        before, self.current = self.current, device.index
        yield
        self.current = before

    def from_external(self, stream):
        _, handle = stream.__cuda_stream__()
        return self.stream(handle, self.current)

    @contextmanager
    def entered(self, handle, index):
        if index != self.current:
            raise RuntimeError(f"the stream is device {index}'s, and {self.current} is current")
        self.inside = (handle, index)
        yield
        self.inside = None

    def stream(self, handle, index):
        machine = self

        class Stream:
            def __enter__(self):
                self.context = machine.entered(handle, index)
                self.context.__enter__()

            def __exit__(self, *error):
                self.context.__exit__(*error)

        return Stream()

    def kernel(self, grid, block, arguments):
        self.launched.append((self.inside, grid, block, arguments))


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
def test_clusters_of_two_where_the_gpu_has_them(monkeypatch, capability, clusters):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _device: capability)
    compiled = SimpleNamespace(RawKernel=lambda source, name: (source, name))
    monkeypatch.setattr(kernels, "_cupy", lambda: compiled)
    kernels.kernel.cache_clear()
    try:
        source, name = kernels.kernel("LAYOUT WORD DEPTH", "copy", 8, kernels.OVER_PCIE, torch.device("cuda", 0))
    finally:
        kernels.kernel.cache_clear()
    assert (source.startswith("__cluster_dims__"), name) == (clusters, "copy")
    assert source.endswith("uint2 4")


@pytest.mark.parametrize("modern", [True, False], ids=["from_external", "ExternalStream"])
def test_default_streams_of_two_devices(monkeypatch, modern):
    machine = Machine()
    stream = SimpleNamespace(from_external=machine.from_external) if modern else SimpleNamespace()
    cupy = SimpleNamespace(cuda=SimpleNamespace(Stream=stream, ExternalStream=machine.stream))
    monkeypatch.setattr(kernels, "_cupy", lambda: cupy)
    monkeypatch.setattr(kernels, "stream_handle", lambda _device: 0)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: machine.current)
    monkeypatch.setattr(torch.cuda, "device", machine.device)
    kernels._stream.cache_clear()
    try:
        for index in (0, 1, 0, 1):
            kernels.launch(machine.kernel, torch.device("cuda", index), kernels.Grid(3, 64, 4), (7,))
            assert machine.launched[-1] == ((0, index), (3,), (64,), (7,))
    finally:
        kernels._stream.cache_clear()
