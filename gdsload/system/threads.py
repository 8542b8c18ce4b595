"""Starting and awaiting threads so that Ctrl-C does no harm, and ending them before the interpreter ends."""

from __future__ import annotations

import _thread
import atexit
import math
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, suppress
from functools import partial
from itertools import count
from operator import methodcaller
from queue import SimpleQueue
from typing import Any, Generic, Protocol, TypeVar

__all__ = [
    "Closer",
    "HasBackgroundThread",
    "ProcessLock",
    "ProgramEnd",
    "WeakList",
    "Worker",
    "call_all",
    "end_all",
    "end_at_exit",
    "note_exit",
    "own_thread",
    "park_at_exit",
    "program_end",
    "settle_dropped",
    "start_all",
    "wait_all",
    "wait_until",
]

T = TypeVar("T")
_TAKEN_DOWN_S = 5.0
"""Seconds: longer than the interpreter takes to be finalized, and no longer than a thread may wait that joins another
one at the very end."""
_LOOK_EVERY_S = 1.0
"""Another waiting thread may have been interrupted while it held the gate."""
_GRACE_S = 2.0
"""How much longer the program's end waits for threads once a wait for them was interrupted. A healthy read ends well
within it; one that hangs for good must not need a Ctrl-C for each place that waits for it."""
_LATE_S = 0.1
"""How long each further wait takes then, of which there may be many: what is healthy ends within it."""


class ProgramEnd:
    """The program's end.

    Attributes:
        began: when the interpreter began to be finalized, in seconds of `time.monotonic`.
        hurried: when a wait for threads was first interrupted.
    """

    began = hurried = math.inf

    def overdue(self) -> bool:
        """Return whether waiting for threads is over."""
        return time.monotonic() > max(self.began, self.hurried) + _GRACE_S


program_end = ProgramEnd()


class Worker(threading.Thread):
    """A daemon thread that can be waited for again after the waiting was interrupted.

    Up to Python 3.12, a `join` that Ctrl-C interrupts marks the thread as ended
    (https://github.com/python/cpython/issues/90882). Memory that the thread still reads would then be unmapped.

    Args:
        target: what the thread does.
        name: what it is called.
    """

    def __init__(self, target: Callable[[], None], name: str) -> None:
        super().__init__(target=target, name=name, daemon=True)
        self._owner: int | None = None  # the process that has started it, which may be a child of the one that made it
        self._over = False
        self._starting = threading.Lock()
        self._gate = threading.Lock()  # free once the work is over
        self._gate.acquire()

    def start_once(self) -> None:
        """Start it, unless it was started."""
        with self._starting:
            if self.ident is None:
                self._owner = os.getpid()
                self.start()

    def run(self) -> None:
        """Do the work."""
        try:
            super().run()
        finally:
            self._over = True
            self._gate.release()

    def wait(self) -> None:
        """Wait for its end; may be called often, and by several threads at once.

        One that is still being started is not waited for: it must find out by itself that it is no longer wanted.

        Raises:
            RuntimeError: in the thread itself.
        """
        if self.ident is None or self._owner != os.getpid():  # after a fork it does not exist
            return
        # Not `current_thread`, which registers threads that it does not know; and identifiers are reused.
        if self.ident == threading.get_ident() and self.is_alive():
            raise RuntimeError("a thread cannot wait for its own end")
        wait_until(lambda: self._over, self._gate)
        self.join()  # it has left the library's code, and only has to be finalized


def wait_until(over: Callable[[], bool], gate: threading.Lock) -> None:
    """Wait until some work is over.

    Args:
        over: whether it is.
        gate: a lock that is released right after that.

    Raises:
        KeyboardInterrupt: on Ctrl-C; and at the program's end if one interrupted such a wait before.
    """
    try:
        while not over():
            late = program_end.overdue() and threading.get_ident() == threading.main_thread().ident
            if gate.acquire(timeout=_LATE_S if late else _LOOK_EVERY_S):
                gate.release()
            elif late:
                raise KeyboardInterrupt
    except BaseException:
        program_end.hurried = min(program_end.hurried, time.monotonic())
        raise


def wait_all(workers: list[Worker]) -> None:
    """Wait for the end of threads, except this one, and drop them.

    Here, explicitly: `threading` runs Python code when a thread's object is freed, and a Ctrl-C raised there is lost.
    """
    for thread in list(workers):
        if thread.ident != threading.get_ident():
            thread.wait()
    workers.clear()


def own_thread() -> bool:
    """Return whether the calling thread is one of the library's."""
    return isinstance(threading.current_thread(), Worker)


class WeakList(Generic[T]):
    """Objects, for as long as they are referenced elsewhere; may be used from any thread.

    Not a WeakSet, which runs Python code when one is freed: a Ctrl-C raised there is lost.
    """

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


class ProcessLock:
    """A lock of each process's own. A fork copies one that a thread holds as it is, and nobody in the child has it."""

    def __init__(self) -> None:
        self._locks: dict[int, AbstractContextManager[object]] = {}

    def here(self) -> AbstractContextManager[object]:
        """This process's lock: itself, as Ctrl-C may strike in a `with` whose entry is Python code, and leave it."""
        return self._locks.setdefault(os.getpid(), threading.RLock())


class HasBackgroundThread(Protocol):
    """An object with a thread that runs on by itself."""

    def end(self) -> None:
        """End the thread and wait for it; may be called twice."""


_endless = WeakList[HasBackgroundThread]()
os.register_at_fork(after_in_child=_endless.clear)  # the threads do not exist there, and locks may be locked for ever


def end_at_exit(owner: HasBackgroundThread) -> None:
    """Have the thread of `owner` ended before the interpreter is finalized.

    A daemon thread that is inside torch or CUDA then would end the process with a crash.
    """
    _endless.add(owner)


def note_exit() -> None:
    """Have `park_at_exit` put threads to sleep from now on."""
    program_end.began = min(program_end.began, time.monotonic())


def park_at_exit() -> None:
    """Have this thread sleep while another one finalizes the interpreter; no lock may be held.

    Only daemon threads are left then. They are killed where they next take the interpreter lock, and torch's state of
    each thread is destroyed without it: now and then that crashes the process. A thread that sleeps is not killed.
    """
    if program_end.began < math.inf and threading.current_thread() is not threading.main_thread():
        time.sleep(_TAKEN_DOWN_S)


def call_all(calls: Iterable[Callable[[], None]]) -> None:
    """Make some calls, each once more if Ctrl-C interrupts it, and raise that after all of them."""
    struck: KeyboardInterrupt | None = None
    for call in calls:
        for _ in range(2):
            try:
                call()
                break
            except KeyboardInterrupt as error:
                struck = error
    if struck is not None:
        raise struck


class _Ref(weakref.ref[Any]):
    """A reference whose `begin` is called when the object is freed: by `methodcaller`, in C."""

    __slots__ = ("begin",)
    begin: Callable[[], int]


class Closer:
    """Closes what an owner has left open, in a separate thread, once the owner has been dropped.

    An owner may be dropped in any thread at any point. Python code that ran there might wait for a lock which that very
    thread holds, and would lose a Ctrl-C that is raised in it. So there is none: the reference's callback is C alone,
    up to the start of a thread.

    This module references the closer, and so what it closes, until all is closed: otherwise a thread might hold the
    last reference, and destroy everything while the interpreter is finalized, when a thread that frees tensors is
    killed and crashes the process.

    Args:
        owner: once it is dropped, what it left is no longer wanted.
        close: releases what it left; may be called twice, and must not refer to the owner.
    """

    def __init__(self, owner: object, close: Callable[[], None]) -> None:
        for number in [number for number, closer in _closers.copy().items() if closer.over]:
            _closers.pop(number, None)
        self._number = next(_numbers)
        self._close: Callable[[], None] | None = close
        self.worker = Worker(partial(_close_dropped, self._number), f"gdsload-closer-{self._number}")
        self._owner = _Ref(owner, _BEGIN)
        # Not the worker itself: `Thread.start` is Python.
        self._owner.begin = partial(_thread.start_new_thread, _start_closing, (self._number,))
        _closers[self._number] = self

    @property
    def dropped(self) -> bool:
        """True if the owner was dropped."""
        return self._owner() is None

    @property
    def over(self) -> bool:
        """True if all is closed, and no thread is still closing."""
        return self._close is None and not self.worker.is_alive()

    def settle(self) -> None:
        """If the owner was dropped, ensure that all is closed when this returns."""
        if self.over or not self.dropped:
            return
        try:
            start_all([self.worker])
        except RuntimeError:  # the system has no further thread, or the program ends (Python 3.12)
            self.close()
        self.worker.wait()

    def close(self) -> None:
        """Close, in this thread."""
        close = self._close  # `detach` may remove it meanwhile
        try:
            if close is not None:
                close()
        finally:
            self._close = None

    def detach(self) -> None:
        """Forget what was to be closed; no thread is started then when the owner is dropped."""
        self._close = None
        self._owner.begin = int
        _closers.pop(self._number, None)


_BEGIN = methodcaller("begin")
_closers: dict[int, Closer] = {}
_numbers = count()
os.register_at_fork(after_in_child=_closers.clear)  # the child must not close what the parent has opened


def _start_closing(number: int) -> None:
    """Close in a thread that can be waited for, unlike the one that C has started for this."""
    if (closer := _closers.get(number)) is not None:
        closer.worker.start_once()


def _close_dropped(number: int) -> None:
    if (closer := _closers.get(number)) is not None:
        closer.close()


def settle_dropped() -> None:
    """Ensure that all is closed that was dropped."""
    while gone := [closer for closer in list(_closers.values()) if closer.dropped and not closer.over]:
        call_all(closer.settle for closer in gone)


@atexit.register
def end_all() -> None:
    """End background threads, and close what was dropped: the last step before the interpreter is finalized."""
    note_exit()
    call_all([*(owner.end for owner in _endless), settle_dropped])
    # What is dropped from now on ends with the process: since Python 3.12, no thread can be started any more.
    call_all(closer.detach for closer in list(_closers.values()))


def start_all(threads: Iterable[Worker]) -> None:
    """Start those threads that were not started. After an interruption it may be called again.

    `Thread.start` waits on a condition, which is Python code. In the main thread a signal's handler may raise in it,
    and leave the condition's lock locked: the new thread then waits for it for ever. So another thread does it, where
    no handler runs; if the caller is interrupted here, the threads start nevertheless.

    Raises:
        RuntimeError: if the system has no further thread.
    """
    waiting, ended = list(threads), SimpleQueue[BaseException | None]()

    def start() -> None:
        try:
            for thread in waiting:
                thread.start_once()
        except BaseException as error:
            ended.put(error)
        else:
            ended.put(None)

    _thread.start_new_thread(start, ())
    if (error := ended.get()) is not None:
        raise error
