"""Parts and mixtures of a dataset by the classes of its samples."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import Subset

from gdsload.errors import OptionError
from gdsload.loader.mix import Mix
from gdsload.loader.selection import select
from gdsload.order import Permutation, Purpose, derive_key
from gdsload.order.checks import check_whole
from gdsload.system.arrays import IntArray

__all__ = ["class_balanced", "stratified_split"]

Labels = str | torch.Tensor | NDArray[Any] | Sequence[Any]


def class_balanced(
    dataset: Any, labels: Labels, *, samples: int | Literal["first_exhausted", "all_exhausted"] | None = None
) -> Mix:
    """A mixture of a dataset's classes in which all come equally often, for a loader.

        loader = gdsload.DataLoader(gdsload.class_balanced(dataset, "label"), batch_size=256, shuffle=True)

    Each class is read to its end before it begins again, so that rare samples come again and no sample more often
    than others of its class, ± 1. See `Mix`, also for ranks, states and indices.

    Args:
        dataset: a `ShardDataset`, or torch's `Subset` or `ConcatDataset` of such.
        labels: the class of each sample: the name of a field of one whole number or text, or a vector ``[samples]``.
        samples: see `Mix`: samples of an epoch; None for as many as the dataset has.

    Returns:
        A mixture whose `names` are the classes, in rising order.

    Raises:
        OptionError: if there are no such labels, or no samples.
        GdsloadError: see `ShardDataset.column`.
    """
    names, codes = _classes(dataset, labels)
    if not len(names):
        raise OptionError("there are no samples, and so no classes")
    order = np.argsort(codes, kind="stable")
    parts = np.split(order, np.cumsum(np.bincount(codes))[:-1])
    subsets = {str(name): Subset(dataset, part) for name, part in zip(names, parts, strict=True)}  # type: ignore[arg-type]
    return Mix(subsets, dict.fromkeys(subsets, 1.0), samples=samples)


def stratified_split(
    dataset: Any, lengths: Sequence[float], labels: Labels, *, seed: int = 0
) -> list[Subset[dict[str, Any]]]:
    """Parts of a dataset, as torch's `random_split` makes them, of which each has its share of every class.

    Of a class, a part gets its share to within a sample or two, whatever the sizes of the others.

        train, validation = gdsload.stratified_split(dataset, [0.9, 0.1], "label", seed=1)

    Args:
        dataset: a `ShardDataset`, or torch's `Subset` or `ConcatDataset` of such.
        lengths: samples of each part, or their fractions, which add up to 1.
        labels: the class of each sample: the name of a field of one whole number or text, or a vector ``[samples]``.
        seed: which samples each part gets is a pure function of it and the labels.

    Returns:
        The parts, each in the order of the dataset.

    Raises:
        OptionError: if there are no such labels, or lengths do not add up.
        GdsloadError: see `ShardDataset.column`.
    """
    _, codes = _classes(dataset, labels)
    counts = _lengths(lengths, len(codes))
    key = derive_key(check_whole(seed, "seed", 0, 2**64 - 1), Purpose.CLASSES)
    drawn = Permutation(len(codes), key)(0, len(codes))
    left = drawn[np.argsort(codes[drawn], kind="stable")]  # class by class, each in random order
    parts = []
    for number, count in enumerate(counts):
        # Evenly spaced from a random place on: that takes its share of each class, whatever their sizes.
        begin = derive_key(key, number) % max(len(left), 1)
        passed = (np.arange(len(left) + 1) * count + begin) // max(len(left), 1)
        taken = np.diff(passed) > 0
        parts.append(np.sort(left[taken]))
        left = left[~taken]
    return [Subset(dataset, part) for part in parts]  # type: ignore[arg-type]


def _classes(dataset: object, labels: Labels) -> tuple[NDArray[Any], IntArray]:
    """The classes, and the number of that of each sample.

    Raises:
        OptionError: if there are no such labels.
    """
    selected = select(dataset)
    if selected.mixture is not None:
        raise OptionError("a Mix has weights of its own", remedy="Pass a dataset, a Subset or a ConcatDataset.")
    given: Any = selected.column(labels) if isinstance(labels, str) else labels
    if isinstance(given, torch.Tensor):
        given = given.detach().cpu().numpy()
    texts = isinstance(given, list | tuple) and len(given) > 0 and isinstance(given[0], str | bytes)
    try:
        vector = np.asarray(given, object if texts else None)  # numpy's own texts lose zeros at their end
    except ValueError:  # lists of different lengths
        vector = np.empty((0, 0))
    if vector.shape != (len(selected),):
        raise OptionError(
            f"labels are {vector.dtype} of shape {vector.shape}, for {len(selected)} samples",
            remedy="Pass the name of a field, or a vector of one label for each sample.",
        )
    try:
        names, codes = np.unique(vector, return_inverse=True)
    except TypeError as error:
        raise OptionError(f"labels cannot be compared with each other: {error}") from None
    return names, codes.astype(np.int64)


def _lengths(given: Sequence[float], samples: int) -> list[int]:
    """Samples of each part, by the rule of torch's `random_split`.

    Raises:
        OptionError: if they do not add up.
    """
    numbers = list(given)
    if numbers and all(isinstance(number, float | int) and number >= 0 for number in numbers):
        if sum(numbers) == samples and all(float(number).is_integer() for number in numbers):
            return [int(number) for number in numbers]
        if math.isclose(sum(numbers), 1):
            found = [math.floor(samples * number) for number in numbers]
            for number in range(samples - sum(found)):
                found[number % len(found)] += 1
            return found
    raise OptionError(
        f"lengths are {numbers!r:.200}",
        remedy=f"Pass numbers of samples that add up to {samples}, or fractions that add up to 1.",
    )
