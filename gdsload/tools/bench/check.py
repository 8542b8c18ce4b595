"""The check, before anything is timed, that every contender hands out the dataset's bytes."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import torch
import xxhash
from numpy.typing import NDArray

from gdsload.engine.assemble import Batch
from gdsload.errors import ReadError
from gdsload.loader.dataset import ShardDataset
from gdsload.shards.encode import sample_of
from gdsload.shards.values import memory_of
from gdsload.tools.bench.bench_plan import BenchPlan
from gdsload.tools.bench.routes import Route

_SAMPLES = 512
_SEED = 0

_Digest = tuple[bytes, int]


class Reference:
    """Digests of samples, read by `ShardDataset` into RAM, without mapping a file.

    Args:
        plan: what is measured.
    """

    def __init__(self, plan: BenchPlan) -> None:
        self._dataset = ShardDataset(plan.path, mmap=False)
        self._known: dict[int, _Digest] = {}

    def digest(self, index: int) -> _Digest:
        """Digest and bytes of a sample."""
        if index not in self._known:
            self._known[index] = _digest(self._dataset[index])
        return self._known[index]


def check_route(route: Route, plan: BenchPlan, reference: Reference) -> dict[str, Any]:
    """Run an epoch, as far as a trial goes, and compare samples of it with the dataset's.

    Up to 512 samples are compared, drawn with a fixed seed; all are counted: none may come twice or, in a whole epoch,
    be missing.

    Returns:
        The comparison, for the record.

    Raises:
        ReadError: if a sample is not what the dataset holds, comes twice or is missing.
    """
    indexed = "index" not in plan.schema  # else the loader could not add indices, but in order they are known
    chosen = _positions(plan)
    seen = np.zeros(plan.samples, bool)
    found: dict[int, _Digest] = {}
    position, until = 0, time.monotonic() + (plan.seconds or float("inf"))
    with route.open(plan, shuffle=plan.shuffle if indexed else False, with_index=indexed) as loader:
        for batch in loader:
            arrived = route.arrive(batch, plan)
            ids = arrived.pop("index").cpu().numpy() if indexed else np.arange(position, position + _size(arrived))
            _tick(route, seen, ids)
            for row in chosen[(chosen >= position) & (chosen < position + len(ids))] - position:
                found[int(ids[row])] = _digest(sample_of(arrived, int(row)))
            position += len(ids)
            if found and time.monotonic() > until:
                break
        else:
            if not seen.all():
                raise _wrong(route, f"sample {int(np.argmin(seen))} did not come in a whole epoch")
    for index, digest in found.items():
        if digest != reference.digest(index):
            raise _wrong(route, f"sample {index} has other bytes than ShardDataset reads")
    compared = sum(nbytes for _, nbytes in found.values())
    whole = {"epoch_samples": position, "whole_epoch": bool(seen.all())}
    return {"contender": route.name, "samples": len(found), "bytes": compared} | whole


def _positions(plan: BenchPlan) -> NDArray[np.int64]:
    random = np.random.default_rng(_SEED)
    return np.sort(random.choice(plan.samples, min(_SAMPLES, plan.samples), replace=False)).astype(np.int64)


def _tick(route: Route, seen: NDArray[np.bool_], ids: NDArray[np.int64]) -> None:
    if ids.size and (ids.min() < 0 or ids.max() >= len(seen)):
        raise _wrong(route, f"it hands out samples from {ids.min()} to {ids.max()}, of {len(seen)}")
    if seen[ids].any() or len(np.unique(ids)) != len(ids):
        raise _wrong(route, "a sample came twice in an epoch")
    seen[ids] = True


def _wrong(route: Route, what: str) -> ReadError:
    return ReadError(
        f"contender {route.name!r} is wrong, and nothing was measured: {what}",
        remedy="Do not train with this backend. ShardDataset.verify() tells whether the files are sound.",
    )


def _size(batch: Batch) -> int:
    value = next(iter(batch.values()))
    return len(value[1]) - 1 if isinstance(value, tuple) else len(value)


def _digest(sample: dict[str, Any]) -> _Digest:
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
