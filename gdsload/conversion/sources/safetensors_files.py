"""Shards and safetensors files, taken apart and put together again."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import partial
from typing import Any, Unpack

import numpy as np
import torch

from gdsload.conversion.input_files import FileOptions, SourceFiles, stamps
from gdsload.conversion.row_source import BATCH_BYTES, filled, row_parts, spans
from gdsload.conversion.source import Item, Part
from gdsload.loader.dataset import ShardDataset
from gdsload.shards.catalog import SHARD_SUFFIX
from gdsload.shards.format.index import INDEX_NAME
from gdsload.shards.verify.row_checksums import RowCheck

__all__ = ["SafetensorsSource"]


class SafetensorsSource:
    """Whatever `ShardDataset` can open: a dataset of shards, a folder of safetensors files, or one such file.

    Samples are compared with their checksums, where there are any, before they are read.

    Args:
        path: where it is.
        **files: `split` and `follow_links`, as all sources of files have them: see `SourceFiles`. Shards have none.
    """

    kind = "safetensors files"
    threads = True

    def __init__(self, path: str, **files: Unpack[FileOptions]) -> None:
        self.path = path
        self.files = SourceFiles(path, **files)

    def describe(self) -> dict[str, Any]:
        """See `Source.describe`."""
        datasets = [ShardDataset(path) for path in self._paths()]
        files = stamps(shard.file for dataset in datasets for shard in dataset.shards)
        return {"kind": self.kind, "files": files, "digests": [dataset.digest for dataset in datasets]}

    def metadata_parts(self) -> list[tuple[str, dict[str, Any]]]:
        """Path and metadata of each dataset."""
        return [(path, ShardDataset(path).metadata) for path in self._paths()]

    def parts(self, target_bytes: int) -> list[Part]:
        """See `Source.parts`."""
        found: list[Part] = []
        for path in self._paths():
            dataset = ShardDataset(path)
            row_bytes = dataset.num_bytes // max(len(dataset), 1)
            step = max(target_bytes // max(row_bytes, 1), 1)
            found += row_parts(len(dataset), step, row_bytes, prefix="samples", where=(path,))
        return filled(found, "sample", self.path)

    def read(self, part: Part) -> Iterator[Item]:
        """See `Source.read`."""
        dataset = ShardDataset(str(part.where[0]))
        low, high = (int(edge) for edge in part.where[1:])
        step = max(BATCH_BYTES // max(dataset.num_bytes // max(len(dataset), 1), 1), 1)
        check = RowCheck(dataset.sources, dataset.stored)
        for begin, end in spans(low, high, step):
            check(np.arange(begin, end))
            yield Item(f"samples {begin} to {end - 1}", partial(_batch, dataset, begin, end), end - begin)

    def _paths(self) -> list[str]:
        """The paths to open as datasets: the source's own, or those of the split's files."""
        if not os.path.isdir(self.path) or os.path.lexists(os.path.join(self.path, INDEX_NAME)):
            return self.files.chosen([self.path])
        files = self.files.find((SHARD_SUFFIX,), below=False)
        return [self.path] if self.files.split is None else files


def _batch(dataset: ShardDataset, begin: int, end: int) -> dict[str, Any]:
    samples = dataset.__getitems__(range(begin, end))
    found: dict[str, Any] = {}
    for name, field in dataset.schema.items():
        values = [sample[name] for sample in samples]
        if field.is_string:
            found[name] = values
        elif field.ragged:  # as a pair: a list of tensors of one length would not say that it is ragged
            found[name] = torch.cat(values), np.cumsum([0, *map(len, values)])
        else:
            found[name] = torch.stack(values)
    return found
