"""The answer of the process that asks torch about the GPU."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["GpuTrial"]


@dataclass(frozen=True, slots=True)
class GpuTrial:
    """A device as torch describes it, and the results of the trial on it.

    Attributes:
        kind: ``cuda``, ``hip``, another accelerator's name as torch has it, or empty for none.
        name: the device's name.
        address: its PCI address, such as ``0000:3b:00.0``, or empty.
        total_bytes: its memory.
        error: why it cannot be used, or empty.
        registered: whether a page of a file, mapped read-only, could be registered with CUDA; None if not tried.
        register_error: CUDA's error, where it could not.
        status: ``ok``, ``timeout``, ``crashed`` or ``skipped``: how the process that asked ended.
    """

    kind: str = ""
    name: str = ""
    address: str = ""
    total_bytes: int = 0
    error: str = ""
    registered: bool | None = None
    register_error: str = ""
    status: str = "ok"
