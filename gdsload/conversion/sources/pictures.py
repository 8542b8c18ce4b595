"""Encoded images to arrays, by Pillow. What is in them is not trusted: formats, pixels and failures are bounded."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import IO, Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from gdsload.conversion.sources.extras import need
from gdsload.errors import FormatError, OptionError

__all__ = ["SUFFIXES", "ImageForm", "decode_image", "image_array"]

SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".ppm", ".pgm", ".pbm", ".bmp", ".tif", ".tiff")

# Not all that Pillow knows: some of its readers start other programs.
_FORMATS = ("JPEG", "PNG", "WEBP", "PPM", "BMP", "TIFF")

Mode = Literal["RGB", "RGBA", "L", "keep"]
Resize = Literal["none", "squash", "crop"]


@dataclass(frozen=True, slots=True)
class ImageForm:
    """What an image is made into.

    Attributes:
        mode: its channels: ``"RGB"``, ``"RGBA"``, ``"L"`` (grey), or ``"keep"``: as they are, palettes as indices.
        size: height and width. None: as they are.
        resize: how it gets there: ``"crop"``, the default, by scaling and cutting off what is too much on both sides
            alike, ``"squash"`` by scaling each side, ``"none"`` not at all: an image of another size is an error.
        upright: turn it as its EXIF data says.

    Raises:
        OptionError: if that cannot be done.
    """

    mode: str = "RGB"
    size: int | None = None
    resize: str | None = None
    upright: bool = False

    def __post_init__(self) -> None:
        if self.mode not in get_args(Mode):
            raise OptionError(f"mode is {self.mode!r}", remedy=f"Supported are {', '.join(get_args(Mode))}.")
        if self.resize is None:
            object.__setattr__(self, "resize", "none" if self.size is None else "crop")
        elif self.resize not in get_args(Resize):
            raise OptionError(f"resize is {self.resize!r}", remedy=f"Supported are {', '.join(get_args(Resize))}.")
        if self.size is not None and not 1 <= self.size <= 65_535:
            raise OptionError(f"size is {self.size}, no number of pixels from 1 to 65535")
        if self.resize != "none" and self.size is None:
            raise OptionError(f"resize is {self.resize!r}, but to which size?", remedy="Pass size=, too.")


def decode_image(file: IO[bytes], look: ImageForm, name: str) -> NDArray[np.uint8]:
    """Decode an image.

    Args:
        file: where its bytes are.
        look: what it is made into.
        name: what it is called, for the error.

    Returns:
        Its pixels, uint8 ``[channels, height, width]``.

    Raises:
        FormatError: if it is damaged, has more pixels than Pillow's `MAX_IMAGE_PIXELS`, or more bits than 8.
        OptionError: if Pillow is missing.
    """
    images = need("PIL.Image", file=name)
    try:
        # Pillow only warns of an image of up to twice as many pixels as it allows.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            warnings.simplefilter("error", images.DecompressionBombWarning)
            with images.open(file, formats=_FORMATS) as image:
                return image_array(image, look, name)
    except (FormatError, OptionError, MemoryError):
        raise
    except Exception as error:  # readers of damaged images raise anything
        raise FormatError(f"the image cannot be decoded: {str(error)[:200]}", file=name) from None


def image_array(image: Any, look: ImageForm, name: str) -> NDArray[np.uint8]:
    """The pixels of a Pillow image, uint8 ``[channels, height, width]``.

    Raises:
        FormatError: if it has more bits than 8, or another size than it must have.
    """
    if image.mode.startswith(("I", "F")):
        raise FormatError(
            f"the image has more than 8 bits a channel (mode {image.mode})",
            file=name,
            remedy="Save such images as arrays (.npy), which keep their bits.",
        )
    if look.upright:
        image = need("PIL.ImageOps").exif_transpose(image)
    image = _channels(image, look.mode)
    if look.size is not None and image.size != (look.size, look.size):
        image = _resized(image, look, look.size, name)
    pixels: NDArray[np.uint8] = np.asarray(image)
    if pixels.ndim == 2:
        pixels = pixels[:, :, None]
    return np.ascontiguousarray(pixels.transpose(2, 0, 1))


def _channels(image: Any, mode: str) -> Any:
    if mode == "keep":
        if image.mode in ("L", "RGB", "RGBA", "P", "LA"):
            return image
        mode = "L" if image.mode == "1" else "RGB"
    return image if image.mode == mode else image.convert(mode)


def _resized(image: Any, look: ImageForm, size: int, name: str) -> Any:
    if look.resize == "none":
        raise FormatError(
            f"the image has {image.height} × {image.width} pixels, not {size} × {size}",
            file=name,
            remedy='Leave resize="none" out, or pass resize="squash".',
        )
    # Indices of a palette must not be mixed.
    by = need("PIL.Image").Resampling
    by = by.NEAREST if image.mode == "P" else by.BILINEAR
    if look.resize == "squash":
        return image.resize((size, size), by)
    return need("PIL.ImageOps").fit(image, (size, size), by)
