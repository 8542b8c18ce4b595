"""Choice of a loader's backend: the one that was requested, or the best one by evidence."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace

from gdsload.backends.mapped import MappedBackend
from gdsload.backends.registry import BACKENDS, IN_REACH, expected_host
from gdsload.backends.request import BackendRequest, OpenedBackend, Probing, probe_each
from gdsload.backends.tiers.registered import RegisteredTier
from gdsload.backends.tiers.tiered import Tiered
from gdsload.errors import BackendUnavailableError
from gdsload.shards.drive import LOCAL, Drive, one_of_each_drive
from gdsload.shards.files import Files
from gdsload.system.probe import CufileProbe, probe_cufile
from gdsload.system.probe.library import read_config
from gdsload.system.probe.tree import Tree
from gdsload.system.ram import memory_room

__all__ = [
    "choose",
    "default_register_bytes",
    "dma_is_possible",
    "expected",
    "preflight",
    "reads_in_place",
]

_SHARE_OF_MEMORY = 0.5


def preflight(
    request: BackendRequest, paths: Sequence[str], *, mapped: bool, drive: Drive = LOCAL, probe: Probing = probe_cufile
) -> CufileProbe | None:
    """Refuse a backend that was requested by name and cannot be used; nothing is opened.

    Args:
        request: the user's options.
        paths: one shard on each drive.
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
    return BACKENDS[name].check(request, paths, mapped, drive, probe)


def choose(request: BackendRequest, files: Files, *, probe: Probing = probe_cufile) -> OpenedBackend:
    """Open the backend for some shards.

    Raises:
        BackendUnavailableError: if the requested one cannot be used; no other one is ever used instead.
    """
    found = preflight(request, _trials(files), mapped=files.mapped, drive=files.drive, probe=probe)
    if request.placement == "host":
        return BACKENDS["host"].open(request, files, found)
    if request.backend == "auto":
        return _auto(request, files, probe)
    return BACKENDS[request.backend].open(request, files, found)


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
        return "host", expected_host(request)
    if request.backend == "auto":
        return "undecided", "that is decided when the first batch is asked for"
    return request.backend, "asked for by name"


def _auto(request: BackendRequest, files: Files, probe: Probing) -> OpenedBackend:
    cold, why = _cold(request, files, probe)
    refusal = MappedBackend.refusal(request.device, mapped=files.mapped)
    if refusal or not request.register_bytes:
        none = f"{why}; no page is registered: {refusal[0] if refusal else 'register_bytes is 0'}"
        return replace(cold, reason=lambda: none)
    tier = RegisteredTier(files, request.device, register_bytes=request.register_bytes, read_in=request.fill)
    backend = Tiered("auto", files, tier, cold.backend)
    return OpenedBackend(backend, f"mapped+{cold.name}", lambda: _account(tier, why), lambda: _shares(tier, cold))


def _account(tier: RegisteredTier, why: str) -> str:
    registered, shards = int(tier.ready.sum()), len(tier.ready)
    trouble = f" ({tier.trouble})" if tier.trouble else ""
    rest = f"; the others: {why}" if registered < shards else ""
    return f"{registered} of {shards} shards are resident and registered{trouble}{rest}"


def _shares(tier: RegisteredTier, cold: OpenedBackend) -> str:
    registered, shards = int(tier.ready.sum()), len(tier.ready)
    if registered == shards:
        return IN_REACH
    if not registered:
        return cold.answer()
    some = f"{registered} of {shards} shards can be gathered from the page cache by the GPU"
    return f"mapped+{cold.name}: {some}, the others are brought to it {cold.way}"


def _cold(request: BackendRequest, files: Files, probe: Probing) -> tuple[OpenedBackend, str]:
    """The backend that reads from the drive, and why it was chosen."""
    possible, why = dma_is_possible()
    if possible:
        found, path = probe_each(probe, _trials(files), request.device)
        of = f" of {path}" if path else ""
        why = f"a trial read{of} took the path {found.path}" if found.status == "ok" else f"cuFile{of}: {found.reason}"
        if found.proven:
            try:
                return BACKENDS["gds"].open(request, files, found), why
            except BackendUnavailableError as error:
                why = str(error)
    return BACKENDS["bounce"].open(request, files, None), why


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


def _trials(files: Files) -> list[str]:
    return [source.path for source in one_of_each_drive(files.sources, files.drive)] or ["."]


def default_register_bytes(tree: Tree | None = None) -> int:
    """Half of the machine's memory or of the control group's limit: registered pages cannot be reclaimed."""
    return int(_SHARE_OF_MEMORY * (memory_room(tree or Tree()) or 0))
