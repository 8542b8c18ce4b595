"""Lanes, batches and ranks: which lane positions make up each step.

Lanes are equal ranges of positions. Of M positions, lane l of L holds (M + l) // L, and of the first X
samples delivered it has given (X + l) // L. By Hermite's identity, the sum over l of floor((X + l) / L) is X,
so both always add up, and nobody has to keep count. Nothing here depends on the ranks but the last cut, which
shares a global batch out among them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gdsload.errors import OptionError
from gdsload.order.checks import MAX_SAMPLES, check_whole

__all__ = ["LanePieces", "LaneRun", "Schedule", "lane_offset", "lane_share"]


def lane_share(positions: int, lane: int, lanes: int) -> int:
    """Return how many of the first `positions` samples come from `lane`; for all samples, its length."""
    return (positions + lane) // lanes


def lane_offset(samples: int, lane: int, lanes: int) -> int:
    """Return the first position of `lane`: the lengths of the lanes before it, added up."""
    length, longer = divmod(samples, lanes)
    # The last `longer` lanes are the ones that hold one position more.
    return length * lane + max(0, lane + longer - lanes)


@dataclass(frozen=True, slots=True)
class LaneRun:
    """Consecutive positions of one lane.

    Attributes:
        lane: number of the lane.
        start: first position, counted from the start of the lane.
        stop: the position after the last.
    """

    lane: int
    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True, slots=True, eq=False)
class LanePieces:
    """Consecutive lane positions of steps, in the order in which they are delivered; int64 arrays of one length.

    Attributes:
        step: the step of each piece.
        lane: its lane; see `LaneRun`.
        start: its first position.
        stop: the position after its last.
    """

    step: NDArray[np.int64]
    lane: NDArray[np.int64]
    start: NDArray[np.int64]
    stop: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Schedule:
    """Who gets which lane positions at which step: a pure function of its arguments.

    Attributes:
        samples: samples of the epoch, M.
        batch_size: samples of a batch of one rank.
        rank: this rank, in [0, world_size).
        world_size: number of ranks, W.
        drop_last: leave out the last global batch if it is not full.
        lanes: number of lanes, L.

    Raises:
        OptionError: if an argument is out of range.
    """

    samples: int
    batch_size: int
    rank: int = 0
    world_size: int = 1
    drop_last: bool = False
    lanes: int = 1

    def __post_init__(self) -> None:
        check_whole(self.samples, "samples", 0, MAX_SAMPLES)
        check_whole(self.batch_size, "batch_size", 1)
        check_whole(self.world_size, "world_size", 1)
        check_whole(self.lanes, "lanes", 1)
        check_whole(self.rank, "rank", 0)
        if self.rank >= self.world_size:
            raise OptionError(
                f"rank is {self.rank}, but a world of {self.world_size} has ranks 0 to {self.world_size - 1}",
                remedy="Pass the rank and world_size of one and the same process group.",
            )

    @property
    def global_batch(self) -> int:
        """Samples of one step of all ranks together, G."""
        return self.batch_size * self.world_size

    @property
    def steps(self) -> int:
        """Steps of the epoch, the same for every rank."""
        if self.drop_last:
            return self.samples // self.global_batch
        return -(-self.samples // self.global_batch)

    def position(self, step: int) -> int:
        """Return how many samples all ranks have got before `step`; `steps` itself is allowed.

        Raises:
            OptionError: if `step` is not in [0, steps].
        """
        if not 0 <= step <= self.steps:
            raise OptionError(f"step is {step}, but the epoch has {self.steps} steps")
        return min(step * self.global_batch, self.samples)

    def step_at(self, position: int) -> int:
        """Return the step that begins at `position`: the inverse of `position`.

        Raises:
            OptionError: if no step begins or ends there.
        """
        step = -(-position // self.global_batch)
        if not 0 <= step <= self.steps or self.position(step) != position:
            raise OptionError(
                f"position {position} is not where one of {self.steps} global batches of {self.global_batch} begins",
                remedy="Keep batch_size x world_size and drop_last as they were when it was saved.",
            )
        return step

    def size(self, step: int) -> int:
        """Return the samples of this rank at `step`.

        All full batches have batch_size of them. Of a last, partial batch each rank gets as many as every other, and
        at least one: where the samples do not go round, neighbouring ranks share some.

        Raises:
            OptionError: if `step` is not in [0, steps).
        """
        if 0 <= step < self.samples // self.global_batch:
            return self.batch_size
        _, _, start, stop = self._slice(step)
        return stop - start

    def sizes(self, steps: range) -> list[int]:
        """Return the samples of this rank at each of some consecutive steps.

        Raises:
            OptionError: if a step is not in [0, steps).
        """
        full = max(min(len(steps), self.samples // self.global_batch - steps.start), 0)
        return [self.batch_size] * full + [self.size(step) for step in steps[full:]]

    def span(self, step: int) -> tuple[int, int]:
        """Return which samples [start, stop) this rank gets at `step`, in the order in which all are delivered.

        Where there is one lane only, these are their positions.

        Raises:
            OptionError: if `step` is not in [0, steps).
        """
        before, _, start, stop = self._slice(step)
        return before + start, before + stop

    def runs(self, step: int) -> list[LaneRun]:
        """Return the lane positions of this rank at `step`, in the order in which they are delivered.

        The global batch takes its share of every lane, lane by lane, and a rank gets a slice of it. So a rank meets
        few lanes. Empty runs are left out.

        Raises:
            OptionError: if `step` is not in [0, steps).
        """
        before, after, start, stop = self._slice(step)
        runs = []
        offset, lanes = 0, self.lanes
        for lane in range(lanes):
            # `lane_share` of both, written out: this is most of what a block-shuffled epoch costs in Python.
            first = (before + lane) // lanes
            given = (after + lane) // lanes - first
            lower, upper = max(start - offset, 0), min(stop - offset, given)
            if lower < upper:
                runs.append(LaneRun(lane, first + lower, first + upper))
            offset += given
        return runs

    def pieces(self, steps: range) -> LanePieces:
        """Return `runs` of some consecutive steps, all at once: with many lanes that takes a fraction of the time.

        Raises:
            OptionError: if a step is not in [0, steps).
        """
        for step in {*steps[:1], *steps[-1:]}:
            self._slice(step)
        at = np.arange(steps.start, steps.stop, dtype=np.int64)
        before = at * self.global_batch
        after = np.minimum(before + self.global_batch, self.samples)
        share = -(-(after - before) // self.world_size)
        start = self.rank * (after - before - share) // max(self.world_size - 1, 1)
        lane = np.arange(self.lanes)
        first = (before[:, None] + lane) // self.lanes
        given = (after[:, None] + lane) // self.lanes - first
        offset = np.cumsum(given, axis=1) - given
        lower = np.maximum(start[:, None] - offset, 0)
        upper = np.minimum((start + share)[:, None] - offset, given)
        row, column = np.nonzero(lower < upper)
        return LanePieces(at[row], column, (first + lower)[row, column], (first + upper)[row, column])

    def runs_within(self, lane: int, step: int, start: int, stop: int) -> list[LaneRun]:
        """Return which of the positions [start, stop) of a lane this rank gets, in rising order.

        Args:
            lane: number of the lane.
            step: a step before which no rank gets any of them.
            start: the first position.
            stop: the one after the last.
        """
        if self.world_size == 1:
            stop = min(stop, lane_share(self.position(self.steps), lane, self.lanes))
            return [LaneRun(lane, start, stop)] if start < stop else []
        found = []
        while step < self.steps and lane_share(self.position(step), lane, self.lanes) < stop:
            for run in self.runs(step):
                low, high = max(run.start, start), min(run.stop, stop)
                if run.lane == lane and low < high:
                    found.append(LaneRun(lane, low, high))
            step += 1
        return found

    def runs_of(self, steps: range) -> list[LaneRun]:
        """Return the lane positions of this rank at consecutive steps, in the order in which they are delivered.

        Raises:
            OptionError: if a step is not in [0, steps).
        """
        if self.lanes > 1 or self.world_size > 1 or not steps:
            return [run for step in steps for run in self.runs(step)]
        start, (_, stop, _, _) = self._slice(steps[0])[0], self._slice(steps[-1])
        return [LaneRun(0, start, stop)]

    def _slice(self, step: int) -> tuple[int, int, int, int]:
        """The positions before and after `step`, and this rank's slice [start, stop) of those between."""
        if not 0 <= step < self.steps:
            raise OptionError(f"step is {step}, but the epoch has steps 0 to {self.steps - 1}")
        before = step * self.global_batch
        after = min(before + self.global_batch, self.samples)
        length = after - before
        share = -(-length // self.world_size)
        # Of a full batch, this is rank * share. Otherwise the slices overlap: the first begins with the first sample,
        # the last ends with the last, and none begins more than `share` after the one before it.
        start = self.rank * (length - share) // max(self.world_size - 1, 1)
        return before, after, start, start + share
