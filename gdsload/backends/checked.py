"""A backend whose bytes are compared with the shards' checksums where they land, before anything is made of them.

    read(extents) -> whole checksum blocks are read -> a thread compares them -> the read has landed

A checksum is of 256 KiB of a column (docs/spec/shard-v1.md), so each read is widened to whole blocks: to all that it
is in, or to one in 16 of them. Bytes in the GPU's memory are compared by the GPU, others by the CPU. A block that
differs is no error of the read: it is noted with the samples that it belongs to, and `refuse` raises an error for those
batches alone that have one of them. Shards that the GPU can address are compared once, before their addresses are
given.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise

import numpy as np
import torch
import xxhash
from numpy.typing import NDArray

from gdsload.backends.base import Backend, Both, Destination, PendingRead, ShardAddresses
from gdsload.errors import ChecksumError, OptionError, Problem
from gdsload.kernels.checksums import queue_checksums
from gdsload.order.hashing import Purpose, derive_key, hash_into
from gdsload.shards.format.checksum import BLOCK_BYTES
from gdsload.shards.format.shard import OFFSETS_PREFIX
from gdsload.shards.opening import as_named, read_header
from gdsload.shards.reads import Extents, coalesce, concat_extents, distinct, within
from gdsload.shards.shard_table import ShardTable
from gdsload.shards.verify.opened import OpenShard
from gdsload.system.arrays import IntArray, unique
from gdsload.system.memory_views import dense_view
from gdsload.system.pool import Pool, end_at_exit
from gdsload.system.streams import on, side_stream

SAMPLED = 16
"""One block in so many is compared, where they are sampled."""
_THREADS = 4
_NUMBER_BITS = 32
_LONGEST = 2**22
"""Bytes of a read from which it takes no adjacent one. The backend joins and cuts reads as suits its drives."""
_REMEDY = (
    "Restore the shard from a copy, or write the dataset again; "
    '`verify=gdsload.Verify("{}", on_corrupt="skip")` leaves such batches out.'
)


class Checked:
    """Compares with their checksums what another backend reads, which is closed with this one.

    Args:
        inner: the other backend.
        table: the shards' rows.
        columns: the columns that are read.
        names: the number in errors of the first sample of each shard.
        device: the GPU whose memory bytes may land in; None: they land in host memory.
        sample: the seed that one block in 16 is chosen by; None: all are compared.
    """

    def __init__(
        self,
        inner: Backend,
        table: ShardTable,
        columns: Sequence[str],
        names: IntArray,
        device: torch.device | None,
        sample: int | None = None,
    ) -> None:
        # A loader that is dropped closes its backend when the last reader has let go of the table.
        self._table: ShardTable = weakref.proxy(table)
        self.inner, self._columns, self._names, self._device = inner, columns, names, device
        self.name, self.in_place, self.addressable = inner.name, inner.in_place, inner.addressable
        self.check, self.bytes_by_path, self.tiers = inner.check, inner.bytes_by_path, inner.tiers
        self._remedy = _REMEDY.format("all" if sample is None else "sample")
        self._keys: NDArray[np.uint64] | None = None
        if sample is not None:
            # Of the columns' names: their numbers depend on the fields that a loader reads.
            hashes = [xxhash.xxh3_64_intdigest(name.encode()) for name in columns]
            self._keys = np.array([derive_key(sample, Purpose.CHECKED, value) for value in hashes], np.uint64)
        self._stream = None if device is None else side_stream(device)
        self._digests: dict[int, list[NDArray[np.uint64]]] = {}  # of open shards, by column
        # By shard, column and number of the block. All stay: a batch of the bytes that differed may not be made yet.
        self._damaged: dict[tuple[int, int, int], Problem] = {}
        self._asked_for: ShardAddresses | None = None  # those that are being compared, or were
        self._vouched_for: ShardAddresses | None = None  # those at which nothing differs
        self._closed = False
        self._lock = threading.RLock()
        self._pool = Pool(_THREADS, "gdsload-checksums")
        end_at_exit(self)

    def read(self, wanted: Extents, to: Destination = "device") -> PendingRead:
        """See `Backend.read`.

        Raises:
            ChecksumError: if the offsets of ragged fields differ from what was written.
            OptionError: if a shard has no checksums.
        """
        for file in distinct(wanted.file, len(self._names)).tolist():
            self._open(file)
        keys, blocks = self._blocks(wanted)
        # What overlaps is read once; what is in no block that is compared is read as it is wanted.
        reads = coalesce(concat_extents([wanted, blocks]), max_gap_bytes=0, max_read_bytes=_LONGEST)
        pending = self.inner.read(reads.extents, to)
        addresses, of_blocks = np.split(reads.places(pending.addresses), [len(wanted)])
        compare = partial(self._compare_landed, pending, keys, blocks, of_blocks)
        try:
            # With its own, as a backend may take a read for over when nothing refers to that: see `MappedBackend.read`.
            landed = Both(pending.completion, self._pool.run([compare])) if len(keys) else pending.completion
        except BaseException:
            try:
                pending.completion.wait()
            finally:
                pending.release()
            raise
        return replace(pending, addresses=addresses, completion=landed)

    def refuse(self, ids: IntArray, offsets: Mapping[str, Sequence[int]]) -> None:
        """Raise ChecksumError if some of these samples, which have landed, differ from what was written.

        `offsets` are those of each column's clips; none where samples are no clips.
        """
        problems = []
        for (file, column, _), problem in sorted(self._damaged.copy().items()):
            low, high = np.array(problem.samples) + self._table.starts[file] - self._names[file]
            samples = ids[:, None] + np.array(offsets.get(self._columns[column], (0,)))
            if ((low <= samples) & (samples < high)).any():
                problems.append(problem)
        if problems:
            raise ChecksumError(
                "samples of a batch differ from what was written", problems=problems, remedy=self._remedy
            )

    def _open(self, file: int) -> None:
        """Get the checksums of an open shard, and compare its offsets."""
        with self._lock:
            if file in self._digests:
                return
            opened = self._opened(file)
            begins = {opened.shard.columns[name].offsets_begin for name in self._columns}
            problems = [
                problem
                for entry in opened.shard.header.tensors.values()
                if entry.name.startswith(OFFSETS_PREFIX) and entry.begin in begins
                for offset, piece in opened.pieces(entry.begin, entry.end)
                for problem in opened.damage(entry, offset, piece)
            ]
            if problems:
                raise ChecksumError("the offsets of ragged fields are damaged", problems=problems, remedy=self._remedy)
            texts = [opened.shard.digests[name] for name in self._columns]
            self._digests[file] = [np.frombuffer(bytes.fromhex(text), ">u8").astype(np.uint64) for text in texts]

    def _opened(self, file: int) -> OpenShard:
        """An open shard; OptionError if it has no checksums."""
        files = self._table.files
        source, read = files.sources[file], partial(files.read_into, file)
        shard = as_named(read_header(read, files.length(file), source.path), source, self._table.stored)
        if not shard.digests:
            raise OptionError(
                f"is on, but gdsload did not write {source.path}, which has no checksums",
                option="verify",
                remedy="Leave `verify` out, or write the dataset again with gdsload.convert.",
            )
        return OpenShard(read, source.path, shard, int(self._names[file]))

    def _blocks(self, wanted: Extents) -> tuple[IntArray, Extents]:
        """The blocks to be compared of those that hold extents of open shards, each once.

        Returns the blocks' keys, which are made of shard, column and number, in rising order, and their bytes.
        """
        wanted = wanted[wanted.nbytes > 0]
        begins, ends = self._spans(wanted.file)
        column = ((begins <= wanted.offset) & (wanted.offset < ends)).argmax(axis=0)
        ahead = wanted.offset - begins[column, np.arange(len(wanted))]
        first = (wanted.file * len(self._columns) + column << _NUMBER_BITS) + ahead // BLOCK_BYTES
        counts = (ahead + wanted.nbytes - 1) // BLOCK_BYTES - ahead // BLOCK_BYTES + 1
        keys = unique(first.repeat(counts) + within(counts))
        if self._keys is not None:
            file, column, number = self._split(keys)
            hashes = ((self._names[file] << _NUMBER_BITS) + number).astype(np.uint64)
            hash_into(hashes, self._keys[column], hashes, np.empty_like(hashes))
            keys = keys[hashes % SAMPLED == 0]
        file, column, number = self._split(keys)
        begin, end = self._spans(file)[:, column, np.arange(len(keys))]
        begin += number * BLOCK_BYTES
        return keys, Extents(file, begin, np.minimum(BLOCK_BYTES, end - begin))

    def _split(self, keys: IntArray) -> tuple[IntArray, IntArray, IntArray]:
        """The shard, column and number of each block."""
        file, column = np.divmod(keys >> _NUMBER_BITS, len(self._columns))
        return file, column, keys & (1 << _NUMBER_BITS) - 1

    def _spans(self, file: IntArray) -> IntArray:
        """The begin and the end of each column in open shards, shape ``[2, columns, shards]``."""
        table, names = self._table, self._columns
        begins = np.stack([table.begin[name][file] for name in names])
        nbytes = np.stack([table.rows[name][file] * table.columns[name].row_bytes for name in names])
        return np.stack([begins, begins + nbytes])

    def _compare_landed(self, pending: PendingRead, keys: IntArray, blocks: Extents, addresses: IntArray) -> None:
        pending.completion.wait()
        self._compare(keys, blocks, addresses)

    def _compare(self, keys: IntArray, blocks: Extents, addresses: IntArray) -> None:
        """Compare blocks, at least one, and note those that differ: those in mappings by the CPU.

        Not by what a read is for: a tier in the GPU's memory gives its addresses for the host, too.
        """
        here = np.full(len(keys), fill_value=True) if self._device is None else self._table.files.in_mappings(addresses)
        found = np.empty(len(keys), np.uint64)
        if self._stream is not None and self._device is not None and not here.all():
            with on(self._stream):
                made = queue_checksums(addresses[~here], blocks.nbytes[~here], self._device)
                found[~here] = made.cpu().numpy().view(np.uint64)
        for index in here.nonzero()[0].tolist():
            memory = dense_view(1, int(blocks.nbytes[index]), int(addresses[index]), 1)
            found[index] = xxhash.xxh3_64_intdigest(memory.numpy().data)
        tensors, numbers = keys >> _NUMBER_BITS, keys & (1 << _NUMBER_BITS) - 1
        edges = [0, *(np.flatnonzero(np.diff(tensors)) + 1).tolist(), len(keys)]
        for start, stop in pairwise(edges):
            file, column = divmod(int(tensors[start]), len(self._columns))
            right = found[start:stop] == self._digests[file][column][numbers[start:stop]]
            for number in numbers[start:stop][~right].tolist():
                self._note(file, column, number)

    def _note(self, file: int, column: int, number: int) -> None:
        """Note that a block differs, after a look at whether it does in the file, too."""
        opened = self._opened(file)
        entry = opened.shard.header.tensors[self._columns[column]]
        offset = entry.begin + number * BLOCK_BYTES
        again = memoryview(bytearray(min(BLOCK_BYTES, entry.end - offset)))
        opened.read(again, offset)
        problems = list(opened.damage(entry, offset, again))
        if not problems:
            message = f"{len(again)} bytes changed after they were read; those in the file are right"
            problems = [opened.problem(message, entry, offset, len(again))]
        self._damaged[file, column, number] = problems[0]

    def addresses(self) -> ShardAddresses | None:
        """See `Backend.addresses`: None until all that is there has been compared, or if some of it is damaged."""
        found = self.inner.addresses()
        if found is None or found is self._vouched_for:
            return found
        with self._lock:
            if found is not self._asked_for and not self._closed:
                self._asked_for = found
                self._pool.run([partial(self._compare_all, found)])
        return None

    def _compare_all(self, there: ShardAddresses) -> None:
        """Compare all shards that the device can address. Errors are raised where the shards are read."""
        for file in range(len(self._names)):
            if self._closed or self._damaged:
                return
            self._table.ensure_open(np.array([file]))
            self._open(file)
            begins, ends = self._spans(np.array([file]))[..., 0]
            keys, blocks = self._blocks(Extents(np.full(len(begins), file), begins, ends - begins))
            if len(keys):
                self._compare(keys, blocks, there.base[file] + blocks.offset)
        if not self._damaged:
            self._vouched_for = there

    def end(self) -> None:
        """Begin to compare nothing more, and wait for the threads: memory that is read into must not go before."""
        self._closed = True
        self._pool.finish()

    def close(self) -> None:
        """See `Backend.close`."""
        self.end()
        self.inner.close()
