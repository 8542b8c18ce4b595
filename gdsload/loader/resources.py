"""The resources that a loader opens for its first batch: files, the backend, and the maker of batches."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from gdsload.backends.base import Backend, TierStatus
from gdsload.backends.checked import Checked
from gdsload.backends.keep import AT_ONCE, AT_ONCE_BESIDE_DECODING, default_register_bytes
from gdsload.backends.request import BackendRequest, OpenedBackend
from gdsload.backends.select import choose
from gdsload.backends.tiers.tiered import Tiered
from gdsload.backends.tiers.vram import VramTier
from gdsload.engine.assemble import Assembler, BatchMaker
from gdsload.engine.gpu.assemble_device import DeviceAssembler
from gdsload.engine.gpu.device_queue import DeviceQueue
from gdsload.engine.images.kept import Keep
from gdsload.engine.limits import Limits
from gdsload.loader.plan import LoaderPlan
from gdsload.shards.identity import ShardSource
from gdsload.shards.page_cache import bytes_in_memory
from gdsload.shards.shard_table import ShardTable
from gdsload.system.memory import BatchPool
from gdsload.system.share import local_ranks
from gdsload.system.units import format_bytes

_log = logging.getLogger("gdsload")
SHARE_OF_VRAM = {"vram": 0.5, "auto": 0.25}
"""The share of the memory that is free when the loader opens that a tier takes, by the option `cache`."""


@dataclass(frozen=True, slots=True, weakref_slot=True)
class OpenResources:
    """Everything that epochs share: the samples, the backend with the reason for it, and what makes batches."""

    table: ShardTable
    opened: OpenedBackend
    maker: BatchMaker

    @property
    def backend(self) -> Backend:
        """The backend."""
        return self.opened.backend

    def tiers(self) -> dict[str, TierStatus]:
        """The status of each tier that is kept for later epochs, by its name."""
        kept = self.maker.kept
        return self.backend.tiers() | ({} if kept is None else {"decoded": kept.tier()})


def open_resources(plan: LoaderPlan, limits: Limits) -> OpenResources:
    """Open files and backend; BackendUnavailableError if the backend that was asked for cannot be used."""
    datasets, shards = plan.selected.datasets, plan.space.shards
    sources = [source for dataset in datasets for source in dataset.sources]
    counts = np.concatenate([dataset.counts for dataset in datasets])
    names = np.cumsum(counts) - counts
    if shards is not None:
        sources, names = [sources[number] for number in shards.tolist()], names[shards]
    files = datasets[0].open_files(sources, mapped=plan.mapped)  # the same for all of them
    table = ShardTable(files, plan.selected.stored, names)
    request = _with_defaults(plan, sources)
    opened = choose(request, table.files)
    try:
        tiered = _with_vram(plan, table, opened)
        if (stored := plan.options.verify.stored) != "off":
            device = plan.device if plan.placement == "gpu" else None
            sample = (plan.seed or 0) if stored == "sample" else None
            checked = Checked(tiered.backend, table, list(plan.form.columns), names, device, sample)
            tiered = replace(tiered, backend=checked)
        return OpenResources(table, tiered, _batch_maker(plan, table, limits, request, tiered))
    except BaseException:  # also Ctrl-C: what is pinned must not go while it is
        opened.backend.close()
        raise


def _with_defaults(plan: LoaderPlan, sources: Sequence[ShardSource]) -> BackendRequest:
    """The request for a backend, with default budgets as shares of the memory that is free now."""
    request = plan.backend
    if request.keep and not _wants_most(plan, sources):
        request = replace(request, keep=False)
    elif request.keep:
        request = replace(request, whole=_read_whole(plan))
    if not plan.registers_by_default:
        return request
    # Registering what is in memory whatever happens takes no more of it.
    return replace(request, register_bytes=default_register_bytes() + bytes_in_memory(sources))


def _read_whole(plan: LoaderPlan) -> int:
    """Shards that are read whole at once, beside what batches want."""
    if not plan.form.decode:
        return AT_ONCE
    # Batches in order, or of blocks, make long reads themselves, and threads that read whole shards would take the
    # interpreter lock from those that make batches. The reads of a full shuffle are short.
    return 0 if plan.order.shuffle in ("sequential", "block") else AT_ONCE_BESIDE_DECODING


def _wants_most(plan: LoaderPlan, sources: Sequence[ShardSource]) -> bool:
    """Return whether an epoch wants half of the shards' bytes or more, so that they are worth reading whole."""
    try:
        return 2 * plan.sample_bytes * len(plan.selected) >= sum(source.length() for source in sources)
    except OSError:  # a missing one is reported where it is read
        return False


def _batch_maker(
    plan: LoaderPlan, table: ShardTable, limits: Limits, request: BackendRequest, opened: OpenedBackend
) -> BatchMaker:
    keep = _keep(plan, table)
    if plan.placement == "host" and not plan.copies_ahead:
        return Assembler(plan.form, BatchPool(keep_bytes=limits.pool_bytes()), keep)
    budget = (
        f"the loader's budget is {format_bytes(limits.prefetch_bytes)} of batches ahead (Memory.prefetch) and "
        f"{format_bytes(limits.arena_bytes)} of slots (Memory.arena)"
    )
    queue = DeviceQueue(plan.device, pending_bytes=limits.prefetch_bytes, budget=budget)
    if plan.placement == "host":
        copies = plan.options.sample_transform is None
        # The device's memory holds what is ahead: here are the groups that are being made and copied.
        pool = BatchPool(limits.prefetch_bytes, pinned=copies)
        return Assembler(plan.form, pool, keep, queue, copies=copies)
    _log.info(
        "%s on %s: %s; pinned memory %s, registered files up to %s",
        opened.name(), plan.device, budget, format_bytes(request.pinned_bytes), format_bytes(request.register_bytes),
    )  # fmt: skip
    return DeviceAssembler(plan.form, queue, on_host=table.files.in_mappings, keep=keep)


def _keep(plan: LoaderPlan, table: ShardTable) -> Keep | None:
    if not plan.keeps_images:
        return None
    if plan.placement == "gpu":
        return Keep(table.samples, _vram_bytes(plan))
    given = plan.options.memory.nbytes("ram")
    return Keep(table.samples, default_register_bytes() // local_ranks() if given is None else given)


def _vram_bytes(plan: LoaderPlan) -> int:
    if (given := plan.options.memory.nbytes("vram")) is not None:
        return given
    return int(torch.cuda.mem_get_info(plan.device)[0] * SHARE_OF_VRAM[plan.options.cache])


def _with_vram(plan: LoaderPlan, table: ShardTable, opened: OpenedBackend) -> OpenedBackend:
    """The backend, with a tier in VRAM before it if the plan has one."""
    if not plan.in_vram:
        return opened
    held = weakref.proxy(table)  # a loader that is dropped closes its backend when nothing holds the table any more

    def span(file: int) -> tuple[int, int]:
        found: tuple[int, int] = held.span(file, plan.form.columns)
        return found

    tier = VramTier(table.files, plan.device, span=span, vram_bytes=_vram_bytes(plan))
    backend = Tiered(f"vram+{opened.backend.name}", table.files, tier, opened.backend)

    def account() -> str:
        trouble = f" ({tier.trouble})" if tier.trouble else ""
        return f"{int(tier.ready.sum())} of {len(tier.ready)} shards are in VRAM{trouble}; {opened.reason()}"

    def answer() -> str:
        if tier.ready.all():
            return "vram: every byte of this dataset is in the GPU's memory"
        kept = f"{int(tier.ready.sum())} of {len(tier.ready)} shards are in the GPU's memory"
        return f"vram: {kept}; the rest: {opened.answer()}"

    return OpenedBackend(backend, lambda: f"vram+{opened.name()}", account, answer)
