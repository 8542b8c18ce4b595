"""Batches in parts: what one process reads of a batch, as bytes that travel, and the batch that parts make together.

Fields of one shape travel as they are in a batch. Of ragged ones it is rows and the lengths of samples, and only the
whole batch gets the form that was asked for: offsets, padding and texts depend on all samples.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from gdsload.engine.codecs import FieldCodec
from gdsload.engine.group_lengths import BatchLengths, GroupLengths, lengths_of_fields
from gdsload.order import part_starts
from gdsload.system.arrays import IntArray

__all__ = ["Gathered", "Part", "PartCodec", "RaggedRows", "together"]

_ALIGNMENT = 16
"""Of what lies in one buffer: the largest element."""
_ALONE_BYTES = 2**18
"""A field whose part has so many bytes travels by itself, into the batch's own memory. A call for each smaller one
would cost more than copies of it."""


class RaggedRows(NamedTuple):
    """A ragged field of a part of a batch.

    Attributes:
        values: the stored rows of all samples, ``[rows, *row_shape]``.
        lengths: rows of each sample, int64 ``[samples]``.
    """

    values: torch.Tensor
    lengths: IntArray


class PartCodec(FieldCodec):
    """A ragged field in a part of a batch, as `RaggedRows`.

    Args:
        codec: what makes the field of a whole batch.
    """

    def __init__(self, codec: FieldCodec) -> None:
        super().__init__(codec.name, codec.stored)
        self.wants = codec.wants
        self.whole = codec

    def decode(self, values: torch.Tensor, lengths: BatchLengths | None) -> RaggedRows:
        """See `FieldCodec.decode`."""
        if lengths is None:
            raise RuntimeError("a ragged field is decoded without the lengths of its samples")
        return RaggedRows(values, np.asarray(lengths.known, np.int64))


@dataclass(slots=True)
class Part:
    """A part of a batch, as bytes that travel.

    Attributes:
        batch: the part's fields.
        alone: those that travel by themselves, laid out as their memory is.
        packed: the bytes of all others, by the type of their device; those of ragged fields begin with lengths.
    """

    batch: Mapping[str, Any]
    alone: dict[str, torch.Tensor] = field(default_factory=dict)
    packed: dict[str, torch.Tensor] = field(default_factory=dict)

    @classmethod
    def of(cls, batch: Mapping[str, Any]) -> Part:
        """Take a part of a batch as it is."""
        made = cls(batch)
        ragged = [value for value in batch.values() if isinstance(value, RaggedRows)]
        packed = {"cpu": [torch.from_numpy(value.lengths) for value in ragged]}
        for name, value in batch.items():
            if isinstance(value, RaggedRows):
                packed.setdefault(value.values.device.type, []).append(value.values)
            elif value.nbytes >= _ALONE_BYTES:
                made.alone[name] = value.permute(0, *_inner(value)).contiguous()
            else:
                packed.setdefault(value.device.type, []).append(value)
        made.packed = {kind: _one_buffer(values) for kind, values in packed.items() if values}
        return made


@dataclass(slots=True)
class Gathered:
    """The parts of all peers.

    Attributes:
        alone: fields that travelled by themselves, of all parts one after the other.
        packed: the buffers of all parts, by the type of their device, ``[parts, bytes]``.
    """

    alone: dict[str, torch.Tensor]
    packed: dict[str, torch.Tensor]


def _inner(value: torch.Tensor) -> list[int]:
    """The dimensions but for the first, in the order of memory: a batch of images may have its channels last."""
    strides = value.stride()
    return sorted(range(1, value.dim()), key=lambda dim: -strides[dim])


def bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    """A contiguous tensor's memory as bytes."""
    if not tensor.numel():
        return tensor.new_empty(0, dtype=torch.uint8)
    # A single element is contiguous with any stride, and only one of 1 can be seen as bytes.
    return tensor.as_strided((tensor.numel(),), (1,)).view(torch.uint8)


def _padded(nbytes: int) -> int:
    return -(-nbytes // _ALIGNMENT) * _ALIGNMENT


def _one_buffer(values: Sequence[torch.Tensor]) -> torch.Tensor:
    found = torch.empty(sum(_padded(value.nbytes) for value in values), dtype=torch.uint8, device=values[0].device)
    at = 0
    for value in values:
        found[at : at + value.nbytes] = bytes_of(value.contiguous())
        at += _padded(value.nbytes)
    return found


class _Reader:
    """Takes tensors out of the buffers of all parts, in the order in which they were put in."""

    def __init__(self, buffers: Mapping[str, torch.Tensor], parts: int) -> None:
        self._buffers = buffers
        self._at = {kind: [0] * parts for kind in buffers}

    def take(self, kind: str, part: int, dtype: torch.dtype, shape: Sequence[int]) -> torch.Tensor:
        at, nbytes = self._at[kind][part], int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        self._at[kind][part] += _padded(nbytes)
        if not nbytes:
            return torch.empty(tuple(shape), dtype=dtype, device=self._buffers[kind].device)
        return self._buffers[kind][part, at : at + nbytes].view(dtype).view(*shape)


def together(part: Part, gathered: Gathered, size: int, parts: int, codecs: Mapping[str, FieldCodec]) -> dict[str, Any]:
    """The batch that parts make, in its own memory.

    Args:
        part: this process's, which says what fields there are.
        gathered: those of all.
        size: samples of the batch.
        parts: number of parts.
        codecs: of ragged fields, what makes them.
    """
    # Of parts that overlap, the earlier one gives what comes before the later one.
    counts = [stop - start for start, stop in pairwise([*part_starts(size, parts), size])]
    reader, each = _Reader(gathered.packed, parts), -(-size // parts)
    ragged = [name for name, value in part.batch.items() if isinstance(value, RaggedRows)]
    lengths = {
        name: [reader.take("cpu", number, torch.int64, (each,)).numpy() for number in range(parts)] for name in ragged
    }
    whole = {name: np.concatenate([one[:count] for one, count in zip(found, counts, strict=True)])
             for name, found in lengths.items()}  # fmt: skip
    devices = {name: part.batch[name].values.device for name in ragged}
    alike = {name: None if codecs[name].own_lengths else devices[name] for name in ragged}
    groups = lengths_of_fields(
        whole, alike, lambda name, known: GroupLengths(known, [size], _tensors_on(devices[name]))
    )
    batch: dict[str, Any] = {}
    for name, value in part.batch.items():
        if name in gathered.alone:
            batch[name] = _cut(gathered.alone[name], value, counts, each)
        elif name in whole:
            values = []
            for number, count in enumerate(counts):
                known = lengths[name][number]
                shape = (int(known.sum()), *value.values.shape[1:])
                found = reader.take(value.values.device.type, number, value.values.dtype, shape)
                values.append(found[: int(known[:count].sum())])
            codecs[name].put(batch, _filled(codecs[name], torch.cat(values), groups[name]), groups[name].of(0))
        else:
            taken = [reader.take(value.device.type, number, value.dtype, value.shape) for number in range(parts)]
            batch[name] = torch.cat([one[:count] for one, count in zip(taken, counts, strict=True)])
    return batch


def _cut(found: torch.Tensor, value: torch.Tensor, counts: Sequence[int], each: int) -> torch.Tensor:
    """A field that travelled by itself; `value`: this process's part of it."""
    if any(count != each for count in counts):
        found = torch.cat([one[:count] for one, count in zip(found.split(each), counts, strict=True)])
    back = np.argsort([0, *_inner(value)])
    return found.permute(*back.tolist())


def _tensors_on(device: torch.device) -> Callable[[NDArray[Any], Sequence[int]], Sequence[torch.Tensor]]:
    return lambda array, counts: torch.from_numpy(array).to(device).split(list(counts))


def _filled(codec: FieldCodec, values: torch.Tensor, group: GroupLengths) -> torch.Tensor:
    """Rows as the codec wants them: filled up, if it wants every sample to be as long as the longest."""
    if codec.padding is None:
        return values
    longest, device = group.longest[0], values.device
    element = torch.from_numpy(codec.padding).to(device).view(values.dtype)
    found = element.expand(len(group.lengths) * longest, *values.shape[1:]).contiguous()
    behind = np.arange(len(group.lengths)) * longest - (np.cumsum(group.lengths) - group.lengths)
    to = torch.from_numpy(np.arange(len(values)) + np.repeat(behind, group.lengths)).to(device)
    row_bytes = codec.stored.row_bytes
    if len(values) and row_bytes:  # as bytes, since not all element types can be scattered
        bytes_of(found).view(-1, row_bytes)[to] = bytes_of(values.contiguous()).view(-1, row_bytes)
    return found
