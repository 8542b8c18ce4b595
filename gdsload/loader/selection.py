"""What a user may hand to a loader: a dataset, a path, or torch's subsets and concatenations of datasets.

And what the positions of an order stand for then.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import cast

import numpy as np
from torch.utils.data import ConcatDataset, Subset

from gdsload.engine.steps import Selection
from gdsload.errors import OptionError
from gdsload.loader.dataset import ShardDataset
from gdsload.loader.mix import Mix
from gdsload.order import MixOrder, Mixture, Order, OrderOptions, make_order
from gdsload.shards.drive import Drive
from gdsload.shards.format.schema import Schema
from gdsload.shards.format.stored import StoredSchema
from gdsload.system.arrays import IntArray

__all__ = ["SampleSpace", "Selected", "sample_space", "select"]


@dataclass(frozen=True, slots=True)
class Selected:
    """Samples of shard datasets, in the order in which the user's dataset has them.

    Attributes:
        datasets: the datasets; sample ids count through them one after the other.
        ids: the sample id for each of the user's indices; None where they are the same.
        mixture: how parts of them are mixed; None if they are not.
    """

    datasets: tuple[ShardDataset, ...]
    ids: IntArray | None
    mixture: Mixture | None = None

    def mapped(self, wanted: bool | None) -> bool:
        """Whether the shards are mapped into memory: as wanted, or where that is None as the datasets were opened."""
        return all(dataset.mmap for dataset in self.datasets) if wanted is None else wanted

    @property
    def schema(self) -> Schema:
        """The fields of a sample, the same in all datasets."""
        return self.datasets[0].schema

    @property
    def stored(self) -> StoredSchema:
        """How the fields are stored in the first dataset, and in all others that `refuse_different_columns` lets by."""
        return self.datasets[0].stored

    def refuse_different_columns(self) -> None:
        """Refuse datasets that store their fields in different columns, which cannot be read as one.

        Raises:
            OptionError: if there are such.
        """
        for dataset in self.datasets[1:]:
            if dataset.stored != self.stored:
                first, second = (list(map(list, found.packed)) or "none" for found in (self.stored, dataset.stored))
                raise OptionError(
                    f"the datasets at {self.datasets[0].path} and {dataset.path} store their fields differently: "
                    f"packed are {first!s:.200} in one, {second!s:.200} in the other",
                    remedy="Write one of them anew as the other is, with gdsload.reshard(..., pack_fields=[...]).",
                )

    @property
    def drive(self) -> Drive:
        """What brings samples out of the shards, the same for all datasets."""
        return self.datasets[0].drive

    @property
    def epoch_samples(self) -> int:
        """Samples of an epoch of all ranks."""
        return len(self) if self.mixture is None else self.mixture.samples

    def __len__(self) -> int:
        return sum(len(dataset) for dataset in self.datasets) if self.ids is None else len(self.ids)


def select(source: object) -> Selected:
    """Take a dataset apart.

    Args:
        source: a `ShardDataset`, a path to one, or `torch.utils.data.Subset` (so also `random_split`) and
            `ConcatDataset` over them, nested as deep as you like; or a `Mix` of these.

    Raises:
        OptionError: if it is anything else, or the datasets have different fields or drives.
        DatasetNotFoundError: if there is nothing at the path.
        FormatError: if what is there is damaged.
    """
    if isinstance(source, Mix):
        return replace(select(ConcatDataset(source.datasets)), mixture=source.mixture)
    if isinstance(source, str | os.PathLike):
        source = ShardDataset(source)
    leaves: list[ShardDataset] = []
    _collect(source, leaves)
    order = list({id(dataset): dataset for dataset in leaves}.values())
    for dataset in order[1:]:
        if dataset.schema != order[0].schema:
            raise OptionError(
                f"the datasets at {order[0].path} and {dataset.path} have different fields: "
                f"{order[0].schema} and {dataset.schema}",
                remedy="Convert one of them, so that both have the same fields, types and shapes.",
            )
        if dataset.drive != order[0].drive:
            raise OptionError(
                f"the datasets at {order[0].path} and {dataset.path} are on different drives: "
                f"{order[0].drive} and {dataset.drive}",
                remedy="Make a loader for each.",
            )
    if isinstance(source, ShardDataset) or (len(leaves) == len(order) and not _has_subset(source)):
        # Without a table of ids, a dataset may be as large as it likes.
        return Selected(tuple(order), None)
    starts, position = {}, 0
    for dataset in order:
        starts[id(dataset)] = position
        position += len(dataset)
    ids = _ids(source, starts)
    same = len(ids) == position and bool((ids == np.arange(position)).all())
    return Selected(tuple(order), None if same else ids)


def _changes_samples(kind: type[ShardDataset]) -> bool:
    """Whether a subclass has samples of its own, which a loader that reads the shards would not see."""
    return any(
        getattr(kind, name) is not getattr(ShardDataset, name) for name in ("__len__", "__getitem__", "__getitems__")
    )


def _has_subset(source: object) -> bool:
    return isinstance(source, Subset) or (
        isinstance(source, ConcatDataset) and any(_has_subset(part) for part in source.datasets)
    )


def _collect(source: object, found: list[ShardDataset]) -> None:
    if isinstance(source, ShardDataset) and not _changes_samples(type(source)):
        found.append(source)
    elif type(source) is Subset:
        _collect(source.dataset, found)
    elif type(source) is ConcatDataset:
        for part in source.datasets:
            _collect(part, found)
    elif isinstance(source, Mix):
        raise OptionError("a Mix is a part of another dataset", remedy="Hand the Mix itself to the loader.")
    else:
        raise OptionError(
            f"gdsload cannot read a {type(source).__module__}.{type(source).__qualname__} from its shards",
            remedy="Convert it once, with gdsload.convert(dataset, folder), then load the shards. What a dataset of "
            "yours does to each sample can be done to batches, by transform=. "
            "torch's Subset, random_split and ConcatDataset over a ShardDataset are read as they are.",
        )


def _ids(source: object, starts: dict[int, int]) -> IntArray:
    """The sample id for each index of `source`."""
    if isinstance(source, Subset):
        inner = _ids(source.dataset, starts)
        try:
            index = np.asarray(source.indices)
        except ValueError:  # lists of different lengths
            index = np.asarray(source.indices, dtype=object)
        if len(index) and index.dtype.kind not in "iu":
            raise OptionError(f"the indices of a Subset are {index.dtype}, no whole numbers")
        index = index.astype(np.int64).reshape(-1)
        if len(index) and (index.min() < -len(inner) or index.max() >= len(inner)):
            raise OptionError(
                f"a Subset has indices {index.min()} to {index.max()}, but its dataset {len(inner)} samples"
            )
        return inner[index]
    if isinstance(source, ConcatDataset):
        return np.concatenate([_ids(part, starts) for part in source.datasets])
    start = starts[id(source)]
    return np.arange(start, start + len(cast("ShardDataset", source)))


@dataclass(frozen=True, slots=True)
class SampleSpace:
    """The samples at an order's positions.

    Attributes:
        runs: lengths of the runs of positions that are in one shard each.
        selection: their samples, whose ids count through the shards that contain them.
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


def sample_space(selected: Selected, order: OrderOptions) -> SampleSpace:
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
    """The shards that contain samples, and the samples' ids counted through these alone.

    What nobody wants is not opened then, nor registered or kept, and does not stand in the way of a GPU that could
    reach all that is wanted.

    Args:
        ids: the samples.
        ends: the first id after each shard.
    """
    lie_in = np.searchsorted(ends, ids, side="right")
    wanted = np.bincount(lie_in, minlength=len(ends)) > 0
    if not len(ids) or wanted.all():
        return None, ids
    left_out = np.where(wanted, 0, np.diff(ends, prepend=0))
    return np.flatnonzero(wanted), ids - np.cumsum(left_out)[lie_in]
