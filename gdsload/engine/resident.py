"""Batches of an epoch that lies in the GPU's memory whole: made when they are asked for, on the consumer's stream.

There is nothing to be ahead of. A gather out of VRAM takes microseconds, and queued on the consumer's stream it comes
before the work that uses the batch: no thread, no event and no waiting is needed, and the memory is the consumer's.
"""

from __future__ import annotations

import os
import threading
import time
from typing import Any

import torch

from gdsload.engine.direct import Direct
from gdsload.engine.gpu.assemble_device import hand_over
from gdsload.engine.ready import Ready
from gdsload.engine.stats import LoaderStats
from gdsload.errors import LoaderClosedError
from gdsload.shards.values import no_inference
from gdsload.system.streams import current_stream, no_room, stream_handle

__all__ = ["ResidentPipeline"]


class ResidentPipeline:
    """Delivers the batches of one epoch, as `Pipeline` does.

    Args:
        direct: makes the batches; ready.
        start: the first step.
        stats: where time is counted.
        group: how many batches are made at once, which is what makes small ones quick.
        device: the GPU.
    """

    def __init__(self, direct: Direct, *, start: int, stats: LoaderStats, group: int, device: torch.device) -> None:
        self._direct, self._device = direct, device
        self._next, self._stats, self._group = start, stats, group
        self._made_on = torch.cuda.current_stream(device)
        self._turn = threading.RLock()  # held while a gather is queued: what it reads from must stay until then
        self._closed = False
        self._owner = os.getpid()

    def start(self) -> None:
        """Nothing: it has no threads."""

    def get(self) -> Ready | None:
        """The next batches, or None at the end of the epoch.

        Raises:
            LoaderClosedError: if the pipeline was closed.
        """
        with self._turn:
            if self._closed:
                raise LoaderClosedError("the loader was closed while a batch was being waited for")
            steps = range(self._next, min(self._next + self._group, self._direct.steps))
            if not steps:
                return None
            began = time.perf_counter()
            self._made_on = current_stream(self._device)
            try:
                with no_inference():  # batches may outlive the mode that the consumer is in
                    ready = self._direct.make(steps)
            except torch.OutOfMemoryError:
                self._next = self._direct.steps
                return Ready([], [], no_room(self._device, "a group of batches"))
            self._next = steps.stop if ready.error is None else self._direct.steps
            self._stats.add(read_s=0.0, gather_s=time.perf_counter() - began)
            return ready

    def hand_over(self, batch: Any) -> Any:
        """The batch is the consumer's already, unless it has changed to another stream since."""
        if stream_handle(self._device) != self._made_on.cuda_stream:
            stream = current_stream(self._device)
            stream.wait_stream(self._made_on)
            hand_over(batch, stream)
        return batch

    @property
    def stopped(self) -> bool:
        """Whether the pipeline was closed or stopped."""
        return self._closed

    def stop(self) -> None:
        """Ask for the epoch's end."""
        self._closed = True

    def close(self) -> None:
        """End the epoch; when it returns, nothing more is queued."""
        self._closed = True
        if self._owner == os.getpid():  # after a fork, the lock may be locked for ever
            with self._turn:
                pass
