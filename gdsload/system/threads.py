"""Starting and awaiting threads so that Ctrl-C cannot come between, and ending them before the interpreter does."""

from __future__ import annotations

import _thread
import atexit
import math
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from itertools import count
from operator import methodcaller
from typing import Any, Generic, Protocol, TypeVar

__all__ = [
    "Closer",
    "HasBackgroundThread",
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
"""Longer than the interpreter takes to be taken down, and no longer than somebody may be kept waiting who joins a
thread at the very end."""
_LOOK_EVERY_S = 1.0
"""Somebody else may have been interrupted with the gate in his hand."""
_GRACE_S = 2.0
"""How much longer the program's end waits for threads once a wait for them was interrupted. A healthy read ends well
within it; one that hangs for good must not take a Ctrl-C for each place that waits for it."""


class ProgramEnd:
    """The program's end.

    Attributes:
        began: when the interpreter began to be taken down, in seconds of `time.monotonic`.
        hurried: when a wait for threads was first interrupted.
    """

    began = hurried = math.inf

    def overdue(self) -> bool:
        """Whether nobody is to be waited for any longer."""
        return time.monotonic() > max(self.began, self.hurried) + _GRACE_S


program_end = ProgramEnd()


class Worker(threading.Thread):
    """A daemon thread that can be waited for again after the waiting was interrupted.

    Up to Python 3.12, a `join` in which Ctrl-C strikes takes the thread for dead from then on
    (https://github.com/python/cpython/issues/90882). Whoever believes that unmaps what the thread still reads.

    Args:
        target: what the thread does.
        name: what it is called.
    """

    def __init__(self, target: Callable[[], None], name: str) -> None:
        super().__init__(target=target, name=name, daemon=True)
        self._owner = os.getpid()
        self._over = False
        self._starting = threading.Lock()
        self._gate = threading.Lock()  # free once the work is over
        self._gate.acquire()

    def start_once(self) -> None:
        """Start it, unless that was done."""
        with self._starting:
            if self.ident is None:
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

        One that is still being started is not waited for: it must find out by itself that nobody wants it any more.

        Raises:
            RuntimeError: in the thread itself.
        """
        if self.ident is None or self._owner != os.getpid():  # after a fork it is not here
            return
        # Not `current_thread`, which notes threads that it does not know; and numbers are given again.
        if self.ident == threading.get_ident() and self.is_alive():
            raise RuntimeError("a thread cannot wait for its own end")
        wait_until(lambda: self._over, self._gate)
        self.join()  # it has left all of our code, and has only to be taken down


def wait_until(over: Callable[[], bool], gate: threading.Lock) -> None:
    """Wait until some work is over.

    Args:
        over: whether it is.
        gate: a lock that is given back right after that.

    Raises:
        KeyboardInterrupt: if Ctrl-C strikes; and at the program's end if it has struck in such a wait before.
    """
    try:
        while not over():
            if gate.acquire(timeout=_LOOK_EVERY_S):
                gate.release()
            elif program_end.overdue() and threading.get_ident() == threading.main_thread().ident:
                raise KeyboardInterrupt
    except BaseException:
        program_end.hurried = min(program_end.hurried, time.monotonic())
        raise


def wait_all(workers: list[Worker]) -> None:
    """Wait for the end of threads, except this one, and drop them.

    Here and now: `threading` is told in Python when a thread's object goes, and Ctrl-C that strikes there is forgotten.
    """
    for thread in list(workers):
        if thread.ident != threading.get_ident():
            thread.wait()
    workers.clear()


def own_thread() -> bool:
    """Whether this is a thread of the library's."""
    return isinstance(threading.current_thread(), Worker)


class WeakList(Generic[T]):
    """Objects, for as long as somebody else holds them; may be used from any thread.

    Not a WeakSet, which is told of each one's end in Python: Ctrl-C that strikes there is forgotten.
    """

    def __init__(self) -> None:
        self._refs: list[weakref.ref[T]] = []

    def __iter__(self) -> Iterator[T]:
        return iter([found for ref in list(self._refs) if (found := ref()) is not None])

    def add(self, one: T) -> None:
        """Note one."""
        for ref in [ref for ref in self._refs if ref() is None]:
            with suppress(ValueError):  # another thread was quicker
                self._refs.remove(ref)
        self._refs.append(weakref.ref(one))

    def clear(self) -> None:
        """Forget all."""
        self._refs.clear()


class HasBackgroundThread(Protocol):
    """What has a thread that goes on by itself."""

    def end(self) -> None:
        """End the thread and wait for it; may be called twice."""


_endless = WeakList[HasBackgroundThread]()
os.register_at_fork(after_in_child=_endless.clear)  # the threads are not there, and locks may be locked for ever


def end_at_exit(owner: HasBackgroundThread) -> None:
    """Have the thread of `owner` ended before the interpreter is taken down.

    A daemon thread that is inside torch or CUDA then would end the process with a crash.
    """
    _endless.add(owner)


def note_exit() -> None:
    """Have `park_at_exit` keep threads from now on."""
    program_end.began = min(program_end.began, time.monotonic())


def park_at_exit() -> None:
    """Keep this thread while the interpreter is taken down, if that is another thread's doing; no lock may be held.

    Only daemon threads are left then. They are killed where they next want the interpreter lock, and what torch keeps
    for each thread is torn down without it: now and then that ends the process with a crash. Who sleeps is left alone.
    """
    if program_end.began < math.inf and threading.current_thread() is not threading.main_thread():
        time.sleep(_TAKEN_DOWN_S)


def call_all(calls: Iterable[Callable[[], None]]) -> None:
    """Make some calls, each once more if Ctrl-C strikes in it, and raise that behind them all."""
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
    """Calls what is its `begin` when the object goes: by `methodcaller`, in C."""

    __slots__ = ("begin",)
    begin: Callable[[], int]


class Closer:
    """Closes what an owner has left, in a thread of its own, once the owner has been dropped.

    An owner may be dropped in any thread at any point. Python code that ran there might wait for a lock which that very
    thread holds, and would forget a Ctrl-C that strikes in it. So there is none: the reference's callback is C, all of
    it, up to the start of a thread.

    The closer is kept here until all is closed, and what it closes with it: otherwise a worker might hold the last
    reference, and destroy it all while the interpreter is taken down, when a thread that wants to hold on to tensors is
    killed and takes the process along.

    Args:
        owner: whoever drops it wants nothing of the rest any more.
        close: gives the rest back; may be called twice, and must not refer to the owner.
    """

    def __init__(self, owner: object, close: Callable[[], None]) -> None:
        for number in [number for number, closer in _closers.copy().items() if closer.over]:
            _closers.pop(number, None)
        self._number = next(_numbers)
        self._close: Callable[[], None] | None = close
        self._worker = Worker(partial(_close_dropped, self._number), f"gdsload-closer-{self._number}")
        self._owner = _Ref(owner, _BEGIN)
        # Not the worker itself: `Thread.start` is Python.
        self._owner.begin = partial(_thread.start_new_thread, _start_closing, (self._number,))
        _closers[self._number] = self

    @property
    def dropped(self) -> bool:
        """Whether the owner is gone."""
        return self._owner() is None

    @property
    def over(self) -> bool:
        """Whether all is closed, and nobody is at it any more."""
        return self._close is None and not self._worker.is_alive()

    def start(self) -> None:
        """Close in a thread that can be waited for, unlike one that C has started."""
        self._worker.start_once()

    def settle(self) -> None:
        """If the owner was dropped, see to it that all is closed when this returns."""
        if not self.dropped:
            return
        try:
            start_all([self._worker])
        except RuntimeError:  # the system has no further thread, or the program ends (Python 3.12)
            self.close()
        self._worker.wait()

    def close(self) -> None:
        """Close, here and now."""
        close = self._close  # `detach` may take it away meanwhile
        try:
            if close is not None:
                close()
        finally:
            self._close = None

    def detach(self) -> None:
        """Nothing is to be closed any more."""
        self._close = None
        _closers.pop(self._number, None)


_BEGIN = methodcaller("begin")
_closers: dict[int, Closer] = {}
_numbers = count()
os.register_at_fork(after_in_child=_closers.clear)  # what the parent has opened is not for the child to close


def _start_closing(number: int) -> None:
    if (closer := _closers.get(number)) is not None:
        closer.start()


def _close_dropped(number: int) -> None:
    if (closer := _closers.get(number)) is not None:
        closer.close()


def settle_dropped() -> None:
    """See to it that all is closed that was dropped."""
    while gone := [closer for closer in list(_closers.values()) if closer.dropped and not closer.over]:
        call_all(closer.settle for closer in gone)


@atexit.register
def end_all() -> None:
    """End what goes on by itself, and close what was dropped: the last that is done before the interpreter goes."""
    note_exit()
    call_all([*(owner.end for owner in _endless), settle_dropped, _closers.clear])


def start_all(threads: Iterable[Worker]) -> None:
    """Start threads, those that were not started. Whoever was interrupted in it may do it again.

    `Thread.start` waits on a condition, which is Python code. An exception of a signal's handler may strike in it, in
    the main thread, and leave the condition's lock locked: the new thread then waits for it for ever. So another thread
    does it, where no handler runs; and whoever is interrupted here leaves threads behind that start all the same.

    Raises:
        RuntimeError: if the system has no further thread.
    """
    gate, errors = threading.Lock(), list[BaseException]()
    waiting = list(threads)

    def start() -> None:
        try:
            for thread in waiting:
                thread.start_once()
        except BaseException as error:
            errors.append(error)
        finally:
            gate.release()

    gate.acquire()
    _thread.start_new_thread(start, ())
    with gate:
        pass
    if errors:
        raise errors[0]
