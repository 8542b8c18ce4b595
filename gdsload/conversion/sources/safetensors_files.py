"""Shards and safetensors files as a source: whole datasets, some one after the other, or a choice of their samples."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from functools import partial
from itertools import pairwise
from typing import Any, Unpack

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import ConcatDataset

from gdsload.conversion.input_files import FileOptions, SourceFiles, stamps
from gdsload.conversion.row_source import BATCH_BYTES, row_parts, spans
from gdsload.conversion.source import ExactParts, Item, Part
from gdsload.errors import FormatError
from gdsload.loader.dataset import ShardDataset
from gdsload.loader.selection import select
from gdsload.shards.catalog import SHARD_SUFFIX
from gdsload.shards.format.index import INDEX_NAME
from gdsload.shards.verify.row_checksums import RowCheck
from gdsload.system.arrays import array_of

IntArray = NDArray[np.int64]


class SelectionSource(ExactParts):
    """A source made of a `ShardDataset`, or of `Subset` and `ConcatDataset` over some.

    Parts end where one `ShardWriter` would begin the next shard, so that the result is the same as its own.

    Args:
        dataset: the samples. It is quick where neighbours in it are neighbours in their shards.
        name: a name for them, for errors.

    Raises:
        OptionError: if the datasets have different fields.
    """

    kind = "shards"
    threads = True
    rearranges = True
    """True if it is datasets that are only put together again, so that nothing is to be added to their metadata."""

    def __init__(self, dataset: object, name: str) -> None:
        selected = select(dataset)
        self.datasets, self._name = selected.datasets, name
        self._ids = None if selected.ids is None else array_of(selected.ids)
        self.schema = self.datasets[0].schema
        self._count = len(selected)

    def describe(self) -> dict[str, Any]:
        ids = None if self._ids is None else hashlib.sha256(self._ids.data).hexdigest()
        return {"kind": self.kind, "datasets": [dataset.digest for dataset in self.datasets], "ids": ids}

    def metadata_parts(self) -> list[tuple[str, dict[str, Any]]]:
        """Path and metadata of each dataset."""
        return [(dataset.path, dataset.metadata) for dataset in self.datasets]

    def parts(self, target_bytes: int) -> list[Part]:
        if not self._count:
            raise FormatError("there is not one sample", file=self._name)
        fixed = self.schema.fixed_bytes
        if not any(field.ragged for field in self.schema.values()):
            return row_parts(self._count, fixed, target_bytes, prefix="samples")
        for found, ids in self._runs(0, self._count):
            RowCheck(found.sources, found.stored)(ids, values=False)  # or a damaged length would decide where parts end
        ends = np.cumsum(np.concatenate([found.sample_bytes(ids) for found, ids in self._runs(0, self._count)]))
        parts, low, before = [], 0, 0
        while low < self._count:
            high = max(int(np.searchsorted(ends, before + target_bytes, side="right")), low + 1)
            after = int(ends[high - 1])
            parts.append(Part(f"samples {low} to {high - 1}", (low, high), high - low, after - before))
            low, before = high, after
        return parts

    def read(self, part: Part) -> Iterator[Item]:
        """See `Source.read`. Samples are compared with their checksums."""
        low, high = (int(edge) for edge in part.where)
        step = max(BATCH_BYTES * part.samples // max(part.nbytes, 1), 1)
        for dataset, ids in self._runs(low, high):
            check = RowCheck(dataset.sources, dataset.stored)
            for begin, end in spans(0, len(ids), step):
                check(ids[begin:end])  # not in the item, whose errors are its samples' own: damage stops everything
                key = f"samples {ids[begin]} to {ids[end - 1]} of {dataset.path}"
                yield Item(key, partial(dataset.read_batch, ids[begin:end]), end - begin)

    def _runs(self, low: int, high: int) -> Iterator[tuple[ShardDataset, IntArray]]:
        """The samples from `low` to `high` - 1 in runs of one dataset, by its own numbers."""
        ids = np.arange(low, high) if self._ids is None else self._ids[low:high]
        ends = np.cumsum([len(dataset) for dataset in self.datasets])
        which = np.searchsorted(ends, ids, side="right")
        edges = [0, *(np.flatnonzero(np.diff(which)) + 1).tolist(), len(ids)]
        for begin, end in pairwise(edges):
            dataset = self.datasets[which[begin]]
            yield dataset, ids[begin:end] - (int(ends[which[begin]]) - len(dataset))


class SafetensorsSource(SelectionSource):
    """Whatever `ShardDataset` can open: a dataset of shards, a folder of safetensors files, or one such file.

    Samples are compared with their checksums, where there are any, before they are read.

    Args:
        path: where it is.
        **files: `split` and `follow_links`, as all sources of files have them: see `SourceFiles`. Shards have none.
    """

    kind = "safetensors files"
    rearranges = False

    def __init__(self, path: str, **files: Unpack[FileOptions]) -> None:
        self.path = path
        self.files = SourceFiles(path, **files)
        datasets = list(map(ShardDataset, self._paths()))
        for other in datasets[1:]:
            if other.schema != datasets[0].schema:
                raise FormatError(
                    f"its fields are {other.schema}, but those of {datasets[0].path} are {datasets[0].schema}",
                    file=other.path,
                    remedy="Pass one split, `split='train'`, say; or convert each file by itself.",
                )
        super().__init__(ConcatDataset(datasets), path)

    def describe(self) -> dict[str, Any]:
        files = stamps(shard.file for dataset in self.datasets for shard in dataset.shards)
        return {"kind": self.kind, "files": files, "digests": [dataset.digest for dataset in self.datasets]}

    def _paths(self) -> list[str]:
        """The paths to open as datasets: the source's own, or those of the split's files."""
        if not os.path.isdir(self.path) or os.path.lexists(os.path.join(self.path, INDEX_NAME)):
            return self.files.chosen([self.path])
        files = self.files.find((SHARD_SUFFIX,), below=False)
        return [self.path] if self.files.split is None else files
