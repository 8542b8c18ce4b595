"""Groups of batches: started together, finished together, made one by one if that fails."""

from __future__ import annotations

import logging
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

import torch

from gdsload.engine.batch_source import BatchSource, PendingBatches, Ready, make_now
from gdsload.engine.stats import Observer
from gdsload.errors import ChecksumError, GdsloadError, LoaderClosedError
from gdsload.system.driver import DriverError
from gdsload.system.failed import Failed
from gdsload.system.pool import own_thread

_log = logging.getLogger("gdsload")
_EXPECTED = (GdsloadError, torch.OutOfMemoryError, torch.AcceleratorError, DriverError, MemoryError, OSError)
"""Kinds of errors that files, devices and too little memory cause. Any other is logged with its traceback."""


class Group:
    """Consecutive batches that are made together, and put into `ready` when they are complete, once."""

    def __init__(self, steps: range) -> None:
        self.steps = steps
        self.ready = SimpleQueue[Ready]()
        self._pending: PendingBatches | None = None
        self._error: Exception | None = None

    def start(self, source: BatchSource) -> None:
        """Start making them. An error is raised again in `make`."""
        try:
            self._pending = source.start(self.steps)
        except Exception as error:
            self._error = error

    def landed(self) -> bool:
        """Return whether all their bytes have landed."""
        try:
            return self._pending is None or self._pending.landed()
        except Exception:
            # The caller is planning and could not report it: it is raised again in `make`.
            return True

    def make(self, source: BatchSource, stopped: Callable[[], bool], observer: Observer) -> bool:
        """Make them when their bytes are there, and put them where the consumer waits; returns whether none failed.

        After an error, batches are made one by one, so that it is raised at the batch it belongs to. If it does not
        occur again, the epoch goes on after errors of the expected kinds, as a file or a device may have failed for a
        moment; any other error is raised nevertheless.
        """
        interrupted = LoaderClosedError("the making of a batch was interrupted")
        ready = Ready([], [], interrupted)
        try:
            found = self._result(stopped)
            if isinstance(found, Ready):
                ready = found
            else:
                observer.retried(self.steps, found)
                ready = self._one_by_one(source, stopped, found)
        except BaseException as error:
            if not own_thread():  # it is the consumer's own
                raise
            interrupted.__cause__ = error
        finally:
            # In any case: the consumer would wait for ever for a group that never gets ready.
            self._pending = self._error = None
            made = ready.error is None
            self.ready.put(ready)
            del ready, interrupted  # with the error's traceback they were a circle, in which all of this would stay
        return made

    def drop(self) -> None:
        """Release what is held for them, as they are no longer wanted."""
        if self._pending is not None:
            self._pending.drop()
        self.forsake()

    def forsake(self) -> None:
        """Give the waiting consumer an error: nobody will make these batches any more."""
        self.ready.put(Ready([], [], LoaderClosedError("the loader was closed")))

    def _result(self, stopped: Callable[[], bool]) -> Ready | Exception:
        if self._pending is None:
            return self._error or RuntimeError("a group of batches was not started")
        try:
            return self._pending.result(stopped)
        except Exception as error:  # not Ctrl-C: its user does not want to wait for reads that may hang
            self._pending.drop()
            return error

    def _one_by_one(self, source: BatchSource, stopped: Callable[[], bool], error: Exception) -> Ready:
        """The batches up to the one that an error belongs to."""
        expected = isinstance(error, _EXPECTED)
        if not expected:
            _log.error("batches of steps %d to %d cannot be made", self.steps[0], self.steps[-1], exc_info=error)
        ready = _each(self.steps, source.again(), stopped)
        if ready.error is not None:
            return ready
        if not expected:
            return Ready([], [], error)
        if not isinstance(error, ChecksumError):
            _log.warning("batches that could not be made at first were made one by one: %s", error)
        return ready


def _each(steps: range, source: BatchSource, stopped: Callable[[], bool]) -> Ready:
    """Batches that are made one by one, up to the first error; one of damaged samples is `Failed`."""
    batches: list[Any] = []
    sizes: list[int] = []
    try:
        for step in steps:
            if stopped():
                return Ready(batches, sizes, LoaderClosedError("the loader was closed"))
            try:
                ready = make_now(source, step, stopped)
            except ChecksumError as damage:  # of this batch: the epoch goes on after it
                # Without its frames, which hold the source: nobody may ever ask for the batch.
                ready = Ready([Failed(damage.with_traceback(None))], [0])
            batches += ready.batches
            sizes += ready.sizes
            if ready.error is not None:
                return Ready(batches, sizes, ready.error)
    except Exception as wrong:
        return Ready(batches, sizes, wrong)
    finally:
        source.close()
    return Ready(batches, sizes)
