"""Several datasets to be mixed by weights."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence, Sized
from itertools import islice
from typing import Any, Literal

import torch
from torch.utils.data import ConcatDataset

from gdsload.errors import OptionError, SampleIndexError
from gdsload.loader.dataset import ShardDataset
from gdsload.order import Mixture
from gdsload.order.checks import check_whole

_SHOWN = 8
"""Datasets that are shown as text: classes may be thousands."""


def _names(given: Mapping[str, Any] | Sequence[Any]) -> str:
    return ", ".join(map(repr, given)) if isinstance(given, Mapping) else f"{len(given)} without names"


class Mix(ConcatDataset[dict[str, Any]]):
    """Several datasets that a loader mixes by weights.

        mix = gdsload.Mix({"web": "web/", "code": "code/"}, {"web": 0.7, "code": 0.3}, samples=1_000_000)
        loader = gdsload.DataLoader(mix, batch_size=256, shuffle=True)

    As a dataset it is the concatenation of them: that is what `len`, ``mix[index]`` and the indices of
    ``with_index=True`` count through. The loader draws from them in proportion to their weights: their order is random,
    but after every 4096 samples, and after each epoch, each dataset has given its share of all so far, to within a
    sample or two. A new epoch continues each dataset where it was. A dataset is read to its end before it begins again,
    shuffled again (`shuffle=True` or ``"full"``) or in its own order (`shuffle=False`). So at any time the samples of
    one dataset have come equally often, ± 1. A block shuffle is refused.

    Args:
        datasets: what `gdsload.DataLoader` takes, by name or in order; all with the same fields.
        weights: a number of at least 0 for each of them; only the proportions matter.
        samples: samples of an epoch, all ranks together: a number; None for as many as the datasets have together;
            ``"first_exhausted"``, until the first dataset has been through once; or ``"all_exhausted"``, until all have
            (in later epochs, to within a sample or two).

    Raises:
        OptionError: if an argument cannot be used.
        DatasetNotFoundError, FormatError: see `ShardDataset`.
    """

    def __init__(
        self,
        datasets: Mapping[str, Any] | Sequence[Any],
        weights: Mapping[str, float] | Sequence[float],
        *,
        samples: int | Literal["first_exhausted", "all_exhausted"] | None = None,
    ) -> None:
        if isinstance(datasets, Mapping) != isinstance(weights, Mapping) or (
            isinstance(datasets, Mapping) and isinstance(weights, Mapping) and datasets.keys() != weights.keys()
        ):
            raise OptionError(
                f"datasets and weights do not go together: {_names(datasets)} and {_names(weights)}",
                remedy="Pass two lists of one length, or two dicts with the same names.",
            )
        self.names = tuple(datasets) if isinstance(datasets, Mapping) else tuple(map(str, range(len(datasets))))
        given = [datasets[name] for name in datasets] if isinstance(datasets, Mapping) else list(datasets)
        numbers = [weights[name] for name in datasets] if isinstance(weights, Mapping) else list(weights)
        if not given:
            raise OptionError("there are no datasets to mix", remedy="Pass at least one.")
        try:
            self.weights = tuple(map(float, numbers))
        except (TypeError, ValueError):
            raise OptionError(f"is {numbers!r}, which are no numbers", option="weights") from None
        for part in given:
            if not isinstance(part, str | os.PathLike | Sized):
                raise OptionError(
                    f"{part!r:.100} cannot be mixed: it has no number of samples",
                    remedy="Pass what gdsload.DataLoader takes: a ShardDataset, a path to one, or parts of such.",
                )
        super().__init__([ShardDataset(part) if isinstance(part, str | os.PathLike) else part for part in given])
        lengths = tuple(map(len, self.datasets))  # type: ignore[arg-type]
        if not isinstance(samples, str):
            whole = sum(lengths) if samples is None else check_whole(samples, "samples", 0)
            self.mixture = Mixture(lengths, self.weights, whole)
        elif samples in ("first_exhausted", "all_exhausted"):
            self.mixture = Mixture.until(lengths, self.weights, last=samples == "all_exhausted")
        else:
            ways = 'Pass a number, None, "first_exhausted" or "all_exhausted".'
            raise OptionError(f"is {samples!r}", option="samples", remedy=ways)

    @property
    def samples(self) -> int:
        """Samples of an epoch."""
        return self.mixture.samples

    def locate(self, index: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The datasets that samples come from, and their indices there.

        Args:
            index: indices as ``batch["index"]`` has them, int64 ``[batch]``.

        Returns:
            Numbers of datasets, which `names` has the names of, and indices in them; both int64 ``[batch]``.

        Raises:
            OptionError: if they are no tensor of whole numbers.
            SampleIndexError: if one is less than 0, or beyond the last sample.
        """
        if not isinstance(index, torch.Tensor) or index.is_floating_point() or index.dtype == torch.bool:
            found = f"of {index.dtype}" if isinstance(index, torch.Tensor) else f"a {type(index).__name__}"
            raise OptionError(
                f"is {found}, no tensor of whole numbers", option="index", remedy="Pass `torch.as_tensor(index)`."
            )
        outside = (index < 0) | (index >= len(self))
        if outside.any():
            raise SampleIndexError(f"sample {int(index[outside][0])} does not exist: the Mix has {len(self)}")
        ends = torch.tensor(self.cumulative_sizes, device=index.device)
        dataset = torch.searchsorted(ends, index, right=True)
        return dataset, index - torch.cat([ends.new_zeros(1), ends])[dataset]

    def __repr__(self) -> str:
        found = zip(self.names, self.weights, map(len, self.datasets), strict=True)  # type: ignore[arg-type]
        shown = [f"{name!r}: {weight:g} of {size}" for name, weight, size in islice(found, _SHOWN)]
        shown += [f"{len(self.names) - _SHOWN} more"] if len(self.names) > _SHOWN else []
        return f"Mix({{{', '.join(shown)}}}, samples={self.samples})"
