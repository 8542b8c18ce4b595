"""Batches from loaded rows: one gather a field for a group, then tensors that own their part of the memory."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any, Literal, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from gdsload.engine.read_planner import RowSlice
from gdsload.errors import FormatError
from gdsload.shards.format.schema import Field
from gdsload.shards.gather_host import gather_pieces, gather_rows
from gdsload.shards.values import numpy_dtype, torch_dtype
from gdsload.system.memory import BatchPool, address_of

__all__ = ["Assembler", "Batch", "BatchForm", "BatchMaker", "RaggedForm", "batch_of", "joined", "pad", "texts"]

IntArray = NDArray[np.int64]
Batch = dict[str, Any]
RaggedForm = Literal["jagged", "offsets", "padded"]
T = TypeVar("T")

_ALIGNMENT = 64


@dataclasses.dataclass(frozen=True, slots=True)
class BatchForm:
    """How a batch looks.

    Attributes:
        ragged: how ragged fields are handed out: ``"jagged"``, a torch nested tensor of that layout; ``"offsets"``, the
            pair (values, offsets); ``"padded"``, the pair (padded, lengths).
        padding: for each padded field the bytes of the element that it is filled up with.
        index: the key under which a batch carries the indices of its samples; None: it does not.
    """

    ragged: RaggedForm = "jagged"
    padding: Mapping[str, NDArray[np.uint8]] = dataclasses.field(default_factory=dict)
    index: str | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class _Rows:
    """One field of a group of batches, gathered.

    Attributes:
        begin: where its bytes begin in the lease.
        lengths: rows of each sample; None if it is not ragged.
        whole: all samples as one array; None if it is ragged, empty, or of an element type that numpy does not have.
    """

    begin: int
    lengths: IntArray | None
    whole: NDArray[Any] | None = None


class BatchMaker:
    """What the assemblers of all devices share: fields, forms, and ragged values as they are handed out.

    Args:
        fields: the fields that are wanted.
        form: how ragged fields are handed out.
    """

    takes_processor = True
    """Whether gathering keeps a processor busy; if not, whoever gathers waits for a device."""

    def __init__(self, fields: Mapping[str, Field], form: BatchForm) -> None:
        self.fields, self.form = dict(fields), form

    def assemble(self, slices: Sequence[RowSlice], sizes: Sequence[int]) -> list[Batch]:
        """Gather a group of batches.

        Args:
            slices: the samples of all the batches, in order. Their bytes must be there, and stay until it returns.
            sizes: number of samples of each batch.
        """
        raise NotImplementedError

    def follow(self) -> None:
        """Let what is built from now on come after what the calling thread has queued."""

    def build(self, make: Callable[[], T]) -> T:
        """Make batches, or something of them, and wait until that is complete.

        Raises:
            BudgetError: if the device has no memory left.
        """
        return make()

    def hand_over(self, batch: Any) -> Any:
        """The last step of each batch, or what a transform made of it, in the consumer's thread."""
        return batch

    def close(self) -> None:
        """Give kept memory back."""

    def tensor(self, array: NDArray[Any]) -> torch.Tensor:
        """An array as a tensor beside the batches' values."""
        return torch.from_numpy(array)

    def ragged(
        self, name: str, values: torch.Tensor, lengths: IntArray, shared: list[tuple[IntArray, torch.Tensor]]
    ) -> Any:
        """Values of a ragged field, one sample behind the other, in the form that is handed out.

        Args:
            name: the field, none of text or bytes.
            values: its rows, shape ``[rows, *row_shape]``.
            lengths: rows of each sample.
            shared: the offsets that the batch has so far; new ones are added.
        """
        if self.form.ragged == "padded":
            return pad(values, lengths, self.form.padding[name]), self.tensor(lengths.copy())
        offsets = self._offsets(lengths, shared)
        if self.form.ragged == "offsets":
            return values, offsets
        low, high = (int(lengths.min()), int(lengths.max())) if len(lengths) else (0, 0)
        return torch.nested.nested_tensor_from_jagged(values, offsets, min_seqlen=low, max_seqlen=high)

    def _offsets(self, lengths: IntArray, shared: list[tuple[IntArray, torch.Tensor]]) -> torch.Tensor:
        """Offsets of these lengths: one tensor for all fields with equal ones, as torch compares them by identity."""
        for known, offsets in shared:
            if np.array_equal(known, lengths):
                return offsets
        ends = np.zeros(len(lengths) + 1, np.int64)
        np.cumsum(lengths, out=ends[1:])
        offsets = self.tensor(ends)
        shared.append((lengths, offsets))
        return offsets

    def add_index(self, batches: Sequence[Batch], slices: Sequence[RowSlice], edges: Sequence[tuple[int, int]]) -> None:
        """Add to each batch what the user calls its samples, if that is wanted."""
        if self.form.index is None:
            return
        none = np.zeros(0, np.int64)
        index = np.concatenate([none, *(part.rows.index[part.low : part.high] for part in slices)])
        for batch, (low, high) in zip(batches, edges, strict=True):
            batch[self.form.index] = torch.from_numpy(index[low:high].copy())


class Assembler(BatchMaker):
    """Builds host batches.

    Args:
        fields: the fields that are wanted.
        pool: where batch memory comes from.
        form: how ragged fields are handed out.
    """

    def __init__(self, fields: Mapping[str, Field], pool: BatchPool, form: BatchForm) -> None:
        super().__init__(fields, form)
        self.pool = pool

    def assemble(self, slices: Sequence[RowSlice], sizes: Sequence[int]) -> list[Batch]:
        """See `BatchMaker.assemble`."""
        sources = {name: joined(name, field.ragged, slices) for name, field in self.fields.items()}
        begins, total = self._lay_out(sources)
        lease = self.pool.lease(total)
        base, memory = address_of(lease), lease.data
        rows = {}
        for name, field in self.fields.items():
            addresses, lengths = sources[name]
            if lengths is None:
                gather_rows(addresses, field.row_bytes, base + begins[name])
                rows[name] = _Rows(begins[name], None, _array_of(memory, begins[name], len(addresses), field))
            else:
                gather_pieces(addresses, lengths, field.row_bytes, base + begins[name])
                rows[name] = _Rows(begins[name], lengths)
        edges = list(pairwise(accumulate(sizes, initial=0)))
        batches = [self._batch(memory, rows, low, high) for low, high in edges]
        self.add_index(batches, slices, edges)
        return batches

    def close(self) -> None:
        """See `BatchMaker.close`."""
        self.pool.clear()

    def _lay_out(self, sources: dict[str, tuple[IntArray, IntArray | None]]) -> tuple[dict[str, int], int]:
        """Where each field's bytes begin in the lease, and how long it is."""
        begins, position = {}, 0
        for name, (addresses, lengths) in sources.items():
            begins[name] = position
            count = len(addresses) if lengths is None else int(lengths.sum())
            position += -(-count * self.fields[name].row_bytes // _ALIGNMENT) * _ALIGNMENT
        return begins, position

    def _batch(self, memory: memoryview, rows: dict[str, _Rows], low: int, high: int) -> Batch:
        """Samples `low` to `high` - 1 of a group as a batch."""
        batch: Batch = {}
        shared: list[tuple[IntArray, torch.Tensor]] = []
        for name, field in self.fields.items():
            found = rows[name]
            if found.whole is not None and low < high:
                batch[name] = torch.from_numpy(found.whole[low:high])
                continue
            if found.lengths is None:
                begin = found.begin + low * field.row_bytes
                batch[name] = batch_of(memory, begin, high - low, field)
                continue
            before = int(found.lengths[:low].sum()) if low else 0
            lengths = found.lengths[low:high]
            values = batch_of(memory, found.begin + before * field.row_bytes, int(lengths.sum()), field)
            if field.kind in ("str", "bytes"):
                batch[name] = texts(name, field, values.numpy().tobytes(), lengths)
            else:
                batch[name] = self.ragged(name, values, lengths, shared)
        return batch


def joined(name: str, ragged: bool, slices: Sequence[RowSlice]) -> tuple[IntArray, IntArray | None]:
    """Addresses, and rows if the field is ragged, of a field of the samples of all slices."""
    parts = [(part.rows.fields[name], part.low, part.high) for part in slices]
    none = np.zeros(0, np.int64)
    addresses = np.concatenate([none, *(rows.addresses[low:high] for rows, low, high in parts)])
    if not ragged:
        return addresses, None
    lengths = [rows.lengths[low:high] for rows, low, high in parts if rows.lengths is not None]
    return addresses, np.concatenate([none, *lengths])


def batch_of(memory: memoryview, begin: int, rows: int, field: Field) -> torch.Tensor:
    """A tensor ``[rows, *row_shape]`` over `memory`, which lives as long as the tensor does."""
    dtype, shape = torch_dtype(field.dtype), (rows, *field.row_shape)
    count = rows * field.row_bytes // field.dtype.itemsize
    if not count:
        return torch.empty(shape, dtype=dtype, device="cpu")
    if (array := _array_of(memory, begin, rows, field)) is not None:
        return torch.from_numpy(array)
    # torch's `view` gives the interpreter lock back, and whoever takes it may keep it for a while.
    return torch.frombuffer(memory, dtype=dtype, count=count, offset=begin).view(shape)


def _array_of(memory: memoryview, begin: int, rows: int, field: Field) -> NDArray[Any] | None:
    """Rows in memory as an array, where numpy has their element type.

    A tensor made of it, or of a part, has that part alone as its storage: saving a batch does not save its neighbours.
    """
    known = numpy_dtype(field.dtype)
    if known is None or not rows * field.row_bytes:
        return None
    return np.ndarray((rows, *field.row_shape), known, memory, begin)


def pad(values: torch.Tensor, lengths: IntArray, padding: NDArray[np.uint8]) -> torch.Tensor:
    """Rows of samples, one behind the other, as ``[samples, longest, *row_shape]``, filled up with an element's bytes.

    torch's own padding knows neither uint16 nor fp8; indexing bytes knows all.
    """
    longest = int(lengths.max()) if len(lengths) else 0
    shape = (len(lengths), longest, *values.shape[1:])
    padded = torch.empty(shape, dtype=values.dtype, device=values.device)
    width = values[:1].numel() * values.element_size() if len(values) else 0
    padded.view(torch.uint8).view(-1, values.element_size())[:] = torch.from_numpy(padding).to(values.device)
    if width:
        mask = torch.from_numpy(np.arange(longest) < lengths[:, None]).to(values.device)
        padded.view(torch.uint8).view(len(lengths), longest, width)[mask] = values.view(torch.uint8).view(-1, width)
    return padded


def texts(name: str, field: Field, data: bytes, lengths: IntArray) -> list[str] | list[bytes]:
    """Texts or bytes of samples that lie one behind the other.

    Raises:
        FormatError: if a text is no UTF-8.
    """
    ends = np.cumsum(lengths).tolist()
    pieces = [data[low:high] for low, high in pairwise([0, *ends])]
    if field.kind == "bytes":
        return pieces
    try:
        return [piece.decode("utf-8") for piece in pieces]
    except UnicodeDecodeError as error:
        raise FormatError(
            f"field {name!r} holds a text that is no valid UTF-8: {error}",
            remedy="Run ShardDataset.verify(): the bytes were damaged, or written by something else.",
        ) from None
