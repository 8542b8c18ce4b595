"""Extents shared out between a tier that has some shards at hand and a backend that brings the others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from gdsload.backends.base import Completion, PendingRead
from gdsload.shards.reads import Extents

__all__ = ["Brings", "bring_by_shard"]


class Brings(Protocol):
    """What brings extents."""

    def read(self, wanted: Extents) -> PendingRead:
        """See `Backend.read`."""


class _Both:
    """The completion of two landings."""

    def __init__(self, first: Completion, second: Completion) -> None:
        self._parts = first, second

    @property
    def landed(self) -> bool:
        return all(part.landed for part in self._parts)

    def wait(self) -> None:
        try:
            self._parts[0].wait()
        finally:
            self._parts[1].wait()


def bring_by_shard(wanted: Extents, ready: NDArray[np.bool_], near: Brings, far: Brings) -> PendingRead:
    """Bring extents of several shards as one landing.

    Args:
        wanted: the extents.
        ready: for each of them whether `near` has its shard.
        near: what is asked for those.
        far: what is asked for the others.
    """
    if ready.all() and len(wanted):
        return near.read(wanted)
    if not ready.any():
        return far.read(wanted)
    here, there = np.flatnonzero(ready), np.flatnonzero(~ready)
    first, second = near.read(wanted[here]), far.read(wanted[there])
    addresses = np.empty(len(wanted), np.int64)
    addresses[here], addresses[there] = first.addresses, second.addresses
    return PendingRead(
        addresses,
        _Both(first.completion, second.completion),
        first.nbytes + second.nbytes,
        _one_after_the_other(first.release, second.release),
        np.concatenate([first.begins, second.begins]),
    )


def _one_after_the_other(first: Callable[[], object], second: Callable[[], object]) -> Callable[[], None]:
    def both() -> None:
        first()
        second()

    return both
