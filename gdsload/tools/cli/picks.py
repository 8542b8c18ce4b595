"""Samples that are shown of a dataset: some drawn at random, the first ones, or some of each class."""

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
"""The seed of all that is drawn here, so that a dataset is always shown by the same samples."""


def drawn(samples: int, count: int) -> list[int]:
    """The numbers of some samples, drawn at random and sorted."""
    import numpy as np

    found = np.random.default_rng(SEED).choice(samples, min(count, samples), replace=False)
    return sorted(map(int, found))


def label_field(dataset: ShardDataset) -> str | None:
    """The field with a class number for each sample: one whose classes have names, or else one called label."""
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
    """The numbers of the samples that are shown.

    Args:
        dataset: where they are.
        how: one of `PICKS`.
        count: how many at most; of classes as many each as fit in, and one of each of the first ones if there are more.
        first: the first one, where they are neighbours.

    Raises:
        OptionError: if no field says which classes there are.
    """
    if how == "first":
        return list(range(len(dataset))[first:][:count])
    if how == "random":
        return drawn(len(dataset), count)
    name = label_field(dataset)
    if name is None:
        raise OptionError(
            "there is no field of classes: a whole number for each sample, called label or with named classes",
            file=dataset.path,
            remedy="Pass --pick random.",
        )
    import numpy as np

    labels = labels_of(dataset, name)
    classes = np.unique(labels)[:count]
    each = count // max(len(classes), 1)
    members = (np.flatnonzero(labels == one) for one in classes)
    return [int(of[place]) for of in members for place in drawn(len(of), each)]
