"""Boxes of objects in images: the forms in which they are written, and samples that have them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from gdsload.conversion.input_files import open_file
from gdsload.conversion.reasons import reading
from gdsload.conversion.sources.opened_images import image_size
from gdsload.conversion.sources.pictures import ImageForm
from gdsload.errors import OptionError
from gdsload.shards.format.image_header import REVERSED_COLUMNS, REVERSED_ROWS

Boxes = Literal["xyxy", "xywh", "cxcywh"]
"""Left, top, right, bottom, or left, top, width, height, in pixels; or centre, width, height as shares of the image."""

BOX_WAYS_OUT = (
    "Pictures get one size with `size=224` and `resize='squash'`, say, by scaling each side; or keep them as the files "
    "that they are: `keep_encoded=True`."
)
"""The remedy for pictures of several sizes, without cutting objects off."""

_FIRST_QUARTER = 5  # of EXIF's orientations, of which those before it leave width and height as they are


class BoxForm:
    """The form in which boxes are written into a dataset.

    Args:
        wanted: the form.
        look: the form of images. Boxes are scaled with them; those of images that are cut would be others.

    Raises:
        OptionError: if images are to be cut.
    """

    def __init__(self, wanted: Boxes, look: ImageForm) -> None:
        if look.resize == "crop":
            raise OptionError("`resize='crop'` would cut objects off", remedy="Pass `resize='squash'` with `size`.")
        self.wanted = wanted
        self._size = look.size

    def made(self, boxes: NDArray[np.float64], given: str, width: int, height: int) -> NDArray[np.float32]:
        """Boxes ``[boxes, 4]`` of an image of these pixels in the wanted form, for the image as it is made."""
        scale = (1.0, 1.0) if self._size is None else (self._size / width, self._size / height)
        if given == self.wanted and (given == "cxcywh" or scale == (1.0, 1.0)):  # to the bit
            return boxes.astype(np.float32)
        first, second = boxes[:, :2], boxes[:, 2:]
        if given == "cxcywh":
            low, high = (first - second / 2) * (width, height), (first + second / 2) * (width, height)
        else:
            low, high = first, second if given == "xyxy" else first + second
        if self.wanted == "cxcywh":
            found = np.concatenate([(low + high) / 2, high - low], 1) / (width, height, width, height)
        else:
            low, high = low * scale, high * scale
            found = np.concatenate([low, high if self.wanted == "xyxy" else high - low], 1)
        return found.astype(np.float32)


@dataclass(frozen=True, slots=True)
class BoxedImage:
    """The fields of an image file that has boxes, its width and height as stored, and how `upright` turns it then."""

    fields: dict[str, Any]
    size: tuple[int, int]
    orientation: int

    @property
    def upright(self) -> tuple[int, int]:
        """Width and height of the turned image."""
        return self.size[::-1] if self.orientation >= _FIRST_QUARTER else self.size

    def turned(self, boxes: NDArray[np.float64]) -> NDArray[np.float64]:
        """Boxes in the turned image, of boxes in the stored one: left, top, width, height, all in pixels."""
        (left, top, across, down), (width, height) = boxes.T, self.upright
        if self.orientation >= _FIRST_QUARTER:
            left, top, across, down = top, left, down, across
        if self.orientation in REVERSED_COLUMNS:
            left = width - left - across
        if self.orientation in REVERSED_ROWS:
            top = height - top - down
        return np.stack([left, top, across, down], 1)


def image_of(file: str, look: ImageForm) -> BoxedImage:
    """An image file, made into what is wanted.

    Raises:
        FormatError: if it cannot be read.
    """
    with reading("the image cannot be read", file, OSError), open_file(file) as opened:
        width, height, orientation = image_size(opened, file)
        opened.seek(0)
        return BoxedImage(look.fields("image", opened, file), (width, height), orientation)


def batch_of_one(fixed: Mapping[str, Any], ragged: Mapping[str, NDArray[Any]]) -> dict[str, Any]:
    """A sample as a batch, which says that some fields are ragged, however many rows its first samples have."""
    found: dict[str, Any] = {
        name: [value] if isinstance(value, str | bytes) else np.asarray(value)[None] for name, value in fixed.items()
    }
    return found | {name: (rows, np.array([0, len(rows)])) for name, rows in ragged.items()}
