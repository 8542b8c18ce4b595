"""Shards made of shards: merged, split, or of another size."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import Any, Unpack, cast

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import ConcatDataset, Dataset, Subset

from gdsload.conversion.keywords import RearrangeKeywords, check_rearranging
from gdsload.conversion.option_types import shows_options
from gdsload.conversion.runner import ConvertReport, convert, publish_check
from gdsload.conversion.sources.safetensors_files import SelectionSource
from gdsload.errors import OptionError
from gdsload.loader.dataset import ShardDataset
from gdsload.order import Permutation, Purpose, derive_key
from gdsload.shards.shard_folders import check_targets
from gdsload.system.paths import absolute

Path = str | os.PathLike[str]


@shows_options
def merge(paths: Sequence[Path], out: Path, **options: Unpack[RearrangeKeywords]) -> ConvertReport:
    """Make one dataset of several with the same fields, one after the other; see `convert` for options and errors.

    Args:
        paths: the datasets, each as `ShardDataset` takes it.
        out: the folder to make.
        **options: see `convert`.

    Raises:
        OptionError: if there are none, or they have different fields.
    """
    check_rearranging("merge", options)
    if isinstance(paths, str | os.PathLike) or not paths:
        raise OptionError(f"is {paths!r}, no list of datasets", option="paths")
    return _write([ShardDataset(path) for path in paths], None, out, options)


@shows_options
def reshard(path: Path, out: Path, **options: Unpack[RearrangeKeywords]) -> ConvertReport:
    """Write a dataset again in shards of another size, `shard_bytes`; see `convert` for options and errors.

    Args:
        path: the dataset, as `ShardDataset` takes it.
        out: the folder to make; with `overwrite`, the dataset's own perhaps.
        **options: see `convert`.
    """
    check_rearranging("reshard", options)
    return _write([ShardDataset(path)], None, out, options)


@shows_options
def split(
    path: Path,
    outs: Sequence[Path],
    sizes: Sequence[float],
    *,
    seed: int | None = None,
    **options: Unpack[RearrangeKeywords],
) -> list[ConvertReport]:
    """Divide a dataset's samples among several new ones; see `convert` for options and errors.

    Each sample goes to one of them, and each keeps the order of the dataset. If a split was interrupted after it had
    finished one of them, run it again with `overwrite`.

    Args:
        path: the dataset, as `ShardDataset` takes it.
        outs: the folders to make.
        sizes: the number of samples of each as an int, or its share of all samples as a float. If there is one size
            less than `outs`, the last one gets the rest.
        seed: seed of a random choice of the samples of each. None: the first samples go to the first one, the next ones
            to the second, and so on.
        **options: see `convert`.

    Raises:
        OptionError: if the sizes do not fit, one would be empty, or one would take the place of the dataset itself.
        DatasetExistsError: if there is something at one of `outs` that must not be replaced.
    """
    check_rearranging("split", options, "seed")
    for what, given in (("outs", outs), ("sizes", sizes)):
        if isinstance(given, str | os.PathLike) or not isinstance(given, Iterable):
            raise OptionError(f"is {given!r}, no list", option=what)
    dataset = ShardDataset(path)
    places = [absolute(out) for out in outs]
    if len(set(places)) < len(places):
        raise OptionError("two of the folders are the same")
    _refuse_own(dataset, places)
    for place in places:  # before there is anything that a corrected call would find
        options = {**options, "spread_over": check_targets(options.get("spread_over"), place)}
    counts = _counts(sizes, len(places), len(dataset))
    for place in places:  # before hours of work on those before it
        publish_check(place, overwrite=options.get("overwrite", False))
    shares = zip(places, _shares(counts, seed), strict=True)
    return [_write([dataset], ids, place, options) for place, ids in shares]


def _refuse_own(dataset: ShardDataset, places: Sequence[str]) -> None:
    """Refuse to replace the dataset by a part of it: the source of the other parts would be gone."""
    own = {os.path.dirname(os.path.realpath(shard.file)) for shard in dataset.shards} | {os.path.realpath(dataset.path)}
    for place in places:
        if os.path.realpath(place) in own:
            raise OptionError(
                "the samples that are to be shared out are in this folder themselves",
                file=place,
                remedy="Write to other folders, and remove this one then.",
            )


def _write(
    datasets: Sequence[ShardDataset], ids: NDArray[np.int64] | None, out: Path, options: RearrangeKeywords
) -> ConvertReport:
    whole: Dataset[Any] = ConcatDataset(datasets)
    if ids is not None:
        whole = Subset(whole, cast("Sequence[int]", ids))
    name = ", ".join(dataset.path for dataset in datasets)
    source = SelectionSource(whole, name)
    same = not any(options.get(key) for key in ("fields", "casts", "ragged", "fixed", "map", "pack", "schema"))
    if same:
        options = {**options, "schema": source.schema}
    if same and options.get("pack_fields") is None and (packed := _packed_in_all(datasets)):
        options = {**options, "pack_fields": packed}
    return convert(source, out, **options)


def _packed_in_all(datasets: Sequence[ShardDataset]) -> tuple[str, ...]:
    """The fields that are packed, where that is the same in all datasets; else none."""
    packed = datasets[0].stored.packed
    return tuple(name for names in packed for name in names) if all(d.stored.packed == packed for d in datasets) else ()


def _counts(sizes: Sequence[float], parts: int, samples: int) -> list[int]:
    shares = any(isinstance(size, float) for size in sizes)
    given = list(sizes)
    if len(given) == parts - 1:
        given.append((1.0 if shares else samples) - sum(given))
    total = sum(given)
    if len(given) != parts or any(size < 0 for size in given) or abs(total - (1 if shares else samples)) > 1e-6:
        raise OptionError(
            f"are {list(sizes)} for {parts} datasets, but there are {samples} samples",
            option="sizes",
            remedy="Give each its number of samples, or its share as a float; all of it, or all but the last.",
        )
    # Rounded edges rather than rounded sizes: they add up.
    edges = np.rint(np.cumsum([0, *given]) * (samples if shares else 1)).astype(np.int64)
    counts: list[int] = np.diff(edges).tolist()
    if 0 in counts:
        raise OptionError(f"dataset number {counts.index(0) + 1} of {parts} would have no samples")
    return counts


def _shares(counts: Sequence[int], seed: int | None) -> list[NDArray[np.int64]]:
    total = sum(counts)
    drawn = np.arange(total)
    if seed is not None:
        drawn = Permutation(total, derive_key(seed, 0, Purpose.SAMPLES))(0, total)
    return [np.sort(share) for share in np.split(drawn, np.cumsum(counts)[:-1])]
