"""A GPU as a PCI device: its address, and how much of its memory other devices can address at once.

The latter is its BAR1, to which storage DMA goes. Data-centre GPUs map all of their memory there, many others 256 MiB.
"""

from __future__ import annotations

import ctypes
from typing import Any

import torch

__all__ = ["free_bar1", "pci_address"]


class _Bar1(ctypes.Structure):
    """nvmlBAR1Memory_t, nvml.h; bytes."""

    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


def pci_address(device: torch.device) -> str:
    """A GPU's address, as Linux writes it: ``0000:3b:00.0``.

    Raises:
        AttributeError: if torch does not know it.
    """
    found: Any = torch.cuda.get_device_properties(device)
    return f"{found.pci_domain_id:04x}:{found.pci_bus_id:02x}:{found.pci_device_id:02x}.0"


def free_bar1(device: torch.device) -> int | None:
    """Free bytes of a GPU's BAR1, as NVIDIA's management library has it; None where nobody can tell."""
    try:
        address = f"0000{pci_address(device)}"  # it has domains of eight digits
        library = ctypes.CDLL("libnvidia-ml.so.1")
        if library.nvmlInit_v2():
            return None
        try:
            handle, memory = ctypes.c_void_p(), _Bar1()
            if library.nvmlDeviceGetHandleByPciBusId_v2(address.encode(), ctypes.byref(handle)):
                return None
            return None if library.nvmlDeviceGetBAR1MemoryInfo(handle, ctypes.byref(memory)) else int(memory.free)
        finally:
            library.nvmlShutdown()
    except (OSError, AttributeError, RuntimeError, AssertionError):  # no library, no such call, no such GPU
        return None
