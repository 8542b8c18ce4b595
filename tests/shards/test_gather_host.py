"""The gather against a plain loop: any addresses, sizes, alignments, overlaps and orders."""

import itertools
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gdsload.shards import gather_host as gather
from gdsload.shards.gather_host import gather_pieces, gather_rows
from gdsload.system.memory import address_of

SETTINGS = settings(derandomize=True, max_examples=150)
SOURCE = np.random.default_rng(0).integers(0, 256, 1 << 20, np.uint8)
BASE = address_of(SOURCE)
GUARD = 64


def target(nbytes, shift):
    """Memory with a margin on both sides that must stay as it is, and the address of what is between."""
    room = np.full(nbytes + 2 * GUARD + shift, 0xA5, np.uint8)
    return room, address_of(room) + GUARD + shift


def written(room, nbytes, shift):
    low = GUARD + shift
    assert (room[:low] == 0xA5).all()
    assert (room[low + nbytes :] == 0xA5).all()
    return room[low : low + nbytes]


@st.composite
def rows(draw):
    """Offsets of rows: at random, in runs, or on a grid, so that each way of copying is met."""
    row_bytes = draw(
        st.sampled_from([1, 2, 3, 4, 6, 8, 12, 16, 24, 100, 256, 1000, 4096, 5001, 65_536]) | st.integers(0, 40)
    )
    grid = draw(st.sampled_from([1, 2, 4, 8, 64]))
    starts = draw(st.lists(st.integers(0, (len(SOURCE) - 70_000) // grid), max_size=12))
    runs = draw(st.integers(1, max(1, min(8, 70_000 // max(row_bytes, 1)))))
    offsets = [start * grid + step * row_bytes for start in starts for step in range(runs)]
    return (row_bytes, [offset for offset in offsets if offset + row_bytes <= len(SOURCE)], draw(st.integers(0, 15)))


@SETTINGS
@given(rows())
@example((8, [], 0))
@example((0, [1, 2, 3], 0))
@example((8, [64, 64, 64], 0))
@example((16, [8, 16, 24, 0], 8))
@example((20_000, [0, 20_000, 40_000, 80_000], 0))
@example((1, [5], 3))
def test_gather_rows_is_a_loop(case):
    row_bytes, offsets, shift = case
    room, out = target(len(offsets) * row_bytes, shift)
    gather_rows(BASE + np.array(offsets, np.int64), row_bytes, out)
    wanted = b"".join(SOURCE[offset : offset + row_bytes].tobytes() for offset in offsets)
    assert wanted == written(room, len(wanted), shift).tobytes()


@st.composite
def pieces(draw):
    row_bytes = draw(st.sampled_from([0, 1, 2, 3, 4, 8, 12, 16, 100, 1000]))
    grid = draw(st.sampled_from([1, 4, 8]))
    long = draw(st.sampled_from([3, 30, 60]))
    found, position = [], 0
    for _ in range(draw(st.integers(0, 20))):
        if draw(st.booleans()):
            position = draw(st.integers(0, 900_000 // grid)) * grid
        length = draw(st.integers(0, long))
        found.append((position, length))
        position += length * row_bytes
    return row_bytes, [(start, length) for start, length in found if start + length * row_bytes <= len(SOURCE)]


@SETTINGS
@given(
    pieces(),
    st.integers(0, 15),
    st.sampled_from([1, 7, 1 << 22]),
    st.sampled_from([500, 1 << 20]),
    st.sampled_from(["by one call", "as far as that goes", "each by itself"]),
)
@example((4, []), 0, 1, 500, "by one call")
@example((4, [(0, 0), (8, 0)]), 0, 1, 500, "by one call")
@example((1, [(0, 5), (5, 5), (20, 0), (20, 1)]), 1, 1 << 22, 1 << 20, "by one call")
@example((1000, [(3, 400), (7, 1), (9, 1), (11, 1)]), 0, 7, 500, "each by itself")
@example((1000, [(3, 4), (9007, 3), (7, 2)]), 1, 7, 500, "by one call")
@example((1000, [(3, 4), (9007, 3), (7, 2)]), 1, 7, 500, "as far as that goes")
def test_gather_pieces_is_a_loop(case, shift, at_once, long_bytes, how):
    row_bytes, found = case
    starts, lengths = (np.array([item[which] for item in found], np.int64) for which in (0, 1))
    room, out = target(int(lengths.sum()) * row_bytes, shift)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gather, "_MOST_ROWS_AT_ONCE", at_once)
        patch.setattr(gather, "_LONG_PIECE_BYTES", long_bytes)
        patch.setattr(gather, "_FEW_PIECES", 0)
        if how == "each by itself":
            patch.setattr(gather, "usable", lambda: False)
        elif how == "as far as that goes":
            whole = gather.concatenate
            patch.setattr(
                gather,
                "concatenate",
                lambda addresses, nbytes, out: whole(addresses[:2], nbytes[:2], out) and len(nbytes) < 3,
            )
        gather_pieces(BASE + starts, lengths, row_bytes, out)
    wanted = b"".join(SOURCE[start : start + length * row_bytes].tobytes() for start, length in found)
    assert wanted == written(room, len(wanted), shift).tobytes()


@pytest.mark.parametrize("row_bytes", [1, 2, 3, 8, 4096, 100_001, 1_000_001])
def test_rows_may_lie_anywhere_in_memory(row_bytes):
    """The heap and the mapped files of a process are tens of terabytes apart."""
    near = np.arange(2 * row_bytes, dtype=np.uint8)
    far = np.frombuffer(bytes(range(256)) * (row_bytes // 64 + 2), np.uint8)
    addresses = np.array([address_of(near), address_of(far) + 1, 4096 * 20, address_of(near) + row_bytes], np.int64)
    addresses[2] = address_of(SOURCE) + 3 if row_bytes < 2**20 - 3 else address_of(far)
    room, out = target(4 * row_bytes, 1)
    gather_rows(addresses, row_bytes, out)
    third = SOURCE[3 : 3 + row_bytes] if row_bytes < 2**20 - 3 else far[:row_bytes]
    wanted = np.concatenate([near[:row_bytes], far[1 : 1 + row_bytes], third, near[row_bytes:]])
    assert wanted.tobytes() == written(room, 4 * row_bytes, 1).tobytes()


@pytest.mark.parametrize(("row_bytes", "counted"), [(65_528, True), (65_536, False)])
def test_how_far_apart_rows_may_lie_for_torch_to_count_them(monkeypatch, row_bytes, counted):
    """numpy and torch count rows × bytes of all the memory between the first and the last row, in 63 bits."""
    selected, copied = [], []
    monkeypatch.setattr(gather, "_copy_runs", lambda *args: copied.append(args))
    monkeypatch.setattr(
        torch, "index_select", lambda source, _, index, out: selected.append((source.shape, index.tolist(), out.shape))
    )
    addresses = np.array([4096, 4096 + (1 << 50)], np.int64)
    gather_rows(addresses, row_bytes, 1 << 20)
    assert (len(selected), len(copied)) == (counted, not counted)
    if counted:
        width = row_bytes // 8
        assert selected == [(((1 << 47) + 1, width), [0, 1 << 47], (2, width))]
        return
    ((found, nbytes, out),) = copied
    assert (found.tolist(), nbytes.tolist(), out) == (addresses.tolist(), [row_bytes] * 2, 1 << 20)


@pytest.mark.parametrize(
    ("usable", "mean", "count", "way"),
    [
        (True, 200, 100, "elements"), (True, 400, 100, "one call"), (True, 8000, 100, "one call"),
        (True, 400, 32, "each"), (True, 8400, 100, "each"), (False, 400, 100, "elements"), (False, 1100, 100, "each"),
    ],
)  # fmt: skip
def test_how_pieces_are_copied(monkeypatch, usable, mean, count, way):
    """A long one among them changes nothing of that, and its elements are not addressed one by one."""
    found, taken = set(), []
    real = gather.concatenate, np.take, gather.ctypes.memmove
    monkeypatch.setattr(gather, "usable", lambda: usable)
    monkeypatch.setattr(gather, "concatenate", lambda *args: found.add("one call") or real[0](*args))
    monkeypatch.setattr(
        np, "take", lambda *args, **more: (found.add("elements"), taken.append(len(args[1])), real[1](*args, **more))
    )
    memmove = SimpleNamespace(memmove=lambda to, at, n: (n < 1 << 20 and found.add("each")) or real[2](to, at, n))
    monkeypatch.setattr(gather, "ctypes", memmove)
    big = np.random.default_rng(1).integers(0, 256, 1 << 20, np.uint8)
    lengths = np.append(mean + np.tile([-50, 50], count // 2), 1 << 20)
    starts = np.append(BASE + np.arange(count) * 9001, address_of(big))
    room, out = target(int(lengths.sum()), 3)
    gather_pieces(starts, lengths, 1, out)
    wanted = b"".join(SOURCE[at * 9001 : at * 9001 + n].tobytes() for at, n in enumerate(lengths[:-1])) + big.tobytes()
    assert wanted == written(room, len(wanted), 3).tobytes()
    assert found == {way}
    assert sum(taken) <= int(lengths[:-1].sum())


@st.composite
def chunks(draw):
    """Rows in chunks of memory of which some are side by side: sizes in rows, gaps, row bytes, and a choice of rows."""
    row_bytes = draw(st.sampled_from([1, 8, 100, 4096]))
    begins, address = [], draw(st.integers(1, 1000)) * 512
    rows = []
    for count, gap in draw(
        st.lists(st.tuples(st.integers(1, 6), st.sampled_from([0, 0, 512])), min_size=1, max_size=8)
    ):
        shift = draw(st.sampled_from([0, 0, 3]))  # what is read along before the rows
        begins.append(address)
        rows += [address + shift + row * row_bytes for row in range(count)]
        address += shift + count * row_bytes + gap
    order = draw(st.sampled_from(["all", "some", "any"]))
    if order == "all":
        return row_bytes, begins, rows
    picked = draw(st.lists(st.sampled_from(rows), min_size=1, max_size=30))
    return row_bytes, begins, sorted(set(picked)) if order == "some" else picked


@SETTINGS
@given(chunks())
@example((8, [512, 520, 536], [512, 520, 528, 536, 544]))
def test_no_run_reaches_from_one_allocation_into_another(case):
    row_bytes, begins, rows = case
    addresses, edges = np.array(rows), np.array(begins)
    joined = gather.run_starts(addresses, row_bytes)
    first = gather.cut_runs(joined, addresses, row_bytes, edges)
    assert set(joined) <= set(first.tolist())
    assert first.tolist() == sorted(set(first.tolist()))
    for low, high in itertools.pairwise([*first.tolist(), len(rows)]):
        run = addresses[low:high]
        assert (np.diff(run) == row_bytes).all()
        assert not ((edges > run[0]) & (edges < run[-1] + row_bytes)).any()
    # And it is cut nowhere else.
    assert all(index in joined or addresses[index] in edges for index in first.tolist())


def test_a_thread_has_as_many_helpers_as_before():
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        with pytest.raises(KeyboardInterrupt), gather.one_thread():
            assert torch.get_num_threads() == 1
            raise KeyboardInterrupt
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)
