"""Rows of the samples of a group of batches: what is computed, uploaded and gathered once for all of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from gdsload.errors import OptionError
from gdsload.system.arrays import IntArray

MakeTensors = Callable[[NDArray[Any], Sequence[int]], Sequence[torch.Tensor]]
"""Makes tensors of the parts of an array, which have so many elements each, on the device of the batches."""

_MOST_ROWS = 2**31 - 1


class GroupLengths:
    """The rows of each sample of a ragged field, in a group of batches."""

    def __init__(self, lengths: IntArray, sizes: Sequence[int], tensors: MakeTensors) -> None:
        self.lengths, self.sizes, self._tensors = lengths, list(sizes), tensors
        self.edges = list(pairwise(accumulate(self.sizes, initial=0)))

    @cached_property
    def _ends(self) -> IntArray:
        """The first row of each sample among those of the group, and the end of the last one's."""
        ends = np.zeros(len(self.lengths) + 1, np.int64)
        self.lengths.cumsum(out=ends[1:])
        return ends

    @cached_property
    def _begins(self) -> IntArray:
        """The first row of each batch, and the end of the last one's."""
        found: IntArray = self._ends[np.cumsum([0, *self.sizes])]
        return found

    @cached_property
    def rows(self) -> list[int]:
        """Rows of each batch."""
        found: list[int] = (self._begins[1:] - self._begins[:-1]).tolist()
        return found

    @cached_property
    def longest(self) -> list[int]:
        """Rows of the longest sample of each batch; 0 without samples."""
        return [int(self.lengths[low:high].max(initial=0)) for low, high in self.edges]

    @cached_property
    def shortest(self) -> list[int]:
        """Rows of the shortest sample of each batch; 0 without samples."""
        return [int(self.lengths[low:high].min()) if low < high else 0 for low, high in self.edges]

    @cached_property
    def offsets(self) -> Sequence[torch.Tensor]:
        """For each batch the offsets of its samples among its rows, int64 ``[samples + 1]``.

        They are the same tensor for all fields that share these lengths, as torch compares it.
        """
        return self._tensors(self._offsets(), [size + 1 for size in self.sizes])

    @cached_property
    def cu_seqlens(self) -> Sequence[torch.Tensor]:
        """The same as int32.

        Raises:
            OptionError: if a batch has more rows than int32 can count.
        """
        if (most := max(self.rows, default=0)) > _MOST_ROWS:
            raise OptionError(
                f"is 'varlen', whose cu_seqlens are int32, but a batch has {most} rows, more than {_MOST_ROWS}",
                option="ragged",
                remedy="Make batches smaller, or pass `ragged='offsets'`.",
            )
        return self._tensors(self._offsets().astype(np.int32), [size + 1 for size in self.sizes])

    def _offsets(self) -> IntArray:
        """Of all batches, the offsets of each one's samples among its rows: the end of one is the begin of the next."""
        counts = [size + 1 for size in self.sizes]
        found: IntArray = self._ends[np.arange(sum(counts)) - np.arange(len(counts)).repeat(counts)]
        found -= self._begins[:-1].repeat(counts)
        return found

    @cached_property
    def counts(self) -> Sequence[torch.Tensor]:
        """For each batch the rows of its samples, int64 ``[samples]``."""
        return self._tensors(self.lengths.copy(), self.sizes)

    def of(self, batch: int) -> IntArray:
        """Rows of each sample of a batch, on the host."""
        low, high = self.edges[batch]
        return self.lengths[low:high]


def padded_pieces(addresses: IntArray, group: GroupLengths, padding: int) -> tuple[IntArray, IntArray]:
    """The pieces of samples that are all as long as the longest of their batch: each followed by rows of padding.

    `addresses` is where each sample's rows are; `padding` is where rows of padding are, as many as the longest sample
    has. Returns the address of each piece and its rows, two for each sample.
    """
    longest = np.repeat(np.array(group.longest, np.int64), group.sizes)
    pieces = np.stack([addresses, np.full(len(addresses), padding)], axis=1).reshape(-1)
    return pieces, np.stack([group.lengths, longest - group.lengths], axis=1).reshape(-1)
