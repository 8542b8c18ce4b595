"""The rectangles that are cut out of images: torchvision's, from random numbers that belong to the sample alone."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gdsload.engine.images.frames import Draws, Frame, frames
from gdsload.order.hashing import MASK64, mix64
from gdsload.transforms import DecodeImage

GOLDEN = 0x9E3779B97F4A7C15
SIDES = st.integers(1, 3000)


def uniform(key, number, which):
    return (mix64((key + (number * 32 + which) * GOLDEN) & MASK64) >> 11) * 2.0**-53


def rectangle(options, height, width, draw):
    """The rectangle of a sample as torchvision's algorithm has it, one try after the other."""
    low, high = options.scale
    logs = [math.log(one) for one in options.ratio]
    for tried in range(10):
        area = height * width * (low + (high - low) * draw(tried))
        aspect = math.exp(logs[0] + (logs[1] - logs[0]) * draw(10 + tried))
        columns, rows = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if 0 < columns <= width and 0 < rows <= height:
            return int(draw(20) * (height - rows + 1)), int(draw(21) * (width - columns + 1)), rows, columns
    rows, columns = height, width
    if width / height < options.ratio[0]:
        rows = max(round(width / options.ratio[0]), 1)
    elif width / height > options.ratio[1]:
        columns = max(round(height * options.ratio[1]), 1)
    return (height - rows) // 2, (width - columns) // 2, rows, columns


def made(options, sizes, key=1, numbers=None):
    heights, widths = np.array(sizes, np.int64).reshape(-1, 2).T
    numbers = np.arange(len(sizes)) if numbers is None else np.array(numbers, np.int64)
    return [Frame(*row) for row in frames(options, heights, widths, Draws(key, numbers)).tolist()]


@given(
    st.lists(st.tuples(SIDES, SIDES), max_size=8),
    st.integers(0, MASK64),
    st.integers(0, 2**40),
    st.sampled_from([((0.08, 1.0), (3 / 4, 4 / 3)), ((0.9, 1.0), (0.2, 0.25)), ((0.01, 0.02), (1.0, 1.0))]),
)
def test_rectangles_are_torchvisions(sizes, key, first, ranges):
    options = DecodeImage(size=(9, 8), crop="random-resized", scale=ranges[0], ratio=ranges[1], flip=0.3)
    found = made(options, sizes, key, range(first, first + len(sizes)))
    for number, ((height, width), frame) in enumerate(zip(sizes, found, strict=True)):
        draw = lambda which, number=first + number: uniform(key, number, which)  # noqa: E731
        assert frame[:4] == rectangle(options, height, width, draw)
        assert frame[4:] == (9, 8, 0, 0, draw(22) < 0.3)
        assert frame.top >= 0 <= frame.left
        assert 0 < frame.height <= height - frame.top
        assert 0 < frame.width <= width - frame.left


@given(st.tuples(SIDES, SIDES), st.integers(1, 400), st.integers(0, 100))
def test_the_middle_is_torchvisions(size, cut, more):
    (height, width), short = size, cut + more
    (frame,) = made(DecodeImage(size=cut, crop="center", resize=short), [size])
    rows, columns = (short, int(short * width / height)) if width > height else (int(short * height / width), short)
    assert frame == (0, 0, height, width, rows, columns, round((rows - cut) / 2), round((columns - cut) / 2), 0)


def test_the_short_side_is_256_for_224():
    (frame,) = made(DecodeImage(size=224, crop="center"), [(300, 400)])
    assert (frame.rows, frame.columns) == (256, 341)


@pytest.mark.parametrize(("size", "rows"), [(None, (7, 9)), (5, (5, 5)), ((3, 4), (3, 4))])
def test_without_a_crop_all_of_it_is_shown(size, rows):
    assert made(DecodeImage(size=size), [(7, 9)]) == [(0, 0, 7, 9, *rows, 0, 0, 0)]


def test_samples_draw_apart_and_evenly():
    options = DecodeImage(size=8, crop="random-resized", flip=0.25)
    found = made(options, [(400, 400)] * 4000, 5)
    assert len({frame[:4] for frame in found}) > 3900
    assert 0.22 < np.mean([frame.flip for frame in found]) < 0.28
    shares = [frame.height * frame.width / 160_000 for frame in found]
    assert 0.45 < np.mean(shares) < 0.5  # what is nearly all of a square seldom fits into it
    assert min(shares) < 0.09
    assert max(shares) > 0.95
    rest = [frame.top / (400 - frame.height) for frame in found if frame.height < 300]
    assert 0.47 < np.mean(rest) < 0.53
