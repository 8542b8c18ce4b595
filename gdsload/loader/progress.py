"""The position of a loader's consumer, and the state from which another loader resumes there."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from gdsload.engine.steps import Ordered, Steps
from gdsload.errors import OptionError, StateError
from gdsload.loader.plan import LoaderPlan
from gdsload.loader.rank_groups import agree, everyone_there, warn_of_others
from gdsload.loader.ranks import Schedules
from gdsload.loader.samplers.indices import IndexFunction
from gdsload.loader.samplers.sampled import Sampled
from gdsload.loader.state import Cursor, OrderIdentity, Place
from gdsload.order import GivenOrder, Purpose, Schedule, derive_key


@dataclass(slots=True)
class _Resumed:
    """A loaded state.

    Attributes:
        state: the state, without a sampler's.
        cursor: its place.
        change_batch_size: whether its batch size may be another one.
        kept: whether that epoch has been asked for since, even if nothing is left of it.
        place: the epoch that went on there; `set_epoch` goes back there until it is finished. None: it has not begun.
    """

    state: dict[str, Any]
    cursor: Cursor
    change_batch_size: bool = False
    kept: bool = False
    place: Place | None = None


class Progress:
    """The epochs of a loader: which is next, how far the newest one is, and the state of both.

    Not for several threads at once: the loader has the lock.
    """

    def __init__(self, plan: LoaderPlan) -> None:
        self._plan = plan
        self.schedules = Schedules(plan.schedule)
        self.sampled = None if plan.source is None else Sampled(plan.source)
        function = plan.options.function
        self._function = None if function is None else IndexFunction(function, len(plan.selected))
        self.seed = plan.seed
        """The seed of the order and of transforms; None until one has been drawn."""
        self._agreed = plan.groups is None and plan.seed is not None
        self._unnoticed = self._agreed and plan.schedule.share is None
        self._digest: str | None = None
        self._cursor = Cursor(0, 0)
        self._newest: Place | None = None
        self._last: Place | None = None  # as _newest, and still when it is over
        self._resumed: _Resumed | None = None
        self._begun: _Resumed | None = None  # as _resumed, from where its epoch begins
        self._run = self._left = 0
        """The number of the run, and how many of its epochs that have begun are not finished."""

    def batches(self, place: Place | None = None) -> int:
        """Number of batches of the epoch at a place; None: of one that begins now."""
        if self.sampled is None:
            return (self._coming if place is None else place.schedule).steps
        epoch, schedule = (self._next, self.schedules.now()) if place is None else (place.epoch, place.schedule)
        return self.sampled.steps(epoch, schedule)

    @property
    def remainder(self) -> int:
        """Samples of all ranks' last batches of an epoch that begins now, each counted once; 0 if they are full."""
        return self._coming.remainder

    @property
    def _coming(self) -> Schedule:
        """The steps of the epoch that is begun next; with a function, of the newest one as long as it is not finished.

        What the function gives for the next epoch may follow from what is trained in this one.
        """
        newest = self._newest
        if self._function is not None and newest is not None and not self._finished(newest):
            return newest.schedule
        return self._schedule(self._next)

    def _schedule(self, epoch: int) -> Schedule:
        return self.schedules.now(None if self._function is None else self._function.count(epoch))

    def _begun_schedule(self, epoch: int) -> Schedule:
        """The steps of an epoch that has begun, in any thread."""
        newest = self.schedules.newest
        return newest if self._function is None else replace(newest, samples=self._function.count(epoch))

    @property
    def real_samples(self) -> int | None:
        """Samples of the batch handed out last that count; None before the first one, and of a sampler."""
        if self._last is None or not self._last.step or self.sampled is not None:
            return None
        step, schedule = self._last.step - 1, self._last.schedule
        return len(schedule.counted(step, schedule.size(step)))

    @property
    def epoch(self) -> int:
        """The number of finished epochs, counted from 0 or from the number that was set."""
        newest = self._newest
        finished = newest is not None and newest.run == self._run and self._finished(newest)
        return self._next - self._left + finished

    def _finished(self, place: Place) -> bool:
        """Return whether all batches of the newest epoch, or of one without a sampler, have been handed out.

        False if only one was, and no other has been asked for: that was a look.
        """
        if place.step <= place.first + 1:
            return False
        return place.step >= place.schedule.steps if self.sampled is None else self.sampled.ended

    @property
    def _next(self) -> int:
        """Number of the epoch that is begun next: of one that was resumed at its very end, the one after it."""
        resumed = self._resumed
        if resumed is None or resumed.kept or not self._cursor.position:
            return self._cursor.epoch
        return self._cursor.epoch + self._nothing_left()

    def _nothing_left(self) -> bool:
        """Return whether the epoch that is resumed has no batch left, as far as that is known before it begins."""
        if self.sampled is None:
            schedule = self._begun_schedule(self._cursor.epoch)
            return schedule.step_at(self._cursor.position) == schedule.steps
        try:
            return self.sampled.steps(self._cursor.epoch, self.schedules.newest) == self._cursor.position
        except Exception:  # not all samplers have a length
            return False

    @property
    def inside(self) -> bool:
        """True if a state is needed to say where the consumer is, and not only the number of the next epoch."""
        drawn = self._plan.seed is None and self.seed is not None
        return self._newest is not None or self._cursor.position > 0 or self._left > 0 or drawn

    @property
    def step(self) -> int:
        """Number of the first batch of the epoch that is begun next: 0, but for an epoch that is resumed."""
        if not self._cursor.position or self._next != self._cursor.epoch:
            return 0
        return self._schedule(self._cursor.epoch).step_at(self._cursor.position)

    def set_epoch(self, number: int, step: int | None = None) -> None:
        """Set the number of the epoch that is begun next, and its first batch; None: as it was, in the same epoch.

        Raises OptionError if the epoch has no such batch, or there is a sampler.
        """
        if step is not None and self.sampled is not None:
            raise OptionError(
                "cannot be set with a sampler, which has to draw all samples before it",
                option="step",
                remedy="Resume a state of the loader, or leave out batches as they come.",
            )
        chosen = None
        if step is not None:  # before anything changes: there may be no such step
            schedule = self._schedule(number)
            chosen = schedule, Cursor(number, schedule.position(step))
        begun, self._begun = self._begun, None
        self._newest, self._run, self._left = None, self._run + 1, 0
        place = None if begun is None else begun.place
        if begun is not None and place is not None and place.epoch == number and not self._finished(place):
            self._cursor, self._resumed = begun.cursor, replace(begun, kept=True)
        elif number != self._cursor.epoch:
            if self.sampled is not None and self._cursor.position:
                self.sampled.give_up(self._cursor.position)
            self._cursor, self._resumed = Cursor(number, 0), None
        elif self._resumed is not None:
            self._resumed.kept = True
        if chosen is not None:
            schedule, self._cursor = chosen
            self._resumed = _Resumed(self._identity(schedule).state(self._cursor), self._cursor, kept=True)
        if self.sampled is not None:
            self.sampled.set_epoch(number, resumed=self._cursor.position > 0)

    def stand(self, number: int) -> None:
        """Go to the place before an epoch. The sampler needs no call: its copy has the same number."""
        self._cursor = Cursor(number, 0)

    @property
    def kept(self) -> bool:
        """True if an epoch is begun where it was resumed even if nothing of it is left."""
        return self._resumed is not None and self._resumed.kept

    def state(self, *, opened: bool) -> dict[str, Any]:
        """The state of the loader, after the last batch handed out; if `opened`, the ranks of the newest epoch count.

        Raises StateError in the middle of an epoch of a sampler that cannot be resumed there.
        """
        place, cursor = self._newest, self._cursor
        if place is not None:
            cursor, schedule = Cursor(place.epoch, place.schedule.position(place.step)), place.schedule
        else:
            schedule = self.schedules.newest if opened else self.schedules.now()
        state = self._identity(schedule).state(cursor)
        own = place is not None and place.run == self._run  # the epoch that the state is of may still be finished
        if left := self._left - own:
            state["left"] = left
        if self._function is not None and cursor.position:
            state["indices"] = self._function.digest(cursor.epoch)
        if self.sampled is not None:
            state["sampler"] = self.sampled.state(place, cursor.position)
            if self.sampled.source.planned is None:
                state["rank"], state["world_size"] = self._plan.schedule.world()
        return state

    def resume(self, state: dict[str, Any], *, change_batch_size: bool = False) -> None:
        """Go on where a state was taken.

        Raises StateError if it was taken of another order, or is none; nothing is changed then.
        """
        mark = None
        whole, schedule = state, self.schedules.now()
        if self.sampled is not None and isinstance(state, dict):
            mark = state.get("sampler")
            state = {name: value for name, value in state.items() if name != "sampler"}
        cursor = self._resumed_at(schedule, state, change_batch_size)
        left = state.get("left", 0)
        if type(left) is not int or not 0 <= left <= cursor.epoch:
            raise StateError(
                f"left is {left!r}, and of {cursor.epoch} epochs so many cannot be unfinished",
                remedy="Pass what state_dict() returned, unchanged.",
            )
        if self.sampled is not None:
            if cursor.position and state.get("global_batch") != schedule.global_batch:
                raise StateError(
                    f"the state was taken after {cursor.position} batches of a sampler, of another size than they have "
                    "here",
                    remedy="Pass the same `batch_size`, or a state from between two epochs.",
                )
            self.sampled.refuse_others(whole, cursor.position, self._plan.schedule.world())
            self.sampled.resume(mark, cursor.position, schedule)
        function = self._function
        if function is not None and cursor.position and state.get("indices") != function.digest(cursor.epoch):
            raise StateError(
                f"the sampler does not give the indices again that it gave for epoch {cursor.epoch} when the state was "
                "taken",
                remedy="Pass the same function, which draws from a generator that is seeded with the epoch.",
            )
        if self._plan.seed is None:
            self.seed = state["seed"]
            self._agreed = self._agreed and self.seed is not None  # the state of a loader that had drawn none yet
        self._cursor, self._newest, self._last = cursor, None, None
        self._resumed, self._begun = _Resumed(state, cursor, change_batch_size), None
        self._run, self._left = self._run + 1, left

    def next_place(self) -> Place:
        """The place where the next epoch begins, with the ranks that there are now."""
        cursor = self._cursor
        schedule = self._schedule(cursor.epoch)
        if (resumed := self._resumed) is not None:  # once more, as there may be more ranks by now
            self._resumed_at(schedule, resumed.state, resumed.change_batch_size)
        if not self._agreed:
            groups = self._plan.groups
            alone = groups is None and self._plan.schedule.share is not None
            reached = groups.everyone() if groups is not None else [] if alone else everyone_there()
            facts = self._identity(schedule).state(cursor)
            if groups is not None and self.sampled is not None:
                facts |= self.sampled.shared()
            if self._function is not None:
                facts["the sampler's indices"] = self._function.digest(cursor.epoch)
            self.seed = agree(facts, reached)
            self._agreed = True
        elif self._unnoticed and schedule.world_size > 1:
            self._unnoticed = False
            self._compare_orders(schedule)
        return Place(cursor.epoch, schedule.step_at(cursor.position), schedule)

    def _compare_orders(self, schedule: Schedule) -> None:
        """Warn if another rank has another seed, where the order of samples depends on it, or other indices."""
        kind = self._identity(schedule).state(Cursor(0, 0))
        name = "seed"
        if self._function is not None:
            kind |= {"seed": None, "epoch": self._cursor.epoch}
            remedy = "Let the function draw from a generator that all ranks seed with the epoch"
            warn_of_others(kind, "indices of digest", self._function.digest(self._cursor.epoch), remedy=remedy)
            return
        if self.sampled is not None:
            kind |= self.sampled.shared()
            name, kind["order"] = "the batch_sampler's seed", kind["the batch_sampler's order"]
        seed = kind.pop(name)
        if kind["order"]["shuffle"] != "sequential" or "mix" in kind:
            remedy = "Pass one seed in all ranks; what transforms draw differs from rank to rank by itself"
            warn_of_others(kind, "seed", seed, remedy=remedy)

    def steps(self, place: Place) -> Steps:
        """The steps of the epoch at a place, which moves on to the next epoch if a state was of this one's very end."""
        found = self._steps(place)
        resumed = self._resumed
        if resumed is not None and not resumed.kept and place.step and found.steps <= place.step:
            if self.sampled is not None:
                self.sampled.passed()
            self._cursor, self._resumed = Cursor(place.epoch + 1, 0), None
            place.epoch, place.step = place.epoch + 1, 0
            place.schedule = self._schedule(place.epoch)
            found = self._steps(place)
        return found

    def _steps(self, place: Place) -> Steps:
        if self.sampled is not None:
            return self.sampled.draws(place)
        if self._function is not None:
            ids, wanted = self._function.indices(place.epoch), place.schedule.samples
            if len(ids) != wanted:  # it was called again, as other epochs were asked for meanwhile
                raise OptionError(
                    f"gave {len(ids)} indices for epoch {place.epoch}, and {wanted} when it was called for it before",
                    option="sampler",
                    remedy="Draw them with a generator that is seeded with the epoch.",
                )
            return Ordered(GivenOrder(ids), place.schedule)
        return Ordered(self._plan.space.order(self._plan.order, self.known_seed(), place.epoch), place.schedule)

    def begun(self, place: Place) -> None:
        """Note that the epoch at a place is the newest; it moves on as batches are handed out."""
        if (newest := self._newest) is not None and self._finished(newest):
            self.ended(newest)  # its last batch was taken, and no other one was asked for
        if self.sampled is not None:
            self.sampled.begun()  # Ctrl-C, which strikes in calls, strikes before it or after all that follows
        elif self._resumed is not None:
            self._resumed.place, self._begun = place, self._resumed
        self._newest, self._last, self._cursor, self._resumed = place, place, Cursor(place.epoch + 1, 0), None
        place.first, place.run = place.step, self._run
        self._left += 1

    def ended(self, place: Place) -> None:
        """Note that the epoch at a place is over: it is finished."""
        self._left -= place.run == self._run
        place.run = None
        if self._newest is place:
            self._newest = None

    def transform_key(self, epoch: int, step: int) -> int:
        """Seed of the random numbers of a step's transforms.

        It depends on the loader's seed, on the epoch, and on the position of the batch's first sample in the order that
        all ranks share; with a sampler, whose order is this rank's own, on step and rank.
        """
        if self.sampled is None:
            where: tuple[int, ...] = (self._begun_schedule(epoch).span(step)[0],)
        else:
            where = (step, self._plan.schedule.world()[0])
        return derive_key(self.known_seed(), epoch, Purpose.TRANSFORM, *where)

    def sample_keys(self, epoch: int, step: int, samples: int) -> list[int]:
        """Seeds of the random numbers of a step's samples, by themselves.

        Each depends on the loader's seed, on the epoch, and on the sample's position in the order that all ranks share;
        with a sampler on step, rank, and place in the batch.
        """
        first, where = 0, (step, self._plan.schedule.world()[0]) if self.sampled is not None else ()
        if self.sampled is None:
            first = self._begun_schedule(epoch).span(step)[0]
        seed = self.known_seed()
        return [derive_key(seed, epoch, Purpose.SAMPLE, *where, first + number) for number in range(samples)]

    def known_seed(self) -> int:
        """The seed, in an epoch, which begins with one."""
        if self.seed is None:
            raise RuntimeError("an epoch has begun without a seed")
        return self.seed

    def _resumed_at(self, schedule: Schedule, state: dict[str, Any], change_batch_size: bool) -> Cursor:
        """The cursor of a state; StateError if it was taken of another order, or is none."""
        steps_of = None if self._function is None else self._schedule
        return self._identity(schedule, state).resume(state, change_batch_size=change_batch_size, steps_of=steps_of)

    def _identity(self, schedule: Schedule, state: object = None) -> OrderIdentity:
        """The identity of the order; if the plan has no seed, with that of `state`."""
        plan, seed = self._plan, self.seed
        if self._function is not None:  # whose epochs may differ in length
            schedule = replace(schedule, samples=plan.schedule.samples)
        if plan.seed is None and isinstance(state, dict):
            drawn = state.get("seed")
            seed = drawn if drawn is None or (type(drawn) is int and 0 <= drawn < 2**64) else seed
        if self._digest is None:
            self._digest = plan.selected.digest
        return OrderIdentity(schedule, plan.order, seed, self._digest, plan.selected.mixture)
