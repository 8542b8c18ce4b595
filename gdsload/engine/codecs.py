"""Codecs, which make the fields of a batch from the columns that they are stored in.

A codec gets the stored rows of a batch, concatenated sample by sample, and puts what is handed out into the batch: one
field, or those of a packed column. A new one is a class here and a case in `codecs_of`. It says on which side it wants
its bytes: an image decoder may read them from host memory, while blocks that the GPU decompresses should never leave
it. Where a field is stored in another layout than its rows (compressed blocks), a backend around the one that reads
turns offsets of rows into offsets of the file first.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from operator import attrgetter
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from gdsload.engine.group_lengths import BatchLengths, GroupLengths
from gdsload.engine.images.encoded import EncodedImages
from gdsload.engine.jagged import jagged_tensor, maker
from gdsload.errors import FormatError
from gdsload.shards.format.schema import Field
from gdsload.shards.format.stored import StoredSchema
from gdsload.shards.values import torch_dtype

__all__ = ["FieldCodec", "Plain", "RaggedForm", "Varlen", "codecs_of"]

RaggedForm = Literal["jagged", "offsets", "padded", "varlen"]


class FieldCodec:
    """The codec that makes a batch's fields from a stored column.

    Args:
        name: the column's name, which is the field's unless it is packed.
        stored: what it is on disk.
    """

    as_stored = False
    """True if a batch has the stored rows as they are, of one shape: `put` needs nothing else."""
    wants: Literal["host", "device"] = "device"
    """Where `decode` wants the stored rows, if batches are built on a device."""
    own_lengths = False
    """True if the tensors of lengths that it hands out are this field's alone. Else fields of equal lengths, which may
    be so by accident and in some groups only, share theirs, and what is done to one in place concerns the others."""
    offsets: Sequence[int] = range(1)
    """Which stored samples one of the user's is made of, counted from its own on: several in windows."""
    padding: NDArray[np.uint8] | None = None
    """The bytes of an element, if `decode` wants every sample to be as long as the longest, filled up with it."""

    def __init__(self, name: str, stored: Field) -> None:
        self.name, self.stored = name, stored

    def rows(self, group: GroupLengths) -> list[int]:
        """Rows that each batch of a group has for `decode`."""
        if self.padding is None:
            return group.rows
        return [size * longest for size, longest in zip(group.sizes, group.longest, strict=True)]

    def decode(self, values: torch.Tensor, lengths: BatchLengths | None) -> Any:
        """The field's value in a batch. On a device, this is called on the loader's stream, which it may queue work on.

        Args:
            values: the stored rows of all samples, concatenated, shape ``[rows, *row_shape]``.
            lengths: rows of each sample; None if every sample has one.

        Raises:
            FormatError: if the bytes cannot be what the field says.
        """
        raise NotImplementedError

    def put(self, batch: dict[str, Any], values: torch.Tensor, lengths: BatchLengths | None = None) -> None:
        """Put what the column holds into a batch; see `decode`."""
        batch[self.name] = self.decode(values, lengths)


class Plain(FieldCodec):
    """Rows of one shape: tensors ``[batch, *shape]``."""

    as_stored = True

    def decode(self, values: torch.Tensor, _lengths: BatchLengths | None) -> torch.Tensor:
        """See `FieldCodec.decode`."""
        return values


@dataclass(frozen=True, slots=True)
class _Run:
    """Fields of a packed column that are neighbours, and of one element type and shape.

    Attributes:
        dtype: the element type.
        first: the first element of theirs, counted from the start of a row.
        stop: the element after their last.
        shape: of all of them together in a row: their number, then the shape of one.
    """

    dtype: torch.dtype
    first: int
    stop: int
    shape: tuple[int, ...]

    @classmethod
    def of(cls, stored: StoredSchema, column: str, names: Sequence[str]) -> _Run:
        """A run of these fields."""
        field = stored.schema[names[0]]
        first = stored.places[column][names[0]] // field.dtype.itemsize
        shape = (len(names), *field.row_shape)
        return cls(torch_dtype(field.dtype), first, first + math.prod(shape), shape)


class PackedFields(FieldCodec):
    """Rows of several fields: a tensor ``[batch, *shape]`` for each that is wanted.

    Those of one element type share memory: of the type with most bytes the rows' own, of others a copy of their part of
    them, since torch cannot save tensors of several types in one memory.

    Args:
        name: the column's name.
        stored: the schema and its columns.
        wanted: the fields that are wanted, in the order of a row.
    """

    as_stored = True

    def __init__(self, name: str, stored: StoredSchema, wanted: Sequence[str]) -> None:
        super().__init__(name, stored.columns[name])
        self._names = tuple(wanted)
        self._runs = [_Run.of(stored, name, names) for names in _neighbours(stored, name, wanted)]
        nbytes: dict[torch.dtype, int] = {}
        for run in self._runs:
            nbytes[run.dtype] = nbytes.get(run.dtype, 0) + (run.stop - run.first) * run.dtype.itemsize
        self._in_rows = max(nbytes, key=nbytes.__getitem__)

    def put(self, batch: dict[str, Any], values: torch.Tensor, _lengths: BatchLengths | None = None) -> None:
        """See `FieldCodec.put`."""
        found: list[torch.Tensor] = []
        for run in self._runs:
            part = values.view(run.dtype)[:, run.first : run.stop]
            part = part if run.dtype == self._in_rows else part.clone()
            found += (part if len(run.shape) == 1 else part.view(len(values), *run.shape)).unbind(1)
        # Not the views themselves: what is done in place to one field would concern the others' gradients.
        batch.update(zip(self._names, map(_own, found), strict=True))


_own = attrgetter("data")


def _neighbours(stored: StoredSchema, column: str, wanted: Sequence[str]) -> Iterator[list[str]]:
    """Fields of a packed column that make one run each."""
    places, schema = stored.places[column], stored.schema
    run = [wanted[0]]
    for name in wanted[1:]:
        before = schema[run[-1]]
        if schema[name] != before or places[name] != places[run[-1]] + before.row_bytes:
            yield run
            run = []
        run.append(name)
    yield run


class Jagged(FieldCodec):
    """Ragged rows as nested tensors of torch's jagged layout."""

    def __init__(self, name: str, stored: Field) -> None:
        super().__init__(name, stored)
        maker()  # here: it imports much of torch, which in a thread would wait for what the caller is importing

    def decode(self, values: torch.Tensor, lengths: BatchLengths | None) -> torch.Tensor:
        """See `FieldCodec.decode`."""
        known = _of_each(lengths)
        return jagged_tensor(values, known.offsets, known.shortest, known.longest)


class Offsets(FieldCodec):
    """Ragged rows as pairs (values ``[rows, ...]``, offsets int64 ``[batch + 1]``)."""

    own_lengths = True

    def decode(self, values: torch.Tensor, lengths: BatchLengths | None) -> tuple[torch.Tensor, torch.Tensor]:
        """See `FieldCodec.decode`."""
        return values, _of_each(lengths).offsets


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


class Packed(FieldCodec):
    """Ragged rows as `Varlen`."""

    def decode(self, values: torch.Tensor, lengths: BatchLengths | None) -> Varlen:
        """See `FieldCodec.decode`."""
        known = _of_each(lengths)
        return Varlen(values, known.cu_seqlens, known.longest)


class PaddedField(FieldCodec):
    """Ragged rows as pairs (padded ``[batch, longest, ...]``, lengths int64 ``[batch]``).

    Args:
        name: the field's name.
        stored: what it is on disk.
        padding: the bytes of the element that it is filled up with, shape ``[itemsize]``.
    """

    own_lengths = True

    def __init__(self, name: str, stored: Field, padding: NDArray[np.uint8]) -> None:
        super().__init__(name, stored)
        self.padding = np.array(padding)

    def decode(self, values: torch.Tensor, lengths: BatchLengths | None) -> tuple[torch.Tensor, torch.Tensor]:
        """See `FieldCodec.decode`."""
        known = _of_each(lengths)
        return values.view(len(known.known), known.longest, *self.stored.row_shape), known.counts


class Bytes(FieldCodec):
    """Binary strings, and images as they are encoded, as a list of `bytes`."""

    wants = "host"

    def decode(self, values: torch.Tensor, lengths: BatchLengths | None) -> list[bytes]:
        """See `FieldCodec.decode`."""
        data, ends = values.numpy().tobytes(), np.cumsum(_of_each(lengths).known).tolist()
        return [data[low:high] for low, high in pairwise([0, *ends])]


class Encoded(Bytes):
    """Encoded images as `EncodedImages`, which are decoded when the batch is complete otherwise."""

    def decode(self, values: torch.Tensor, lengths: BatchLengths | None) -> EncodedImages:  # type: ignore[override]
        """See `FieldCodec.decode`."""
        return EncodedImages(values, _of_each(lengths).known)


class Text(Bytes):
    """Texts as a list of `str`."""

    def decode(self, values: torch.Tensor, lengths: BatchLengths | None) -> list[str]:  # type: ignore[override]
        """See `FieldCodec.decode`."""
        try:
            return [piece.decode("utf-8") for piece in super().decode(values, lengths)]
        except UnicodeDecodeError as error:
            raise FormatError(
                f"field {self.name!r} holds a text that is no valid UTF-8: {error}",
                remedy="Run ShardDataset.verify(): the bytes were damaged, or written by something else.",
            ) from None


_OTHER_FORMS: dict[str, type[FieldCodec]] = {"jagged": Jagged, "offsets": Offsets, "varlen": Packed}


def codecs_of(
    stored: StoredSchema,
    fields: Sequence[str],
    ragged: RaggedForm,
    padding: Mapping[str, NDArray[np.uint8]] | None = None,
    decoded: Collection[str] = (),
) -> dict[str, FieldCodec]:
    """The codecs of the columns that contain some fields, by the columns' names.

    Args:
        stored: what the fields are on disk.
        fields: those that are wanted.
        ragged: how ragged fields are handed out.
        padding: for each field that is padded the bytes of the element that it is filled up with.
        decoded: fields of encoded images that are to be decoded.
    """

    def made(name: str, inside: Sequence[str]) -> FieldCodec:
        if name in stored.places:
            return PackedFields(name, stored, inside)
        field = stored.columns[name]
        match field.kind:
            case "str":
                return Text(name, field)
            case "bytes" | "image" if name in decoded:
                return Encoded(name, field)
            case "bytes" | "image":
                return Bytes(name, field)
            case "ragged" if ragged == "padded":
                return PaddedField(name, field, (padding or {})[name])
            case "ragged":
                return _OTHER_FORMS[ragged](name, field)
            case _:
                return Plain(name, field)

    return {name: made(name, inside) for name, inside in stored.columns_of(fields).items()}


def _of_each(lengths: BatchLengths | None) -> BatchLengths:
    if lengths is None:
        raise RuntimeError("a ragged field is decoded without the lengths of its samples")
    return lengths
