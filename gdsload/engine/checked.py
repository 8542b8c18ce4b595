"""A backend whose bytes are compared with the shards' checksums where they land, before anything is made of them.

    read(extents) -> whole checksum blocks are read -> a thread compares them -> the read has landed

A checksum is of 256 KiB of a column (docs/spec/shard-v1.md), so each read is widened to whole blocks. Bytes in the
GPU's memory are compared by the GPU, others by the CPU. A block that differs is no error of the read: it is noted with
the samples that it belongs to, and `refuse` raises an error for those batches alone that have one of them. Shards that
the GPU can address are compared once, before their addresses are given.
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

from gdsload.backends.base import Backend, Destination, PendingRead, ShardAddresses
from gdsload.engine.gpu.checksums import queue_checksums
from gdsload.errors import ChecksumError, OptionError, Problem
from gdsload.shards.format.checksum import BLOCK_BYTES
from gdsload.shards.format.shard import OFFSETS_PREFIX
from gdsload.shards.opening import as_named, read_header
from gdsload.shards.reads import Extents, concat_extents, distinct, within
from gdsload.shards.shard_table import ShardTable
from gdsload.shards.verify.opened import OpenShard
from gdsload.system.arrays import IntArray, unique
from gdsload.system.memory_views import dense_view
from gdsload.system.pool import Pool, end_at_exit
from gdsload.system.streams import on, side_stream

_THREADS = 4
_NUMBER_BITS = 32
_REMEDY = (
    "Restore the shard from a copy, or write the dataset again; "
    '`verify=gdsload.Verify("all", on_corrupt="skip")` leaves such batches out.'
)


class Checked:
    """Compares with their checksums what another backend reads, which is closed with this one.

    Args:
        inner: the other backend.
        table: the shards' rows.
        columns: the columns that are read.
        names: the number in errors of the first sample of each shard.
        device: the GPU whose memory bytes may land in; None: they land in host memory.
    """

    def __init__(
        self, inner: Backend, table: ShardTable, columns: Sequence[str], names: IntArray, device: torch.device | None
    ) -> None:
        # A loader that is dropped closes its backend when the last reader has let go of the table.
        self._table: ShardTable = weakref.proxy(table)
        self.inner, self._columns, self._names, self._device = inner, columns, names, device
        self.name, self.in_place, self.addressable = inner.name, inner.in_place, inner.addressable
        self.check, self.bytes_by_path, self.tiers = inner.check, inner.bytes_by_path, inner.tiers
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
        keys, blocks, runs, of_block, of_wanted = self._around(wanted)
        pending = self.inner.read(runs, to)
        origins = pending.addresses - runs.offset
        compare = partial(self._compare_landed, pending, keys, blocks, origins[of_block] + blocks.offset, to)
        try:
            landed = self._pool.run([compare]) if len(keys) else pending.completion
        except BaseException:
            try:
                pending.completion.wait()
            finally:
                pending.release()
            raise
        return replace(pending, addresses=origins[of_wanted] + wanted.offset, completion=landed)

    def refuse(self, ids: IntArray, offsets: Mapping[str, Sequence[int]]) -> None:
        """Raise ChecksumError if some of these samples, which have landed, differ from what was written.

        `offsets` are those of each column's windows; none where samples are no windows.
        """
        problems = []
        for (file, column, _), problem in sorted(self._damaged.copy().items()):
            low, high = np.array(problem.samples) + self._table.starts[file] - self._names[file]
            samples = ids[:, None] + np.array(offsets.get(self._columns[column], (0,)))
            if ((low <= samples) & (samples < high)).any():
                problems.append(problem)
        if problems:
            raise ChecksumError("samples of a batch differ from what was written", problems=problems, remedy=_REMEDY)

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
                raise ChecksumError("the offsets of ragged fields are damaged", problems=problems, remedy=_REMEDY)
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

    def _around(self, wanted: Extents) -> tuple[IntArray, Extents, Extents, IntArray, IntArray]:
        """The blocks that hold extents of open shards, each once, and the runs of blocks that are read.

        Returns the blocks' keys, which are made of shard, column and number, and their bytes; the runs; and the run
        that each block, and each extent, is in. Extents without bytes are runs themselves.
        """
        some, none = wanted.nbytes.nonzero()[0], (wanted.nbytes == 0).nonzero()[0]
        file, offset, names, table = wanted.file[some], wanted.offset[some], self._columns, self._table
        begins = np.stack([table.begin[name][file] for name in names])
        ends = begins + np.stack([table.rows[name][file] * table.columns[name].row_bytes for name in names])
        column, each = ((begins <= offset) & (offset < ends)).argmax(axis=0), np.arange(len(some))
        begin, end = begins[column, each], ends[column, each]
        low, high = (offset - begin) // BLOCK_BYTES, -(-(offset + wanted.nbytes[some] - begin) // BLOCK_BYTES)
        first = (file * len(names) + column << _NUMBER_BITS) + low
        counts = high - low
        keys = unique(first.repeat(counts) + within(counts))
        # Of any extent of a block's column: where that begins and ends.
        by_first = first.argsort()
        like = by_first[np.searchsorted(first[by_first] >> _NUMBER_BITS, keys >> _NUMBER_BITS)]
        at = begin[like] + (keys & (1 << _NUMBER_BITS) - 1) * BLOCK_BYTES
        blocks = Extents(file[like], at, np.minimum(BLOCK_BYTES, end[like] - at))
        broken = np.diff(keys, prepend=-2) != 1
        of_block = broken.cumsum() - 1
        starts = broken.nonzero()[0]
        nbytes = np.add.reduceat(blocks.nbytes, starts) if len(starts) else blocks.nbytes
        runs = concat_extents([Extents(blocks.file[starts], at[starts], nbytes), wanted[none]])
        of_wanted = np.empty(len(wanted), np.int64)
        of_wanted[some] = of_block[np.searchsorted(keys, first)]
        of_wanted[none] = np.arange(len(starts), len(runs))
        return keys, blocks, runs, of_block, of_wanted

    def _compare_landed(
        self, pending: PendingRead, keys: IntArray, blocks: Extents, addresses: IntArray, to: Destination
    ) -> None:
        pending.completion.wait()
        self._compare(keys, blocks, addresses, on_host=to == "host")

    def _compare(self, keys: IntArray, blocks: Extents, addresses: IntArray, *, on_host: bool = False) -> None:
        """Compare blocks, at least one, and note those that differ; if not all are `on_host`, those in mappings are."""
        here = np.full(len(keys), fill_value=True)
        if self._stream is not None and not on_host:
            here = self._table.files.in_mappings(addresses)
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
            begins = np.array([self._table.begin[name][file] for name in self._columns])
            rows = [self._table.rows[name][file] * self._table.columns[name].row_bytes for name in self._columns]
            keys, blocks, *_ = self._around(Extents(np.full(len(begins), file), begins, np.array(rows)))
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
