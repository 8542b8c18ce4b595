"""Choice of a loader's backend: the one that was requested, or the best one by evidence."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch

from gdsload.backends.base import Backend
from gdsload.backends.bounce.bounce import PINNED_BYTES, BounceBackend
from gdsload.backends.gds.gds import GdsBackend
from gdsload.backends.host import HostBackend
from gdsload.backends.mapped import MappedBackend
from gdsload.backends.registry import BACKENDS, BackendChoice
from gdsload.backends.tiers.registered import RegisteredTier
from gdsload.backends.tiers.tiered import Tiered
from gdsload.errors import BackendUnavailableError
from gdsload.shards.drive import LOCAL, Drive
from gdsload.shards.files import Files
from gdsload.system.probe import CufileProbe, probe_cufile
from gdsload.system.probe.library import read_config
from gdsload.system.probe.tree import Tree
from gdsload.system.ram import memory_room

__all__ = [
    "BackendRequest",
    "OpenedBackend",
    "Placement",
    "choose",
    "default_register_bytes",
    "dma_is_possible",
    "expected",
    "preflight",
    "reads_in_place",
]

Placement = Literal["host", "gpu"]
"""Where batches are built: in CPU memory, or by the GPU in its own."""

_DOCTOR = "Run `gdsload doctor PATH`: it says what is missing."
_SHARE_OF_MEMORY = 0.5
_CPU = torch.device("cpu")
_IN_REACH = "mapped: every byte of this dataset can be gathered from the page cache by the GPU"
_BY_ITS_OWN = "by the drive's own engine"
_WAY = {"bounce": "through pinned host memory", "gds": "from the drive by DMA"}


@dataclass(frozen=True, slots=True)
class BackendRequest:
    """The user's options for backends.

    Attributes:
        backend: a backend's name, or ``"auto"``.
        device: where batches go.
        engine: the library that calls cuFile: ``"cufile"`` or ``"kvikio"``.
        allow_compat: whether `gds` by name may be cuFile's own compat mode, in which the CPU reads.
        pinned_bytes: bytes of the pinned ring.
        register_bytes: bytes of files that may be registered with CUDA.
        fill: whether shards are read into the page cache to be registered.
        read_threads: threads that read; None for the backend's default.
    """

    backend: BackendChoice = "auto"
    device: torch.device = _CPU
    engine: str = "cufile"
    allow_compat: bool = False
    pinned_bytes: int = PINNED_BYTES
    register_bytes: int = 0
    fill: bool = False
    read_threads: int | None = None

    @property
    def placement(self) -> Placement:
        """Where batches are built; decided here alone."""
        return "gpu" if self.device.type == "cuda" and self.backend != "host" else "host"

    @property
    def threads(self) -> dict[str, Any]:
        """Keywords of a backend's constructor for the number of threads."""
        return {} if self.read_threads is None else {"threads": self.read_threads}


@dataclass(frozen=True, slots=True)
class OpenedBackend:
    """A backend, and why it was chosen.

    Attributes:
        backend: the backend.
        name: its name.
        reason: the evidence for the choice, as of now.
        answer: the path that bytes take now, in one sentence.
    """

    backend: Backend
    name: str
    reason: Callable[[], str]
    answer: Callable[[], str] = str


Probing = Callable[[str, str], CufileProbe]


def preflight(
    request: BackendRequest, path: str, *, mapped: bool, drive: Drive = LOCAL, probe: Probing = probe_cufile
) -> CufileProbe | None:
    """Refuse a backend that was requested by name and cannot be used; nothing is opened.

    Args:
        request: the user's options.
        path: one of the shards.
        mapped: whether the shards are mapped.
        drive: where their samples are read from.
        probe: probes cuFile.

    Returns:
        The result of cuFile's probe, if one was needed.

    Raises:
        BackendUnavailableError: if the backend cannot be used.
    """
    name, device = request.backend, request.device
    if name == "auto" or not BACKENDS[name].needs_cuda:
        return None
    if device.type != "cuda":
        raise BackendUnavailableError(
            f"backend {name!r} needs a CUDA device, and the batches go to {str(device)!r}",
            remedy='Pass device="cuda", or leave backend= out.',
        )
    if name == "mapped" and (refusal := MappedBackend.refusal(device, mapped=mapped)):
        raise BackendUnavailableError(f"backend {name!r} cannot be used: {refusal[0]}", remedy=refusal[1])
    if name != "gds" or drive.engine is not None:
        return None
    found = probe(path, str(device))
    if found.status != "ok":
        raise BackendUnavailableError(f"cuFile cannot be used here: {found.reason}", remedy=_DOCTOR)
    if not found.proven and not request.allow_compat:
        raise BackendUnavailableError(
            f"cuFile works here, but not by DMA: a trial read took the path {found.path}, by cuFile's counters",
            remedy=f"{_DOCTOR} To use cuFile's own compat mode nevertheless, pass gds_compat=True.",
        )
    return found


def choose(request: BackendRequest, files: Files, *, probe: Probing = probe_cufile) -> OpenedBackend:
    """Open the backend for some shards.

    Raises:
        BackendUnavailableError: if the requested one cannot be used; no other one is ever used instead.
    """
    found = preflight(request, _trial(files), mapped=files.mapped, drive=files.drive, probe=probe)
    device = request.device
    if request.placement == "host":
        _, why = expected(request)
        return OpenedBackend(HostBackend(files, **request.threads), "host", lambda: why)
    if found is not None:
        reason = f"asked for by name; a trial read took the path {found.path}"
        way = _WAY["gds"] if found.proven else "by cuFile's compat mode, in which the CPU reads"
        backend = GdsBackend(files, device, engine=request.engine, register=found.proven, **request.threads)
        return OpenedBackend(backend, "gds", lambda: reason, lambda: _answer("gds", way))
    if request.backend == "gds":
        backend = GdsBackend(files, device, **request.threads)
        return OpenedBackend(backend, "gds", lambda: "asked for by name", lambda: _answer("gds", _BY_ITS_OWN))
    if request.backend == "mapped":
        mapped = MappedBackend(files, device, register_bytes=request.register_bytes)
        return OpenedBackend(mapped, "mapped", lambda: "asked for by name", lambda: _IN_REACH)
    if request.backend == "bounce":
        bounce = BounceBackend(files, device, pinned_bytes=request.pinned_bytes, **request.threads)
        return OpenedBackend(bounce, "bounce", lambda: "asked for by name", lambda: _answer("bounce"))
    return _auto(request, files, probe)


def reads_in_place(request: BackendRequest, *, mapped: bool) -> bool:
    """Whether the backend that `choose` will open gathers bytes from where they are.

    Args:
        request: the user's options.
        mapped: whether the shards are mapped.
    """
    if request.placement == "host":
        return mapped
    kind = Tiered if request.backend == "auto" else BACKENDS[request.backend].backend
    return kind.in_place


def expected(request: BackendRequest) -> tuple[str, str]:
    """The name of the backend that `choose` will open, and why, as far as that is known beforehand."""
    if request.placement == "host":
        where = "batches are built in CPU memory"
        return "host", where if request.device.type == "cpu" else f"{where}, and torch copies them to {request.device}"
    if request.backend == "auto":
        return "undecided", "that is decided when the first batch is asked for"
    return request.backend, "asked for by name"


def _auto(request: BackendRequest, files: Files, probe: Probing) -> OpenedBackend:
    cold, name, why = _cold(request, files, probe)
    refusal = MappedBackend.refusal(request.device, mapped=files.mapped)
    if refusal or not request.register_bytes:
        none = f"{why}; no page is registered: {refusal[0] if refusal else 'register_bytes is 0'}"
        return OpenedBackend(cold, name, lambda: none, lambda: _answer(name))
    tier = RegisteredTier(files, request.device, register_bytes=request.register_bytes, read_in=request.fill)
    backend = Tiered("auto", files, tier, cold)
    return OpenedBackend(backend, f"mapped+{name}", lambda: _account(tier, why), lambda: _shares(tier, name))


def _account(tier: RegisteredTier, why: str) -> str:
    registered, shards = int(tier.ready.sum()), len(tier.ready)
    trouble = f" ({tier.trouble})" if tier.trouble else ""
    rest = f"; the others: {why}" if registered < shards else ""
    return f"{registered} of {shards} shards are resident and registered{trouble}{rest}"


def _shares(tier: RegisteredTier, name: str) -> str:
    registered, shards = int(tier.ready.sum()), len(tier.ready)
    if registered == shards:
        return _IN_REACH
    if not registered:
        return _answer(name)
    some = f"{registered} of {shards} shards can be gathered from the page cache by the GPU"
    return f"mapped+{name}: {some}, the others are brought to it {_WAY[name]}"


def _answer(name: str, way: str | None = None) -> str:
    return f"{name}: every byte is brought to the GPU {way or _WAY[name]}"


def _cold(request: BackendRequest, files: Files, probe: Probing) -> tuple[Backend, str, str]:
    """The backend that reads from the drive, its name, and why it was chosen."""
    device = request.device
    possible, why = dma_is_possible()
    if possible:
        found = probe(_trial(files), str(device))
        why = f"a trial read took the path {found.path}" if found.status == "ok" else f"cuFile: {found.reason}"
        if found.proven:
            try:
                return GdsBackend(files, device, engine=request.engine, **request.threads), "gds", why
            except BackendUnavailableError as error:
                why = str(error)
    return BounceBackend(files, device, pinned_bytes=request.pinned_bytes, **request.threads), "bounce", why


def dma_is_possible(tree: Tree | None = None) -> tuple[bool, str]:
    """Whether cuFile could read by DMA at all, so that a probe is worth making; and why not."""
    tree = tree or Tree()
    if tree.exists("/proc/driver/nvidia-fs"):
        return True, ""
    config = read_config(tree, os.environ)
    switched = os.environ.get("CUFILE_USE_PCIP2PDMA", "").lower() in ("1", "true", "on", "yes")
    if switched or "use_pci_p2pdma" in (config.text or ""):
        return True, ""
    return False, "cuFile has no way to DMA here: nvidia-fs is not loaded, and P2PDMA is not switched on"


def _trial(files: Files) -> str:
    return files.sources[0].path if files.sources else "."


def default_register_bytes(tree: Tree | None = None) -> int:
    """Half of the machine's memory or of the control group's limit: registered pages cannot be reclaimed."""
    return int(_SHARE_OF_MEMORY * (memory_room(tree or Tree()) or 0))
