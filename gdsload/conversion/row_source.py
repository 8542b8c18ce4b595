"""Sources whose samples are rows: how they are cut into parts, and parts into batches."""

from __future__ import annotations

import difflib
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from gdsload.conversion.source import Part
from gdsload.conversion.splits import split_words
from gdsload.errors import FormatError, OptionError

BATCH_BYTES = 32 * 2**20
"""About how many bytes are read at once."""
Spans = Iterator[tuple[int, int]]
_LISTED = 50
_MOST_OF_NO_BYTES = 2**24
"""Rows of no bytes that a source may have: a file of a hundred bytes could promise any number of them."""
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


def row_parts(
    count: int, row_bytes: int, target_bytes: int, *, prefix: str = "rows", where: tuple[str, ...] = (), chunk: int = 1
) -> list[Part]:
    """Parts of rows as `batches` has them; `where` is before the edges in `Part.where`.

    Raises:
        FormatError: if a file promises millions of rows of no bytes.
    """
    if not row_bytes and count > _MOST_OF_NO_BYTES:
        remedy = "Choose fields that have values: `fields=[...]`."
        raise FormatError(f"there are {count} {prefix} of no bytes, and nothing to convert", remedy=remedy)
    return [
        Part(f"{prefix} {low} to {high - 1}", (*where, low, high), high - low, (high - low) * row_bytes)
        for low, high in batches(0, count, row_bytes, target_bytes, chunk)
    ]


def filled(parts: list[Part], what: str, path: str) -> list[Part]:
    """The parts of a source; a `FormatError` if there are none."""
    if not parts:
        raise FormatError(f"there is not one {what}", file=path)
    return parts


def first_groups(groups: Sequence[str]) -> str:
    """The names of the first of some groups, for an error."""
    return ", ".join(map(repr, groups[:_GROUPS]))


def groups_left_out(groups: Sequence[str], alone: Callable[[str], str]) -> list[str]:
    """Notes that some groups are left out, and what takes one `alone`; of many groups the first ones are named."""
    notes = [f"group {name!r} is left out: {alone(name)} takes it alone" for name in groups[:_GROUPS]]
    if (more := len(groups) - _GROUPS) > 0:
        notes.append(f"{more} more {'group is' if more == 1 else 'groups are'} left out")
    return notes


def common_length(lengths: Mapping[str, int], what: str, file: str) -> int:
    """The one length that all have; a `FormatError` if they differ, or one has none, for which -1 stands."""
    if len(set(lengths.values())) > 1 or -1 in lengths.values():
        shown = ", ".join(f"{name!r} {'none' if length < 0 else length}" for name, length in lengths.items())
        raise FormatError(f"the {what} have different lengths, or none: {shown}", file=file, remedy=_choice(lengths))
    return next(iter(lengths.values()))


def _choice(lengths: Mapping[str, int]) -> str | None:
    """The fields that go together, where there are more of them than of any others."""
    counts = Counter(length for length in lengths.values() if length >= 0).most_common(2)
    if not counts:
        return "They need a first dimension, which counts the samples."
    if counts[-1][1] == counts[0][1] > 1 == len(counts) - 1:
        return None
    names = [name for name, length in lengths.items() if length == counts[0][0]]
    return f"Choose those that go together: {choice_of(names)}."


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
            near = difflib.get_close_matches(name, known, 1)
            meant = f"Did you mean {near[0]!r}? " if near else ""
            listed = ", ".join(map(repr, known[:_LISTED])) or "none"
            raise OptionError(f"there is no field {name!r:.200}", file=file, remedy=f"{meant}There are {listed}.")
    return known if wanted is None else list(wanted)


def sample_fields(wanted: Sequence[str] | None, there: Iterable[str], where: str) -> list[str]:
    """See `check_fields`, of one sample among others, which may have what it lacks: so it is a `FormatError`."""
    try:
        return check_fields(wanted, there, where)
    except OptionError as error:
        raise FormatError(error.message, file=where, remedy=error.remedy) from None
