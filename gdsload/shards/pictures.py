"""Images of Pillow's as arrays. Where nobody has imported Pillow there are none, and it is not imported for that."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gdsload.errors import SchemaError

__all__ = ["channels_first", "is_picture", "of_8_bits", "picture_array"]

_LIKE = {"1": "L", "La": "LA", "PA": "RGBA", "RGBa": "RGBA"}
"""What images in these modes of Pillow's are converted to; those in others whose channels are no bytes, to RGB."""


def is_picture(value: object) -> bool:
    """Whether it is an image of Pillow's."""
    image = getattr(sys.modules.get("PIL.Image"), "Image", None)  # none yet while another thread imports it
    return image is not None and isinstance(value, image)


def picture_array(image: Any, field: str) -> NDArray[np.uint8]:
    """The pixels of an image of Pillow's, uint8 ``[channels, height, width]``, palettes as indices.

    Raises:
        SchemaError: if it has more bits than 8.
    """
    if image.mode.startswith(("I", "F")):
        raise SchemaError(
            f"the image has more than 8 bits a channel (mode {image.mode})",
            field=field,
            remedy="Pass it as an array, np.asarray(image), which keeps them.",
        )
    return channels_first(of_8_bits(image))


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
