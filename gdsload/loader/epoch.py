"""One epoch of a loader, as an iterator.

Invariants:
    1. One thread at a time is inside `next`; `close` and `drop` may be called from any thread meanwhile.
    2. The place moves when a batch is handed out, and not before: a run resumed from it gets each batch once.
    3. After an error of a transform, or of damaged samples, the next `next` goes on with the batch after it. Any other
       error ends the epoch, and each later `next` raises it again.
"""

from __future__ import annotations

import copy
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from threading import get_ident
from typing import TYPE_CHECKING, Any

import torch
from torch.autograd import profiler

from gdsload.engine.batch_source import identity
from gdsload.engine.prefetch import Prefetcher
from gdsload.errors import ChecksumError, GdsloadError, LoaderClosedError
from gdsload.loader.state import Place
from gdsload.system.dropped import Closer
from gdsload.system.failed import Failed
from gdsload.system.pool import park_at_exit, program_end
from gdsload.system.spans import span

if TYPE_CHECKING:
    from gdsload.loader.life import Life

_log = logging.getLogger("gdsload")
_SPAN = "enumerate(DataLoader)#Epoch.__next__"
"""The span of torch's iterators, but for the class: profilers know loaders by it."""


class Epoch(Iterator[Any]):
    """Iterates over the batches of one epoch. It reads from its first `next` on: one that is dropped costs nothing.

    Each batch goes through `finish`, with its place and number of samples, in the consumer's thread before it is handed
    out, if there is such a function.
    """

    def __init__(self, owner: Life, finish: Callable[[Any, Place, int], Any] | None) -> None:
        self._owner, self._finish = owner, finish
        self._turn = threading.RLock()
        self.pipeline: Prefetcher | None = None
        self._batches: deque[tuple[Any, int]] = deque()
        self._hand_over: Callable[[Any], Any] = identity  # for these batches
        self._error: BaseException | None = None
        self._failed = False  # whether there was an error of the batch at the place alone
        self._ended_by: Exception | None = None
        self._fetching: int | None = None  # the thread that waits for a group, and may be making it
        self._begun = self._over = False
        self._since = self._waited_s = 0.0
        self._ready = False  # whether the group of the batch was there when it was asked for
        self._given: Any = None  # the event of the clock when the last group was given
        self.place: Place
        """After the last batch handed out; from `begin` on. The loader holds it, and not the epoch: that must end when
        it is dropped."""

    def __iter__(self) -> Epoch:
        return self

    def __len__(self) -> int:
        """Number of batches of the epoch, as of torch's iterators: those handed out included."""
        return self._owner.batches(getattr(self, "place", None))

    def __next__(self) -> Any:
        if torch.compiler.is_compiling():  # a loop that is compiled with the loader in it: there is nothing to compile
            return torch.compiler.disable(self._advance)()
        if profiler._is_profiler_enabled:  # noqa: SLF001  (see `spans.profiled`, whose call takes longer)
            with span(_SPAN):
                return self._advance()
        return self._advance()

    def _advance(self) -> Any:
        entered = time.perf_counter()
        if not self._batches:  # once a group
            park_at_exit()
        if self._over:
            raise self._end()
        if self._fetching is not None and self._fetching == get_ident():
            raise RuntimeError("a transform asked for a batch of the epoch that it makes one of")
        goes_on = False
        try:
            self._owner.check_usable()  # before the lock, which a fork may have left locked
            with self._turn:
                try:
                    return self._next(entered)
                except BaseException as error:
                    goes_on = self._failed  # before another thread has its turn
                    if not goes_on:
                        self._ended_by = _without_frames(error)
                        self._over = True
                    raise
        except BaseException as error:
            if goes_on:
                raise
            self._over = True
            self._ended_by = self._ended_by or _without_frames(error)
            park_at_exit()  # rather than end with an error because the loader was closed meanwhile
            if isinstance(error, KeyboardInterrupt):
                self._stop()
            else:
                self.close()
            raise

    def _stop(self) -> None:
        """End the epoch here after Ctrl-C, without waiting for reads under way, which may hang."""
        program_end.interrupted = True
        if (pipeline := self.pipeline) is not None:
            pipeline.stop()

    def _end(self) -> BaseException:
        """The exception that each `next` of a finished epoch raises."""
        return StopIteration() if self._ended_by is None else copy.copy(self._ended_by)

    def _next(self, entered: float) -> Any:
        if self._over:  # since we waited for our turn
            raise self._end()
        while True:
            if self._failed:  # the batch at the place: it is not tried again
                self._failed = False
                self.place.step += 1
            try:
                finished, size = self._finished(entered)
                break
            except ChecksumError as damage:
                if not (self._failed and self._owner.skips_damage):
                    raise
                problems = "; ".join(map(str, damage.problems))
                _log.warning("the batch of step %d is left out: %s", self.place.step, problems)
        now = time.perf_counter()
        self._owner.stats.delivered(size, self._ready, self._waited_s, now - entered, now - self._since)
        self._since = now
        self.place.step += 1  # last, after any call: where Ctrl-C strikes, the batch has not been handed out
        return finished

    def _finished(self, entered: float) -> tuple[Any, int]:
        """The next batch as it is handed out, and its number of samples."""
        batch, size = self._take(entered)
        try:
            return (batch if self._finish is None else self._finish(batch, self.place, size)), size
        except GdsloadError:
            raise
        except Exception as error:
            self._failed = True
            if isinstance(error, StopIteration):
                raise RuntimeError("transform raised StopIteration, which would have ended the epoch") from error
            raise

    def _take(self, entered: float) -> tuple[Any, int]:
        """The pipeline's batch for the next step, on the consumer's stream, and its number of samples."""
        clock, asked = None, None
        if not self._batches:
            if (clock := self._owner.clock) is not None:
                asked = clock.asked()
            try:
                self._ready = self._fetch(entered)
            except StopIteration:
                if clock is not None:
                    clock.given(self._given, asked)
                raise
        pipeline, hand_over = self.pipeline, self._hand_over  # together: another thread may close us
        try:
            batch, size = self._batches.popleft()
        except IndexError:
            pipeline = None
        if pipeline is None:  # another thread has closed this epoch, and nothing can hand the batch over
            self._owner.check_usable()
            raise StopIteration
        self._waited_s = time.perf_counter() - entered
        batch = hand_over(batch)
        if clock is not None:
            self._given = clock.given(self._given, asked)
        if isinstance(batch, Failed):
            self._failed = True
            batch()
        return batch, size

    def _fetch(self, entered: float) -> bool:
        """Get the next group of batches; whether they were there when they were asked for."""
        if self._error is not None:
            self._fail()
        if self._begun:
            self._owner.check_world(self.place)
        else:
            self._since = entered
            self._begun = True
            self._owner.begin(self)
        pipeline = self.pipeline
        if pipeline is None or self._over:  # another thread has closed us, perhaps before there was a pipeline to close
            self._owner.check_usable()
            raise StopIteration
        self._fetching = get_ident()
        try:
            ready = pipeline.get()
        except LoaderClosedError:
            self._owner.check_usable()
            if self._over:  # this epoch alone was closed, which is no failure
                raise StopIteration from None
            raise
        finally:
            self._fetching = None
        if ready is None:
            self._owner.ended(self)
            raise StopIteration
        # Its place is after these batches.
        self._error = ready.error
        if isinstance(self._error, StopIteration):  # which would look like the end of the epoch
            self._error = RuntimeError("a reader raised StopIteration")
            self._error.__cause__ = ready.error
        self._hand_over = pipeline.source.hand_over(ready.batches)
        self._batches.extend(zip(ready.batches, ready.sizes, strict=True))
        del ready
        if self._error is not None and not self._batches:
            self._fail()
        return pipeline.there

    def _fail(self) -> None:
        """Raise the error whose turn it is."""
        error, self._error = self._error, None
        try:
            if error is not None:
                raise error
        finally:
            del error  # or error, traceback and this frame were a circle, in which all that they refer to would stay

    def reads_from(self, pipeline: Prefetcher) -> Closer:
        """Set the pipeline that the batches come from. Gives what closes it if we are dropped half-way."""
        self._dropped = Closer(self, pipeline.close)
        self.pipeline = pipeline
        return self._dropped

    def close(self) -> None:
        """End the epoch here; may be called twice."""
        self._over = True
        self.drop()

    def drop(self) -> None:
        """Stop reading and release what was read. If the epoch is not over, its next `next` asks the loader why."""
        pipeline, self.pipeline = self.pipeline, None
        self._batches.clear()
        self._hand_over = identity  # it may hold them, too
        self._error = None
        if pipeline is not None:
            pipeline.close()
            self._dropped.detach()


def _without_frames(error: BaseException) -> Exception | None:
    """A copy of the error that ended an epoch; None for its regular end.

    The error itself refers to the frames that it passed through, and so to the batch and to the epoch.
    """
    if isinstance(error, StopIteration):
        return None
    if isinstance(error, Exception):
        with suppress(Exception):  # not every class of errors can be copied
            if type(found := copy.copy(error)) is type(error):
                return found
    return LoaderClosedError(
        f"the epoch ended with {type(error).__name__}{f': {error}' if str(error) else ''}",
        remedy="Iterate over the loader again: `loader.state_dict()` has its place.",
    )
