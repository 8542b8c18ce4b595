"""Windows of a dataset's samples, as samples: nothing is copied on disk."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from gdsload.engine.clips import Offsets, evenly_spaced
from gdsload.errors import OptionError, SampleIndexError
from gdsload.loader.dataset import ShardDataset
from gdsload.loader.described import brief
from gdsload.loader.wanted import Indices, known_field, whole_numbers
from gdsload.order.checks import MAX_SAMPLES, check_whole
from gdsload.shards import reads
from gdsload.system.arrays import IntArray, Numbers, array_of, taken

_OFFSETS = "Pass a dict of fields: `offsets={'action': range(16), 'image': [-1, 0]}`."


class Windows(torch.utils.data.Dataset[dict[str, Any]]):
    """Windows of a dataset's neighbouring samples: time series, frames of an episode, tokens of one long text.

        windows = gdsload.Windows("shards/", length=16, stride=4, within="episode")
        loader = gdsload.DataLoader(windows, 32, shuffle=True)       # tensors [32, 16, *shape]
        windows = gdsload.Windows("shards/", length=4, step=5)       # every 5th of 16 samples
        windows = gdsload.Windows("shards/", offsets={"image": [-1, 0], "action": range(16)})

    Window w consists of the samples ``starts[w] + offset``, for each offset of a field. Without `offsets`, all fields
    have the offsets ``range(0, length * step, step)``. Windows overlap if `stride` is smaller than they are long. The
    last samples are left out if they do not fill a window. A loader shuffles windows as it does samples. It also reads
    torch's `Subset`, `random_split` and `ConcatDataset` over windows with the same offsets.

    Args:
        dataset: a `ShardDataset`, or a path to one. Ragged and text fields cannot be in windows: leave them out by the
            loader's `fields`.
        length: number of samples in a window, for all fields.
        stride: distance between the first samples of two neighbouring windows, in samples.
        step: distance between two neighbouring samples of a window, in samples of the dataset.
        offsets: replaces `length` and `step`: the samples of each field, as whole numbers in any order, counted from
            ``starts[w]``. Windows have only the named fields.
        within: a field that has one value in all samples of a window: an episode's number, or a file's name. Each run
            of equal values has its own windows, from its first sample on. None: the dataset is one run.

    Attributes:
        dataset: the dataset.
        length: see above; None where offsets are given.
        stride: see above.
        step: see above.
        within: see above.
        offsets: of each field, in the dataset's order: a range, or a tuple where they do not rise evenly.

    Raises:
        OptionError: if a number is not whole or too large, a field does not exist, all fields are ragged or texts, or
            not exactly one of `length` and `offsets` is given.
        DatasetNotFoundError, FormatError: see `ShardDataset`.
    """

    def __init__(
        self,
        dataset: ShardDataset | str | os.PathLike[str],
        length: int | None = None,
        stride: int = 1,
        *,
        step: int = 1,
        offsets: Mapping[str, Indices] | None = None,
        within: str | None = None,
    ) -> None:
        self.dataset = dataset if isinstance(dataset, ShardDataset) else _opened(dataset)
        if len(self.dataset) and all(field.ragged for field in self.dataset.schema.values()):
            raise OptionError(
                "windows need fields of one shape, but all of the dataset's are ragged, texts or encoded images",
                file=self.dataset.path,
                remedy="Convert files of tokens so that each token is a sample, by `each='token'`, and images without "
                "`keep_encoded`.",
            )
        self.stride = check_whole(stride, "stride", 1, MAX_SAMPLES)
        self.within = within
        self.step = check_whole(step, "step", 1, MAX_SAMPLES)
        self.length = None if length is None else check_whole(length, "length", 1, MAX_SAMPLES)
        if offsets is None and self.length is not None:
            check_whole(self.length * self.step, "length times step", 1, MAX_SAMPLES)
            every = evenly_spaced(range(0, self.length * self.step, self.step))
            self.offsets = dict.fromkeys(self.dataset.schema, every)
        elif offsets is not None and self.length is None and self.step == 1:
            self.offsets = _checked(self.dataset, offsets)
        else:
            raise OptionError(
                "windows have either a length, with or without a step, or offsets",
                remedy="Pass `Windows(dataset, 4, step=5)`, or `Windows(dataset, offsets={'x': range(0, 20, 5)})`.",
            )
        low, high = offset_bounds(self.offsets.values())
        self._starts: Numbers = range(-low, len(self.dataset) - high, self.stride)
        if within is not None:
            self._starts = window_starts(_run_ends(self.dataset.column(within)), high - low + 1, self.stride) - low

    @cached_property
    def starts(self) -> IntArray:
        """The sample of each window that offsets count from; int64, shape ``[len(self)]``, read-only."""
        found = array_of(self._starts)
        found.flags.writeable = False
        return found

    def ids(self, before: int) -> Numbers:
        """See `starts`, of a dataset with so many samples before it."""
        if isinstance(self._starts, range):
            return range(self._starts.start + before, self._starts.stop + before, self.stride)
        return self._starts + before

    def __len__(self) -> int:
        return len(self._starts)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[dict[str, torch.Tensor]]:
        """Many windows at once, as torch's DataLoader asks for them: tensors ``[offsets, *shape]``.

        Raises:
            SampleIndexError: if one is outside.
            OptionError: if the dataset has ragged or text fields, or an index is no whole number.
            GdsloadError: see `ShardDataset.__getitems__`.
        """
        refuse_ragged_windows(self.dataset, tuple(self.offsets))
        wanted = whole_numbers(indices)
        outside = (wanted < -len(self)) | (wanted >= len(self))
        if outside.any():
            raise SampleIndexError(f"window {wanted[outside][0]} does not exist: there are {len(self)}")
        first, batch = taken(self._starts, np.where(wanted < 0, wanted + len(self), wanted)), {}
        for offsets in set(self.offsets.values()):
            ids = (first[:, None] + np.array(offsets)).reshape(-1)
            fields = [name for name, own in self.offsets.items() if own == offsets]
            for name, values in self.dataset.read_batch(ids, fields=fields).items():
                batch[name] = values.unflatten(0, (len(wanted), len(offsets)))
        return [{name: batch[name][number] for name in self.offsets} for number in range(len(wanted))]

    def __repr__(self) -> str:
        within = "" if self.within is None else f", within={self.within!r}"
        shown = f"offsets={self.offsets}" if self.length is None else f"length={self.length}"
        step = "" if self.step == 1 else f", step={self.step}"
        return f"Windows({brief(self.dataset)}, {shown}{step}, stride={self.stride}{within}: {len(self)} windows)"


def refuse_ragged_windows(dataset: ShardDataset, fields: Sequence[str]) -> None:
    """Raise OptionError if samples of a field have their own shapes, so that it cannot be in windows."""
    for name in fields:
        if dataset.schema[name].ragged:
            encoded = dataset.schema[name].kind == "image"
            remedy = "Convert it without `keep_encoded`, or leave it out" if encoded else "Leave it out"
            raise OptionError(
                f"windows need fields of one shape, but {name!r} is {'encoded' if encoded else 'ragged or a text'}",
                file=dataset.path,
                remedy=f"{remedy}: name those to read in `fields` of the loader, or in `offsets`.",
            )


def offset_bounds(offsets: Iterable[Offsets]) -> tuple[int, int]:
    """The lowest and the highest offset of some, and of 0, which a window's own sample has."""
    ends = [0, *(at for each in offsets for at in ((each[0], each[-1]) if isinstance(each, range) else each))]
    return min(ends), max(ends)


def _checked(dataset: ShardDataset, given: Mapping[str, Indices]) -> dict[str, Offsets]:
    """The offsets of each field that are given, in the order of the schema."""
    if not isinstance(given, Mapping) or not given:
        raise OptionError(f"is {given!r:.100}, which names no field", option="offsets", remedy=_OFFSETS)
    found: dict[str, Offsets] = {}
    for name, numbers in given.items():
        known_field(dataset.schema, name)
        try:
            whole = numbers if isinstance(numbers, range) else whole_numbers(numbers).tolist()
        except OptionError:
            whole = []
        if not whole or max(abs(end) for end in offset_bounds([evenly_spaced(whole)])) > MAX_SAMPLES:
            what = "no list of whole numbers from -2**48 to 2**48"
            raise OptionError(f"is {numbers!r:.100}, which is {what}", option=f"offsets[{name!r}]", remedy=_OFFSETS)
        found[name] = evenly_spaced(whole)
    refuse_ragged_windows(dataset, tuple(found))
    return {name: found[name] for name in dataset.schema if name in found}


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
        raise OptionError("names a ragged field", option="within", remedy="Name one of a fixed shape, or a text.")
    rows = column.unsqueeze(-1).flatten(1)  # also of no samples, whose rows reshape(0, -1) cannot work out
    changed: NDArray[np.bool_] = (rows[1:] != rows[:-1]).any(1).numpy()
    return np.append(np.flatnonzero(changed) + 1, len(rows))


def window_starts(ends: IntArray, length: int, stride: int) -> IntArray:
    """The first sample of each window of some runs."""
    lengths = np.diff(ends, prepend=0)
    counts = np.maximum((lengths - length) // stride + 1, 0)
    found: IntArray = np.repeat(ends - lengths, counts) + reads.within(counts) * stride
    return found
