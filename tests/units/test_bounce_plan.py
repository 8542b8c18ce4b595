"""How the reads of a slot are cut into blocks."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gdsload.backends.blocks import PAGE as _PAGE
from gdsload.backends.blocks import cut as _cut
from gdsload.backends.bounce import _MAX_GAP_BYTES
from gdsload.plan import Extents, coalesce


def cut(reads, block_pages):
    """Cut reads (file, offset, bytes) that lie one behind the other; segments as (file, offset, begin, bytes)."""
    file, offset, nbytes = (
        (np.array(column, np.int64) for column in zip(*reads, strict=True)) if reads else [empty()] * 3
    )
    starts = np.cumsum(nbytes) - nbytes
    blocks = _cut(Extents(file, offset, nbytes), starts, int(nbytes.sum()), block_pages * _PAGE)
    found = []
    for segments in blocks:
        columns = segments.file, segments.offset, segments.begin, segments.nbytes
        assert {column.dtype for column in columns} == {np.dtype(np.int64)}
        assert len(segments.file)
        found += zip(*(column.tolist() for column in columns), strict=True)
    return found


def empty():
    return np.zeros(0, np.int64)


def pages_of(reads):
    """The page of a file that each page of the slot is: what has to come out, one page at a time."""
    return [(file, offset + at) for file, offset, nbytes in reads for at in range(0, nbytes, _PAGE)]


def hold(reads, block_pages):
    """What is true of all reads and blocks."""
    found, block = cut(reads, block_pages), block_pages * _PAGE
    assert pages_of([(file, offset, nbytes) for file, offset, _, nbytes in found]) == pages_of(reads)
    end = 0
    for _, offset, begin, nbytes in found:
        assert begin == end  # no gap, no overlap, and in order
        assert nbytes > 0
        assert begin // block == (begin + nbytes - 1) // block
        assert [offset % _PAGE, begin % _PAGE, nbytes % _PAGE] == [0, 0, 0]  # or O_DIRECT would refuse it
        end = begin + nbytes
    assert end == sum(nbytes for *_, nbytes in reads)
    # No cut besides those that had to be.
    starts = np.cumsum([0, *(nbytes for *_, nbytes in reads)]).tolist()
    assert all(begin in starts or begin % block == 0 for _, _, begin, _ in found)


pages = st.integers(0, 40).map(lambda count: count * _PAGE)


@settings(derandomize=True, deadline=None, max_examples=300)
@given(st.lists(st.tuples(st.integers(0, 5), pages, pages), max_size=20), st.integers(1, 16))
def test_segments_tile_the_slot_and_stay_within_blocks(reads, block_pages):
    hold(reads, block_pages)


@settings(derandomize=True, deadline=None, max_examples=200)
@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 500_000), st.integers(0, 90_000)), max_size=30),
    st.integers(1, 16),
    st.integers(0, 4),
)
def test_every_wanted_byte_is_in_a_segment_at_its_address(wanted, block_pages, halved):
    if not wanted:
        return
    extents = Extents(*(np.array(column, np.int64) for column in zip(*wanted, strict=True)))
    longest = block_pages * _PAGE << halved
    found = coalesce(extents, max_gap_bytes=_MAX_GAP_BYTES, max_read_bytes=longest, alignment=_PAGE)
    reads = list(
        zip(found.extents.file.tolist(), found.extents.offset.tolist(), found.extents.nbytes.tolist(), strict=True)
    )
    hold(reads, block_pages)
    slot = {
        begin + at: (file, offset + at)
        for file, offset, begin, nbytes in cut(reads, block_pages)
        for at in range(0, nbytes, _PAGE)
    }
    starts = np.cumsum(found.extents.nbytes) - found.extents.nbytes
    places = (starts[found.read_of] + found.delta).tolist()
    for (file, offset, nbytes), place in zip(wanted, places, strict=True):
        for at in {0, nbytes // 2, nbytes - 1} if nbytes else ():
            page, within = (place + at) // _PAGE * _PAGE, (place + at) % _PAGE
            assert slot[page] == (file, offset + at - within)


@pytest.mark.parametrize(
    ("reads", "segments"),
    [
        ([], []),
        ([(0, 0, 0), (1, 4096, 0)], []),
        ([(3, 8192, 4096)], [(3, 8192, 0, 4096)]),
        # A read that goes over an edge is cut there; one that ends there is not.
        ([(3, 8192, 3 * 4096)], [(3, 8192, 0, 8192), (3, 16384, 8192, 4096)]),
        ([(3, 0, 8192), (1, 0, 8192)], [(3, 0, 0, 8192), (1, 0, 8192, 8192)]),
        (
            [(0, 0, 4096), (0, 0, 0), (1, 40960, 4 * 4096), (2, 4096, 4096)],
            [
                (0, 0, 0, 4096),
                (1, 40960, 4096, 4096),
                (1, 45056, 8192, 8192),
                (1, 53248, 16384, 4096),
                (2, 4096, 20480, 4096),
            ],
        ),
    ],
)
def test_blocks_of_two_pages(reads, segments):
    assert cut(reads, 2) == segments
