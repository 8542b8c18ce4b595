"""The resuming of a sampler, in one of three ways.

- By the place in its plan, if it has one (`PlannedSampler`): nothing is drawn again;
- by its own `state_dict`, which is called after each batch that is drawn; or
- by setting it back to the begin of the epoch (its generator's state, its epoch) and drawing again the indices that had
  been handed out. A digest of these shows whether it repeats itself.
"""

from __future__ import annotations

import base64
import copy
from collections import deque
from collections.abc import Mapping, Sized
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
import xxhash
from torch.utils.data import BatchSampler, RandomSampler, SequentialSampler

from gdsload.errors import OptionError, StateError
from gdsload.loader.samplers.draws import Draws
from gdsload.loader.samplers.indices import IndexSource
from gdsload.loader.samplers.planned import PlannedEpoch, PlannedSampler, another_kind, place_in, state_of
from gdsload.loader.state import Place
from gdsload.order import Schedule

if TYPE_CHECKING:
    from gdsload.loader.options import Options

_FIXED = (list, tuple, range, torch.Tensor, np.ndarray, SequentialSampler)
"""Kinds of samplers that give the same indices each time."""


def expected_batch(batch_sampler: object) -> int | None:
    """Samples of a batch of a batch sampler, as far as it says; None if it does not."""
    size = getattr(batch_sampler, "batch_size", None)
    return size if isinstance(size, int) and size > 0 else None


class Sampled:
    """A sampler, and how it is resumed."""

    def __init__(self, source: IndexSource) -> None:
        self.source = source
        self._levels = [source.given]
        while isinstance(inner := self._levels[-1], BatchSampler):
            self._levels.append(inner.sampler)
        self._resumed: dict[str, Any] | None = None
        """The mark where the next epoch begins, if a state was loaded."""
        self._begins: dict[str, Any] | None = None
        """The mark where it was to begin, if it has drawn from the sampler already but has not begun."""
        self._next: Draws | None = None
        self._draws: Draws | None = None  # of the newest epoch that has begun

    def steps(self, epoch: int, schedule: Schedule) -> int:
        """Number of batches of an epoch with these ranks."""
        planned = self.source.planned
        return len(self) if planned is None else planned.steps(epoch, schedule.world_size)

    def __len__(self) -> int:
        """Number of batches, as far as the sampler has a length."""
        count, size = len(cast("Sized", self.source.given)), self.source.batch_size
        if size is None:
            return count
        return count // size if self.source.drop_last else -(-count // size)

    @property
    def ended(self) -> bool:
        """True if the consumer has got all batches of the newest epoch."""
        return self._draws is not None and self._draws.ended

    @property
    def stateful(self) -> Any:
        """The sampler that keeps a state: the given one, or what a `BatchSampler` draws from; None if neither does."""
        for level in self._levels:
            if callable(getattr(level, "state_dict", None)) and callable(getattr(level, "load_state_dict", None)):
                return level
        return None

    def set_epoch(self, epoch: int, *, resumed: bool) -> None:
        """Pass the number of the next epoch, which may be one that was `resumed`, to the samplers that take it."""
        if not resumed:
            self._resumed = self._begins = None
        self._leave()
        for level in self._levels:
            if callable(pass_on := getattr(level, "set_epoch", None)):
                pass_on(epoch)

    def give_up(self, step: int) -> None:
        """Go on after an epoch that was resumed at this step and is left there: a generator draws up to it.

        A generator that was seeded since then is left as it is.
        """
        begin = (self._resumed or {}).get("begin")
        generator = self._generator()
        if isinstance(begin, dict) and generator is not None and _as_text(generator) == begin["generator"]:
            self._skip(step)

    def state(self, place: Place | None, step: int) -> dict[str, Any] | None:
        """The sampler's state at the place of the consumer, after `step` batches, or with no place between two epochs.

        It is JSON-able unless the sampler's own is not; None between two epochs of a sampler that cannot be resumed in
        the middle of one, and there StateError.
        """
        mark = self._between() if place is None or self._draws is None else self._draws.mark()
        if self.source.planned is not None and mark is not None and "state" in mark:
            return state_of(self.source.planned, mark["state"])
        if mark is None and step:
            raise StateError(
                f"the {self.source.name}, a {type(self._levels[-1]).__name__}, cannot be set back into the middle "
                "of an epoch: it has no state_dict and load_state_dict, no generator, and no set_epoch and epoch",
                remedy="Give it a seeded generator (`generator=torch.Generator().manual_seed(0)`) or a state_dict, "
                "pass indices in a tensor, or ask between epochs.",
            )
        return mark

    def _between(self) -> dict[str, Any] | None:
        """The sampler's state between two epochs; None if it is not known."""
        known = self._resumed if self._begins is None else self._begins
        if known is not None:
            return copy.deepcopy(known)
        self._leave()
        if self.source.planned is not None:
            return state_of(self.source.planned, None)
        if (stateful := self.stateful) is not None:
            return {"state": copy.deepcopy(stateful.state_dict())}
        begin = self._begin()
        return None if begin is None else {"begin": begin, "digest": 0}

    def shared(self) -> dict[str, Any]:
        """The settings of a sampler that ranks share, which must be the same in all of them; empty for a rank's own."""
        planned = self.source.planned
        return {} if planned is None else {f"the batch_sampler's {name}": it for name, it in planned.identity().items()}

    def refuse_others(self, state: Mapping[str, Any], step: int, world: tuple[int, int]) -> None:
        """Raise StateError for another rank's state, taken after `step` batches, if the samples depend on the rank."""
        mark, taken = state.get("sampler"), (state.get("rank"), state.get("world_size"))
        if self.source.planned is not None or taken in (world, (None, None)):
            return
        # Between two epochs of a sampler that is a function of its epoch, a state does not depend on the rank.
        begin = mark.get("begin") if isinstance(mark, dict) else None
        if step or (isinstance(mark, dict) and "state" in mark) or (isinstance(begin, dict) and "generator" in begin):
            raise StateError(
                f"the state is that of the {self.source.name} of rank {taken[0]} of {taken[1]}, and this is rank "
                f"{world[0]} of {world[1]}",
                remedy="Save and load a state in each rank. If the sampler gives all ranks the same indices, take "
                "rank and world_size out of the state.",
            )

    def resume(self, mark: object, step: int, schedule: Schedule) -> None:
        """Set the sampler to where `mark` was made, after `step` batches.

        Raises StateError if it was made of another sampler, or a plan for other ranks.
        """
        stateful, planned = self.stateful, self.source.planned
        begin = self._begin() if planned is None else None
        if planned is not None:
            mark = state_of(planned, place_in(mark, planned, schedule.world_size, step))
        elif stateful is not None:
            if not isinstance(mark, dict) or mark.keys() - {"over"} != {"state"} or mark.get("over", True) is not True:
                raise another_kind()
            self._set_to(mark, step)
        elif begin is not None:
            if not isinstance(mark, dict) or mark.keys() != {"begin", "digest"} or type(mark["digest"]) is not int:
                raise another_kind()
            _check(begin, mark["begin"], step, self.source.name)
            self._set_to(mark, step)
        elif mark is not None or step:
            raise another_kind()
        self._resumed, self._begins = None if mark is None else dict(mark), None
        self._next = self._draws = None  # they are not what the sampler is set to now

    def draws(self, place: Place) -> Draws:
        """Begin an epoch, from `place` on. Until `begun` is called, the next call begins there, too.

        Raises StateError if a resumed sampler does not repeat itself.
        """
        mark = self._between()
        if self.source.planned is not None:
            self._next = _planned_draws(self.source, self.source.planned, mark, place)
            return self._next
        # One that keeps its own state may begin again by itself where it was left half-way.
        goes_back = self.stateful is None or self._resumed is not None or self._draws is None or self._draws.ended
        if self._begins is not None and goes_back:
            self._set_to(self._begins, place.step)
        self._begins = mark  # first of all, as drawing may fail
        draws = Draws(self.source, self.stateful, mark, place, self._drawn_ahead())
        if place.step and self.stateful is None and mark != draws.mark():
            raise StateError(
                f"the {self.source.name} does not give the indices again that it gave when the state was taken",
                remedy="Pass the same one, with the same seed, or give it state_dict and load_state_dict.",
            )
        self._next = draws
        return draws

    def begun(self) -> None:
        """The epoch of the last `draws` has begun: what follows is after it."""
        self._draws, self._next, self._resumed, self._begins = self._next, None, None, None

    def passed(self) -> None:
        """The epoch of the last `draws` has no batch left: the next one begins after it."""
        self._draws, self._next, self._resumed, self._begins = None, None, None, None

    def _leave(self) -> None:
        """Let a generator go on after the batches handed out of an epoch that is left, not after those drawn ahead.

        They are drawn again: how many were drawn ahead depends on how fast the consumer was.
        """
        draws = self._draws
        if draws is not None and draws.begin is not None and (step := draws.left()) is not None:
            self._set_back(draws.begin)
            self._skip(step)

    def _skip(self, step: int) -> None:
        deque(islice(self.source.given, step * (self.source.batch_size or 1)), maxlen=0)

    def _drawn_ahead(self) -> torch.Generator | None:
        """The generator that torch's sampler draws from as it goes on: others draw all when they begin, or are slow."""
        outer = all(type(level) is BatchSampler for level in self._levels[:-1])
        return self._generator() if outer and type(self._levels[-1]) is RandomSampler else None

    def _generator(self) -> torch.Generator | None:
        found = (getattr(level, "generator", None) for level in self._levels)
        return next((generator for generator in found if isinstance(generator, torch.Generator)), None)

    def _begin(self) -> dict[str, Any] | None:
        """The values that the order of the next epoch depends on; None if they are not known."""
        found: dict[str, Any] = {}
        if (generator := self._generator()) is not None:
            found["generator"] = _as_text(generator)
        if (level := self._with_epoch()) is not None:
            found["epoch"] = level.epoch
        if (table := self.source.table()) is not None:
            found["indices"] = xxhash.xxh3_128_hexdigest(table.data)
        if not found and not isinstance(self._levels[-1], _FIXED):
            return None
        with suppress(Exception):  # not all have a length
            found["batches"] = len(self)
        return found

    def _with_epoch(self) -> Any:
        for level in self._levels:
            if callable(getattr(level, "set_epoch", None)) and type(getattr(level, "epoch", None)) is int:
                return level
        return None

    def _set_to(self, mark: dict[str, Any], step: int) -> None:
        """Set the sampler to where a mark was made, or to the begin of that epoch."""
        if (stateful := self.stateful) is None:
            self._set_back(mark["begin"])
            return
        stateful.load_state_dict(copy.deepcopy(mark["state"]))
        # At its end, some go on with the next epoch, and others first end once more.
        if (not step or "over" in mark) and any(True for _ in self.source.given):
            stateful.load_state_dict(copy.deepcopy(mark["state"]))

    def _set_back(self, begin: dict[str, Any]) -> None:
        if (generator := self._generator()) is not None:
            try:
                state = np.frombuffer(base64.b64decode(begin["generator"], validate=True), np.uint8).copy()
                generator.set_state(torch.from_numpy(state))
            except (TypeError, ValueError, RuntimeError) as error:
                raise StateError(f"the state of the sampler's generator cannot be used: {error}") from None
        if (level := self._with_epoch()) is not None:
            level.set_epoch(begin["epoch"])


def _check(mine: dict[str, Any], begin: Any, step: int, name: str) -> None:
    """Raise StateError if the begin of an epoch is that of another sampler."""
    if not isinstance(begin, dict) or (begin.keys() ^ mine.keys()) - {"batches"}:
        raise another_kind()
    if begin.get("indices") != mine.get("indices"):
        raise StateError("the sampler's indices are not those of the state", remedy="Pass the same indices.")
    now = mine.get("batches")
    if step and now is not None and begin.get("batches", now) != now:
        raise StateError(
            f"the {name} gives {now} batches, not {begin['batches']!r} as when the state was taken",
            remedy="Pass the same one, with the same `batch_size` and `drop_last`, or go on between two epochs.",
        )
    if type(begin.get("epoch", 0)) is not int:
        raise StateError(f"the sampler's epoch {begin['epoch']!r} is no number")


def _planned_draws(source: IndexSource, planned: PlannedSampler, state: object, place: Place) -> Draws:
    schedule = place.schedule
    epoch = PlannedEpoch(planned, place.epoch, schedule.rank, schedule.world_size)
    # Once more, as there may be other ranks by now.
    if place.step and (begin := place_in(state, planned, schedule.world_size, place.step)) is not None:
        epoch.load_state_dict(begin)
    return Draws(replace(source, given=epoch), epoch, {"state": epoch.state_dict()}, place)


def _as_text(generator: torch.Generator) -> str:
    return base64.b64encode(generator.get_state().numpy().tobytes()).decode()


def index_source(options: Options, samples: int) -> IndexSource | None:
    """The source of the loader's indices, OptionError if it cannot be used; None with no sampler, or a function."""
    if options.sampler is not None and options.function is None:
        return IndexSource(options.sampler, options.batch_size, options.last_batch == "drop", samples)
    batches = options.batch_sampler
    if batches is None:
        return None
    if isinstance(batches, PlannedSampler) and batches.samples != samples:
        raise OptionError(
            f"was made of {batches.samples} samples, but the loader's dataset has {samples}",
            option="batch_sampler",
            remedy="Make both of the same dataset.",
        )
    return IndexSource(batches, None, False, samples)
