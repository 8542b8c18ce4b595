"""The result of a probe of cuFile."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Status = Literal["ok", "failed", "missing", "timeout", "crashed", "garbage", "skipped"]
PATHS = {"gds-nvfs": "nvfs_reads", "gds-p2p": "p2p_reads", "cufile-posix": "posix_reads"}
"""Our names for cuFile's paths, and where their reads are counted."""


@dataclass(frozen=True, slots=True)
class CufileProbe:
    """The way cuFile read one file of one file system into one GPU.

    Attributes:
        status: ``ok``, a read into GPU memory was made and its bytes are right, whichever path they took; ``failed``,
            cuFile or CUDA refused, see `reason`; ``missing``, there is no libcufile; ``timeout``, ``crashed`` and
            ``garbage``, how the probing process ended instead; ``skipped``, nothing was tried.
        reason: what happened, in words.
        stage: what was being done when it ended: ``start``, ``library``, ``cuda``, ``driver-open``, ``register``,
            ``read``, ``batch`` or ``done``.
        library: path of the libcufile that was loaded.
        version: its version as it gives it itself, for instance ``1.15.1``.
        error: the name of cuFile's error, for instance ``HANDLE_NOT_REGISTERED``.
        open_s: seconds that opening cuFile's driver took; None if it did not return.
        registered: whether the file's handle could be registered.
        read_bytes: bytes read into GPU memory, which were compared with what the file holds.
        gpu: name of the GPU read into.
        nvfs_reads: reads that cuFile counted as made through nvidia-fs.
        p2p_reads: the same for P2PDMA.
        posix_reads: the same for cuFile's compat mode; all three are None where the counters could not be read.
        batches: whether many reads were made by one call, and their bytes are right.
        log: the last lines of cuFile's own log.
        seconds: how long the probe took.
    """

    status: Status
    reason: str = ""
    stage: str = "start"
    library: str = ""
    version: str = ""
    error: str = ""
    open_s: float | None = None
    registered: bool = False
    read_bytes: int = 0
    gpu: str = ""
    nvfs_reads: int | None = None
    p2p_reads: int | None = None
    posix_reads: int | None = None
    batches: bool = False
    log: tuple[str, ...] = ()
    seconds: float = 0.0

    @property
    def proven(self) -> bool:
        """True if bytes went from the drive into GPU memory by DMA: cuFile's counters of it moved."""
        return self.status == "ok" and bool(self.nvfs_reads or self.p2p_reads)

    @property
    def path(self) -> str:
        """The path that the read took: ``gds-nvfs``, ``gds-p2p``, ``cufile-posix``, ``mixed`` or ``unknown``."""
        moved = [path for path, reads in PATHS.items() if getattr(self, reads)]
        return moved[0] if len(moved) == 1 else "mixed" if moved else "unknown"
