"""Ranges for torch's profiler, and NVTX ranges for Nsight; off unless one of them runs."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch.autograd import profiler

_NSIGHT = ("NVTX_INJECTION64_PATH", "NSYS_PROFILING_SESSION_ID")
"""Environment variables that Nsight sets in the profiled process."""
_nvtx = any(name in os.environ for name in _NSIGHT)


def profiled() -> bool:
    """Return whether a profiler runs in any thread."""
    return _nvtx or bool(profiler._is_profiler_enabled)  # noqa: SLF001  (the public question is about this thread alone)


def span(name: str) -> AbstractContextManager[object]:
    """A range in this thread if a profiler runs, otherwise nothing."""
    return _ranges(name) if profiled() else nullcontext()


def in_span(name: str, work: Callable[[], object]) -> None:
    """Run `work` within a range."""
    with span(name):
        work()


@contextmanager
def _ranges(name: str) -> Iterator[None]:
    nvtx = torch.cuda.nvtx.range(name) if _nvtx else nullcontext()
    with profiler.record_function(name), nvtx:
        yield
