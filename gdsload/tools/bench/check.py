"""The check that every row returns the dataset's bytes, before anything is timed."""

from __future__ import annotations

import time
from contextlib import closing
from typing import Any, cast

import numpy as np
import torch
import xxhash

from gdsload.engine.assemble import Batch
from gdsload.errors import ReadError
from gdsload.shards.encode import sample_of
from gdsload.shards.values import memory_of
from gdsload.tools.bench.bench_plan import BenchPlan
from gdsload.tools.bench.rows import Row

_SAMPLES, _LEAST_SAMPLES, _SAMPLES_OF_A_BATCH = 512, 4, 128
_BYTES = 64 * 2**20
_MOST_S = 2.0
_SEED = 0

Digest = tuple[bytes, int]
"""Digest and bytes of a sample."""


def check_row(row: Row, plan: BenchPlan, digests: dict[int, Digest]) -> dict[str, Any]:
    """Compare samples of the first batches of a row with the dataset's, in the order that the loader is to have.

    Up to 512 samples and about 64 MiB of them are compared, drawn with a fixed seed, of what comes within two seconds.
    `digests` has those of samples that `ShardDataset` has read, without mapping a file; it is filled on the way.

    Returns:
        The comparison, for the record.

    Raises:
        ReadError: if a sample is not what the dataset holds, or a batch has fewer or more.
    """
    most = max(min(_SAMPLES, int(_BYTES / plan.sample_bytes)), _LEAST_SAMPLES)
    each = max(_SAMPLES_OF_A_BATCH, -(-most // plan.batches))
    random = np.random.default_rng(_SEED)
    found: dict[int, Digest] = {}
    row.open()
    until = float("inf")
    expected = plan.ids(0)
    with closing(cast("Any", row.epoch(0))) as batches:
        for ids in expected:
            batch = next(batches, None)
            if batch is None or _size(batch) != len(ids):
                count = 0 if batch is None else _size(batch)
                raise _wrong(row, f"a batch has {count} samples instead of {len(ids)}")
            until = min(until, time.monotonic() + _MOST_S)  # from the first batch on: workers take a while to begin
            for place in random.permutation(len(ids))[: min(each, most - len(found))].tolist():
                found[int(ids[place])] = _digest(sample_of(batch, place))
            if len(found) >= most or time.monotonic() > until:
                break
    row.rest()
    for index, digest in found.items():
        if index not in digests:
            digests[index] = _digest(plan.dataset[index])
        if digest != digests[index]:
            raise _wrong(row, f"sample {index} has other bytes than ShardDataset reads, or comes at another place")
    return {"row": row.name, "samples": len(found), "bytes": sum(nbytes for _, nbytes in found.values())}


def _wrong(row: Row, what: str) -> ReadError:
    return ReadError(
        f"row {row.name!r} is wrong, and nothing was measured: {what}",
        remedy="Do not train with this backend. Check the files with `gdsload verify`.",
    )


def _size(batch: Batch) -> int:
    value = next(iter(batch.values()))
    return len(value[1]) - 1 if isinstance(value, tuple) else len(value)


def _digest(sample: dict[str, Any]) -> Digest:
    """Names, types, shapes and bytes of a sample as one digest; and how many bytes it has."""
    state, total = xxhash.xxh3_128(), 0
    for name, value in sample.items():
        if isinstance(value, torch.Tensor):
            kind = f"{value.dtype} {tuple(value.shape)}"
            raw: Any = memory_of(value)
        else:
            kind = type(value).__name__
            raw = np.frombuffer(value.encode() if isinstance(value, str) else value, np.uint8)
        state.update(f"{name!r} {kind} {raw.nbytes} ".encode())
        state.update(raw)
        total += raw.nbytes
    return state.digest(), total
