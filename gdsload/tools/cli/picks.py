"""The choice of samples to show: random ones, the first ones, or some of each class."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gdsload.errors import OptionError
from gdsload.shards.format.metadata import class_names

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from gdsload.loader.dataset import ShardDataset

PICKS = ("random", "first", "class")
SEED = 0
"""The seed of all random choices here, so that the same samples of a dataset are always shown."""


def drawn(samples: int, count: int) -> list[int]:
    """The sorted numbers of random samples."""
    import numpy as np

    found = np.random.default_rng(SEED).choice(samples, min(count, samples), replace=False)
    return sorted(map(int, found))


def label_field(dataset: ShardDataset) -> str | None:
    """The field of class numbers: one whose classes have names, or else one called ``label``; None without one."""
    names = [*class_names(dataset.metadata), "label"]
    numbers = (name for name in names if name in dataset.schema and _is_number(dataset, name))
    return next(numbers, None)


def _is_number(dataset: ShardDataset, name: str) -> bool:
    field = dataset.schema[name]
    return field.kind == "fixed" and not field.shape and "int" in field.dtype.name


def labels_of(dataset: ShardDataset, name: str) -> NDArray[np.int64]:
    """The class number of each sample, shape ``[samples]``."""
    found: NDArray[np.int64] = dataset.column(name).numpy().astype("int64")
    return found


def pick_samples(dataset: ShardDataset, how: str, count: int, *, first: int = 0) -> list[int]:
    """The numbers of the samples to show.

    Args:
        dataset: the dataset.
        how: one of `PICKS`.
        count: the most samples. With classes, each class gets the same number; if there are more than `count` classes,
            one sample each of the first `count`.
        first: the number of the first sample, for consecutive samples.

    Raises:
        OptionError: if the dataset has no field of class numbers.
    """
    if how == "first":
        return list(range(len(dataset))[first:][:count])
    if how == "random":
        return drawn(len(dataset), count)
    name = label_field(dataset)
    if name is None:
        raise OptionError(
            "no field has class numbers: whole numbers in a field called label, or with class names in the metadata",
            file=dataset.path,
            remedy="Pass --pick random.",
        )
    import numpy as np

    labels = labels_of(dataset, name)
    classes = np.unique(labels)[:count]
    each = count // max(len(classes), 1)
    members = (np.flatnonzero(labels == one) for one in classes)
    return [int(of[place]) for of in members for place in drawn(len(of), each)]
