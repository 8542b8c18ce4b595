"""Names that tell which files are for training, and which must not be: the splits of a dataset as it is on disk."""

from __future__ import annotations

import re
from collections.abc import Sequence

from gdsload.errors import OptionError

ALL = "all"
"""Stands for all splits, or for whatever else such names mean."""

# Longer words first: "validation" is not "val" and more. "t10k" is the test set of MNIST and of its like.
_WORDS = (
    "trainval", "training", "train", "testing", "test", "validation", "valid", "val",
    "evaluation", "eval", "dev", "t10k",
)  # fmt: skip
_HUMP = re.compile(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")


def _pattern(words: Sequence[str]) -> re.Pattern[str]:
    return re.compile(rf"(?<![^\W\d_])({'|'.join(words)})(?:set|data)?(?![^\W\d_])", re.IGNORECASE)


_ALONE = _pattern(_WORDS)
# Humps of three letters are in random identifiers, too.
_HUMPED = _pattern([word for word in _WORDS if len(word) > 3])


def split_words(name: str) -> frozenset[str]:
    """The words in a name of a file or folder that splits are called by: of ``imagenet-train-0001.tar`` ``train``.

    A word is not part of a longer one: there is none in ``protest`` and ``trainable``. Digits do not make it longer
    (``train2017``), and of ``trainset``, ``TrainData`` and ``trainA`` it is ``train``, too.
    """
    return frozenset(word.lower() for word in _ALONE.findall(name) + _HUMPED.findall(_HUMP.sub("_", name)))


def level_splits(names: Sequence[str]) -> list[str | None] | None:
    """The split of each name of one folder, or None for a name that says none; None if it holds no splits.

    It does if two names say different ones. Words that all those names have in common say nothing; several that are
    left are one split together: ``train_val`` beside ``test`` is ``train+val``.
    """
    words = [split_words(name) for name in names]
    common = frozenset.intersection(*filter(None, words)) if any(words) else frozenset()
    found = ["+".join(sorted(one - common)) or None for one in words]
    return found if len(set(found) - {None}) > 1 else None


def splits_of(paths: Sequence[str]) -> list[str | None]:
    """The split that each file is of, or None.

    Folders are looked at one by one, from the outermost on. Of files that no folder tells anything about, the whole
    paths are compared: ``fineweb/train.bin`` and ``wiki/val.bin`` are different splits.

    Args:
        paths: names of files below one folder, ``/`` between the names of folders. Of each folder, these are all of its
            names that matter.
    """
    found: list[str | None] = [None] * len(paths)
    _label([(path.split("/"), number) for number, path in enumerate(paths)], found)
    left = [number for number, split in enumerate(found) if split is None]
    for number, split in zip(left, level_splits([paths[number] for number in left]) or (), strict=False):
        found[number] = split
    return found


def no_such_split(split: str | None, there: Sequence[str], file: str | None) -> OptionError:
    """The error of a split that is not there, or, if none was asked for, of several that are."""
    listed = ", ".join(map(repr, there))
    if split is None and there:
        return OptionError(
            f"it holds several splits: {listed}",
            file=file,
            remedy=f"Pass `split={there[0]!r}`, say, to convert one of them. `split='all'` takes all together, also "
            "where these names mean something else.",
        )
    remedy = f"There are {listed}." if there else "There are no splits: leave it out."
    return OptionError(f"there is no split {split or ALL!r}", file=file, remedy=remedy)


def _label(files: list[tuple[list[str], int]], found: list[str | None]) -> None:
    children: dict[str, list[tuple[list[str], int]]] = {}
    for pieces, number in files:
        children.setdefault(pieces[0], []).append((pieces[1:], number))
    splits = level_splits(list(children))
    for position, below in enumerate(children.values()):
        if splits is not None and splits[position] is not None:
            for _, number in below:
                found[number] = splits[position]
        else:
            _label([file for file in below if file[0]], found)
