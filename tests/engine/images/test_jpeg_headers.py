"""Headers that are read side by side: those of one after the other, or none."""

from __future__ import annotations

import io

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from gdsload.engine.images.jpeg_headers import plain_jpeg_headers
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
    encoded((9, 9), exif=EXIF),
    encoded((9, 9), "PNG"),
    encoded((9, 9), "WEBP"),
    b"",
    b"\xff\xd8",
]


def side_by_side(images):
    ends = np.cumsum([len(one) for one in images], dtype=np.int64)
    begins = ends - np.array([len(one) for one in images], np.int64)
    return plain_jpeg_headers(np.frombuffer(b"".join(images), np.uint8), begins, ends)


def test_plain_ones_are_read_and_others_are_not():
    found = side_by_side([*OTHERS, *PLAIN, *OTHERS])
    assert found == [None] * len(OTHERS) + [read_image_header(one) for one in PLAIN] + [None] * len(OTHERS)
    assert side_by_side([]) == []


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
    for data, header in zip(images, side_by_side(images), strict=True):
        if header is not None:
            try:
                assert header == read_image_header(data)
            except FormatError:
                pytest.fail("a header was read that is damaged")
