"""The time in which a GPU is idle because of loading, measured with events on the consumer's stream.

    asked()                 the consumer asks for a group of batches: an event after all work queued so far
    given(before, asked)    the consumer gets them: an event before all work queued from now on

Between the two events the stream has no work, however far the host is ahead of the GPU: such a host asks early, but the
GPU passes the first event only after the work before it, and by then the second event may already be queued. Within a
group the consumer never waits, so two events per group are enough.
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
"""An event with timing: `record`, `query` and `elapsed_time` work like those of `torch.cuda.Event`."""


class StreamClock:
    """Measures `starved_s` and `stream_s` of stats. It never waits for a device: it only reads completed events.

    Args:
        stats: the counters to add to. Their `starved_s` becomes 0.0.
        new_event: creates an event.
        stream: returns the consumer's stream, or None while the calling thread captures it into a CUDA graph: then
            events may be neither recorded nor queried.
    """

    def __init__(self, stats: LoaderStats, new_event: Callable[[], Event], stream: Callable[[], Any]) -> None:
        self._stats, self._new_event, self._stream = stats, new_event, stream
        self._pending: deque[tuple[Event | None, Event, Event]] = deque()  # given before, asked, given
        self._spare: list[Event] = []
        self._lock = threading.Lock()  # several threads may iterate over epochs of one loader
        stats.starved_s = 0.0

    @classmethod
    def of(cls, device: torch.device, stats: LoaderStats) -> StreamClock | None:
        """A clock for batches on a device; None if its streams have no events with timing."""
        if device.type != "cuda":
            return None

        def consumers() -> torch.cuda.Stream | None:
            return None if torch.cuda.is_current_stream_capturing() else current_stream(device)

        return cls(stats, partial(torch.cuda.Event, enable_timing=True), consumers)

    def asked(self) -> Event | None:
        """Record that the consumer asks for batches. Returns the event to pass to `given`."""
        return self._recorded()

    def given(self, before: Event | None, asked: Event | None) -> Event | None:
        """Record that the consumer gets them. Returns the event for the next call.

        `before` is the event that the previous call in the epoch returned, or None at the first call. `before` and
        `asked` are reused afterwards.
        """
        given = self._recorded()
        if given is None or asked is None:
            return None
        with self._lock:
            self._pending.append((before, asked, given))
        self.settle()
        return given

    def settle(self) -> None:
        """Add the times of all completed events."""
        with self._lock:
            try:
                while self._pending and self._stream() is not None and self._pending[0][-1].query():
                    self._count(*self._pending.popleft())
            except RuntimeError:  # the device has failed; the next use of the device raises the error
                self._pending.clear()

    def _count(self, before: Event | None, asked: Event, given: Event) -> None:
        starved_ms = asked.elapsed_time(given)
        stats = self._stats
        stats.starved_s = (stats.starved_s or 0.0) + starved_ms / 1000
        stats.stream_s += starved_ms / 1000
        self._spare.append(asked)
        if before is not None:  # completed, since it was `given` of an entry that was counted before
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
