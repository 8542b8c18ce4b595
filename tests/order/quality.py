"""The batches of an order by its definition, and the quality of a shuffle as one number."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gdsload.order import Order, Schedule


def batch_ids(order: Order, schedule: Schedule, step: int) -> NDArray[np.int64]:
    """Return the sample ids of the schedule's rank at `step`, as delivered; shape [size(step)]."""
    parts = [order.lane_ids(run.lane % order.lanes, run.start, run.stop) for run in schedule.runs(step)]
    return np.concatenate(parts) if parts else np.empty(0, dtype=np.int64)


def shuffle_quality(order: Order, schedule: Schedule, *, max_batches: int = 256) -> float:
    """Return the effective batch size of an order, as a share of the batch size, for the worst dataset.

    The worst dataset for a block shuffle is one sorted by its label: neighbours on disk are alike. There, a
    sample's relative position id / samples stands for its label. Over the epoch, the batch means of that
    position scatter around the mean of all; the figure is

        variance of the batch mean, for batches drawn without replacement from all samples
        ----------------------------------------------------------------------------------
                mean squared deviation of the batch means of this order, measured

    clipped to 1. A full shuffle gives 1 up to noise. 0.25 means that on a sorted dataset a batch of 256 tells
    as much about the whole as 64 samples drawn at random. On a dataset whose samples are stored in random
    order every order is as good as a full shuffle, whatever this figure says.

    It looks at single global batches (all ranks together, as the optimiser sees them), so it does not see
    that neighbouring batches resemble each other. A last, partial batch is left out.

    With n `max_batches`, spread evenly over the epoch, the standard error is about sqrt(2 / n) of the figure, 9 % at
    256; in a block order also sqrt(2 / w), with w windows in each lane, because batches from the same windows miss the
    mean together.
    """
    samples, batch = schedule.samples, schedule.global_batch
    whole = Schedule(samples, batch, tail="drop", lanes=schedule.lanes)
    steps = np.unique(np.linspace(0, whole.steps - 1, min(max_batches, whole.steps)).astype(np.int64))
    centre = (samples - 1) / 2
    means = np.array([batch_ids(order, whole, int(step)).mean() for step in steps])
    measured = float(np.mean(((means - centre) / samples) ** 2))
    population = (samples**2 - 1) / 12 / samples**2
    expected = population / batch * (samples - batch) / (samples - 1)
    return min(1.0, expected / measured)
