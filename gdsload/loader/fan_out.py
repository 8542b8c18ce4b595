"""Peers read a part of each batch each, and make the whole of it together.

    take() ──> this process's part ──heads──> every peer is at the same step ──parts──> the whole batch

Invariants:
    1. Everything happens in the consumer's thread, in the order of its batches, on process groups that nobody else
       uses: peers that ask for the same batches meet, whatever their loaders' threads do.
    2. Parts travel only after each peer has told that it has its own, of the same step. What goes wrong before that
       ends the epoch at all of them.
    3. No wait is for ever: a peer that does not come within `PATIENCE` is named.

The reasons are in docs/design/0014-ranks.md.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from itertools import count
from typing import Any

import numpy as np
import torch

from gdsload.engine.parts import Gathered, Part, bytes_of, together
from gdsload.errors import LoaderClosedError, OptionError, ReadError
from gdsload.loader.epoch import Epoch
from gdsload.loader.fan_out_plan import FanOutPlan
from gdsload.loader.state import Place
from gdsload.system.streams import room_for
from gdsload.system.units import counted

__all__ = ["PATIENCE", "FanOut"]

PATIENCE = timedelta(minutes=10)
"""How long a peer is waited for: as long as NCCL does by default."""
_READY, _OVER, _FAILED = 0, 1, 2
_WHAT = "batches of parts that peers have read"
_TEXT_BYTES = 400
_HEAD = 7 + _TEXT_BYTES // 8
_FIRST_LOADERS = count()
_GROUPS: dict[tuple[int, ...], weakref.ref[Any]] = {}
"""The process groups of this process's peers. Loaders of the same peers share one: groups are made by all of them
together, and torch's own end, too, is one that they have to come to."""
_EXCHANGING = threading.Lock()


@dataclass(frozen=True, slots=True)
class _Head:
    """What a peer tells before parts travel.

    Attributes:
        rank: the peer's.
        loader: the number of the loader, counted in its process.
        epoch: number of the epoch; -1 if it has none.
        step: of the batch.
        status: whether it has its part, has no batch left, or failed.
        size: samples of the whole batch.
        nbytes: what it has packed for the CPU, and for a device.
        text: of an error, the begin.
    """

    rank: int
    loader: int
    epoch: int
    step: int
    status: int = _READY
    size: int = 0
    nbytes: tuple[int, int] = (0, 0)
    text: str = ""

    def to_tensor(self) -> torch.Tensor:
        """All but the rank, as int64."""
        # Cut where it is no longer whole characters.
        text = self.text.encode()[:_TEXT_BYTES].decode(errors="ignore").encode().ljust(_TEXT_BYTES, b"\0")
        numbers = [self.loader, self.epoch % 2**63, self.step, self.status, self.size, *self.nbytes]
        return torch.from_numpy(np.concatenate([np.array(numbers, np.int64), np.frombuffer(text, np.int64)]))

    @classmethod
    def of(cls, rank: int, told: torch.Tensor) -> _Head:
        """What a rank has told."""
        loader, epoch, step, status, size, host, device = told[:7].tolist()
        text = told[7:].numpy().tobytes().rstrip(b"\0").decode(errors="replace")
        return cls(rank, loader, epoch, step, status, size, (host, device), text)

    @property
    def place(self) -> tuple[int, ...]:
        """What has to be the same at all peers."""
        return self.loader, self.epoch, self.step, self.status, self.size

    def __str__(self) -> str:
        what = "no batch left" if self.status == _OVER else counted(self.size, "sample")
        return f"rank {self.rank}: loader {self.loader}, epoch {self.epoch}, step {self.step}, {what}"


class FanOut:
    """The exchange of one loader.

    Args:
        plan: who reads what.
        device: where batches are.
    """

    def __init__(self, plan: FanOutPlan, device: torch.device) -> None:
        self._plan, self._device = plan, device
        self._loader = -1
        self._group: weakref.ref[Any] | None = None

    def connect(self) -> None:
        """Meet the peers, at the begin of a loader's first epoch; afterwards it does nothing.

        Raises:
            OptionError: if torch.distributed has been ended since.
        """
        if self._loader < 0:
            self._group = weakref.ref(_group_of(self._plan.ranks, self._device))
            self._loader = next(_FIRST_LOADERS)

    def __call__(self, epoch: Epoch, take: Callable[[], tuple[Any, int]], /) -> tuple[Any, int]:
        """The next batch, of all parts, and its number of samples.

        Args:
            epoch: whose.
            take: gives this process's part, or raises StopIteration.

        Raises:
            OptionError: if a peer is at another batch.
            BudgetError: if the device has no memory left for the whole batch. Peers are told if that is found out
                before parts travel. It is not for what is packed, whose size depends on all peers: they wait for that
                part, for as long as torch.distributed does.
            ReadError: if a peer failed, or does not come.
        """
        try:
            batch, _ = take()
            size = epoch.size(epoch.place.step)
            with room_for(_WHAT, self._device):  # what peers can still be told of
                part = Part.of(batch)
                alone = {name: self._whole(value) for name, value in part.alone.items()}
        except LoaderClosedError:  # by the consumer, who knows
            raise
        except StopIteration:
            self._meet(self._head(epoch, _OVER))
            raise
        except Exception as error:
            if self._loader >= 0:
                self._tell(self._head(epoch, _FAILED, text=f"{type(error).__name__}: {error}"))
            raise
        with room_for(_WHAT, self._device):
            with _EXCHANGING:
                heads = self._meet(self._head(epoch, _READY, size, self._nbytes(part)))
                gathered = self._gathered(part, alone, heads)
            return together(part, gathered, size, self._plan.parts, self._plan.codecs), size

    def _nbytes(self, part: Part) -> tuple[int, int]:
        """What is packed for the CPU, and for a device beside it."""
        host, device = (part.packed[kind].nbytes if kind in part.packed else 0 for kind in ("cpu", self._device.type))
        return host, 0 if self._device.type == "cpu" else device

    def _head(
        self, epoch: Epoch, status: int, size: int = 0, nbytes: tuple[int, int] = (0, 0), text: str = ""
    ) -> _Head:
        place: Place | None = getattr(epoch, "place", None)  # it has none if it could not begin
        number, step = (-1, -1) if place is None else (place.epoch, place.step)
        return _Head(self._plan.ranks[self._plan.part], self._loader, number, step, status, size, nbytes, text)

    def _meet(self, mine: _Head) -> list[_Head]:
        """Tell where this process is, and make sure that all peers are there.

        Raises:
            OptionError: if one is elsewhere.
            ReadError: if one failed, or does not come.
        """
        heads = self._tell(mine)
        if failed := [one for one in heads if one.status == _FAILED]:
            raise ReadError(f"rank {failed[0].rank}, which reads a part of each batch, failed: {failed[0].text}")
        if len({one.place for one in heads}) > 1:
            raise OptionError(
                f"ranks that read a part of each batch each are not at the same one: {'; '.join(map(str, heads))}",
                remedy="Ask for batches of the same loader in the same order in all of them, and leave epochs at the "
                "same batch; or pass fan_out=False.",
            )
        return heads

    def _tell(self, mine: _Head) -> list[_Head]:
        """What all peers tell, in the order of their parts."""
        group, parts, own = self._open_group(), self._plan.parts, self._plan.part
        told, others = mine.to_tensor(), [number for number in range(parts) if number != self._plan.part]
        found = {number: torch.zeros(_HEAD, dtype=torch.int64, device="cpu") for number in others}
        number = own
        try:
            comes = {number: torch.distributed.irecv(found[number], group=group, group_src=number) for number in others}
            goes = {number: torch.distributed.isend(told, group=group, group_dst=number) for number in others}
            for number in others:
                _wait(comes[number])
                _wait(goes[number])
        except RuntimeError as error:
            who = f"rank {self._plan.ranks[number]}" if number != own else "a rank"
            raise ReadError(
                f"{who}, which reads a part of each batch, did not come for step {mine.step} of epoch {mine.epoch} "
                f"within {PATIENCE.total_seconds():g} s, or has ended: {str(error).splitlines()[0]}",
                remedy="Ask for the same number of batches in all ranks that get the same ones; what one of them does "
                "alone must not take longer than that. Begin anew with new processes.",
            ) from error
        heads = {number: _Head.of(self._plan.ranks[number], found[number]) for number in others}
        return [heads.get(number, _Head.of(mine.rank, told)) for number in range(parts)]

    def _gathered(self, part: Part, alone: dict[str, torch.Tensor], heads: Sequence[_Head]) -> Gathered:
        """The parts of all peers.

        Args:
            part: this process's.
            alone: memory for the fields that travel by themselves, of all parts.
            heads: what the peers have told.

        Raises:
            ReadError: if they do not arrive.
        """
        most = np.max([one.nbytes for one in heads], 0).tolist()
        mine = {
            kind: _filled(part.packed[kind], nbytes)
            for kind, nbytes in zip(("cpu", self._device.type), most, strict=True)
            if nbytes
        }
        packed = {kind: self._whole(buffer) for kind, buffer in mine.items()}
        try:
            for kind, buffer in mine.items():
                self._gather(buffer, packed[kind])
            for name, value in part.alone.items():
                self._gather(value, alone[name])
        except RuntimeError as error:
            raise ReadError(
                f"the parts of a batch that peers have read did not arrive: {error}",
                remedy="A peer has ended, or torch.distributed cannot reach it: see its own error.",
            ) from error
        return Gathered(alone, {kind: whole.view(self._plan.parts, -1) for kind, whole in packed.items()})

    def _whole(self, mine: torch.Tensor) -> torch.Tensor:
        """Memory for tensors of one shape, of all parts, one after the other."""
        return mine.new_empty((self._plan.parts * len(mine), *mine.shape[1:]))

    def _gather(self, mine: torch.Tensor, whole: torch.Tensor) -> None:
        """Have what all parts have put into `whole`."""
        # Named anew in later torch, whose warning about the old name would be an error where warnings are.
        gather = getattr(torch.distributed, "all_gather_single", None) or torch.distributed.all_gather_into_tensor
        gather(bytes_of(whole), bytes_of(mine), group=self._open_group())

    def _open_group(self) -> Any:
        group = None if self._group is None else self._group()
        if group is None or not torch.distributed.is_initialized():
            raise OptionError(
                "torch.distributed, by which ranks exchange the parts of their batches, has been ended",
                remedy="Make a new loader when it has been initialised again.",
            )
        return group


def _filled(buffer: torch.Tensor, nbytes: int) -> torch.Tensor:
    """A buffer, filled up to so many bytes."""
    if buffer.nbytes == nbytes:
        return buffer
    filled = buffer.new_empty(nbytes)
    filled[: buffer.nbytes] = buffer
    return filled


def _wait(work: Any) -> None:
    if work is not None:
        work.wait(PATIENCE)


def _group_of(ranks: tuple[int, ...], device: torch.device) -> Any:
    """The process group of some ranks, all of which call it together when the first of them needs it."""
    made = _GROUPS.get(ranks)
    group = None if made is None else made()
    if group is None:
        nccl = device.type == "cuda" and torch.distributed.is_nccl_available()
        group = torch.distributed.new_group(
            list(ranks), PATIENCE, "cpu:gloo,cuda:nccl" if nccl else "gloo",
            use_local_synchronization=True,
        )  # fmt: skip
        _GROUPS[ranks] = weakref.ref(group)
    return group
