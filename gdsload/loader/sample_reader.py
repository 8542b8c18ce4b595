"""Samples and columns of a dataset, read in one process, without a loader."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from gdsload.backends.base import BackendStatus
from gdsload.backends.keep import default_register_bytes
from gdsload.backends.request import BackendRequest
from gdsload.backends.select import choose
from gdsload.engine.assemble import Assembler, Batch, BatchForm, BatchMaker
from gdsload.engine.codecs import codecs_of
from gdsload.engine.gpu.assemble_device import DeviceAssembler
from gdsload.engine.gpu.device_queue import DeviceQueue
from gdsload.engine.on_demand import on_demand
from gdsload.shards.catalog import Catalog
from gdsload.shards.files import OpenFiles
from gdsload.shards.page_cache import bytes_in_memory
from gdsload.shards.shard_table import ShardTable
from gdsload.shards.values import no_inference
from gdsload.system.arrays import IntArray
from gdsload.system.memory import BatchPool

CPU = torch.device("cpu")
_PIECE_BYTES = 32 * 2**20
_PIECE_SAMPLES = 16_384
"""The piece of a column that is read at once. A million samples of a label and some tokens take 0.12 s in such pieces,
and 0.68 s in one, whose addresses leave the processor's cache."""


class SampleReader:
    """Reads samples of a dataset in one process, for the CPU or a CUDA device. Several threads may call its methods."""

    def __init__(self, catalog: Catalog, open_files: OpenFiles, *, mapped: bool, device: torch.device = CPU) -> None:
        self.owner = os.getpid()
        self._table = ShardTable.of(catalog.sources, catalog.stored, mapped=mapped, open_files=open_files)
        register = default_register_bytes() + bytes_in_memory(catalog.sources) if device.type == "cuda" else 0
        request = BackendRequest(device=device, register_bytes=register)
        self._placement, self._opened = request.placement, choose(request, self._table.files)
        self._backend = self._opened.backend
        self._device, self._stored, self._schema = device, catalog.stored, catalog.schema
        self._made: dict[tuple[str, ...], Callable[[IntArray], Batch]] = {}

    def status(self) -> BackendStatus:
        """The backend that reads, the reason, and the bytes it has moved, by path."""
        opened = self._opened
        return BackendStatus("auto", opened.name(), opened.reason(), self._backend.bytes_by_path(), opened.answer())

    def samples(self, ids: IntArray) -> list[dict[str, Any]]:
        """Samples by id, as dicts of tensors that share no memory with later ones."""
        if not len(ids):
            return []
        batch = self.batch(ids, tuple(self._schema))
        split = {name: _split(batch[name]) for name in self._schema}
        return [dict(zip(split, values, strict=True)) for values in zip(*split.values(), strict=True)]

    def batch(self, ids: IntArray, fields: tuple[str, ...]) -> dict[str, Any]:
        """Some fields of samples by id, as one batch."""
        if (made := self._made.get(fields)) is None:
            form = BatchForm(codecs_of(self._stored, fields, "offsets"), fields=fields)
            made = self._made.setdefault(fields, on_demand(self._table, self._backend, self._maker(form)))
        return made(ids)

    def _maker(self, form: BatchForm) -> BatchMaker:
        if self._placement == "host":
            return Assembler(form, BatchPool(keep_bytes=0))
        return DeviceAssembler(form, DeviceQueue(self._device), on_host=self._table.files.in_mappings)

    def column(self, name: str) -> Any:
        """A field of all samples, as a batch of them all has it."""
        parts = (batch[name] for _, batch in self.pieces((name,)))
        field = self._schema[name]
        if field.is_string:
            return [value for part in parts for value in part]
        if not field.ragged:
            return self._filled(name, parts, self._table.samples)
        offsets = np.zeros(self._table.samples + 1, np.int64)
        np.cumsum(self.lengths(name), out=offsets[1:])
        values = self._filled(name, (part for part, _ in parts), int(offsets[-1]))
        with no_inference():
            return values, torch.from_numpy(offsets)

    def _filled(self, name: str, parts: Iterator[torch.Tensor], rows: int) -> torch.Tensor:
        """The rows of all parts in one tensor, of which there is one copy at any time."""
        none = self.batch(np.zeros(0, np.int64), (name,))[name]
        like = none[0] if self._schema[name].ragged else none
        with no_inference():
            whole = torch.empty((rows, *like.shape[1:]), dtype=like.dtype, device="cpu")
            low = 0
            for part in parts if whole.numel() else ():  # a small file may promise any number of rows of no bytes
                whole[low : low + len(part)] = part
                low += len(part)
        return whole

    def pieces(self, fields: tuple[str, ...]) -> Iterator[tuple[int, dict[str, Any]]]:
        """Some fields of all samples, as batches of neighbours, each with the number of its first sample."""
        edges = self._edges(fields)
        for low, high in pairwise(edges):
            yield low, self.batch(np.arange(low, high), fields)

    def _edges(self, fields: Sequence[str]) -> list[int]:
        """The first sample of each piece, and the end of the last: of limited samples and bytes, or of one sample."""
        columns = {name: self._stored.columns[name] for name in self._stored.columns_of(fields)}
        fixed = sum(field.row_bytes for field in columns.values() if not field.ragged)
        ragged = {name: field.row_bytes for name, field in columns.items() if field.ragged}
        samples = self._table.samples
        if not ragged:
            each = min(max(_PIECE_BYTES // max(fixed, 1), 1), _PIECE_SAMPLES)
            return [*range(0, samples, each), samples]
        ends = np.arange(1, samples + 1) * fixed
        for name, row_bytes in ragged.items():
            ends += np.cumsum(self.lengths(name)) * row_bytes
        edges = [0]
        while (low := edges[-1]) < samples:
            high = int(np.searchsorted(ends, (ends[low - 1] if low else 0) + _PIECE_BYTES, side="right"))
            edges.append(min(max(high, low + 1), low + _PIECE_SAMPLES, samples))
        return edges

    def lengths(self, name: str) -> IntArray:
        """Rows of each sample of a ragged field; shape ``[samples]``."""
        found = self._table.lengths(name)
        self._backend.check(np.arange(len(self._table.files.sources)))
        return found

    def sizes(self, ids: IntArray) -> IntArray:
        """Bytes of samples in a shard."""
        found = self._table.locate(ids)
        sizes: IntArray = np.full(len(ids), self._schema.fixed_bytes, np.int64)
        for name, field in self._table.columns.items():
            lengths = self._table.extents(name, found)[1]
            if lengths is not None:
                sizes += lengths * field.row_bytes + 8  # and an offset
        return sizes

    def close(self) -> None:
        """Close the files; in another process than that which made it, nothing is done."""
        if self.owner == os.getpid():
            self._backend.close()


def _split(value: Any) -> Sequence[Any]:
    if isinstance(value, list):
        return value
    if isinstance(value, tuple):
        values, offsets = value
        found = torch.split(values, offsets.diff().tolist())
    else:
        found = torch.unbind(value)
    # Not the views themselves: a change in place of one would affect its neighbours' gradients.
    return [part.data for part in found]
