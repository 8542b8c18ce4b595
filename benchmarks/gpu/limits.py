"""The speed of the link and of the disk, without a loader."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch

from gdsload.system.streams import record, side_stream

__all__ = ["DirectReads", "PinnedCopies", "PlainReads"]

_COPY_BYTES = 2**28
_BLOCK_BYTES = 8 * 2**20
_THREADS = 12


class PinnedCopies:
    """P: pinned memory, copied to the GPU in pieces of 256 MiB. To the CPU, memory is copied to memory.

    Args:
        device: where to.
        nbytes: bytes of a piece.
    """

    def __init__(self, device: torch.device, nbytes: int = _COPY_BYTES) -> None:
        on_gpu = device.type == "cuda"
        self._source = torch.zeros(nbytes, dtype=torch.uint8, pin_memory=on_gpu)
        self._target = torch.zeros(nbytes, dtype=torch.uint8, device=device)
        self._stream = side_stream(device) if on_gpu else None

    def __iter__(self) -> Iterator[torch.Tensor]:
        """Copies without end, of which two are under way at a time."""
        before: Any = None
        while True:
            with torch.cuda.stream(self._stream) if self._stream else nullcontext():
                self._target.copy_(self._source, non_blocking=True)
            if self._stream:
                event = record(self._stream)
                if before:
                    before.synchronize()
                before = event
            yield self._target

    def run(self, nbytes: int) -> int:
        """Copy about so many bytes, and wait until they are there; returns how many."""
        count = max(nbytes // self._source.nbytes, 1)
        for _, _ in zip(range(count), self, strict=False):
            pass
        if self._stream:
            self._stream.synchronize()
        return count * self._source.nbytes


class PlainReads:
    """12 threads that read files in blocks of 8 MiB, each into its own memory, and do nothing else.

    Args:
        paths: the files.
        pinned: whether into pinned memory.
    """

    _flags = os.O_RDONLY

    def __init__(self, paths: Sequence[Path], *, pinned: bool) -> None:
        self._paths = paths
        # One page more: memory that is not pinned may begin anywhere, and O_DIRECT wants whole pages.
        memory = torch.zeros(_THREADS * _BLOCK_BYTES + 4096, dtype=torch.uint8, pin_memory=pinned)
        begin = -memory.data_ptr() % 4096
        self._memory = memoryview(memory.numpy().data)[begin : begin + _THREADS * _BLOCK_BYTES]

    def run(self) -> int:
        """Read everything once; returns the number of bytes."""
        self._local, self._free = threading.local(), deque(range(_THREADS))
        fds = [os.open(path, self._flags) for path in self._paths]
        try:
            jobs = [(fd, offset) for fd in fds for offset in range(0, os.fstat(fd).st_size, _BLOCK_BYTES)]
            with ThreadPoolExecutor(_THREADS) as threads:
                return sum(threads.map(self._read, jobs))
        finally:
            for fd in fds:
                os.close(fd)

    def _read(self, job: tuple[int, int]) -> int:
        if not hasattr(self._local, "block"):
            low = self._free.popleft() * _BLOCK_BYTES
            self._local.block = self._memory[low : low + _BLOCK_BYTES]
        return os.preadv(job[0], [self._local.block], job[1])


class DirectReads(PlainReads):
    """D: the same with O_DIRECT, so from the drive."""

    _flags = os.O_RDONLY | os.O_DIRECT
