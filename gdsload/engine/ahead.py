"""Batches of an epoch whose shards are all registered: queued by the consumer itself, some groups ahead of it.

Planning a group costs the host a few calls of CUDA, whatever its size. A thread that makes them would want the
interpreter lock for each, and a training step that launches kernels gives it up only after it was asked for
milliseconds, then waits until the other thread has woken up. Made by the consumer, they cost what they cost.

Whatever goes wrong, the rest of the epoch is a `Pipeline`'s, from the first group on that could not be made so: it
finds the batch that an error belongs to, and goes on if there is none.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from contextlib import suppress
from typing import Any

import torch

from gdsload.backends.base import Backend
from gdsload.engine.direct import Direct
from gdsload.engine.gpu.assemble_device import DeviceAssembler
from gdsload.engine.groups import Limits
from gdsload.engine.pipeline import Pipeline
from gdsload.engine.ready import Ready
from gdsload.engine.stage import Job
from gdsload.engine.started import Started, begin
from gdsload.engine.stats import LoaderStats
from gdsload.errors import LoaderClosedError
from gdsload.shards.values import no_inference

__all__ = ["AheadPipeline"]

_AHEAD = 2
"""Groups that may be ahead whatever they hold: the GPU makes one while the batches of the other are taken."""
_LAST_BYTES = 16 * 2**20
"""Groups are not made smaller than this at an epoch's end: a fraction of a millisecond over PCIe."""
_AT_ONCE = 2
"""Groups queued by one call at most: the first batch should not wait until all are queued that there is room for."""


class AheadPipeline:
    """Delivers the batches of one epoch, as `Pipeline` does, with no thread of its own.

    Args:
        job: what to deliver; nothing is transformed.
        backend: where the shards are.
        maker: what makes batches of them.
        limits: what may be used.
        start: the first step.
        stats: where time is counted.
        direct: makes the batches; ready, and planned by the GPU.
    """

    def __init__(
        self,
        job: Job,
        backend: Backend,
        maker: DeviceAssembler,
        *,
        limits: Limits,
        start: int,
        stats: LoaderStats,
        direct: Direct,
    ) -> None:
        self._job, self._backend, self._maker = job, backend, maker
        self._limits, self._stats, self._direct = limits, stats, direct
        self._next = start
        self._batches = 1
        self._under_way: deque[Started] = deque()
        self._rest: Pipeline | None = None  # what delivers from `_next` on
        self._failed = False  # whether the group at `_next` is not to be made here
        # Held while something is queued or awaited. Ctrl-C may strike there, and its thread closes.
        self._turn = threading.RLock()
        self._queueing = False
        self._closed = False
        self._owner = os.getpid()

    def start(self) -> None:
        """Nothing: it has no threads."""

    def get(self) -> Ready | None:
        """The next batches, or None at the end of the epoch. Waits for them.

        Raises:
            LoaderClosedError: if the pipeline was closed.
        """
        with self._turn:
            if self._closed:
                raise LoaderClosedError("the loader was closed while a batch was being waited for")
            if self._rest is None:
                self._queueing = True
                try:
                    self._queue()
                finally:
                    self._queueing = False
                if self._closed:  # by a signal's handler
                    raise LoaderClosedError("the loader was closed while it was asked for a batch")
                if self._under_way and (ready := self._end()) is not None:
                    return ready
                if not self._failed:
                    return None
                self._rest = self._pipeline()
            rest = self._rest
        return rest.get()  # it may wait for long, and has locks of its own

    def _queue(self) -> None:
        """Queue groups, as far as there is room for them."""
        for _ in range(_AT_ONCE):
            steps = self._next_steps()
            if self._failed or not steps or not self._has_room(steps):
                return
            started = self._begin(steps)
            if started is None:
                self._failed = True
                return
            self._under_way.append(started)
            self._next = steps.stop
            # As in `Pipeline`: the first group is one batch, so that it is there soon.
            self._batches = min(2 * self._batches, self._limits.group_on_gpu())

    def _next_steps(self) -> range:
        """The steps of the next group."""
        left = self._job.steps.steps - self._next
        # Towards the epoch's end, half of what is left: while the last group is used, nothing is loaded any more.
        most = max(-(-left // 2), _LAST_BYTES // max(self._limits.batch_bytes, 1))
        return range(self._next, self._next + min(self._batches, most, left))

    def _begin(self, steps: range) -> Started | None:
        before = torch.cuda.current_stream(self._maker.device)
        try:
            with no_inference():  # batches may outlive the mode that the consumer is in
                return begin(self._direct, steps, lambda: self._closed)
        except BaseException:
            # Ctrl-C may strike where torch changes streams, in Python: the consumer would be left on the loader's.
            with torch.cuda.device(self._maker.device):  # which may not be the one that is current for the consumer
                torch.cuda.set_stream(before)
            raise

    def _has_room(self, steps: range) -> bool:
        ahead = sum(len(started.steps) for started in self._under_way)
        fits = (ahead + len(steps)) * self._limits.batch_bytes <= self._limits.prefetch_bytes
        return fits or len(self._under_way) < _AHEAD

    def _end(self) -> Ready | None:
        """The oldest group, when it is there; None if it has to be made anew, with all behind it."""
        started = self._under_way.popleft()
        with suppress(Exception):
            return started.end(self._backend, self._stats)
        self._next, self._failed = started.steps.start, True
        self._under_way.clear()
        return None

    def _pipeline(self) -> Pipeline:
        return Pipeline(
            self._job,
            self._backend,
            self._maker,
            limits=self._limits,
            start=self._next,
            stats=self._stats,
            direct=self._direct,
        )

    def hand_over(self, batch: Any) -> Any:
        """The last step of each batch, in the consumer's thread."""
        return self._maker.hand_over(batch)

    @property
    def stopped(self) -> bool:
        """Whether the pipeline was closed or stopped."""
        return self._closed

    def stop(self) -> None:
        """Ask for the epoch's end, and wait for nothing."""
        self._closed = True
        if (rest := self._rest) is not None:
            rest.stop()

    def close(self) -> None:
        """End the epoch; when it returns, nothing is being made any more. May be called twice and from any thread.

        Raises:
            LoaderClosedError: if a signal's handler calls it while this very thread queues batches and would go on with
                that behind the handler. `get` then ends with such an error, too, and nothing was given back: close once
                more.
        """
        self.stop()
        if self._owner != os.getpid():  # after a fork, the lock may be locked for ever
            return
        with self._turn:
            if self._queueing:
                raise LoaderClosedError("a signal's handler closed the loader while it was asked for a batch")
            if self._rest is not None:
                self._rest.close()
            self._under_way.clear()
            with suppress(Exception):  # what went wrong concerns batches that nobody wants any more
                self._maker.stream.synchronize()
