"""Lanes, batches and ranks: which lane positions make up each step.

Lanes are equal ranges of positions. Of M positions, lane l of L holds (M + l) // L, and of the first X
samples delivered it has given (X + l) // L. By Hermite's identity, the sum over l of floor((X + l) / L) is X,
so both always add up without a count. The ranks only matter for the last cut, which shares a global batch out among
them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from gdsload.errors import OptionError
from gdsload.order.checks import MAX_SAMPLES, check_whole

Tail = Literal["share", "pad", "drop"]
"""The treatment of a last global batch that is not full."""


def lane_share(positions: int, lane: int, lanes: int) -> int:
    """Return how many of the first `positions` samples come from `lane`; for all samples, its length."""
    return (positions + lane) // lanes


def lane_offset(samples: int, lane: int, lanes: int) -> int:
    """Return the first position of `lane`: the lengths of the lanes before it, added up."""
    length, longer = divmod(samples, lanes)
    # The last `longer` lanes are the ones that hold one position more.
    return length * lane + max(0, lane + longer - lanes)


class Order(ABC):
    """The order of all samples in one epoch.

    An order is a set of lanes, each a fixed sequence of sample ids; together they hold every id of [0,
    samples) once, unless it is the order of a mixture. It is a pure function: the same arguments give the
    same ids, however a lane is cut into requests, in any thread.

    Attributes:
        samples: number of samples, all lanes together.
        lanes: number of lanes.
    """

    samples: int
    lanes: int = 1

    def lane_length(self, lane: int) -> int:
        """Return the number of positions of `lane`."""
        return lane_share(self.samples, lane, self.lanes)

    @abstractmethod
    def lane_ids(self, lane: int, start: int, stop: int) -> NDArray[np.int64]:
        """Return the sample ids at positions [start, stop) of `lane`, read-only, shape [stop - start]."""


@dataclass(frozen=True, slots=True)
class LaneRun:
    """Consecutive positions of one lane: [start, stop), counted from the start of the lane.

    Repeated samples of lane l of L have the number l + L, and l + 2 * L the second time: they are those of the same
    positions, but do not follow the others there.
    """

    lane: int
    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True, slots=True)
class Schedule:
    """The lane positions that a rank gets at each step: a pure function of its arguments.

    Methods that take one step raise OptionError if it is not in [0, steps).

    Attributes:
        samples: samples of the epoch, M.
        batch_size: samples of a batch of one rank.
        rank: this rank, in [0, world_size).
        world_size: number of ranks, W.
        tail: what becomes of a last global batch that is not full. ``"share"``: each rank gets as many samples of it
            as every other, some of them two ranks; ``"pad"``: it is filled up with the samples that the epoch began
            with, which come last; ``"drop"``: it is left out.
        lanes: number of lanes, L.

    Raises:
        OptionError: if there are more samples than an order can hold, or no such rank.
    """

    samples: int
    batch_size: int
    rank: int = 0
    world_size: int = 1
    tail: Tail = "share"
    lanes: int = 1

    def __post_init__(self) -> None:
        check_whole(self.samples, "samples", 0, MAX_SAMPLES)
        if self.rank >= self.world_size:
            raise OptionError(
                f"is {self.rank}, but a world of {self.world_size} has ranks 0 to {self.world_size - 1}",
                option="rank",
                remedy="Pass the rank and world_size of one and the same process group.",
            )

    @property
    def global_batch(self) -> int:
        """Samples of one step of all ranks together, G."""
        return self.batch_size * self.world_size

    @property
    def steps(self) -> int:
        """Steps of the epoch, the same for every rank."""
        if self.tail == "drop":
            return self.samples // self.global_batch
        return -(-self.samples // self.global_batch)

    @property
    def remainder(self) -> int:
        """Samples of the last global batch, as long as none is repeated; 0 if it is full."""
        return 0 if self.tail == "drop" else self.samples % self.global_batch

    @property
    def padding(self) -> int:
        """Samples that fill up the last global batch, which come a second time in the epoch."""
        return -self.samples % self.global_batch if self.tail == "pad" else 0

    def position(self, step: int) -> int:
        """Return how many samples all ranks have got before `step`; `steps` itself is allowed."""
        if not 0 <= step <= self.steps:
            raise OptionError(f"is {step}, but the epoch has {self.steps} steps", option="step")
        return min(step * self.global_batch, self.samples)

    def step_at(self, position: int) -> int:
        """Return the step that begins at `position`: the inverse of `position`. Raises OptionError if none does."""
        step = -(-position // self.global_batch)
        if not 0 <= step <= self.steps or self.position(step) != position:
            raise OptionError(
                f"position {position} is not where one of {self.steps} global batches of {self.global_batch} begins",
                remedy="Keep `batch_size` x `world_size` and `tail` as they were when it was saved.",
            )
        return step

    def size(self, step: int) -> int:
        """Return the samples of this rank at `step`.

        All full batches have batch_size of them, and so has one that is filled up. Of a last, partial batch each rank
        gets as many as every other, and at least one: if the ranks do not divide the samples, neighbouring ranks share
        some.
        """
        if 0 <= step < self.samples // self.global_batch:
            return self.batch_size
        _, _, start, stop = self._slice(step)
        return stop - start

    def sizes(self, steps: range) -> list[int]:
        """Return the samples of this rank at each of some consecutive steps."""
        full = max(min(len(steps), self.samples // self.global_batch - steps.start), 0)
        return [self.batch_size] * full + [self.size(step) for step in steps[full:]]

    def counted(self, step: int, size: int) -> range:
        """Return which places of this rank's batch of so many samples count if each sample is to count once.

        A sample that several ranks have counts at the first of them; a sample that fills up the last batch does not
        count. All ranks together have as many such places as the step has samples.
        """
        before, after, start, _ = self._slice(step)
        if self.tail == "pad":
            return range(min(max(after - before - start, 0), size))
        earlier = (self.rank - 1) * (after - before - size) // max(self.world_size - 1, 1) + size
        return range(max(earlier - start, 0) if self.rank else 0, size)

    def span(self, step: int) -> tuple[int, int]:
        """Return which samples [start, stop) this rank gets at `step`, in the order in which all are delivered.

        Where there is one lane only, these are their positions; those beyond the last are the first ones again.
        """
        before, _, start, stop = self._slice(step)
        return before + start, before + stop

    def runs(self, step: int) -> list[LaneRun]:
        """Return the lane positions of this rank at `step`, in the order in which they are delivered.

        The global batch takes its share of every lane, lane by lane, and a rank gets a slice of it. So a rank reads
        from few lanes. Empty runs are left out.
        """
        before, after, start, stop = self._slice(step)
        runs = self._between(before, after, start, stop)
        given, turn = after - before, 1
        while given < stop:  # what fills up the last batch, more than once all samples if need be
            more = min(self.samples, self.steps * self.global_batch - before - given)
            for run in self._between(0, more, start - given, stop - given):
                runs.append(LaneRun(run.lane + turn * self.lanes, run.start, run.stop))
            given, turn = given + more, turn + 1
        return runs

    def _between(self, before: int, after: int, start: int, stop: int) -> list[LaneRun]:
        """The runs of [start, stop) of the samples that are delivered between `before` and `after`."""
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

    def pieces(self, steps: range) -> NDArray[np.int64]:
        """Return `runs` of some consecutive steps, all at once: with many lanes that takes a fraction of the time.

        The rows of the array are lane, step, start and stop of each run; int64, shape [4, runs].
        """
        if self._padded(steps):
            last = [(run.lane, steps[-1], run.start, run.stop) for run in self.runs(steps[-1])]
            return np.concatenate([self.pieces(steps[:-1]), np.array(last, np.int64).T], axis=1)
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
        return np.array([column, at[row], (first + lower)[row, column], (first + upper)[row, column]], np.int64)

    def ranges(self, steps: range) -> list[LaneRun] | None:
        """Return the lane positions of consecutive steps, of each lane one run; None if they are not such runs."""
        if self.world_size > 1 or not steps or self._padded(steps):
            return None
        before, after = self._slice(steps[0])[0], self._slice(steps[-1])[1]
        runs = [
            LaneRun(lane, (before + lane) // self.lanes, (after + lane) // self.lanes) for lane in range(self.lanes)
        ]
        return [run for run in runs if run.start < run.stop]

    def runs_within(self, lane: int, step: int, start: int, stop: int) -> list[LaneRun]:
        """Return which of the positions [start, stop) of a lane this rank gets, in rising order.

        The number of the lane may be of what is repeated of it. No rank gets any of them before `step`.
        """
        if lane >= self.lanes:
            step = max(step, self.steps - 1)  # at no other is anything repeated
        elif self.world_size == 1:
            stop = min(stop, lane_share(self.position(self.steps), lane, self.lanes))
            return [LaneRun(lane, start, stop)] if start < stop else []
        found = []
        repeats = lane >= self.lanes
        while step < self.steps and (repeats or lane_share(self.position(step), lane, self.lanes) < stop):
            for run in self.runs(step):
                low, high = max(run.start, start), min(run.stop, stop)
                if run.lane == lane and low < high:
                    found.append(LaneRun(lane, low, high))
            step += 1
        return found

    def runs_of(self, steps: range) -> list[LaneRun]:
        """Return the lane positions of this rank at consecutive steps, in the order in which they are delivered."""
        whole = self.ranges(steps) if self.lanes == 1 else None
        return [run for step in steps for run in self.runs(step)] if whole is None else whole

    def _padded(self, steps: range) -> bool:
        """Return whether the last of some steps is filled up with samples that the epoch began with."""
        return self.padding > 0 and steps[-1:] == range(self.steps - 1, self.steps)

    def _slice(self, step: int) -> tuple[int, int, int, int]:
        """The positions before and after `step`, and this rank's slice [start, stop) of those between."""
        if not 0 <= step < self.steps:
            raise OptionError(f"is {step}, but the epoch has steps 0 to {self.steps - 1}", option="step")
        before = step * self.global_batch
        after = min(before + self.global_batch, self.samples)
        length = self.global_batch if self.tail == "pad" else after - before
        share = -(-length // self.world_size)
        # Of a full batch, this is rank * share. Otherwise the slices overlap: the first begins with the first sample,
        # the last ends with the last, and none begins more than `share` after the one before it.
        start = self.rank * (length - share) // max(self.world_size - 1, 1)
        return before, after, start, start + share
