"""Drawing from a sampler, ahead of the consumer.

Drawing runs Python for each index, so it is done for several batches at once, by the thread that plans.

Invariants:
    1. One thread at a time draws; any other may ask meanwhile how far the consumer is.
    2. A batch is kept until the one after it has been handed out: the consumer may step back by one.
    3. After an error nothing is drawn, whatever it was.

Draws of several loaders, or of two iterators at once, from one generator are undefined.
"""

from __future__ import annotations

import copy
import os
import threading
from collections import deque
from collections.abc import Iterable
from itertools import islice
from typing import Any

import numpy as np
import torch
import xxhash
from torch.utils.data import BatchSampler

from gdsload.errors import OptionError, SampleIndexError
from gdsload.loader.samplers.indices import IndexSource
from gdsload.loader.state import Place
from gdsload.system.arrays import IntArray

_MOST_AT_ONCE = 1024
"""Batches that are drawn at once where a resumed epoch draws again what was handed out."""


class Draws:
    """The batches of one epoch, as a sampler gives them: the engine's `Steps`.

    The first batch is drawn at once, in the thread that makes this: samplers without their own generator draw from
    torch's global one when they begin, and only so is that deterministic.

    Args:
        source: the sampler.
        stateful: the level of it that keeps its state; None if none does.
        mark: the mark that it was resumed from; None if that is not known.
        place: how far the consumer is; that of the step that is first wanted.
        generator: what `left` looks at; None: nothing.
    """

    def __init__(
        self,
        source: IndexSource,
        stateful: Any,
        mark: dict[str, Any] | None,
        place: Place,
        generator: torch.Generator | None = None,
    ) -> None:
        self._source, self._stateful, self._place = source, stateful, place
        self.begin: dict[str, Any] | None = None if mark is None else mark.get("begin")
        """The values that the order depends on; None if they are not known, or there is a state."""
        self._generator, self._owner = generator, os.getpid()
        self._state: torch.Tensor | None = None  # of the generator, after the last draw
        self._seed = None if generator is None else generator.initial_seed()
        self._seeded = False  # whether others have seeded it since the first draw
        self._drawing = threading.RLock()  # held while indices are drawn
        self._lock = threading.RLock()  # for the next three, which change together
        self._first = 0 if stateful is None else place.step
        self._batches: deque[IntArray | BaseException] = deque()  # from _first on
        begun = 0 if stateful is None else {"state": (mark or {}).get("state", 0)}
        self._marks: deque[Any] = deque([begun])  # before each of them, and after the last
        self._largest = 0
        self._over = mark is not None and bool(mark.get("over"))
        self._table = source.table()
        self._taken = 0  # of the table
        self._size, self._drop_last = source.batch_size, source.drop_last
        # A batch sampler of the user's may give batches of any length, whatever it calls its batch size.
        self._full = source.given.batch_size if type(source.given) is BatchSampler else source.batch_size or 0
        self._iterator = iter(source.given if self._table is None and not self._over else ())
        self.reach(place.step)

    @property
    def steps(self) -> int:
        with self._lock:
            return self._first + len(self._batches)

    @property
    def ended(self) -> bool:
        """True if the consumer has got all batches."""
        return self._over and self._place.step >= self.steps

    def reach(self, step: int) -> int:
        with self._drawing:
            while not self._over and self.steps <= step:
                count = min(step + 1 - self.steps, _MOST_AT_ONCE)
                self._draw(count if self._stateful is None else 1)
        return self._largest

    def error(self, step: int) -> BaseException | None:
        with self._lock:
            batch = self._batches[step - self._first]
        return batch if isinstance(batch, BaseException) else None

    def size(self, step: int) -> int:
        return len(self.positions(range(step, step + 1)))

    def positions(self, steps: range) -> IntArray:
        with self._lock:
            known = [self._batches[step - self._first] for step in steps]
        found = []
        for batch in known:
            if isinstance(batch, BaseException):
                raise batch
            found.append(batch)
        return found[0] if len(found) == 1 else np.concatenate(found)

    def mark(self) -> dict[str, Any] | None:
        """The mark of the place after the last batch that was handed out; None if it cannot be resumed there."""
        with self._lock:
            # A sampler that was to repeat itself may have ended too early.
            mark = self._marks[min(self._place.step - self._first, len(self._marks) - 1)]
        if self._stateful is not None:
            return dict(copy.deepcopy(mark))
        return None if self.begin is None else {"begin": self.begin, "digest": mark}

    def left(self) -> int | None:
        """The number of batches handed out of an epoch that is left before its end, once.

        None if it is over, or if others have used or seeded the generator: it stays as they left it.
        """
        if self._generator is None or self._owner != os.getpid():  # a thread that draws is not in a forked process
            return None
        with self._drawing:
            generator, self._generator = self._generator, None
            if self._state is None or not torch.equal(generator.get_state(), self._state):
                return None
            if self._seeded or self._is_seeded(generator):  # and what was drawn ahead came after that
                generator.manual_seed(generator.initial_seed())
                return None
            self.reach(self._place.step)  # to know whether it is over
            return None if self.ended else self._place.step

    def _is_seeded(self, generator: torch.Generator) -> bool:
        """Return whether others have seeded the generator: with another seed, or with nothing drawn from it since."""
        seed = generator.initial_seed()
        return seed != self._seed or torch.equal(generator.get_state(), torch.Generator().manual_seed(seed).get_state())

    def _draw(self, count: int) -> None:
        batches: list[IntArray] = []
        marks = [self._marks[-1]]
        error: BaseException | None = RuntimeError(f"the {self._source.name} was interrupted")
        if self._generator is not None and self._state is not None:
            self._seeded = self._seeded or self._is_seeded(self._generator)
        try:
            batches, error = self._take(count)
            for batch in batches:
                marks.append(self._after(batch, marks[-1]))
        except KeyboardInterrupt:  # Ctrl-C of the consumer, whose thread happens to run this
            raise
        except BaseException as wrong:  # of any kind: in a thread of the loader it would be lost
            error = wrong
        finally:  # after any error, no batch is drawn after a gap
            self._over = self._over or error is not None
            self._keep(batches[: len(marks) - 1], marks[1:], error)
            if self._generator is not None:
                self._state = self._generator.get_state()
            if self._over:
                self._iterator = iter(())  # most hold all their indices, as a list

    def _keep(self, batches: list[IntArray], marks: list[Any], error: BaseException | None) -> None:
        """Note what was drawn, and forget what has been handed out."""
        self._largest = max(self._largest, 0, *map(len, batches))
        with self._lock:
            self._batches += batches
            self._marks += marks
            if error is not None:
                self._batches.append(error)
            while self._first < self._place.step - 1 and len(self._marks) > 1:
                self._first += 1
                self._batches.popleft()
                self._marks.popleft()

    def _after(self, batch: IntArray, before: Any) -> Any:
        """The mark of the place after a batch: the sampler's state and whether it is over, or the digest up to here."""
        if self._stateful is not None:
            state = copy.deepcopy(self._stateful.state_dict())
            # To fill the last batch it was asked for more than it had, and some then stand at the next epoch's begin.
            return {"state": state, "over": True} if len(batch) < self._full else {"state": state}
        return xxhash.xxh3_64_intdigest(batch.data, seed=before)

    def _take(self, count: int) -> tuple[list[IntArray], BaseException | None]:
        """Up to `count` batches, and the error in place of the next one."""
        size = self._size
        wanted = count if size is None else count * size
        given, error = self._pull(wanted)
        self._over = len(given) < wanted
        if size is None:
            return self._checked_one_by_one(given, error)
        if error is not None or (self._over and self._drop_last):
            given = given[: len(given) // size * size]
        cuts = range(0, len(given), size)
        try:
            whole = self._source.checked(given)
        except (OptionError, SampleIndexError):  # which batch it belongs to is found one by one
            return self._checked_one_by_one((given[low : low + size] for low in cuts), error)
        return [whole[low : low + size] for low in cuts], error

    def _pull(self, count: int) -> tuple[Any, BaseException | None]:
        """Up to `count` items of the sampler, and the error that it raised after them."""
        if self._table is not None:
            self._taken += count
            return self._table[self._taken - count : self._taken], None
        given: list[Any] = []
        try:
            given.extend(islice(self._iterator, count))  # keeps what came before an error
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            return given, error
        return given, None

    def _checked_one_by_one(
        self, given: Iterable[Any], error: BaseException | None
    ) -> tuple[list[IntArray], BaseException | None]:
        batches: list[IntArray] = []
        try:
            batches.extend(self._source.checked(batch) for batch in given)  # keeps what came before an error
        except Exception as wrong:
            return batches, wrong
        return batches, error
