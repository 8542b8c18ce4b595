"""Checking a dataset's bytes against its checksums."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from gdsload.backends.files import ShardSource, load_shard, open_regular, pread_exact
from gdsload.errors import ChecksumError, DatasetNotFoundError, FormatError, Problem
from gdsload.format.checksum import DIGEST_CHARS, block_digest
from gdsload.format.header import TensorEntry
from gdsload.format.schema import Schema
from gdsload.format.shard import OFFSETS_PREFIX, PADDING_PREFIX, Checksums, Shard

__all__ = ["VerifyReport", "verify_shards"]

_READ_BYTES = 8 * 2**20


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """What a verification read.

    Attributes:
        shards: number of shards.
        checked_bytes: bytes that were compared with a checksum.
        unchecked_bytes: bytes of tensors that have none, in files that gdsload did not write.
    """

    shards: int
    checked_bytes: int
    unchecked_bytes: int


def verify_shards(
    sources: Sequence[ShardSource], schema: Schema, progress: Callable[[int, int], None] | None
) -> VerifyReport:
    """Check all shards; see `ShardDataset.verify`."""
    meter = _Meter(sum(max(source.file_bytes, 0) for source in sources), progress)
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1), "gdsload-verify") as executor:
        results = list(executor.map(lambda source: _verify(source, schema, meter), sources))
    problems = [problem for found, _, _ in results for problem in found]
    if problems:
        files = len({problem.file for problem in problems})
        raise ChecksumError(
            f"{len(problems)} problems in {files} of {len(sources)} shards",
            problems=problems,
            remedy="Restore those shards from a copy, or write the dataset again.",
        )
    return VerifyReport(len(sources), sum(checked for _, checked, _ in results), sum(rest for _, _, rest in results))


class _Meter:
    """Adds up bytes from several threads."""

    def __init__(self, total: int, report: Callable[[int, int], None] | None) -> None:
        self._total, self._report, self._done = total, report, 0
        self._lock = threading.Lock()

    def add(self, nbytes: int) -> None:
        with self._lock:
            self._done += nbytes
            if self._report is not None:
                self._report(self._done, self._total)


def _verify(source: ShardSource, schema: Schema, meter: _Meter) -> tuple[list[Problem], int, int]:
    """Problems, bytes checked and bytes without checksums of one shard."""
    try:
        fd = open_regular(source.path, follow_links=source.follow_links)
    except DatasetNotFoundError:
        return [Problem("the shard is missing", source.path)], 0, 0
    try:
        try:
            shard = load_shard(fd, source.path)
        except FormatError as error:
            return list(error.problems), 0, 0
        if (source.sha256 or shard.header.sha256) != shard.header.sha256 or shard.schema != schema:
            return [Problem("its header is not the one that the index describes", source.path, 0)], 0, 0
        if source.samples not in (-1, shard.samples):
            message = f"it holds {shard.samples} samples, but the index says {source.samples}"
            return [Problem(message, source.path, 0)], 0, 0
        if shard.checksums is None:
            data = sum(entry.end - entry.begin for entry in shard.header.tensors.values())
            meter.add(shard.header.file_bytes)
            return [], 0, data
        problems: list[Problem] = []
        checked = 0
        meter.add(shard.header.data_start)
        for entry in shard.header.tensors.values():
            if entry.name.startswith(PADDING_PREFIX):
                problems += _verify_padding(fd, source.path, entry)
            else:
                problems += _verify_tensor(fd, source.path, shard, entry, shard.checksums)
                checked += entry.end - entry.begin
            meter.add(entry.end - entry.begin)
        for name, column in shard.columns.items():
            if column.offsets_begin is not None:
                problems += _verify_offsets(fd, source.path, shard, name, column.offsets_begin)
        return problems, checked, 0
    finally:
        os.close(fd)


def _blocks(fd: int, path: str, entry: TensorEntry, block_bytes: int) -> Iterator[tuple[int, memoryview]]:
    """Offset and bytes of each block of a tensor, read several at a time."""
    buffer = bytearray(min(max(block_bytes, _READ_BYTES // block_bytes * block_bytes), max(entry.end - entry.begin, 1)))
    for begin in range(entry.begin, entry.end, len(buffer)):
        view = memoryview(buffer)[: min(len(buffer), entry.end - begin)]
        pread_exact(fd, view, begin, path)
        for low in range(0, len(view), block_bytes):
            yield begin + low, view[low : low + block_bytes]


def _verify_tensor(fd: int, path: str, shard: Shard, entry: TensorEntry, sums: Checksums) -> Iterator[Problem]:
    digests = sums.digests[entry.name]
    for number, (offset, block) in enumerate(_blocks(fd, path, entry, sums.block_bytes)):
        if block_digest(block) != digests[number * DIGEST_CHARS : (number + 1) * DIGEST_CHARS]:
            message = f"{len(block)} bytes differ from what was written"
            samples = _samples_at(fd, path, shard, entry, offset - entry.begin, len(block))
            yield Problem(message, path, offset, entry.name.removeprefix(OFFSETS_PREFIX), samples)


def _samples_at(fd: int, path: str, shard: Shard, entry: TensorEntry, begin: int, nbytes: int) -> tuple[int, int]:
    """The half-open range of samples to which `nbytes` bytes of a tensor belong, from byte `begin` on."""
    if entry.name.startswith(OFFSETS_PREFIX):
        return max(begin // 8 - 1, 0), min((begin + nbytes) // 8, shard.samples)
    row_bytes = shard.schema[entry.name].row_bytes
    low, high = begin // row_bytes, -(-(begin + nbytes) // row_bytes)
    column = shard.columns[entry.name]
    if column.offsets_begin is None:
        return low, high
    offsets = _read_offsets(fd, path, shard, column.offsets_begin)
    first = int(np.searchsorted(offsets, low, side="right")) - 1
    return max(first, 0), min(int(np.searchsorted(offsets, high, side="left")), shard.samples)


def _verify_padding(fd: int, path: str, entry: TensorEntry) -> Iterator[Problem]:
    for offset, block in _blocks(fd, path, entry, _READ_BYTES):
        wrong = np.flatnonzero(np.frombuffer(block, np.uint8))
        if len(wrong):
            yield Problem("padding is not zero", path, offset + int(wrong[0]))


def _verify_offsets(fd: int, path: str, shard: Shard, name: str, begin: int) -> Iterator[Problem]:
    offsets = _read_offsets(fd, path, shard, begin)
    rows = shard.columns[name].rows
    if offsets[0] != 0 or offsets[-1] != rows:
        yield Problem(f"its offsets run from {offsets[0]} to {offsets[-1]}, not from 0 to {rows}", path, begin, name)
    falls = np.flatnonzero(np.diff(offsets) < 0)
    if len(falls):
        at = int(falls[0])
        yield Problem("its offsets fall", path, begin + (at + 1) * 8, name, (at, at + 1))


def _read_offsets(fd: int, path: str, shard: Shard, begin: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    offsets = np.empty(shard.samples + 1, np.int64)
    pread_exact(fd, offsets.data.cast("B"), begin, path)
    return offsets
