"""Commands that SIGTERM ends as Ctrl-C does."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

__all__ = ["Terminated", "ended_by_sigterm"]


class Terminated(KeyboardInterrupt):
    """SIGTERM, which ends a command as Ctrl-C does."""


@contextmanager
def ended_by_sigterm() -> Iterator[None]:
    """Have SIGTERM raise `Terminated` in here, unless it is ignored; signals are the main thread's."""

    def end(_number: int, _frame: object) -> NoReturn:
        raise Terminated

    before = signal.getsignal(signal.SIGTERM)
    if threading.current_thread() is not threading.main_thread() or before in (signal.SIG_IGN, None):
        yield
        return
    signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
