"""What the positions of an order stand for."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gdsload.engine.steps import Selection
from gdsload.loader.selection import Selected
from gdsload.order import MixOrder, Mixture, Order, OrderOptions, make_order
from gdsload.system.arrays import IntArray

__all__ = ["SampleSpace", "sample_space"]


@dataclass(frozen=True, slots=True)
class SampleSpace:
    """What an order's positions stand for.

    Attributes:
        runs: lengths of the runs of positions that lie in one shard each.
        selection: the samples behind them, whose ids count through the shards that they lie in.
        mixture: how they are mixed; None if each comes once.
        shards: the numbers of these shards; None if they are all.
    """

    runs: tuple[int, ...]
    selection: Selection
    mixture: Mixture | None = None
    shards: IntArray | None = None

    def order(self, options: OrderOptions, seed: int, epoch: int) -> Order:
        """The order of one epoch."""
        if self.mixture is not None:
            return MixOrder(self.mixture, shuffled=options.shuffle == "full", seed=seed, epoch=epoch)
        return make_order(options, self.runs, seed, epoch)


def sample_space(selected: Selected, order: OrderOptions) -> SampleSpace:
    """Lay the selected samples out as the positions that are shuffled."""
    counts = np.concatenate([dataset.counts for dataset in selected.datasets])
    if selected.ids is None:
        return SampleSpace(tuple(counts.tolist()), Selection(), selected.mixture)
    shards, ids = _needed(selected.ids, np.cumsum(counts))
    if order.shuffle != "block":
        return SampleSpace((len(ids),), Selection(ids), selected.mixture, shards)
    # A block is a run of neighbours on disk. The subset's own order does not matter, as it is shuffled anyway.
    index = np.argsort(selected.ids, kind="stable")
    edges = np.searchsorted(selected.ids[index], np.cumsum(counts))
    return SampleSpace(tuple(np.diff(edges, prepend=0).tolist()), Selection(ids[index], index), shards=shards)


def _needed(ids: IntArray, ends: IntArray) -> tuple[IntArray | None, IntArray]:
    """The shards that samples lie in, and their ids counted through these alone.

    What nobody wants is not opened then, nor registered or kept, and does not stand in the way of a GPU that could
    reach all that is wanted.

    Args:
        ids: the samples.
        ends: the first id behind each shard.
    """
    lie_in = np.searchsorted(ends, ids, side="right")
    wanted = np.bincount(lie_in, minlength=len(ends)) > 0
    if not len(ids) or wanted.all():
        return None, ids
    left_out = np.where(wanted, 0, np.diff(ends, prepend=0))
    return np.flatnonzero(wanted), ids - np.cumsum(left_out)[lie_in]
