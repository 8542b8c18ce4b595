import pytest

from gdsload.order import BlockOrder, FullOrder, Schedule, SequentialOrder
from tests.order.quality import shuffle_quality

SAMPLES = 200_000


def blocks(block, window, lanes):
    return BlockOrder([SAMPLES], block=block, window=window, lanes=lanes, key=11)


def quality(order):
    return shuffle_quality(order, Schedule(SAMPLES, 256, lanes=order.lanes))


@pytest.mark.parametrize(
    ("order", "least", "most"),
    [
        *((FullOrder(SAMPLES, key), 0.75, 1) for key in range(3)),
        (SequentialOrder(SAMPLES), 0, 0.01),
        (blocks(100, 200, 1), 0, 0.03),  # small windows
        (blocks(1, 500, 4), 0.75, 1),  # blocks of one sample are a full shuffle
        # 256 samples from 4 lanes x 16 blocks are worth about as many as there are blocks: 1 / 256 + 1 / 64 = 1 / 51.
        (blocks(100, 1600, 4), 51 / 256 * 0.65, 51 / 256 * 1.35),
    ],
)
def test_orders(order, least, most):
    assert least < quality(order) <= most


def test_more_lanes_and_longer_windows_are_better():
    assert quality(blocks(100, 400, 2)) < quality(blocks(100, 400, 8)) < quality(blocks(100, 1600, 8))
