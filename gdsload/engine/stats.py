"""Counters of a loader: where the time went."""

from __future__ import annotations

import threading
from dataclasses import dataclass, fields
from typing import Any

from gdsload.engine.pace import LEAST

_adding = threading.Lock()
"""One lock for all stats: a stats object that has its own could be neither copied nor pickled."""


@dataclass(slots=True)
class LoaderStats:
    """The counts of a loader since it was made, over all its epochs.

    Attributes:
        batches: batches handed out.
        samples: samples handed out.
        ready: batches that were there when they were asked for.
        host_wait_s: seconds that the consumer's thread waited for a batch. A GPU may have had work meanwhile: whether
            loading cost anything is what `starved_s` says.
        busy_s: seconds from the first `next` of each epoch to its last.
        starved_s: seconds that the GPU had nothing to do while batches were waited for, by events on the stream that
            the consumer gets them on; None where there are no such events, as on the CPU. It is up to date when it is
            read as ``loader.stats.starved_s``, but for work that the GPU has not ended yet. What the GPU does on that
            very stream to make a batch counts, too; what the host does between a batch and its first kernel does not.
        stream_s: seconds of that stream from the first `next` of each epoch to its last.
        read_s: seconds that threads waited for reads, summed over threads.
        gather_s: seconds that threads spent gathering, summed over threads.
        reads_ahead: groups of batches whose reads may be under way before one is gathered, at this moment. It grows
            when the consumer has to wait for reads, within the budgets, and slowly shrinks when it does not.
    """

    batches: int = 0
    samples: int = 0
    ready: int = 0
    host_wait_s: float = 0.0
    busy_s: float = 0.0
    starved_s: float | None = None
    stream_s: float = 0.0
    read_s: float = 0.0
    gather_s: float = 0.0
    reads_ahead: int = LEAST

    def add(self, *, read_s: float, gather_s: float) -> None:
        """Count what a thread did; threads may call this at the same time."""
        with _adding:
            self.read_s += read_s
            self.gather_s += gather_s

    def since(self, before: LoaderStats) -> LoaderStats:
        """The counts since these stats were a copy of `before`; `reads_ahead` is that of this moment."""
        with _adding:
            counted: Any = {
                one.name: (getattr(self, one.name) or 0) - (getattr(before, one.name) or 0) for one in fields(self)
            }
        if self.starved_s is None:
            counted["starved_s"] = None
        counted["reads_ahead"] = self.reads_ahead
        return LoaderStats(**counted)

    @property
    def ready_share(self) -> float:
        """Share of the batches that were there when they were asked for, 0 to 1."""
        return self.ready / self.batches if self.batches else 0.0

    @property
    def starved_share(self) -> float | None:
        """Share of its time for which the GPU had nothing to do because of loading, 0 to 1; see `starved_s`."""
        if self.starved_s is None:
            return None
        return self.starved_s / self.stream_s if self.stream_s else 0.0

    @property
    def host_wait_share(self) -> float:
        """Share of its time for which the consumer's thread waited for batches, 0 to 1.

        Where that thread queues work for a GPU and does not wait for it, it may wait for the loader while the GPU is
        busy: then this is high, and nothing is lost.
        """
        return self.host_wait_s / self.busy_s if self.busy_s else 0.0
