"""What a loader opens for its first batch: files, the backend, and what makes batches."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from gdsload.backends.base import Backend, BackendStatus
from gdsload.backends.select import BackendRequest, OpenedBackend, choose, default_register_bytes, expected, preflight
from gdsload.backends.tiers.tiered import Tiered
from gdsload.backends.tiers.vram import VramTier
from gdsload.engine.assemble import Assembler, BatchForm, BatchMaker
from gdsload.engine.gpu.assemble_device import DeviceAssembler
from gdsload.engine.groups import Limits
from gdsload.engine.transform import DeviceTransform
from gdsload.errors import BackendUnavailableError
from gdsload.loader.buffers import Buffers
from gdsload.loader.options import LoaderOptions, padding_of
from gdsload.loader.selection import Selected
from gdsload.loader.state import Place
from gdsload.shards.page_cache import bytes_in_memory
from gdsload.shards.shard_table import ShardTable
from gdsload.system.memory import BatchPool
from gdsload.system.units import format_bytes, parse_bytes

__all__ = ["Parts", "check_backend", "give_back", "last_steps", "moved", "moves", "open_parts"]

_SHARE_OF_VRAM = {"vram": 0.5, "auto": 0.25}
"""How much of the memory that is free when the loader opens a tier takes, by what was asked for."""
_log = logging.getLogger("gdsload")


@dataclass(frozen=True, slots=True, weakref_slot=True)
class Parts:
    """Everything that epochs share.

    Attributes:
        table: the samples.
        chosen: the backend, and why.
        maker: what makes batches.
    """

    table: ShardTable
    chosen: OpenedBackend
    maker: BatchMaker

    @property
    def backend(self) -> Backend:
        """The backend."""
        return self.chosen.backend

    def close(self) -> None:
        """Close and unmap the files, and give memory back; may be called again, if Ctrl-C struck in it."""
        give_back(self.backend, self.maker)


def give_back(backend: Backend, maker: BatchMaker) -> None:
    """`Parts.close`, for a loader that was dropped."""
    backend.close()
    maker.close()


def _request_of(options: LoaderOptions) -> BackendRequest:
    """What the user said of backends."""
    register = options.register_bytes
    return BackendRequest(
        options.backend,
        options.gds_engine,
        options.gds_compat,
        parse_bytes(options.pinned_bytes, "pinned_bytes"),
        default_register_bytes() if register is None else parse_bytes(register, "register_bytes"),
        fill=options.cache in ("pagecache", "auto"),
        read_threads=options.read_threads,
    )


def check_backend(selected: Selected, options: LoaderOptions, device: torch.device) -> BackendStatus:
    """What is known of the backend before it is opened.

    Raises:
        BackendUnavailableError: if the backend or the tier that was asked for cannot be used.
    """
    request, mapped = _request_of(options), selected.mapped(options.mmap)
    _refuse_cache(options, device, mapped=mapped)
    preflight(request, selected.datasets[0].path, device, mapped=mapped)
    return BackendStatus(request.backend, *expected(request, device), {})


def _refuse_cache(options: LoaderOptions, device: torch.device, *, mapped: bool) -> None:
    """Refuse a tier that was asked for by name and that there cannot be.

    Raises:
        BackendUnavailableError: if it cannot be used.
    """
    gathers = device.type == "cuda" and options.backend != "host"
    if options.cache == "vram" and not gathers:
        raise BackendUnavailableError(
            f'cache="vram" keeps samples where the GPU gathers them, and batches for {str(device)!r} are built in '
            "CPU memory",
            remedy='Pass device="cuda" without backend="host", or leave cache= out.',
        )
    if options.cache == "pagecache" and gathers and (not mapped or options.register_bytes == 0):
        what = "the shards are not mapped" if not mapped else "register_bytes is 0"
        raise BackendUnavailableError(
            f'cache="pagecache" registers mapped shards with CUDA, and {what}', remedy="Leave that option out."
        )


def open_parts(
    selected: Selected,
    shards: NDArray[np.int64] | None,
    fields: Sequence[str],
    options: LoaderOptions,
    limits: Limits,
    device: torch.device,
) -> Parts:
    """Open files and backend.

    Args:
        selected: the samples.
        shards: the numbers of the shards that they lie in; None if they are all.
        fields: the fields that are wanted.
        options: what the user has asked for.
        limits: what may be used.
        device: where batches go.

    Raises:
        BackendUnavailableError: if the backend that was asked for cannot be used.
    """
    schema = selected.datasets[0].schema
    sources = [source for dataset in selected.datasets for source in dataset.sources]
    counts = np.concatenate([dataset.counts for dataset in selected.datasets])
    names = np.cumsum(counts) - counts
    if shards is not None:
        sources, names = [sources[number] for number in shards.tolist()], names[shards]
    table = ShardTable.of(sources, schema, mapped=selected.mapped(options.mmap), names=names)
    request = _request_of(options)
    if options.register_bytes is None and device.type == "cuda":
        # Registering what is in memory whatever happens takes no more of it.
        request = replace(request, register_bytes=request.register_bytes + bytes_in_memory(sources))
    form = BatchForm(options.ragged, padding_of(options, schema, fields), "index" if options.with_index else None)
    opened = choose(request, table.files, device)
    try:
        chosen = _with_vram(opened, table, device, fields, options)
        if chosen.name == "host":
            pool = BatchPool(keep_bytes=limits.pool_bytes())
            return Parts(table, chosen, Assembler({name: schema[name] for name in fields}, pool, form))
        return Parts(table, chosen, _device_maker(table, fields, form, limits, request, chosen, device))
    except BaseException:  # also Ctrl-C: what is pinned must not go while it is
        opened.backend.close()
        raise


def _device_maker(
    table: ShardTable,
    fields: Sequence[str],
    form: BatchForm,
    limits: Limits,
    request: BackendRequest,
    chosen: OpenedBackend,
    device: torch.device,
) -> DeviceAssembler:
    """What makes batches on a GPU."""
    budget = (
        f"the loader's budget is {format_bytes(limits.prefetch_bytes)} of batches ahead (prefetch_bytes) and "
        f"{format_bytes(limits.arena_bytes)} of slots (arena_bytes)"
    )
    _log.info(
        "%s on %s: %s; pinned memory %s, registered files up to %s",
        chosen.name, device, budget, format_bytes(request.pinned_bytes), format_bytes(request.register_bytes),
    )  # fmt: skip
    wanted = {name: table.schema[name] for name in fields}
    return DeviceAssembler(
        wanted, device, form, on_host=table.files.in_mappings, pending_bytes=limits.prefetch_bytes, budget=budget
    )


def _with_vram(
    chosen: OpenedBackend, table: ShardTable, device: torch.device, fields: Sequence[str], options: LoaderOptions
) -> OpenedBackend:
    """The backend, behind the tier in VRAM if there is to be one."""
    if options.cache not in _SHARE_OF_VRAM or chosen.name == "host":
        return chosen
    if options.vram_bytes is None:
        budget = int(torch.cuda.mem_get_info(device)[0] * _SHARE_OF_VRAM[options.cache])
    else:
        budget = parse_bytes(options.vram_bytes, "vram_bytes")
    span = partial(table.span, names=fields)
    tier = VramTier(table.files, device, span=span, vram_bytes=budget)

    def account() -> str:
        trouble = f" ({tier.trouble})" if tier.trouble else ""
        return f"{int(tier.ready.sum())} of {len(tier.ready)} shards are in VRAM{trouble}; {chosen.reason()}"

    backend = Tiered(f"vram+{chosen.backend.name}", table.files, tier, chosen.backend)
    return OpenedBackend(backend, f"vram+{chosen.name}", account)


def moves(options: LoaderOptions, device: torch.device) -> bool:
    """Whether batches are built in CPU memory, and torch copies them to their device: not those that a GPU builds."""
    return device.type != "cpu" and (device.type != "cuda" or options.backend == "host")


def last_steps(
    options: LoaderOptions, device: torch.device, transform: DeviceTransform | None, buffers: Buffers | None
) -> Callable[[Any, Place, int], Any] | None:
    """What is done with each batch in the consumer's thread: to its device, what is left of transforms, buffers.

    It gets the batch, its place, and its number of samples. None if there is nothing to be done.
    """
    moving = moves(options, device)

    def finish(batch: Any, place: Place, size: int) -> Any:
        if moving:
            batch = {name: moved(value, device) if name != "index" else value for name, value in batch.items()}
            if transform is not None:
                batch = transform(place.epoch, place.step, batch)
        if options.transform is not None:
            batch = options.transform(batch)
        return batch if buffers is None else buffers(batch, size)

    return finish if moving or options.transform is not None or buffers is not None else None


def moved(value: Any, device: torch.device) -> Any:
    """A field of a host batch on the device; texts stay."""
    if isinstance(value, tuple):
        return tuple(part.to(device) for part in value)
    return value if isinstance(value, list) else value.to(device)
