"""The order of samples: a pure function from positions to sample ids, with no state."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from gdsload.order.blocks import BlockOrder
from gdsload.order.checks import MAX_SAMPLES, check_whole
from gdsload.order.hashing import Purpose, derive_key
from gdsload.order.lanes import Order
from gdsload.order.order_options import OrderOptions
from gdsload.order.permutation import Permutation


class SequentialOrder(Order):
    """Dataset order, in one lane."""

    def __init__(self, samples: int) -> None:
        self.samples = samples

    def lane_ids(self, lane: int, start: int, stop: int) -> NDArray[np.int64]:
        ids = np.arange(start, stop, dtype=np.int64)
        ids.flags.writeable = False
        return ids


class FullOrder(Order):
    """One permutation of all samples, in one lane, by a 64-bit key."""

    def __init__(self, samples: int, key: int) -> None:
        self.samples, self.permutation = samples, Permutation(samples, key)

    def lane_ids(self, lane: int, start: int, stop: int) -> NDArray[np.int64]:
        return self.permutation(start, stop)


class GivenOrder(Order):
    """Sample ids as they are given, int64 ``[samples]``, read-only: some may come several times, and others never."""

    def __init__(self, ids: NDArray[np.int64]) -> None:
        self.samples, self._ids = len(ids), ids

    def lane_ids(self, lane: int, start: int, stop: int) -> NDArray[np.int64]:
        return self._ids[start:stop]


def make_order(options: OrderOptions, run_lengths: Sequence[int], seed: int, epoch: int) -> Order:
    """Make the order of one epoch, of shards with so many samples each; OptionError if an argument is out of range."""
    samples = check_whole(sum(run_lengths), "number of samples", 0, MAX_SAMPLES)
    if options.shuffle == "block":
        return BlockOrder(
            run_lengths,
            block=options.block,
            window=options.window,
            lanes=options.lanes,
            key=derive_key(seed, epoch, Purpose.BLOCKS),
        )
    if options.shuffle == "full":
        return FullOrder(samples, derive_key(seed, epoch, Purpose.SAMPLES))
    return SequentialOrder(samples)
