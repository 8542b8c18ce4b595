"""Headers of encoded images: what Pillow finds, and a gdsload error for all else."""

from __future__ import annotations

import io
import struct
import time
import zlib

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from PIL import Image, ImageOps

from gdsload.errors import FormatError
from gdsload.shards.format.image_header import IMAGE_CODECS, image_codec, read_image_header

SETTINGS = settings(derandomize=True, max_examples=120)
MODES = {"jpeg": ("L", "RGB", "CMYK"), "png": ("1", "L", "LA", "P", "RGB", "RGBA", "I;16"), "webp": ("RGB", "RGBA")}
CHANNELS = {"1": 1, "L": 1, "P": 1, "I;16": 1, "LA": 2, "RGB": 3, "RGBA": 4, "CMYK": 4}
ORIENTATION = 0x0112
PROFILE = bytes(range(256)) * 600


def image(mode: str, size: tuple[int, int], seed: int = 0) -> Image.Image:
    noise = np.random.default_rng(seed).integers(0, 256, (size[1], size[0], 4), np.uint8)
    if mode == "I;16":
        return Image.fromarray(noise[..., 0].astype(np.uint16) * 257)
    made = Image.fromarray(noise, "RGBA")
    if mode in ("RGBA", "LA"):
        made.putpixel((0, 0), (1, 2, 3, 4))  # else lossless WebP finds that there is no alpha to keep
    return made.convert("RGB").convert("CMYK") if mode == "CMYK" else made.convert(mode)


def encoded(codec: str, mode: str = "RGB", size: tuple[int, int] = (5, 3), exif: object = None, **options) -> bytes:
    stream = io.BytesIO()
    image(mode, size).save(stream, codec, **({} if exif is None else {"exif": exif}), **options)
    return stream.getvalue()


def turned(orientation: object) -> Image.Exif:
    exif = Image.Exif()
    exif[0x010E] = "a description that comes before it, by its tag"
    if orientation is not None:
        exif[ORIENTATION] = orientation
    return exif


@st.composite
def images(draw: st.DrawFn) -> tuple[bytes, str]:
    codec = draw(st.sampled_from(IMAGE_CODECS))
    mode = draw(st.sampled_from(MODES[codec]))
    size = draw(st.integers(1, 70)), draw(st.integers(1, 70))
    options: dict[str, object] = {}
    if codec == "jpeg":
        # One of them: Pillow has no room for the scans of some progressive JPEGs after a long profile.
        comment = {"comment": b"\xff\xd9\xff\xc0 \xff\xda"}
        options = draw(st.sampled_from([{}, {"progressive": True}, comment, {"icc_profile": PROFILE}]))
        options = {**options, "quality": draw(st.integers(1, 95))}
    elif codec == "webp":
        options = {"lossless": draw(st.booleans()), "method": 0}
    exif = turned(draw(st.integers(1, 8))) if draw(st.booleans()) else None
    return encoded(codec, mode, size, exif, **options), mode


@SETTINGS
@given(images())
def test_header_is_what_pillow_finds(made):
    raw, mode = made
    found, wanted = read_image_header(raw), Image.open(io.BytesIO(raw))
    assert found.codec == wanted.format.lower()
    assert (found.width, found.height) == wanted.size
    assert found.orientation == wanted.getexif().get(ORIENTATION, 1)
    assert found.upright == ImageOps.exif_transpose(wanted).size
    assert found.channels == CHANNELS[mode]
    assert found.bits == {"1": 1, "I;16": 16}.get(mode, 8)


def refused(raw: bytes) -> bool:
    """Return whether bytes are refused by an error of ours; what is taken must be whole."""
    try:
        found = read_image_header(raw)
    except FormatError as error:
        assert len(str(error)) < 300
        return True
    assert found.codec in IMAGE_CODECS
    assert min(found.width, found.height) > 0
    assert 1 <= found.orientation <= 8
    assert 1 <= found.channels <= 4
    return False


@SETTINGS
@given(images(), st.data())
def test_images_that_are_cut_off_are_refused_or_have_their_header(made, data):
    raw, _ = made
    cut = raw[: data.draw(st.integers(0, len(raw) - 1))]
    if refused(cut):
        return
    assert read_image_header(raw) == read_image_header(cut)
    assert read_image_header(cut).codec == "jpeg"  # of which nothing after the header is looked at


STARTS = [b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"RIFF\x40\0\0\0WEBPVP8X", b""]


@SETTINGS
@given(images(), st.lists(st.tuples(st.integers(0, 699), st.integers(0, 255)), min_size=1, max_size=4), st.data())
def test_damage_and_any_bytes_are_refused_or_some_header(made, changes, data):
    raw = bytearray(made[0])
    for at, value in changes:
        raw[at % len(raw)] = value
    refused(bytes(raw))
    refused(data.draw(st.sampled_from(STARTS)) + data.draw(st.binary(max_size=300)))


@SETTINGS
@given(st.sampled_from(IMAGE_CODECS), st.binary(max_size=80))
def test_exif_that_cannot_be_read_leaves_an_image_upright(codec, block):
    assume(ORIENTATION.to_bytes(2, "big") not in block)
    assume(ORIENTATION.to_bytes(2, "little") not in block)
    assert read_image_header(encoded(codec, exif=b"Exif\0\0" + block)).orientation == 1


@pytest.mark.parametrize("codec", IMAGE_CODECS)
@pytest.mark.parametrize(
    ("entry", "orientation"),
    [
        ((ORIENTATION, 3, 1, 6), 6),
        ((ORIENTATION, 3, 1, 0), 1),
        ((ORIENTATION, 3, 1, 9), 1),
        ((ORIENTATION, 4, 1, 6), 6),
        ((ORIENTATION, 4, 1, 2**16 + 6), 1),
        ((ORIENTATION, 1, 1, 6), 1),
        ((ORIENTATION, 3, 2, 6), 1),
        ((ORIENTATION + 1, 3, 1, 6), 1),
    ],
)
@pytest.mark.parametrize("order", "<>")
def test_orientation_is_one_whole_number_from_1_to_8(codec, order, entry, orientation):
    tag, kind, count, value = entry
    block = (b"II*\0" if order == "<" else b"MM\0*") + struct.pack(f"{order}IHHHI", 8, 1, tag, kind, count)
    block += struct.pack(f"{order}II" if kind == 4 else f"{order}HHI", value, *((0,) if kind == 4 else (0, 0)))
    assert read_image_header(encoded(codec, exif=b"Exif\0\0" + block)).orientation == orientation


def test_a_directory_of_exif_behind_its_end_or_too_long_is_none():
    for begin, entries in ((2**32 - 1, 1), (8, 2**16 - 1), (0, 1)):
        block = b"II*\0" + struct.pack("<IH", begin, entries)
        assert read_image_header(encoded("png", exif=b"Exif\0\0" + block)).orientation == 1


def test_exif_behind_the_pixels_of_a_png_is_found():
    raw = encoded("png")
    chunk = b"eXIfMM\0*" + struct.pack(">IHHHIHHI", 8, 1, ORIENTATION, 3, 1, 8, 0, 0)
    block = struct.pack(">I", len(chunk) - 4) + chunk + struct.pack(">I", zlib.crc32(chunk))
    assert read_image_header(raw[:-12] + block + raw[-12:]).orientation == 8
    damaged = block[:-1] + bytes([block[-1] ^ 1])
    with pytest.raises(FormatError, match="the checksum of its chunk b'eXIf' differs"):
        read_image_header(raw[:-12] + damaged + raw[-12:])


def test_what_lies_before_a_jpegs_segments_is_skipped():
    raw, junk = encoded("jpeg", size=(7, 9)), b"\0" * 9000 + b"\xff\x00" + b"\xff" * 5000
    at = raw.index(b"\xff\xdb")
    assert read_image_header(raw[:at] + junk + raw[at:]) == read_image_header(raw)


def test_a_jpeg_of_any_coding_has_a_header():
    raw = encoded("jpeg", "L", (4, 4))
    at = raw.index(b"\xff\xc0")
    for marker in (0xC1, 0xC2, 0xC3, 0xC9, 0xCF):
        assert read_image_header(raw[: at + 1] + bytes([marker]) + raw[at + 2 :]) == read_image_header(raw)
    assert refused(raw[: at + 1] + b"\xc8" + raw[at + 2 :])  # no marker of a frame


def test_what_is_no_image_of_a_codec():
    gif = encoded("gif")
    assert [image_codec(one) for one in (gif, b"", b"RIFF\0\0\0\0WAVE", b"\xff\xd8")] == [None] * 4
    with pytest.raises(FormatError, match="it is no JPEG, PNG or WebP: it begins with b'GIF"):
        read_image_header(gif)
    with pytest.raises(FormatError, match="an image has no bytes"):
        read_image_header(b"")


@pytest.mark.parametrize("codec", ["webp", "png"])
def test_animations_are_refused(codec):
    moving, still = (
        encoded(codec, size=(4, 4), save_all=True, append_images=others) for others in ([image("RGB", (4, 4), 1)], [])
    )
    with pytest.raises(FormatError, match="the image is an animation"):
        read_image_header(moving)
    assert read_image_header(still).width == 4


@pytest.mark.parametrize(
    ("raw", "says"),
    [
        (b"\xff\xd8\xff\xda\0\x02", "the first scan comes before any frame header"),
        (b"\xff\xd8\xff\xd9", "it ends before the first scan"),
        (b"\xff\xd8\xff\xc0\0\x01", "it ends before the first scan"),
        (b"\xff\xd8\xff\xc0\0\x0b\x08\0\0\0\x04\x01\0\0\0\xff\xda\0\x02", "it says 4 × 0 pixels"),
        (b"\xff\xd8\xff\xc0\0\x0b\x09\0\x04\0\x04\x01\0\0\0\xff\xda\0\x02", "it says 9 bits for each value"),
        (b"\xff\xd8\xff\xc0\0\x0b\x08\0\x04\0\x04\x02\0\0\0\xff\xda\0\x02", "says 2 components and has 9 bytes"),
        (b"\xff\xd8\xff\xc0\0\x04\x08\0\xff\xda\0\x02", "its frame header is cut off"),
        (b"RIFF\x0c\0\0\0WEBPVP8 \0\0\0\0", "its chunk b'VP8 ' holds no picture"),
        (b"RIFF\x0c\0\0\0WEBPVP8X\0\0\0\0", "its chunk b'VP8X' has 0 bytes"),
        (b"RIFF\xff\0\0\0WEBPVP8 \0\0\0\0", "it says that it has 263 bytes, and has 20"),
        (b"RIFF\x0c\0\0\0WEBPVP8 \x01\0\0\0", "its chunk b'VP8 ' ends after the image"),
    ],
)
def test_damaged_header_is_said(raw, says):
    with pytest.raises(FormatError, match=says):
        read_image_header(raw)


@pytest.mark.parametrize(
    "raw",
    [
        b"\xff\xd8" + b"\xff" * 30_000_000,
        b"\xff\xd8" + b"\xff\x00" * 15_000_000,
        b"\xff\xd8" + b"\xff\xe0\0\x02" * 7_500_000,
        encoded("png")[:33] + b"\0\0\0\0abcd\0\0\0\0" * 2_500_000,
        b"RIFF" + (30_000_004).to_bytes(4, "little") + b"WEBP" + b"abcd\0\0\0\0" * 3_750_000,
    ],
    ids=["fill", "stuffing", "segments", "chunks of a PNG", "chunks of a WebP"],
)
def test_hostile_lengths_cost_little(raw):
    begin = time.perf_counter()
    assert refused(raw)
    assert time.perf_counter() - begin < 5
