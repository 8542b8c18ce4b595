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

__all__ = ["Endless", "Living", "Once", "Worker", "end_at_exit", "note_exit", "start_all", "stay_at_exit"]

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
        self._gate = threading.Lock()  # free once the work is over
        self._gate.acquire()

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
        if self is threading.current_thread():
            raise RuntimeError("a thread cannot wait for its own end")
        if self.ident is None or self._owner != os.getpid():  # after a fork it is not here
            return
        while not self._over:
            if self._gate.acquire(timeout=_LOOK_EVERY_S):
                self._gate.release()
        self.join()  # it has left all of our code, and has only to be taken down


class Once:
    """A call that is made once and whole, however often it is asked for and whatever strikes who asks for it.

    Another thread makes it, where no handler of a signal runs: Ctrl-C ends the waiting alone, and whoever asks again
    waits for the same call.

    Args:
        call: what is to be done.
    """

    def __init__(self, call: Callable[[], None]) -> None:
        self._call: Callable[[], None] | None = call
        self._begun = False
        self._lock = threading.Lock()
        self._error: BaseException | None = None

    def __call__(self) -> None:
        """Have it done, and wait for it. What it raises is raised to the first who has waited for it to the end."""
        if self._call is not None:
            with self.begin():
                pass
        error, self._error = self._error, None
        if error is not None:
            raise error

    def here(self) -> None:
        """Do it in this thread, unless somebody is at it: for who must not wait for another thread."""
        if self._begun:
            return
        call, self._call = self._call, None
        if call is not None:
            call()

    def begin(self) -> threading.Lock:
        """Have it done: a lock that is free once it is."""
        gate = threading.Lock()
        gate.acquire()
        self._begun = True
        try:
            _thread.start_new_thread(self._make, (gate,))
        except RuntimeError:  # the system has no further thread, or the interpreter is being taken down
            self._make(gate)
        return gate

    def _make(self, gate: threading.Lock) -> None:
        try:
            with self._lock:
                if (call := self._call) is not None:
                    try:
                        call()
                    except BaseException as error:
                        self._error = error
                    self._call = None
        finally:
            gate.release()


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


_endless = Living["Endless"]()
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


@atexit.register
def _end_all() -> None:
    for owner in _endless:
        owner.end()


def start_all(threads: Iterable[threading.Thread]) -> None:
    """Start threads.

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
                thread.start()
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
