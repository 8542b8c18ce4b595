"""Shards and safetensors files, taken apart and put together anew."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import torch

from gdsload.conversion.files import stamps
from gdsload.conversion.rows import BATCH_BYTES, row_parts, spans
from gdsload.conversion.source import Item, Part
from gdsload.dataset import ShardDataset
from gdsload.errors import FormatError
from gdsload.verify.rows import RowCheck

__all__ = ["SafetensorsSource"]


class SafetensorsSource:
    """Whatever `ShardDataset` can open: a dataset of shards, a folder of safetensors files, or one such file.

    Samples are compared with their checksums, where there are any, before they are read.

    Args:
        path: where it is.
    """

    kind = "safetensors files"
    threads = True

    def __init__(self, path: str) -> None:
        self.path = path

    def describe(self) -> dict[str, Any]:
        """See `Source.describe`."""
        dataset = ShardDataset(self.path)
        files = stamps(shard.file for shard in dataset.shards)
        return {"kind": self.kind, "files": files, "digest": dataset.digest}

    def parts(self, target_bytes: int) -> list[Part]:
        """See `Source.parts`."""
        dataset = ShardDataset(self.path)
        count = len(dataset)
        if not count:
            raise FormatError("there is not one sample", file=self.path)
        row_bytes = dataset.num_bytes // count
        step = max(target_bytes // max(row_bytes, 1), 1)
        return row_parts(count, step, row_bytes, prefix="samples")

    def read(self, part: Part) -> Iterator[Item]:
        """See `Source.read`."""
        dataset = ShardDataset(self.path)
        low, high = (int(edge) for edge in part.where)
        step = max(BATCH_BYTES // max(dataset.num_bytes // max(len(dataset), 1), 1), 1)
        check = RowCheck(dataset.sources, dataset.schema)
        for begin, end in spans(low, high, step):
            check(np.arange(begin, end))
            yield Item(f"samples {begin} to {end - 1}", partial(_batch, dataset, begin, end), end - begin)


def _batch(dataset: ShardDataset, begin: int, end: int) -> dict[str, Any]:
    samples = dataset.__getitems__(range(begin, end))
    found: dict[str, Any] = {}
    for name, field in dataset.schema.items():
        values = [sample[name] for sample in samples]
        if field.kind in ("str", "bytes"):
            found[name] = values
        elif field.ragged:  # as a pair: a list of tensors of one length would not say that it is ragged
            found[name] = torch.cat(values), np.cumsum([0, *map(len, values)])
        else:
            found[name] = torch.stack(values)
    return found
