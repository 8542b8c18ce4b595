"""The request for a backend, and the backend that is opened for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch

from gdsload.backends.base import Backend, FileBackend
from gdsload.backends.bounce.bounce import PINNED_BYTES
from gdsload.backends.names import BackendChoice
from gdsload.shards.files import Files
from gdsload.system.probe import CufileProbe

Placement = Literal["host", "gpu"]
"""Where batches are built: in CPU memory, or by the GPU in its own."""
Probing = Callable[[str, str], CufileProbe]
"""Probes cuFile with a file and a device."""

_CPU = torch.device("cpu")


def probe_each(probe: Probing, paths: Sequence[str], device: torch.device) -> tuple[CufileProbe, str | None]:
    """Probe cuFile with a file of each drive.

    Returns what came of the first that cannot be read, or else of the first that is not read by DMA, or else of the
    first; and its path if there are several drives. Nothing is asked about a dataset without shards.
    """
    found: list[tuple[CufileProbe, str | None]] = []
    for path in paths:
        one = probe(path, str(device))
        found.append((one, path if len(paths) > 1 else None))
        if one.status != "ok":
            break
    none = CufileProbe("skipped", "the dataset has no shards"), None
    return min(found, key=lambda pair: (pair[0].status == "ok", pair[0].proven, pair[0].batches), default=none)


@dataclass(frozen=True, slots=True)
class BackendRequest:
    """The user's options for backends.

    Attributes:
        backend: a backend's name or row, or ``"auto"``.
        device: where batches go.
        engine: the library that calls cuFile: ``"cufile"`` or ``"kvikio"``.
        allow_compat: whether `gds` by name may be cuFile's own compat mode, in which the CPU reads.
        pinned_bytes: bytes of the pinned ring.
        register_bytes: bytes of files that may be registered with CUDA.
        keep: whether the page cache keeps what was read for later epochs, within `register_bytes`.
        whole: shards that are read whole at once beside what batches want, if the page cache keeps them; 0: none.
        read_threads: threads that read; None for the backend's default.
        per_sample: whether samples are transformed one by one, in CPU memory, before they are batches.
    """

    backend: BackendChoice | BackendRow = "auto"
    device: torch.device = _CPU
    engine: str = "cufile"
    allow_compat: bool = False
    pinned_bytes: int = PINNED_BYTES
    register_bytes: int = 0
    keep: bool = False
    whole: int = 0
    per_sample: bool = False
    read_threads: int | None = None

    @property
    def placement(self) -> Placement:
        """The place where batches are built; decided here alone."""
        return "gpu" if self.device.type == "cuda" and self.backend != "host" else "host"

    @property
    def threads(self) -> dict[str, Any]:
        """Keywords of a backend's constructor for the number of threads."""
        return {} if self.read_threads is None else {"threads": self.read_threads}


@dataclass(frozen=True, slots=True)
class OpenedBackend:
    """A backend, and why it was chosen; all texts are as of now.

    Attributes:
        answer: the path that bytes take now, in one sentence.
        way: how bytes reach the GPU now, in a few words; empty for several ways, or none.
    """

    backend: Backend
    name: Callable[[], str]
    reason: Callable[[], str]
    answer: Callable[[], str] = str
    way: Callable[[], str] = str


def one_way(backend: Backend, name: str, reason: str, way: str) -> OpenedBackend:
    """A backend by which every byte reaches the GPU in one way."""
    return OpenedBackend(
        backend, lambda: name, lambda: reason, lambda: f"{name}: every byte reaches the GPU {way}", lambda: way
    )


Check = Callable[[BackendRequest, Sequence[str], bool, Probing], CufileProbe | None]
Open = Callable[[BackendRequest, Files, CufileProbe | None], OpenedBackend]


def _always(*_: object) -> None:
    """There is nothing to check."""


@dataclass(frozen=True, slots=True)
class BackendRow:
    """A backend. That of another library is passed to the loader as ``backend=BackendRow(...)``.

    Attributes:
        backend: its class.
        needs_cuda: whether batches must go to a CUDA or ROCm GPU.
        open: opens it for a request on some files, with the result of `check`.
        check: takes a request, the path of a shard on each drive, whether the shards are mapped, and what probes
            cuFile; returns the result of a probe, if one was needed, and raises
            `BackendUnavailableError` if the backend cannot be used. Nothing is opened.
    """

    backend: type[FileBackend]
    needs_cuda: bool
    open: Open
    check: Check = _always

    def __repr__(self) -> str:
        return self.backend.name
