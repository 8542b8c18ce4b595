"""Starting threads so that Ctrl-C cannot come between."""

from __future__ import annotations

import _thread
import threading
from collections.abc import Iterable

__all__ = ["start_all"]


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
