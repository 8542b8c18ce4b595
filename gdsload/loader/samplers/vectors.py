"""torch's own samplers, drawn from as vectors: each index by itself costs Python as much time as a batch of some KiB.

Generators get the calls that torch's iteration makes, in its order, or one that is as many of them. So the indices are
the same, and so is the state that a generator is left in when so many have been taken. Whether this torch iterates as
these lines say is found out by trying; where it does not, samplers are iterated like any other.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Generator, Iterable, Sized
from itertools import chain
from typing import Any, cast

import numpy as np
import torch
from torch.utils.data import BatchSampler, DistributedSampler, RandomSampler, WeightedRandomSampler

from gdsload.system.arrays import IntArray
from gdsload.system.threads import ProcessLock

__all__ = ["Vectors", "as_in_torch", "vectors_of"]

Drawn = Generator[torch.Tensor, int, None]
_NOTHING = torch.empty(0, dtype=torch.int64, device="cpu")
_REPLACED_AT_ONCE = 32
"""As in torch: a generator's state depends on it."""
_WIDE = (2**32 - 1) // 20
"""Permutations from this many elements on are drawn of 64-bit numbers (torch's `randperm_out_cpu`)."""

_trying = ProcessLock()  # torch's global state is used meanwhile, and put back


class Vectors:
    """Indices out of vectors that are drawn one after the other, none before it is needed.

    Args:
        draw: makes the vectors, which are sent how many indices are wanted, and may take that into account.
        sampler: what they are of.

    Attributes:
        generator: what the next vector is drawn from; None: torch's global one, or another one from the first draw on.
        before_end: its state before it was found that there are no more; None as long as that was not. torch may draw
            once more then, for nothing, which those who leave an epoch early never get to.
    """

    def __init__(self, draw: Callable[[Any, Vectors], Drawn], sampler: object) -> None:
        self.generator: torch.Generator | None = getattr(sampler, "generator", None)
        self.before_end: torch.Tensor | None = None
        self._drawn = draw(sampler, self)
        next(self._drawn)  # to where it takes a number: nothing is drawn before
        # An array, as every call of torch's gives the interpreter lock away, and waits for it.
        self._rest = np.empty(0, np.int64)

    def take(self, count: int) -> tuple[IntArray, Exception | None]:
        """Up to `count` indices, fewer at the end only, and the error raised after them."""
        parts, missing, error = [self._rest[:count]], count - len(self._rest), None
        self._rest = self._rest[count:]
        try:
            while missing > 0:
                if self.before_end is None and self.generator is not None:
                    self.before_end = self.generator.get_state()
                drawn: IntArray = self._drawn.send(missing).cpu().numpy()  # the default device may be another
                if len(drawn):
                    self.before_end = None
                if len(drawn) > missing:
                    self._rest = drawn[missing:]
                    drawn = drawn[:missing]
                parts.append(drawn)
                missing -= len(drawn)
        except StopIteration:
            pass
        except Exception as wrong:
            error = wrong
        return (np.concatenate(parts) if len(parts[0]) < count else parts[0]), error


def vectors_of(sampler: object) -> Vectors | None:
    """Vectors of the indices that a sampler, or a `BatchSampler` of it, gives; None if it has to be iterated."""
    if type(sampler) is BatchSampler and type(sampler.batch_size) is int:
        sampler = sampler.sampler
    if type(sampler) not in _DRAWN or not as_in_torch():
        return None
    if type(sampler) is DistributedSampler and not _fits(sampler):
        return None
    return Vectors(_DRAWN[type(sampler)], sampler)


def _random(sampler: RandomSampler, vectors: Vectors) -> Drawn:
    count = yield _NOTHING
    high = len(sampler.data_source)
    if vectors.generator is None:
        vectors.generator = torch.Generator().manual_seed(int(torch.empty((), dtype=torch.int64).random_().item()))
    wanted, once = sampler.num_samples, _REPLACED_AT_ONCE
    if not sampler.replacement:
        for _ in range(wanted // high):
            yield torch.randperm(high, generator=vectors.generator)
        if wanted % high or not _pass_over(high, vectors.generator):
            yield torch.randperm(high, generator=vectors.generator)[: wanted % high]
        return
    # The CPU's generator draws a vector of several times as many as it draws so many vectors.
    many = vectors.generator.device.type == "cpu"
    left = wanted // once * once
    while left:
        size = min(-(-count // once) * once if many else once, left)
        left -= size
        count = yield torch.randint(high=high, size=(size,), dtype=torch.int64, generator=vectors.generator)
    yield torch.randint(high=high, size=(wanted % once,), dtype=torch.int64, generator=vectors.generator)


def _pass_over(count: int, generator: torch.Generator) -> bool:
    """Leave a generator as a permutation of so many would: torch draws one after the last index, and uses none of it.

    That takes several times as long as the numbers alone: one of 32 bits for each element but one.

    Returns:
        Whether it was done. It cannot be for a GPU's generator, nor for permutations that take longer numbers.
    """
    if generator.device.type != "cpu" or count >= _WIDE:
        return False
    torch.empty(count - 1, dtype=torch.uint8, device="cpu").random_(generator=generator)
    return True


def _weighted(sampler: WeightedRandomSampler, vectors: Vectors) -> Drawn:
    yield _NOTHING
    yield torch.multinomial(sampler.weights, sampler.num_samples, sampler.replacement, generator=vectors.generator)


def _fits(sampler: DistributedSampler[Any]) -> bool:
    """Return whether the dataset is as long as the sampler expects; torch raises an error if not."""
    count, total = len(cast("Sized", sampler.dataset)), sampler.total_size
    return count >= total if sampler.drop_last else count <= total and bool(count or not total)


def _distributed(sampler: DistributedSampler[Any], _vectors: Vectors) -> Drawn:
    yield _NOTHING
    count, total = len(cast("Sized", sampler.dataset)), sampler.total_size
    if sampler.shuffle:
        indices = torch.randperm(count, generator=torch.Generator().manual_seed(sampler.seed + sampler.epoch))
    else:
        indices = torch.arange(count, dtype=torch.int64)
    if total > count:  # the first ones once more, as often as it takes
        indices = indices.repeat(-(-total // count))
    yield indices[:total][sampler.rank :: sampler.num_replicas]


_DRAWN: dict[type, Any] = {
    RandomSampler: _random,
    WeightedRandomSampler: _weighted,
    DistributedSampler: _distributed,
}


@functools.cache
def as_in_torch() -> bool:
    """Return whether small samplers give torch's indices, and leave torch's states."""
    with _trying.here(), torch.random.fork_rng(devices=[]):
        return all(_agrees(number) for number in range(len(_tiny(None))))


def _tiny(generator: torch.Generator | None) -> list[Any]:
    """Samplers that go through every line."""
    every: Any = range(40)
    drawn = [
        RandomSampler(every, replacement, wanted, generator)
        for replacement in (False, True)
        for wanted in (None, 7, 40, 64, 90)
    ]
    weighted = [WeightedRandomSampler([1.0, 2.0, 3.0], 5, generator=generator)]
    batches = [BatchSampler(RandomSampler(every, False, 90, generator), 7, drop_last) for drop_last in (False, True)]
    few: Any = range(2)
    shares: list[Any] = [
        DistributedSampler(data, 3, rank, shuffle, 4, drop_last)
        for data in (few, every)
        for rank in (0, 2)
        for shuffle in (True, False)
        for drop_last in (True, False)
    ]
    return [*drawn, *weighted, *batches, *shares]


def _agrees(number: int) -> bool:
    for seeded in (True, False):
        found = []
        for vectors in (False, True):
            generator = torch.Generator().manual_seed(number) if seeded else None
            torch.default_generator.manual_seed(number)  # of the CPU alone
            sampler = _tiny(generator)[number]
            indices = _all(sampler) if vectors else [*_flat(sampler)]
            found.append((indices, (torch.get_rng_state() if generator is None else generator.get_state()).tolist()))
        if found[0] != found[1]:
            return False
    return True


def _all(sampler: Any) -> list[int]:
    batched = isinstance(sampler, BatchSampler)
    inner: Any = sampler.sampler if batched else sampler
    vectors = Vectors(_DRAWN[type(inner)], inner)
    parts = [vectors.take(size)[0] for size in (1, 50, 7, 10**6)]
    given: list[int] = np.concatenate(parts).tolist()
    return given[: len(given) // sampler.batch_size * sampler.batch_size] if batched and sampler.drop_last else given


def _flat(sampler: Any) -> Iterable[int]:
    return chain.from_iterable(sampler) if isinstance(sampler, BatchSampler) else sampler
