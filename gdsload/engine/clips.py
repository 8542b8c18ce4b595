"""Clips in batches: the values that codecs make of the rows of all their samples, in the shape of clips.

A clip is a sample of `loader.windows.Windows`: consecutive samples of the dataset as one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch

from gdsload.engine.codecs import FieldCodec, PackedFields
from gdsload.engine.group_lengths import GroupLengths

Offsets = range | tuple[int, ...]
"""Where a clip's samples are, counted from its first sample on; a range if they rise evenly."""


class ClipCodec(FieldCodec):
    """Fields of clips: tensors ``[batch, offsets, *shape]``, without a copy where that is possible.

    A packed column is read at the offsets of all its fields, and each field takes its own of them.

    Args:
        codec: what the column holds; `as_stored`, so that every sample has rows of one shape.
        offsets: of each field in the column, by name.
    """

    def __init__(self, codec: FieldCodec, offsets: Mapping[str, Offsets]) -> None:
        super().__init__(codec.name, codec.stored)
        self._codec, self.offsets = codec, united(offsets.values())
        self._chosen = {
            name: evenly_spaced(map(self.offsets.index, own)) for name, own in offsets.items() if own != self.offsets
        }

    def put(
        self, batch: dict[str, Any], values: torch.Tensor, group: GroupLengths | None = None, number: int = 0
    ) -> None:
        """See `FieldCodec.put`; the rows may have the shape of clips, ``[samples, offsets, *row_shape]``, already."""
        shaped = values.dim() > len(self.stored.row_shape) + 1
        if shaped and not isinstance(self._codec, PackedFields):
            # Without a call: each takes a tenth of a small batch's time.
            batch[self.name] = values
            return
        rows: dict[str, Any] = {}
        self._codec.put(rows, values.flatten(0, 1) if shaped else values, group, number)
        for name, tensor in rows.items():
            clips = tensor.unflatten(0, (len(tensor) // len(self.offsets), len(self.offsets)))
            batch[name] = _taken(clips, self._chosen[name]) if name in self._chosen else clips


def united(every: Iterable[Offsets]) -> Offsets:
    """All offsets of some fields, each once and in rising order; of fields with the same ones these as they are."""
    apart = set(every)
    return apart.pop() if len(apart) == 1 else evenly_spaced(sorted({offset for one in apart for offset in one}))


def evenly_spaced(numbers: Iterable[int]) -> Offsets:
    """Whole numbers as a range, if they rise evenly; else as they are."""
    if isinstance(numbers, range) and numbers and numbers.step > 0:
        return range(numbers.start, numbers[-1] + numbers.step, numbers.step)
    found = tuple(numbers)
    step = found[1] - found[0] if len(found) > 1 else 1
    even = range(found[0], found[0] + step * len(found), step) if found and step > 0 else found
    return even if tuple(even) == found else found


def _taken(clips: torch.Tensor, places: Offsets) -> torch.Tensor:
    if isinstance(places, range):
        return clips[:, places.start : places.stop : places.step]
    return torch.stack([clips[:, place] for place in places], 1)  # an index of several would have to get to a GPU
