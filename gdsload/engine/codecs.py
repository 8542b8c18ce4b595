"""Codecs, which make the fields of a batch from the columns that they are stored in.

A codec gets the stored rows of a batch, concatenated sample by sample, and puts what is handed out into the batch: one
field, or those of a packed column. A new one is a function here and a case in `codecs_of`. It says on which side it
wants its bytes: an image decoder may read them from host memory, while blocks that the GPU decompresses should never
leave it. Where a field is stored in another layout than its rows (compressed blocks), a backend around the one that
reads turns offsets of rows into offsets of the file first.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from itertools import pairwise
from operator import attrgetter
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from gdsload.engine.group_lengths import GroupLengths
from gdsload.engine.images.encoded import EncodedImages
from gdsload.engine.jagged import maker
from gdsload.errors import FormatError
from gdsload.shards.format.schema import Field
from gdsload.shards.format.stored import StoredSchema
from gdsload.shards.values import torch_dtype

RaggedForm = Literal["jagged", "offsets", "padded", "varlen"]
_Decode = Callable[[torch.Tensor, GroupLengths, int], Any]
"""Makes a field's value in a batch of the stored rows of all its samples, concatenated, shape ``[rows, *row_shape]``;
of the rows of each sample in a group of batches; and of the batch's number there. On a device, it is called on the
loader's stream, on which it may queue work. It raises `FormatError` if the bytes cannot be what the field says."""
_Run = tuple[torch.dtype, int, int, tuple[int, ...]]
"""Fields of a packed column that are neighbours, and of one element type and shape: that type, the first of their
elements in a row, the one after the last, and the shape of all of them there: their number, then the shape of one."""


class FieldCodec:
    """The codec that makes a batch's fields from a stored column: where rows have one shape, it hands them out.

    Args:
        name: the column's name, which is the field's unless it is packed.
        decode: makes a field of ragged rows; None: all rows have one shape.
        wants: where `decode` wants the stored rows, if batches are built on a device.
        own_lengths: whether the tensors of lengths that are handed out are this field's alone. Else fields of equal
            lengths, which may be so by accident and in some groups only, share theirs, and what is done to one in place
            concerns the others.
        padding: the bytes of an element, if `decode` wants every sample to be as long as the longest, filled up with
            it.
    """

    offsets: Sequence[int] = range(1)
    """The stored samples of one sample of a batch, counted from its own on: several for a clip."""

    def __init__(
        self,
        name: str,
        stored: Field,
        decode: _Decode | None = None,
        *,
        wants: Literal["host", "device"] = "device",
        own_lengths: bool = False,
        padding: NDArray[np.uint8] | None = None,
    ) -> None:
        self.name, self.stored, self.decode = name, stored, decode
        self.wants, self.own_lengths, self.padding = wants, own_lengths, padding

    @property
    def as_stored(self) -> bool:
        """True if a batch has the stored rows as they are, of one shape: `put` needs nothing else."""
        return self.decode is None

    def rows(self, group: GroupLengths) -> list[int]:
        """Rows that each batch of a group has for `decode`."""
        if self.padding is None:
            return group.rows
        return [size * longest for size, longest in zip(group.sizes, group.longest, strict=True)]

    def put(
        self, batch: dict[str, Any], values: torch.Tensor, group: GroupLengths | None = None, number: int = 0
    ) -> None:
        """Put what the column holds into a batch: the rows of all its samples, ``[rows, *row_shape]``."""
        batch[self.name] = values if self.decode is None or group is None else self.decode(values, group, number)


class PackedFields(FieldCodec):
    """Rows of several fields: a tensor ``[batch, *shape]`` for each that is wanted.

    Those of one element type share memory: of the type with most bytes the rows' own, of others a copy of their part of
    them, since torch cannot save tensors of several types in one memory.
    """

    def __init__(self, name: str, stored: StoredSchema, wanted: Sequence[str]) -> None:
        super().__init__(name, stored.columns[name])
        self._names = tuple(wanted)
        self._runs = _in_runs(stored, name, wanted)
        nbytes: dict[torch.dtype, int] = {}
        for dtype, first, stop, _ in self._runs:
            nbytes[dtype] = nbytes.get(dtype, 0) + (stop - first) * dtype.itemsize
        self._in_rows = max(nbytes, key=nbytes.__getitem__)

    def put(
        self, batch: dict[str, Any], values: torch.Tensor, _group: GroupLengths | None = None, _number: int = 0
    ) -> None:
        """See `FieldCodec.put`."""
        found: list[torch.Tensor] = []
        for dtype, first, stop, shape in self._runs:
            part = values.view(dtype)[:, first:stop]
            part = part if dtype == self._in_rows else part.clone()
            found += (part if len(shape) == 1 else part.view(len(values), *shape)).unbind(1)
        # Not the views themselves: what is done in place to one field would concern the others' gradients.
        batch.update(zip(self._names, map(_own, found), strict=True))


_own = attrgetter("data")


def _in_runs(stored: StoredSchema, column: str, wanted: Sequence[str]) -> list[_Run]:
    """Fields of a packed column: those that follow each other, of one element type and shape, in one run."""
    found: list[_Run] = []
    for name in wanted:
        field, count = stored.schema[name], 1
        dtype, shape = torch_dtype(field.dtype), field.row_shape
        begin = first = stored.places[column][name] // field.dtype.itemsize
        if found and (found[-1][0], found[-1][2], found[-1][3][1:]) == (dtype, begin, shape):
            _, first, _, (before, *_) = found.pop()
            count += before
        found.append((dtype, first, begin + math.prod(shape), (count, *shape)))
    return found


class Varlen(NamedTuple):
    """A ragged field of a batch, packed for attention over sequences of varying length.

    That is what ``flash_attn_varlen_func`` and torch's ``varlen_attn`` take: all sequences in one row, and where each
    begins.

        tokens = batch["tokens"]
        q, k, v = project(embed(tokens.values))  # [rows, heads, head_dim]
        varlen_attn(q, k, v, tokens.cu_seqlens, tokens.cu_seqlens, tokens.max_seqlen, tokens.max_seqlen)

    Attributes:
        values: the rows of all samples, one sample after the other, ``[rows, ...]``.
        cu_seqlens: where each sample begins among them, and the end of the last; int32 ``[batch + 1]``. Fields of equal
            lengths share the tensor.
        max_seqlen: rows of the longest sample; 0 without samples.
    """

    values: torch.Tensor
    cu_seqlens: torch.Tensor
    max_seqlen: int

    def position_ids(self) -> torch.Tensor:
        """The position of each row in its sample, int64 ``[rows]``; computed when asked for, and nothing waits."""
        rows, begins = len(self.values), self.cu_seqlens[:-1]
        begin = torch.repeat_interleave(begins, self.cu_seqlens.diff(), output_size=rows)
        return torch.arange(rows, device=begin.device) - begin


def _jagged(values: torch.Tensor, group: GroupLengths, number: int) -> torch.Tensor:
    return maker()(values, group.offsets[number], group.shortest[number], group.longest[number])


def _offsets(values: torch.Tensor, group: GroupLengths, number: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Pairs (values ``[rows, ...]``, offsets int64 ``[batch + 1]``)."""
    return values, group.offsets[number]


def _varlen(values: torch.Tensor, group: GroupLengths, number: int) -> Varlen:
    return Varlen(values, group.cu_seqlens[number], group.longest[number])


def _padded(values: torch.Tensor, group: GroupLengths, number: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Pairs (padded ``[batch, longest, ...]``, lengths int64 ``[batch]``)."""
    return values.view(group.sizes[number], group.longest[number], *values.shape[1:]), group.counts[number]


def _encoded(values: torch.Tensor, group: GroupLengths, number: int) -> EncodedImages:
    """Images that are decoded when the batch is complete otherwise."""
    return EncodedImages(values, group.of(number))


def _bytes(values: torch.Tensor, group: GroupLengths, number: int) -> list[bytes]:
    data, ends = values.numpy().tobytes(), np.cumsum(group.of(number)).tolist()
    return [data[low:high] for low, high in pairwise([0, *ends])]


def _texts(name: str, values: torch.Tensor, group: GroupLengths, number: int) -> list[str]:
    try:
        return [piece.decode("utf-8") for piece in _bytes(values, group, number)]
    except UnicodeDecodeError as error:
        raise FormatError(
            f"field {name!r} holds a text that is no valid UTF-8: {error}",
            remedy="Run ShardDataset.verify(): the bytes were damaged, or written by something else.",
        ) from None


def codecs_of(
    stored: StoredSchema,
    fields: Sequence[str],
    ragged: RaggedForm,
    padding: Mapping[str, NDArray[np.uint8]] | None = None,
    decoded: Collection[str] = (),
) -> dict[str, FieldCodec]:
    """The codecs of the columns that contain some fields, by the columns' names.

    `padding` has the bytes of the element that each padded field is filled up with; `decoded` are encoded images that
    are to be decoded.
    """

    def made(name: str, inside: Sequence[str]) -> FieldCodec:
        if name in stored.places:
            return PackedFields(name, stored, inside)
        field = stored.columns[name]
        match field.kind:
            case "str":
                return FieldCodec(name, field, partial(_texts, name), wants="host")
            case "bytes" | "image":
                return FieldCodec(name, field, _encoded if name in decoded else _bytes, wants="host")
            case "ragged":
                return _ragged_codec(name, field, ragged, padding or {})
            case _:
                return FieldCodec(name, field)

    return {name: made(name, inside) for name, inside in stored.columns_of(fields).items()}


def _ragged_codec(name: str, field: Field, form: RaggedForm, padding: Mapping[str, NDArray[np.uint8]]) -> FieldCodec:
    match form:
        case "jagged":
            maker()  # here: it imports much of torch, which in a thread would wait for what the caller is importing
            return FieldCodec(name, field, _jagged)
        case "offsets":
            return FieldCodec(name, field, _offsets, own_lengths=True)
        case "varlen":
            return FieldCodec(name, field, _varlen)
        case "padded":
            return FieldCodec(name, field, _padded, own_lengths=True, padding=padding[name])
