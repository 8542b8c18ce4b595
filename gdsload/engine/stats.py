"""Counters of a loader: where the time went."""

from __future__ import annotations

import threading
from dataclasses import dataclass, fields

from gdsload.engine.pace import LEAST

_adding = threading.Lock()
"""One lock for all stats: a stats object that has its own could be neither copied nor pickled."""


@dataclass(slots=True)
class LoaderStats:
    """The counts of a loader since it was made, over all its epochs.

    Attributes:
        batches: batches handed out.
        samples: samples handed out.
        wait_s: seconds that the consumer waited for a batch: the cost of loading that compute did not hide.
        busy_s: seconds from the first `next` of each epoch to its last.
        read_s: seconds that threads waited for reads, summed over threads.
        gather_s: seconds that threads spent gathering, summed over threads.
        reads_ahead: groups of batches whose reads may be under way before one is gathered, at this moment. It grows
            when the consumer has to wait for reads, within the budgets, and slowly shrinks when it does not.
    """

    batches: int = 0
    samples: int = 0
    wait_s: float = 0.0
    busy_s: float = 0.0
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
            counted = {one.name: getattr(self, one.name) - getattr(before, one.name) for one in fields(self)}
        return LoaderStats(**{**counted, "reads_ahead": self.reads_ahead})

    @property
    def wait_share(self) -> float:
        """Share of the consumer's time that went into waiting for data, 0 to 1."""
        # An epoch that ended in an error of the user's counts as waiting alone.
        return self.wait_s / max(self.busy_s, self.wait_s) if self.wait_s else 0.0
