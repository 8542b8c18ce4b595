"""The backends by name, one row each, with what is known before one is opened."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from gdsload.backends.base import FileBackend
from gdsload.backends.bounce.bounce import BounceBackend
from gdsload.backends.gds.gds import GdsBackend
from gdsload.backends.host import HostBackend
from gdsload.backends.mapped import MappedBackend

__all__ = ["BACKENDS", "BACKEND_CHOICES", "BackendChoice", "BackendName", "BackendRow"]

BackendName = Literal["gds", "mapped", "bounce", "host"]
BackendChoice = Literal["auto", "gds", "mapped", "bounce", "host"]
"""What users may request: a backend by name, or automatic choice by evidence."""
BACKEND_CHOICES: tuple[BackendChoice, ...] = get_args(BackendChoice)


@dataclass(frozen=True, slots=True)
class BackendRow:
    """A backend.

    Attributes:
        backend: its class.
        needs_cuda: whether batches must go to a CUDA or ROCm GPU.
        summary: the path of bytes, in a few words.
    """

    backend: type[FileBackend]
    needs_cuda: bool
    summary: str


BACKENDS: dict[BackendName, BackendRow] = {
    "gds": BackendRow(GdsBackend, True, "drive to GPU by cuFile"),
    "mapped": BackendRow(MappedBackend, True, "page cache to GPU, registered with CUDA"),
    "bounce": BackendRow(BounceBackend, True, "drive or page cache to GPU through pinned memory"),
    "host": BackendRow(HostBackend, False, "into CPU memory, from where torch copies"),
}
