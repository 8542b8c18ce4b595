"""``python -m gdsload.tools.doctor.gpu_child FILE DEVICE``: a description of the GPU, and a trial of mapping a file.

Runs in a separate process, because a sick driver hangs in the first call. Answers with a `GpuTrial`.
"""

from __future__ import annotations

import dataclasses
import mmap
import os
import sys
from typing import Any

import numpy as np
import torch

from gdsload.system.probe.process import write_answer
from gdsload.tools.doctor.trials import GpuTrial

_READ_ONLY = 8  # cudaHostRegisterReadOnly, driver_types.h


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
    if kind != "cuda" or not file:
        return trial
    wrong = _register(file)
    return dataclasses.replace(trial, registered=not wrong, register_error=wrong)


def _address(found: Any) -> str:
    domain, bus, slot = (getattr(found, f"pci_{part}_id", None) for part in ("domain", "bus", "device"))
    if not all(isinstance(part, int) for part in (domain, bus, slot)):
        return ""
    return f"{domain:04x}:{bus:02x}:{slot:02x}.0"


def _register(file: str) -> str:
    """Register a page of the file as the `mapped` backend does, and give it back; returns the error, or nothing."""
    try:
        with open(file, "rb") as opened:
            size = min(os.fstat(opened.fileno()).st_size, mmap.PAGESIZE)
            mapped = mmap.mmap(opened.fileno(), size, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ)
    except (OSError, ValueError) as error:
        return str(error)
    page = np.frombuffer(mapped, np.uint8)
    address = int(page.__array_interface__["data"][0])
    runtime: Any = torch.cuda.cudart()
    code = int(runtime.cudaHostRegister(address, size, _READ_ONLY))
    if code:
        return f"cudaHostRegister: {runtime.cudaGetErrorString(runtime.cudaError(code))} ({code})"
    runtime.cudaHostUnregister(address)
    return ""


def main(arguments: list[str]) -> None:
    """Try, print, and leave without cleaning up, which could hang."""
    try:
        trial = _try(*arguments)
    except Exception as error:
        trial = GpuTrial(error=f"{type(error).__name__}: {error}"[:300])
    write_answer(dataclasses.asdict(trial))
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1:])
