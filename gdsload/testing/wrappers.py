"""Backends around backends: they fail on purpose, take their time, or take notes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from gdsload.backends.base import Backend, Completion, Destination, PendingRead, ShardAddresses, TierStatus
from gdsload.shards.reads import Extents


class _Wrapper:
    """Base of all wrappers, which hand every call on to the inner backend."""

    def __init__(self, inner: Backend) -> None:
        self.inner = inner
        self.name = inner.name
        self.in_place = inner.in_place
        self.addressable = inner.addressable

    def read(self, wanted: Extents, to: Destination = "device") -> PendingRead:
        return self.inner.read(wanted, to)

    def addresses(self) -> ShardAddresses | None:
        return self.inner.addresses()

    def check(self, files: NDArray[np.int64]) -> None:
        self.inner.check(files)

    def bytes_by_path(self) -> dict[str, int]:
        return self.inner.bytes_by_path()

    def tiers(self) -> dict[str, TierStatus]:
        return self.inner.tiers()

    def close(self) -> None:
        self.inner.close()


@dataclass(slots=True)
class Fault:
    """A fault to inject. It strikes where any of `calls`, `files` and `places` says so.

    Attributes:
        make: makes the error; called each time.
        calls: numbers of the calls of `read` that fail, from 0.
        files: indices of the files that cannot be read.
        places: bytes that cannot be read, as (file, offset), as on a disk with a bad sector.
        when: `read` fails at once, or the landing's completion does, or `check`, which knows files only.
        times: how often it strikes before it is gone; None: always.
    """

    make: Callable[[], BaseException]
    calls: Collection[int] = ()
    files: Collection[int] = ()
    places: Collection[tuple[int, int]] = ()
    when: Literal["read", "completion", "check"] = "read"
    times: int | None = None

    def strikes(self, call: int, wanted: Extents) -> bool:
        """Return whether a read of these extents fails."""
        if call in self.calls or np.isin(wanted.file, list(self.files)).any():
            return True
        return any(
            bool(((wanted.file == file) & (wanted.offset <= at) & (at < wanted.offset + wanted.nbytes)).any())
            for file, at in self.places
        )


class FaultyBackend(_Wrapper):
    """A backend that fails as `faults` say."""

    def __init__(self, inner: Backend, *faults: Fault) -> None:
        super().__init__(inner)
        self.faults = list(faults)
        self.struck = 0
        """How often something went wrong."""
        self._calls = 0
        self._lock = threading.Lock()

    def read(self, wanted: Extents, to: Destination = "device") -> PendingRead:
        """Like that of the inner backend, or it fails, or its landing does."""
        with self._lock:
            call, self._calls = self._calls, self._calls + 1
            found = [fault for fault in self.faults if fault.when != "check" and fault.strikes(call, wanted)]
            struck = [fault for fault in found if self._spend(fault)]
        for fault in struck:
            if fault.when == "read":
                raise fault.make()
        landing = self.inner.read(wanted, to)
        for fault in struck:
            landing = replace(landing, completion=_Failing(landing.completion, fault.make()))
        return landing

    def check(self, files: NDArray[np.int64]) -> None:
        """Like that of the inner backend, or it fails."""
        with self._lock:
            found = [
                fault for fault in self.faults if fault.when == "check" and np.isin(files, list(fault.files)).any()
            ]
            struck = [fault for fault in found if self._spend(fault)]
        for fault in struck:
            raise fault.make()
        self.inner.check(files)

    def _spend(self, fault: Fault) -> bool:
        if fault.times is not None:
            if not fault.times:
                return False
            fault.times -= 1
        self.struck += 1
        return True


class _Failing:
    """The completion of reads of which one failed."""

    def __init__(self, inner: Completion, error: BaseException) -> None:
        self._inner, self._error = inner, error

    @property
    def landed(self) -> bool:
        return self._inner.landed

    def wait(self) -> None:
        self._inner.wait()
        raise self._error


class SlowBackend(_Wrapper):
    """A backend whose landings take `delay_s` longer: seconds, or what gives them, called at each `read`."""

    def __init__(self, inner: Backend, delay_s: float | Callable[[], float]) -> None:
        super().__init__(inner)
        self._delay_s = delay_s

    def read(self, wanted: Extents, to: Destination = "device") -> PendingRead:
        """Like that of the inner backend, but the landing is complete later."""
        landing = self.inner.read(wanted, to)
        delay = self._delay_s() if callable(self._delay_s) else self._delay_s
        return replace(landing, completion=_Delayed(landing.completion, time.monotonic() + delay))


class _Delayed:
    """A completion that is not there before a time."""

    def __init__(self, inner: Completion, ready_at: float) -> None:
        self._inner, self._ready_at = inner, ready_at

    @property
    def landed(self) -> bool:
        return time.monotonic() >= self._ready_at and self._inner.landed

    def wait(self) -> None:
        time.sleep(max(self._ready_at - time.monotonic(), 0))
        self._inner.wait()


class RecordingBackend(_Wrapper):
    """A backend that remembers what it was asked for."""

    def __init__(self, inner: Backend) -> None:
        super().__init__(inner)
        self.reads: list[Extents] = []
        """The extents of each call of `read`."""
        self.checked: list[list[int]] = []
        """The files of each call of `check`."""
        self.held_bytes = 0
        """Arena memory of landings that have not been released."""
        self.most_held_bytes = 0
        """The most that this ever was."""
        self.released_twice = 0
        """How many landings were released again: a mistake of the caller."""
        self.released_early = 0
        """How many landings were released before their bytes had landed: a mistake, too."""
        self.closed = 0
        """How often it was closed."""
        self._lock = threading.Lock()

    def read(self, wanted: Extents, to: Destination = "device") -> PendingRead:
        """Like that of the inner backend."""
        with self._lock:
            self.reads.append(wanted)
        landing = self.inner.read(wanted, to)
        with self._lock:
            self.held_bytes += landing.nbytes
            self.most_held_bytes = max(self.most_held_bytes, self.held_bytes)
        released = False

        def release() -> None:
            nonlocal released
            with self._lock:
                self.released_twice += released
                self.released_early += not landing.completion.landed
                self.held_bytes -= 0 if released else landing.nbytes
                released = True
            landing.release()

        return replace(landing, release=release)

    def check(self, files: NDArray[np.int64]) -> None:
        """Like that of the inner backend."""
        with self._lock:
            self.checked.append(files.tolist())
        self.inner.check(files)

    def close(self) -> None:
        """Like that of the inner backend."""
        with self._lock:
            self.closed += 1
        self.inner.close()
