"""A function `epoch -> indices` as the sampler: the order of an epoch, which all ranks share out."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeGuard

import numpy as np
import torch
import xxhash

from gdsload.errors import OptionError, SampleIndexError
from gdsload.system.arrays import IntArray

__all__ = ["IndexFunction", "is_function"]

_REMEDY = "Return a one-dimensional int64 tensor or numpy array, as `torch.randperm(n, generator=...)` gives."


def is_function(sampler: object) -> TypeGuard[Callable[[int], Any]]:
    """Return whether a sampler is called with the epoch's number; what can be iterated is iterated, as in torch."""
    iterated = isinstance(sampler, Iterable) or hasattr(sampler, "__getitem__")
    return callable(sampler) and not iterated and not isinstance(sampler, type)


class IndexFunction:
    """The indices of each epoch, from a function of the user's, which is called once with the epoch's number."""

    def __init__(self, function: Callable[[int], Any], samples: int) -> None:
        self._function, self._samples = function, samples
        self._newest: tuple[int, IntArray] | None = None
        self._counts: dict[int, int] = {}

    def indices(self, epoch: int) -> IntArray:
        """The indices of an epoch; those of the epoch that was asked for last are kept.

        Raises OptionError if the function gives no indices in a tensor or an array, SampleIndexError if one is outside.
        """
        if self._newest is None or self._newest[0] != epoch:
            try:
                given = self._function(epoch)
            except StopIteration as error:  # the epoch would end without a batch
                raise RuntimeError(f"the sampler raised StopIteration for epoch {epoch}") from error
            found = self._checked(given, epoch)
            self._newest, self._counts[epoch] = (epoch, found), len(found)
        return self._newest[1]

    def count(self, epoch: int) -> int:
        """The number of indices of an epoch."""
        if epoch not in self._counts:
            self.indices(epoch)
        return self._counts[epoch]

    def digest(self, epoch: int) -> str:
        """The digest of the indices of an epoch."""
        return xxhash.xxh3_128_hexdigest(self.indices(epoch).data)

    def _checked(self, given: Any, epoch: int) -> IntArray:
        where = f"gave, for epoch {epoch},"
        if not isinstance(given, torch.Tensor | np.ndarray):
            message = f"{where} a {type(given).__name__}, not indices in a tensor"
            raise OptionError(message, option="sampler", remedy=_REMEDY)
        if given.dtype in (torch.bool, np.bool_):
            remedy = "Return the indices of what is true: `mask.nonzero().flatten()`."
            raise OptionError(f"{where} a mask", option="sampler", remedy=remedy)
        values = given.detach().cpu().numpy() if isinstance(given, torch.Tensor) else given
        if values.ndim != 1 or (len(values) and values.dtype.kind not in "iu"):
            kind = f"a {type(given).__name__} of {given.dtype} and shape {tuple(given.shape)}"
            raise OptionError(f"{where} {kind}, not a row of whole numbers", option="sampler", remedy=_REMEDY)
        if len(values) and not (values.min() >= 0 and values.max() < self._samples):
            place = int(np.argmax((values < 0) | (values >= self._samples)))
            raise SampleIndexError(
                f"{where} index {values[place]} at place {place}, but the dataset has samples 0 to {self._samples - 1}",
                option="sampler",
                remedy="Return indices of the dataset that the loader was given, counted from 0.",
            )
        found = values.astype(np.int64)  # a copy: the function may fill one tensor for each epoch
        found.flags.writeable = False
        return found
