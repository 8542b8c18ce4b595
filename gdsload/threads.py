"""Starting and awaiting threads so that Ctrl-C cannot come between, and ending them before the interpreter does."""

from __future__ import annotations

import _thread
import atexit
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Generic, Protocol, TypeVar

__all__ = [
    "Endless",
    "Living",
    "Worker",
    "all_made",
    "end_at_exit",
    "note_exit",
    "own_thread",
    "start_all",
    "stay_at_exit",
    "wait_all",
]

T = TypeVar("T")
_exiting = threading.Event()
"""Set when the interpreter begins to be taken down."""
_TAKEN_DOWN_S = 5.0
"""Longer than that takes, and no longer than somebody may be kept waiting who joins a thread at the very end."""
_LOOK_EVERY_S = 1.0
"""Somebody else may have been interrupted with the gate in his hand."""


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
        if self.ident == threading.get_ident():  # not `current_thread`, which notes threads that it does not know
            raise RuntimeError("a thread cannot wait for its own end")
        if self.ident is None or self._owner != os.getpid():  # after a fork it is not here
            return
        while not self._over:
            if self._gate.acquire(timeout=_LOOK_EVERY_S):
                self._gate.release()
        self.join()  # it has left all of our code, and has only to be taken down


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


class Living(Generic[T]):
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


class Endless(Protocol):
    """What has a thread that goes on by itself."""

    def end(self) -> None:
        """End the thread and wait for it; may be called twice."""


_endless = Living[Endless]()
os.register_at_fork(after_in_child=_endless.clear)  # the threads are not there, and locks may be locked for ever


def end_at_exit(owner: Endless) -> None:
    """Have the thread of `owner` ended before the interpreter is taken down.

    A daemon thread that is inside torch or CUDA then would end the process with a crash.
    """
    _endless.add(owner)


def note_exit() -> None:
    """Have `stay_at_exit` keep threads from now on."""
    _exiting.set()


def stay_at_exit() -> None:
    """Keep this thread while the interpreter is taken down, if that is another thread's doing; no lock may be held.

    Only daemon threads are left then. They are killed where they next want the interpreter lock, and what torch keeps
    for each thread is torn down without it: now and then that ends the process with a crash. Who sleeps is left alone.
    """
    if _exiting.is_set() and threading.current_thread() is not threading.main_thread():
        time.sleep(_TAKEN_DOWN_S)


def all_made(calls: Iterable[Callable[[], None]]) -> None:
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


@atexit.register
def _end_all() -> None:
    all_made(owner.end for owner in _endless)


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
