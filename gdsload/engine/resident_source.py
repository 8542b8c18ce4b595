"""Batches of shards that the GPU can address: queued as gathers, group by group."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from gdsload.backends.base import Backend
from gdsload.engine.batch_source import PendingBatches, Ready, transformed
from gdsload.engine.gpu.assemble_device import DeviceAssembler
from gdsload.engine.gpu.device_queue import hand_over
from gdsload.engine.landed import LandedSource
from gdsload.engine.resident import ResidentGather
from gdsload.engine.stats import LoaderStats
from gdsload.engine.steps import Job
from gdsload.errors import GdsloadError
from gdsload.system.streams import current_stream, on, record, room_for, stream_handle

__all__ = ["ResidentSource", "VramSource"]

_log = logging.getLogger("gdsload")


class ResidentSource(LandedSource):
    """Gathers on the loader's stream what the GPU can address, and has all else read.

    Args:
        gather: what gathers, while it is ready.
        job: what to deliver.
        backend: what reads the groups that cannot be gathered this way.
        maker: what gathers those, and whose stream gathers are queued on.
        stats: where time is counted.
    """

    def __init__(
        self, gather: ResidentGather, job: Job, backend: Backend, maker: DeviceAssembler, stats: LoaderStats
    ) -> None:
        super().__init__(job, backend, maker, stats)
        self._gather, self._stream = gather, maker.stream

    def start(self, steps: range) -> PendingBatches:
        """See `BatchSource.start`."""
        pending = self._queued(steps) if self._gather.ready() else None
        if pending is None:
            return super().start(steps)
        super().close()
        return pending

    def _queued(self, steps: range) -> _ResidentBatches | None:
        """Batches that the GPU gathers; None if they have to be read, which also reports what is wrong."""
        gather, stream = self._gather, self._stream
        try:
            samples = gather.samples(steps)
            if samples is not None and gather.prefers_copy_engine(samples):
                return None
            shards, began = gather.shards(steps), time.perf_counter()
            with on(stream):
                batches = gather.gather(steps, samples)
                event = record(stream)
            queued_s = time.perf_counter() - began
        except (GdsloadError, torch.OutOfMemoryError):
            return None
        except RuntimeError:  # CUDA's, torch's and cupy's
            # The batches are made nevertheless, but more slowly, so the log says why.
            _log.warning("batches cannot be gathered by their positions, and are read instead", exc_info=True)
            gather.give_up()
            return None
        ready = Ready(batches, gather.sizes(steps))
        return _ResidentBatches(self, steps, ready, (event, shards, queued_s))

    def close(self) -> None:
        """See `BatchSource.close`: all gathers have ended when it returns."""
        super().close()
        with suppress(Exception):  # an error here concerns batches that are no longer wanted
            self._stream.synchronize()


class _ResidentBatches:
    """Batches whose gathers are queued on the loader's stream.

    Args:
        landed: its job, backend and stats are used.
        steps: their steps.
        ready: the batches, which are not filled yet.
        queued: the event after the gathers, the shards they read, and how long it took the host to queue them.
    """

    def __init__(
        self,
        landed: LandedSource,
        steps: range,
        ready: Ready,
        queued: tuple[torch.cuda.Event, NDArray[np.int64], float],
    ) -> None:
        self._landed, self._steps, self._ready = landed, steps, ready
        self._event, self._shards, self._queued_s = queued

    def landed(self) -> bool:
        """See `PendingBatches.landed`: further groups are queued meanwhile, so that the GPU always has the next one."""
        try:
            return bool(self._event.query())
        except Exception:  # something has failed on the GPU, here or elsewhere: `result` says what
            return True

    def result(self, stopped: Callable[[], bool]) -> Ready:
        """See `PendingBatches.result`."""
        landed, began = self._landed, time.perf_counter()
        ready, self._ready = self._ready, Ready([], [])
        transform = landed.job.transform
        if transform is not None:
            # On bytes of a changed file, a transform may end in an error that makes the GPU unusable.
            landed.backend.check(self._shards)
            ready = landed.maker.transformed(transform, ready, self._steps, stopped, self._event)
        self._event.synchronize()
        landed.backend.check(self._shards)
        landed.stats.add(read_s=0.0, gather_s=self._queued_s + time.perf_counter() - began)
        return ready

    def drop(self) -> None:
        """See `PendingBatches.drop`: the memory goes back to the allocator, which knows the stream."""
        self._ready = Ready([], [])


class VramSource:
    """Gathers out of shards that are entirely in VRAM, on the stream that is current for the consumer.

    A gather out of VRAM takes microseconds, and queued on the consumer's stream it comes before the work that uses the
    batch: no thread, no event and no waiting is needed, and the memory belongs to the consumer's stream. So the
    consumer's thread must call `start` and `result`, and one group ahead is enough.

    Args:
        gather: what gathers; ready.
        job: what to deliver.
        device: the GPU.
        stats: where time is counted.
    """

    takes_processor = False

    def __init__(self, gather: ResidentGather, job: Job, device: torch.device, stats: LoaderStats) -> None:
        self._gather, self._job, self._device, self._stats = gather, job, device, stats
        self._made_on = torch.cuda.current_stream(device)

    def start(self, steps: range) -> _VramBatches:
        """See `BatchSource.start`.

        Raises:
            BudgetError: if the GPU has no memory left.
        """
        began = time.perf_counter()
        self._made_on = current_stream(self._device)
        with room_for("a group of batches", self._device):
            batches = self._gather.gather(steps)
            ready = transformed(self._job.transform, batches, self._gather.sizes(steps), steps)
        self._stats.add(read_s=0.0, gather_s=time.perf_counter() - began)
        return _VramBatches(ready)

    def arena_bytes(self, _steps: range, _window_bytes: int) -> int:
        """See `BatchSource.arena_bytes`."""
        return 0

    def hand_over(self, _batches: Sequence[Any]) -> Callable[[Any], Any]:
        """See `BatchSource.hand_over`."""
        return self._to_current

    def _to_current(self, batch: Any) -> Any:
        """The batch is on the consumer's stream already, unless the consumer has changed to another one since."""
        if stream_handle(self._device) != self._made_on.cuda_stream:
            stream = current_stream(self._device)
            stream.wait_stream(self._made_on)
            hand_over(batch, stream)
        return batch

    def again(self) -> VramSource:
        """See `BatchSource.again`."""
        return self

    def close(self) -> None:
        """See `BatchSource.close`: nothing is held."""


class _VramBatches:
    """Batches that are queued on the consumer's stream."""

    def __init__(self, ready: Ready) -> None:
        self._ready = ready

    def landed(self) -> bool:
        """See `PendingBatches.landed`."""
        return True

    def result(self, _stopped: Callable[[], bool]) -> Ready:
        """See `PendingBatches.result`."""
        return self._ready

    def drop(self) -> None:
        """See `PendingBatches.drop`: nothing is held."""
