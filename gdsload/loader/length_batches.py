"""Batches of samples of like length, planned from the shards' offsets alone.

An epoch is the loader's own order (`gdsload.order`), cut into windows. A window's samples are sorted by length, longest
first, and cut into batches. A step has one batch for each rank, so that the ranks' batches of a step are alike in
length, too. Steps come in a random order. A window has a multiple of the ranks' number of samples, so its batches can
be halved until all ranks have equally many: each window is planned by itself.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import numpy as np
import xxhash

from gdsload.engine.steps import Ordered
from gdsload.errors import OptionError
from gdsload.loader.batch_fields import mean_sample_bytes
from gdsload.loader.samplers import PlannedSampler, WindowPlan
from gdsload.loader.selection import sample_space, select
from gdsload.order import DatasetFacts, Permutation, Purpose, Schedule, derive_key, resolve
from gdsload.order.checks import check_whole
from gdsload.system.arrays import IntArray

__all__ = ["LengthBuckets", "TokenBudget"]

_WINDOW_STEPS = 64
"""Steps of a window: a batch then differs in length by a hundredth or so of what the window does, and steps have that
many places to come at."""
_LEAST_WINDOWS = 4
"""Windows of an epoch, if that leaves each a step: or neighbours in length would be the same in every epoch."""


class _LengthBatches(PlannedSampler):
    """The base of samplers that batch samples by length.

    Args:
        dataset: see `TokenBudget`.
        field: the field whose rows are the length of a sample.
        window: see `TokenBudget`.
        shuffle: see `TokenBudget`.
        seed: see `TokenBudget`.
    """

    def __init__(self, dataset: object, field: str, window: int | None, shuffle: bool | str, seed: int) -> None:
        selected = select(dataset)
        if selected.mixture is not None:
            raise OptionError("a Mix has its own order", remedy="Pass a dataset, a Subset or a ConcatDataset.")
        self.field, self.seed = field, check_whole(seed, "seed", 0, 2**64 - 1)
        self.window = None if window is None else check_whole(window, "window", 1)
        self.lengths = selected.lengths(field)
        mean = mean_sample_bytes(selected, list(selected.schema))
        self.order_options = resolve(shuffle, DatasetFacts(len(selected), mean, int(mean * len(selected))))
        self._space = sample_space(selected, self.order_options)
        self._digest = xxhash.xxh3_128_hexdigest(np.ascontiguousarray(self.lengths).data)
        self._counted: tuple[int, int, int] | None = None

    @property
    def samples(self) -> int:
        """Samples of the dataset."""
        return len(self.lengths)

    @property
    @abstractmethod
    def _typical(self) -> int:
        """The approximate number of samples of a batch."""

    @property
    def _whole(self) -> int:
        """The number of samples for each rank that a window has a multiple of."""
        return 1

    @abstractmethod
    def _next(self, lengths: IntArray) -> IntArray:
        """For each sample of a window, the first sample of the next batch if a batch begins with it.

        Args:
            lengths: of the samples, longest first.
        """

    def identity(self) -> dict[str, Any]:
        """See `PlannedSampler`."""
        return {
            "kind": type(self).__name__,
            "lengths": self._digest,
            "seed": self.seed,
            "window": self.window,
            "order": self.order_options.state(),
        }

    def windows(self, world_size: int) -> int:
        """See `PlannedSampler`."""
        return self._schedule(world_size).steps

    def steps(self, epoch: int, world_size: int) -> int:
        """See `PlannedSampler`. The last answer is kept."""
        if self._counted is None or self._counted[:2] != (epoch, world_size):
            self._counted = epoch, world_size, super().steps(epoch, world_size)
        return self._counted[2]

    def plan(self, epoch: int, window: int, world_size: int) -> WindowPlan:
        """See `PlannedSampler`."""
        order = self._space.order(self.order_options, self.seed, epoch)
        ids = Ordered(order, self._schedule(world_size)).positions(range(window, window + 1))
        if (index := self._space.index) is not None:
            ids = index[ids]
        # Stable, so that samples of one length stay in their random order.
        ids = ids[np.argsort(-self.lengths[ids], kind="stable")]
        bounds = _shared(_cut(self._next(self.lengths[ids])), world_size).reshape(-1, world_size, 2)
        if self.order_options.shuffle != "sequential":
            steps = len(bounds)
            bounds = bounds[Permutation(steps, derive_key(self.seed, epoch, Purpose.BATCHES, window))(0, steps)]
        return WindowPlan(ids, bounds)

    def _schedule(self, world_size: int) -> Schedule:
        unit = world_size * self._whole
        wanted = self.window
        if wanted is None:
            wanted = min(_WINDOW_STEPS * world_size * self._typical, self.samples // _LEAST_WINDOWS)
        return Schedule(self.samples, -(-max(wanted, 1) // unit) * unit, lanes=self.order_options.lanes)


def _cut(following: IntArray) -> IntArray:
    """Batches of a window, from what follows on each sample if it begins one: int64 ``[batches, 2]``."""
    starts, each, count, at = [], following.tolist(), len(following), 0
    while at < count:
        starts.append(at)
        at = each[at]
    edges = np.array([*starts, count], np.int64)
    return np.stack([edges[:-1], edges[1:]], axis=1)


def _shared(batches: IntArray, world_size: int) -> IntArray:
    """Batches, the largest of them halved until ranks can share them out.

    A last window may have fewer samples than there are ranks: then some come twice.
    """
    wanted = -(-len(batches) // world_size) * world_size
    while len(batches) < wanted:
        largest = int(np.argmax(batches[:, 1] - batches[:, 0]))
        low, high = batches[largest].tolist()
        if high - low < 2:
            again = np.arange(wanted - len(batches)) % len(batches)
            return np.concatenate([batches, batches[len(batches) - 1 - again]])
        middle = (low + high + 1) // 2
        batches = np.insert(batches, largest + 1, [[middle, high]], axis=0)
        batches[largest, 1] = middle
    return batches


class TokenBudget(_LengthBatches):
    """Batches of as many samples as fit a budget of tokens, of like length: a `batch_sampler`.

        budget = gdsload.TokenBudget(dataset, "tokens", max_tokens=16_384, seed=1)
        loader = gdsload.DataLoader(dataset, batch_sampler=budget, ragged="padded")

    A sample's length is its number of rows of a ragged field, or bytes of a text: it comes from the shards' offsets,
    and no sample is read. Samples come in the loader's order, and those of a `window` are put into batches by length,
    the longest first, each batch as full as it can be; then batches come in a random order. All that is a pure function
    of these arguments, epoch, rank and world size. A window is planned when it is reached: a loader resumes in the
    middle of an epoch without what came before.

    Ranks share the batches out, as a loader's `ranks` or torch.distributed say. All make the same
    number of steps, and their batches of a step are alike in length. Every sample comes exactly once in an epoch,
    unless the last window has too few for a last step of all ranks: then some samples come twice, fewer than there are
    ranks.

    Args:
        dataset: what the loader gets: a `ShardDataset`, a path to one, or torch's `Subset` or `ConcatDataset`.
        field: the name of a ragged field, or of a text.
        max_tokens: the most tokens of a batch; a sample counts as one at least.
        padded: count every sample as long as the longest of its batch, as ``ragged="padded"`` makes them. Otherwise
            lengths are added up, for the other forms.
        window: samples that are sorted together; more make batches more alike in length, fewer make them more random.
            It is rounded up to a multiple of the world size. None: for some 64 steps, but a quarter of the dataset at
            the most.
        shuffle: as the loader's; False: windows of neighbours, and in them the longest first.
        seed: seed of the shuffle.

    Raises:
        OptionError: if an argument cannot be used, or a sample is longer than `max_tokens`, which the error names.
        GdsloadError: see `ShardDataset.lengths`.
    """

    def __init__(
        self,
        dataset: object,
        field: str,
        max_tokens: int,
        *,
        padded: bool = False,
        window: int | None = None,
        shuffle: bool | str = True,
        seed: int = 0,
    ) -> None:
        self.max_tokens, self.padded = check_whole(max_tokens, "max_tokens", 1), bool(padded)
        super().__init__(dataset, field, window, shuffle, seed)
        self._refuse_longer()

    def _refuse_longer(self) -> None:
        longer = np.flatnonzero(self.lengths > self.max_tokens)
        if len(longer):
            first, others = int(longer[0]), len(longer) - 1
            raise OptionError(
                f"is {self.max_tokens}, but sample {first} has {self.lengths[first]} rows of {self.field!r}"
                + (f", and {others} more have too many" if others else ""),
                option="max_tokens",
                remedy="Raise it, or leave such samples out: pass `dataset.select(np.flatnonzero(dataset.lengths("
                f"{self.field!r}) <= {self.max_tokens}))` to both this and the loader.",
            )

    @property
    def _typical(self) -> int:
        mean = float(self.lengths.mean()) if self.samples else 1.0
        return max(int(self.max_tokens / max(mean, 1.0)), 1)

    def identity(self) -> dict[str, Any]:
        """See `PlannedSampler`."""
        return {**super().identity(), "max_tokens": self.max_tokens, "padded": self.padded}

    def _next(self, lengths: IntArray) -> IntArray:
        counted, here = np.maximum(lengths, 1), np.arange(len(lengths))
        if self.padded:
            room: IntArray = np.minimum(here + self.max_tokens // counted, len(lengths))
            return room
        ends = np.cumsum(counted)
        found: IntArray = np.searchsorted(ends, ends - counted + self.max_tokens, side="right")
        return found

    def __repr__(self) -> str:
        return f"TokenBudget({self.field!r}, max_tokens={self.max_tokens}, padded={self.padded}, seed={self.seed})"


class LengthBuckets(_LengthBatches):
    """Batches of one number of samples, of like length: a `batch_sampler`; otherwise as `TokenBudget`.

    Where ranks share out an epoch's last samples, and at its end, batches may have fewer.

    Args:
        dataset: see `TokenBudget`.
        field: see `TokenBudget`.
        batch_size: samples of a batch of one rank.
        window: see `TokenBudget`; rounded up to whole batches of all ranks.
        shuffle: see `TokenBudget`.
        seed: see `TokenBudget`.

    Raises:
        OptionError: if an argument cannot be used.
        GdsloadError: see `ShardDataset.lengths`.
    """

    def __init__(
        self,
        dataset: object,
        field: str,
        batch_size: int,
        *,
        window: int | None = None,
        shuffle: bool | str = True,
        seed: int = 0,
    ) -> None:
        self.batch_size = check_whole(batch_size, "batch_size", 1)
        super().__init__(dataset, field, window, shuffle, seed)

    @property
    def _typical(self) -> int:
        return self.batch_size

    @property
    def _whole(self) -> int:
        return self.batch_size

    def identity(self) -> dict[str, Any]:
        """See `PlannedSampler`."""
        return {**super().identity(), "batch_size": self.batch_size}

    def _next(self, lengths: IntArray) -> IntArray:
        return np.minimum(np.arange(len(lengths)) + self.batch_size, len(lengths))

    def __repr__(self) -> str:
        return f"LengthBuckets({self.field!r}, batch_size={self.batch_size}, seed={self.seed})"
