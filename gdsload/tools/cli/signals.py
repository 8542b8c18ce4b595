"""Commands that SIGTERM ends as Ctrl-C does."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["Terminated", "ended_by_signals"]


class Terminated(KeyboardInterrupt):
    """SIGTERM, which ends a command as Ctrl-C does."""


@contextmanager
def ended_by_signals() -> Iterator[Callable[[], None]]:
    """Have SIGTERM raise `Terminated` in here, as Ctrl-C raises KeyboardInterrupt; signals are the main thread's.

    Yields:
        A function that raises it again. Python only prints errors that are raised while an object is finalised, as may
        happen at any time; so the work calls this function now and then.
    """
    struck: list[KeyboardInterrupt] = []

    def again() -> None:
        if struck:
            raise struck[0]

    def strike(number: int, _: object) -> None:
        struck.append(Terminated() if number == signal.SIGTERM else KeyboardInterrupt())
        again()

    before = {}
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM):
            if signal.getsignal(number) not in (signal.SIG_IGN, None):  # as of what a shell script starts by `&`
                before[number] = signal.signal(number, strike)
    try:
        yield again
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
