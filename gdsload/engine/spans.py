"""Ranges for profilers in the loader's threads: for torch's, and by NVTX for Nsight; off unless one of them runs.

Torch's profiler is switched on for a thread, and its state cannot be asked for another one: so the consumer's thread
says whether one runs there.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch.autograd.profiler import record_function

_NSIGHT = ("NVTX_INJECTION64_PATH", "NSYS_PROFILING_SESSION_ID")
"""Variables that Nsight sets in the process that it looks at."""
_nvtx = any(name in os.environ for name in _NSIGHT)
_profiled = False


def follow(profiled: bool) -> None:
    """Note whether torch's profiler runs in the consumer's thread."""
    global _profiled  # noqa: PLW0603  (a profiler is a process's, and not a loader's)
    _profiled = profiled


def span(name: str) -> AbstractContextManager[object]:
    """A range of this thread, if a profiler runs."""
    return _ranges(name) if _profiled or _nvtx else nullcontext()


@contextmanager
def _ranges(name: str) -> Iterator[None]:
    with record_function(name), torch.cuda.nvtx.range(name) if _nvtx else nullcontext():
        yield
