"""Boxes of objects in images: the forms in which they are written, and samples that have them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gdsload.conversion.input_files import open_file
from gdsload.conversion.source import Item
from gdsload.conversion.sources.opened_images import image_size
from gdsload.conversion.sources.pictures import ImageForm
from gdsload.errors import FormatError, OptionError
from gdsload.shards.format.image_header import REVERSED_COLUMNS, REVERSED_ROWS

__all__ = ["BOX_FORMS", "BOX_WAYS_OUT", "BoxForm", "BoxedImage", "batch_of_one", "image_of", "mean_bytes", "some"]

BOX_FORMS = ("xyxy", "xywh", "cxcywh")
"""Left, top, right, bottom, or left, top, width, height, in pixels; or centre, width, height as shares of the image."""

BOX_WAYS_OUT = (
    "Pictures get one size with `size=224` and `resize='squash'`, say, by scaling each side; or keep them as the files "
    "that they are: `keep_encoded=True`."
)
"""The remedy for pictures of several sizes, without cutting objects off."""

_LOOKED_AT = 16
_USUAL_BYTES = 3 * 640 * 480
_FIRST_QUARTER = 5  # of EXIF's orientations, of which those before it leave width and height as they are


class BoxForm:
    """The form in which boxes are written into a dataset.

    Args:
        wanted: one of `BOX_FORMS`.
        look: the form of images. Boxes are scaled with them; those of images that are cut would be others.

    Raises:
        OptionError: if there is no such form, or images are to be cut.
    """

    def __init__(self, wanted: str, look: ImageForm) -> None:
        if wanted not in BOX_FORMS:
            raise OptionError(f"is {wanted!r:.200}", option="boxes", remedy=f"Supported are {', '.join(BOX_FORMS)}.")
        if look.resize == "crop":
            raise OptionError("`resize='crop'` would cut objects off", remedy="Pass `resize='squash'` with size.")
        self.wanted = wanted
        self._size = look.size

    def made(self, boxes: NDArray[np.float64], given: str, width: int, height: int) -> NDArray[np.float32]:
        """Boxes in the form that is wanted.

        Args:
            boxes: float64 ``[boxes, 4]``.
            given: their form.
            width: of the image that they are given for, in pixels.
            height: likewise.

        Returns:
            float32 ``[boxes, 4]``, in pixels of the image as it is made.
        """
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
    """An image file that boxes are given for.

    Attributes:
        fields: what a sample has of it.
        size: its width and height as they are stored.
        orientation: how it is turned then: see `opened_images.upright`.
    """

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
    try:
        with open_file(file) as opened:
            width, height, orientation = image_size(opened, file)
            opened.seek(0)
            return BoxedImage(look.fields("image", opened, file), (width, height), orientation)
    except OSError as error:
        raise FormatError(f"the image cannot be read: {error.strerror}", file=file) from None


def mean_bytes(items: Iterable[Item]) -> int:
    """Bytes of a sample as it is stored: the mean of some."""
    found = []
    for item in items:
        with suppress(FormatError):  # said when it is its turn
            values = (value[0] if isinstance(value, list | tuple) else value for value in item.make().values())
            found.append(sum(len(one) if isinstance(one, bytes) else np.asarray(one).nbytes for one in values))
    return max(sum(found) // len(found), 1) if found else _USUAL_BYTES


def some(items: Sequence[Any]) -> Sequence[Any]:
    """Some at even distances among all."""
    return items[:: -(-len(items) // _LOOKED_AT) or 1]


def batch_of_one(fixed: Mapping[str, Any], ragged: Mapping[str, NDArray[Any]]) -> dict[str, Any]:
    """A sample as a batch, which says that some fields are ragged, however many rows its first samples have."""
    found: dict[str, Any] = {
        name: [value] if isinstance(value, str | bytes) else np.asarray(value)[None] for name, value in fixed.items()
    }
    return found | {name: (rows, np.array([0, len(rows)])) for name, rows in ragged.items()}
