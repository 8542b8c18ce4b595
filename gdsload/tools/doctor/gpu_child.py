"""``python -m gdsload.tools.doctor.gpu_child FILE DEVICE``: describe the GPU, and try to map a file.

Runs in a separate process, because a faulty driver hangs in the first call. Prints a `GpuTrial`.
"""

from __future__ import annotations

import dataclasses
import importlib
import mmap
import os
import sys
from contextlib import suppress
from typing import Any

import numpy as np
import torch

from gdsload.system.mapped_rate import TRIED_BYTES, copy_rates, is_coherent, slow_pages
from gdsload.system.probe.process import write_answer
from gdsload.system.streams import register_host, unregister_host
from gdsload.tools.doctor.trials import GpuTrial


def _try(file: str, device: str) -> GpuTrial:
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    if accelerator is None:
        return GpuTrial(error="torch sees no GPU")
    kind = "hip" if torch.version.hip else accelerator.type
    if accelerator.type != "cuda":
        return GpuTrial(kind, name=accelerator.type)
    try:
        chosen = torch.device(device)
        if chosen.index is not None:
            torch.cuda.set_device(chosen)
        found: Any = torch.cuda.get_device_properties(chosen)
        torch.zeros(1, device=chosen)
    except Exception as error:
        return GpuTrial(kind, error=str(error).strip().partition("\n")[0][:300] or type(error).__name__)
    trial = GpuTrial(kind, found.name, _address(found), int(found.total_memory))
    if kind != "cuda":
        return trial
    size, free = _bar1(trial.address)
    trial = dataclasses.replace(trial, bar1_bytes=size, bar1_free=free)
    return dataclasses.replace(trial, **_register(file)) if file else trial


def _bar1(address: str) -> tuple[int, int]:
    """The size of BAR1 and its free part, if nvidia-ml-py is installed; else 0."""
    with suppress(Exception):
        pynvml: Any = importlib.import_module("pynvml")
        pynvml.nvmlInit()
        found = pynvml.nvmlDeviceGetBAR1MemoryInfo(pynvml.nvmlDeviceGetHandleByPciBusId(address.encode()))
        return int(found.bar1Total), int(found.bar1Free)
    return 0, 0


def _address(found: Any) -> str:
    domain, bus, slot = (getattr(found, f"pci_{part}_id", None) for part in ("domain", "bus", "device"))
    if not all(isinstance(part, int) for part in (domain, bus, slot)):
        return ""
    return f"{domain:04x}:{bus:02x}:{slot:02x}.0"


def _register(file: str) -> dict[str, Any]:
    """Register the beginning of a file like the `mapped` backend, copy it, and unregister it."""
    try:
        with open(file, "rb") as opened:
            size = min(os.fstat(opened.fileno()).st_size, TRIED_BYTES)
            mapped = mmap.mmap(opened.fileno(), size, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ)
    except (OSError, ValueError) as error:
        return {"registered": False, "register_error": str(error)}
    page = np.frombuffer(mapped, np.uint8)
    address, device = int(page.__array_interface__["data"][0]), torch.device("cuda", torch.cuda.current_device())
    if wrong := register_host(device, address, size, read_only=True):
        return {"registered": False, "register_error": wrong}
    found: dict[str, Any] = {"registered": True, "coherent": is_coherent(device)}
    if size == TRIED_BYTES:
        found["mapped_rate"], found["pinned_rate"] = copy_rates(device, address, size)
        found["slow"] = bool(slow_pages(device, address, size))
    unregister_host(device, address)
    return found


def main(arguments: list[str]) -> None:
    """Try the GPU, print the result, and exit without cleaning up, which could hang."""
    try:
        trial = _try(*arguments)
    except Exception as error:
        trial = GpuTrial(error=f"{type(error).__name__}: {error}"[:300])
    write_answer(dataclasses.asdict(trial))
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1:])
