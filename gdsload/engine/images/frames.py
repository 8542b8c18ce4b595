"""The part of each image that is shown, and its place: a pure function of a key, the sample's number and the size.

The rectangle is that of torchvision's ``RandomResizedCrop``: ten tries, then the largest one of an allowed shape in the
middle. All samples of a batch are computed at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gdsload.order.hashing import hash_into
from gdsload.system.arrays import IntArray
from gdsload.transforms import DecodeImage

_TRIES = 10
_NUMBERS = 32
"""Random numbers that a sample may draw: two for each try, two for the place, one for the flip, and some to spare."""
_FLIP = 2 * _TRIES + 2


class Draws(NamedTuple):
    """The source of the random numbers of samples.

    Attributes:
        key: of the epoch; or keys, one for each sample, ``[samples, 1]``.
        numbers: that of each sample in it, from 0 on.
    """

    key: int | NDArray[np.uint64]
    numbers: IntArray

    @classmethod
    def of_all(cls, draws: Sequence[Draws]) -> Draws:
        """The source for the samples of several batches, which each have one key."""
        keys = np.array([one.key for one in draws], np.uint64)
        counts = [len(one.numbers) for one in draws]
        return cls(np.repeat(keys, counts)[:, None], np.concatenate([one.numbers for one in draws]))


class Frame(NamedTuple):
    """The frame of an image: a rectangle of it is resized, and a rectangle is cut out of that.

    Attributes:
        top, left, height, width: the rectangle of the upright image that is resized; what is around it has no part.
        rows, columns: what it is resized to.
        cut_top, cut_left: where the result begins in that.
        flip: whether the result is flipped horizontally: 1 or 0.
    """

    top: int
    left: int
    height: int
    width: int
    rows: int
    columns: int
    cut_top: int
    cut_left: int
    flip: int


FRAME_WORDS = len(Frame._fields)


def frames(options: DecodeImage, heights: IntArray, widths: IntArray, draws: Draws) -> IntArray:
    """The frames of some images, from the sizes of the upright ones: int64 ``[images, FRAME_WORDS]``."""
    uniform = _uniform(draws)
    found = np.zeros((len(heights), FRAME_WORDS), np.int64)
    found[:, 2], found[:, 3] = heights, widths
    size = options.rows_and_columns
    found[:, 4:6] = found[:, 2:4] if size is None else size
    if size is not None and options.crop == "random-resized":
        found[:, :4] = _rectangles(options, heights, widths, uniform)
    elif size is not None and options.crop == "center":
        short = options.short_side
        wide = widths > heights
        # As torchvision has it: the long side is cut to a whole number, and the place is rounded.
        found[:, 4] = np.where(wide, short, short * heights // widths)
        found[:, 5] = np.where(wide, short * widths // heights, short)
        found[:, 6] = np.rint((found[:, 4] - size[0]) / 2)
        found[:, 7] = np.rint((found[:, 5] - size[1]) / 2)
    found[:, 8] = uniform[:, _FLIP] < options.flip
    return found


def flips(options: DecodeImage, draws: Draws) -> NDArray[np.bool_]:
    """A mask of the images that are flipped, as `frames` says it: shape ``[images]``."""
    if not options.flip:
        return np.zeros(len(draws.numbers), np.bool_)
    return _uniform(draws)[:, _FLIP] < options.flip


def _uniform(draws: Draws) -> NDArray[np.float64]:
    """Random numbers in [0, 1), ``[samples, _NUMBERS]``."""
    values = (draws.numbers[:, None] * _NUMBERS + np.arange(_NUMBERS)).astype(np.uint64)
    scratch = np.empty_like(values)
    hash_into(values, np.asarray(draws.key, np.uint64), values, scratch)
    return (values >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _rectangles(
    options: DecodeImage, heights: IntArray, widths: IntArray, uniform: NDArray[np.float64]
) -> NDArray[np.int64]:
    """Top, left, height and width of a random rectangle of each image."""
    area, (low, high) = (heights * widths).astype(np.float64)[:, None], options.scale
    logs = np.log(options.ratio)
    target = area * (low + (high - low) * uniform[:, :_TRIES])
    aspect = np.exp(logs[0] + (logs[1] - logs[0]) * uniform[:, _TRIES : 2 * _TRIES])
    width, height = np.rint(np.sqrt(target * aspect)), np.rint(np.sqrt(target / aspect))
    fits = (width > 0) & (width <= widths[:, None]) & (height > 0) & (height <= heights[:, None])
    first, each = fits.argmax(1), np.arange(len(fits))
    rows, columns = height[each, first].astype(np.int64), width[each, first].astype(np.int64)
    top = (uniform[:, 2 * _TRIES] * (heights - rows + 1)).astype(np.int64)
    left = (uniform[:, 2 * _TRIES + 1] * (widths - columns + 1)).astype(np.int64)
    found = np.stack([top, left, rows, columns], axis=1)
    none = ~fits.any(1)
    found[none] = _middles(options.ratio, heights[none], widths[none])
    return found


def _middles(ratio: tuple[float, float], heights: IntArray, widths: IntArray) -> NDArray[np.int64]:
    """The largest rectangle of an allowed shape in the middle of each image."""
    shape = widths / heights
    rows = np.where(shape < ratio[0], np.rint(widths / ratio[0]), heights).astype(np.int64)
    columns = np.where(shape > ratio[1], np.rint(heights * ratio[1]), widths).astype(np.int64)
    rows, columns = np.maximum(rows, 1), np.maximum(columns, 1)
    return np.stack([(heights - rows) // 2, (widths - columns) // 2, rows, columns], axis=1)
