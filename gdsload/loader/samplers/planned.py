"""Batch samplers whose batches are a function of epoch and place: what ranks share out, and resume without drawing."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch.utils.data import Sampler

from gdsload.errors import StateError
from gdsload.order.checks import check_epoch
from gdsload.system.arrays import IntArray

__all__ = ["PlannedEpoch", "PlannedSampler", "WindowPlan", "place_in", "state_of"]


@dataclass(frozen=True, slots=True, eq=False)
class WindowPlan:
    """The batches of a window of an epoch.

    Attributes:
        ids: indices of samples.
        bounds: for each step and rank the first of its samples among `ids`, and the one after the last; int64
            ``[steps, world_size, 2]``.
    """

    ids: IntArray
    bounds: IntArray

    def __len__(self) -> int:
        return len(self.bounds)

    def batch(self, step: int, rank: int) -> IntArray:
        """The indices of a rank's batch."""
        low, high = self.bounds[step, rank].tolist()
        return self.ids[low:high]


class PlannedSampler(Sampler[IntArray], ABC):
    """A batch sampler that plans an epoch window by window, each by itself.

    A loader tells it epoch, rank and world size. Where it is iterated by others, these are `epoch`, and rank and world
    size of torch.distributed.

    Attributes:
        epoch: number of the epoch that the next `iter` gives; as with torch's samplers, `set_epoch` moves it on.
    """

    epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Set the number of the epoch that the next `iter` gives. A loader has its own numbers.

        Raises:
            OptionError: if it is no whole number from 0 to 2**64 - 1.
        """
        self.epoch = check_epoch(epoch)

    @property
    @abstractmethod
    def samples(self) -> int:
        """Samples of the dataset that indices are of."""

    @abstractmethod
    def identity(self) -> dict[str, Any]:
        """The values that batches depend on besides epoch, rank and world size: plain, as a state has them."""

    @abstractmethod
    def windows(self, world_size: int) -> int:
        """Number of windows of an epoch."""

    @abstractmethod
    def plan(self, epoch: int, window: int, world_size: int) -> WindowPlan:
        """The batches of a window: always the same ones, and equally many for all ranks."""

    def steps(self, epoch: int, world_size: int) -> int:
        """Number of batches of a rank: all windows are planned to find it out."""
        return sum(len(self.plan(epoch, window, world_size)) for window in range(self.windows(world_size)))

    def __len__(self) -> int:
        """Number of batches of this rank in the epoch that is next."""
        return self.steps(self.epoch, _world()[1])

    def __iter__(self) -> Iterator[IntArray]:
        """The batches of this rank in the epoch that is next: arrays of indices, int64 ``[samples]``."""
        return PlannedEpoch(self, self.epoch, *_world())


class PlannedEpoch(Iterator[IntArray]):
    """The batches of a rank in an epoch.

    Args:
        sampler: what plans them.
        epoch: number of the epoch.
        rank: the rank.
        world_size: number of ranks.
    """

    def __init__(self, sampler: PlannedSampler, epoch: int, rank: int, world_size: int) -> None:
        self._sampler, self._epoch, self._rank, self._world_size = sampler, epoch, rank, world_size
        self._windows = sampler.windows(world_size)
        self._window = self._step = 0
        self._plan: WindowPlan | None = None

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> IntArray:
        while self._window < self._windows:
            if self._plan is None:
                self._plan = self._sampler.plan(self._epoch, self._window, self._world_size)
            if self._step < len(self._plan):
                self._step += 1
                return self._plan.batch(self._step - 1, self._rank)
            self._window, self._step, self._plan = self._window + 1, 0, None
        raise StopIteration

    def state_dict(self) -> dict[str, Any]:
        """The place after the last batch, the same for all ranks."""
        return {"world_size": self._world_size, "window": self._window, "step": self._step}

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        """Go there."""
        self._window, self._step, self._plan = state["window"], state["step"], None


def state_of(sampler: PlannedSampler, place: dict[str, Any] | None) -> dict[str, Any]:
    """The state of a sampler at a place in an epoch; None for an epoch's begin."""
    return {"plan": sampler.identity(), "place": place}


def place_in(state: object, sampler: PlannedSampler, world_size: int, step: int) -> dict[str, Any] | None:
    """The place of a state that `state_of` made.

    Args:
        state: the state.
        sampler: what it is to go on with.
        world_size: the number of ranks now; at an epoch's begin it may be another one.
        step: how many batches have been handed out.

    Raises:
        StateError: if it was made of another sampler, or with another number of ranks, or is none.
    """
    if not isinstance(state, dict) or state.keys() != {"plan", "place"} or not isinstance(state["plan"], dict):
        raise StateError(
            "the state was taken with a sampler of another kind", remedy="Pass the same sampler, made in the same way."
        )
    now, plan = sampler.identity(), state["plan"]
    for name in [*now, *plan]:
        if plan.get(name) != now.get(name):
            raise StateError(
                f"the batch_sampler's {name} was {plan.get(name)!r}, and here it is {now.get(name)!r}",
                remedy="Make it with the same arguments, of the same samples.",
            )
    place: Any = state["place"]
    if place is None and not step:
        return None
    numbers = ("world_size", "window", "step")
    if not isinstance(place, dict) or any(type(place.get(name)) is not int or place[name] < 0 for name in numbers):
        raise StateError(
            f"{place!r:.200} is no place in an epoch", remedy="Pass what state_dict() returned, unchanged."
        )
    if place["world_size"] != world_size:
        raise StateError(
            f"the state was taken in the middle of an epoch that {place['world_size']} ranks shared, and there are now "
            f"{world_size}: their batches are others",
            remedy="Go on with as many ranks, or from a state between two epochs.",
        )
    return {name: place[name] for name in numbers}


def _world() -> tuple[int, int]:
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    return 0, 1
