"""How the gather from positions shares its words out among warps."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from gdsload.engine.gather_positions import _PART, _tile
from gdsload.engine.kernels import IN_VRAM, LONG_ROWS, SHORT_ROWS, WARP

WARPS = sorted({LONG_ROWS.warps, SHORT_ROWS.warps, IN_VRAM.warps, 1, 3})


@given(
    size=st.integers(1, 3000),
    batches=st.integers(1, 64),
    width=st.one_of(st.integers(1, 70), st.integers(1, 20_000)),
    warps=st.sampled_from(WARPS),
)
@example(size=1, batches=1, width=1, warps=1)
@example(size=2, batches=1, width=_PART + 1, warps=3)
def test_no_tile_has_more_rows_than_a_warp_has_threads(size, batches, width, warps):
    """A thread finds one row: of a tile with another row there would be words that nobody knows."""
    tile = _tile(size * batches, width, warps)
    assert tile > 0
    for begin in {0, tile, size * width // tile * tile, (size * width - 1) // tile * tile}:
        end = min(begin + tile, size * width)
        assert end <= begin or (end - 1) // width - begin // width < WARP


@given(
    rows=st.integers(1, 200_000),
    width=st.one_of(st.integers(1, 70), st.integers(1, 20_000)),
    warps=st.sampled_from(WARPS),
)
def test_no_warp_has_much_more_to_do_than_the_others(rows, width, warps):
    """Unless the words are so few that it does not matter."""
    tile = _tile(rows, width, warps)
    tiles = -(-rows * width // tile)
    longest = -(-tiles // warps) * tile
    fair = rows * width / warps
    assert longest <= 2 * fair + max(_PART, width if width <= _PART else 0, WARP)
