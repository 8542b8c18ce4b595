"""Orders, schedules and networks as several tests make them."""

import numpy as np
from hypothesis import strategies as st

from gdsload.order import BlockOrder, Schedule
from gdsload.order.feistel import Feistel


def block_order(run_lengths=(1000, 37), block=100, window=250, lanes=4, key=7):
    return BlockOrder(run_lengths, block=block, window=window, lanes=lanes, key=key)


def feistel(n, key, positions=None):
    """Images of some positions, or of all."""
    values = np.array(range(n) if positions is None else positions, dtype=np.uint64)
    Feistel(n, key).map_in_place(values)
    return values.astype(np.int64)


def block_orders(runs, *, windows=150, lanes=9):
    """Strategy of block orders of some runs, with windows and lanes up to a number."""
    window = st.integers(1, 5) | st.integers(1, windows)
    return st.builds(
        BlockOrder,
        runs,
        block=st.integers(1, 60),
        window=window,
        lanes=st.integers(1, lanes),
        key=st.integers(0, 2**64 - 1),
    )


@st.composite
def schedules(draw, samples, lanes=1, tails=("share", "pad", "drop"), batches=120):
    """Strategy of the schedules of one of some ranks, with batches up to a size."""
    world_size = draw(st.integers(1, 6))
    rank, batch_size = draw(st.integers(0, world_size - 1)), draw(st.integers(1, 6) | st.integers(1, batches))
    return Schedule(samples, batch_size, rank, world_size, draw(st.sampled_from(tails)), lanes)
