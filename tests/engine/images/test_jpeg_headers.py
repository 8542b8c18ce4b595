"""Headers that are read side by side: those of one after the other, or none."""

import io

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from gdsload.engine.images.jpeg_headers import plain_jpegs
from gdsload.errors import FormatError
from gdsload.shards.format.image_header import read_image_header


def encoded(size, kind="JPEG", mode="RGB", **options):
    out = io.BytesIO()
    Image.new("RGB", size, (7, 80, 190)).convert(mode).save(out, kind, **options)
    return out.getvalue()


EXIF = Image.Exif()
EXIF[0x0112] = 6
PLAIN = [encoded((31, 17)), encoded((16, 8), mode="L"), encoded((640, 480), subsampling=0, comment=b"x" * 300)]
OTHERS = [
    encoded((31, 17), progressive=True),
    encoded((9, 9), mode="CMYK"),
    encoded((9, 9), "PNG"),
    encoded((9, 9), "WEBP"),
    b"",
    b"\xff\xd8",
]


def side_by_side(images):
    ends = np.cumsum([len(one) for one in images], dtype=np.int64)
    begins = ends - np.array([len(one) for one in images], np.int64)
    return plain_jpegs(np.frombuffer(b"".join(images), np.uint8), begins, ends)


def test_plain_ones_are_read_and_others_are_not():
    found = side_by_side([*OTHERS, *PLAIN, *OTHERS])
    known = [read_image_header(one) for one in PLAIN]
    for name, values in (("width", found.widths), ("height", found.heights), ("channels", found.channels)):
        expected = [0] * len(OTHERS) + [getattr(one, name) for one in known] + [0] * len(OTHERS)
        assert values.tolist() == expected
    assert not found.exif.any()
    assert len(side_by_side([]).widths) == 0


def test_nothing_beyond_the_last_byte_is_looked_at():
    """A frame header that ends with the number of its components, and all bytes with it."""
    assert side_by_side([b"\xff\xd8\xff\xc0\0\x08\x08\0\x01\0\x01\x03"]).hardware.tolist() == [False]


def test_what_may_be_turned_is_told():
    found = side_by_side([encoded((9, 8), exif=EXIF), PLAIN[0]])
    assert found.exif.tolist() == [True, False]
    assert found.widths.tolist() == [9, 31]


def sampled(data, *factors):
    """A JPEG whose components say that they are sampled so."""
    at = data.index(b"\xff\xc0") + 11
    changed = bytearray(data)
    for number, one in enumerate(factors):
        changed[at + 3 * number] = one
    return bytes(changed)


@pytest.mark.parametrize(
    ("data", "taken"),
    [
        *((encoded((31, 17), subsampling=one), True) for one in (0, 1, 2)),
        (encoded((31, 17), mode="L"), True),
        (sampled(PLAIN[0], 0x12), True),
        (sampled(PLAIN[0], 0x41), False),
        (sampled(PLAIN[0], 0x22, 0x21), False),
        (sampled(PLAIN[0], 0x22, 0x11, 0x12), False),
        (sampled(PLAIN[1], 0x22), False),
        (PLAIN[0].replace(b"\xff\xda\x00\x0c\x03", b"\xff\xda\x00\x0c\x01"), False),  # a scan of one component
        (encoded((31, 17), progressive=True), False),
    ],
)
def test_what_hardware_decodes(data, taken):
    assert side_by_side([PLAIN[0], data]).hardware.tolist() == [True, taken]


@given(
    st.lists(
        st.tuples(st.sampled_from(PLAIN), st.lists(st.tuples(st.integers(0, 700), st.integers(0, 255)), max_size=4),
                  st.integers(0, 900)),
        max_size=6,
    )
)  # fmt: skip
def test_what_is_read_of_damaged_ones_is_what_is_read_of_each(given):
    images = []
    for data, changes, length in given:
        changed = bytearray(data)
        for at, value in changes:
            changed[at % len(data)] = value
        images.append(bytes(changed[:length] if length < 600 else changed))
    found = side_by_side(images)
    for data, *read in zip(images, found.widths, found.heights, found.channels, strict=True):
        if any(read):
            try:
                header = read_image_header(data)
            except FormatError:
                pytest.fail("a header was read that is damaged")
            assert (header.codec, header.bits) == ("jpeg", 8)
            assert read == [header.width, header.height, header.channels]
