"""A GPU's address, and what its BAR1 has left: with a library that is played here, and asked on a GPU."""

from __future__ import annotations

import ctypes
import os
from types import SimpleNamespace

import pytest
import torch

from gdsload.system import pci
from gdsload.system.pci import free_bar1, pci_address


class Library:
    """Knows one GPU; `refuses` is the call that fails."""

    def __init__(self, refuses=""):
        self.refuses, self.inits = refuses, 0

    def nvmlInit_v2(self):
        self.inits += 1
        return int(self.refuses == "init")

    def nvmlShutdown(self):
        self.inits -= 1
        return 0

    def nvmlDeviceGetHandleByPciBusId_v2(self, address, handle):
        ctypes.cast(handle, ctypes.POINTER(ctypes.c_void_p))[0] = 77
        return int(address != b"00000001:0a:00.0" or self.refuses == "handle")

    def nvmlDeviceGetBAR1MemoryInfo(self, handle, memory):
        words = ctypes.cast(memory, ctypes.POINTER(ctypes.c_ulonglong))
        words[0], words[1], words[2] = 1000, 700, 300
        return int(handle.value != 77 or self.refuses == "memory")


@pytest.mark.parametrize(
    ("refuses", "expected"), [("", 700), ("init", None), ("handle", None), ("memory", None), ("library", None)]
)
def test_what_is_free(monkeypatch, refuses, expected):
    library = Library(refuses)

    def load(_name):
        if refuses == "library":
            raise OSError("there is none")
        return library

    where = SimpleNamespace(pci_domain_id=1, pci_bus_id=10, pci_device_id=0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _device: where)
    monkeypatch.setattr(pci.ctypes, "CDLL", load)
    assert free_bar1(torch.device("cuda", 0)) == expected
    assert library.inits == (1 if refuses == "init" else 0)


def test_without_a_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _device: SimpleNamespace())
    assert free_bar1(torch.device("cuda", 0)) is None


@pytest.mark.cuda
def test_of_a_gpu():
    found = free_bar1(torch.device("cuda", 0))
    assert found is None or 0 < found <= 2**42
    assert os.path.isdir(f"/sys/bus/pci/devices/{pci_address(torch.device('cuda', 0))}")
