"""Checking a dataset: its structure, its bytes against their checksums, and what its bytes mean."""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import accumulate

import numpy as np

from gdsload.errors import ChecksumError, DatasetNotFoundError, FileChangedError, FormatError, Problem, ReadError
from gdsload.shards.format.header import TensorEntry
from gdsload.shards.format.shard import PADDING_PREFIX
from gdsload.shards.format.stored import StoredSchema
from gdsload.shards.identity import ShardSource, Watch, identity_of
from gdsload.shards.local_files import open_regular
from gdsload.shards.opening import load_shard, mismatch, reading, wrong_length
from gdsload.shards.status import NO_DESCRIPTORS, NO_RIGHT, close, naming, read_error, status_of
from gdsload.shards.verify.contents import FieldBytes, PackedRows, not_finite, wrong_booleans, wrong_images, wrong_texts
from gdsload.shards.verify.opened import OpenShard
from gdsload.system.pool import Pool
from gdsload.system.units import counted

__all__ = ["VerifyReport", "verify_shards"]


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """The counts of a verification.

    Attributes:
        shards: number of shards.
        checked_bytes: bytes that were compared with a checksum.
        unchecked_bytes: bytes of tensors that have none, in files that gdsload did not write.
        nan: how many values of each field are NaN; fields without any are left out, as are all unless it was deep.
        infinite: how many are infinite, likewise.
    """

    shards: int
    checked_bytes: int
    unchecked_bytes: int
    nan: Mapping[str, int] = field(default_factory=dict)
    infinite: Mapping[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class _Found:
    """The findings on one shard: faults of its bytes, of the right to read them, and of their meaning.

    If a shard may not be read, its samples are not known to be wrong.
    """

    damage: list[Problem] = field(default_factory=list)
    unread: list[Problem] = field(default_factory=list)
    nonsense: list[Problem] = field(default_factory=list)
    checked: int = 0
    unchecked: int = 0
    nan: Counter[str] = field(default_factory=Counter)
    infinite: Counter[str] = field(default_factory=Counter)


def verify_shards(
    sources: Sequence[ShardSource], stored: StoredSchema, *, deep: bool, progress: Callable[[int, int], None] | None
) -> VerifyReport:
    """Check all shards, whatever is wrong with some of them; see `ShardDataset.verify`."""
    meter = _Meter(sum(max(source.file_bytes, 0) for source in sources), progress)
    firsts = accumulate((max(source.samples, 0) for source in sources), initial=0)
    found = [_Found() for _ in sources]

    def verify(number: int, first: int) -> None:
        with naming(read_error, "the shard cannot be verified", sources[number].path):
            found[number] = _verify(sources[number], stored, first, meter, deep=deep)

    pool = Pool(min(8, os.cpu_count() or 1), "gdsload-verify")
    try:
        pool.run([partial(verify, *each) for each in zip(range(len(sources)), firsts, strict=False)]).wait()
    finally:
        pool.close()
    known = next((number for number, source in enumerate(sources) if source.samples < 0), len(sources))
    for one in found[known + 1 :]:  # how many samples come before is not known
        one.damage = [replace(problem, samples=None) for problem in one.damage]
        one.nonsense = [replace(problem, samples=None) for problem in one.nonsense]
    _raise(found)
    return VerifyReport(
        len(sources),
        sum(one.checked for one in found),
        sum(one.unchecked for one in found),
        dict(sum((one.nan for one in found), Counter())),
        dict(sum((one.infinite for one in found), Counter())),
    )


def _raise(found: Sequence[_Found]) -> None:
    damage = [problem for one in found for problem in one.damage]
    unread = [problem for one in found for problem in one.unread]
    problems = [*damage, *unread, *(problem for one in found for problem in one.nonsense)]
    if not problems:
        return
    kind = ChecksumError if damage else FormatError
    files = {problem.file or "" for problem in problems}
    remedy = "Restore those shards from a copy, or write the dataset again."
    if unread:
        right = "Give yourself the right to read what cannot be opened, and verify again."
        remedy = f"{remedy} {right}" if damage else right
    elif not damage:
        remedy = "The bytes are those that were written, so what wrote them is to be mended."
    elif all(os.path.islink(file) and not os.path.exists(file) for file in files):
        remedy = "Mount the drives that links lead to, and verify again."
    what = f"{counted(len(problems), 'problem')} in {len(files)} of {len(found)} shards"
    raise kind(what, problems=problems, remedy=remedy)


class _Meter:
    """Adds up bytes from several threads."""

    def __init__(self, total: int, report: Callable[[int, int], None] | None) -> None:
        self._total, self._report, self._done = total, report, 0
        self._lock = threading.Lock()

    def add(self, nbytes: int) -> None:
        with self._lock:
            self._done += nbytes
            if self._report is not None:
                self._report(self._done, self._total)


def _verify(source: ShardSource, stored: StoredSchema, first: int, meter: _Meter, *, deep: bool) -> _Found:
    """Verify one shard, whose first sample is the dataset's number `first`."""
    everything = None if source.samples < 0 else (first, first + source.samples)
    try:
        fd = open_regular(source.path, follow_links=source.follow_links)
    except DatasetNotFoundError:
        return _Found([Problem("the shard is missing", source.path, samples=everything)])
    except ReadError as error:
        if error.errno in (*NO_RIGHT, *NO_DESCRIPTORS):
            return _Found(unread=[Problem(error.message, source.path)])
        message = f"{error.message}. {error.remedy}" if error.remedy else error.message
        return _Found([Problem(message, source.path, samples=everything)])
    try:
        status = status_of(fd, source.path)
        if source.identity is not None and source.identity[:2] != identity_of(status)[:2]:
            Watch([source]).opened(0, status)  # raises, as a loader does: another file is no damage of this one
        cut = wrong_length(source.path, status.st_size, source.file_bytes, everything)
        if cut is not None:
            return _Found([cut])
        shard = load_shard(fd, source.path)
        complaint = mismatch(shard, source, stored)
        if complaint is not None:
            return _Found([Problem(complaint, source.path, 0, samples=everything)])
        return _verify_opened(OpenShard(reading(fd, source.path), source.path, shard, first), meter, deep=deep)
    except FileChangedError:
        raise
    except FormatError as error:
        return _Found([Problem(one.message, one.file, one.offset, one.field, everything) for one in error.problems])
    except ReadError as error:  # a bad sector, or a file cut short meanwhile: the other shards are still of interest
        return _Found([Problem(error.message, source.path, error.offset, samples=everything)])
    finally:
        close(fd)


_LOOKS = {"str": wrong_texts, "image": wrong_images}


def _verify_opened(opened: OpenShard, meter: _Meter, *, deep: bool) -> _Found:
    shard, found = opened.shard, _Found()
    if not shard.digests and not deep:
        found.unchecked = sum(entry.end - entry.begin for entry in shard.header.tensors.values())
        meter.add(shard.header.file_bytes)
        return found
    meter.add(shard.header.data_start)
    for entry in shard.header.tensors.values():
        _verify_tensor(opened, entry, found, meter, deep=deep)
    for name, column in shard.columns.items():
        if column.offsets_begin is None:
            continue
        wrong = list(_wrong_offsets(opened, name, column.offsets_begin))
        found.damage += wrong
        look = _LOOKS.get(shard.stored.columns[name].kind)
        if deep and not wrong and look is not None:
            found.nonsense += look(opened, shard.header.tensors[name], column.offsets_begin)
    return found


def _verify_tensor(opened: OpenShard, entry: TensorEntry, found: _Found, meter: _Meter, *, deep: bool) -> None:
    """Verify a tensor, with one pass over its bytes for all checks."""
    sums = bool(opened.shard.digests)
    padding = sums and entry.name.startswith(PADDING_PREFIX)
    stored = opened.shard.stored
    packed = PackedRows(opened, entry) if entry.name in stored.places else None
    for offset, piece in opened.pieces(entry.begin, entry.end):
        if padding:
            if len(wrong := np.flatnonzero(np.frombuffer(piece, np.uint8))):
                found.damage.append(Problem("padding is not zero", opened.path, offset + int(wrong[0])))
        elif sums:
            found.damage += opened.damage(entry, offset, piece)
            found.checked += len(piece)
        else:
            found.unchecked += len(piece)
        if deep and packed is not None:
            for inside in packed.fields(piece):
                _look_into(opened, entry, inside, found)
        elif deep and entry.name in stored.columns:
            _look_into(opened, entry, FieldBytes(entry.name, entry.dtype, piece, offset), found)
        meter.add(len(piece))


def _look_into(opened: OpenShard, entry: TensorEntry, inside: FieldBytes, found: _Found) -> None:
    """Note the faults in the meaning of a field's bytes, which are in a tensor."""
    if inside.dtype.code == "BOOL":
        found.nonsense += wrong_booleans(opened, entry, inside)
    nan, infinite = not_finite(inside.data, inside.dtype)
    found.nan[inside.name] += nan
    found.infinite[inside.name] += infinite


def _wrong_offsets(opened: OpenShard, name: str, begin: int) -> Iterator[Problem]:
    offsets, rows = opened.offsets(begin), opened.shard.columns[name].rows
    everything = opened.first, opened.first + opened.shard.samples
    if offsets[0] != 0 or offsets[-1] != rows:
        message = f"its offsets run from {offsets[0]} to {offsets[-1]}, not from 0 to {rows}"
        yield Problem(message, opened.path, begin, name, everything)
    falls = np.flatnonzero(np.diff(offsets) < 0)
    if len(falls):
        at = int(falls[0])
        samples = opened.first + at, opened.first + at + 1
        yield Problem("its offsets fall", opened.path, begin + (at + 1) * 8, name, samples, 8)
