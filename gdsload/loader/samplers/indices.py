"""The source of indices, a sampler or a function of the epoch, and indices of any kind as arrays."""

from __future__ import annotations

import array
import operator
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeGuard

import numpy as np
import torch
import xxhash

from gdsload.errors import OptionError, SampleIndexError
from gdsload.loader.samplers.planned import PlannedSampler
from gdsload.loader.wanted import is_mask
from gdsload.system.arrays import IntArray

_REMEDY = "Return a one-dimensional int64 tensor or numpy array, as `torch.randperm(n, generator=...)` gives."


@dataclass(frozen=True, slots=True)
class IndexSource:
    """The source of sample indices: a sampler or a batch sampler.

    Attributes:
        given: the user's sampler, or batch sampler; iterated again for each epoch.
        batch_size: samples of a batch; None if `given` gives batches.
        drop_last: leave out the last batch if it is not full.
        samples: samples of the dataset.

    Raises:
        OptionError: if `given` cannot be iterated, or is a tensor that holds no indices.
        SampleIndexError: if it is a tensor with an index of more than 64 bits.
    """

    given: Any
    batch_size: int | None
    drop_last: bool
    samples: int

    def __post_init__(self) -> None:
        if not (isinstance(self.given, Iterable) or hasattr(self.given, "__getitem__")):
            remedy = "Pass a function as `sampler`." if is_function(self.given) else "Pass what can be iterated."
            raise OptionError(f"is {self.given!r}", option=self.name, remedy=remedy)
        try:
            self.table()
        except TypeError:
            remedy = "Pass a vector of whole numbers."
            raise OptionError(f"is {_kind(self.given)}", option="sampler", remedy=remedy) from None
        except OverflowError:
            raise self._outside(_farthest(self.given)) from None

    @property
    def planned(self) -> PlannedSampler | None:
        """It, if it plans its batches, and shares them out among ranks."""
        found = self.batch_size is None and isinstance(self.given, PlannedSampler)
        return self.given if found else None

    @property
    def name(self) -> str:
        """The loader's option that `given` was passed as."""
        return "batch_sampler" if self.batch_size is None else "sampler"

    def table(self) -> IntArray | None:
        """All indices, if they are in a tensor or an array as they are."""
        plain = self.batch_size is not None and isinstance(self.given, torch.Tensor | np.ndarray)
        return _whole(self.given) if plain else None

    def checked(self, values: Any) -> IntArray:
        """Indices as an array; OptionError if they are no whole numbers, SampleIndexError if one is outside."""
        try:
            ids = _whole(values)
        except TypeError:
            batches = self.batch_size is None
            raise OptionError(
                f"gave {_culprit(values)}, which is no whole number" + (" nor a batch of them" if batches else ""),
                option=self.name,
                remedy=f"Let it give {'lists of indices' if batches else 'indices'}.",
            ) from None
        except OverflowError:
            raise self._outside(_farthest(values)) from None
        if len(ids) and not (ids.min() >= 0 and ids.max() < self.samples):
            raise self._outside(ids[(ids < 0) | (ids >= self.samples)][0])
        return ids

    def _outside(self, index: int) -> SampleIndexError:
        last = self.samples - 1
        return SampleIndexError(
            f"gave index {index}, but the dataset has samples 0 to {last}",
            option=self.name,
            remedy="Negative indices are not counted from the end." if index < 0 else None,
        )


def _whole(values: Any) -> IntArray:
    """Indices as an array; TypeError if they are no whole numbers, OverflowError if one has more than 64 bits."""
    values = _on_host(values)
    if isinstance(values, np.ndarray):
        if values.ndim != 1 or (len(values) and values.dtype.kind not in "iu"):
            raise TypeError("no vector of whole numbers")
        if len(values) and values.max() >= 2**63:  # numpy would wrap it round
            raise OverflowError("more than int64 holds")
        return np.ascontiguousarray(values, np.int64)
    given = values if isinstance(values, list) else list(values)
    if is_mask(given):
        raise TypeError("a mask")
    # Half as fast again as numpy's own way, which would also take 1.5 for 1.
    return np.frombuffer(array.array("q", given), np.int64)


def _on_host(values: Any) -> Any:
    return values.detach().cpu().numpy() if isinstance(values, torch.Tensor) else values


def _farthest(values: Any) -> int:
    return max(map(int, _on_host(values)), key=abs)


def _culprit(values: Any) -> str:
    """The kind of the first value that is no whole number, or of values that cannot be looked through."""
    if isinstance(values, list | tuple):
        if is_mask(values):
            return f"{_kind(values[0])} as of a mask"
        for value in values:
            try:
                operator.index(value)
            except TypeError:
                return _kind(value)
    return _kind(values)


def _kind(value: Any) -> str:
    if isinstance(value, torch.Tensor | np.ndarray):
        return f"a {type(value).__name__} of {value.dtype} and shape {tuple(value.shape)}"
    text = repr(value)
    return text if len(text) <= 100 else f"{text[:100]}…"


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
        values = _on_host(given)
        if values.ndim != 1 or (len(values) and values.dtype.kind not in "iu"):
            raise OptionError(f"{where} {_kind(given)}, not a row of whole numbers", option="sampler", remedy=_REMEDY)
        if len(values) and not (values.min() >= 0 and values.max() < self._samples):
            place = int(np.argmax((values < 0) | (values >= self._samples)))
            raise SampleIndexError(
                f"{where} index {values[place]} at place {place}, but the dataset has samples 0 to {self._samples - 1}",
                option="sampler",
                remedy="Return indices of the dataset that the loader was given, counted from 0.",
            )
        found: IntArray = values.astype(np.int64)  # a copy: the function may fill one tensor for each epoch
        found.flags.writeable = False
        return found
