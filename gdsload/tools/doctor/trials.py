"""The answers of the trials: of the process that asks torch about the GPU, and of reads of a file at the path."""

from __future__ import annotations

import mmap
import os
from dataclasses import dataclass

_ALIGNED_BYTES = 4096
"""As fields in shards are aligned."""


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


@dataclass(frozen=True, slots=True)
class FileTrial:
    """The result of a direct read of a file.

    Attributes:
        file: the file; empty if there was none.
        direct: whether an O_DIRECT read of aligned bytes worked; None if it was not tried.
        direct_error: why it did not.
    """

    file: str = ""
    direct: bool | None = None
    direct_error: str = ""


def try_file(file: str) -> FileTrial:
    """Read a file with O_DIRECT; may wait as long as the file system does."""
    with mmap.mmap(-1, _ALIGNED_BYTES) as memory, memoryview(memory) as view:
        step = "open"
        try:
            fd = os.open(file, os.O_RDONLY | os.O_DIRECT | os.O_CLOEXEC)
            try:
                step = "read"
                os.preadv(fd, [view], 0)
            finally:
                os.close(fd)
        except OSError as error:
            return FileTrial(file, False, f"{step}: {error.strerror}")
    return FileTrial(file, True)
