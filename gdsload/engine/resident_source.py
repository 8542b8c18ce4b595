"""Batches of shards that the GPU can address: queued as gathers, group by group."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import torch

from gdsload.backends.base import Backend
from gdsload.engine.assemble import Batch
from gdsload.engine.batch_source import BatchSource, PendingBatches, Ready, transformed
from gdsload.engine.gpu.assemble_device import DeviceAssembler
from gdsload.engine.gpu.device_queue import hand_over
from gdsload.engine.landed import LandedSource
from gdsload.engine.resident import ResidentGather
from gdsload.engine.stats import LoaderStats
from gdsload.engine.steps import Job
from gdsload.errors import GdsloadError
from gdsload.system.arrays import IntArray
from gdsload.system.spans import span
from gdsload.system.streams import current_stream, on, record, room_for, stream_handle

_log = logging.getLogger("gdsload")


class ResidentSource(LandedSource):
    """Gathers on the loader's stream what the GPU can address, and has all else read."""

    def __init__(
        self, gather: ResidentGather, job: Job, backend: Backend, maker: DeviceAssembler, stats: LoaderStats
    ) -> None:
        super().__init__(job, backend, maker, stats)
        self._gather, self._stream = gather, maker.stream

    def start(self, steps: range) -> PendingBatches:
        pending = self._queued(steps) if self._gather.ready() else None
        if pending is None:
            return super().start(steps)
        super().close()
        return pending

    def _queued(self, steps: range) -> PendingBatches | None:
        """Batches that the GPU gathers; None if they have to be read, which also reports what is wrong."""
        gather, stream = self._gather, self._stream
        try:
            samples = gather.samples(steps)
            if samples is not None and gather.prefers_copy_engine(samples):
                return None
            shards, began = gather.shards(steps), time.perf_counter()
            with span("gdsload::gather"), on(stream):
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
        finish = partial(self._finished, steps, batches, event, shards, queued_s)
        # What is dropped goes back to the allocator, which knows the stream.
        return PendingBatches(partial(_past, event), finish, batches.clear)

    def _finished(
        self,
        steps: range,
        queued: list[Batch],
        event: torch.cuda.Event,
        shards: IntArray,
        queued_s: float,
        stopped: Callable[[], bool],
    ) -> Ready:
        """See `PendingBatches.result`: the queued batches, which are removed, are filled after the event."""
        began = time.perf_counter()
        ready, transform_s = Ready(queued.copy(), self._gather.sizes(steps)), 0.0
        queued.clear()
        if (transform := self.job.transform) is not None:
            # On bytes of a changed file, a transform may end in an error that makes the GPU unusable.
            self.backend.check(shards)
            with span("gdsload::transform"):  # which waits for the gather first
                ready = self.maker.transformed(transform, ready, steps, stopped, event)
            transform_s = time.perf_counter() - began
        event.synchronize()
        self.backend.check(shards)
        gather_s = queued_s + time.perf_counter() - began - transform_s
        self.stats.made(len(steps), read_s=0.0, gather_s=gather_s, transform_s=transform_s)
        return ready

    def close(self) -> None:
        """See `BatchSource.close`: all gathers have ended when it returns."""
        super().close()
        with suppress(Exception):  # an error here concerns batches that are no longer wanted
            self._stream.synchronize()


def _past(event: torch.cuda.Event) -> bool:
    """See `PendingBatches.landed`: further groups are queued meanwhile, so that the GPU always has the next one."""
    try:
        return bool(event.query())
    except Exception:  # something has failed on the GPU, here or elsewhere: `PendingBatches.result` says what
        return True


class VramSource(BatchSource):
    """Gathers out of shards that are entirely in VRAM, on the stream that is current for the consumer.

    A gather out of VRAM takes microseconds, and queued on the consumer's stream it comes before the work that uses the
    batch: no thread, no event and no waiting is needed, and the memory belongs to the consumer's stream. So the
    consumer's thread must call `start` and `result`, and one group ahead is enough.
    """

    takes_processor = False

    def __init__(self, gather: ResidentGather, job: Job, device: torch.device, stats: LoaderStats) -> None:
        self._gather, self._job, self._device, self._stats = gather, job, device, stats
        self._made_on = torch.cuda.current_stream(device)

    def start(self, steps: range) -> PendingBatches:
        """See `BatchSource.start`.

        Raises:
            BudgetError: if the GPU has no memory left.
        """
        began = time.perf_counter()
        self._made_on = current_stream(self._device)
        with room_for("a group of batches", self._device):
            batches = self._gather.gather(steps)
            ready = transformed(self._job.transform, batches, self._gather.sizes(steps), steps)
        self._stats.made(len(steps), read_s=0.0, gather_s=time.perf_counter() - began)
        return PendingBatches(lambda: True, lambda _stopped: ready, lambda: None)

    def hand_over(self, _batches: Sequence[Any]) -> Callable[[Any], Any]:
        return self._to_current

    def _to_current(self, batch: Any) -> Any:
        """The batch is on the consumer's stream already, unless the consumer has changed to another one since."""
        if stream_handle(self._device) != self._made_on.cuda_stream:
            stream = current_stream(self._device)
            stream.wait_stream(self._made_on)
            hand_over(batch, stream)
        return batch

    def again(self) -> VramSource:
        return self

    def close(self) -> None:
        """See `BatchSource.close`: nothing is held."""
