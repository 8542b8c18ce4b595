import pytest

from gdsload.order import BlockOrder, FullOrder, Schedule, SequentialOrder
from tests.order.quality import shuffle_quality

SAMPLES = 200_000


def block_quality(block, window, lanes, batch_size=256):
    order = BlockOrder([SAMPLES], block=block, window=window, lanes=lanes, key=11)
    return shuffle_quality(order, Schedule(SAMPLES, batch_size, lanes=lanes))


def test_a_full_shuffle_is_a_full_shuffle():
    for key in range(3):
        assert shuffle_quality(FullOrder(SAMPLES, key), Schedule(SAMPLES, 256)) > 0.75


def test_dataset_order_is_hardly_a_shuffle():
    assert 0 < shuffle_quality(SequentialOrder(SAMPLES), Schedule(SAMPLES, 256)) < 0.01


def test_small_windows_are_far_worse():
    assert block_quality(100, 200, 1) < 0.03


def test_blocks_of_one_sample_are_a_full_shuffle():
    assert block_quality(1, 500, 4) > 0.75


def test_a_batch_is_worth_about_as_many_samples_as_there_are_blocks_to_draw_from():
    # 256 samples from 4 lanes x 16 blocks: 1 / 256 + 1 / 64 = 1 / 51.
    assert block_quality(100, 1600, 4) == pytest.approx(51 / 256, rel=0.35)


def test_more_lanes_and_longer_windows_are_better():
    worst, wider, longer = block_quality(100, 400, 2), block_quality(100, 400, 8), block_quality(100, 1600, 8)
    assert worst < wider < longer
