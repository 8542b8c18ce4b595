"""Sources whose samples are rows, arrays or files: how they are cut into parts, and parts into batches."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any, TypeVar

import numpy as np

from gdsload.conversion.reasons import counted_are
from gdsload.conversion.source import Item, Part
from gdsload.conversion.splits import split_words
from gdsload.errors import FormatError, OptionError

BATCH_BYTES = 32 * 2**20
"""About how many bytes are read at once."""
Spans = Iterator[tuple[int, int]]
_LISTED = 50
_MOST_OF_NO_BYTES = 2**24
"""Rows of no bytes that a source may have: a file of a hundred bytes could promise any number of them."""
_MOST_PARTS = 2**17
"""Parts that rows are cut into: an HDF5 file of a thousand bytes could promise any number of rows."""
_GROUPS = 8


def spans(low: int, high: int, step: int) -> Spans:
    """The rows from `low` to `high` - 1 in runs of `step`, as (first, after the last)."""
    return ((begin, min(begin + step, high)) for begin in range(low, high, step))


def runs(sizes: Sequence[int], target_bytes: int) -> Spans:
    """Files that follow each other, as (first, after the last), each run of `target_bytes` or a little more."""
    low, nbytes = 0, 0
    for high, size in enumerate(sizes, 1):
        nbytes += size
        if nbytes >= target_bytes or high == len(sizes):
            yield low, high
            low, nbytes = high, 0


def run_parts(
    what: str,
    sizes: Sequence[int],
    target_bytes: int,
    *,
    samples: Sequence[int] | None = None,
    files: Sequence[str] | None = None,
) -> list[Part]:
    """Parts of consecutive files of these sizes, which have one sample each if `samples` does not say how many.

    `Part.where` has the paths of the files, or the numbers of the first one and of that after the last one.
    """
    return [
        Part(
            f"{what} {low} to {high - 1}",
            (low, high) if files is None else tuple(files[low:high]),
            high - low if samples is None else sum(samples[low:high]),
            sum(sizes[low:high]),
        )
        for low, high in runs(sizes, target_bytes)
    ]


def batches(low: int, high: int, row_bytes: int, target_bytes: int = BATCH_BYTES, chunk: int = 1) -> Spans:
    """Rows of about `row_bytes` each in runs of about `target_bytes`, as `spans`; edges are multiples of `chunk`."""
    return spans(low, high, max(target_bytes // max(row_bytes, 1) // chunk, 1) * chunk)


def refuse_promised(count: int, nbytes: int, rows: str = "rows", file: str | None = None) -> None:
    """Refuse millions of rows that have less than a bit each, of which a file could promise any number.

    Raises:
        FormatError: if so many are promised.
    """
    if count > _MOST_OF_NO_BYTES and 8 * nbytes < count:
        remedy = "Choose fields that have values: `fields=[...]`."
        raise FormatError(f"there are {count} {rows} of no bytes, and nothing to convert", file=file, remedy=remedy)


def row_parts(
    count: int, row_bytes: int, target_bytes: int, *, prefix: str = "rows", where: tuple[str, ...] = (), chunk: int = 1
) -> list[Part]:
    """Parts of rows as `batches` has them, larger ones where these would be too many.

    In `Part.where`, `where` is before the edges.

    Raises:
        FormatError: if a file promises millions of rows of no bytes.
    """
    refuse_promised(count, count * row_bytes, prefix.rpartition(", ")[2])
    target_bytes = max(target_bytes, (count // _MOST_PARTS + 1) * row_bytes)
    return [
        Part(f"{prefix} {low} to {high - 1}", (*where, low, high), high - low, (high - low) * row_bytes)
        for low, high in batches(0, count, row_bytes, target_bytes, chunk)
    ]


def filled(parts: list[Part], what: str, path: str) -> list[Part]:
    """The parts of a source; a `FormatError` if no sample is in them."""
    if not any(part.samples for part in parts):
        raise FormatError(f"there is not one {what}", file=path)
    return parts


def first_groups(groups: Sequence[str]) -> str:
    """The names of the first of some groups."""
    return ", ".join(map(repr, groups[:_GROUPS])) + (f" and {len(groups) - _GROUPS} more" if groups[_GROUPS:] else "")


def groups_left_out(groups: Sequence[str], alone: str) -> list[str]:
    """A note that some groups are left out, and what takes one `alone`."""
    return [f"{counted_are(len(groups), 'group')} left out, {first_groups(groups)}: {alone}"] if groups else []


def common_length(lengths: Mapping[str, int], what: str, file: str) -> int:
    """The one length that all have; a `FormatError` if they differ, or one has none, for which -1 stands."""
    if len(set(lengths.values())) > 1 or -1 in lengths.values():
        shown = ", ".join(f"{name!r} {'none' if length < 0 else length}" for name, length in lengths.items())
        remedy = "The first dimension counts the samples: choose those of one length, `fields=[...]`."
        raise FormatError(f"the {what} have different lengths, or none: {shown}", file=file, remedy=remedy)
    return next(iter(lengths.values()))


def choice_of(names: Sequence[str]) -> str:
    """The option that takes these fields alone, as users write it."""
    return f"`fields={list(names)}`"


def classes_of(files: Sequence[str]) -> list[str]:
    """The names of the folders that files are in, in order, if there are several side by side: those of classes.

    So they are in folders of splits that are side by side, if all splits are taken together.
    """
    folders = {os.path.dirname(file) for file in files}
    above = {os.path.dirname(folder) for folder in folders}
    splits = len({os.path.dirname(one) for one in above}) == 1 and all(
        split_words(os.path.basename(one)) for one in above
    )
    names = sorted({os.path.basename(folder) for folder in folders})
    return names if len(names) > 1 and (len(above) == 1 or splits) else []


def check_columns(wanted: Sequence[str] | None, there: Iterable[str], file: str) -> list[str]:
    """The columns that the wanted fields are made of: beside an image that is kept there are fields of its header.

    Raises:
        OptionError: if one that is wanted is not there.
    """
    known = list(there)
    of = {name: name.rpartition(".")[0] for name in wanted or () if name not in known}
    names = (of[name] if of.get(name) in known else name for name in wanted or ())
    return check_fields(None if wanted is None else list(dict.fromkeys(names)), known, file)


def check_fields(wanted: Sequence[str] | None, there: Iterable[str], file: str) -> list[str]:
    """The fields that are taken: those that are wanted, or all; an `OptionError` if one that is wanted is not there."""
    known = list(there)
    for name in wanted or ():
        if name not in known:
            listed = ", ".join(map(repr, known[:_LISTED])) or "none"
            raise OptionError(f"there is no field {name!r:.200}", file=file, remedy=f"There are {listed}.")
    return known if wanted is None else list(wanted)


def sample_fields(wanted: Sequence[str] | None, there: Iterable[str], where: str) -> list[str]:
    """See `check_fields`, of one sample among others, which may have what it lacks: so it is a `FormatError`."""
    try:
        return check_fields(wanted, there, where)
    except OptionError as error:
        raise FormatError(error.message, file=where, remedy=error.remedy) from None


Made = TypeVar("Made")


def halved(low: int, high: int, make: Callable[[int, int], Made]) -> Iterator[tuple[int, int, Made | FormatError]]:
    """Make something of rows, all at once; if that fails, of each half by itself, down to the error of a bad row."""
    if low == high:
        return
    try:
        made = make(low, high)
    except FormatError as error:
        if high - low == 1:
            yield low, high, error
            return
    else:
        yield low, high, made
        return
    middle = (low + high) // 2
    yield from halved(low, middle, make)
    yield from halved(middle, high, make)


def row_items(first: int, count: int, make: Callable[[int, int], dict[str, Any]]) -> Iterator[Item]:
    """As few items as there can be of rows, the first of which has this number.

    All are batches, also those of one row, so that a column of lists is seen to be ragged wherever it is cut.
    """
    for low, high, values in halved(0, count, make):
        key = f"row {first + low}" if high - low == 1 else f"rows {first + low} to {first + high - 1}"
        yield Item(key, partial(given, values), high - low)


def given(values: dict[str, Any] | Exception) -> dict[str, Any]:
    """Values as they are, or the error in their place raised."""
    if isinstance(values, Exception):
        raise values
    return dict(values)


def array_parts(
    arrays: Mapping[str, Any], target_bytes: int, file: str, *, prefix: str = "rows", where: tuple[str, ...] = ()
) -> list[Part]:
    """Parts of about `target_bytes` of the arrays of fields; see `row_parts`.

    Raises:
        FormatError: if their lengths differ, or one has none.
    """
    lengths = {name: len(array) if array.ndim else -1 for name, array in arrays.items()}
    count = common_length(lengths, "arrays", file)
    row_bytes = sum(array.nbytes for array in arrays.values()) // max(count, 1)
    return row_parts(count, row_bytes, target_bytes, prefix=prefix, where=where)


def array_items(arrays: Mapping[str, Any], low: int, high: int, *, first: int = 0) -> Iterator[Item]:
    """The rows from `low` to `high` - 1, many at once; `first` is the number of the row that the arrays begin with."""
    row_bytes = sum(array.nbytes // max(len(array), 1) for array in arrays.values())
    for begin, end in batches(low, high, row_bytes):
        yield Item(f"rows {begin} to {end - 1}", partial(rows_of, arrays, begin - first, end - first), end - begin)


def rows_of(arrays: Mapping[str, Any], begin: int, end: int) -> dict[str, Any]:
    """Some rows of arrays, as fields take them."""
    return {name: plain_rows(array[begin:end]) for name, array in arrays.items()}


def plain_rows(rows: Any) -> Any:
    """Rows as a field takes them: a tuple, and texts and bytes of an array, as a list, all else as it is."""
    if isinstance(rows, tuple):
        return list(rows)
    if isinstance(rows, np.memmap):  # a subclass
        rows = np.asarray(rows)
    if not isinstance(rows, np.ndarray) or rows.ndim != 1:
        return rows
    return rows.tolist() if rows.dtype.kind in "US" or _is_raw(rows.dtype) else rows


def _is_raw(dtype: object) -> bool:
    """Return whether it is NumPy's type of raw bytes; bfloat16 and its like are of kind V, too."""
    return isinstance(dtype, np.dtype) and dtype.type is np.void and dtype.names is None


def bytes_notes(arrays: Mapping[str, Any]) -> list[str]:
    """Sentences on arrays, by field, of bytes of a fixed length: zeros are lost, or they are numbers."""
    found = [
        f"{name!r} has bytes of a fixed length ({array.dtype.itemsize}), of which zeros at the end are left out: where "
        "they are part of the value, store it as numpy's V type, or as rows of uint8"
        for name, array in arrays.items()
        if getattr(getattr(array, "dtype", None), "kind", None) == "S"
    ]
    return found + [
        f"{name!r} has raw bytes ({array.dtype.itemsize}), as which NumPy saves bfloat16 and float8, too: if they are "
        "numbers, save x.astype('float32')"
        for name, array in arrays.items()
        if _is_raw(getattr(array, "dtype", None)) and array.dtype.itemsize <= 2
    ]


One = TypeVar("One")

_LOOKED_AT = 16
USUAL_BYTES = 3 * 640 * 480
"""Bytes of an image of which nothing is known: about as large as a photograph of ImageNet or COCO. Parts of images that
are smaller have fewer bytes than they should, which costs little; parts of larger ones have more."""


def image_parts(pairs: Sequence[tuple[str | int, str]], target_bytes: int) -> list[Part]:
    """Parts of images, with the pair of each image in `Part.where`.

    So a part has the names of its files: to look for them again would take as long as to read them.
    """
    return [
        Part(
            f"images {low} to {high - 1}",
            tuple(chain.from_iterable(pairs[low:high])),
            high - low,
            (high - low) * USUAL_BYTES,
        )
        for low, high in batches(0, len(pairs), USUAL_BYTES, target_bytes)
    ]


def some(items: Sequence[One]) -> Sequence[One]:
    """Some at even distances among all."""
    return items[:: -(-len(items) // _LOOKED_AT) or 1]
