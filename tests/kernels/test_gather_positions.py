"""How the gather from positions shares its words out among warps, and when it fetches rows in another order."""

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from gdsload.kernels import gather_positions
from gdsload.kernels.gather_positions import (
    PART,
    PositionBatch,
    PositionGather,
    rows_in_shards,
    tile_of,
    word_of,
)
from gdsload.kernels.launch import IN_VRAM, OVER_PCIE, WARP
from gdsload.kernels.position_kernels import MOST_BATCHES
from tests.engine.on_host import tensors_on_host

SHAPES = {
    "size": st.integers(1, 3000),
    "width": st.one_of(st.integers(1, 70), st.integers(1, 20_000)),
    "warps": st.sampled_from(sorted({OVER_PCIE.warps, IN_VRAM.warps, 1, 3})),
}


def sort_rows(monkeypatch, row_bytes):
    """Have rows of so many bytes fetched in the order of their addresses, however few they are."""
    monkeypatch.setattr(gather_positions, "SORTED_ROW_BYTES", row_bytes)
    monkeypatch.setattr(gather_positions, "SORTED_FIELD_BYTES", 0)
    monkeypatch.setattr(gather_positions, "SORTED_ROWS", 0)


def gather_of(samples, *, over_pcie=True, **options):
    return PositionGather(torch.device("cpu"), np.array([samples]), over_pcie=over_pcie, **options)


def gather_rows(gather, positions, row_bytes, *, begin=4096, out_bytes=1):
    """Gather rows of one shard, of so many bytes; what was found of them."""
    found = rows_in_shards(gather, np.array([begin]), row_bytes)
    gather.rows(found, positions, [torch.empty(out_bytes, dtype=torch.uint8) for _ in range(positions.batches)])
    return found


@given(batches=st.integers(1, 64), **SHAPES)
@example(size=1, batches=1, width=1, warps=1)
@example(size=2, batches=1, width=PART + 1, warps=3)
def test_no_tile_has_more_rows_than_a_warp_has_threads(size, batches, width, warps):
    """A thread finds one row: of a tile with another row there would be words that nobody knows."""
    tile = tile_of(size, batches, width, warps)
    assert tile > 0
    for begin in {0, tile, size * width // tile * tile, (size * width - 1) // tile * tile}:
        end = min(begin + tile, size * width)
        assert end <= begin or (end - 1) // width - begin // width < WARP


@given(batches=st.integers(1, 256), **SHAPES)
@example(size=1, batches=67, width=518, warps=128)
def test_no_warp_has_much_more_to_do_than_the_others(size, batches, width, warps):
    """Unless the words are so few that it does not matter."""
    tile = tile_of(size, batches, width, warps)
    tiles = -(-size * width // tile) * batches
    longest = -(-tiles // warps) * min(tile, size * width)
    fair = size * batches * width / warps
    assert longest <= 2 * fair + max(PART, width if width <= PART else 0, WARP)


@pytest.mark.parametrize("kib", [32, 40, 48, 56, 63])
@pytest.mark.parametrize("size", [256, 100, 333])
def test_all_warps_are_busy_with_long_rows_whatever_their_size(kib, size):
    """Whole rows, of which a batch has no whole number of tiles, once left a third of the warps idle."""
    batches, width = 2**27 // (size * kib * 1024), kib * 64
    tile = tile_of(size, batches, width, OVER_PCIE.warps)
    longest = -(-(-(-size * width // tile) * batches) // OVER_PCIE.warps) * tile
    assert longest <= 1.1 * size * batches * width / OVER_PCIE.warps


@given(st.lists(st.tuples(st.integers(0, 2**47), st.integers(0, 2**40)), min_size=1), st.integers(1, 2**20))
def test_words_of_rows_are_those_of_where_sample_0_would_be(rows, row_bytes):
    addresses, ids = np.array(rows, np.int64).T
    largest = next(unit for unit in (16, 8, 4, 2, 1) if not (addresses % unit).any() and not row_bytes % unit)
    assert word_of(addresses, row_bytes) == word_of(addresses - ids * row_bytes, row_bytes) == largest


@pytest.fixture
def launched(monkeypatch):
    """The launches: name, parameters, and whether rows come in another order. Samples are found by numpy."""
    found = []

    def launch(self, name, unit, grid, params, outs, *, scattered=False):
        found.append((name, params, scattered))
        if name == "samples":
            batch, number = np.divmod(np.arange(params["all"]), params["size"])
            outs[0].copy_(torch.from_numpy(-(params["first"] + batch * params["stride"] + number) % 1009))

    tensors_on_host(monkeypatch)
    monkeypatch.setattr(PositionGather, "_launch", launch)
    monkeypatch.setattr(gather_positions, "queue_pieces", lambda *given, **how: found.append(("copied", given, how)))
    return found


@pytest.mark.parametrize(
    ("over_pcie", "row_bytes", "samples", "expected"),
    [
        (True, 512, 2**22, True),
        (True, 4096, 2**18 + 1, True),
        (True, 16_383, 2**17, True),
        (True, 512, 2**21, False),  # 1 GiB: what the GPU can keep in mind
        (True, 4096, 2**18, False),
        (True, 16_384, 2**17, False),  # a row of many pages, which are neighbours
        (True, 8, 2**20, False),
        (True, 64, 2**25, True),
        (True, 63, 2**25, False),  # sorting would take nearly as much memory as the rows
        (False, 512, 2**22, False),
    ],
)
@pytest.mark.parametrize("few", [False, True])
def test_many_rows_out_of_much_host_memory_are_sorted(launched, over_pcie, row_bytes, samples, expected, few):
    gather_rows(gather_of(samples, over_pcie=over_pcie), PositionBatch(5, 100, 2, 2**14 - few), row_bytes)
    sort, whole = expected and not few, not row_bytes % 16
    assert [name for name, *_ in launched] == sort * ["samples"] + (
        ["gather"] if whole or row_bytes < 64 else ["pieces", "copied"]
    )
    assert not whole or launched[-1][2] == sort
    assert bool(launched[sort][1].get("places")) == sort


@pytest.mark.parametrize("row_bytes", [64, 512, 2064, 4096, 16_368])
@pytest.mark.parametrize("rows", [1, 100, 10_000])
def test_warps_stay_near_to_each_other_where_rows_are_sorted(launched, monkeypatch, row_bytes, rows):
    monkeypatch.setattr(gather_positions, "SORTED_ROWS", 0)
    found = gather_rows(gather_of(2**25), PositionBatch(0, rows, 1, rows), row_bytes)
    _, params, scattered = launched[-1]
    assert scattered
    assert 0 < params["tile"] * found.unit <= max(2**15, row_bytes)
    assert params["tiles"] * params["tile"] >= params["words"] == rows * found.width


@pytest.mark.parametrize(
    ("over_pcie", "row_bytes", "begin", "expected"),
    [
        (True, 4096, 4096, False),
        (True, 4100, 4096, True),
        (True, 4096, 4104, True),  # in a file of somebody else's
        (True, 60, 4096, False),  # more is to be found than to be copied
        (False, 4100, 4096, False),
    ],
)
def test_rows_that_are_no_whole_words_are_copied_as_pieces_over_the_link(
    launched, over_pcie, row_bytes, begin, expected
):
    gather, positions = gather_of(2**17, over_pcie=over_pcie), PositionBatch(7, 40, MOST_BATCHES + 2, 3)
    gather_rows(gather, positions, row_bytes, begin=begin)
    assert [name for name, *_ in launched] == (["pieces", "copied"] if expected else ["gather"]) * 2
    made = [params for name, params, _ in launched if name == "pieces"]
    assert [(one["first"], one["stride"], one["all"]) for one in made] == [
        (7, 40, 3 * MOST_BATCHES), (7 + 40 * MOST_BATCHES, 40, 6)
    ][: len(made)]  # fmt: skip


def test_what_comes_before_rows_is_made_aside(launched, monkeypatch):
    """Not where rows are: it would wait for those of the batches before."""
    monkeypatch.setattr(gather_positions, "SORTED_ROWS", 0)
    aside = []

    def elsewhere(make):
        before = len(launched)
        made = make()
        aside.extend(launched[before:])
        return made

    gather, positions = gather_of(2**22, side=elsewhere), PositionBatch(5, 100, 3, 4)
    for _ in range(2):
        gather_rows(gather, positions, 512)
    assert [name for name, *_ in aside] == ["samples"]
    assert [name for name, *_ in launched] == ["samples", "gather", "gather"]
    made = (torch.arange(3), torch.arange(4))
    assert gather.on_side_stream(lambda: made) is made


def test_what_is_sorted_once_serves_all_fields(launched, monkeypatch):
    sort_rows(monkeypatch, range(2048))
    gather, positions = gather_of(2000), PositionBatch(5, 100, 3, 4)
    for row_bytes in (16, 24):
        gather_rows(gather, positions, row_bytes, out_bytes=4 * row_bytes)
    samples, places = positions.sorted
    expected = [-position % 1009 for start in (5, 105, 205) for position in range(start, start + 4)]
    assert samples.tolist() == sorted(expected)
    assert [expected[place] for place in places.tolist()] == sorted(expected)
    assert [(name, scattered) for name, _, scattered in launched] == [
        ("samples", False), ("gather", True), ("gather", True)
    ]  # fmt: skip
    for (_, params, _), width in zip(launched[1:], (1, 3), strict=True):
        assert (params["table"], params["places"]) == (samples.data_ptr(), places.data_ptr())
        assert (params["size"], params["words"]) == (4, 12 * width)
        assert "selection" not in params
        assert "network" not in params


def test_more_batches_than_a_launch_takes_are_not_sorted(launched, monkeypatch):
    sort_rows(monkeypatch, range(2048))
    gather_rows(gather_of(2000), PositionBatch(0, 1, MOST_BATCHES + 1, 1), 16, out_bytes=16)
    assert [(name, params["first"], scattered) for name, params, scattered in launched] == [
        ("gather", 0, False), ("gather", MOST_BATCHES, False)
    ]  # fmt: skip
