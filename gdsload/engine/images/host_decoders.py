"""Decoding one image on the host: to RGB, upright, as Pillow does it.

JPEGs are decoded by simplejpeg where it is installed: libjpeg-turbo without Pillow's copies, to the same pixels. Where
it sees anything wrong Pillow judges, which forgives what most programs forgive. Both release the interpreter lock.
"""

from __future__ import annotations

import io
from functools import lru_cache
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gdsload.errors import OptionError
from gdsload.shards.format.image_header import REVERSED_COLUMNS, REVERSED_ROWS, ImageHeader

Pixels = NDArray[np.uint8]
"""An RGB image, ``[height, width, 3]``."""


def refuse_without_decoder() -> None:
    """Refuse to decode images where nothing is installed that could.

    Raises:
        OptionError: if Pillow is missing.
    """
    if _pillow() is None:
        raise OptionError(
            "needs Pillow, which is not installed",
            option="decode",
            remedy="Install it with: pip install 'gdsload[images]'.",
        )


def decode_image(data: memoryview, header: ImageHeader, buffer: bytearray | memoryview | None = None) -> Pixels:
    """Decode an image to RGB, and turn it upright.

    The buffer may be decoded into, if it is large enough: it is in use as long as the result is.

    Raises:
        Exception: of whatever kind the decoder raises, if it cannot be decoded.
    """
    pixels = None
    if header.codec == "jpeg" and header.bits == 8 and header.channels in (1, 3):
        pixels = _by_simplejpeg(data, header, buffer)
    if pixels is None:
        pixels = _by_pillow(data, header.codec)
    if pixels.shape != (header.height, header.width, 3):
        raise ValueError(
            f"its header says {header.width} × {header.height} pixels, but it has {pixels.shape[1]} × {pixels.shape[0]}"
        )
    return pixels if header.orientation == 1 else np.ascontiguousarray(upright(pixels, header.orientation))


def upright(pixels: Pixels, orientation: int) -> Pixels:
    """A view of an image, turned as EXIF's orientation, from 1 to 8, says."""
    turned = pixels.swapaxes(0, 1) if orientation >= 5 else pixels
    down = -1 if orientation in REVERSED_ROWS else 1
    across = -1 if orientation in REVERSED_COLUMNS else 1
    return turned[::down, ::across]


def _by_simplejpeg(data: memoryview, header: ImageHeader, buffer: bytearray | memoryview | None) -> Pixels | None:
    """A JPEG's pixels; None if it cannot be decoded without a word, which is for Pillow to judge."""
    if (module := simplejpeg()) is None:
        return None
    if buffer is not None and len(buffer) < header.width * header.height * 3:
        buffer = None
    try:
        found: Pixels = module.decode_jpeg(data, colorspace="RGB", buffer=buffer)
    except ValueError:
        return None
    return found


def _by_pillow(data: memoryview, codec: str) -> Pixels:
    with _pillow().open(io.BytesIO(data), formats=(codec.upper(),)) as image:
        image.load()
        if image.mode.startswith("I"):  # 16 bits of grey, which Pillow would clip to 255
            grey = (np.asarray(image) >> 8).astype(np.uint8)
            return np.repeat(grey[:, :, None], 3, axis=2)
        image.info.pop("transparency", None)  # it warns of what is of no use to RGB
        return np.array(image.convert("RGB"))


@lru_cache(maxsize=1)
def _pillow() -> Any:
    try:
        from PIL import Image

        for name in ("Jpeg", "Png", "WebP"):  # here, once: not in several threads at a time
            import_module(f"PIL.{name}ImagePlugin")
    except ImportError:
        return None
    return Image


@lru_cache(maxsize=1)
def simplejpeg() -> Any:
    """The module; None if it is not installed."""
    try:
        import simplejpeg as found
    except Exception:  # one that was built for another numpy raises more than ImportError
        return None
    return found
