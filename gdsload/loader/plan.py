"""The plan of a loader, decided once: plain values, from the dataset and the keywords.

    plan_loader(dataset, given) -> LoaderPlan      looks at the dataset and at which devices there are; opens nothing
    open_resources(plan, limits) -> OpenResources  at the first batch

Only what depends on the moment is left open: the ranks, which are asked for when an epoch begins (the plan has the
rule), and the defaults of budgets that are shares of what is free when the resources are opened.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from gdsload.backends.request import BackendRequest, Placement
from gdsload.backends.select import preflight, reads_in_place
from gdsload.engine.assemble import BatchForm
from gdsload.engine.sample_transform import PerSample
from gdsload.errors import BackendUnavailableError, OptionError
from gdsload.loader import options
from gdsload.loader.batch_fields import batch_form, check_padding, field_names, mean_sample_bytes, refuse_ragged
from gdsload.loader.dataset import ShardDataset
from gdsload.loader.decoded_fields import decoded_fields, decoded_sample_bytes
from gdsload.loader.rank_groups import RankGroups, rank_groups
from gdsload.loader.ranks import ScheduleRule
from gdsload.loader.samplers import IndexSource, expected_batch, index_source
from gdsload.loader.selection import SampleSpace, Selected, sample_space, select
from gdsload.order import DatasetFacts, OrderOptions, resolve
from gdsload.order.checks import check_whole
from gdsload.shards.drive_order import DriveOrder, file_system_of
from gdsload.system.streams import has_streams
from gdsload.transforms import DecodeImage

__all__ = ["LoaderPlan", "plan_loader"]


@dataclass(frozen=True, slots=True, eq=False)
class LoaderPlan:
    """Everything that a loader does, but for when it is done.

    Attributes:
        dataset: what the user handed over; a dataset where that was a path.
        selected: the samples.
        space: the samples at the order's positions.
        schedule: what the steps of an epoch follow from.
        groups: the ranks that share samples out, if a mesh or process group says so.
        with_real: whether each batch says which of its samples count.
        source: what gives the indices of samples; None if the order does.
        seed: seed of the order, or beside a sampler of the random numbers of transforms; None if one is drawn.
        order: the order options.
        fields: the fields that are read, in the schema's order.
        form: how a batch looks.
        per_sample: what is done to each sample before it is part of a batch; None: nothing.
        device_transform: what is done to batches on their device; none if empty.
        transform: what is done to them in the consumer's thread; None: nothing.
        ahead: whether batches are made ahead of the consumer; else its thread makes each when it asks for it.
        as_tuple: the fields that are handed out, as a tuple; none: batches are as they are.
        reuse_buffers: whether batches are copied into the same tensors.
        mapped: whether shards are mapped into memory.
        asked: the backend that was asked for; that of `backend`, but where samples are transformed one by one.
        backend: which backend is opened, with which budgets.
        registers_by_default: whether `backend.register_bytes` is still to be found out, when it is opened.
        cache: where samples are kept for later epochs: the option.
        in_vram: whether there is a tier in the GPU's memory.
        vram_bytes: bytes of that tier, or of decoded images there; None: a share of what is free when it is made.
        keeps_images: whether decoded images are kept for later epochs, where batches are built.
        ram_bytes: bytes of them in the host's memory; None: a share of what there is.
        prefetch_bytes: bytes of batches that may be ahead of the consumer.
        arena_bytes: bytes that reads may take in an arena.
        in_place: whether bytes are gathered from where they are, so that nothing lands in an arena.
        sample_bytes: expected bytes of a sample.
        batch_sample_bytes: expected bytes of a sample in a batch, where its images are decoded.
    """

    dataset: object
    selected: Selected
    space: SampleSpace
    schedule: ScheduleRule
    groups: RankGroups | None
    with_real: bool
    source: IndexSource | None
    seed: int | None
    order: OrderOptions
    fields: tuple[str, ...]
    form: BatchForm
    per_sample: PerSample | None
    device_transform: tuple[Callable[..., Any], ...]
    transform: Callable[..., Any] | None
    ahead: bool
    as_tuple: tuple[str, ...]
    reuse_buffers: bool
    mapped: bool
    asked: str
    backend: BackendRequest
    registers_by_default: bool
    cache: str
    in_vram: bool
    vram_bytes: int | None
    keeps_images: bool
    ram_bytes: int | None
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


def plan_loader(dataset: object, given: Mapping[str, Any]) -> LoaderPlan:
    """Decide what a loader does.

    Args:
        dataset: what its samples are in.
        given: its other keywords, all of them by name; see `gdsload.DataLoader`.

    Raises:
        OptionError: if one cannot be used.
        BackendUnavailableError: if the backend or the tier that was asked for cannot be used.
        DatasetNotFoundError, FormatError: see `ShardDataset`.
    """
    given = _checked(given)
    request = _backend_request(given)
    budgets = options.budgets(given, request.placement, request.device)
    dataset, selected = _selected(dataset)
    mapped = selected.mapped(given["mmap"])
    by_default = given["register_bytes"] is None and request.placement == "gpu"
    _refuse_cache(given["cache"], request)
    source = index_source(given, len(selected))
    fields = field_names(selected.schema, given)
    decode = decoded_fields(selected.schema, fields, given["decode"])
    tiers = _tiers(given, request, decode)
    if given["reuse_buffers"] and given["per_sample"] is None:
        refuse_ragged(selected.schema, fields, decode)
    sample_bytes = mean_sample_bytes(selected, fields)
    order = _order_options(given, selected, fields)
    groups = rank_groups(given)
    preflight(request, _trials(selected), mapped=mapped)
    return LoaderPlan(
        dataset=dataset,
        selected=selected,
        space=sample_space(selected, order),
        schedule=_schedule_rule(given, selected, order, source, groups),
        groups=groups,
        with_real=bool(given["with_real"]),
        source=source,
        seed=given["seed"],
        ahead=given["sample_workers"] != 0,
        order=order,
        fields=fields,
        form=batch_form(selected, fields, given, decode),
        **{name: given[name] for name in _AS_GIVEN},
        mapped=mapped,
        asked=str(given["backend"]),
        backend=request,
        registers_by_default=by_default,
        **tiers | budgets,
        in_place=reads_in_place(request, mapped=mapped) and not tiers["in_vram"],
        sample_bytes=sample_bytes,
        batch_sample_bytes=decoded_sample_bytes(selected, fields, decode),
    )


_AS_GIVEN = ("per_sample", "device_transform", "transform", "as_tuple", "reuse_buffers")


def _selected(dataset: object) -> tuple[object, Selected]:
    """A dataset, opened if it is a path, and its samples."""
    dataset = ShardDataset(dataset) if isinstance(dataset, str | os.PathLike) else dataset
    selected = select(dataset)
    selected.refuse_different_columns()
    return dataset, selected


def _batch_size(given: Mapping[str, Any]) -> int:
    """Samples of a batch, or about so many."""
    return expected_batch(given["batch_sampler"]) or int(given["batch_size"])


def _schedule_rule(
    given: Mapping[str, Any],
    selected: Selected,
    order: OrderOptions,
    source: IndexSource | None,
    groups: RankGroups | None,
) -> ScheduleRule:
    return ScheduleRule(
        selected.epoch_samples,
        _batch_size(given),
        given["tail"],
        order.lanes,
        options.share(given) if groups is None else (groups.rank, groups.world_size),
        sampled=source is not None,
        planned=source is not None and source.planned is not None,
    )


def _checked(given: Mapping[str, Any]) -> dict[str, Any]:
    """The keywords, checked as far as each can be by itself."""
    options.check_choices(given)
    check_padding(given)
    transform = given["transform"]
    if transform is not None and not callable(transform):
        raise OptionError(f"transform is {transform!r}, which cannot be called")
    tail = options.tail(given)
    return {
        **given,
        "batch_size": check_whole(given["batch_size"], "batch_size", 1),
        "shuffle": False if given["shuffle"] is None else given["shuffle"],
        "seed": options.seed_of(given),
        "tail": tail,
        "drop_last": tail == "drop",
        "device_transform": options.transforms(given, "device_transform"),
        "as_tuple": options.tuple_names(given),
        "per_sample": options.per_sample(given),
    }


def _backend_request(given: Mapping[str, Any]) -> BackendRequest:
    register = given["register_bytes"]
    return BackendRequest(
        given["backend"] if given["per_sample"] is None else "host",  # samples are transformed in CPU memory
        options.resolve_device(given["device"]),
        given["gds_engine"],
        given["gds_compat"],
        options.byte_count(given, "pinned_bytes", at_least=2**20),
        0 if register is None else options.byte_count(given, "register_bytes"),
        per_sample=given["per_sample"] is not None,
        keep=given["cache"] in ("pagecache", "auto"),
        read_threads=options.thread_count(given, "read_threads"),
    )


def _refuse_cache(cache: str, request: BackendRequest) -> None:
    """Refuse a tier that was asked for by name and that there cannot be.

    Raises:
        BackendUnavailableError: if it cannot be used.
    """
    if cache == "vram" and request.placement == "host":
        raise BackendUnavailableError(
            f'cache="vram" keeps samples where the GPU gathers them, and batches for {str(request.device)!r} are built '
            "in CPU memory",
            remedy='Pass device="cuda" without backend="host", or leave cache= out.',
        )


def _tiers(given: Mapping[str, Any], request: BackendRequest, decode: Mapping[str, DecodeImage]) -> dict[str, Any]:
    """The plan's attributes that say what is kept for later epochs."""
    cache, keeps_images = given["cache"], _keeps_images(given["cache"], request, decode)
    budgets = {
        name: None if given[name] is None else options.byte_count(given, name) for name in ("vram_bytes", "ram_bytes")
    }
    in_vram = cache in ("vram", "auto") and request.placement == "gpu" and not keeps_images
    return {"cache": cache, "keeps_images": keeps_images, "in_vram": in_vram, **budgets}


def _keeps_images(cache: str, request: BackendRequest, decode: Mapping[str, DecodeImage]) -> bool:
    """Return whether decoded images are kept for later epochs.

    Raises:
        OptionError: if they are to be, and none can.
    """
    some = any(one.repeatable for one in decode.values())
    if cache != "ram":
        return some and cache in ("vram", "auto") and request.placement == "gpu"
    if request.placement == "gpu":
        raise OptionError(
            f'cache="ram" keeps decoded images where batches are built, which for {str(request.device)!r} is the GPU',
            remedy='Pass cache="vram".',
        )
    if not some:
        raise OptionError(
            'cache="ram" keeps images that are decoded the same in every epoch, and there are none',
            remedy='Pass decode={"image": DecodeImage(...)} with crop="center" or "none", whose result a '
            "device_transform may crop at random. Shards are kept in memory by the page cache.",
        )
    return True


def _order_options(given: Mapping[str, Any], selected: Selected, fields: Sequence[str]) -> OrderOptions:
    """The order options: fixed by dataset and arguments alone."""
    for name in ("batch_sampler", "sampler"):
        if (sampler := given[name]) is not None:
            if selected.mixture is not None:
                raise OptionError(f"{name} cannot be used with a Mix", remedy="Pass a ConcatDataset, or no sampler.")
            return OrderOptions("sampler", 0, 0, 1, f"{name}={type(sampler).__name__}")
    # Windows that overlap are read once each, but kept in memory once.
    alone = mean_sample_bytes(replace(selected, offsets=None), fields) * sum(map(len, selected.datasets))
    sample_bytes = mean_sample_bytes(selected, fields)
    facts = DatasetFacts(len(selected), sample_bytes, int(min(sample_bytes * len(selected), alone)))
    shuffle, numbers = given["shuffle"], {name: given[name] for name in ("block", "window", "lanes")}
    # As plain ints: they go into the state, and numpy's cannot be written as JSON.
    numbers = {name: value if value is None else check_whole(value, name, 1) for name, value in numbers.items()}
    if selected.mixture is not None and shuffle is True:
        shuffle = "full"
    found = resolve(shuffle, facts, **numbers)
    if selected.mixture is not None and "block" in (shuffle, found.shuffle):
        raise OptionError(
            "a Mix cannot be shuffled in blocks: samples of all its datasets come in turn",
            remedy='Pass shuffle="full", or write one shuffled dataset with gdsload.convert.',
        )
    return found


def _trials(selected: Selected) -> list[str]:
    """Paths to try reads on: a shard on each drive."""
    sources = [source for dataset in selected.datasets for source in dataset.sources]
    firsts = DriveOrder([file_system_of(source) for source in sources]).firsts()
    return [sources[file].path for file in firsts] or [selected.datasets[0].path]
