"""Encoded images of batches, and what their headers say."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from gdsload.engine.images.jpeg_headers import PlainJpegs, plain_jpegs
from gdsload.errors import FormatError, Problem
from gdsload.shards.format.image_header import ImageHeader, read_image_header
from gdsload.system.arrays import IntArray
from gdsload.system.memory_views import dense_view

_END_OF_IMAGE = b"\xff\xd9"
Place = Callable[[int], tuple[int, str]]
"""The index of a batch's sample in the user's dataset, by its number in the batch, and its shard's file."""


class EncodedImages(NamedTuple):
    """A field of encoded images, as it is before they are decoded.

    Attributes:
        values: the bytes of all, one after the other, uint8 ``[bytes]`` in host memory.
    """

    values: torch.Tensor
    lengths: IntArray


@dataclass(slots=True)
class Looked:
    """Encoded images, with the facts that are known before they are decoded.

    Attributes:
        owners: what their bytes are in.
        values: the host's memory from the first of those bytes to the last; what is in between may be anything.
        memory: the same.
        begins: the first byte of each image.
        ends: the byte after its last.
        plain: what is known of plain JPEGs.
        widths: of each image as stored; 1 where `errors` has why it is not to be decoded.
        heights: likewise.
        orientations: as `ImageHeader` has them.
        headers: what images say, as far as it has been asked for.
        errors: by the image's number, what is wrong with it.
    """

    owners: Sequence[EncodedImages]
    values: torch.Tensor
    memory: memoryview
    begins: IntArray
    ends: IntArray
    plain: PlainJpegs
    widths: IntArray
    heights: IntArray
    orientations: IntArray
    headers: dict[int, ImageHeader] = field(default_factory=dict)
    errors: dict[int, str] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.begins)

    def data(self, number: int) -> memoryview:
        """The bytes of an image."""
        return self.memory[self.begins[number] : self.ends[number]]

    def header(self, number: int) -> ImageHeader:
        """The header of an image that is to be decoded."""
        found = self.headers.get(number)
        if found is None:
            width, height = int(self.widths[number]), int(self.heights[number])
            found = ImageHeader("jpeg", width, height, int(self.plain.channels[number]))
        return found

    def hardware(self) -> NDArray[np.bool_]:
        """A mask of the images that GPU hardware decodes: baseline JPEGs of 8 bits, grey or in colours, with an end."""
        found = self.plain.hardware & (self.ends - self.begins >= 4)
        found[list(self.errors)] = False
        mine, values = np.flatnonzero(found), self.values.numpy()
        last = self.ends[mine]
        for number in mine[(values[last - 2] != 0xFF) | (values[last - 1] != 0xD9)].tolist():
            found[number] = bytes(self.data(number)[-64:]).rfind(_END_OF_IMAGE) >= 0
        return found

    def sizes(self) -> tuple[IntArray, IntArray]:
        """Height and width of each upright image; 1 where it is not to be decoded."""
        turned = self.orientations >= 5
        return np.where(turned, self.widths, self.heights), np.where(turned, self.heights, self.widths)

    def failed(self, number: int, why: str) -> None:
        """Note that an image cannot be decoded; an earlier reason stays."""
        self.errors.setdefault(number, why)

    def error(self, name: str, numbers: Sequence[int], begin: int, place: Place) -> FormatError:
        """The error for images of a batch that cannot be decoded.

        `numbers` are rising; `begin` is that of the batch's first image.
        """
        problems = []
        for number in numbers:
            index, file = place(number - begin)
            problems.append(Problem(self.errors[number], file=file, field=name, samples=(index, index + 1)))
        first = problems[0]
        index = first.samples[0] if first.samples else 0
        return FormatError(
            f"the image of sample {index} in field {name!r} cannot be decoded: {first.message}",
            problems=problems,
            file=first.file,
            remedy='Remove the sample, or pass `DecodeImage(..., on_error="zeros")` to go on with zeros and a mask. '
            "ShardDataset.verify() tells whether the bytes are those that were written.",
        )


def look_at(encoded: Sequence[EncodedImages], max_pixels: int) -> Looked:
    """Read the headers of images, which are numbered through, and of which each may have `max_pixels`.

    They are of several batches: all at once, as it takes half a millisecond for few as for many.
    """
    values, begins = _side_by_side(encoded)
    ends = begins + np.concatenate([np.zeros(0, np.int64), *(one.lengths for one in encoded)])
    array = values.numpy()
    plain = plain_jpegs(array, begins, ends)
    looked = Looked(
        encoded, values, array.data, begins, ends, plain,
        plain.widths.copy(), plain.heights.copy(), np.ones(len(begins), np.int64),
    )  # fmt: skip
    for number in np.flatnonzero((plain.channels == 0) | plain.exif).tolist():
        try:
            header = looked.headers[number] = read_image_header(looked.data(number))
        except FormatError as error:
            looked.failed(number, str(error))
            continue
        looked.widths[number], looked.heights[number] = header.width, header.height
        looked.orientations[number] = header.orientation
    for number in np.flatnonzero(looked.widths * looked.heights > max_pixels).tolist():
        width, height = int(looked.widths[number]), int(looked.heights[number])
        looked.failed(number, f"it says {width} × {height} pixels, more than the {max_pixels} of max_pixels")
    wrong = list(looked.errors)
    looked.widths[wrong] = looked.heights[wrong] = looked.orientations[wrong] = 1
    return looked


def _side_by_side(encoded: Sequence[EncodedImages]) -> tuple[torch.Tensor, IntArray]:
    """The memory that images are in, as one vector, and where each begins in it."""
    addresses = [one.values.data_ptr() for one in encoded]
    low = min(filter(None, addresses), default=0)  # where there are no bytes, there is no address
    high = max((address + one.values.nbytes for address, one in zip(addresses, encoded, strict=True)), default=0)
    values = dense_view(1, 1, low, high - low).view(-1) if low else torch.empty(0, dtype=torch.uint8, device="cpu")
    begins = [
        (address or low) - low + np.cumsum(one.lengths) - one.lengths
        for address, one in zip(addresses, encoded, strict=True)
    ]
    return values, np.concatenate([np.zeros(0, np.int64), *begins])
