"""Orders and networks as several tests make them."""

import numpy as np

from gdsload.order import BlockOrder
from gdsload.order.feistel import Feistel


def block_order(run_lengths=(1000, 37), block=100, window=250, lanes=4, key=7):
    return BlockOrder(run_lengths, block=block, window=window, lanes=lanes, key=key)


def feistel(n, key, positions=None):
    """Images of some positions, or of all."""
    values = np.array(range(n) if positions is None else positions, dtype=np.uint64)
    Feistel(n, key).map_in_place(values)
    return values.astype(np.int64)
