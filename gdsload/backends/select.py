"""Choice of a loader's backend: the one that was requested, or the best one by evidence."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from gdsload.backends.mapped import MappedBackend
from gdsload.backends.probed import ProbedBackend
from gdsload.backends.registry import BACKENDS, IN_REACH, expected_host, row_of
from gdsload.backends.request import BackendRequest, BackendRow, OpenedBackend, Probing, probe_each
from gdsload.backends.tiers.registered import RegisteredTier
from gdsload.backends.tiers.tiered import Tiered
from gdsload.errors import BackendUnavailableError
from gdsload.shards.files import Files
from gdsload.system.pool import park_at_exit
from gdsload.system.probe import CufileProbe, probe_cufile
from gdsload.system.probe.library import read_config, wants_p2p
from gdsload.system.probe.tree import Tree


def preflight(
    request: BackendRequest, paths: Sequence[str], *, mapped: bool, probe: Probing = probe_cufile
) -> CufileProbe | None:
    """Refuse a backend that was requested by name and cannot be used; nothing is opened.

    `paths` has one shard on each drive. Returns the result of cuFile's probe, if one was needed.

    Raises:
        BackendUnavailableError: if the backend cannot be used.
    """
    if request.backend == "auto":
        return None
    row = row_of(request.backend)
    if row.needs_cuda and request.device.type != "cuda":
        raise BackendUnavailableError(
            f"backend {row.backend.name!r} needs a CUDA device, and the batches go to {str(request.device)!r}",
            remedy='Pass `device="cuda"`, or leave `backend=` out.',
        )
    return row.check(request, paths, mapped, probe)


def choose(request: BackendRequest, files: Files, *, probe: Probing = probe_cufile) -> OpenedBackend:
    """Open the backend for some shards.

    Raises:
        BackendUnavailableError: if the requested one cannot be used; no other one is ever used instead.
    """
    found = preflight(request, _trials(files), mapped=files.mapped, probe=probe)
    row = _row(request)
    return _auto(request, files, probe) if row is None else row.open(request, files, found)


def _row(request: BackendRequest) -> BackendRow | None:
    """The row of the backend that is opened; None where that is decided by evidence."""
    if request.placement == "host" and not isinstance(request.backend, BackendRow):
        return BACKENDS["host"]
    return None if request.backend == "auto" else row_of(request.backend)


def reads_in_place(request: BackendRequest, *, mapped: bool) -> bool:
    """Return whether the backend that `choose` will open gathers bytes from where they are."""
    row = _row(request)
    if row is BACKENDS["host"]:
        return mapped
    return Tiered.in_place if row is None else row.backend.in_place


def expected(request: BackendRequest) -> tuple[str, str]:
    """The name of the backend that `choose` will open, and why, as far as that is known beforehand."""
    row = _row(request)
    if row is BACKENDS["host"]:
        return "host", expected_host(request)
    if row is None:
        return "undecided", "that is decided when the first batch is asked for"
    return row.backend.name, "asked for by name"


def _auto(request: BackendRequest, files: Files, probe: Probing) -> OpenedBackend:
    cold = _cold(request, files, probe)
    refusal = MappedBackend.refusal(request.device, mapped=files.mapped)
    if refusal or not request.register_bytes:
        none = f"no page is registered: {refusal[0] if refusal else 'Memory(registered=0)'}"
        return replace(cold, reason=lambda: f"{cold.reason()}; {none}")
    if request.keep:
        files.kept[:] = _first_that_fit(files, request.register_bytes)
    tier = RegisteredTier(files, request.device, register_bytes=request.register_bytes, at_once=request.whole)
    backend = Tiered("auto", files, tier, cold.backend)
    return OpenedBackend(
        backend, lambda: f"mapped+{cold.name()}", lambda: _account(tier, cold.reason()), lambda: _shares(tier, cold)
    )


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
    return f"mapped+{cold.name()}: {some}, the others reach it {cold.way()}"


def _cold(request: BackendRequest, files: Files, probe: Probing) -> OpenedBackend:
    """The backend that reads from the drive: through pinned memory at once, and by DMA once that is proven."""
    bounce = BACKENDS["bounce"].open(request, files, None)
    possible, why = dma_is_possible()
    if not possible:
        return replace(bounce, reason=lambda: why)
    backend = ProbedBackend(files, bounce, lambda: _by_dma(request, files, probe))

    def now(name: str) -> Callable[[], str]:
        return lambda: str(getattr(backend.now, name)())

    return OpenedBackend(backend, now("name"), lambda: backend.why, now("answer"), now("way"))


def _by_dma(request: BackendRequest, files: Files, probe: Probing) -> tuple[OpenedBackend | None, str]:
    """The backend that reads by DMA, if a trial read of each drive did, and what came of those."""
    found, path = probe_each(probe, _trials(files), request.device)
    of = f" of {path}" if path else ""
    why = f"a trial read{of} took the path {found.path}" if found.status == "ok" else f"cuFile{of}: {found.reason}"
    if not found.proven:
        return None, why
    park_at_exit()  # what follows loads libraries
    try:
        return BACKENDS["gds"].open(request, files, found), why
    except BackendUnavailableError as error:
        return None, str(error)


def dma_is_possible(tree: Tree | None = None) -> tuple[bool, str]:
    """Return whether cuFile could read by DMA at all, so that a probe is worth making; and why not."""
    tree = tree or Tree()
    if tree.exists("/proc/driver/nvidia-fs"):
        return True, ""
    if wants_p2p(read_config(tree, os.environ), os.environ):
        return True, ""
    return False, "cuFile has no way to DMA here: nvidia-fs is not loaded, and P2PDMA is not switched on"


def _trials(files: Files) -> list[str]:
    return [files.sources[file].path for file in files.drives.firsts()]


def _first_that_fit(files: Files, nbytes: int) -> NDArray[np.bool_]:
    """The first shards, in order, that so many bytes have room for."""
    try:
        lengths = [source.length() for source in files.sources]
    except OSError:  # a missing one is reported where it is read
        return np.zeros(len(files.sources), bool)
    return np.cumsum(lengths) <= nbytes
