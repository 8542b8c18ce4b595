"""Decoding one image on the host: what comes out is what Pillow makes of it."""

import io

import numpy as np
import pytest
from PIL import Image, ImageOps

from gdsload.engine.images import host_decoders
from gdsload.engine.images.host_decoders import decode_image
from gdsload.shards.format.image_header import read_image_header

ORIENTATION = 0x0112


def picture(height=37, width=53, seed=0):
    generator = np.random.default_rng(seed)
    small = generator.integers(0, 256, (height // 6 + 1, width // 6 + 1, 3), np.uint8)
    return Image.fromarray(small).resize((width, height), Image.Resampling.BICUBIC)


def encoded(image, kind, **options):
    out = io.BytesIO()
    image.save(out, kind, **options)
    return out.getvalue()


def decoded(data, **options):
    view = memoryview(data)
    return decode_image(view, read_image_header(view), **options)


def by_pillow(data):
    with Image.open(io.BytesIO(data)) as image:
        return np.asarray(ImageOps.exif_transpose(image).convert("RGB"))


KINDS = {
    "jpeg": encoded(picture(), "JPEG", quality=90),
    "jpeg 4:4:4": encoded(picture(), "JPEG", subsampling=0),
    "jpeg 4:2:2": encoded(picture(), "JPEG", subsampling=1),
    "progressive": encoded(picture(), "JPEG", progressive=True),
    "optimized": encoded(picture(), "JPEG", optimize=True),
    "grey jpeg": encoded(picture().convert("L"), "JPEG"),
    "cmyk": encoded(picture().convert("CMYK"), "JPEG"),
    "one pixel": encoded(picture(1, 1), "JPEG"),
    "png": encoded(picture(), "PNG"),
    "grey png": encoded(picture().convert("L"), "PNG"),
    "bits": encoded(picture().convert("1"), "PNG"),
    "palette": encoded(picture().convert("P", palette=Image.Palette.ADAPTIVE, colors=31), "PNG"),
    "palette and alpha": encoded(picture().quantize(9), "PNG", transparency=bytes(range(9))),
    "alpha": encoded(picture().convert("RGBA"), "PNG"),
    "grey and alpha": encoded(picture().convert("LA"), "PNG"),
    "webp": encoded(picture(), "WEBP"),
    "lossless": encoded(picture(), "WEBP", lossless=True),
    "webp and alpha": encoded(picture().convert("RGBA"), "WEBP"),
}


@pytest.mark.filterwarnings("ignore:Palette images with Transparency")  # Pillow's, of its own convert
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("without", ["nothing", "simplejpeg"])
def test_it_is_what_pillow_makes_of_it(kind, without, monkeypatch):
    if without == "simplejpeg":
        monkeypatch.setattr(host_decoders, "simplejpeg", lambda: None)
    found = decoded(KINDS[kind])
    assert found.dtype == np.uint8
    assert np.array_equal(found, by_pillow(KINDS[kind]))


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
def test_it_is_upright(kind, orientation):
    exif = Image.Exif()
    exif[ORIENTATION] = orientation
    data = encoded(picture(), kind, exif=exif)
    found = decoded(data)
    assert found.shape == ((53, 37, 3) if orientation >= 5 else (37, 53, 3))
    assert np.array_equal(found, by_pillow(data))
    assert found.flags.c_contiguous


def test_of_16_bits_the_upper_8_count():
    values = np.array([[0, 255, 256, 0x1234, 0xFFFF]], np.uint16)
    assert decoded(encoded(Image.fromarray(values), "PNG"))[0].tolist() == [[value >> 8] * 3 for value in values[0]]


def test_pixels_go_into_the_memory_that_is_given():
    pytest.importorskip("simplejpeg")
    memory = bytearray(37 * 53 * 3 + 5)
    found = decoded(KINDS["jpeg"], buffer=memory)
    assert bytes(memory[: 37 * 53 * 3]) == found.tobytes()
    assert np.array_equal(decoded(KINDS["jpeg"], buffer=bytearray(9)), found)


@pytest.mark.parametrize("kind", ["jpeg", "progressive", "png", "webp"])
def test_what_is_cut_off_is_refused(kind):
    data = KINDS[kind]
    with pytest.raises(Exception, match=r".+"):
        decode_image(memoryview(data)[: len(data) * 2 // 3], read_image_header(data))


def test_what_is_no_damage_to_pillow_is_none():
    data = KINDS["jpeg"]
    at = data.index(b"\xff\xda")
    odd = data[:at] + b"\0\0\0" + data[at:]  # bytes that belong to nothing, of which libjpeg warns
    assert np.array_equal(decoded(odd), decoded(data))


def test_a_header_that_lies_is_noticed():
    header = read_image_header(KINDS["png"])
    with pytest.raises(ValueError, match="its header says 53 × 37 pixels, but it has 5 × 5"):
        decode_image(memoryview(encoded(picture(5, 5), "PNG")), header)
