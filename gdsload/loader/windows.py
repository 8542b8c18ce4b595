"""Windows of consecutive samples of a dataset, as samples: nothing is copied on disk."""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from gdsload.errors import OptionError, SampleIndexError
from gdsload.loader.dataset import ShardDataset
from gdsload.loader.indices import whole_numbers
from gdsload.order.checks import MAX_SAMPLES, check_whole
from gdsload.shards import reads
from gdsload.system.arrays import IntArray

__all__ = ["Windows", "refuse_ragged_windows", "window_starts"]


class Windows(torch.utils.data.Dataset[dict[str, Any]]):
    """Windows of a dataset's consecutive samples: time series, frames of an episode, tokens of one long text.

        windows = gdsload.Windows("shards/", length=16, stride=4, within="episode")
        loader = gdsload.DataLoader(windows, 32, shuffle=True)       # tensors [32, 16, *shape]

    Window w begins with sample ``starts[w]``. Windows overlap where `stride` is less than `length`; samples at the end
    that fill no window are in none. A loader shuffles windows, and reads and gathers their samples as it does others.
    torch's `Subset`, `random_split` and `ConcatDataset` over windows of one length are read as they are, too.

    Args:
        dataset: a `ShardDataset`, or a path to one. Ragged and text fields cannot be in windows: leave them out by the
            loader's `fields`.
        length: samples of a window.
        stride: how many samples later the next window begins.
        within: a field of the dataset, across whose changes no window goes: an episode's number, or a file's name. Each
            run of equal values has its own windows, from its first sample on. None: the dataset is one run.

    Attributes:
        dataset: the dataset.
        length: see above.
        stride: see above.
        within: see above.
        starts: first sample of each window; int64, shape ``[len(self)]``, read-only.

    Raises:
        OptionError: if `length` or `stride` is no whole number from 1 to 2**48, there is no field `within`, or no field
            that is neither ragged nor a text.
        DatasetNotFoundError, FormatError: see `ShardDataset`.
    """

    def __init__(
        self, dataset: ShardDataset | str | os.PathLike[str], length: int, stride: int = 1, *, within: str | None = None
    ) -> None:
        self.dataset = dataset if isinstance(dataset, ShardDataset) else _opened(dataset)
        if len(self.dataset) and all(field.ragged for field in self.dataset.schema.values()):
            raise OptionError(
                "windows need fields of one shape, but all of the dataset's are ragged or texts",
                file=self.dataset.path,
                remedy="Convert files of tokens so that each token is a sample: each='token'.",
            )
        self.length = check_whole(length, "length", 1, MAX_SAMPLES)
        self.stride = check_whole(stride, "stride", 1, MAX_SAMPLES)
        self.within = within
        ends = np.array([len(self.dataset)], np.int64) if within is None else _run_ends(self.dataset.column(within))
        self.starts = window_starts(ends, self.length, self.stride)
        self.starts.flags.writeable = False

    def __len__(self) -> int:
        return len(self.starts)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[dict[str, torch.Tensor]]:
        """Many windows at once, as torch's DataLoader asks for them: tensors ``[length, *shape]``.

        Raises:
            SampleIndexError: if one is outside.
            OptionError: if the dataset has ragged or text fields, or an index is no whole number.
            GdsloadError: see `ShardDataset.__getitems__`.
        """
        refuse_ragged_windows(self.dataset, tuple(self.dataset.schema))
        wanted = whole_numbers(indices)
        outside = (wanted < -len(self)) | (wanted >= len(self))
        if outside.any():
            raise SampleIndexError(f"window {wanted[outside][0]} does not exist: there are {len(self)}")
        batch = self.dataset.read_batch((self.starts[wanted][:, None] + np.arange(self.length)).reshape(-1))
        split = {name: torch.split(values, self.length) for name, values in batch.items()}
        return [dict(zip(split, values, strict=True)) for values in zip(*split.values(), strict=True)]

    def __repr__(self) -> str:
        within = "" if self.within is None else f", within={self.within!r}"
        return f"Windows({self.dataset!r}, length={self.length}, stride={self.stride}{within}: {len(self)} windows)"


def refuse_ragged_windows(dataset: ShardDataset, fields: Sequence[str]) -> None:
    """Refuse fields whose samples have their own shapes, in windows.

    Raises:
        OptionError: if there is one.
    """
    for name in fields:
        if dataset.schema[name].ragged:
            raise OptionError(
                f"windows need fields of one shape, but {name!r} is ragged or a text",
                file=dataset.path,
                remedy="Leave it out: the loader's fields=[...] names those to read.",
            )


def _opened(dataset: object) -> ShardDataset:
    if isinstance(dataset, str | os.PathLike):
        return ShardDataset(dataset)
    raise OptionError(
        f"windows are of a ShardDataset or a path to one, not of a {type(dataset).__name__}",
        remedy="Make windows of the dataset, and a Subset of the windows.",
    )


def _run_ends(column: Any) -> IntArray:
    """The sample after each run of equal values of a column."""
    if isinstance(column, list):
        changes = [number for number, (before, value) in enumerate(pairwise(column), 1) if before != value]
        return np.array([*changes, len(column)], np.int64)
    if isinstance(column, tuple):
        raise OptionError("within names a ragged field", remedy="Name one of a fixed shape, or a text.")
    rows = column.unsqueeze(-1).flatten(1)  # also of no samples, whose rows reshape(0, -1) cannot work out
    changed: NDArray[np.bool_] = (rows[1:] != rows[:-1]).any(1).numpy()
    return np.append(np.flatnonzero(changed) + 1, len(rows))


def window_starts(ends: IntArray, length: int, stride: int) -> IntArray:
    """The first sample of each window of some runs."""
    lengths = np.diff(ends, prepend=0)
    counts = np.maximum((lengths - length) // stride + 1, 0)
    found: IntArray = np.repeat(ends - lengths, counts) + reads.within(counts) * stride
    return found
