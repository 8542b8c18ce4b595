"""The encoded images of a batch, and what their headers say."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from gdsload.engine.images.jpeg_headers import plain_jpeg_headers
from gdsload.errors import FormatError, Problem
from gdsload.shards.format.image_header import ImageHeader, read_image_header
from gdsload.system.arrays import IntArray

__all__ = ["EncodedImages", "Looked", "Place", "look_at"]

_END_OF_IMAGE = b"\xff\xd9"
Place = Callable[[int], tuple[int, str]]
"""The index of a batch's sample in the user's dataset, by its number in the batch, and its shard's file."""


class EncodedImages(NamedTuple):
    """A field of encoded images, as it is before they are decoded.

    Attributes:
        values: the bytes of all, one behind the other, uint8 ``[bytes]`` in host memory.
        lengths: how many bytes each has.
    """

    values: torch.Tensor
    lengths: IntArray


@dataclass(slots=True)
class Looked:
    """What is known of the images of a batch before they are decoded.

    Attributes:
        values: as in `EncodedImages`.
        memory: the same.
        edges: the first byte of each image, and the one behind its last.
        headers: what each says; None where `errors` has why it is not to be decoded.
        errors: by the image's number, what is wrong with it.
    """

    values: torch.Tensor
    memory: memoryview
    edges: list[tuple[int, int]]
    headers: list[ImageHeader | None]
    errors: dict[int, str] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.edges)

    def data(self, number: int) -> memoryview:
        """The bytes of an image."""
        low, high = self.edges[number]
        return self.memory[low:high]

    def complete_baseline(self) -> NDArray[np.bool_]:
        """Which are baseline JPEGs of 8 bits, grey or in colours, that have an end: what a GPU's hardware decodes."""
        found = np.zeros(len(self), np.bool_)
        for number, header in enumerate(self.headers):
            if header is not None and header.coding == "baseline" and header.bits == 8 and header.channels in (1, 3):
                high = self.edges[number][1]
                ended = self.memory[high - 2 : high] == _END_OF_IMAGE
                found[number] = ended or bytes(self.data(number)[-64:]).rfind(_END_OF_IMAGE) >= 0
        return found

    def sizes(self) -> tuple[IntArray, IntArray]:
        """Height and width of each upright image; 1 where it is not to be decoded."""
        found = [(1, 1) if header is None else header.upright for header in self.headers]
        widths, heights = np.array(found, np.int64).reshape(-1, 2).T
        return heights, widths

    def failed(self, number: int, why: str) -> None:
        """Note that an image cannot be decoded; an earlier reason stays."""
        self.errors.setdefault(number, why)
        self.headers[number] = None

    def error(self, name: str, place: Place) -> FormatError:
        """What is raised for the images that cannot be decoded."""
        problems = []
        for number, why in sorted(self.errors.items()):
            index, file = place(number)
            problems.append(Problem(why, file=file, field=name, samples=(index, index + 1)))
        first = problems[0]
        index = first.samples[0] if first.samples else 0
        return FormatError(
            f"the image of sample {index} in field {name!r} cannot be decoded: {first.message}",
            problems=problems,
            file=first.file,
            remedy='Remove the sample, or pass DecodeImage(..., on_error="zeros") to go on with zeros and a mask. '
            "ShardDataset.verify() tells whether the bytes are those that were written.",
        )


def look_at(encoded: EncodedImages, max_pixels: int) -> Looked:
    """Read the headers of a batch's images.

    Args:
        encoded: the images.
        max_pixels: how many an image may have.
    """
    array, ends = encoded.values.numpy(), np.cumsum(encoded.lengths)
    begins = ends - encoded.lengths
    looked = Looked(
        encoded.values,
        array.data,
        list(zip(begins.tolist(), ends.tolist(), strict=True)),
        plain_jpeg_headers(array, begins, ends),
    )
    for number, header in enumerate(looked.headers):
        if header is None:
            try:
                header = looked.headers[number] = read_image_header(looked.data(number))  # noqa: PLW2901
            except FormatError as error:
                looked.failed(number, str(error))
                continue
        if header.width * header.height > max_pixels:
            looked.failed(
                number, f"it says {header.width} × {header.height} pixels, more than the {max_pixels} of max_pixels"
            )
    return looked
