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

__all__ = ["PlainJpegs", "plain_jpegs"]

_MOST_SEGMENTS = 32
_BASELINE, _SCAN, _APP1 = 0xC0, 0xDA, 0xE1
_PASSED = np.zeros(256, np.bool_)
_PASSED[[*range(0xE0, 0xF0), 0xDB, 0xC4, 0xDD, 0xFE]] = True
"""Segments that say nothing of interest here: applications' own, tables, restart intervals and comments."""
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
    """The headers of baseline JPEGs.

    Args:
        values: the bytes of all images.
        begins: the first byte of each.
        ends: the byte after the last of each.
    """
    frame = np.zeros((3, len(begins)), np.int64)  # width, height, channels
    seen = np.zeros_like(frame)
    exif, sampled, hardware = (np.zeros(len(begins), np.bool_) for _ in range(3))
    mine = np.flatnonzero(ends - begins >= 4)
    at = begins[mine]
    started = (values[at] == 0xFF) & (values[at + 1] == 0xD8)
    mine, at = mine[started], at[started] + 2
    for _ in range(_MOST_SEGMENTS):
        inside = at + 2 + _FRAME_BYTES <= ends[mine]
        mine, at = mine[inside], at[inside]
        if not len(mine):
            break
        marker, nbytes = values[at + 1], _two(values, at + 2)
        whole = (values[at] == 0xFF) & (nbytes >= 2) & (at + 2 + nbytes <= ends[mine])
        first = whole & (marker == _BASELINE) & (nbytes >= _FRAME_BYTES)
        over = whole & (marker == _SCAN)
        done = mine[over]
        seen[:, done] = frame[:, done]
        hardware[done] = sampled[done] & (values[at[over] + 4] == frame[2, done])
        exif[mine[whole & (marker == _APP1)]] = True
        if first.any():
            where = at[first]
            channels = values[where + 9].astype(np.int64)
            good = np.isin(channels, (1, 3)) & (nbytes[first] == _FRAME_BYTES + 3 * channels) & (values[where + 4] == 8)
            frame[:, mine[first]] = found = np.stack([_two(values, where + 7), _two(values, where + 5), channels])
            good &= found[:2].all(0)
            sampled[mine[first][good]] = _sampled(values, where[good], channels[good])
            first[first] = good
        further = first | (whole & _PASSED[marker])
        mine, at = mine[further], at[further] + 2 + nbytes[further]
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
