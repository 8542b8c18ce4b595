"""Groups that are made directly: queued, and ended."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from gdsload.backends.base import Backend
from gdsload.engine.direct import Direct
from gdsload.engine.ready import Ready
from gdsload.engine.stats import LoaderStats
from gdsload.errors import GdsloadError

__all__ = ["Started", "begin"]

_log = logging.getLogger("gdsload")


@dataclass(frozen=True, slots=True)
class Started:
    """Batches that are being made.

    Attributes:
        steps: whose batches.
        ready: the batches.
        event: behind them.
        shards: what they are made from.
        queued_s: how long the host took to queue it.
    """

    steps: range
    ready: Ready
    event: torch.cuda.Event
    shards: NDArray[np.int64]
    queued_s: float

    @property
    def done(self) -> bool:
        """Whether the batches are there, or never will be."""
        try:
            return bool(self.event.query())
        except Exception:  # what has gone wrong comes up in `end`
            return True

    def end(self, backend: Backend, stats: LoaderStats) -> Ready:
        """Wait until the batches are there, and look at the files that they are made from.

        Raises:
            FileChangedError: if one of those has changed.
        """
        began = time.perf_counter()
        self.event.synchronize()
        backend.check(self.shards)
        stats.add(read_s=0.0, gather_s=self.queued_s + time.perf_counter() - began)
        return self.ready


def begin(
    direct: Direct, steps: range, stopped: Callable[[], bool], samples: NDArray[np.int64] | None = None
) -> Started | None:
    """Have the GPU make the batches of some steps.

    Args:
        direct: what queues it.
        steps: the steps.
        stopped: whether nobody wants the batches any more.
        samples: the samples, where the GPU is told; see `Direct.samples`.

    Returns:
        None if that cannot be. Who then makes them by way of landings finds out why.
    """
    try:
        if not direct.ready():
            return None
        shards, began = direct.shards(steps), time.perf_counter()
        ready, event = direct.start(steps, stopped, samples)
        return Started(steps, ready, event, shards, time.perf_counter() - began)
    except (GdsloadError, torch.OutOfMemoryError):
        return None
    except Exception:
        # The batches will be made all the same, but the other way is slower, and nobody should wonder why.
        _log.warning("batches cannot be made by their positions, and are made by addresses instead", exc_info=True)
        direct.give_up()
        return None
