"""The prefetcher: one queue of batches that are being made ahead of the consumer, in order and within budgets.

    source.start(steps) ──> PendingBatches ──result()──> Ready ──> consumer, in order
     └── at most prefetch_bytes of batches, some hundreds of them, and arena_bytes of memory that reads land in ──┘

A number of threads runs it. Each takes its turn at planning, which starts reads and kernels, claims the oldest group of
batches that is not claimed yet, and finishes it alone: a batch shared out among threads would wait for the slowest of
them. Where gathering takes a processor, a consumer that finds nothing ready takes its turn, too: its own processor
would be idle otherwise. With no threads, the consumer does all of this when it asks for a batch. Planning a group for
the GPU costs the host a few calls of CUDA, and a thread that makes them would need the interpreter lock for each, which
a training step that launches kernels releases only after milliseconds.

Invariants:
    1. Batches come out in the order of their steps, each once.
    2. Groups ahead of the consumer stay within `prefetch_bytes` and within `_most_ahead` batches, but two groups are
       always allowed. Where images are decoded, this holds of the groups that are claimed, and of the encoded bytes
       of the others.
    3. An error is raised at the batch it belongs to, after all batches before it, once.
    4. `close` ends all threads from any state, and no read is under way when it returns.
    5. Threads and consumer wait in `SimpleQueue.get` alone, which is C, and `stop` ends every such wait: wherever
       Ctrl-C is raised in the consumer, no thread waits for something that the consumer had taken.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import deque
from contextlib import nullcontext, suppress
from dataclasses import replace
from queue import Empty, SimpleQueue

from gdsload.engine.batch_source import BatchSource, Ready
from gdsload.engine.group import Group
from gdsload.engine.limits import Limits, Runner
from gdsload.engine.pace import LEAST, Pace
from gdsload.engine.stats import LoaderStats
from gdsload.engine.steps import Steps
from gdsload.errors import LoaderClosedError
from gdsload.shards.gather_host import limit_threads, one_thread
from gdsload.shards.values import no_inference
from gdsload.system.pool import Pool, end_at_exit, own_thread

_log = logging.getLogger("gdsload")
_AT_ONCE = 2
"""Groups started by one call of a consumer that runs the prefetcher itself: the first batch should not wait until every
group that there is room for is queued."""
_MOST_GROUPS, _MOST_ONE_BY_ONE = LEAST, 16
"""Full groups ahead of the consumer, however small their batches are: as many as keep the readers of a cold disk busy;
and batches, where each takes long to make. More would hide nothing from the consumer, would take the processor and the
interpreter lock from it, and would be made for nothing if the epoch is left early."""
_ENCODED_GROUPS = 24
"""Groups of encoded images that are read ahead of the decoder, whether they have landed or not."""
_LAST_BYTES = 16 * 2**20
"""Groups that taper are not made smaller than this: a third of a millisecond over PCIe 5 x16."""


class Prefetcher:
    """Delivers the batches of one epoch."""

    def __init__(
        self, source: BatchSource, steps: Steps, *, limits: Limits, start: int, stats: LoaderStats, runner: Runner
    ) -> None:
        self.source, self.runner, self.stopped = source, runner, False
        self._steps, self._limits, self._stats = steps, limits, stats
        self._most_ahead = _MOST_ONE_BY_ONE if limits.one_by_one else _MOST_GROUPS * runner.most_batches
        self._first = self._next = start
        self._landing = False  # whether bytes are seen to land in the arena
        # The first group is one batch, so that it is there soon; then they grow to what is most efficient.
        self._batches = 1 if runner.most_groups > 1 else self._most_batches
        self._ahead: deque[int] = deque()  # batches of each group that the consumer has not taken yet
        self._unclaimed: deque[Group] = deque()
        self._pace = Pace(stats.reads_ahead)
        self._held_back = False  # whether the depth alone, and no budget, kept the last turn from starting more reads
        self._planned = SimpleQueue[Group | None]()  # in order; None after the last one
        self._taken: deque[tuple[float, float]] = deque()  # when the consumer took groups, and how long it had waited
        self._room = SimpleQueue[None]()  # an item for each group taken; threads that have no room wait for it
        # Holds an item while no thread is planning. Not a lock: one that the consumer held when Ctrl-C was raised stays
        # locked for ever, while `stop` can put an item in here for every thread that waits.
        self._turn = SimpleQueue[None]()
        self._turn.put(None)
        self._inside = threading.RLock()  # held by a consumer that makes batches; an RLock: a handler may close
        self._working = False  # whether it does
        self._ended = self._failed = False
        self.there = False
        """True if the batches that `get` returned last were there when it was called."""
        self._owner = os.getpid()
        self._pool: Pool | None = None

    def get(self) -> Ready | None:
        """The next batches, or None at the end of the epoch. Waits for them, or makes them.

        Raises:
            LoaderClosedError: if the prefetcher was closed.
            RuntimeError: if it was not started, and the system has no further thread.
        """
        self.start()
        queued, planned = self._queued_ahead(), not self._planned.empty()
        if not self.runner.threads or (self.source.takes_processor and self._planned.empty()):
            self._work()
        self._refuse_if_closed()
        began = time.perf_counter()
        group = self._planned.get()
        if group is None:
            self._planned.put(None)  # for the next call
            self._refuse_if_closed()
            return None
        self.there = queued or (planned and self.runner.threads > 0 and not group.ready.empty())
        late = self._held_back and not group.landed()
        while self.source.takes_processor and group.ready.empty() and self._work():
            pass
        ready = group.ready.get()
        self._refuse_if_closed()
        now = time.perf_counter()
        self._taken.append((now, now - began if late else 0.0))
        self._room.put(None)
        return ready

    def _queued_ahead(self) -> bool:
        """Return whether the next batches are there, where the consumer queues them for a GPU."""
        if self.runner.at_once or self.runner.threads or self.source.takes_processor:
            return self.runner.at_once
        return bool(self._unclaimed) and self._unclaimed[0].landed()

    def batches_ahead(self) -> int:
        """The number of batches ahead of the consumer, made or being made; any thread may ask."""
        return sum(self._ahead.copy())

    def _refuse_if_closed(self) -> None:
        if self.stopped:
            raise LoaderClosedError("the loader was closed while a batch was being waited for")

    def start(self) -> None:
        """Start the threads. Not in the constructor: Ctrl-C there would leave them running without an owner.

        Closing the loader would then unmap files that they are reading.
        """
        if self._pool is not None or self.stopped or not self.runner.threads:
            return
        self._pool = Pool(self.runner.threads, "gdsload")
        end_at_exit(self)
        try:
            self._pool.run([self._run] * self.runner.threads)
        except BaseException:
            self.close()
            raise

    def stop(self) -> None:
        """Ask for the epoch's end without waiting: all that a finaliser may do, which can run in any thread."""
        if self._owner != os.getpid():
            return  # after a fork: the threads are not here, and their locks may be locked for ever
        self.stopped = True
        self._planned.put(None)
        for _ in range(self.runner.threads + 1):
            self._turn.put(None)
            self._room.put(None)
        for group in self._unclaimed.copy():  # which nobody claims any more
            group.forsake()

    def close(self) -> None:
        """End all threads and release everything; may be called twice and from any thread.

        Raises:
            LoaderClosedError: if a signal's handler calls it while this very thread makes batches, which it would go on
                with after the handler. `get` then ends with such an error, too, and nothing was released: close again.
        """
        if self._owner != os.getpid():
            return
        self.stop()
        if self._pool is not None:
            self._pool.close()
        with self._inside:
            if self._working:
                raise LoaderClosedError("a signal's handler closed the loader while it was asked for a batch")
            with suppress(Empty):
                while True:
                    self._planned.get_nowait()
            self._planned.put(None)
            while self._unclaimed:
                self._unclaimed.popleft().drop()
            self.source.close()

    end = close

    def _run(self) -> None:
        """Make groups until none is left, as each thread does."""
        first = True
        while (group := self._claim()) is not None:
            if first:  # while its bytes are being read: it takes 50 ms, once in a process
                with suppress(Exception):
                    limit_threads(1)  # the other processors are other threads', or the training step's
            self._finish(group)
            if first:
                with suppress(Exception):  # it is made, or fails again, where it is needed
                    self.runner.prepare()
            first = False

    def _end_with(self, error: Exception) -> None:
        """End the epoch with an error after all that was planned."""
        group = Group(range(0))
        group.ready.put(Ready([], [], error))
        self._ahead.append(0)
        self._ended = True
        self._planned.put(group)
        self._planned.put(None)

    def _work(self) -> bool:
        """Plan, and finish a group, in the consumer's thread; False if there is none, or another thread is planning."""
        with self._inside:
            if self.stopped:
                return False
            self._working = True
            try:
                try:
                    self._turn.get_nowait()
                except Empty:
                    return False
                group = self._planned_group()
                if group is None:
                    return False
                if self.stopped:  # since it was claimed: a thread may wait for it
                    group.drop()
                    return False
                alone = one_thread() if self.source.takes_processor else nullcontext()
                # Batches may outlive the mode that the consumer is in.
                with no_inference(), alone:
                    self._finish(group)
                return True
            finally:
                self._working = False

    def _claim(self) -> Group | None:
        """The oldest group that is not claimed yet, planned first if need be; None if there is none left."""
        while not self.stopped:
            self._turn.get()
            group = self._planned_group()
            if group is not None:
                return group
            if self._ended and not self._unclaimed:
                break
            self._room.get()
        self._room.put(None)  # for the next thread that waits
        return None

    def _planned_group(self) -> Group | None:
        """Use the turn that the caller took: plan, claim the oldest group if there is one, and pass the turn on.

        An error ends the epoch before the turn is passed on.
        """
        try:
            if self.stopped:
                return None
            try:
                with no_inference():
                    self._plan_ahead()
            except Exception as error:
                _log.exception("batches cannot be planned")
                self._end_with(error)
            except BaseException as error:  # the group that it had begun is lost
                closed = LoaderClosedError("the planning of batches was interrupted")
                closed.__cause__ = error
                self._end_with(closed)
                if not own_thread():  # Ctrl-C of the consumer
                    raise
            group = self._unclaimed.popleft() if self._may_claim() else None
            if group is not None or (self._ended and not self._unclaimed):
                self._room.put(None)  # there may be room for another, or nothing left: the next thread finds out
            return group
        finally:
            if self.stopped:  # `_note_taken` may have taken what `stop` has put there for threads that wait
                self._room.put(None)
            self._turn.put(None)

    def _note_taken(self) -> None:
        """Note which groups the consumer took, and adapt the depth of reads."""
        with suppress(Empty):
            while True:
                self._room.get_nowait()
        while self._taken:
            self._pace.taken(*self._taken.popleft())
            self._ahead.popleft()
        self._stats.reads_ahead = self._pace.depth

    def _plan_ahead(self) -> None:
        """Start groups until one can be finished and enough of them are under way."""
        self._held_back, started = False, 0
        self._note_taken()
        while not (self._ended or self.stopped):
            self._note_taken()
            steps = self._next_steps()
            if steps and not self._has_room(steps):
                return
            if self._unclaimed and self._first_is_there():
                return
            if self._unclaimed and self._enough(started):
                self._held_back = bool(steps)
                return
            if not steps:
                self._ended = True
                self._planned.put(None)
                return
            self._start(steps)
            started += 1

    def _first_is_there(self) -> bool:
        """Return whether the epoch's first group has landed, so that it is handed out before others are planned."""
        oldest = self._unclaimed[0]
        return self.runner.threads > 0 and oldest.steps.start == self._first and oldest.landed()

    def _enough(self, started: int) -> bool:
        """Return whether as many groups are under way as it takes to hide reads from the consumer."""
        if not self.runner.threads:
            return started >= _AT_ONCE
        if self._limits.read_bytes:  # whichever of reading and decoding is slower should not wait for the other
            return len(self._unclaimed) >= max(self._pace.depth, _ENCODED_GROUPS)
        return all(group.landed() for group in self._unclaimed) or len(self._unclaimed) >= self._pace.depth

    def _start(self, steps: range) -> None:
        """Start a group, or put the error there that is raised instead of its only step."""
        error = self._steps.error(steps.stop - 1)
        if error is not None and len(steps) > 1:
            steps = steps[:-1]
            error = None
        group = Group(steps)
        if error is not None:
            group.ready.put(Ready([], [], error))
            self._failed = True
        else:
            group.start(self.source)
            self._unclaimed.append(group)
        self._next = steps.stop
        self._ahead.append(len(steps))
        self._batches = min(2 * self._batches, self._most_batches)
        self._planned.put(group)

    @property
    def _most_batches(self) -> int:
        return self._limits.group(self.runner.most_batches, landing=self._landing)

    def _next_steps(self) -> range:
        """The steps of the next group; none after an error, or after the last step."""
        if self._failed:
            return range(0)
        # One step more than the group's: the last group must be known to be the last.
        largest = self._steps.reach(self._next + self._batches) * self._limits.sample_bytes
        largest = max(largest, self._limits.grown())
        if largest > self._limits.batch_bytes:
            self._limits = replace(self._limits, batch_bytes=largest)
            self._batches = min(self._batches, self._most_batches)
        left = self._steps.steps - self._next
        count = min(self._batches, left)
        if self.runner.tapers:
            # Half of what is left: nothing is loaded while the last group is used.
            count = min(count, max(-(-left // 2), _LAST_BYTES // max(self._limits.batch_bytes, 1)))
        return range(self._next, self._next + max(count, 0))

    def _may_claim(self) -> bool:
        """Return whether there is a group to be made, and room for its batches."""
        if not self._unclaimed or len(self._ahead) - len(self._unclaimed) < 2:
            return bool(self._unclaimed)
        made = sum(self._ahead) - sum(len(group.steps) for group in self._unclaimed)
        return (made + len(self._unclaimed[0].steps)) * self._limits.batch_bytes <= self._limits.prefetch_bytes

    def _has_room(self, steps: range) -> bool:
        """Return whether another group may be ahead of the consumer. Notes whether its bytes land in the arena."""
        if len(self._ahead) >= self.runner.most_groups:
            return False
        if len(self._ahead) < min(2, self.runner.most_groups):
            return True
        ahead, unmade = sum(self._ahead) + len(steps), sum(len(group.steps) for group in self._unclaimed) + len(steps)
        if ahead > self._most_ahead or self._limits.ahead(ahead, unmade) > self._limits.prefetch_bytes:
            return False
        arena_bytes = self.source.arena_bytes(steps, self._limits.window_bytes)
        self._landing = self._landing or arena_bytes > 0
        return arena_bytes <= self._limits.arena_bytes

    def _finish(self, group: Group) -> None:
        made = False
        try:
            made = group.make(self.source, lambda: self.stopped, self._stats)
        finally:
            self._failed = self._failed or not made
