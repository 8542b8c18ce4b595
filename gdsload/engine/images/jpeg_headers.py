"""The headers of a batch's plain JPEGs, read side by side.

`read_image_header` takes 15 µs of Python for an image, which is most of what a GPU takes to decode it and make its part
of a batch. Nearly all JPEGs begin with a row of segments without anything between them; those are walked through for
all images at once, by some calls of numpy for each segment. Whatever else there is, is for `read_image_header`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gdsload.system.arrays import IntArray

_MOST_SEGMENTS = 32
_START = 0xFFD8
_PASSED, _FRAME, _SCAN, _APP1 = 1, 2, 3, 4
_KINDS = np.zeros(2**16, np.uint8)
"""The kind of a segment by its marker; 0 for those that only `read_image_header` knows. Passed are applications' own,
tables, restart intervals and comments."""
_KINDS[[*range(0xFFE0, 0xFFF0), 0xFFDB, 0xFFC4, 0xFFDD, 0xFFFE]] = _PASSED
_KINDS[[0xFFC0, 0xFFDA, 0xFFE1]] = _FRAME, _SCAN, _APP1
_FRAME_BYTES = 8
"""Of a frame header those that are looked at: its length, bits, height, width and number of components."""
_GREY = np.array([0x11], np.uint8)
_COLOURS = np.array([0x11, 0x21, 0x12, 0x22], np.uint8)
"""How often components are sampled, across and down, in images that hardware decodes: of colours the first one; the
others once."""


class PlainJpegs(NamedTuple):
    """The facts in the headers of some images, as far as they are plain JPEGs.

    Attributes:
        widths: pixels in a row as stored; 0 where an image is no baseline JPEG of 8 bits in one or three channels, or
            is one that is not plain.
        heights: rows, likewise.
        channels: 1 or 3, likewise.
        exif: which may have EXIF data, and so an orientation.
        hardware: which have all components in one scan, sampled as hardware decodes it.
    """

    widths: IntArray
    heights: IntArray
    channels: IntArray
    exif: NDArray[np.bool_]
    hardware: NDArray[np.bool_]


def plain_jpegs(values: NDArray[np.uint8], begins: IntArray, ends: IntArray) -> PlainJpegs:
    """The headers of baseline JPEGs, which are the bytes from `begins` to `ends` of `values`."""
    frame = np.zeros((3, len(begins)), np.int64)  # width, height, channels
    seen = np.zeros_like(frame)
    exif, sampled, hardware = (np.zeros(len(begins), np.bool_) for _ in range(3))
    # The number that four bytes make, from each place on. There are few calls of numpy for a segment: each gives the
    # interpreter lock away, and where a dozen threads want it, getting it back takes ten times as long as the call.
    words: NDArray[np.uint32] = np.ndarray((max(len(values) - 3, 0),), ">u4", values, strides=(1,))
    mine = np.flatnonzero(ends - begins >= 4)
    at = begins[mine]
    started = words[at] >> 16 == _START
    mine, at = mine[started], at[started] + 2
    last = ends[mine] - 2 - _FRAME_BYTES
    for _ in range(_MOST_SEGMENTS):
        inside = at <= last
        if not inside.all():
            mine, at, last = mine[inside], at[inside], last[inside]
        if not len(mine):
            break
        word = words[at]
        kind, nbytes = _KINDS[word >> 16], word & 0xFFFF
        after = at + 2 + nbytes
        further = kind == _PASSED
        if not further.all() or nbytes.min() < 2:
            whole = (nbytes >= 2) & (after <= last + 2 + _FRAME_BYTES)
            first, over = (whole & (kind == one) for one in (_FRAME, _SCAN))
            done = mine[over]
            seen[:, done] = frame[:, done]
            hardware[done] = sampled[done] & (values[at[over] + 4] == frame[2, done])
            exif[mine[whole & (kind == _APP1)]] = True
            if first.any():
                where = at[first]
                channels = values[where + 9].astype(np.int64)
                good = np.isin(channels, (1, 3)) & (nbytes[first] == _FRAME_BYTES + 3 * channels)
                good &= values[where + 4] == 8
                frame[:, mine[first]] = found = np.stack([_two(values, where + 7), _two(values, where + 5), channels])
                good &= found[:2].all(0)
                sampled[mine[first][good]] = _sampled(values, where[good], channels[good])
                first[first] = good
            further = first | (whole & ((kind == _PASSED) | (kind == _APP1)))
            mine, after, last = mine[further], after[further], last[further]
        at = after
    return PlainJpegs(seen[0], seen[1], seen[2], exif, hardware)


def _sampled(values: NDArray[np.uint8], frames: IntArray, channels: IntArray) -> NDArray[np.bool_]:
    """A mask of the images whose components are sampled as hardware decodes it, from the begins of frame headers."""
    coloured = channels == 3
    last = np.where(coloured, frames + 17, frames)
    others = (values[last - np.where(coloured, 3, 0)] == 0x11) & (values[last] == 0x11)
    return np.where(
        coloured, np.isin(values[frames + 11], _COLOURS) & others, np.isin(values[frames + 11], _GREY)
    )  # fmt: skip


def _two(values: NDArray[np.uint8], at: IntArray) -> IntArray:
    """Numbers of two bytes."""
    return values[at].astype(np.int64) << 8 | values[at + 1]
