"""What a loader works out once: which fields, which order, which rank, which budgets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from gdsload.engine.limits import Limits, gatherers
from gdsload.engine.steps import Selection
from gdsload.engine.transform import DeviceTransform
from gdsload.errors import BudgetError, OptionError
from gdsload.loader.buffers import Buffers
from gdsload.loader.options import LoaderOptions, padding_of
from gdsload.loader.ranks import Schedules, world
from gdsload.loader.samplers import SampledSchedule
from gdsload.loader.selection import Selected
from gdsload.order import (
    DatasetFacts,
    MixOrder,
    Mixture,
    Order,
    OrderOptions,
    Purpose,
    Schedule,
    derive_key,
    make_order,
    resolve,
)
from gdsload.order.checks import check_whole
from gdsload.shards.format.schema import Schema
from gdsload.system.names import check_list
from gdsload.system.units import format_bytes, parse_bytes

__all__ = [
    "SampleSpace",
    "buffers",
    "device_transform",
    "field_names",
    "limits",
    "order_options",
    "positions",
]

IntArray = NDArray[np.int64]

_LEAST_GROUP_BYTES, _MOST_GROUP_BYTES = 24 * 2**20, 64 * 2**20
"""Of rows that lie scattered, in mapped shards; of others the least, as reads bring more than is wanted. 64 MiB are
about 8 ms of gathering by two threads. Each group costs more than 1 ms of Python, which a thread may have to wait for
in the other one, and longer where the system has taken the processor from whoever holds the interpreter lock. More
threads get smaller groups, so that by default `prefetch_bytes` have room for two of each; and a batch that is kept
holds the memory of its group."""
_GROUP_BYTES_IN_ORDER = 8 * 2**20
"""Rows in order are copied at the speed of memory, and need little planning: what counts is that batches under way stay
within a cache of some 32 MiB."""
_GROUP_BYTES_ON_GPU = 64 * 2**20
"""Little more than 1 ms at the speed of PCIe 5: asking a backend for a group costs up to 0.5 ms of Python while its
readers hold the interpreter lock in turn."""


def field_names(schema: Schema, options: LoaderOptions) -> tuple[str, ...]:
    """The fields that are read, in the schema's order.

    Raises:
        OptionError: if one does not exist, is called "index" beside the samples' indices, or cannot be padded as asked.
    """
    check_list("fields", options.fields)
    try:
        wanted = list(schema) if options.fields is None else list(options.fields)
    except TypeError:
        raise OptionError(f"fields is {options.fields!r}, which is no list of names") from None
    unknown = [name for name in wanted if not isinstance(name, str) or name not in schema]
    if unknown:
        raise OptionError(f"the dataset has no field {unknown[0]!r}", remedy=f"It has {', '.join(map(repr, schema))}.")
    if not wanted:
        raise OptionError("fields is empty", remedy="Name at least one field, or leave it out to read all.")
    if options.with_index and "index" in wanted:
        raise OptionError('with_index=True adds "index" to each batch, but the dataset has a field of that name')
    padding_of(options, schema, wanted)
    return tuple(name for name in schema if name in wanted)


def device_transform(
    options: LoaderOptions, schedules: Schedules, seed: int, device: torch.device
) -> DeviceTransform | None:
    """What calls the user's `device_transform`; None if there is none.

    Its random numbers depend on seed, epoch, and the position of the batch's first sample in the order that all ranks
    share; with a sampler, whose order is this rank's own, on step and rank.
    """
    if not options.device_transform:
        return None

    def key(epoch: int, step: int) -> int:
        schedule = schedules.newest
        sampled = isinstance(schedule, SampledSchedule)
        where = (step, world(options)[0]) if sampled else (schedule.span(step)[0],)
        return derive_key(seed, epoch, Purpose.TRANSFORM, *where)

    return DeviceTransform(options.device_transform, device, key)


def buffers(options: LoaderOptions, schema: Schema, fields: Sequence[str], schedule: Schedule) -> Buffers | None:
    """What batches are copied into; None if each has memory of its own.

    Raises:
        OptionError: if a field differs in shape from sample to sample.
    """
    if not options.reuse_buffers:
        return None
    for name in fields:
        if schema[name].ragged:
            raise OptionError(
                f"reuse_buffers=True needs fields of a fixed shape, but {name!r} is ragged or a text",
                remedy="Leave it out: fields=[...] names those to read.",
            )
    return Buffers(schedule.batch_size)


def mean_sample_bytes(selected: Selected, fields: Sequence[str]) -> float:
    """Bytes of an average sample, over the fields that are read; for ragged ones an estimate from file lengths."""
    schema = selected.datasets[0].schema
    fixed = sum(schema[name].row_bytes for name in fields if not schema[name].ragged)
    ragged = [name for name in schema if schema[name].ragged]
    chosen = [name for name in ragged if name in fields]
    samples = sum(len(dataset) for dataset in selected.datasets)
    if not chosen or not samples:
        return float(fixed)
    data = sum(dataset.num_bytes for dataset in selected.datasets) / samples - schema.fixed_bytes
    return fixed + max(data, 0.0) * len(chosen) / len(ragged)


def order_options(
    shuffle: bool | str, selected: Selected, fields: Sequence[str], options: LoaderOptions
) -> OrderOptions:
    """The order options: fixed by dataset and arguments alone."""
    for name in ("batch_sampler", "sampler"):
        if (sampler := getattr(options, name)) is not None:
            if selected.mixture is not None:
                raise OptionError(f"{name} cannot be used with a Mix", remedy="Pass a ConcatDataset, or no sampler.")
            return OrderOptions("sampler", 0, 0, 1, f"{name}={type(sampler).__name__}")
    mean = mean_sample_bytes(selected, fields)
    facts = DatasetFacts(len(selected), mean, int(mean * len(selected)))
    given = {name: getattr(options, name) for name in ("block", "window", "lanes")}
    # As plain ints: they go into the state, and numpy's cannot be written as JSON.
    numbers = {name: value if value is None else check_whole(value, name, 1) for name, value in given.items()}
    if selected.mixture is not None and shuffle is True:
        shuffle = "full"
    found = resolve(shuffle, facts, **numbers)
    if selected.mixture is not None and "block" in (shuffle, found.shuffle):
        raise OptionError(
            "a Mix cannot be shuffled in blocks: samples of all its datasets come in turn",
            remedy='Pass shuffle="full", or write one shuffled dataset with gdsload.convert.',
        )
    return found


@dataclass(frozen=True, slots=True)
class SampleSpace:
    """What an order's positions stand for.

    Attributes:
        runs: lengths of the runs of positions that lie in one shard each.
        selection: the samples behind them, whose ids count through the shards that they lie in.
        mixture: how they are mixed; None if each comes once.
        shards: the numbers of these shards; None if they are all.
    """

    runs: tuple[int, ...]
    selection: Selection
    mixture: Mixture | None = None
    shards: IntArray | None = None

    def order(self, options: OrderOptions, seed: int, epoch: int) -> Order:
        """The order of one epoch."""
        if self.mixture is not None:
            return MixOrder(self.mixture, shuffled=options.shuffle == "full", seed=seed, epoch=epoch)
        return make_order(options, self.runs, seed, epoch)


def positions(selected: Selected, order: OrderOptions) -> SampleSpace:
    """Lay the selected samples out as the positions that are shuffled."""
    counts = np.concatenate([dataset.counts for dataset in selected.datasets])
    if selected.ids is None:
        return SampleSpace(tuple(counts.tolist()), Selection(), selected.mixture)
    shards, ids = _needed(selected.ids, np.cumsum(counts))
    if order.shuffle != "block":
        return SampleSpace((len(ids),), Selection(ids), selected.mixture, shards)
    # A block is a run of neighbours on disk. The subset's own order does not matter, as it is shuffled anyway.
    index = np.argsort(selected.ids, kind="stable")
    edges = np.searchsorted(selected.ids[index], np.cumsum(counts))
    return SampleSpace(tuple(np.diff(edges, prepend=0).tolist()), Selection(ids[index], index), shards=shards)


def _needed(ids: IntArray, ends: IntArray) -> tuple[IntArray | None, IntArray]:
    """The shards that samples lie in, and their ids counted through these alone.

    What nobody wants is not opened then, nor registered or kept, and does not stand in the way of a GPU that could
    reach all that is wanted.

    Args:
        ids: the samples.
        ends: the first id behind each shard.
    """
    lie_in = np.searchsorted(ends, ids, side="right")
    wanted = np.bincount(lie_in, minlength=len(ends)) > 0
    if not len(ids) or wanted.all():
        return None, ids
    left_out = np.where(wanted, 0, np.diff(ends, prepend=0))
    return np.flatnonzero(wanted), ids - np.cumsum(left_out)[lie_in]


def limits(
    selected: Selected,
    fields: Sequence[str],
    options: LoaderOptions,
    order: OrderOptions,
    device: torch.device,
    schedule: Schedule,
) -> Limits:
    """The pipeline's limits.

    Raises:
        BudgetError: if the windows that must be in memory at once do not fit `arena_bytes`.
    """
    mean = mean_sample_bytes(selected, fields)
    batch_bytes = max(int(mean * schedule.batch_size), 1)
    # A window ends with its lane.
    window_bytes = int(mean * min(order.window, -(-schedule.samples // order.lanes)))
    arena_bytes = parse_bytes(options.arena_bytes, "arena_bytes")
    # A slice of the global batch meets its own share of the lanes, and one more where it begins inside a lane.
    lanes = min(order.lanes, -(-order.lanes // schedule.world_size) + 1)
    in_place = selected.mapped(options.mmap) and (device.type != "cuda" or options.backend in ("mapped", "host"))
    if not in_place and order.window and (lanes + 1) * window_bytes > arena_bytes:
        raise BudgetError(
            f"arena_bytes is {format_bytes(arena_bytes)}, but {lanes} lanes and one window read ahead, of "
            f"{format_bytes(window_bytes)} each, need {format_bytes((lanes + 1) * window_bytes)}",
            remedy=f"Raise arena_bytes, or lower lanes (here {order.lanes}) or window (here {order.window} samples).",
        )
    prefetch_bytes = parse_bytes(options.prefetch_bytes, "prefetch_bytes")
    if device.type == "cuda" and options.backend != "host":
        group_bytes = _GROUP_BYTES_ON_GPU
    elif order.shuffle == "sequential":
        group_bytes = _GROUP_BYTES_IN_ORDER
    elif not in_place:
        group_bytes = _LEAST_GROUP_BYTES
    else:
        group_bytes = max(_LEAST_GROUP_BYTES, min(prefetch_bytes // (2 * gatherers()), _MOST_GROUP_BYTES))
    sample_bytes = 0 if options.batch_sampler is None else int(mean)
    return Limits(prefetch_bytes, arena_bytes, group_bytes, batch_bytes, window_bytes, sample_bytes)
