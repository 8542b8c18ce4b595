"""Images of Pillow's as arrays. Pillow is not imported here: before a user imports it, there are none."""

from __future__ import annotations

import re
import sys
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gdsload.errors import SchemaError

_LIKE = {"1": "L", "La": "LA", "PA": "RGBA", "RGBa": "RGBA"}
"""The modes that images in these modes of Pillow's are converted to; others whose channels are no bytes become RGB."""
# Tags of TIFF, and values of theirs.
_SUBFILE, _BITS, _PHOTOMETRIC, _EXTRA_SAMPLES, _SAMPLE_FORMAT = 254, 258, 262, 338, 339
_REDUCED, _WHITE_IS_ZERO, _UNSPECIFIED, _SIGNED = 1, 0, 0, 2


class Levels(NamedTuple):
    """The numbers that an image file has for the values of a channel, of which Pillow makes 0 to 255.

    Attributes:
        top: the largest one.
        inverted: whether 0 is white.
    """

    top: int = 255
    inverted: bool = False

    def restored(self, image: Any) -> Any:
        """An image with the numbers of its file, none of which is above 255."""
        table = [round(value * self.top / 255) for value in range(256)]
        return image.point([self.top - one if self.inverted else one for one in table] * len(image.getbands()))


def levels(image: Any) -> Levels:
    """The numbers of the file that an image was opened from. Of a loaded image Pillow knows them for a TIFF alone."""
    if image.mode in ("1", "P", "PA"):
        return Levels()
    if image.format == "TIFF":
        tags = _tags(image)
        inverted = image.mode == "L" and tags.get(_PHOTOMETRIC) == _WHITE_IS_ZERO
        return Levels(2 ** max(tags.get(_BITS, (8,))) - 1, inverted)
    if not getattr(image, "tile", None):
        return Levels()
    decoder, details = image.tile[0][0], image.tile[0][3]
    if image.format == "PNG" and (match := re.search(r";(\d+)", str(details))):
        return Levels(2 ** int(match[1]) - 1)
    if image.format == "PPM" and decoder in ("ppm", "ppm_plain"):
        return Levels(int(details[1]))
    return Levels()


def _tags(image: Any) -> Any:
    """The tags of a TIFF; none if the image was pickled, which loses them."""
    return getattr(image, "tag_v2", {})


def is_picture(value: object) -> bool:
    """Return whether a value is an image of Pillow's."""
    image = getattr(sys.modules.get("PIL.Image"), "Image", None)  # none yet while another thread imports it
    return image is not None and isinstance(value, image)


def picture_array(image: Any, field: str) -> NDArray[np.uint8]:
    """The pixels of an image of Pillow's, uint8 ``[channels, height, width]``, palettes as indices.

    Raises:
        SchemaError: if the image has more than that.
    """
    if lost := what_is_lost(image):
        raise SchemaError(lost.what, field=field, remedy=f"Pass it as an array, {lost.array}, which has all.")
    return channels_first(of_8_bits(image))


class Lost(NamedTuple):
    """The part of an image that no array of 8 bits a channel can hold.

    Attributes:
        what: what it is, in words.
        array: the Python expression for an array that has it.
    """

    what: str
    array: str


def what_is_lost(image: Any) -> Lost | None:
    """The part of an image that no array of 8 bits a channel can hold; None if there is none.

    If the image was opened and not yet loaded, its file decides. Of a loaded image Pillow knows the mode, and of a TIFF
    the tags.
    """
    read = "tifffile.imread(file)"
    if image.format != "TIFF":  # OpenCV has blue first
        order = "BGRA2RGBA" if image.mode == "RGBA" else "BGR2RGB"
        read = f"cv2.cvtColor(cv2.imread(file, cv2.IMREAD_UNCHANGED), cv2.COLOR_{order})"
    top, deep = levels(image).top, image.mode.startswith(("I", "F"))
    if deep or top > 255:
        if deep and image.format != "TIFF":
            scaled = image.format == "PPM" and top > 255  # Pillow makes it 0 to 65535
            read = f"np.round(np.asarray(image) * ({top} / 65535))" if scaled else "np.asarray(image)"
        return Lost(f"the image has more than 8 bits a channel (mode {image.mode})", read)
    if (pages := _pages(image)) > 1:
        what = f"the image file has {pages} pictures (pages or frames), of which a field holds one"
        return Lost(what, "np.stack([np.array(page) for page in PIL.ImageSequence.Iterator(image)])")
    if image.format == "TIFF":
        if _SIGNED in _tags(image).get(_SAMPLE_FORMAT, ()):
            return Lost("the image has values below 0, which Pillow does not read", read)
        if _UNSPECIFIED in _tags(image).get(_EXTRA_SAMPLES, ()):
            return Lost(f"the image has more channels than the {image.mode} that Pillow reads", read)
    return None


def _pages(image: Any) -> int:
    """The number of pictures in an image's file; 1 if the image is not the first: then it was chosen.

    Smaller copies in a TIFF do not count, and neither do further pictures in the format MPO, whose first is the photo.
    """
    count = getattr(image, "n_frames", 1)
    if count == 1 or image.format == "MPO" or image.tell():
        return 1
    found = count
    if image.format == "TIFF":
        for page in range(1, count):
            image.seek(page)
            found -= _tags(image).get(_SUBFILE, 0) & _REDUCED
        image.seek(0)
    return int(found)


def of_8_bits(image: Any) -> Any:
    """The image itself if its channels are bytes, else one of the same look whose are."""
    if image.mode in ("L", "RGB", "RGBA", "P", "LA"):
        return image
    return image.convert(_LIKE.get(image.mode, "RGB"))


def channels_first(image: Any) -> NDArray[np.uint8]:
    """The pixels of an image whose channels are bytes, ``[channels, height, width]``."""
    pixels: NDArray[np.uint8] = np.asarray(image)
    if pixels.ndim == 2:
        pixels = pixels[:, :, None]
    return np.ascontiguousarray(pixels.transpose(2, 0, 1))
