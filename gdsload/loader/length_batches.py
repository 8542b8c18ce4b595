"""The batch samplers that batch samples by length."""

from __future__ import annotations

from typing import Any

import numpy as np

from gdsload.errors import OptionError
from gdsload.loader.samplers.planned import PlannedSampler
from gdsload.order.checks import check_whole
from gdsload.system.arrays import IntArray


class TokenBudget(PlannedSampler):
    """Batches of as many samples as fit a budget of tokens, of like length: a `batch_sampler`.

        budget = gdsload.TokenBudget(dataset, "tokens", max_tokens=16_384, seed=1)
        loader = gdsload.DataLoader(dataset, batch_sampler=budget, ragged="padded")

    A sample's length is its number of rows of a ragged field, or bytes of a text: it comes from the shards' offsets,
    and no sample is read. Samples come in the loader's order, and those of a `window` are put into batches by length,
    the longest first, each batch as full as it can be; then batches come in a random order. The batches depend only on
    these arguments, the epoch, the rank and the world size. A window is planned when it is reached, so a loader that
    resumes in the middle of an epoch does not plan the windows before it.

    The ranks of the loader's `ranks`, or of torch.distributed, share the batches. All make the same number of steps.
    Their batches of a step are alike in length. Every sample comes exactly once in an epoch, with one exception: if the
    last window has too few samples to give each rank one, some of them come twice.

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


class LengthBuckets(PlannedSampler):
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
