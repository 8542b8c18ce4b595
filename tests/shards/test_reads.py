"""Reads that cover what is wanted."""

import itertools

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gdsload.errors import ReadError
from gdsload.shards.reads import coalesce, concat_extents, cut, distinct, within
from gdsload.testing.conformance import extents as extents_of

SETTINGS = settings(derandomize=True, max_examples=100)
EXTENTS = st.lists(
    st.tuples(st.integers(0, 3), st.integers(0, 3000) | st.integers(2**40, 2**40 + 3000), st.integers(0, 400)),
    max_size=30,
)


LIMITS = [
    st.sampled_from([0, 1, 50, 10_000]),
    st.sampled_from([1, 100, 1000, 2**20]),
    st.sampled_from([1, 8, 512, 4096]),
]
"""Gap, longest read, alignment."""


def read_of(reads):
    """For each wanted extent the index of the read that covers it."""
    far = np.arange(len(reads.extents)) << 40
    return (reads.places(far + reads.extents.offset) - reads.offset) >> 40


@SETTINGS
@given(EXTENTS, *LIMITS)
@example([], 0, 1, 1)
@example([(0, 0, 0)], 0, 1, 4096)
@example([(0, 10, 5), (0, 0, 30), (0, 12, 1)], 0, 4, 1)
@example([(0, 0, 100), (0, 100, 100), (0, 200, 100)], 0, 100, 1)
@example([(1, 2**59, 5), (3, 7, 5), (0, 2**59, 5), (3, 2, 2)], 0, 100, 1)
@example([(0, 2**62, 5), (0, 2, 2), (0, 2**62 - 9, 9)], 0, 100, 1)
def test_reads_cover_without_overlap(found, gap, most, alignment):
    check_cover(found, gap, most, alignment)


@SETTINGS
@given(EXTENTS, *LIMITS, st.randoms(use_true_random=False))
def test_reads_in_another_order_of_files_are_the_same(found, gap, most, alignment, random):
    """Only those of other files are elsewhere among them."""
    wanted = extents_of(found)
    files = max([file for file, _, _ in found], default=0) + 1
    turns = np.array(random.sample(range(files), files), np.int64)
    plain = coalesce(wanted, max_gap_bytes=gap, max_read_bytes=most, alignment=alignment)
    other = coalesce(wanted, max_gap_bytes=gap, max_read_bytes=most, alignment=alignment, turns=turns)
    for each in (plain, other):
        rows = list(zip(turns[each.extents.file].tolist(), each.extents.offset.tolist(), strict=True))
        assert each is plain or sorted(rows) == rows
    for column in ("file", "offset", "nbytes"):
        ours, theirs = getattr(other.extents, column), getattr(plain.extents, column)
        assert ours[read_of(other)].tolist() == theirs[read_of(plain)].tolist()
    assert len(other.extents) == len(plain.extents)


def check_cover(found, gap, most, alignment):
    """Every wanted byte is read, in reads that are as they may be: they share a page at most."""
    wanted = extents_of(found)
    reads = coalesce(wanted, max_gap_bytes=gap, max_read_bytes=most, alignment=alignment)
    of = read_of(reads)
    assert len(found) == len(of)
    begin, nbytes = reads.extents.offset, reads.extents.nbytes
    for (file, offset, size), read in zip(found, of, strict=True):
        assert file == reads.extents.file[read]
        assert begin[read] <= offset <= offset + size <= begin[read] + nbytes[read]
    rows = list(zip(reads.extents.file.tolist(), begin.tolist(), (begin + nbytes).tolist(), strict=True))
    assert sorted(rows) == rows
    for (file, _, end), (other, start, _) in itertools.pairwise(rows):
        assert file != other or end <= start + (alignment if alignment > 1 else 0)
    assert not (begin % alignment).any()
    assert not (nbytes % alignment).any()
    assert set(range(len(rows))) == set(of.tolist())
    check_bounds(found, reads, gap, most, alignment)


def check_bounds(found, reads, gap, most, alignment):
    """A read is as long as it may be, plus its last extent and a page; and no gap in it is longer than allowed.

    Of extents right after one another it is twice as long.
    """
    for number in range(len(reads.extents)):
        inside = sorted((found[index][1], found[index][2]) for index in np.flatnonzero(read_of(reads) == number))
        rounded = [
            (offset // alignment * alignment, -(-(offset + size) // alignment) * alignment) for offset, size in inside
        ]
        reach, wasted = rounded[0][1], 0
        for low, high in rounded:
            assert low <= reach + gap
            wasted = max(wasted, low - reach)
            reach = max(reach, high)
        overlapping = any(low < offset + size for (offset, size), (low, _) in itertools.pairwise(inside))
        longest = max(high - low for low, high in rounded)
        touching = any(low == offset + size for (offset, size), (low, _) in itertools.pairwise(inside))
        assert overlapping or int(reads.extents.nbytes[number]) <= (1 + touching) * most + longest + alignment


RUNS = st.lists(
    st.tuples(st.integers(0, 3), st.integers(0, 20_000), st.integers(0, 300), st.integers(1, 40), st.booleans()),
    max_size=5,
)


@SETTINGS
@given(RUNS, *LIMITS)
@example([(0, 0, 0, 5, False)], 0, 1, 1)
def test_rows_in_order_are_covered_like_any_others(runs, gap, most, alignment):
    """Runs of rows, one after the other or backwards, that may overlap each other."""
    found = []
    for file, offset, size, count, backwards in runs:
        rows = [(file, offset + number * size, size) for number in range(count)]
        found += rows[::-1] if backwards else rows
    check_cover(found, gap, most, alignment)


def test_files_beyond_62_bits_are_refused():
    with pytest.raises(ReadError, match="4 files, the longest of .* bytes, are too much for 62 bits"):
        coalesce(extents_of([(1, 2**60, 5), (3, 7, 5)]), max_gap_bytes=0, max_read_bytes=100)


def test_neighbours_are_read_together():
    wanted = extents_of([(0, 300, 10), (0, 0, 100), (1, 0, 5), (0, 120, 100)])
    reads = coalesce(wanted, max_gap_bytes=20, max_read_bytes=1000)
    found = reads.extents
    assert [found.file.tolist(), found.offset.tolist(), found.nbytes.tolist()] == [[0, 0, 1], [0, 300, 0], [220, 10, 5]]
    assert read_of(reads).tolist() == [1, 0, 2, 0]


@pytest.mark.parametrize("row_bytes", [4096, 150_528, 5_000_000])
def test_long_runs_are_cut_also_where_rows_meet_inside_a_page(row_bytes):
    count = 2**28 // row_bytes
    reads = coalesce(
        extents_of([(0, 100 + row_bytes * number, row_bytes) for number in range(count)]),
        max_gap_bytes=16384, max_read_bytes=2**23, alignment=4096,
    )  # fmt: skip
    assert len(reads.extents) >= 2**28 // (2**23 + row_bytes)
    assert reads.extents.nbytes.max() <= 2**23 + row_bytes + 2 * 4096
    assert reads.extents.nbytes.sum() <= row_bytes * count + 2 * 4096 * len(reads.extents)


@SETTINGS
@given(st.lists(st.integers(0, 6)))
def test_positions_within_runs(counts):
    found = within(np.array(counts, np.int64))
    assert found.tolist() == [position for count in counts for position in range(count)]
    assert found.dtype == np.int64


@SETTINGS
@given(st.lists(st.integers(0, 50)), st.integers(51, 60))
def test_distinct_is_unique(numbers, limit):
    assert sorted(set(numbers)) == distinct(np.array(numbers, np.int64), limit).tolist()


@settings(SETTINGS, max_examples=60)
@given(st.lists(EXTENTS, min_size=1, max_size=4))
def test_concatenation(parts):
    whole = concat_extents([extents_of(part) for part in parts])
    flat = [item for part in parts for item in part]
    assert flat == list(zip(whole.file.tolist(), whole.offset.tolist(), whole.nbytes.tolist(), strict=True))
    assert (len(flat), sum(size for _, _, size in flat)) == (len(whole), whole.total_bytes)


@settings(derandomize=True, max_examples=80)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 10**6), st.integers(0, 10_000)), max_size=12))
def test_pieces_are_the_reads(reads):
    pieces = cut(extents_of(reads), 1000)
    found = pieces.extents
    bytes_of = {
        (read, delta + at): (file, offset + at)
        for file, offset, nbytes, read, delta in zip(
            *map(list, (found.file, found.offset, found.nbytes, pieces.read_of, pieces.delta)), strict=True
        )
        for at in range(nbytes)
    }
    assert int(found.nbytes.sum()) == len(bytes_of)
    assert found.nbytes.max(initial=0) <= 1000
    expected = {
        (read, at): (file, offset + at) for read, (file, offset, nbytes) in enumerate(reads) for at in range(nbytes)
    }
    assert bytes_of == expected
