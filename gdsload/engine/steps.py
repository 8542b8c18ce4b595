"""Which samples each batch of an epoch has, and what is to be made of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from gdsload.engine.batch_source import StepTransform
from gdsload.order import LaneRun, Order, Schedule
from gdsload.shards.shard_table import ShardTable

__all__ = ["Job", "OneBatch", "Ordered", "Selection", "Steps"]

IntArray = NDArray[np.int64]
_FIRST, _AHEAD = 8192, 16384
"""Positions of a lane whose ids are worked out at once, at first and later: enough to make the cost of a call
disappear, and few, so that neither the first batch nor another thread that wants to plan has to wait for long."""


@dataclass(frozen=True, slots=True)
class Selection:
    """Which samples an order's positions stand for.

    Attributes:
        ids: sample id of each position in the table; None where they are the same.
        index: what the user calls the sample at each position; None where it is the position.
    """

    ids: IntArray | None = None
    index: IntArray | None = None


class Steps(Protocol):
    """Which positions each step of this rank takes. Its methods may be called from several threads, but see `reach`."""

    @property
    def steps(self) -> int:
        """Number of steps of the epoch, as far as is known."""
        ...

    def reach(self, step: int) -> int:
        """Find out whether there is this step, and what all before it are; by one thread at a time.

        Afterwards `steps` is more than `step`, or final.

        Returns:
            Samples of the largest batch known of.
        """
        ...

    def error(self, step: int) -> Exception | None:
        """What is raised in the place of a step that is known; None if it has samples. No step comes after an error."""
        ...

    def size(self, step: int) -> int:
        """Samples of a step that is known."""
        ...

    def positions(self, steps: range) -> IntArray:
        """The positions that steps take, all known and none in error, in the order in which they are delivered."""
        ...


@dataclass(slots=True)
class _Ahead:
    """Ids of a run of positions of one lane, from `start` on."""

    start: int = 0
    ids: IntArray = field(default_factory=lambda: np.zeros(0, np.int64))


class Ordered:
    """Steps of an order, all known beforehand.

    Args:
        order: the samples' order in this epoch.
        schedule: which of the order's positions each step of this rank takes.
    """

    def __init__(self, order: Order, schedule: Schedule) -> None:
        self.order, self.schedule = order, schedule
        self._ahead = [_Ahead() for _ in range(order.lanes)]

    @property
    def steps(self) -> int:
        """See `Steps`."""
        return self.schedule.steps

    def reach(self, _step: int) -> int:
        """See `Steps`."""
        return self.schedule.batch_size

    def error(self, _step: int) -> Exception | None:
        """See `Steps`."""
        return None

    def size(self, step: int) -> int:
        """See `Steps`."""
        return self.schedule.size(step)

    def positions(self, steps: range) -> IntArray:
        """See `Steps`."""
        runs = [self._ids(run) for run in self.schedule.runs_of(steps)]
        return runs[0] if len(runs) == 1 else np.concatenate([np.zeros(0, np.int64), *runs])

    def _ids(self, run: LaneRun) -> IntArray:
        """Position ids of a run; those of the positions behind it are kept for the next call."""
        ahead, order = self._ahead[run.lane], self.order
        if not (ahead.start <= run.start and run.stop <= ahead.start + len(ahead.ids)):
            count = _AHEAD if len(ahead.ids) else _FIRST
            stop = min(max(run.stop, run.start + count), order.lane_length(run.lane))
            # A new object: another thread may be reading the old one.
            ahead = self._ahead[run.lane] = _Ahead(run.start, order.lane_ids(run.lane, run.start, stop))
        return ahead.ids[run.start - ahead.start : run.stop - ahead.start]


class OneBatch:
    """One step, which takes these positions.

    Args:
        positions: int64.
    """

    steps = 1

    def __init__(self, positions: IntArray) -> None:
        self._positions = positions

    def reach(self, _step: int) -> int:
        """See `Steps`."""
        return len(self._positions)

    def error(self, _step: int) -> Exception | None:
        """See `Steps`."""
        return None

    def size(self, _step: int) -> int:
        """See `Steps`."""
        return len(self._positions)

    def positions(self, _steps: range) -> IntArray:
        """See `Steps`."""
        return self._positions


@dataclass(frozen=True, slots=True)
class Job:
    """What a pipeline is to deliver.

    Attributes:
        table: the samples.
        steps: which positions each step takes.
        selection: which samples those positions stand for.
        fields: the fields that are wanted.
        transform: what is done to each batch before it is handed out; None: nothing.
    """

    table: ShardTable
    steps: Steps
    selection: Selection
    fields: tuple[str, ...]
    transform: StepTransform | None = None
