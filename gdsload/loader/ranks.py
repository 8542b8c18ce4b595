"""This process's share of the samples, which is looked up when an epoch begins: ranks may be set up after loaders."""

from __future__ import annotations

import os
import weakref
from dataclasses import dataclass, replace
from typing import Any

import torch

from gdsload.errors import OptionError
from gdsload.order import Schedule, Tail

_AVAILABLE = torch.distributed.is_available()


@dataclass(frozen=True, slots=True)
class SampledSchedule(Schedule):
    """Steps of a sampler, which are as many as it gives: positions count batches.

    Rank and world size are for a sampler with a plan; others have their own.
    """

    @property
    def global_batch(self) -> int:
        """Samples of a batch: ranks share none out."""
        return self.batch_size

    def position(self, step: int) -> int:
        """The step itself."""
        return step

    @property
    def remainder(self) -> int:
        """0: samplers of ranks have no batch in common."""
        return 0

    def counted(self, _step: int, size: int) -> range:
        """All of them: nothing repeats what a sampler gives."""
        return range(size)

    def step_at(self, position: int) -> int:
        """The position itself. Raises OptionError if it is less than 0."""
        if position < 0:
            raise OptionError(f"is {position}, which is no number of batches", option="position")
        return position


@dataclass(frozen=True, slots=True)
class ScheduleRule:
    """The values that the steps of an epoch follow from, besides the ranks that there are when it begins.

    Attributes:
        samples: samples of an epoch of all ranks.
        batch_size: samples of a batch of one rank; of a batch sampler, as far as it says.
        tail: what becomes of a last global batch that is not full; see `Schedule`.
        lanes: number of lanes of the order.
        share: rank and world size, if they are given; None: torch.distributed's.
        sampled: whether a sampler gives the samples of this rank, so that ranks share nothing out, as in torch.
        planned: whether that one shares its batches out among the ranks itself.
    """

    samples: int
    batch_size: int
    tail: Tail
    lanes: int
    share: tuple[int, int] | None = None
    sampled: bool = False
    planned: bool = False

    @property
    def fixed(self) -> bool:
        """True if the steps are the same whatever ranks there are."""
        return (self.sampled and not self.planned) or self.share is not None

    def world(self) -> tuple[int, int]:
        """Rank and world size now: as given, else those of torch.distributed."""
        return rank_and_world_size() if self.share is None else self.share

    def schedule(self) -> Schedule:
        """The steps of an epoch that begins now. Raises OptionError if there is no such rank."""
        if self.sampled:
            share = self.world() if self.planned else (0, 1)
            return SampledSchedule(self.samples, self.batch_size, *share, tail=self.tail)
        return Schedule(self.samples, self.batch_size, *self.world(), self.tail, self.lanes)


def rank_and_world_size() -> tuple[int, int]:
    """Those of torch.distributed, or 0 of 1 if it is not initialised."""
    if _AVAILABLE and torch.distributed.is_initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    return 0, 1


def _process_group() -> Any:
    return torch.distributed.group.WORLD if _AVAILABLE else None


class Schedules:
    """The steps of epochs, and which part of them is this rank's; OptionError if there is no such rank."""

    def __init__(self, rule: ScheduleRule) -> None:
        self._rule = rule
        self.newest = rule.schedule()
        """That of the newest epoch; before the first one, as far as is known."""
        group = _process_group()
        self._group = None if group is None else weakref.ref(group)
        """The default process group when it began. It is not held: torch keeps the store of a group that is referred
        to, and the next group would hang, as it waits for processes at their old addresses."""

    def _same_group(self) -> bool:
        """Return whether the default process group is still that one; quick enough for each batch."""
        group = _process_group()
        return self._group is None if group is None else self._group is not None and self._group() is group

    def now(self, samples: int | None = None) -> Schedule:
        """The steps of an epoch of so many samples that begins now; None: of the rule's.

        They do not change while the process group is the same. Raises OptionError if there are several processes, and
        the rank of this one is unknown.
        """
        self._renew()
        if samples is not None and samples != self.newest.samples:
            self.newest = replace(self.newest, samples=samples)
        return self.newest

    def _renew(self) -> None:
        if self._rule.fixed:
            return
        size = os.environ.get("WORLD_SIZE", "")
        if size.isdecimal() and int(size) > 1 and _process_group() is None:
            raise OptionError(
                f"WORLD_SIZE is {size} in the environment, but torch.distributed is not initialised: all {size} "
                "processes would get the same batches",
                remedy="Call torch.distributed.init_process_group (or make the framework's Trainer or Accelerator) "
                "before the first batch, len(loader) and states, or pass `ranks=(rank, world_size)`; `ranks=(0, 1)` "
                "gives all samples to every process.",
            )
        if not self._same_group():
            self.newest, group = self._rule.schedule(), _process_group()
            self._group = None if group is None else weakref.ref(group)

    def check(self, begun: Schedule) -> None:
        """Make sure that an epoch's world is still the one that it began with. Raises OptionError if it is not."""
        if self._rule.fixed or (self.newest is begun and self._same_group()):
            return
        now = self._rule.world()
        if now != (begun.rank, begun.world_size):
            raise OptionError(
                f"the epoch began as rank {begun.rank} of {begun.world_size}, and this process is now rank {now[0]} of "
                f"{now[1]}: its batches would not fit together with those of the other ranks",
                remedy="Initialise torch.distributed before the first batch, and begin a new epoch where it changes.",
            )
