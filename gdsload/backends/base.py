"""The seam between the engine and the ways that bytes travel.

A backend is opened on files. The engine asks it to read extents, as many at once as possible; the backend returns at
once a `PendingRead`: the address where each extent's first byte will be, and a completion. The engine waits for
the completion, gathers rows from the addresses, releases the read, and has it counted.

    read(extents) ──> PendingRead(addresses, completion) ──wait──> gather ──> release(), count()

A backend whose device can access all shards where they are returns their `addresses`: then rows are gathered from
there, and nothing has to be read. Wrappers forward both.

How extents are coalesced, aligned and read is decided by each backend: that is how backends differ.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from gdsload.shards.files import Files
from gdsload.shards.reads import Extents
from gdsload.system.units import counted, format_bytes


@dataclass(frozen=True, slots=True, repr=False)
class BackendStatus:
    """The backend that a loader uses, the reason, and the bytes it has moved.

    Attributes:
        asked: the backend that was requested.
        chosen: the backend in use.
        reason: why it was chosen.
        bytes_by_path: bytes read or gathered so far, by the path they took, from the backend's counters.
        answer: the path that bytes take, in one sentence.
        batches: how the batches of the newest epoch are made, in one sentence; empty before the first.
    """

    asked: str
    chosen: str
    reason: str
    bytes_by_path: dict[str, int]
    answer: str = ""
    batches: str = ""

    def __str__(self) -> str:
        """The answer first, then the evidence, a line each."""
        moved = ", ".join(f"{path}: {count} bytes" for path, count in self.bytes_by_path.items()) or "nothing moved yet"
        evidence = [self.reason] if self.answer else []
        evidence += [f"batches: {self.batches}"] if self.batches else []
        return "\n  ".join(
            [self.answer or f"{self.chosen}: {self.reason}", *evidence, f"asked for {self.asked}", moved]
        )

    __repr__ = __str__


@dataclass(frozen=True, slots=True)
class TierStatus:
    """One tier.

    Attributes:
        budget_bytes: what it may hold.
        held_bytes: what it holds.
        shards: how many shards it holds.
        hit_bytes: bytes of samples that were read from it.
        evictions: how many times a shard was evicted for another.
        trouble: why it takes no further shard, or image; empty while it may.
        images: how many decoded images it holds.
    """

    budget_bytes: int
    held_bytes: int
    shards: int
    hit_bytes: int
    evictions: int = 0
    trouble: str = ""
    images: int = 0

    def __str__(self) -> str:
        room = f"{format_bytes(self.held_bytes)} of {format_bytes(self.budget_bytes)}"
        trouble = f" ({self.trouble})" if self.trouble else ""
        what = counted(self.images, "image") if self.images else counted(self.shards, "shard")
        return f"{what}, {room}, {format_bytes(self.hit_bytes)} served, {self.evictions} evicted{trouble}"


@dataclass(frozen=True, slots=True, repr=False)
class CacheStatus:
    """The tiers of a loader.

    Attributes:
        asked: the loader's `cache` option.
        shards: how many shards contain the loader's samples.
        tiers: those in use, by name: ``"vram"``; ``"pagecache"``, files that are registered with CUDA;
            ``"decoded"``, images that were decoded once.
    """

    asked: str
    shards: int = 0
    tiers: dict[str, TierStatus] = field(default_factory=dict)

    def __str__(self) -> str:
        tiers = "; ".join(f"{name}: {tier}" for name, tier in self.tiers.items()) or "no tier is in use"
        return f"cache={self.asked!r}, {counted(self.shards, 'shard')}; {tiers}"

    __repr__ = __str__


class Completion(Protocol):
    """The end of a read: every byte is at its address."""

    @property
    def landed(self) -> bool:
        """True if the read has ended, successfully or not; never waits."""

    def wait(self) -> None:
        """Block this thread until the bytes have landed.

        Raises:
            ReadError: if some could not be read.
        """


def _nothing() -> None:
    pass


@dataclass(slots=True)
class PendingRead:
    """A read that was started, and the addresses where its extents will be.

    Attributes:
        addresses: int64, for each extent the address of its first byte: of host memory or of the device's.
        nbytes: arena memory that the read holds until released, in bytes; 0 where bytes are used in place.
        release: frees that memory; call it once, after the last gather from the addresses has been made or, for
            work on a stream, has ended there.
        begins: address of each allocation of device memory that extents are read into. Two allocations may be adjacent,
            and no copy may cross from one into the other. In place it is empty: a shard's rows come after its header.
        count: counts bytes that have been gathered, where that is not done when they are read; to be called once, after
            the first gather. Of what is dropped nothing was moved.
        files: those to be checked after the last gather; None: all that extents were wanted of. Copies that stay as
            they are whatever happens to their files need no check.
    """

    addresses: NDArray[np.int64]
    completion: Completion
    nbytes: int = 0
    release: Callable[[], None] = _nothing
    begins: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    count: Callable[[], None] = _nothing
    files: NDArray[np.int64] | None = None


@dataclass(frozen=True, slots=True, eq=False)
class ShardAddresses:
    """The addresses at which a device can access all shards, so that nothing has to be read.

    Attributes:
        base: int64, the device's address of each shard's first byte, shape ``[shards]``; valid until the backend is
            closed. Only the wanted fields need be there: memory before them may belong to others.
        count: called with the number of bytes that have been gathered from there.
        copies: whether copies are there, which stay as they are whatever happens to the files.
    """

    base: NDArray[np.int64]
    count: Callable[[int], None]
    copies: bool = False


Destination = Literal["device", "host"]
"""Where bytes are used first."""


class Backend(Protocol):
    """A way to move bytes from files to a device. Its methods may be called from several threads."""

    name: str
    in_place: bool
    """True if bytes are gathered from where they are, so that pending reads take no arena memory."""
    addressable: bool
    """True if `addresses` may ever return addresses."""

    def read(self, wanted: Extents, to: Destination = "device") -> PendingRead:
        """Start reading extents; see the module's docstring.

        ``to="host"`` is for bytes that are decoded there: they land in a mapping of their file if they can, and need
        not go to the device and back.

        Raises:
            ReadError: if a file cannot be opened, or is not the one that was opened before.
            FormatError: if a file is damaged.
        """

    def addresses(self) -> ShardAddresses | None:
        """The addresses at which the device can access all shards now: the same object while they stay where they are.

        None while some shard cannot be accessed, or they are in memory of several kinds.
        """

    def check(self, files: NDArray[np.int64]) -> None:
        """Check that these files are still the ones that were opened.

        Raises:
            FileChangedError: if one is not.
        """

    def bytes_by_path(self) -> dict[str, int]:
        """Bytes read or gathered so far, by path."""

    def tiers(self) -> dict[str, TierStatus]:
        """The status of its tiers now, by name: ``"vram"``, ``"pagecache"``; empty if it has none."""

    def close(self) -> None:
        """End all reads and release everything; may be called twice."""


class FileBackend:
    """The common part of backends that read local files; subclasses override what differs."""

    name: str
    in_place = False
    addressable = False

    def __init__(self, files: Files) -> None:
        self.files, self.moved_bytes = files, 0
        self._counting = threading.Lock()

    def note_moved(self, nbytes: int) -> None:
        """Count bytes that were read or gathered; several threads may call this at a time."""
        with self._counting:
            self.moved_bytes += nbytes

    def counts(self, wanted: Extents) -> Callable[[], None]:
        """The function that counts these extents when they have been gathered; see `PendingRead`."""
        return partial(self.note_moved, wanted.total_bytes)

    def bytes_by_path(self) -> dict[str, int]:
        """See `Backend.bytes_by_path`: the path has the backend's name."""
        return {self.name: self.moved_bytes}

    def addresses(self) -> ShardAddresses | None:
        """See `Backend.addresses`."""
        return None

    def check(self, files: NDArray[np.int64]) -> None:
        """See `Backend.check`."""
        self.files.check(files)

    def tiers(self) -> dict[str, TierStatus]:
        """See `Backend.tiers`."""
        return {}


class Both:
    """The completion of two reads."""

    def __init__(self, first: Completion, second: Completion) -> None:
        self._parts = first, second

    @property
    def landed(self) -> bool:
        """See `Completion.landed`."""
        return all(part.landed for part in self._parts)

    def wait(self) -> None:
        """See `Completion.wait`: for both, whatever fails."""
        try:
            self._parts[0].wait()
        finally:
            self._parts[1].wait()


def joined(files: NDArray[np.int64] | None, *parts: tuple[NDArray[np.intp], PendingRead]) -> PendingRead:
    """Two reads as one, with the files to be checked; each is given with the indices of its extents."""
    (here, first), (there, second) = parts
    addresses = np.empty(len(here) + len(there), np.int64)
    addresses[here], addresses[there] = first.addresses, second.addresses

    def release() -> None:
        first.release()
        second.release()

    def count() -> None:
        first.count()
        second.count()

    return PendingRead(
        addresses,
        Both(first.completion, second.completion),
        first.nbytes + second.nbytes,
        release,
        np.concatenate([first.begins, second.begins]),
        count,
        files,
    )
