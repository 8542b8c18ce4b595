"""Threads that read, and the completion of their work.

Not `concurrent.futures`: Ctrl-C can interrupt the consumer inside a condition's Python code, and leave a lock locked
that a reader then waits for. Here all waits are on plain locks, which are acquired and released in one step.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Sequence
from queue import Empty, SimpleQueue

from gdsload.errors import LoaderClosedError
from gdsload.system.numa import stay_on
from gdsload.system.threads import Worker, start_all, wait_all, wait_until

__all__ = ["DriveReaders", "Readers", "Reading", "done", "one_each", "threads_of_each"]

Work = Callable[[], object]

_MOST = 48
"""Threads that read from all drives together, unless they are asked for: they take turns at the interpreter lock."""
_LEAST = 2
"""Threads that read from a drive, however many drives there are: one has a read under way, the next is prepared."""


class Reading:
    """The completion of some work, which any threads may do.

    Args:
        parts: how many times `finish` will be called.
        after: called when the last part has ended, before any waiting thread goes on.
    """

    def __init__(self, parts: int, after: Callable[[], None] | None = None) -> None:
        self._left, self._after = parts, after
        self._error: BaseException | None = None
        self._lock, self._gate = threading.Lock(), threading.Lock()
        if parts:
            self._gate.acquire()

    @property
    def landed(self) -> bool:
        """See `Completion.landed`."""
        return not self._left

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
        """The last part has ended, and no waiting thread goes on yet."""
        if self._after is not None:
            self._after()

    def wait(self) -> None:
        """See `Completion.wait`. Every part has ended when it returns or raises, so that memory may be reused."""
        wait_until(lambda: not self._left, self._gate)
        if self._error is not None:
            raise self._error


done = Reading(0)
"""The completion of bytes that need no read."""


class Readers:
    """Daemon threads that do pieces of work in the order in which they are given. They start with the first one.

    Args:
        count: how many threads.
        name: prefix of the threads' names.
        processors: where they run; None for those of the thread that starts them.
    """

    def __init__(self, count: int, name: str, processors: Collection[int] | None = None) -> None:
        self._count, self._name, self._processors = count, name, processors
        self._queue: SimpleQueue[tuple[Work, Reading] | None] = SimpleQueue()
        self._threads: list[Worker] = []
        self._lock = threading.Lock()
        self._closed = self._started = False

    def run(self, works: Sequence[Work], reading: Reading | None = None) -> Reading:
        """Queue some work.

        Args:
            works: the pieces of work.
            reading: a reading of as many parts; None for a new one.

        Raises:
            LoaderClosedError: after `close`.
        """
        if not works:
            return done
        reading = reading or Reading(len(works))
        with self._lock:
            if self._closed:
                raise LoaderClosedError("the backend was closed")
            if not self._started:
                self._start()
        for work in works:
            self._queue.put((work, reading))
        if self._closed:
            self._turn_away()
        return reading

    def _start(self) -> None:
        """Start the threads. If Ctrl-C interrupts it, the next call starts them."""
        if not self._threads:
            self._threads = [Worker(self._serve, f"{self._name}-{number}") for number in range(self._count)]
        try:
            start_all(self._threads)
        except RuntimeError:  # no more threads: one that was not started would leave work undone for ever
            self._threads = [thread for thread in self._threads if thread.ident is not None]
            self._started = bool(self._threads)
            raise
        self._started = True

    def close(self) -> None:
        """Cancel work that was not begun, wait for the rest, and end the threads; may be called twice."""
        with self._lock:
            self._closed = True
        self._turn_away()
        for _ in self._threads:
            self._queue.put(None)
        wait_all(self._threads)
        self._turn_away()

    def _turn_away(self) -> None:
        stops = 0
        while True:
            try:
                item = self._queue.get_nowait()
            except Empty:
                break
            if item is None:
                stops += 1
            else:
                item[1].finish(LoaderClosedError("the backend was closed before these bytes were read"))
        for _ in range(stops):
            self._queue.put(None)

    def _serve(self) -> None:
        stay_on(self._processors)
        while (item := self._queue.get()) is not None:
            work, reading = item
            try:
                work()
            except BaseException as error:
                reading.finish(error)
            else:
                reading.finish()
            del item, work, reading  # or the last read's memory would be held until the next one comes


def threads_of_each(drives: int, usual: int, asked: int | None) -> int:
    """The number of threads that read from each drive.

    Args:
        drives: how many drives there are.
        usual: how many keep one drive busy.
        asked: how many were asked for, for all drives together; None: as many as suits.
    """
    return max(min(usual, _MOST // drives), min(usual, _LEAST)) if asked is None else max(asked // drives, 1)


def one_each(drives: int, count: int, name: str, processors: Collection[int] | None = None) -> list[Readers]:
    """Readers of so many threads for each drive; see `Readers`."""
    names = [name] if drives == 1 else [f"{name}-{number}" for number in range(drives)]
    return [Readers(count, each, processors) for each in names]


class DriveReaders:
    """Readers of several drives. Each has its own queue and threads: one that is slow keeps no other waiting.

    Args:
        each: the readers, by the number that work is given with.
    """

    def __init__(self, each: Sequence[Readers]) -> None:
        self._each = each

    def run(self, works: Sequence[tuple[int, Work]], reading: Reading | None = None) -> Reading:
        """See `Readers.run`; each piece of work comes with the number of its readers."""
        if not works:
            return done
        reading = reading or Reading(len(works))
        queues: dict[int, list[Work]] = {}
        for number, work in works:
            queues.setdefault(number, []).append(work)
        begun = False
        while queues:
            number, mine = queues.popitem()
            try:
                self._each[number].run(mine, reading)
                begun = True
            except BaseException as error:
                if not begun:
                    raise
                # What is queued goes on, so what it needs must not be freed: who waits for it gets the error.
                for _ in range(len(mine) + sum(map(len, queues.values()))):
                    reading.finish(error)
                break
        return reading

    def close(self) -> None:
        """See `Readers.close`."""
        for readers in self._each:
            readers.close()
