"""Does cuFile read this file system into the GPU by DMA? Answered by its own counters, in a separate process.

    probe = probe_cufile("/data/shards/shard-00000.safetensors", "cuda:0")
    probe.proven      # True only if reads moved under nvidia-fs or P2PDMA
    probe.path        # "gds-nvfs", "gds-p2p", "cufile-posix", "mixed" or "unknown"

The asking process never loads libcufile, and never touches CUDA. `probe_cufile` asks once in a process for each drive
and device, `ask_cufile` each time.
"""

from __future__ import annotations

from gdsload.system.probe.probe import ask_cufile, probe_cufile
from gdsload.system.probe.result import CufileProbe

__all__ = ["CufileProbe", "ask_cufile", "probe_cufile"]
