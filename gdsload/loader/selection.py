"""The samples that a loader may be given: a dataset, a path, or torch's subsets and concatenations of datasets.

They are addressed by the positions of an order.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import cast

import numpy as np
from torch.utils.data import ConcatDataset, Subset

from gdsload.engine.clips import Offsets
from gdsload.errors import OptionError
from gdsload.loader.dataset import ShardDataset
from gdsload.loader.mix import Mix
from gdsload.loader.paths_and_devices import SEVERAL
from gdsload.loader.state import dataset_digest
from gdsload.loader.windows import Windows, offset_bounds, refuse_ragged_windows
from gdsload.order import MixOrder, Mixture, Order, OrderOptions, make_order
from gdsload.shards.format.schema import Schema
from gdsload.shards.format.stored import StoredSchema
from gdsload.system.arrays import IntArray, Numbers, array_of, taken


@dataclass(frozen=True, slots=True)
class Selected:
    """Samples of shard datasets, in the order in which the user's dataset has them.

    Attributes:
        datasets: the datasets; sample ids count through them one after the other.
        ids: the sample id for each of the user's indices, of a window that of its first; None where they are the same.
        mixture: how parts of them are mixed; None if they are not.
        offsets: of windows, where the samples of each field are, counted from the window's own; None: no windows.
    """

    datasets: tuple[ShardDataset, ...]
    ids: Numbers | None
    mixture: Mixture | None = None
    offsets: dict[str, Offsets] | None = None

    @property
    def schema(self) -> Schema:
        """The fields of a sample, the same in all datasets; those that windows have."""
        schema = self.datasets[0].schema
        return schema if self.offsets is None else Schema({name: schema[name] for name in self.offsets})

    @property
    def stored(self) -> StoredSchema:
        """The stored fields of the first dataset, and of all others that `refuse_different_columns` lets by."""
        return self.datasets[0].stored

    def refuse_different_columns(self) -> None:
        """Raise OptionError for datasets that store their fields in different columns, which cannot be read as one."""
        for dataset in self.datasets[1:]:
            if dataset.stored != self.stored:
                first, second = (list(map(list, found.packed)) or "none" for found in (self.stored, dataset.stored))
                raise OptionError(
                    f"the datasets at {self.datasets[0].path} and {dataset.path} store their fields differently: "
                    f"packed are {first!s:.200} in one, {second!s:.200} in the other",
                    remedy="Write one of them again as the other is, with `gdsload.reshard(..., pack_fields=[...])`.",
                )

    def refuse_ragged_windows(self, fields: Sequence[str]) -> None:
        """Raise OptionError if samples are in windows and one of the fields has samples of different shapes."""
        if self.offsets is not None:
            refuse_ragged_windows(self.datasets[0], fields)

    @property
    def digest(self) -> str:
        """The digest that names the samples and their order."""
        return dataset_digest([dataset.digest for dataset in self.datasets], self.ids, self.offsets)

    def lengths(self, field: str) -> IntArray:
        """Rows that each sample has of a ragged field; see `ShardDataset.lengths`."""
        self.refuse_ragged_windows([field])
        found = np.concatenate([dataset.lengths(field).numpy() for dataset in self.datasets])
        return found if self.ids is None else found[array_of(self.ids)]

    def __len__(self) -> int:
        return sum(len(dataset) for dataset in self.datasets) if self.ids is None else len(self.ids)


def select(source: object) -> Selected:
    """Take a dataset apart: a `ShardDataset`, a path, or torch's `Subset` and `ConcatDataset` over them, or a `Mix`.

    They may be nested, and over `Windows` with the same offsets. Raises OptionError if it is anything else, or the
    datasets have different fields, windows other offsets, or their files are opened in different ways.
    """
    if isinstance(source, Mix):
        return replace(select(ConcatDataset(source.datasets)), mixture=source.mixture)
    if isinstance(source, str | os.PathLike):
        source = ShardDataset(source)
    leaves: list[ShardDataset] = []
    shapes: list[dict[str, Offsets] | None] = []
    _collect(source, leaves, shapes)
    order = list({id(dataset): dataset for dataset in leaves}.values())
    for dataset in order[1:]:
        if dataset.schema != order[0].schema:
            raise OptionError(
                f"the datasets at {order[0].path} and {dataset.path} have different fields: "
                f"{order[0].schema}; and {dataset.schema}",
                remedy="Convert one of them, so that both have the same fields, types and shapes.",
            )
        if dataset.open_files != order[0].open_files:
            raise OptionError(
                f"the datasets at {order[0].path} and {dataset.path} open their files in different ways: "
                f"{order[0].open_files} and {dataset.open_files}",
                remedy="Make a loader for each.",
            )
    if any(offsets != shapes[0] for offsets in shapes):
        raise OptionError(
            "of the parts of the dataset some are windows, and some are not, or of another length or other offsets",
            remedy="Make a loader for each.",
        )
    offsets = shapes[0] if shapes else None
    if isinstance(source, ShardDataset) or (len(leaves) == len(order) and not _has_subset(source)):
        # Without a table of ids, the number of samples has no limit.
        return Selected(tuple(order), None)
    starts, position = {}, 0
    for dataset in order:
        starts[id(dataset)] = position
        position += len(dataset)
    ids = _ids(source, starts, {})
    same = offsets is None and len(ids) == position and bool((array_of(ids) == np.arange(position)).all())
    return Selected(tuple(order), None if same else ids, offsets=offsets)


def _changes_samples(kind: type[ShardDataset]) -> bool:
    """Return whether a subclass has samples that differ from its shards', which a loader would not see."""
    return any(
        getattr(kind, name) is not getattr(ShardDataset, name) for name in ("__len__", "__getitem__", "__getitems__")
    )


def _has_subset(source: object) -> bool:
    return isinstance(source, Subset | Windows) or (
        isinstance(source, ConcatDataset) and any(_has_subset(part) for part in source.datasets)
    )


def _collect(source: object, found: list[ShardDataset], shapes: list[dict[str, Offsets] | None]) -> None:
    """Add the datasets that a source is made of, and the offsets of its windows; None for single samples."""
    if isinstance(source, ShardDataset) and not _changes_samples(type(source)):
        found.append(source)
        shapes.append(None)
    elif type(source) is Windows:
        found.append(source.dataset)
        shapes.append(source.offsets)
    elif type(source) is Subset:
        _collect(source.dataset, found, shapes)
    elif type(source) is ConcatDataset:
        for part in source.datasets:
            _collect(part, found, shapes)
    elif isinstance(source, Mix):
        raise OptionError("a Mix is a part of another dataset", remedy="Hand the Mix itself to the loader.")
    elif isinstance(source, list | tuple) and all(isinstance(one, str | os.PathLike | ShardDataset) for one in source):
        raise OptionError(f"a loader reads one dataset, not a {type(source).__name__} of them", remedy=SEVERAL)
    else:
        raise OptionError(
            f"gdsload cannot read a {type(source).__module__}.{type(source).__qualname__} from its shards",
            remedy="Convert it once, with `gdsload.convert(dataset, folder)`, then load the shards. Changes of each "
            "sample go into `sample_transform`. torch's Subset, random_split and ConcatDataset over a ShardDataset are "
            "read as they are.",
        )


def _ids(source: object, starts: dict[int, int], known: dict[int, Numbers]) -> Numbers:
    """The sample id for each index of `source`; `starts` has the first id of each dataset of shards, by its identity.

    `known` has what has been found by now, by identity: many subsets may be of one dataset.
    """
    if (found := known.get(id(source))) is None:
        found = known[id(source)] = _new_ids(source, starts, known)
    return found


def _new_ids(source: object, starts: dict[int, int], known: dict[int, Numbers]) -> Numbers:
    if isinstance(source, Subset):
        inner = _ids(source.dataset, starts, known)
        try:
            index = np.asarray(source.indices)
        except ValueError:  # lists of different lengths
            index = np.asarray(source.indices, dtype=object)
        # A mask's nonzero() has a second dimension of 1, which torch's own indexing takes for a vector, too.
        if index.ndim != 1 and index.shape[1:] != (1,):
            raise OptionError(
                f"the indices of a Subset are an array of shape {index.shape}",
                remedy="Pass a vector, as `indices.reshape(-1)` is one.",
            )
        if len(index) and index.dtype.kind not in "iu":
            raise OptionError(f"the indices of a Subset are {index.dtype}, no whole numbers")
        # Before they are int64, which would wrap large ones round to other samples.
        if len(index) and (index.min() < -len(inner) or index.max() >= len(inner)):
            raise OptionError(
                f"a Subset has indices {index.min()} to {index.max()}, but its dataset {len(inner)} samples"
            )
        places = index.astype(np.int64).reshape(-1)
        return taken(inner, np.where(places < 0, places + len(inner), places))
    if isinstance(source, ConcatDataset):
        return np.concatenate([array_of(_ids(part, starts, known)) for part in source.datasets])
    if isinstance(source, Windows):
        return source.ids(starts[id(source.dataset)])
    start = starts[id(source)]
    return range(start, start + len(cast("ShardDataset", source)))


@dataclass(frozen=True, slots=True)
class SampleSpace:
    """The samples at an order's positions.

    Attributes:
        runs: lengths of the runs of positions that are in one shard each.
        ids: the sample id at each position, counted through the shards that contain samples; None where they are the
            same.
        index: the user's index of the sample at each position; None where it is the position.
        mixture: how they are mixed; None if each comes once.
        shards: the numbers of these shards; None if they are all.
    """

    runs: tuple[int, ...]
    ids: Numbers | None = None
    index: IntArray | None = None
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
        return SampleSpace(tuple(counts.tolist()), mixture=selected.mixture)
    shards, ids = _needed(selected.ids, np.cumsum(counts), offset_bounds((selected.offsets or {}).values()))
    if order.shuffle != "block":
        return SampleSpace((len(ids),), ids, None, selected.mixture, shards)
    # A block is a run of neighbours on disk. The subset's own order does not matter, as it is shuffled anyway.
    if isinstance(ids, range) and isinstance(selected.ids, range):  # in order already
        edges = np.clip(-((selected.ids.start - np.cumsum(counts)) // ids.step), 0, len(ids))
        index = None
    else:
        every = array_of(selected.ids)
        index = np.argsort(every, kind="stable")
        edges = np.searchsorted(every[index], np.cumsum(counts))
        ids = array_of(ids)[index]
    return SampleSpace(tuple(np.diff(edges, prepend=0).tolist()), ids, index, shards=shards)


def _needed(ids: Numbers, ends: IntArray, bounds: tuple[int, int]) -> tuple[IntArray | None, Numbers]:
    """The shards that contain samples, and the samples' ids counted through these alone.

    Other shards are not opened, registered or kept, and do not keep a GPU from gathering from all that are wanted.

    Args:
        ids: each sample, or of a window the one that its offsets count from; in a range, all between may be wanted.
        ends: the first id after each shard.
        bounds: the lowest and the highest offset of a window.
    """
    begins, stops = (array_of(ids[:1]), array_of(ids[-1:])) if isinstance(ids, range) else (ids, ids)
    first = np.searchsorted(ends, begins + bounds[0], side="right")
    last = np.searchsorted(ends, stops + bounds[1], side="right")
    covering = np.bincount(first, minlength=len(ends)) - np.bincount(last + 1, minlength=len(ends) + 1)[:-1]
    wanted = np.cumsum(covering) > 0
    if not len(ids) or wanted.all():
        return None, ids
    left_out = np.where(wanted, 0, np.diff(ends, prepend=0))
    before = np.cumsum(left_out)[first]
    if isinstance(ids, range):
        return np.flatnonzero(wanted), range(ids.start - int(before[0]), ids.stop - int(before[0]), ids.step)
    return np.flatnonzero(wanted), ids - before
