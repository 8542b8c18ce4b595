"""Image files as Pillow opens them: formats, orientation, size, and the channels of the first pictures of a field."""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Mapping
from typing import IO, Any, NamedTuple

from gdsload.conversion.sources.extras import need
from gdsload.errors import FormatError, OptionError
from gdsload.shards.format.image_header import exif_orientation

_TIFF_TAGS = 256, 257, 274  # width, height, orientation

# Not all that Pillow knows: some of its readers start other programs.
_FORMATS = ("JPEG", "PNG", "WEBP", "PPM", "BMP", "TIFF")
_STREAM = re.compile(r" <_io\.[^>]*>")


def opened_image(content: bytes | IO[bytes], where: str) -> Any:
    """An image, opened by Pillow; only its header has been read then."""
    images = need("PIL.Image", file=where)
    return images.open(io.BytesIO(content) if isinstance(content, bytes) else content, formats=_FORMATS)


def upright(image: Any) -> Any:
    """An image as it is shown: turned as the orientation in its EXIF data says.

    This is the rule for the files of all sources, and for encoded images in a loader. Neither XMP nor EXIF data in
    texts of a PNG are read. A Pillow image that a user has opened is taken as it is: it may have been turned.
    """
    image.load()  # a PNG may have them after its pixels
    if image.format == "TIFF":  # Pillow has turned it
        return image
    orientation = exif_orientation(image.info.get("exif"))
    return image if orientation == 1 else need("PIL.ImageOps").exif_transpose(image)


def image_size(file: IO[bytes], name: str) -> tuple[int, int, int]:
    """Width and height of an encoded image as it is stored, and its orientation as `upright` follows it.

    Raises:
        FormatError: if it is damaged.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with opened_image(file, name) as image:
                if image.format == "TIFF":  # Pillow gives the size of the turned one
                    width, height, turn = (image.tag_v2.get(tag, 1) for tag in _TIFF_TAGS)
                    return width, height, turn if turn in range(1, 9) else 1
                if image.format == "PNG":
                    image.load()
                return *image.size, exif_orientation(image.info.get("exif"))
    except OptionError:
        raise
    except Exception as error:  # readers of damaged images raise anything
        raise FormatError(f"the image cannot be decoded: {what_pillow_says(error)}", file=name) from None


def what_pillow_says(error: Exception) -> str:
    """Pillow's error text without the stream's name; of a file of an unknown format, the formats that are known."""
    if type(error).__name__ == "UnidentifiedImageError":
        return f"it is none of {', '.join(_FORMATS)}, or not as Pillow reads these"
    return _STREAM.sub("", str(error))[:200]


ONE_CHANNEL = frozenset({"1", "L", "P"})
"""The modes of Pillow's images of one channel."""

_WITH_ALPHA = frozenset({"LA", "La", "PA", "RGBA", "RGBa"})
_GREY = bytes(value for value in range(256) for _ in "RGB")


class _Picture(NamedTuple):
    mode: str
    palette: bytes
    alpha: bool


class FirstPictures:
    """Notes on the first pictures of each field, by its name in `fields`."""

    def __init__(self) -> None:
        self.fields: dict[str, set[_Picture]] = {}

    def add(self, name: str, image: Any) -> None:
        """Note a picture of a field: an image of Pillow's that is opened and not loaded."""
        alpha = image.mode in _WITH_ALPHA or "transparency" in image.info
        self.fields.setdefault(name, set()).add(_Picture(image.mode, _palette(image), alpha))

    def one_channel(self) -> dict[str, bytes]:
        """The fields whose pictures have one channel that means the same in all of them, and the longest palette."""
        found = {}
        for name, seen in self.fields.items():
            palette = max((one.palette for one in seen), key=len)
            if all(one.mode in ONE_CHANNEL and palette.startswith(one.palette) for one in seen):
                found[name] = palette
        return found

    def notes(self, modes: Mapping[str, str]) -> tuple[str, ...]:
        """Notes for users on what is lost, by the modes that the first pictures of a field have decided."""
        found = []
        for name, mode in modes.items():
            seen = self.fields[name]
            if mode == "one" and not all(_GREY.startswith(one.palette) for one in seen):
                way = f"`mode={{{name!r}: 'RGB'}}`"
                found.append(f"{name!r} has indices into the palette of its pictures; {way} gives colours")
            if any(one.alpha for one in seen):
                way = f"`mode={{{name!r}: 'RGBA'}}`"
                found.append(f"alpha (transparency) of {name!r} is left out; {way} keeps it")
        return tuple(found)


def palettes_agree(image: Any, palette: bytes) -> bool:
    """Return whether an image's palette has the same colours as another one, as far as both go."""
    own = _palette(image)
    return own.startswith(palette) or palette.startswith(own)


def _palette(image: Any) -> bytes:
    """The colours of an image's values, RGB; of greys, these."""
    return bytes(image.getpalette("RGB") or _GREY) if image.mode == "P" else _GREY
