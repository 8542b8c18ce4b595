"""The headers of encoded images: JPEG, PNG and WebP.

Pure, and written for hostile bytes: any bytes give a header or a `FormatError`, after one pass over the segments before
the pixels (JPEG) or over all chunks (PNG, WebP). Pixels are not looked at: an image with a good header may still be
damaged.

JPEG: ITU-T T.81, annex B. PNG: the W3C's recommendation, third edition. WebP: RFC 9649. Orientation: the EXIF standard
(CIPA DC-008), tag 0x0112 of the first directory.
"""

from __future__ import annotations

import re
import zlib
from dataclasses import dataclass, replace
from typing import Literal, NoReturn

from gdsload.errors import FormatError

IMAGE_CODECS = ("jpeg", "png", "webp")
"""The codecs of a field of encoded images, sorted."""

REVERSED_COLUMNS, REVERSED_ROWS = (2, 3, 6, 7), (3, 4, 7, 8)
"""EXIF's orientations whose upright picture has the columns, or rows, in reverse order; from 5 on both are exchanged
before that."""

_JPEG, _PNG = b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n"
_MOST_PIECES = 2**16
"""Segments or chunks; a real image has few, and of 64 KiB each they would be 4 GiB."""
_ORIENTATION = 0x0112
_WHOLE_BYTES = {3: 2, 4: 4}
"""Bytes of EXIF's whole numbers by type: it asks for the short one, and some write the long one."""
_TIFF_ENTRY_BYTES = 12
_ANIMATION = "the image is an animation, of which a field has a place for one picture"
_STILLS = "Save each picture of it as a file."


@dataclass(frozen=True, slots=True)
class ImageHeader:
    """The header of an encoded image.

    Attributes:
        codec: ``"jpeg"``, ``"png"`` or ``"webp"``.
        width: pixels in a row as they are stored, so before the picture is turned upright.
        height: rows as they are stored.
        channels: values of a pixel as they are stored: 1 grey or an index into a palette, 2 grey with alpha, 3 colours,
            4 colours with alpha, or the four inks of a JPEG.
        bits: bits of each value: 8, but for PNG 1 to 16, and for JPEG possibly 12.
        orientation: as EXIF has it, 1 to 8; 1, upright, if it says nothing else.
    """

    codec: str
    width: int
    height: int
    channels: int
    bits: int = 8
    orientation: int = 1

    @property
    def upright(self) -> tuple[int, int]:
        """Width and height after the picture has been turned as `orientation` says."""
        return (self.height, self.width) if self.orientation >= 5 else (self.width, self.height)


def image_codec(data: bytes | memoryview) -> str | None:
    """The codec that an image's first 12 bytes name; None if it is none of `IMAGE_CODECS`."""
    first = bytes(data[:12])
    if first.startswith(_JPEG):
        return "jpeg"
    if first.startswith(_PNG):
        return "png"
    return "webp" if first[:4] == b"RIFF" and first[8:] == b"WEBP" else None


def read_image_header(data: bytes | memoryview) -> ImageHeader:
    """Read the header of an encoded image.

    Args:
        data: all bytes of the image.

    Raises:
        FormatError: if it is no JPEG, PNG or WebP, is an animation, or its header is damaged or cut off. An EXIF block
            that cannot be read is no damage: such an image is upright.
    """
    readers = {"jpeg": _jpeg, "png": _png, "webp": _webp}
    if codec := image_codec(data):
        return readers[codec](memoryview(data))
    raise FormatError(
        f"it is no JPEG, PNG or WebP: it begins with {bytes(data[:12])!r}" if len(data) else "an image has no bytes"
    )


def _damaged(what: str) -> NoReturn:
    raise FormatError(f"the header of the image is damaged: {what}")


def _big(data: memoryview, nbytes: int, at: int = 0) -> int:
    return int.from_bytes(data[at : at + nbytes], "big")


def _little(data: memoryview, nbytes: int, at: int = 0) -> int:
    return int.from_bytes(data[at : at + nbytes], "little")


_DCT_FRAMES, _FRAMES = {0xC0, 0xC1, 0xC2}, {*range(0xC0, 0xD0)} - {0xC4, 0xC8, 0xCC}
"""Markers of frame headers, SOF0 to SOF15; the others are lossless, hierarchical or arithmetic, with other bits."""
_MARKER = re.compile(rb"\xff[^\x00\xff]")
_SCAN, _END, _APP1 = 0xDA, 0xD9, 0xE1
_ALONE = {0x01, *range(0xD0, 0xD9)}
"""Markers without a segment."""


def _jpeg(data: memoryview) -> ImageHeader:
    """The frame header and the first EXIF block before the first scan."""
    frame: tuple[memoryview, int] | None = None
    exif: memoryview | None = None
    at = 2
    for _ in range(_MOST_PIECES):
        marker, at = _marker(data, at)
        if marker in _ALONE:
            continue
        nbytes = _big(data, 2, at) if at + 2 <= len(data) else 0
        if marker == _END or nbytes < 2 or at + nbytes > len(data):
            break
        segment = data[at + 2 : at + nbytes]
        if marker == _SCAN:
            if frame is None:
                _damaged("the first scan comes before any frame header")
            return _frame(*frame, exif_orientation(exif))
        if marker in _FRAMES:
            frame = segment, marker
        elif marker == _APP1 and exif is None and bytes(segment[:6]) == b"Exif\0\0":
            exif = segment[6:]
        at += nbytes
    _damaged("it ends before the first scan")


def _marker(data: memoryview, at: int) -> tuple[int, int]:
    """The marker at or after a byte, and where it ends; bytes before it are skipped, as decoders do."""
    found = _MARKER.search(data, at)
    return (data[found.end() - 1], found.end()) if found else (_END, len(data))


def _frame(segment: memoryview, marker: int, orientation: int) -> ImageHeader:
    if len(segment) < 6:
        _damaged("its frame header is cut off")
    bits, height, width, channels = segment[0], _big(segment, 2, 1), _big(segment, 2, 3), segment[5]
    if channels not in (1, 3, 4) or len(segment) != 6 + 3 * channels:
        _damaged(f"its frame header says {channels} components and has {len(segment)} bytes")
    if bits not in (8, 12) and marker in _DCT_FRAMES:
        _damaged(f"it says {bits} bits for each value")
    _check_size(width, height)
    return ImageHeader("jpeg", width, height, channels, bits, orientation)


def _check_size(width: int, height: int) -> None:
    if not (0 < width < 2**31 and 0 < height < 2**31):  # PNG has four bytes for each, the others have fewer
        _damaged(f"it says {width} × {height} pixels")


_PNG_KINDS = {  # colour type: channels, and the bits that a value may have
    0: (1, (1, 2, 4, 8, 16)),
    2: (3, (8, 16)),
    3: (1, (1, 2, 4, 8)),
    4: (2, (8, 16)),
    6: (4, (8, 16)),
}


def _png(data: memoryview) -> ImageHeader:
    """The first chunk, and the EXIF block wherever it is."""
    header: ImageHeader | None = None
    orientation, pixels, at = 1, False, len(_PNG)
    for _ in range(_MOST_PIECES):
        nbytes, kind = _big(data, 4, at), bytes(data[at + 4 : at + 8])
        end = at + 12 + nbytes
        if end > len(data):
            _damaged("it ends inside a chunk, or before the last one")
        if header is None:
            header = _png_size(kind, data[at + 8 : end - 4], data[at + 4 : end])
        elif kind == b"acTL" and _big(data, 4, at + 8) > 1:
            raise FormatError(_ANIMATION, remedy=_STILLS)
        elif kind == b"eXIf":
            _check_crc(data[at + 4 : end])
            orientation = exif_orientation(data[at + 8 : end - 4])
        pixels = pixels or kind == b"IDAT"
        if kind == b"IEND":
            if not pixels:
                _damaged("it has no pixels")
            return replace(header, orientation=orientation)
        at = end
    _damaged(f"it has more than {_MOST_PIECES} chunks")


def _png_size(kind: bytes, chunk: memoryview, checked: memoryview) -> ImageHeader:
    if kind != b"IHDR" or len(chunk) != 13:
        _damaged(f"its first chunk is {kind!r} of {len(chunk)} bytes")
    _check_crc(checked)
    width, height, bits, colour = _big(chunk, 4), _big(chunk, 4, 4), chunk[8], chunk[9]
    channels, allowed = _PNG_KINDS.get(colour, (0, ()))
    if bits not in allowed or chunk[10] or chunk[11] or chunk[12] > 1:
        _damaged(f"it says colour type {colour} of {bits} bits, and methods {list(chunk[10:13])}")
    _check_size(width, height)
    return ImageHeader("png", width, height, channels, bits)


def _check_crc(chunk: memoryview) -> None:
    if zlib.crc32(chunk[:-4]) != _big(chunk, 4, len(chunk) - 4):
        _damaged(f"the checksum of its chunk {bytes(chunk[:4])!r} differs")


_ANIMATED, _ALPHA = 0x02, 0x10


def _webp(data: memoryview) -> ImageHeader:
    end = 8 + _little(data, 4, 4)
    if end > len(data) or end < 20:
        _damaged(f"it says that it has {end} bytes, and has {len(data)}")
    chunks = _riff_chunks(data[:end])
    kind, first = chunks[0]
    if kind != b"VP8X":
        return _webp_frame(kind, first)
    if len(first) < 10:
        _damaged(f"its chunk b'VP8X' has {len(first)} bytes")
    if first[0] & _ANIMATED:
        raise FormatError(_ANIMATION, remedy=_STILLS)
    frame = next((_webp_frame(kind, chunk) for kind, chunk in chunks if kind in (b"VP8 ", b"VP8L")), None)
    width, height = 1 + _little(first, 3, 4), 1 + _little(first, 3, 7)
    if frame is None or (frame.width, frame.height) != (width, height):
        _damaged(f"it has no picture of {width} × {height} pixels, which it says")
    exif = next((chunk for kind, chunk in chunks if kind == b"EXIF"), None)
    alpha = bool(first[0] & _ALPHA) or frame.channels == 4
    return ImageHeader("webp", width, height, 4 if alpha else 3, orientation=exif_orientation(exif))


def _riff_chunks(data: memoryview) -> list[tuple[bytes, memoryview]]:
    found: list[tuple[bytes, memoryview]] = []
    at = 12
    while at + 8 <= len(data):
        kind, nbytes = bytes(data[at : at + 4]), _little(data, 4, at + 4)
        if at + 8 + nbytes > len(data) or len(found) == _MOST_PIECES:
            _damaged(f"its chunk {kind!r} ends after the image")
        found.append((kind, data[at + 8 : at + 8 + nbytes]))
        at += 8 + nbytes + nbytes % 2
    return found


def _webp_frame(kind: bytes, chunk: memoryview) -> ImageHeader:
    if kind == b"VP8 " and len(chunk) >= 10 and not chunk[0] & 1 and bytes(chunk[3:6]) == b"\x9d\x01\x2a":
        width, height, channels = _little(chunk, 2, 6) & 0x3FFF, _little(chunk, 2, 8) & 0x3FFF, 3
    elif kind == b"VP8L" and len(chunk) >= 5 and chunk[0] == 0x2F and not chunk[4] >> 5:
        packed = _little(chunk, 4, 1)
        width, height, channels = 1 + (packed & 0x3FFF), 1 + (packed >> 14 & 0x3FFF), 4 if packed >> 28 & 1 else 3
    else:
        _damaged(f"its chunk {kind!r} holds no picture")
    _check_size(width, height)
    return ImageHeader("webp", width, height, channels)


def exif_orientation(exif: bytes | memoryview | None) -> int:
    """The orientation in EXIF data, 1 to 8; 1, upright, if they have none, cannot be read, or are not there."""
    if exif is None:
        return 1
    if bytes(exif[:6]) == b"Exif\0\0":  # some writers of WebP and PNG keep what JPEG needs
        exif = exif[6:]
    orders: dict[bytes, Literal["little", "big"]] = {b"II*\0": "little", b"MM\0*": "big"}
    order = orders.get(bytes(exif[:4]))
    if order is None or len(exif) < 8:
        return 1
    begin = int.from_bytes(exif[4:8], order)
    entries = int.from_bytes(exif[begin : begin + 2], order)
    for number in range(entries):
        at = begin + 2 + number * _TIFF_ENTRY_BYTES
        entry = exif[at : at + _TIFF_ENTRY_BYTES]
        if len(entry) < _TIFF_ENTRY_BYTES:
            break
        tag, kind, count = (int.from_bytes(entry[low:high], order) for low, high in ((0, 2), (2, 4), (4, 8)))
        if tag == _ORIENTATION:
            value = int.from_bytes(entry[8 : 8 + _WHOLE_BYTES.get(kind, 0)], order)
            return value if count == 1 and 1 <= value <= 8 else 1
    return 1
