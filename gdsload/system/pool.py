"""A pool of threads, and the future of the work that it is given.

Not `concurrent.futures`: Ctrl-C can interrupt the consumer inside a condition's Python code, and leave a lock locked
that a thread then waits for. Here all waits are on plain locks, which are acquired and released in one step.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue
from typing import Protocol

from gdsload.errors import LoaderClosedError
from gdsload.system.threads import Worker, start_all, wait_all, wait_until

__all__ = ["Future", "Pool", "Work", "done"]

Work = Callable[[], object]


class Event(Protocol):
    """A place in the queue of a device, as `torch.cuda.Event`."""

    def query(self) -> bool:
        """Return whether the device has passed it."""

    def synchronize(self) -> None:
        """Wait until the device has passed it."""


class Future:
    """The completion of some work, which any threads may do, and of what that has queued on a device.

    Args:
        parts: how many times `finish` will be called.
        after: called when the last part has ended, before any waiting thread goes on.
        record: called right after that: the event that the device passes when it has done what was queued. None if
            nothing is queued.
    """

    def __init__(
        self, parts: int, after: Callable[[], None] | None = None, record: Callable[[], Event] | None = None
    ) -> None:
        self._left, self._after, self._record = parts, after, record
        self._event: Event | None = None
        self._error: BaseException | None = None
        self._lock, self._gate = threading.Lock(), threading.Lock()
        if parts:
            self._gate.acquire()

    @property
    def landed(self) -> bool:
        """See `Completion.landed`."""
        if self._left:
            return False
        try:
            return self._event is None or self._event.query()
        except Exception:  # something has failed on the device, here or elsewhere: `wait` raises it
            return True

    def finish(self, error: BaseException | None = None) -> None:
        """Note that one part has ended, well or with an error; the first error is the one that is raised."""
        with self._lock:
            self._error = self._error or error
            try:
                if self._left == 1:
                    self._last()
            except BaseException as trouble:
                self._error = self._error or trouble
                if not isinstance(trouble, Exception):
                    raise
            finally:
                self._left -= 1
                if not self._left:
                    self._gate.release()

    def _last(self) -> None:
        try:
            if self._after is not None:
                self._after()
        finally:
            if self._record is not None:
                self._event = self._record()

    def wait(self) -> None:
        """See `Completion.wait`. All has ended when it returns or raises, so that memory may be reused."""
        try:
            wait_until(lambda: not self._left, self._gate)
        finally:
            if self._event is not None:
                self._event.synchronize()
        if self._error is not None:
            raise self._error


done = Future(0)
"""The future of no work."""


class Pool:
    """Daemon threads that do pieces of work in the order in which they are given. They start with the first one.

    Args:
        count: how many threads.
        name: prefix of the threads' names.
        initializer: called at the start of each thread: it may limit it to some processors.
    """

    def __init__(self, count: int, name: str, initializer: Callable[[], None] | None = None) -> None:
        self.count, self._name, self._initializer = count, name, initializer
        self._queue: SimpleQueue[tuple[Work, Future] | None] = SimpleQueue()
        self._threads: list[Worker] = []
        self._lock = threading.RLock()  # a signal's handler may close in the midst of `run`
        self._closed = self._started = False

    def run(self, works: Sequence[Work], future: Future | None = None) -> Future:
        """Queue some work.

        Args:
            works: the pieces of work.
            future: a future of as many parts; None for a new one.

        Raises:
            LoaderClosedError: after `close`.
            RuntimeError: if the system has no thread for it.
        """
        if not works:
            return done
        future = future or Future(len(works))
        with self._lock:
            if self._closed:
                raise LoaderClosedError("the loader or its backend was closed")
            if not self._started:
                self._start()
        for work in works:
            self._queue.put((work, future))
        if self._closed:
            self._cancel()
        return future

    def _start(self) -> None:
        """Start the threads. If Ctrl-C interrupts it, the next call starts them."""
        if not self._threads:
            self._threads = [Worker(self._serve, f"{self._name}-{number}") for number in range(self.count)]
        try:
            start_all(self._threads)
        except RuntimeError:  # the system has no further thread: those that there are do the work
            self._threads = [thread for thread in self._threads if thread.ident is not None]
            if not self._threads:
                raise
        self._started = True

    def stop(self) -> None:
        """Cancel work that was not begun, and have the threads end after the rest, without waiting for that."""
        with self._lock:
            self._closed = True
        self._cancel()
        for _ in self._threads:
            self._queue.put(None)

    def close(self) -> None:
        """Cancel work that was not begun, wait for the rest, and end the threads; may be called twice."""
        self.stop()
        wait_all(self._threads)
        self._cancel()

    end = close

    def _cancel(self) -> None:
        stops = 0
        while True:
            try:
                item = self._queue.get_nowait()
            except Empty:
                break
            if item is None:
                stops += 1
            else:
                item[1].finish(LoaderClosedError("the loader or its backend was closed before this work was done"))
        for _ in range(stops):
            self._queue.put(None)

    def _serve(self) -> None:
        if self._initializer is not None:
            self._initializer()
        while (item := self._queue.get()) is not None:
            work, future = item
            # Before the future is finished, and before the thread waits: what the work holds is given back by then.
            del item
            error: BaseException | None = None
            try:
                work()
            except BaseException as wrong:
                error = wrong
            del work
            future.finish(error)
            del future, error
