"""A loader's state: one cursor, and what the order depends on, so that a resumed run is the same run."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from gdsload.errors import OptionError, StateError
from gdsload.order import Mixture, OrderOptions, Schedule
from gdsload.system.arrays import Numbers
from gdsload.system.units import counted

_VERSION = 1


class Cursor(NamedTuple):
    """The position of all ranks in an epoch: samples that all together have got."""

    epoch: int
    position: int


@dataclass(slots=True, eq=False)
class Place:
    """The place of an iterator: its epoch and step.

    Attributes:
        epoch: the number of its epoch.
        step: how many steps of it have been handed out.
        schedule: the steps of that epoch.
        run: number of the run that counts its epoch as not finished; None before it begins and after it ends.
            A run ends where the number of the next epoch is set.
        first: the step that it began with.
    """

    epoch: int
    step: int
    schedule: Schedule
    run: int | None = None
    first: int = 0


@dataclass(frozen=True, slots=True)
class OrderIdentity:
    """Everything that the order depends on.

    Attributes:
        schedule: batches and ranks; of these only the size of the global batch matters.
        order: order options.
        seed: seed of the shuffle; None if it has not been drawn yet.
        dataset: what names the samples; from `dataset_digest`.
        mixture: how they are mixed; None if they are not.
    """

    schedule: Schedule
    order: OrderOptions
    seed: int | None
    dataset: str
    mixture: Mixture | None = None

    def state(self, cursor: Cursor) -> dict[str, Any]:
        """The state of a loader at a cursor."""
        return {
            "version": _VERSION,
            "epoch": cursor.epoch,
            "position": cursor.position,
            **self._fixed(),
        }

    def resume(
        self,
        state: Mapping[str, Any],
        *,
        change_batch_size: bool = False,
        steps_of: Callable[[int], Schedule] | None = None,
    ) -> Cursor:
        """The cursor of a state that `state` made; StateError if it was made for another order, or is none.

        With `change_batch_size` its global batch may be another one, if one of ours begins at its position. `steps_of`
        gives the steps of an epoch, where each has another number of samples.
        """
        if not _is_plain(state) or state.get("version") != _VERSION:
            raise StateError(
                f"this is no state of a gdsload loader, version {_VERSION}",
                remedy="Pass what state_dict() returned, unchanged.",
            )
        mine = self._fixed()
        if lacking := sorted(mine.keys() - state.keys() - {"mix"}):
            raise StateError(f"the state has no {lacking[0]!r}", remedy="Pass what state_dict() returned, unchanged.")
        for name, message, remedy in _DIFFERENCES:
            if name == "global_batch" and change_batch_size:
                continue
            if state.get(name) != mine.get(name):
                hint = self._batch_remedy(state) if name == "global_batch" else remedy
                raise StateError(f"{message}: it was {state.get(name)!r}, here it is {mine.get(name)!r}", remedy=hint)
        epoch, position = state.get("epoch"), state.get("position")
        if type(epoch) is not int or not 0 <= epoch < 2**64 or type(position) is not int:
            raise StateError(f"epoch {epoch!r} and position {position!r} are no cursor")
        schedule = self.schedule if steps_of is None or not position else steps_of(epoch)
        try:
            schedule.step_at(position)
        except OptionError as error:
            fits = change_batch_size and 0 < position <= schedule.samples
            raise StateError(error.message, remedy=_fitting(schedule, position) if fits else error.remedy) from None
        return Cursor(epoch, position)

    def _fixed(self) -> dict[str, Any]:
        mix = {} if self.mixture is None else {"mix": self.mixture.state()}
        return {
            "dataset": self.dataset,
            **mix,
            "samples": self.schedule.samples,
            "seed": self.seed,
            "order": self.order.state(),
            "tail": self.schedule.tail,
            "global_batch": self.schedule.global_batch,
        }

    def _batch_remedy(self, state: Mapping[str, Any]) -> str:
        wanted, world = state.get("global_batch"), self.schedule.world_size
        if type(wanted) is not int or wanted % world:
            return f"{world} ranks cannot share a global batch of {wanted} evenly; use a world size that divides it."
        return (
            f"With {counted(world, 'rank')}, pass `batch_size={wanted // world}`; or to go on with another one, "
            "`load_state_dict(state, change_batch_size=True)`."
        )


def dataset_digest(digests: Sequence[str], ids: Numbers | None, offsets: object = None) -> str:
    """The digest that names the samples of a loader, from those of its datasets.

    `ids` are the samples selected of them, in order, or None for all; `offsets` say which samples of each field windows
    have, or None if samples are in no windows.
    """
    if len(digests) == 1 and ids is None:
        return digests[0]
    found = hashlib.sha256("\n".join(digests).encode())
    if ids is not None:
        found.update(str(ids).encode() if isinstance(ids, range) else np.ascontiguousarray(ids, dtype="<i8").data)
    if offsets is not None:
        found.update(f"windows of {offsets}".encode())
    return found.hexdigest()


def _fitting(schedule: Schedule, position: int) -> str:
    """The batch sizes that fit a position, and the positions that fit this batch size, in words."""
    world, size, whole = schedule.world_size, schedule.batch_size, schedule.global_batch
    before = position // whole * whole
    after = before + whole
    if after > schedule.samples:
        after = before if schedule.tail == "drop" else schedule.samples
    places = f"a state at position {before}" + (f" or {after}" if after != before else "")
    share, odd = divmod(position, world)
    if odd:
        return f"Pass {places}; {world} ranks share out no multiple of {world} there, whatever `batch_size` is."
    fits = [next(count for count in range(min(size, share), 0, -1) if share % count == 0)]
    fits += [count for count in range(size + 1, min(share, 16 * size) + 1) if share % count == 0][:1]
    sizes = " or ".join(f"`batch_size={fit}`" for fit in fits)
    return f"With {counted(world, 'rank')}, pass {sizes}, or {places}."


def _is_plain(state: object) -> bool:
    """Return whether a state is a dict of plain values, which can be compared and shown."""
    try:
        json.dumps(state)
    except (TypeError, ValueError, RecursionError):
        return False
    return isinstance(state, dict)


_DIFFERENCES = (
    (
        "dataset",
        "the dataset is not the one that the state was taken on",
        "Resume on the same dataset, or start again.",
    ),
    ("mix", "the mixture differs", "Pass a Mix of the same datasets, with the same weights and samples."),
    ("samples", "the dataset has another number of samples", "Resume on the same dataset, or start again."),
    ("seed", "the seed differs", "Pass the same `seed`."),
    (
        "order",
        "the order options differ",
        "Pass the same `shuffle`, as a BlockShuffle with all its numbers: their defaults depend on `fields`.",
    ),
    ("tail", "tail differs", "Pass the same `tail`, or `drop_last`."),
    ("global_batch", "the global batch (batch_size times world size) differs", ""),
)
