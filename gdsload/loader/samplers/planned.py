"""Batch samplers whose batches are a function of epoch and place: ranks share them out, and nothing is drawn to resume.

Batches are of samples of like length, planned from the shards' offsets alone. An epoch is the loader's own order
(`gdsload.order`), cut into sort windows. Their samples are sorted by length, longest first, and cut into batches. A
step has one batch for each rank, so that the ranks' batches of a step are alike in length, too. Steps come in a random
order. A window has a multiple of the ranks' number of samples, so its batches can be halved until all ranks have
equally many: each window is planned by itself.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import xxhash
from torch.utils.data import Sampler

from gdsload.engine.steps import Ordered
from gdsload.errors import OptionError, StateError
from gdsload.loader.batch_fields import mean_sample_bytes
from gdsload.loader.ranks import rank_and_world_size
from gdsload.loader.selection import sample_space, select
from gdsload.order import Permutation, Purpose, Schedule, derive_key, resolve
from gdsload.order.checks import check_whole
from gdsload.system.arrays import IntArray

_WINDOW_STEPS = 64
"""Steps of a window: a batch then differs in length by a hundredth or so of what the window does, and steps have that
many places to come at."""
_LEAST_WINDOWS = 4
"""Windows of an epoch, if that leaves each a step: or neighbours in length would be the same in every epoch."""


@dataclass(frozen=True, slots=True, eq=False)
class SortWindow:
    """The batches of a sort window of an epoch.

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
    """A batch sampler that batches samples by length, and plans an epoch window by window, each by itself.

    A loader tells it epoch, rank and world size. Where it is iterated by others, these are `epoch`, and rank and world
    size of torch.distributed. See `gdsload.TokenBudget` for the arguments.

    Attributes:
        epoch: number of the epoch that the next `iter` gives; as with torch's samplers, `set_epoch` moves it on.
    """

    epoch = 0

    def __init__(self, dataset: object, field: str, window: int | None, shuffle: bool | str, seed: int) -> None:
        selected = select(dataset)
        if selected.mixture is not None:
            raise OptionError("a Mix has its own order", remedy="Pass a dataset, a Subset or a ConcatDataset.")
        self.field, self.seed = field, check_whole(seed, "seed", 0, 2**64 - 1)
        self.window = None if window is None else check_whole(window, "window", 1)
        self.lengths = selected.lengths(field)
        mean = mean_sample_bytes(selected, list(selected.schema))
        self.order_options = resolve(shuffle, len(selected), mean, int(mean * len(selected)))
        self._space = sample_space(selected, self.order_options)
        self._digest = xxhash.xxh3_128_hexdigest(np.ascontiguousarray(self.lengths).data)
        self._counted: tuple[int, int, int] | None = None

    def set_epoch(self, epoch: int) -> None:
        """Set the number of the epoch that the next `iter` gives. A loader has its own numbers.

        Raises:
            OptionError: if it is no whole number from 0 to 2**64 - 1.
        """
        self.epoch = check_whole(epoch, "epoch", 0, 2**64 - 1)

    @property
    def samples(self) -> int:
        """Samples of the dataset that indices are of."""
        return len(self.lengths)

    @property
    @abstractmethod
    def _typical(self) -> int:
        """The approximate number of samples of a batch."""

    @property
    def _whole(self) -> int:
        """The number of samples for each rank that a window has a multiple of."""
        return 1

    @abstractmethod
    def _next(self, lengths: IntArray) -> IntArray:
        """For each sample of a window, longest first, the first sample of the next batch if a batch begins with it."""

    def identity(self) -> dict[str, Any]:
        """The values that batches depend on besides epoch, rank and world size: plain, as a state has them."""
        return {
            "kind": type(self).__name__,
            "lengths": self._digest,
            "seed": self.seed,
            "window": self.window,
            "order": self.order_options.state(),
        }

    def windows(self, world_size: int) -> int:
        """Number of windows of an epoch."""
        return self._schedule(world_size).steps

    def plan(self, epoch: int, window: int, world_size: int) -> SortWindow:
        """The batches of a window: always the same ones, and equally many for all ranks."""
        order = self._space.order(self.order_options, self.seed, epoch)
        ids = Ordered(order, self._schedule(world_size)).positions(range(window, window + 1))
        if (index := self._space.index) is not None:
            ids = index[ids]
        # Stable, so that samples of one length stay in their random order.
        ids = ids[np.argsort(-self.lengths[ids], kind="stable")]
        bounds = _shared(_cut(self._next(self.lengths[ids])), world_size).reshape(-1, world_size, 2)
        if self.order_options.shuffle != "sequential":
            steps = len(bounds)
            bounds = bounds[Permutation(steps, derive_key(self.seed, epoch, Purpose.BATCHES, window))(0, steps)]
        return SortWindow(ids, bounds)

    def _schedule(self, world_size: int) -> Schedule:
        unit = world_size * self._whole
        wanted = self.window
        if wanted is None:
            wanted = min(_WINDOW_STEPS * world_size * self._typical, self.samples // _LEAST_WINDOWS)
        return Schedule(self.samples, -(-max(wanted, 1) // unit) * unit, lanes=self.order_options.lanes)

    def steps(self, epoch: int, world_size: int) -> int:
        """Number of batches of a rank: all windows are planned to find it out, and the last answer is kept."""
        if self._counted is None or self._counted[:2] != (epoch, world_size):
            steps = sum(len(self.plan(epoch, window, world_size)) for window in range(self.windows(world_size)))
            self._counted = epoch, world_size, steps
        return self._counted[2]

    def __len__(self) -> int:
        """Number of batches of this rank in the epoch that is next."""
        return self.steps(self.epoch, rank_and_world_size()[1])

    def __iter__(self) -> Iterator[IntArray]:
        """The batches of this rank in the epoch that is next: arrays of indices, int64 ``[samples]``."""
        return PlannedEpoch(self, self.epoch, *rank_and_world_size())


def _cut(following: IntArray) -> IntArray:
    """Batches of a window, from what follows on each sample if it begins one: int64 ``[batches, 2]``."""
    starts, each, count, at = [], following.tolist(), len(following), 0
    while at < count:
        starts.append(at)
        at = each[at]
    edges = np.array([*starts, count], np.int64)
    return np.stack([edges[:-1], edges[1:]], axis=1)


def _shared(batches: IntArray, world_size: int) -> IntArray:
    """Batches, the largest of them halved until ranks can share them out.

    A last window may have fewer samples than there are ranks: then some come twice.
    """
    wanted = -(-len(batches) // world_size) * world_size
    while len(batches) < wanted:
        largest = int(np.argmax(batches[:, 1] - batches[:, 0]))
        low, high = batches[largest].tolist()
        if high - low < 2:
            again = np.arange(wanted - len(batches)) % len(batches)
            return np.concatenate([batches, batches[len(batches) - 1 - again]])
        middle = (low + high + 1) // 2
        batches = np.insert(batches, largest + 1, [[middle, high]], axis=0)
        batches[largest, 1] = middle
    return batches


class PlannedEpoch(Iterator[IntArray]):
    """The batches of a rank in an epoch."""

    def __init__(self, sampler: PlannedSampler, epoch: int, rank: int, world_size: int) -> None:
        self._sampler, self._epoch, self._rank, self._world_size = sampler, epoch, rank, world_size
        self._windows = sampler.windows(world_size)
        self._window = self._step = 0
        self._plan: SortWindow | None = None

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


def another_kind() -> StateError:
    """The error for the state of another sampler."""
    return StateError(
        "the state was taken with a sampler of another kind", remedy="Pass the same sampler, made in the same way."
    )


def place_in(state: object, sampler: PlannedSampler, world_size: int, step: int) -> dict[str, Any] | None:
    """The place of a state that `state_of` made, after `step` batches; None at an epoch's begin.

    Raises StateError if it was made of another sampler, in an epoch with another number of ranks, or is none.
    """
    if not isinstance(state, dict) or state.keys() != {"plan", "place"} or not isinstance(state["plan"], dict):
        raise another_kind()
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
