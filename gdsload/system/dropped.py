"""Closes what an owner has left open that was dropped: an epoch that was left by `break`, a loader, a dataset."""

from __future__ import annotations

import _thread
import logging
import os
import threading
import weakref
from collections.abc import Callable
from itertools import count

from gdsload.system.pool import Pool, done, end_at_exit

__all__ = ["Closer", "settle_dropped"]

_log = logging.getLogger("gdsload")


class Closer:
    """Closes what an owner has left open, in a separate thread, once the owner has been dropped.

    An owner may be dropped in any thread at any point, which may hold any lock. So nothing is done there but to start a
    thread.

    Args:
        owner: once it is dropped, what it left is no longer wanted.
        close: releases what it left; may be called twice, and must not refer to the owner.
    """

    def __init__(self, owner: object, close: Callable[[], None]) -> None:
        for closer in _closers.copy():
            if closer.over:
                _closers.discard(closer)
        self._close: Callable[[], None] | None = close
        self._pool, self._closing = Pool(1, f"gdsload-closer-{next(_numbers)}"), done
        self._lock = threading.RLock()
        # Not `self._begin` alone: `Thread.start`, in it, waits for locks.
        self._owner = weakref.finalize(owner, _thread.start_new_thread, self._begin, ())
        self._owner.atexit = False
        _closers.add(self)
        end_at_exit(self)

    @property
    def dropped(self) -> bool:
        """True if the owner was dropped."""
        return not self._owner.alive

    @property
    def over(self) -> bool:
        """True if all is closed, and no thread is still closing."""
        return self._close is None and self._pool.ended

    def settle(self) -> None:
        """If the owner was dropped, ensure that all is closed when this returns."""
        if self.over or not self.dropped:
            return
        try:
            self._begin()
        except RuntimeError:  # the system has no further thread, or the program ends (Python 3.12)
            self.close()
        self._closing.wait()
        self._pool.close()

    def _begin(self) -> None:
        with self._lock:
            if self._closing is done:
                self._closing = self._pool.run([self._close_and_end])

    def _close_and_end(self) -> None:
        try:
            self.close()
        except Exception:
            _log.exception("what was dropped cannot be closed")
        finally:
            self._pool.stop()

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
        self._owner.detach()
        self._close = None
        _closers.discard(self)

    def end(self) -> None:
        """Settle at the program's end. What is dropped after that ends with the process."""
        self.settle()
        self.detach()


_closers: set[Closer] = set()
_numbers = count()


def settle_dropped() -> None:
    """Ensure that all is closed that was dropped."""
    while gone := [closer for closer in _closers.copy() if closer.dropped and not closer.over]:
        for closer in gone:
            closer.settle()


def _forked() -> None:
    """Forget, in a child, what the parent has to close."""
    for closer in _closers.copy():
        closer.detach()


os.register_at_fork(after_in_child=_forked)
