"""Closes what an owner has left open that was dropped: an epoch that was left by `break`, a loader, a dataset."""

from __future__ import annotations

import _thread
import gc
import logging
import os
import sys
import weakref
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from itertools import count
from operator import methodcaller
from typing import Any

from gdsload.system.pool import Pool, end_at_exit

_log = logging.getLogger("gdsload")


class _Ref(weakref.ref[Any]):
    """A reference whose `begin` is called when the object is freed: by `methodcaller`, in C."""

    __slots__ = ("begin",)
    begin: Callable[[], int]


class Closer:
    """Closes what an owner has left open, in a separate thread, once the owner has been dropped.

    An owner may be dropped in any thread at any point, which may hold any lock. So nothing is done there but to start a
    thread; and that in C, as Python forgets a Ctrl-C that is raised there.

    Args:
        owner: once it is dropped, what it left is no longer wanted.
        close: releases what it left; may be called twice, and must not refer to the owner.
    """

    def __init__(self, owner: object, close: Callable[[], None]) -> None:
        for closer in _closers.copy():
            if closer.over:
                _closers.discard(closer)
        self.left = [close]  # taken by whichever thread closes
        self._pool = Pool(1, f"gdsload-closer-{next(_numbers)}")
        self._owner = _Ref(owner, methodcaller("begin"))
        # Not `self._begin` alone: `Thread.start`, in it, is Python, and waits for locks.
        self._owner.begin = partial(_thread.start_new_thread, self._begin, ())
        _closers.add(self)
        end_at_exit(self)

    @property
    def dropped(self) -> bool:
        """True if the owner was dropped."""
        return self._owner() is None

    @property
    def over(self) -> bool:
        """True if all is closed, and no thread is still closing."""
        return not self.left and self._pool.ended

    def settle(self) -> None:
        """If the owner was dropped, ensure that all is closed when this returns."""
        if self.dropped:
            self.close()
            self._pool.close()

    def _begin(self) -> None:
        with suppress(RuntimeError):  # settled meanwhile; or the system has no further thread
            self._pool.run([self._close_and_end])

    def _close_and_end(self) -> None:
        self.close()
        self._pool.stop()

    def close(self) -> None:
        """Close, in this thread, unless another one does or has done it."""
        try:
            close = self.left.pop()
        except IndexError:
            return
        try:
            close()
        except KeyboardInterrupt:
            self.left.append(close)
            raise
        except Exception:
            _log.exception("a dropped loader, epoch or dataset could not be closed")

    def detach(self) -> None:
        """Forget what was to be closed; no thread is started then when the owner is dropped."""
        self._owner.begin = int
        self.left.clear()
        _closers.discard(self)

    def end(self) -> None:
        """Settle at the program's end. What is dropped after that ends with the process."""
        self.settle()
        self.detach()


_closers: set[Closer] = set()  # until all is closed, which nothing else may refer to
_numbers = count()


def settle_dropped() -> None:
    """Ensure that all is closed that was dropped."""
    while gone := [closer for closer in _closers.copy() if closer.dropped and not closer.over]:
        for closer in gone:
            closer.settle()


_parents: list[object] = []  # in a forked child, what the parent has to close


def _forked() -> None:
    """Leave to the parent, in a child, what is to be closed.

    Nothing of it is freed: an event of CUDA's that is destroyed in a forked process ends that process.
    """
    cuda = sys.modules.get("torch.cuda")
    if cuda is not None and cuda._is_in_bad_fork():  # noqa: SLF001  (CUDA was in use in the parent)
        gc.freeze()  # or the child's collector would free what the parent's has not come to
    for closer in _closers.copy():
        _parents.extend(closer.left)
        closer.detach()


os.register_at_fork(after_in_child=_forked)
