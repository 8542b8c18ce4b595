"""The position of a loader's consumer, and the state from which another loader resumes there."""

from __future__ import annotations

from typing import Any

from gdsload.engine.steps import Ordered, Steps
from gdsload.errors import OptionError
from gdsload.loader.plan import LoaderPlan
from gdsload.loader.ranks import Schedules
from gdsload.loader.samplers import Sampled
from gdsload.loader.state import Cursor, OrderIdentity, Place
from gdsload.order import Purpose, Schedule, derive_key

__all__ = ["Progress"]


class Progress:
    """The epochs of a loader: which is next, how far the newest one is, and the state of both.

    Not for several threads at once: the loader has the lock.

    Args:
        plan: the loader's.
    """

    def __init__(self, plan: LoaderPlan) -> None:
        self._plan = plan
        self.schedules = Schedules(plan.schedule)
        self.sampled = None if plan.source is None else Sampled(plan.source)
        self._digest: str | None = None
        self._cursor = Cursor(0, 0)
        self._newest: Place | None = None
        self._resumed: dict[str, Any] | None = None

    def batches(self) -> int:
        """Number of batches of an epoch that begins now."""
        schedule = self.schedules.now()
        return schedule.steps if self.sampled is None else self.sampled.steps(self._cursor.epoch, schedule)

    @property
    def epoch(self) -> int:
        """Number of the epoch that is begun next."""
        return self._cursor.epoch

    @property
    def inside(self) -> bool:
        """Whether the next batch is not an epoch's first one."""
        return self._newest is not None or self._cursor.position > 0

    @property
    def step(self) -> int:
        """Number of the first batch of the epoch that is begun next: 0, but for an epoch that is resumed."""
        return self.schedules.now().step_at(self._cursor.position)

    def set_epoch(self, number: int, step: int | None = None) -> None:
        """Set the number of the epoch that is begun next, and its first batch; None: as it was, in the same epoch.

        Raises:
            OptionError: if the epoch has no such batch, or a sampler says what comes when.
        """
        if step is not None and self.sampled is not None:
            raise OptionError(
                "set_epoch has a step, and a sampler says which samples come before it",
                remedy="Resume a state of the loader, or leave out batches as they come.",
            )
        self._newest = None
        if number != self._cursor.epoch:
            self._cursor, self._resumed = Cursor(number, 0), None
        if step is not None:
            schedule = self.schedules.now()
            self._cursor = Cursor(number, schedule.position(step))
            self._resumed = self._identity(schedule).state(self._cursor)
        if self.sampled is not None:
            self.sampled.set_epoch(number, resumed=self._cursor.position > 0)

    def state(self, *, opened: bool) -> dict[str, Any]:
        """The state of the loader, after the last batch handed out.

        Args:
            opened: whether an epoch has begun, whose ranks count then.

        Raises:
            StateError: in the middle of an epoch of a sampler that cannot be resumed there.
        """
        place, cursor = self._newest, self._cursor
        if place is not None:
            cursor, schedule = Cursor(place.epoch, place.schedule.position(place.step)), place.schedule
        else:
            schedule = self.schedules.newest if opened else self.schedules.now()
        state = self._identity(schedule).state(cursor)
        if self.sampled is not None:
            state["sampler"] = self.sampled.state(place, cursor.position)
        return state

    def resume(self, state: dict[str, Any]) -> None:
        """Go on where a state was taken.

        Raises:
            StateError: if it was taken of another order, or is none; nothing is changed then.
        """
        mark = None
        if self.sampled is not None and isinstance(state, dict):
            mark = state.get("sampler")
            state = {name: value for name, value in state.items() if name != "sampler"}
        cursor = self._identity(self.schedules.now()).resume(state)
        if self.sampled is not None:
            self.sampled.resume(mark, cursor.position, self.schedules.now())
        self._cursor, self._newest, self._resumed = cursor, None, state

    def next_place(self) -> Place:
        """Where the next epoch begins, with the ranks that there are now."""
        cursor, schedule = self._cursor, self.schedules.now()
        if self._resumed is not None:  # once more, as there may be more ranks by now
            self._identity(schedule).resume(self._resumed)
        return Place(cursor.epoch, schedule.step_at(cursor.position), schedule)

    def steps(self, place: Place) -> Steps:
        """The steps of the epoch at a place."""
        if self.sampled is not None:
            return self.sampled.draws(place)
        return Ordered(self._plan.space.order(self._plan.order, self._plan.seed, place.epoch), place.schedule)

    def begun(self, place: Place) -> None:
        """Note that the epoch at a place is the newest; it moves on as batches are handed out."""
        self._newest, self._cursor, self._resumed = place, Cursor(place.epoch + 1, 0), None

    def ended(self, place: Place) -> None:
        """Note that the epoch at a place is over."""
        if self._newest is place:
            self._newest = None

    def transform_key(self, epoch: int, step: int) -> int:
        """Seed of the random numbers of a step's transforms.

        It depends on the loader's seed, on the epoch, and on the position of the batch's first sample in the order that
        all ranks share; with a sampler, whose order is this rank's own, on step and rank.
        """
        if self.sampled is None:
            where: tuple[int, ...] = (self.schedules.newest.span(step)[0],)
        else:
            where = (step, self._plan.schedule.world()[0])
        return derive_key(self._plan.seed, epoch, Purpose.TRANSFORM, *where)

    def sample_keys(self, epoch: int, step: int, samples: int) -> list[int]:
        """Seeds of the random numbers of a step's samples, by themselves.

        Each depends on the loader's seed, on the epoch, and on the sample's position in the order that all ranks share;
        with a sampler on step, rank, and place in the batch.
        """
        first, where = 0, (step, self._plan.schedule.world()[0]) if self.sampled is not None else ()
        if self.sampled is None:
            first = self.schedules.newest.span(step)[0]
        seed = self._plan.seed
        return [derive_key(seed, epoch, Purpose.SAMPLE, *where, first + number) for number in range(samples)]

    def _identity(self, schedule: Schedule) -> OrderIdentity:
        plan = self._plan
        if self._digest is None:
            self._digest = plan.selected.digest
        return OrderIdentity(schedule, plan.order, plan.seed, self._digest, plan.selected.mixture)
