"""Writing shards."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from typing import Any, Self, cast

import numpy as np

from gdsload.errors import WriteError
from gdsload.shards.encode import EncodedField, batch_rows, column_rows, infer_schema, sample_rows, unambiguous
from gdsload.shards.format.checksum import BLOCK_BYTES, block_digests
from gdsload.shards.format.index import Index, IndexEntry
from gdsload.shards.format.layout import ShardLayout
from gdsload.shards.format.metadata import checked_metadata
from gdsload.shards.format.schema import Field, Schema
from gdsload.shards.format.shard import OFFSETS_PREFIX
from gdsload.shards.format.stored import PackRule, StoredSchema, pack_rule, packed_by
from gdsload.shards.publish import Publication
from gdsload.shards.shard_folders import shard_name
from gdsload.shards.status import naming, write_error
from gdsload.shards.values import unrounded
from gdsload.system.arrays import IntArray
from gdsload.system.units import parse_bytes

_WRITE_BYTES = 64 * BLOCK_BYTES


class ShardWriter:
    """Writes samples into a dataset of shards.

        with gdsload.ShardWriter("shards/") as writer:
            for image, label in samples:
                writer.write({"image": image, "label": label})

    The dataset appears at `path` when the context is left without an exception: all of it, by one rename. Until then,
    and after an exception or a kill, there is nothing there, or still what was there before.

    Samples are kept in memory until they fill a shard.

    Args:
        path: the folder to make.
        schema: the fields: a `Schema`, or a mapping from names to `Field` (or ``"str"``, ``"bytes"``). None: those of
            the first sample or batch. A ragged field needs a schema, or a first batch that shows it to be ragged.
        shard_bytes: about how large a shard gets, in bytes or as ``"256MiB"``. A larger sample gets its own shard.
        overwrite: replace a dataset that is at `path`. Anything else that is there is never replaced.
        pack_fields: the fields that are stored together, so that one read gets a sample's values of all of them. A list
            of names, ``()`` for none, or ``"auto"``: fields of one shape and at most 16 bytes, if there are at least 4.
            In batches, packed fields are views of the same memory. Other safetensors readers see rows of bytes.
        spread_over: folders, one on each drive, over which the shards are spread in turn: each gets a folder of them,
            and `path` has links to them. They must exist. If there are none, the shards are in `path` itself.
        metadata: metadata of the dataset, for `ShardDataset.metadata`: anything that JSON can hold, at most 16 MiB.
            ``{"classes": {"label": ["cat", "dog"]}}`` names the classes of a field of labels.

    Raises:
        OptionError: if `pack_fields` is no list of names, a folder is named twice in `spread_over`, or JSON cannot hold
            `metadata`.
        SchemaError: if a field is to be packed that the schema does not have, or whose samples are not of one shape and
            at least one byte; without a schema, from the first sample on.
        DatasetExistsError: if there is something at `path` that must not be replaced.
        WriteError: if nothing can be written there.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        schema: Schema | Mapping[str, Field | str] | None = None,
        *,
        shard_bytes: int | str = "256MiB",
        overwrite: bool = False,
        pack_fields: PackRule = "auto",
        spread_over: Sequence[str | os.PathLike[str]] | None = (),
        metadata: Mapping[str, Any] | None = None,
    ) -> None:
        self._metadata = checked_metadata(metadata)
        self._pack_rule = pack_rule(pack_fields)
        self._shard_bytes = parse_bytes(shard_bytes, "shard_bytes", at_least=1)
        self._stored: StoredSchema | None = None
        self._inferred = schema is None
        if schema is not None:
            self._stored = packed_by(schema if isinstance(schema, Schema) else Schema(schema), self._pack_rule)
        self._columns: dict[str, _Column] = {}
        self._pending = 0
        self._pending_bytes = 0
        self._entries: list[IndexEntry] = []
        self._state = "open"
        self._place = Publication(os.fspath(path), overwrite=overwrite, spread_over=spread_over)

    @property
    def schema(self) -> Schema | None:
        """The schema; None before the first sample if none was given."""
        return None if self._stored is None else self._stored.schema

    @property
    def samples(self) -> int:
        """Samples written so far."""
        return sum(entry.samples for entry in self._entries) + self._pending

    def write(self, sample: Mapping[str, Any]) -> None:
        """Write one sample.

        Args:
            sample: field names to values: tensors on any device, arrays, numbers, lists of numbers, `str`, `bytes`, or
                images of Pillow's, which become uint8 ``[channels, height, width]``.

        Raises:
            SchemaError: if it does not fit the schema; nothing of it is written then, and writing may go on.
            WriteError: if the disk is full or fails; the writer is aborted then.
        """
        self._check_open()
        stored = self._stored or packed_by(unambiguous(infer_schema(sample, batch=False)), self._pack_rule)
        self._append(stored, sample_rows(stored.schema, self._typed(sample)))

    def _typed(self, values: Mapping[str, Any]) -> Mapping[str, Any]:
        """Values whose Python floats are refused where the first sample has made a field narrower, and not rounded."""
        if not self._inferred or not isinstance(values, Mapping):
            return values
        return {name: unrounded(value, name) for name, value in values.items()}

    def write_batch(self, batch: Mapping[str, Any]) -> None:
        """Write many samples, much faster than one by one.

        Args:
            batch: field names to values. Of a fixed field: one tensor or array ``[samples, *shape]``, or a list of
                samples. Of a ragged field: a list of tensors, a jagged nested tensor, or a tuple (values
                ``[rows, ...]``, offsets ``[samples + 1]``). Of a text field: a list of `str` or `bytes`.

        Raises:
            SchemaError: if they do not fit the schema; nothing of them is written then, and writing may go on.
            WriteError: if the disk is full or fails; the writer is aborted then.
        """
        self._check_open()
        stored = self._stored or packed_by(infer_schema(batch, batch=True), self._pack_rule)
        self._append(stored, batch_rows(stored.schema, self._typed(batch)))

    def close(self) -> None:
        """Finish the dataset and make it appear. Leaving the context does this.

        Raises:
            WriteError: if the disk is full or fails; nothing appears then.
        """
        self._check_open()
        try:
            if self._pending:
                self._write_shard()
            stored = self._stored
            if stored is None:
                remedy = "Give a schema to write an empty dataset."
                raise WriteError("the dataset has neither samples nor a schema", file=self._place.path, remedy=remedy)
            self._place.write_index(Index(stored, tuple(self._entries), self._metadata))
        except BaseException:
            self.abort()
            raise
        self._state = "closed"
        self._place.publish()

    def abort(self) -> None:
        """Throw away what was written. Leaving the context by an exception does this."""
        if self._state == "open":
            self._state = "aborted"
            self._columns.clear()
            self._place.abandon()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_error: object) -> None:
        if kind is not None:
            self.abort()
        elif self._state == "open":
            self.close()

    def __del__(self) -> None:
        if getattr(self, "_state", "") == "open" and hasattr(self, "_place"):
            self.abort()

    def _check_open(self) -> None:
        if self._state != "open":
            raise WriteError(f"the writer is {self._state}", file=self._place.path, remedy="Make a new one.")
        if self._place.owner != os.getpid():
            what, remedy = "the writer belongs to another process", "Write where it was made."
            raise WriteError(what, file=self._place.path, remedy=remedy)

    def _append(self, stored: StoredSchema, fields: dict[str, EncodedField]) -> None:
        """Keep samples; if that fails or is interrupted, its state is unknown, so the writer is aborted."""
        self._stored = stored
        try:
            with naming(write_error, "samples cannot be written", self._place.path):
                self._keep(stored, column_rows(stored, fields))
        except BaseException:
            self.abort()
            raise

    def _keep(self, stored: StoredSchema, rows: dict[str, EncodedField]) -> None:
        """Keep samples, and write a shard whenever enough are there for one."""
        if not self._columns:
            samples = self._expected(stored)
            self._columns = {name: _Column(field, samples * field.row_bytes) for name, field in stored.columns.items()}
        count = next(iter(rows.values())).samples
        sizes = np.full(count, stored.schema.fixed_bytes, np.int64)  # whatever is packed, shards have the same samples
        for name, found in rows.items():
            if found.lengths is not None:
                sizes += found.lengths * stored.columns[name].row_bytes + 8
        ends = np.cumsum(sizes)
        low = 0
        while low < count:
            before = int(ends[low - 1]) if low else 0
            room = max(self._shard_bytes - self._pending_bytes, 0)
            high = int(np.searchsorted(ends, before + room, side="right"))
            if high <= low and self._pending:
                self._write_shard()
                continue
            high = max(high, low + 1)
            for name, found in rows.items():
                self._columns[name].append(found, low, high)
            self._pending += high - low
            self._pending_bytes += int(ends[high - 1]) - before
            low = high
            if self._pending_bytes >= self._shard_bytes:
                self._write_shard()

    def _expected(self, stored: StoredSchema) -> int:
        """The expected samples of a shard, or 0 if unknown: memory that grows is copied each time."""
        if any(field.ragged for field in stored.columns.values()):
            return 0
        return self._shard_bytes // max(stored.schema.fixed_bytes, 1) + 1

    def _write_shard(self) -> None:
        stored = cast("StoredSchema", self._stored)  # there are samples, so there is one
        owners = _shared_offsets(stored, self._columns)
        rows = {name: self._columns[name].rows for name, field in stored.columns.items() if field.ragged}
        layout = ShardLayout(stored, self._pending, rows, owners)
        tensors = {OFFSETS_PREFIX + owner: self._columns[owner].offsets() for owner in dict.fromkeys(owners.values())}
        tensors.update({name: self._columns[name].bytes() for name in stored.columns})
        name = shard_name(len(self._entries))
        path = self._place.place(name, len(self._entries))
        sha256 = _write_file(path, layout, tensors)
        size = len(layout.header()) + layout.data_bytes()
        self._entries.append(IndexEntry(name, self._pending, size, sha256))
        for column in self._columns.values():
            column.clear()
        self._pending = self._pending_bytes = 0


def _shared_offsets(stored: StoredSchema, columns: Mapping[str, _Column]) -> dict[str, str]:
    """For each ragged field the first field with the same lengths, whose offsets it uses."""
    owners: dict[str, str] = {}
    for name, field in stored.columns.items():
        if field.ragged:
            twins = (other for other in dict.fromkeys(owners.values()) if columns[other].same_lengths(columns[name]))
            owners[name] = next(twins, name)
    return owners


def _write_file(path: str, layout: ShardLayout, tensors: Mapping[str, memoryview]) -> str:
    """Write one shard, tensors first and header last, and return the SHA-256 of its header."""
    with naming(write_error, "the file cannot be written", path):
        fd = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o666)
        try:
            start = len(layout.header())
            digests = {}
            for name, offset in layout.data_offsets().items():
                digests[name] = _write_tensor(fd, tensors[name], start + offset)
            header = layout.header(digests)
            os.ftruncate(fd, start + layout.data_bytes())
            _pwrite(fd, memoryview(header), 0)
            os.fsync(fd)
        finally:
            os.close(fd)
    return hashlib.sha256(header).hexdigest()


def _write_tensor(fd: int, data: memoryview, offset: int) -> str:
    """Write a tensor's bytes and return their checksums, one pass over memory for both."""
    found = []
    for low in range(0, len(data), _WRITE_BYTES):
        piece = data[low : low + _WRITE_BYTES]
        found.append(block_digests(piece))
        _pwrite(fd, piece, offset + low)
    return "".join(found)


def _pwrite(fd: int, data: memoryview, offset: int) -> None:
    while len(data):
        count = os.pwrite(fd, data, offset)
        data, offset = data[count:], offset + count


class _Column:
    """The samples of one column that wait for their shard."""

    def __init__(self, field: Field, expected: int) -> None:
        self._row_bytes = field.row_bytes
        self._expected = expected
        self._data = np.empty(0, np.uint8)
        self._used = 0
        self._lengths: list[IntArray] = []
        self.rows = 0

    def append(self, rows: EncodedField, low: int, high: int) -> None:
        """Copy samples `low` to `high` - 1."""
        if rows.lengths is None:
            data = rows.data[low:high]
        else:
            lengths = rows.lengths[low:high]
            first = int(rows.lengths[:low].sum())
            data = rows.data[first : first + int(lengths.sum())]
            self._lengths.append(lengths)
        end = self._used + data.size
        if end > len(self._data):
            few = end <= self._expected // 16  # a writer of a few samples must not ask for a whole shard's memory
            grown = np.empty(max(end, 2 * len(self._data), 0 if few else self._expected), np.uint8)
            grown[: self._used] = self._data[: self._used]
            self._data = grown
        self._data[self._used : end].reshape(data.shape)[...] = data
        self._used = end
        self.rows += len(data)

    def bytes(self) -> memoryview:
        return self._data[: self._used].data

    def lengths(self) -> IntArray:
        return np.concatenate([np.zeros(0, np.int64), *self._lengths])

    def offsets(self) -> memoryview:
        """Row offsets, samples + 1 of them, as bytes."""
        offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(self.lengths())])
        return offsets.astype("<i8", copy=False).data.cast("B")

    def same_lengths(self, other: _Column) -> bool:
        return self.rows == other.rows and np.array_equal(self.lengths(), other.lengths())

    def clear(self) -> None:
        """Forget the samples, but keep the memory."""
        self._used = self.rows = 0
        self._lengths.clear()
