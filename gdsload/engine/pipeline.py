"""The pipeline: threads that read and gather ahead of the consumer, in order and within budgets.

    plan ──> reads under way ──> gather, one thread a group ──> consumer, in order
     └──── bounded by prefetch_bytes, and by arena_bytes where an arena is used ────┘

The threads are all alike. Each takes a turn at planning (which starts reads), claims the oldest group that nobody
gathers yet, and gathers it alone: a batch shared out among threads would wait for the slowest of them, which on a
machine that also trains is one that has lost its processor. Where gathering takes a processor, a consumer that finds
nothing ready takes a turn, too, instead of sleeping.

Invariants:
    1. Batches come out in the order of their steps, each once.
    2. The bytes of groups ahead of the consumer stay within `prefetch_bytes`, but two groups are always allowed.
    3. An error comes out in the place of the batch it belongs to, after all batches before it, once.
    4. `close` ends all threads from any state, and no read is under way when it returns.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
from collections import deque
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch

from gdsload.backends.base import Backend
from gdsload.engine.assemble import BatchMaker
from gdsload.engine.direct import Direct
from gdsload.engine.groups import Group, Limits, workers
from gdsload.engine.pace import Pace
from gdsload.engine.ready import Ready, transformed
from gdsload.engine.stage import Job, LoadedRows, ReadPlanner, RowSlice
from gdsload.engine.started import begin
from gdsload.engine.stats import LoaderStats
from gdsload.errors import LoaderClosedError
from gdsload.shards.gather_host import one_thread
from gdsload.system.threads import WeakList, Worker, call_all, note_exit, start_all, wait_all

__all__ = ["Pipeline"]

_UNDER_WAY = 2
"""Groups that are made directly while one is waited for: the GPU always has the next one."""
_LOOK_EVERY_S = 1.0


class Pipeline:
    """Delivers the batches of one epoch.

    Args:
        job: what to deliver.
        backend: what brings the bytes.
        maker: what makes batches of them.
        limits: what may be used.
        start: the first step.
        stats: where time is counted; the depth of reads goes on from there.
        direct: makes batches without bringing anything, whenever it is ready.
    """

    def __init__(
        self,
        job: Job,
        backend: Backend,
        maker: BatchMaker,
        *,
        limits: Limits,
        start: int,
        stats: LoaderStats,
        direct: Direct | None = None,
    ) -> None:
        self._job, self._backend, self._maker = job, backend, maker
        self._limits, self._stats = limits, stats
        self._next = start
        self._batches = 1
        self._landing_bytes = 0  # of a batch, the most that was seen: reads take more room than what is wanted of them
        self._pace = Pace(stats.reads_ahead)
        self._held_back = False  # whether the depth alone, and no budget, kept the last turn from starting more reads
        self._stager = ReadPlanner(job, backend)
        self._direct = direct
        self._groups: deque[Group] = deque()
        # Ctrl-C may strike the consumer anywhere, also right behind an `acquire`. So its thread can take each lock
        # again, to close; nobody waits for _turn without looking at _closed; and `with` is used on locks alone, not on
        # conditions, whose `__enter__` and `wait` are Python and can be torn apart.
        self._helping = threading.RLock()  # held by a consumer that takes a turn; taken before _turn
        self._turn = threading.RLock()  # held by the thread that plans; taken before _lock
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)  # the threads wait for it
        self._wake = threading.Lock()  # the consumer waits for it: free when there is something to look at
        self._closed = self._failed = False
        self._owner = os.getpid()
        self._threads: list[Worker] = []
        if job.transform is not None:
            maker.follow()  # what it computes with may still be being made

    def get(self) -> Ready | None:
        """The next batches, or None at the end of the epoch. Waits for them, or makes them.

        Raises:
            LoaderClosedError: if the pipeline was closed.
            RuntimeError: if it was not started, and the system has no further thread.
        """
        self.start()
        since: float | None = None  # when it began to wait for reads
        while True:
            with self._lock:
                if self._closed:
                    raise LoaderClosedError("the loader was closed while a batch was being waited for")
                if self._groups and self._groups[0].ready is not None:
                    self._note_pace(since)
                    self._changed.notify_all()
                    return self._groups.popleft().ready
                if not self._groups and not self._next_steps():
                    return None
                if since is None and self._held_back and self._groups and not self._groups[0].landed():
                    since = time.perf_counter()
            if self._maker.takes_processor:
                with self._helping:
                    group = self._claim(wait=False)
                    if group is not None:
                        # As in the other threads, whatever mode the consumer is in: batches may outlive it.
                        with one_thread(), torch.inference_mode(mode=False):
                            self._finish(group)
                        continue
            self._wake.acquire(timeout=_LOOK_EVERY_S)

    def start(self) -> None:
        """Start the threads. Not in the constructor: Ctrl-C before anybody knows us would leave them at work.

        Whoever closes the loader then would unmap files under them.
        """
        if self._threads or self._closed:
            return
        count = 1 if self._is_direct() else workers(self._backend, self._maker)
        self._threads = [Worker(partial(self._run, not number), f"gdsload-{number}") for number in range(count)]
        _live.add(self)
        try:
            start_all(self._threads)
        except BaseException:
            self.close()
            raise

    def _note_pace(self, since: float | None) -> None:
        """Have the depth of reads follow the consumer, who takes a group and waited for reads from `since` on."""
        now = time.perf_counter()
        self._pace.taken(now, 0.0 if since is None else now - since)
        self._stats.reads_ahead = self._pace.depth

    def hand_over(self, batch: Any) -> Any:
        """The last step of each batch, in the consumer's thread."""
        return self._maker.hand_over(batch)

    @property
    def stopped(self) -> bool:
        """Whether the pipeline was closed or stopped."""
        return self._closed

    def stop(self) -> None:
        """Ask all threads to end, and wait for none: all that a finaliser may do, which can run in any thread."""
        if self._owner != os.getpid():
            return  # after a fork: the threads are not here, and their locks may be locked for ever
        with self._lock:
            self._closed = True
            self._tell()

    def close(self) -> None:
        """End all threads and let go of everything; may be called twice and from any thread."""
        if self._owner != os.getpid():
            return
        self.stop()
        wait_all(self._threads)
        with self._helping, self._turn:
            _release([piece.stage for group in self._groups for piece in group.pieces] + self._stager.held())
            self._groups.clear()

    def _run(self, first: bool) -> None:
        if self._closed:
            return
        if self._maker.takes_processor:
            one_thread()
        under_way: deque[Group] = deque()
        while first or not self._is_direct():
            while under_way and (under_way[0].started is None or under_way[0].started.done):
                self._finish(under_way.popleft())  # now: a sampler may take long to give the next ones
            group = self._claim(wait=not under_way)
            if group is not None and group.direct is not None:
                group.started = begin(group.direct, group.steps, lambda: self._closed, group.samples)
                under_way.append(group)
            elif group is not None:
                for before in under_way:  # which the consumer wants first
                    self._finish(before)
                under_way.clear()
                self._finish(group)
            elif not under_way:
                break
            if group is None or len(under_way) > _UNDER_WAY:
                self._finish(under_way.popleft())
        for group in under_way:
            self._finish(group)

    def _is_direct(self) -> bool:
        """Whether groups are made directly, with nothing to plan.

        One thread then queues and awaits them all: several would only get in each other's way at the driver's locks.
        """
        direct = self._ready_direct()
        return direct is not None and not direct.told

    def _ready_direct(self) -> Direct | None:
        """What makes groups directly, if it can now."""
        return self._direct if self._direct is not None and self._direct.ready() else None

    def _claim(self, *, wait: bool) -> Group | None:
        """A group to gather, planned first if need be; None if there is none left, or none now and `wait` is false."""
        while not self._turn.acquire(timeout=_LOOK_EVERY_S if wait else 0):
            if self._closed or not wait:
                return None
        try:
            while not self._closed:
                self._plan_ahead()
                with self._lock:
                    group = next((group for group in self._groups if not group.claimed), None)
                    if group is not None:
                        group.claimed = True
                        return group
                    if not wait or not self._next_steps():
                        return None
                    self._changed.wait_for(lambda: self._closed or self._has_room())
            return None
        finally:
            self._turn.release()

    def _plan_ahead(self) -> None:
        """Plan groups until one can be gathered and enough reads are under way."""
        self._held_back = False
        while self._next_steps() and not self._closed:
            self._reach()
            with self._lock:
                waiting = [group for group in self._groups if not group.claimed]
                if not self._has_room():
                    return
                if len(waiting) >= (1 if all(group.landed() for group in waiting) else self._pace.depth):
                    self._held_back = True
                    return
            steps = self._next_steps()
            group = self._group(steps)
            with self._lock:
                # All at once: where nothing is left to be planned and no group is there, the epoch is over.
                self._next = steps.stop
                self._failed = self._failed or (group.ready is not None and group.ready.error is not None)
                # The first group is one batch, so that it is there soon; then they grow to what is most efficient.
                self._batches = min(2 * self._batches, self._limits.group())
                self._groups.append(group)
                self._tell()

    def _reach(self) -> None:
        """Get to know the steps of the next group, and one more: the last group must be known to be the last."""
        largest = self._job.steps.reach(self._next + self._batches) * self._limits.sample_bytes
        if largest > self._limits.batch_bytes:
            self._limits = replace(self._limits, batch_bytes=largest)
            self._batches = min(self._batches, self._limits.group())

    def _group(self, steps: range) -> Group:
        """Start the reads of a group; one whose reads cannot be started is made at once, as far as it goes."""
        with suppress(Exception):
            if (direct := self._ready_direct()) is not None:
                samples = direct.samples(steps)
                if samples is None or not direct.prefers_copy_engine(samples):
                    self._stager.let_go()
                    return Group(steps, [], direct, samples)
            group = Group(steps, self._stager.pieces(steps))
            if not self._stager.windowed:
                taken = sum(piece.stage.nbytes for piece in group.pieces) // len(steps)
                self._landing_bytes = max(self._landing_bytes, taken)
            return group
        # If it goes well the second time, the epoch goes on, with a stager that did not stop half-way.
        self._stager = ReadPlanner(self._job, self._backend)
        return Group(steps, [], claimed=True, ready=self._one_by_one(steps))

    def _next_steps(self) -> range:
        """The steps of the next group to be planned; none after an error."""
        stop = self._next if self._failed else self._job.steps.steps
        return range(self._next, min(self._next + self._batches, stop))

    def _has_room(self) -> bool:
        """Whether another group may be ahead of the consumer."""
        if len(self._groups) < 2:
            return True
        ahead = sum(len(group.steps) for group in self._groups)
        if (ahead + self._batches) * self._limits.batch_bytes > self._limits.prefetch_bytes:
            return False
        if self._stager.windowed:
            opened = self._stager.opens(self._next_steps()) * self._limits.window_bytes
        else:
            opened = self._landing_bytes * self._batches
        if not opened:
            return True
        stages = [piece.stage for group in self._groups for piece in group.pieces] + self._stager.held()
        held = sum(stage.nbytes for stage in {id(stage): stage for stage in stages}.values() if not stage.released)
        return held + opened <= self._limits.arena_bytes

    def _finish(self, group: Group) -> None:
        """Wait for a group's bytes and make its batches."""
        ready: Ready | None = None
        try:
            with suppress(Exception):
                if group.direct is None:
                    ready = self._assemble(group.steps, group.pieces)
                elif group.started is not None:
                    ready = group.started.end(self._backend, self._stats)
            if ready is None:  # not inside `except`: the error must not drag this frame along
                group.started = None
                ready = self._one_by_one(group.steps)
        finally:
            if ready is None:
                ready = Ready([], [], LoaderClosedError("the making of a batch was interrupted"))
            # Whatever happened: a group that never gets ready would be waited for for ever.
            group.pieces, group.started = [], None
            with self._lock:
                self._failed = self._failed or ready.error is not None
                group.ready = ready
                self._tell()

    def _tell(self) -> None:
        """Wake whoever waits; the lock must be held."""
        self._changed.notify_all()
        if self._wake.locked():
            self._wake.release()

    def _one_by_one(self, steps: range) -> Ready:
        """A group that failed, batch by batch, to find the one that the error belongs to."""
        stager = ReadPlanner(self._job, self._backend)
        batches: list[Any] = []
        sizes: list[int] = []
        try:
            for step in steps:
                if self._closed:
                    break
                ready = self._assemble(range(step, step + 1), stager.pieces(range(step, step + 1)))
                batches += ready.batches
                sizes += ready.sizes
                if ready.error is not None:
                    return Ready(batches, sizes, ready.error)
        except Exception as error:
            return Ready(batches, sizes, error)
        finally:
            _release(stager.held())
        return Ready(batches, sizes)

    def _assemble(self, steps: range, pieces: list[RowSlice]) -> Ready:
        started = time.perf_counter()
        for piece in pieces:
            piece.stage.landing.completion.wait()
        landed = time.perf_counter()
        sizes = [self._job.steps.size(step) for step in steps]
        batches = self._maker.assemble(pieces, sizes)
        if pieces:
            self._backend.check(np.concatenate([piece.stage.files for piece in pieces]))
        self._stats.add(read_s=landed - started, gather_s=time.perf_counter() - landed)
        transform = self._job.transform
        if transform is None:
            return Ready(batches, sizes)
        return self._maker.build(lambda: transformed(transform, batches, sizes, steps, lambda: self._closed))


def _release(stages: list[LoadedRows]) -> None:
    """Give stages back after their reads have ended."""
    for stage in {id(stage): stage for stage in stages}.values():
        # Whatever went wrong has been reported, or nobody wants these bytes any more.
        with suppress(Exception):
            stage.landing.completion.wait()
        stage.release()


_live = WeakList[Pipeline]()


@atexit.register
def _close_all() -> None:
    """A thread that runs on while the interpreter is taken down would crash it."""
    note_exit()
    pipelines = list(_live)
    for pipeline in pipelines:
        pipeline.stop()
    call_all(pipeline.close for pipeline in pipelines)
