"""The samples of each batch of an epoch, and the job that a prefetcher does with them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import numpy as np

from gdsload.engine.batch_source import StepTransform
from gdsload.engine.images.decode import ImageBatch
from gdsload.engine.images.frames import Draws
from gdsload.order import LaneRun, Order, Schedule
from gdsload.shards.shard_table import ShardTable
from gdsload.system.arrays import IntArray, Numbers, taken

_FIRST, _AHEAD = 8192, 16384
"""Positions of a lane whose ids are computed at once, at first and later: enough to hide the cost of a call, and few
enough that neither the first batch nor another thread that wants to plan waits for long."""


class Steps(Protocol):
    """The positions that each step of this rank takes. Several threads may call its methods, but see `reach`."""

    @property
    def steps(self) -> int:
        """Number of steps of the epoch, as far as is known."""

    def reach(self, step: int) -> int:
        """Ensure that steps up to `step` are known, or that the epoch's end is; by one thread at a time.

        Afterwards `steps` is more than `step`, or final. Returns the samples of the largest batch known.
        """

    def error(self, step: int) -> BaseException | None:
        """The error that is raised instead of a known step; None if it has samples. No step comes after an error."""
        return None

    def size(self, step: int) -> int:
        """Number of samples of a known step."""

    def positions(self, steps: range) -> IntArray:
        """The positions of known steps without errors, in the order in which they are delivered."""


class Ordered(Steps):
    """Steps of an order, all known from the start."""

    def __init__(self, order: Order, schedule: Schedule) -> None:
        self.order, self.schedule = order, schedule
        # For each lane a run of positions: the first of them, and their ids.
        self._ahead: list[tuple[int, IntArray]] = [(0, np.zeros(0, np.int64))] * order.lanes

    @property
    def steps(self) -> int:
        """See `Steps`."""
        return self.schedule.steps

    def reach(self, _step: int) -> int:
        """See `Steps`."""
        return self.schedule.batch_size

    def size(self, step: int) -> int:
        """See `Steps`."""
        return self.schedule.size(step)

    def positions(self, steps: range) -> IntArray:
        """See `Steps`."""
        runs = [self._ids(run) for run in self.schedule.runs_of(steps)]
        return runs[0] if len(runs) == 1 else np.concatenate([np.zeros(0, np.int64), *runs])

    def _ids(self, run: LaneRun) -> IntArray:
        """Position ids of a run; those of the positions after it are kept for the next call."""
        order = self.order
        if run.lane >= order.lanes:  # repeated, with nothing after it
            return order.lane_ids(run.lane % order.lanes, run.start, run.stop)
        start, ids = self._ahead[run.lane]
        if not (start <= run.start and run.stop <= start + len(ids)):
            count = _AHEAD if len(ids) else _FIRST
            stop = min(max(run.stop, run.start + count), order.lane_length(run.lane))
            start, ids = run.start, order.lane_ids(run.lane, run.start, stop)
            self._ahead[run.lane] = start, ids  # at once: another thread may be reading
        return ids[run.start - start : run.stop - start]


@dataclass(frozen=True, slots=True)
class Job:
    """The samples and steps that a prefetcher is to deliver.

    Attributes:
        ids: sample id of each position in the table; None where they are the same.
        index: the user's index of the sample at each position; None where it is the position.
        transform: applied to each batch before it is handed out; None: nothing is.
        draws: what the random numbers of a step's images are drawn from; None: no image is decoded.
    """

    table: ShardTable
    steps: Steps
    ids: Numbers | None = None
    index: IntArray | None = None
    transform: StepTransform | None = None
    draws: Callable[[int], Draws] | None = None

    def samples(self, positions: IntArray) -> IntArray:
        """The sample of the table at each of some positions: of a clip, the one that its offsets count from."""
        return positions if self.ids is None else taken(self.ids, positions)

    def indices(self, positions: IntArray) -> IntArray:
        """The user's indices of what is at some positions."""
        return positions if self.index is None else self.index[positions]

    def encoded(self, steps: range, batches: Sequence[dict[str, Any]]) -> list[ImageBatch]:
        """The batches of some steps, with what their images are decoded by; none if they have no images to decode."""
        if (draws := self.draws) is None:
            return []
        return [
            ImageBatch(batch, draws(step), partial(self._place, step), partial(self.samples_of, range(step, step + 1)))
            for step, batch in zip(steps, batches, strict=True)
        ]

    def samples_of(self, steps: range) -> IntArray:
        """The samples of the table that the batches of some steps have, in order; see `samples`."""
        return self.samples(self.steps.positions(steps))

    def _place(self, step: int, number: int) -> tuple[int, str]:
        """The user's index of a step's sample, by its number there, and the shard that it is in."""
        position = self.steps.positions(range(step, step + 1))[number : number + 1]
        found = self.table.locate(self.samples(position))
        return int(self.indices(position)[0]), self.table.files.sources[int(found.file[0])].path
