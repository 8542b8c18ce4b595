"""Which share of the samples is this process's: asked for when an epoch begins, as ranks may be made after loaders."""

from __future__ import annotations

import os
import weakref
from typing import Any

import torch

from gdsload.errors import OptionError
from gdsload.loader.options import LoaderOptions
from gdsload.loader.samplers import SampledSchedule, expected_batch
from gdsload.loader.selection import Selected
from gdsload.order import OrderOptions, Schedule
from gdsload.order.checks import check_whole

__all__ = ["Schedules", "world"]

_AVAILABLE = torch.distributed.is_available()


def world(options: LoaderOptions) -> tuple[int, int]:
    """Rank and world size: as given, else those of torch.distributed, else 0 of 1.

    Raises:
        OptionError: if only one of them is given.
    """
    if (options.rank is None) != (options.world_size is None):
        raise OptionError("rank and world_size go together", remedy="Pass both, or neither.")
    if options.rank is not None and options.world_size is not None:
        return check_whole(options.rank, "rank", 0), check_whole(options.world_size, "world_size", 1)
    if _AVAILABLE and torch.distributed.is_initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    return 0, 1


class _Seen:
    """The default process group of torch.distributed as it was, or that there was none.

    It is not held: as long as somebody does, torch keeps the store that its processes met in, and a group that is made
    in its place hangs, waiting for them at their old addresses.
    """

    def __init__(self) -> None:
        group = _process_group()
        self._group = None if group is None else weakref.ref(group)

    def is_now(self) -> bool:
        """Whether it is the one that there is; quick enough to be asked for at each batch."""
        group = _process_group()
        return self._group is None if group is None else self._group is not None and self._group() is group


def _process_group() -> Any:
    return torch.distributed.group.WORLD if _AVAILABLE else None


class Schedules:
    """The steps of epochs, and which part of them is this rank's; all of them if it has a sampler, as in torch.

    Args:
        selected: the samples.
        options: with rank and world size, if they are given.
        order: the order options.
        batch_size: samples of a batch of one rank.
        drop_last: leave out the last global batch if it is not full.

    Raises:
        OptionError: if these are no such numbers.
    """

    def __init__(
        self, selected: Selected, options: LoaderOptions, order: OrderOptions, batch_size: int, *, drop_last: bool
    ) -> None:
        self._selected, self._options, self._order = selected, options, order
        self._batch_size, self._drop_last = batch_size, drop_last
        self._sampled = options.sampler is not None or options.batch_sampler is not None
        self._fixed = self._sampled or options.rank is not None
        self._seen = _Seen()
        self.newest = self._make()
        """That of the newest epoch; before the first one, as far as is known."""

    def now(self) -> Schedule:
        """The steps of an epoch that begins now. They do not change while the process group is the same.

        Raises:
            OptionError: if this is one of several processes, and nobody has said which.
        """
        if self._fixed:
            return self.newest
        size = os.environ.get("WORLD_SIZE", "")
        if size.isdecimal() and int(size) > 1 and _process_group() is None:
            raise OptionError(
                f"WORLD_SIZE is {size} in the environment, but torch.distributed is not initialised: all {size} "
                "processes would get the same batches",
                remedy="Call torch.distributed.init_process_group (or make the framework's Trainer or Accelerator) "
                "before the first batch, len(loader) and states, or pass rank= and world_size=; rank=0, world_size=1 "
                "gives all samples to every process.",
            )
        if not self._seen.is_now():
            seen = _Seen()
            self.newest, self._seen = self._make(), seen
        return self.newest

    def check(self, begun: Schedule) -> None:
        """Make sure that an epoch's world is still the one that it began with.

        Raises:
            OptionError: if it is not.
        """
        if self._fixed or (self.newest is begun and self._seen.is_now()):
            return
        now = world(self._options)
        if now != (begun.rank, begun.world_size):
            raise OptionError(
                f"the epoch began as rank {begun.rank} of {begun.world_size}, and this process is now rank {now[0]} of "
                f"{now[1]}: its batches would not fit together with those of the other ranks",
                remedy="Initialise torch.distributed before the first batch, and begin a new epoch where it changes.",
            )

    def _make(self) -> Schedule:
        if self._sampled:
            size = expected_batch(self._options.batch_sampler) or self._batch_size
            return SampledSchedule(len(self._selected), size, drop_last=self._drop_last)
        samples, lanes = self._selected.epoch_samples, self._order.lanes
        return Schedule(samples, self._batch_size, *world(self._options), self._drop_last, lanes)
