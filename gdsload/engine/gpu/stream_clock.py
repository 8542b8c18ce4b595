"""The time that a GPU has nothing to do because of loading, by events on the consumer's stream.

    asked()                 the consumer asks for a group of batches: an event after all work that it has queued so far
    given(before, asked)    it gets them: an event before all work that it queues from now on

From the first event to the second one the stream has no work, however far the host is ahead of the GPU: a host that is
ahead asks early, but the GPU passes the first event only when it has done the work before it, and by then the second
one may be queued. Inside a group nothing is waited for, so two events a group are enough.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from gdsload.engine.stats import LoaderStats
from gdsload.system.streams import current_stream

Event = Any
"""An event that takes the time: `record`, `query` and `elapsed_time` are as those of `torch.cuda.Event`."""


class StreamClock:
    """Counts `starved_s` and `stream_s` of stats. It never waits for a device: it reads events that are past.

    Args:
        stats: counts the seconds. Its `starved_s` is 0.0 from now on.
        new_event: makes an event.
        stream: gives the consumer's stream; None while the calling thread captures it into a CUDA graph, when nothing
            may be timed, and no event may be asked.
    """

    def __init__(self, stats: LoaderStats, new_event: Callable[[], Event], stream: Callable[[], Any]) -> None:
        self._stats, self._new_event, self._stream = stats, new_event, stream
        self._pending: deque[tuple[Event | None, Event, Event]] = deque()  # given before, asked, given
        self._spare: list[Event] = []
        self._lock = threading.Lock()  # several threads may iterate over epochs of one loader
        stats.starved_s = 0.0

    @classmethod
    def of(cls, device: torch.device, stats: LoaderStats) -> StreamClock | None:
        """One for batches on a device; None if its streams have no events that take the time."""
        if device.type != "cuda":
            return None
        return cls(stats, partial(torch.cuda.Event, enable_timing=True), partial(_consumers, device))

    def asked(self) -> Event | None:
        """Note that the consumer asks for batches; the event, for `given`."""
        return self._recorded()

    def given(self, before: Event | None, asked: Event | None) -> Event | None:
        """Note that it gets them. `before` is what this call returned last time in the epoch, None at the first time.

        `before` and `asked` may be used again afterwards.
        """
        given = self._recorded()
        if given is None or asked is None:
            return None
        with self._lock:
            self._pending.append((before, asked, given))
        self.settle()
        return given

    def settle(self) -> None:
        """Count what is past."""
        with self._lock:
            try:
                while self._pending and self._stream() is not None and self._pending[0][-1].query():
                    self._count(*self._pending.popleft())
            except RuntimeError:  # something has failed on the device; who works with it gets the error
                self._pending.clear()

    def _count(self, before: Event | None, asked: Event, given: Event) -> None:
        starved_ms = asked.elapsed_time(given)
        stats = self._stats
        stats.starved_s = (stats.starved_s or 0.0) + starved_ms / 1000
        stats.stream_s += starved_ms / 1000
        self._spare.append(asked)
        if before is not None:  # past, as it was `given` of an entry that has been counted
            stats.stream_s += before.elapsed_time(asked) / 1000
            self._spare.append(before)

    def _recorded(self) -> Event | None:
        stream = self._stream()
        if stream is None:
            return None
        with self._lock:
            event = self._spare.pop() if self._spare else self._new_event()
        event.record(stream)
        return event


def _consumers(device: torch.device) -> torch.cuda.Stream | None:
    """See `StreamClock`."""
    return None if torch.cuda.is_current_stream_capturing() else current_stream(device)
