"""Threads that decode the images of batches."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from queue import SimpleQueue

from gdsload.errors import LoaderClosedError
from gdsload.shards.gather_host import limit_threads
from gdsload.system.share import processors
from gdsload.system.threads import Worker, end_at_exit, start_all, wait_all

__all__ = ["Processors", "Tasks"]


class Tasks:
    """Calls that were handed to threads together.

    Args:
        count: how many there are.
    """

    def __init__(self, count: int) -> None:
        self._left, self.done = count, SimpleQueue[BaseException | None]()
        self._error: BaseException | None = None

    def wait(self) -> None:
        """Wait for all of them: in C alone, where Ctrl-C does no harm.

        Raises:
            BaseException: the first that a call raised.
        """
        while self._left:
            error = self.done.get()
            self._left -= 1
            self._error = self._error or error
        if self._error is not None:
            raise self._error


class Processors:
    """Threads, started when there is something to do.

    Threads that make batches only wait for them: so all processors are busy, however few such threads there are, and
    the images of a batch do not wait for each other.

    Args:
        count: how many; 0: as many as this process may keep processors busy.
        name: what they are called, before their numbers.
    """

    def __init__(self, count: int = 0, name: str = "gdsload-decode") -> None:
        self.count, self._name = count or processors(), name
        self._calls = SimpleQueue[tuple[Callable[[], None], Tasks] | None]()
        self._threads: list[Worker] = []
        self._lock = threading.Lock()
        self._closed = False
        end_at_exit(self)

    def start(self, calls: Sequence[Callable[[], None]]) -> Tasks:
        """Have some functions called, each once.

        Raises:
            LoaderClosedError: after `close`.
        """
        if not calls:
            return Tasks(0)
        with self._lock:
            if self._closed:
                raise LoaderClosedError("the loader was closed")
            if not self._threads:
                self._threads = [Worker(self._run, f"{self._name}-{number}") for number in range(self.count)]
            self._start_missing()
            tasks = Tasks(len(calls))
            for call in calls:
                self._calls.put((call, tasks))
        return tasks

    def _start_missing(self) -> None:
        """Start the threads, or those that an earlier call could not start: what it queued would wait for ever."""
        if all(thread.ident is not None for thread in self._threads):
            return
        try:
            start_all(self._threads)
        except RuntimeError:  # the system has no further thread: those that there are do the work
            if all(thread.ident is None for thread in self._threads):
                raise

    def close(self) -> None:
        """End the threads, after all that was started; may be called twice."""
        with self._lock:
            if not self._closed:
                self._closed = True
                for _ in self._threads:
                    self._calls.put(None)
        wait_all(self._threads)

    end = close

    def _run(self) -> None:
        limit_threads(1)  # the other processors have images of their own
        while (found := self._calls.get()) is not None:
            call, tasks = found
            error: BaseException | None = None
            try:
                call()
            except BaseException as wrong:
                error = wrong
            del found, call  # what they hold has been given back when whoever waits for them goes on
            tasks.done.put(error)
            del tasks, error  # no batch is held while the thread waits
