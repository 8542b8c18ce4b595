"""The places of reads in a slot, and how they are cut into blocks: the same whether worked out one by one or by numpy."""

from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gdsload.backends.bounce import slot_layout as layout
from gdsload.backends.bounce.slot_layout import lay_out
from gdsload.shards.drive_order import DriveOrder
from gdsload.shards.reads import PAGE_BYTES
from gdsload.testing.conformance import extents as extents_of
from tests.backends.extents import within

BLOCK = 4 * PAGE_BYTES


def lay(wanted, sizes, *, few, block=BLOCK):
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(layout, "_FEW", 10**9 if few else -1)
        patched.setattr(layout, "_WORKED_OUT_FROM_BYTES", 0)
        return lay_out(extents_of(wanted), np.array(sizes, np.int64), BLOCK, lambda _nbytes: block)


@settings(derandomize=True, max_examples=60)
@given(
    st.lists(st.tuples(st.integers(0, 5), st.integers(0, 40), st.integers(1, 9)), max_size=30),
    st.lists(st.integers(0, 2), min_size=6, max_size=6),
)
def test_a_block_is_filled_from_one_drive(pages, of):
    wanted = [(file, page * PAGE_BYTES, count * PAGE_BYTES) for file, page, count in pages]
    sizes, drives = [50 * PAGE_BYTES] * 6, DriveOrder(of)
    found = lay_out(extents_of(wanted), np.array(sizes, np.int64), BLOCK, lambda _nbytes: BLOCK, drives)
    hold(found, wanted, sizes, BLOCK, of)
    seen = [{int(drives.of[file]) for file, *_ in each(found, part)} for part in found.parts]
    assert all(len(one) == 1 for one in seen)
    order = [drive for (drive,) in seen]
    assert order == sorted(order)  # what is of one drive is together: as few blocks are cut short as can be


def each(found, part):
    """The reads of a block: file, offset, byte position in the block, bytes."""
    reads, within = found.reads[part.first : part.stop], found.within[part.first : part.stop]
    return list(zip(*(column.tolist() for column in (reads.file, reads.offset, within, reads.nbytes)), strict=True))


def pages_of(found):
    """The page of a file that each page of the slot is."""
    return {
        part.low + begin + at: (file, offset + at)
        for part in found.parts
        for file, offset, begin, nbytes in each(found, part)
        for at in range(0, nbytes, PAGE_BYTES)
    }


def hold(found, wanted, sizes, block, of=None):
    """Check what every layout has in common; `of` is the drive of each file, if they are on several."""
    at, before = 0, None
    for number, part in enumerate(found.parts):
        assert part.low == at  # no gap, no overlap, and in order
        assert 0 < part.nbytes <= block
        reads = each(found, part)
        assert reads
        assert part.first == (found.parts[number - 1].stop if number else 0)
        for index, (file, offset, begin, nbytes) in enumerate(reads):
            assert at == part.low + begin
            last = index == len(reads) - 1
            room = (part.nbytes if last else reads[index + 1][2]) - begin
            assert 0 < nbytes <= room
            assert nbytes == min(room, sizes[file] - offset)  # shorter only at the end of the shard
            assert [offset % PAGE_BYTES, begin % PAGE_BYTES] == [0, 0]  # or O_DIRECT would refuse it
            at += room
        drive = 0 if of is None else of[reads[0][0]]
        if drive == before:  # or the block before would have taken it
            first = reads[1][2] if len(reads) > 1 else part.nbytes
            assert first + found.parts[number - 1].nbytes > block
        before = drive
    assert at == found.nbytes
    assert found.places.dtype == np.int64
    slot = pages_of(found)
    for (file, offset, nbytes), place in zip(wanted, found.places.tolist(), strict=True):
        for byte in {0, nbytes // 2, nbytes - 1} if nbytes else ():
            page, within = (place + byte) // PAGE_BYTES * PAGE_BYTES, (place + byte) % PAGE_BYTES
            assert slot[page] == (file, offset + byte - within)


SIZES = [500_000, 81_920, 90_001, 4095]


# In any order, overlapping, repeated, empty, to the very end.
anything = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 500_000), st.integers(0, 90_000)), max_size=30).map(
    partial(within, SIZES)
)


@settings(derandomize=True, max_examples=60)
@given(anything, st.integers(1, 16), st.booleans())
def test_every_wanted_byte_is_read_to_its_place(wanted, block_pages, few):
    for some in (wanted, sorted(wanted)):
        found = lay(some, SIZES, few=few, block=block_pages * PAGE_BYTES)
        hold(found, some, SIZES, block_pages * PAGE_BYTES)


@settings(derandomize=True, max_examples=60)
@given(anything, st.integers(1, 16))
def test_of_extents_in_order_each_page_is_read_once_and_no_other(wanted, block_pages):
    """Worked out one by one; numpy reads gaps along."""
    found = lay(sorted(wanted), SIZES, few=True, block=block_pages * PAGE_BYTES)
    needed = {
        (file, page * PAGE_BYTES)
        for file, offset, nbytes in wanted
        for page in range(offset // PAGE_BYTES, -(-(offset + nbytes) // PAGE_BYTES))
    }
    assert sorted(pages_of(found).values()) == sorted(needed)


def test_order_decides_which_way_it_goes(monkeypatch):
    asked = []
    monkeypatch.setattr(layout, "coalesce", lambda *args, **kwargs: asked.append(args) or real(*args, **kwargs))
    from gdsload.shards.reads import coalesce as real

    sizes, mib = np.array([10 * 2**20] * 2), 2**20
    for wanted, by_numpy in [
        ([(0, 0, mib), (0, mib, mib), (1, 0, mib)], 0),
        ([(0, mib, mib), (0, 0, mib)], 1),
        ([(1, 0, mib), (0, 0, mib)], 1),
        ([(0, row * 4096, 4096) for row in range(20)], 1),
        ([], 0),
    ]:
        asked.clear()
        found = lay_out(extents_of(wanted), sizes, BLOCK, lambda _nbytes: BLOCK)
        assert len(asked) == by_numpy
        hold(found, wanted, sizes.tolist(), BLOCK)
