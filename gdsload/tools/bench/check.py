"""The check that every row returns the dataset's bytes, before anything is timed."""

from __future__ import annotations

import time
from contextlib import closing
from typing import Any

import numpy as np
import torch

from gdsload.errors import ReadError
from gdsload.shards.encode import sample_of
from gdsload.shards.values import memory_of
from gdsload.tools.bench.bench_plan import BenchPlan
from gdsload.tools.bench.rows import Row, size_of

_SAMPLES, _LEAST_SAMPLES, _SAMPLES_OF_A_BATCH = 512, 4, 128
_BYTES = 64 * 2**20
_MOST_S = 2.0
_SEED = 0


def check_row(row: Row, plan: BenchPlan) -> dict[str, Any]:
    """Compare samples of the first batches of a row with the dataset's, in the order that the loader is to have.

    Up to 512 samples and about 64 MiB of them are compared, drawn with a fixed seed, of what comes within two seconds.
    `ShardDataset` reads them without mapping a file. Returns the comparison, for the record.

    Raises:
        ReadError: if a sample is not what the dataset holds, or a batch has fewer or more.
    """
    most = max(min(_SAMPLES, int(_BYTES / plan.sample_bytes)), _LEAST_SAMPLES)
    each = max(_SAMPLES_OF_A_BATCH, -(-most // plan.batches))
    random = np.random.default_rng(_SEED)
    compared, until = 0, float("inf")
    with closing(row.epoch(0)) as batches:
        for ids in plan.ids(0):
            batch: Any = next(batches, None)
            count = 0 if batch is None else size_of(batch)[0]
            if count != len(ids):
                raise _wrong(row, f"a batch has {count} samples instead of {len(ids)}")
            until = min(until, time.monotonic() + _MOST_S)  # from the first batch on: workers take a while to begin
            places = random.permutation(count)[: min(each, most - compared)]
            wanted = plan.dataset.read_batch(ids[places])
            for number, place in enumerate(places.tolist()):
                if not _equal(sample_of(batch, place), sample_of(wanted, number)):
                    what = f"sample {ids[place]} has other bytes than ShardDataset reads, or comes at another place"
                    raise _wrong(row, what)
            compared += len(places)
            if compared >= most or time.monotonic() > until:
                break
    row.rest()
    return {"row": row.name, "samples": compared}


def _wrong(row: Row, what: str) -> ReadError:
    return ReadError(
        f"row {row.name!r} is wrong, and nothing was measured: {what}",
        remedy="Do not train with this backend. Check the files with `gdsload verify`.",
    )


def _equal(one: Any, other: Any) -> bool:
    """Return whether two samples or values have the same names, types, shapes and bytes."""
    if isinstance(one, dict):
        return list(one) == list(other) and all(_equal(one[name], other[name]) for name in one)
    if isinstance(one, torch.Tensor):
        same = (one.dtype, one.shape) == (other.dtype, other.shape)
        return same and bool((memory_of(one) == memory_of(other)).all())
    return type(one) is type(other) and bool(one == other)
