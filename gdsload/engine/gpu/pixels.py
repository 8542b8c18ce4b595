"""The pixels of a batch's decoded images in a GPU's memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Protocol

import numpy as np
import torch

from gdsload.shards.format.image_header import REVERSED_COLUMNS, REVERSED_ROWS
from gdsload.system.arrays import IntArray

_TURNS = np.array([(one >= 5, one in REVERSED_ROWS, one in REVERSED_COLUMNS) for one in range(9)], np.int64)
"""For each orientation: whether rows become columns, and those two."""


class Pixels(Protocol):
    """Decoded images of a batch, upright, in a device's memory as long as this lives."""

    @property
    def numbers(self) -> IntArray:
        """The numbers of the images."""

    def place(self, into: IntArray) -> None:
        """Say where they are: address of each first pixel, and bytes from one channel, row and column to the next.

        `into` is int64 ``[batch, 4]``; other images' rows stay.
        """

    def image(self, number: int) -> torch.Tensor | None:
        """An image, uint8 ``[3, height, width]``; None if it is not among them."""


class TensorPixels(NamedTuple):
    """Images as tensors."""

    images: Mapping[int, torch.Tensor]

    @property
    def numbers(self) -> IntArray:
        """See `Pixels.numbers`."""
        return np.array(list(self.images), np.int64)

    def place(self, into: IntArray) -> None:
        """See `Pixels.place`."""
        for number, image in self.images.items():
            into[number] = (image.data_ptr(), *image.stride())

    def image(self, number: int) -> torch.Tensor | None:
        """See `Pixels.image`."""
        return self.images.get(number)


class PackedPixels(NamedTuple):
    """Images one after the other in one memory, as they are stored.

    Attributes:
        memory: uint8.
        numbers: theirs, rising.
        begins: where each begins in it.
        heights: rows as stored.
        widths: pixels in a row as stored.
        orientations: what EXIF says.
        planes: 3, or 1 of grey ones, which is all three channels.
    """

    memory: torch.Tensor
    numbers: IntArray
    begins: IntArray
    heights: IntArray
    widths: IntArray
    orientations: IntArray
    planes: int

    def place(self, into: IntArray) -> None:
        """See `Pixels.place`: turned by steps alone, which may be negative."""
        across, down, over = _TURNS[self.orientations].T
        rows, columns = np.where(across, 1, self.widths), np.where(across, self.widths, 1)
        height, width = np.where(across, self.widths, self.heights), np.where(across, self.heights, self.widths)
        at = self.memory.data_ptr() + self.begins + down * (height - 1) * rows + over * (width - 1) * columns
        channel = self.heights * self.widths if self.planes == 3 else np.zeros_like(rows)
        into[self.numbers] = np.stack([at, channel, rows * (1 - 2 * down), columns * (1 - 2 * over)], axis=1)

    def image(self, number: int) -> torch.Tensor | None:
        """See `Pixels.image`."""
        place = int(np.searchsorted(self.numbers, number))
        if place == len(self.numbers) or self.numbers[place] != number:
            return None
        height, width, begin = int(self.heights[place]), int(self.widths[place]), int(self.begins[place])
        stored = self.memory[begin : begin + self.planes * height * width].view(self.planes, height, width)
        return turned(stored.expand(3, height, width), int(self.orientations[place]))


def turned(image: torch.Tensor, orientation: int) -> torch.Tensor:
    """An image on a GPU, turned as EXIF's orientation says."""
    found = image.transpose(1, 2) if orientation >= 5 else image
    dims = [dim for dim, those in ((1, REVERSED_ROWS), (2, REVERSED_COLUMNS)) if orientation in those]
    return found.flip(dims) if dims else found
