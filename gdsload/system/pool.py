"""A pool of threads, the future of the work that it is given, and the end of threads before the interpreter ends.

Not `concurrent.futures`: Ctrl-C can interrupt the consumer inside a condition's Python code, and leave a lock locked
that a thread then waits for. Here all waits are on plain locks, each of which is acquired and released in one step; a
thread that waits looks now and then, as another one may have been interrupted between the two.
"""

from __future__ import annotations

import _thread
import atexit
import math
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Generic, Protocol, TypeVar

from gdsload.errors import BackendUnavailableError, LoaderClosedError

T = TypeVar("T")
Work = Callable[[], object]
_LOOK_EVERY_S = 0.1
"""Seconds between two looks of a thread that waits for a future."""
_START_S = 60.0
"""For as long threads are waited for that the system has said to start: one without memory ends without a word."""
_GRACE_S = 2.0
"""How long the program's end waits for threads after Ctrl-C. A healthy read ends well within it."""
_TAKEN_DOWN_S = 5.0
"""Seconds: longer than the interpreter takes to be finalized, and no longer than a thread may wait that joins another
one at the very end."""


class ProgramEnd:
    """The program's end.

    Attributes:
        began: when the interpreter began to be finalized, in seconds of `time.monotonic`.
        interrupted: whether a consumer, or a wait for threads, was interrupted, then or before.
    """

    began, interrupted = math.inf, False

    def overdue(self) -> bool:
        """Return whether waiting for threads is over."""
        return self.interrupted and time.monotonic() > self.began + _GRACE_S


program_end = ProgramEnd()


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
        """See `Completion.wait`. All has ended when it returns or raises, so that memory may be reused.

        Raises:
            KeyboardInterrupt: on Ctrl-C, when it has not ended; wait again. At the program's end also without one, if
                there was one before.
        """
        try:
            while self._left:
                if self._gate.acquire(timeout=_LOOK_EVERY_S):
                    self._gate.release()
                elif program_end.overdue() and threading.get_ident() == threading.main_thread().ident:
                    raise KeyboardInterrupt
        except BaseException:
            program_end.interrupted = True
            raise
        finally:
            if self._event is not None:
                self._event.synchronize()
        if self._error is not None:
            raise self._error


done = Future(0)
"""The future of no work."""
_here = threading.local()


def own_thread() -> bool:
    """Return whether the calling thread is one of the library's."""
    return getattr(_here, "own", False)


class Pool:
    """Daemon threads that do pieces of work in the order in which they are given. They start with the first one.

    `initializer` is called at the start of each thread, and may limit it to some processors; `finalizer` at its end.
    """

    def __init__(
        self,
        count: int,
        name: str,
        initializer: Callable[[], None] | None = None,
        finalizer: Callable[[], None] | None = None,
    ) -> None:
        self.count, self._name, self._initializer, self._finalizer = count, name, initializer, finalizer
        self._queue: SimpleQueue[tuple[Work, Future] | None] = SimpleQueue()
        # With the future of each thread's work. Not by `join` alone: up to Python 3.12, one that Ctrl-C interrupts
        # marks the thread as ended (https://github.com/python/cpython/issues/90882), and memory that it still reads
        # would be unmapped.
        self._threads: list[tuple[threading.Thread, Future]] = []
        self._lock = threading.RLock()  # a signal's handler may close in the midst of `run`
        self._starting = threading.Lock()
        self._closed = self._started = False
        self._owner = 0  # the process that has the threads

    def run(self, works: Sequence[Work], future: Future | None = None) -> Future:
        """Queue some work, with a future of as many parts; None for a new one.

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
            self.stop()
        return future

    def _start(self) -> None:
        """Start the threads. If Ctrl-C interrupts it, they start nevertheless, and the next call waits for them.

        `Thread.start` waits on a condition, which is Python code. Ctrl-C in it may leave the condition's lock locked,
        and the new thread then waits for it for ever. So another thread does it, in which no signal's handler runs.
        """
        self._owner = os.getpid()
        for number in range(len(self._threads), self.count):
            ended = Future(1)
            thread = threading.Thread(target=self._serve, args=(ended,), name=f"{self._name}-{number}", daemon=True)
            self._threads.append((thread, ended))
        over = SimpleQueue[BaseException | None]()
        _thread.start_new_thread(self._start_all, ([thread for thread, _ in self._threads], over))
        error: BaseException | None = MemoryError("a thread that starts ends at once")  # it could not say so
        with suppress(Empty):
            error = over.get(timeout=_START_S)
        if error is not None:  # the system has no further thread: those that there are do the work
            self._threads = [one for one in self._threads if one[0].ident is not None]
            if not self._threads:
                if not isinstance(error, RuntimeError | MemoryError):
                    raise error
                remedy = "End other programs, or raise the limits of memory and of processes (ulimit -v, ulimit -u)."
                raise BackendUnavailableError(f"no thread can be started: {error}", remedy=remedy) from error
        self._started = True

    def _start_all(self, threads: Sequence[threading.Thread], over: SimpleQueue[BaseException | None]) -> None:
        error: BaseException | None = None
        try:
            with self._starting:
                for thread in threads:
                    if thread.ident is None:
                        thread.start()
        except BaseException as trouble:
            error = trouble
        over.put(error)

    @property
    def ended(self) -> bool:
        """True while no thread runs."""
        return not any(thread.is_alive() for thread, _ in self._threads)

    def stop(self) -> None:
        """Cancel work that was not begun, and have the threads end after the rest, without waiting for that."""
        self._let_go()
        self.cancel()

    def close(self) -> None:
        """Cancel work that was not begun, wait for the rest, and end the threads; may be called twice.

        In one of the threads it waits for the others.
        """
        self.stop()
        self.finish()

    end = close

    def finish(self) -> None:
        """As `close`, but all work is done that was given."""
        self._let_go()
        for thread, ended in list(self._threads) if self._owner == os.getpid() else ():  # none is there after a fork
            # One whose start Ctrl-C has interrupted ends by itself.
            if thread.ident not in (None, threading.get_ident()):
                ended.wait()
                thread.join()  # it has left this module, and only has to be finalized
        self._threads.clear()
        self.cancel()  # as there may have been no thread

    def _let_go(self) -> None:
        with self._lock:
            self._closed = True
        for _ in self._threads:
            self._queue.put(None)

    def cancel(self) -> None:
        """Cancel work that was not begun."""
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

    def _serve(self, ended: Future) -> None:
        _here.own = True
        try:
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
            if self._finalizer is not None:
                self._finalizer()
        finally:
            ended.finish()


class WeakList(Generic[T]):
    """Objects, for as long as they are referenced elsewhere; may be used from any thread, unlike a WeakSet."""

    def __init__(self) -> None:
        self._refs: list[weakref.ref[T]] = []

    def __iter__(self) -> Iterator[T]:
        return iter([found for ref in list(self._refs) if (found := ref()) is not None])

    def add(self, one: T) -> None:
        """Add one."""
        for ref in [ref for ref in self._refs if ref() is None]:
            with suppress(ValueError):  # another thread has removed it
                self._refs.remove(ref)
        self._refs.append(weakref.ref(one))

    def clear(self) -> None:
        """Remove all."""
        self._refs.clear()


class HasBackgroundThread(Protocol):
    """An object with a thread that runs on by itself."""

    def end(self) -> None:
        """End the thread and wait for it; may be called twice."""


_endless = WeakList[HasBackgroundThread]()
os.register_at_fork(after_in_child=_endless.clear)  # the threads do not exist there


def end_at_exit(owner: HasBackgroundThread) -> None:
    """Have the thread of `owner` ended before the interpreter is finalized.

    A daemon thread that is inside torch or CUDA then would end the process with a crash.
    """
    _endless.add(owner)


def park_at_exit() -> None:
    """Have this thread sleep while another one finalizes the interpreter; no lock may be held.

    Only daemon threads are left then. They are killed where they next take the interpreter lock, and torch's state of
    each thread is destroyed without it: now and then that crashes the process. A thread that sleeps is not killed.
    """
    if program_end.began < math.inf and threading.get_ident() != threading.main_thread().ident:
        time.sleep(_TAKEN_DOWN_S)


@atexit.register
def end_all() -> None:
    """End background threads: the last step before the interpreter is finalized."""
    program_end.began = min(program_end.began, time.monotonic())
    trouble: Exception | None = None
    for owner in [*_endless, *_endless]:  # twice: Ctrl-C may interrupt the first time
        try:
            with suppress(KeyboardInterrupt):
                owner.end()
        except Exception as error:
            trouble = error
    if trouble is not None:
        raise trouble
