"""The plan of a loader, decided once: plain values, from the dataset and the options.

    plan_loader(dataset, options) -> LoaderPlan    looks at the dataset and at which devices there are; opens nothing
    open_resources(plan, limits) -> OpenResources  at the first batch

Only what depends on the moment is left open: the ranks, which are asked for when an epoch begins (the plan has the
rule), and the defaults of budgets that are shares of what is free when the resources are opened.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from gdsload.backends.checked import SAMPLED
from gdsload.backends.choices import requested
from gdsload.backends.request import BackendRequest, Placement
from gdsload.backends.select import preflight, reads_in_place
from gdsload.engine.assemble import BatchForm
from gdsload.errors import BackendUnavailableError, OptionError
from gdsload.kernels.launch import can_launch
from gdsload.loader.batch_fields import (
    batch_form,
    decoded_fields,
    decoded_sample_bytes,
    field_names,
    mean_sample_bytes,
    refuse_ragged,
)
from gdsload.loader.dataset import ShardDataset
from gdsload.loader.options import Options, default_budgets
from gdsload.loader.paths_and_devices import resolve_device
from gdsload.loader.rank_groups import RankGroups, refuse_unagreed
from gdsload.loader.ranks import ScheduleRule
from gdsload.loader.samplers.indices import IndexSource
from gdsload.loader.samplers.sampled import expected_batch, index_source
from gdsload.loader.selection import SampleSpace, Selected, sample_space, select
from gdsload.order import OrderOptions, ShuffleName, resolve
from gdsload.shards.drive_order import DriveOrder, file_system_of
from gdsload.shards.format.checksum import BLOCK_BYTES
from gdsload.system.streams import has_streams
from gdsload.system.units import counted, format_bytes
from gdsload.transforms import DecodeImage

_MOST_WIDENED = 4
"""Bytes that are read for each byte of a batch, at most, where reads are widened to what checksums are of."""


@dataclass(frozen=True, slots=True, eq=False)
class LoaderPlan:
    """All that is decided about a loader before its first batch.

    Attributes:
        options: what was asked for.
        dataset: what the user handed over; a dataset where that was a path.
        selected: the samples.
        space: the samples at the order's positions.
        schedule: what the steps of an epoch follow from.
        groups: the ranks that share samples out, if a mesh or process group was given.
        source: gives the indices of this rank's samples; None if the order does.
        seed: seed of the order, or beside a sampler of the random numbers of transforms; None if one is drawn.
        order: the order options.
        form: the form of a batch, of the fields that are read.
        mapped: whether shards are mapped into memory.
        backend: which backend is opened, with which budgets.
        registers_by_default: whether `backend.register_bytes` is still to be found out, when it is opened.
        in_vram: whether there is a tier in the GPU's memory.
        keeps_images: whether decoded images are kept for later epochs, where batches are built.
        prefetch_bytes: bytes of batches that may be ahead of the consumer.
        arena_bytes: bytes that reads may take in an arena.
        in_place: whether bytes are gathered from where they are, so that nothing lands in an arena.
        sample_bytes: expected bytes of a sample.
        batch_sample_bytes: expected bytes of a sample in a batch, where its images are decoded.
    """

    options: Options
    dataset: object
    selected: Selected
    space: SampleSpace
    schedule: ScheduleRule
    groups: RankGroups | None
    source: IndexSource | None
    seed: int | None
    order: OrderOptions
    form: BatchForm
    mapped: bool
    backend: BackendRequest
    registers_by_default: bool
    in_vram: bool
    keeps_images: bool
    prefetch_bytes: int
    arena_bytes: int
    in_place: bool
    sample_bytes: float
    batch_sample_bytes: float

    @property
    def device(self) -> torch.device:
        """The device that batches go to."""
        return self.backend.device

    @property
    def placement(self) -> Placement:
        """The place where batches are built."""
        return self.backend.placement

    @property
    def copies_ahead(self) -> bool:
        """True if batches, built in CPU memory, are copied to their device ahead of the consumer."""
        return self.placement == "host" and has_streams(self.device)

    @property
    def copies(self) -> bool:
        """True if the consumer's thread copies batches to their device."""
        return self.placement == "host" and self.device.type != "cpu" and not self.copies_ahead


def plan_loader(dataset: object, options: Options) -> LoaderPlan:
    """Decide what a loader does.

    Raises OptionError if an option cannot be used; BackendUnavailableError if the backend or the tier that was asked
    for cannot; DatasetNotFoundError and FormatError as of `ShardDataset`.
    """
    request, memory = _backend_request(options), options.memory
    prefetch_bytes, arena_bytes = default_budgets(request.placement, request.device)
    dataset = ShardDataset(dataset) if isinstance(dataset, str | os.PathLike) else dataset
    selected = select(dataset)
    selected.refuse_different_columns()
    mapped = all(dataset.mmap for dataset in selected.datasets) if options.mmap is None else options.mmap
    source = index_source(options, len(selected))
    fields = field_names(selected.schema, options)
    decode = decoded_fields(selected.schema, fields, options.decode)
    keeps_images = _keeps_images(options.cache, request, decode)
    in_vram = options.cache in ("vram", "auto") and request.placement == "gpu" and not keeps_images
    if options.reuse_buffers and options.sample_transform is None:
        refuse_ragged(selected.schema, fields, decode)
    order = _order_options(options, selected, fields)
    refuse_unagreed(options.order_seed, options.ranks)
    form = batch_form(selected, fields, options, decode)
    _refuse_verify(options, request, order, mean_sample_bytes(selected, fields), len(form.columns))
    preflight(request, _trials(selected), mapped=mapped)
    return LoaderPlan(
        options=options,
        dataset=dataset,
        selected=selected,
        space=sample_space(selected, order),
        schedule=_schedule_rule(options, selected, order, source),
        groups=options.ranks if isinstance(options.ranks, RankGroups) else None,
        source=source,
        seed=options.order_seed,
        order=order,
        form=form,
        mapped=mapped,
        backend=request,
        registers_by_default=memory.registered is None and request.placement == "gpu",
        in_vram=in_vram,
        keeps_images=keeps_images,
        prefetch_bytes=memory.nbytes("prefetch") or prefetch_bytes,
        arena_bytes=memory.nbytes("arena") or arena_bytes,
        in_place=reads_in_place(request, mapped=mapped) and not in_vram,
        sample_bytes=mean_sample_bytes(selected, fields),
        batch_sample_bytes=decoded_sample_bytes(selected, fields, decode),
    )


def _schedule_rule(
    options: Options, selected: Selected, order: OrderOptions, source: IndexSource | None
) -> ScheduleRule:
    ranks = options.ranks
    return ScheduleRule(
        len(selected) if selected.mixture is None else selected.mixture.samples,
        expected_batch(options.batch_sampler) or options.batch_size,
        options.last_batch,
        order.lanes,
        (ranks.rank, ranks.world_size) if isinstance(ranks, RankGroups) else ranks,
        sampled=source is not None,
        planned=source is not None and source.planned is not None,
    )


def _backend_request(options: Options) -> BackendRequest:
    asked, per_sample = requested(options.backend), options.sample_transform is not None
    request = replace(
        asked,
        backend="host" if per_sample else asked.backend,  # samples are transformed in CPU memory
        device=resolve_device(options.device),
        register_bytes=options.memory.nbytes("registered") or 0,
        per_sample=per_sample,
        keep=options.cache in ("pagecache", "auto"),
    )
    if options.cache == "vram" and request.placement == "host":
        raise BackendUnavailableError(
            f"`cache='vram'` keeps samples for a GPU that gathers them, but batches for {str(request.device)!r} are "
            "built in CPU memory",
            remedy="Pass `device='cuda'` without `backend='host'`, or leave `cache` out.",
        )
    return request


def _refuse_verify(
    options: Options, request: BackendRequest, order: OrderOptions, sample_bytes: float, columns: int
) -> None:
    """Raise OptionError if what is read cannot be compared with its checksums, or only by reading much more."""
    if options.verify.stored == "off":
        return
    if request.placement == "gpu" and not can_launch():
        raise OptionError(
            "is on, but the GPU can compare nothing: cupy is missing, or finds no CUDA",
            option="verify",
            remedy='Install cupy for your version of CUDA, or pass `backend="host"`.',
        )
    share = SAMPLED if options.verify.stored == "sample" else 1
    at_once, widened = sample_bytes * max(order.block, 1), BLOCK_BYTES * columns / share
    if order.shuffle != "sequential" and at_once + widened > _MOST_WIDENED * at_once:
        wanted = math.ceil(widened / (_MOST_WIDENED - 1) / max(sample_bytes, 1))
        raise OptionError(
            f"is on, but checksums are of {format_bytes(BLOCK_BYTES)} of a column, and {format_bytes(at_once)} of "
            f"{counted(columns, 'column')} are read at once: far more would have to be read",
            option="verify",
            remedy=f"Pass `shuffle=gdsload.BlockShuffle(block={wanted})`, or compare all bytes once, with "
            "`dataset.verify()`.",
        )


def _keeps_images(cache: str, request: BackendRequest, decode: Mapping[str, DecodeImage]) -> bool:
    """Return whether decoded images are kept for later epochs; OptionError if they were asked for, and none can be."""
    some = any(one.repeatable for one in decode.values())
    if cache != "ram":
        return some and cache in ("vram", "auto") and request.placement == "gpu"
    if request.placement == "gpu":
        raise OptionError(
            f"is 'ram', but batches for {str(request.device)!r} are built on the GPU, and decoded images kept there",
            option="cache",
            remedy="Pass `cache='vram'`.",
        )
    if not some:
        raise OptionError(
            "is 'ram', which keeps images that are decoded the same in every epoch, and there are none",
            option="cache",
            remedy="Pass `decode={'image': DecodeImage(crop='center')}`, and crop at random in `device_transform`. "
            "Shards are kept in memory by the page cache.",
        )
    return True


def _order_options(options: Options, selected: Selected, fields: Sequence[str]) -> OrderOptions:
    for name, sampler in (("batch_sampler", options.batch_sampler), ("sampler", options.sampler)):
        if sampler is not None:
            if selected.mixture is not None:
                raise OptionError(
                    "cannot be used with a Mix", option=name, remedy="Pass a ConcatDataset, or no sampler."
                )
            kind: ShuffleName = "sampler" if options.function is None else "function"
            return OrderOptions(kind, 0, 0, 1, f"{name}={getattr(sampler, '__name__', type(sampler).__name__)}")
    # Windows that overlap are read once each, but kept in memory once.
    alone = mean_sample_bytes(replace(selected, offsets=None), fields) * sum(map(len, selected.datasets))
    sample_bytes = mean_sample_bytes(selected, fields)
    total_bytes = int(min(sample_bytes * len(selected), alone))
    shuffle = "full" if selected.mixture is not None and options.shuffle is True else options.shuffle
    found = resolve(shuffle, len(selected), sample_bytes, total_bytes)
    if selected.mixture is not None and (shuffle == "block" or found.shuffle == "block"):
        raise OptionError(
            f"is {options.shuffle!r}, but a Mix cannot be shuffled in blocks: its datasets take turns",
            option="shuffle",
            remedy='Pass `shuffle="full"`, or write one shuffled dataset with gdsload.convert.',
        )
    return found


def _trials(selected: Selected) -> list[str]:
    """Paths to try reads on: a shard on each drive."""
    sources = [source for dataset in selected.datasets for source in dataset.sources]
    firsts = DriveOrder([file_system_of(source) for source in sources]).firsts()
    return [sources[file].path for file in firsts]
