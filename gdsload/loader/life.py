"""The life of a loader: its resources from the first batch on, the epochs that use them, and the end of both."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

from gdsload.backends.base import Backend, BackendStatus, CacheStatus
from gdsload.backends.choices import requested
from gdsload.backends.mapped import registered_in_process
from gdsload.backends.select import expected
from gdsload.engine.assemble import BatchForm, BatchMaker
from gdsload.engine.epochs import prefetch
from gdsload.engine.gpu.device_queue import DeviceQueue
from gdsload.engine.gpu.stream_clock import StreamClock
from gdsload.engine.prefetch import Prefetcher
from gdsload.engine.sample_transform import SampleTransform
from gdsload.engine.stats import LoaderStats
from gdsload.engine.steps import Job
from gdsload.engine.transform import DeviceTransform
from gdsload.errors import LoaderClosedError, OptionError
from gdsload.kernels.launch import can_launch, prepare
from gdsload.loader.batch_fields import image_draws
from gdsload.loader.budgets import limits_of
from gdsload.loader.diagnosis import ENOUGH_BATCHES, Diagnosis, diagnosed
from gdsload.loader.epoch import Epoch
from gdsload.loader.hand_over import hand_over_steps, on_device
from gdsload.loader.plan import LoaderPlan
from gdsload.loader.progress import Progress
from gdsload.loader.resources import OpenResources, open_resources
from gdsload.loader.state import Place
from gdsload.order.checks import check_whole
from gdsload.system.drive_bytes import bytes_from_drives
from gdsload.system.dropped import Closer, settle_dropped
from gdsload.system.pool import WeakList, own_thread
from gdsload.system.streams import held_bytes

_log = logging.getLogger("gdsload")
_process = [os.getpid()]
"""The number of this process: `os.getpid` takes longer than all other counting of a `next`."""
os.register_at_fork(after_in_child=lambda: _process.__setitem__(0, os.getpid()))


class Life:
    """The running parts of a loader: its pipelines, resources and counts."""

    def __init__(self, plan: LoaderPlan, progress: Progress) -> None:
        self._plan, self._progress = plan, progress
        self.stats, self._before = LoaderStats(), LoaderStats()
        self._number: int | None = None  # of the newest epoch
        self._threads = 0  # likewise
        self._drive_bytes = bytes_from_drives()
        self.clock = StreamClock.of(plan.device, self.stats)
        self.limits = limits_of(plan, progress.schedules.newest)
        self._transform = None
        options = plan.options
        self.skips_damage = options.verify.on_corrupt == "skip"
        self._refuse_to_skip()
        if options.device_transform:
            self._transform = DeviceTransform(options.device_transform, plan.device, progress.transform_key)
        self._samples, self._end_samples = None, None
        if options.sample_transform is not None:
            index = plan.form.index or "index"
            self._samples = SampleTransform(
                options.sample_transform,
                progress.sample_keys,
                index=index,
                collate=options.collate_fn,
                ahead=options.ahead,
            )
            self._end_samples = self._samples.close
        self._finish = hand_over_steps(plan, self._transform)
        if plan.placement == "gpu" and not plan.backend.keep:  # else it waits for the drive in any case
            prepare("cupy", can_launch)  # to import it takes 0.2 s, and longer where that has never been done
        self._resources: OpenResources | None = None
        self._status = BackendStatus(str(requested(options.backend).backend), *expected(plan.backend), {})
        self._epochs = WeakList[Epoch]()
        self.pipelines = WeakList[Prefetcher]()
        self._left: list[Closer] = []
        self._lock = threading.RLock()  # between `begin` and `close`
        self._closing = threading.Lock()
        self._owner: int | None = None
        """The process whose threads read: the one that asks for the first batch."""
        self._made = ""
        self.closed = False

    def epoch(self) -> Epoch:
        """An epoch, which begins when it is asked for its first batch."""
        self.check_usable()
        return Epoch(self, self._finish)

    def settled(self) -> LoaderStats:
        stats = self.stats
        if self.clock is not None:
            self.clock.settle()
        kept = 0
        if (resources := self._resources) is not None:
            tiers = resources.tiers()
            stats.bytes_by_path = resources.backend.bytes_by_path()
            stats.cache_hit_bytes = {name: tier.hit_bytes for name, tier in tiers.items()}
            kept = sum(tier.held_bytes for name, tier in tiers.items() if name != "pagecache")
        running = [one for one in self.pipelines if not one.stopped]
        stats.batches_ahead = sum(one.batches_ahead() for one in running)
        stats.arena_bytes = sum(one.source.held_bytes() for one in running)
        plain, stats.pinned_bytes = held_bytes()
        stats.registered_bytes = registered_in_process()
        if running and self._drive_bytes is not None:  # between epochs the process may read other files
            stats.drive_bytes = (bytes_from_drives() or 0) - self._drive_bytes
        if self._plan.placement == "gpu":
            stats.vram_bytes = kept + max(plain, stats.arena_bytes)  # the arena is either torch's memory or plain
        return stats

    @property
    def epoch_stats(self) -> LoaderStats:
        return replace(self.settled().since(self._before), epoch=self._number)

    def diagnosed(self) -> Diagnosis:
        stats = self.epoch_stats
        if stats.batches < ENOUGH_BATCHES:
            stats = self.settled().since(LoaderStats())
        running = any(not one.stopped for one in self.pipelines)
        return diagnosed(self._plan, stats, self._threads, probe=not running)

    @property
    def backend(self) -> BackendStatus:
        if (resources := self._resources) is None:
            return self._status
        opened = resources.opened
        moved = opened.backend.bytes_by_path()
        return BackendStatus(self._status.asked, opened.name(), opened.reason(), moved, opened.answer(), self._made)

    @property
    def cache(self) -> CacheStatus:
        if (resources := self._resources) is None:
            shards = self._plan.space.shards
            every = sum(len(one.sources) for one in self._plan.selected.datasets)
            return CacheStatus(self._plan.options.cache, every if shards is None else len(shards))
        return CacheStatus(self._plan.options.cache, len(resources.table.starts), resources.tiers())

    def batches(self, place: Place | None = None) -> int:
        """As ``len(loader)``; of the epoch at a place, if one is given."""
        return self._progress.batches(place)

    def set_epoch(self, number: int, step: int | None = None) -> None:
        number = check_whole(number, "epoch", 0, 2**64 - 1)
        step = None if step is None else check_whole(step, "step", 0)
        self._settle()
        with self._held():
            self._progress.set_epoch(number, step)

    def state(self) -> dict[str, Any]:
        with self._held():
            return self._progress.state(opened=self._resources is not None or self.closed)

    def luggage(self) -> tuple[int | dict[str, Any], int | None]:
        """The place at which a copy of the loader is to go on: a state, or between epochs the next number.

        A number fits any ranks of the copy. With a state comes the number that `set_epoch` was called with since, or
        None. Raises StateError in the middle of an epoch of a sampler that cannot be resumed there.
        """
        with self._held():
            if not self._progress.inside:
                return self._progress.epoch, None
            return self.state(), self._progress.epoch if self._progress.kept else None

    def unpack(self, where: int | dict[str, Any], kept: int | None) -> None:
        """Go to the place of the loader whose luggage this is."""
        if isinstance(where, int):
            self._progress.stand(where)
            return
        self.resume(where)
        if kept is not None:
            self.set_epoch(kept)

    def resume(self, state: dict[str, Any], *, change_batch_size: bool = False) -> None:
        while True:
            if self._plan.source is not None:
                for epoch in self._epochs:  # they would draw on from what is set back
                    epoch.close()
            self._settle()
            with self._held():
                if self._plan.source is None or all(epoch.pipeline is None for epoch in self._epochs):
                    self._progress.resume(state, change_batch_size=change_batch_size)
                    return
            # Another thread has begun one meanwhile. It is closed without the lock, which its transforms may wait for.

    def close(self) -> None:
        if self._elsewhere():
            return
        if self._transform is not None:
            self._transform.refuse_inside()
        if own_thread():  # called by the garbage collector: the thread that drops us gives all back
            self.closed = True
            for pipeline in self.pipelines:
                pipeline.stop()
            return
        with self._lock:
            self.closed = True
            epochs, pipelines = list(self._epochs), list(self.pipelines)
        if self._end_samples is not None:
            self._end_samples()  # first of all: threads that make batches see it, and need not finish one
        for epoch in epochs:
            epoch.drop()
        for pipeline in pipelines:
            pipeline.close()
        for closer in self._left:
            closer.settle()
            closer.detach()
        self._close_resources()

    def _close_resources(self) -> None:
        """Give files and memory back. If Ctrl-C interrupts it, the next `close` does what is left."""
        mine = False
        try:
            mine = self._closing.acquire(blocking=False)
            if mine and (resources := self._resources) is not None:
                self._status = self.backend
                self.settled()  # the last counts of what is closed here
                _release(resources.backend, resources.maker, self._end_samples)
                self._resources = None
                self._dropped.detach()
        finally:
            if mine:  # else another thread is at it, or this one, whose signal handler calls this
                self._closing.release()

    def check_usable(self) -> None:
        """Raise LoaderClosedError if the loader was closed, or belongs to another process."""
        if self.closed:
            raise LoaderClosedError("the loader was closed", remedy="Make a new one.")
        if self._elsewhere():
            raise LoaderClosedError(
                "the loader has been used in another process, whose threads it cannot use",
                remedy="Make a loader in each process, or fork before the first batch.",
            )

    def _elsewhere(self) -> bool:
        """Return whether another process, from which this one was forked, has begun to read."""
        return self._owner not in (None, _process[0])

    def _held(self) -> AbstractContextManager[object]:
        """The lock; where another process reads, nothing: a fork may have copied it while a thread held it."""
        return nullcontext() if self._elsewhere() else self._lock

    def check_world(self, place: Place) -> None:
        """Raise OptionError if rank or world size are others than when the epoch at `place` began."""
        self._progress.schedules.check(place.schedule)

    def _open(self) -> OpenResources:
        if self._resources is None:
            settle_dropped()  # the memory of a loader that this one takes the place of, above all a GPU's
            resources = open_resources(self._plan, self.limits)
            # Readers hold the table, so this waits for the last one.
            self._dropped = Closer(
                resources.table, partial(_release, resources.backend, resources.maker, self._end_samples)
            )
            self._resources = resources
        return self._resources

    def begin(self, epoch: Epoch) -> None:
        """Set the place of an epoch that asks for its first batch, and the pipeline that reads from there."""
        self._settle()
        self._owner = os.getpid()  # before the lock, which a fork of another thread's may copy as it is
        with self._lock:
            self.check_usable()
            epoch.place = self._progress.next_place()
            pipeline = self._start(epoch)
            try:
                self.pipelines.add(pipeline)
                self._epochs.add(epoch)
                self._left.append(epoch.reads_from(pipeline))
                self._before, self._number = self.settled().since(LoaderStats()), epoch.place.epoch
                pipeline.start()
                self._made, self._threads = pipeline.runner.reason, pipeline.runner.threads
                self.check_usable()  # a signal's handler may have closed us
                self._progress.begun(epoch.place)
            except BaseException:  # Ctrl-C
                pipeline.close()
                if self.closed:
                    self._close_resources()  # which were being opened while the handler ran
                raise

    def _settle(self) -> None:
        """Wait for abandoned epochs, without the lock: what they hold must not add up, nor may they draw on."""
        for one in (self._transform, self._samples):
            if one is not None:
                one.refuse_inside()
        for closer in self._left:
            closer.settle()
        self._left = [closer for closer in self._left if not closer.over]
        for pipeline in self.pipelines:
            if pipeline.stopped:
                pipeline.close()

    def ended(self, epoch: Epoch) -> None:
        """Note that an epoch is over; FileChangedError if a shard of some of its batches has changed meanwhile."""
        if (resources := self._resources) is not None:
            resources.table.files.check_passed()
        with self._lock:
            self._progress.ended(epoch.place)
        found = self.epoch_stats  # while the pipeline is there
        if _log.isEnabledFor(logging.INFO):
            _log.info("%s", found)

    def _refuse_to_skip(self) -> None:
        """Raise OptionError if damaged batches are left out, and other ranks would wait for this one at the end."""
        if self.skips_damage and (self._plan.groups is not None or self._plan.schedule.world()[1] > 1):
            raise OptionError(
                "is 'skip', but all ranks must make equally many steps",
                option="verify.on_corrupt",
                remedy="Leave it out: the error names the samples, and `torch.utils.data.Subset` reads all others.",
            )

    def _start(self, epoch: Epoch) -> Prefetcher:
        plan, place = self._plan, epoch.place
        self._refuse_to_skip()
        self.limits = limits_of(plan, place.schedule)
        resources = self._open()
        limits = self.limits if self._samples is None else replace(self.limits, grown=self._samples.grown)
        steps = self._progress.steps(place)  # first of all, as the place may move on
        queue = None if self._samples is None else resources.maker.queue
        copied = None if queue is None else partial(_on_device, queue, plan.form)
        transforms = self._samples, copied, None if plan.copies else self._transform
        ahead = [one for one in transforms if one is not None]
        transform = partial(_in_turn, ahead, place.epoch) if ahead else None
        draws = None
        if plan.form.decode:
            draws = image_draws(self._progress.known_seed(), place.epoch, steps, plan.schedule.world()[0])
        job = Job(resources.table, steps, plan.space.ids, plan.space.index, transform, draws)
        return prefetch(
            job, resources.backend, resources.maker,
            limits=limits, start=place.step, stats=self.stats, ahead=plan.options.ahead,
        )  # fmt: skip


def _on_device(queue: DeviceQueue, form: BatchForm, _epoch: int, _step: int, batch: Any) -> Any:
    with queue.room():
        return on_device(batch, form, queue.copied)


def _in_turn(transforms: Sequence[Callable[[int, int, Any], Any]], epoch: int, step: int, batch: Any) -> Any:
    for transform in transforms:
        batch = transform(epoch, step, batch)
    return batch


def _release(backend: Backend, maker: BatchMaker, end_samples: Callable[[], None] | None) -> None:
    """Close and unmap the files, free memory, and end the workers of samples; may be called again, after Ctrl-C.

    It does not take the resources themselves: it waits until the last reader drops them.
    """
    if end_samples is not None:
        end_samples()
    backend.close()
    maker.close()
