"""Pictures keep their values: what files hold is what samples have, or it is refused, or said."""

import io
import struct
import zlib
from typing import get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, TiffImagePlugin

import gdsload
from gdsload.conversion.sources.boxes import Boxes, BoxForm
from gdsload.conversion.sources.pictures import ImageForm, decode_image
from gdsload.errors import ConversionError, FormatError
from tests.conversion.contents import picture

GREY = np.array([[0, 1, 2, 3]], np.uint8)
COLOURS = bytes([*(9, 8, 7), *(6, 5, 4), *(3, 2, 1), *(0, 0, 99)])
PNG_KINDS = {1: 0, 2: 4, 3: 2, 4: 6}


def png(values, depth=8, palette=None):
    """A PNG of values ``[height, width]`` or ``[height, width, channels]``, of one row where they have few bits."""

    def chunk(kind, content):
        checked = kind + content
        return struct.pack(">I", len(content)) + checked + struct.pack(">I", zlib.crc32(checked))

    height, width = values.shape[:2]
    kind = 3 if palette else PNG_KINDS[values.shape[2] if values.ndim == 3 else 1]
    if depth < 8:
        assert height == 1
        bits = "".join(f"{value:0{depth}b}" for value in values.flatten())
        rows = [int(bits.ljust(-(-len(bits) // 8) * 8, "0"), 2).to_bytes(-(-len(bits) // 8), "big")]
    else:
        rows = [row.astype(">u2" if depth == 16 else "u1").tobytes() for row in values]
    head = struct.pack(">IIBBBBB", width, height, depth, kind, 0, 0, 0)
    pixels = chunk(b"IDAT", zlib.compress(b"".join(b"\0" + row for row in rows)))
    colours = chunk(b"PLTE", palette) if palette else b""
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + colours + pixels + chunk(b"IEND", b"")


def tiff(values, photometric=1, sample_format=1, extra=(), order="<"):
    """A TIFF of values ``[height, width]`` or ``[height, width, channels]``."""
    (height, width), channels = values.shape[:2], values.shape[2] if values.ndim == 3 else 1
    pixels = values.astype(values.dtype.newbyteorder(order)).tobytes()
    end = 8 + len(pixels) + len(pixels) % 2
    tags = [
        (256, "I", [width]), (257, "I", [height]), (258, "H", [values.dtype.itemsize * 8] * channels),
        (262, "H", [photometric]), (273, "I", [8]), (277, "H", [channels]), (278, "I", [height]),
        (279, "I", [len(pixels)]), *([(338, "H", list(extra))] if extra else []),
        (339, "H", [sample_format] * channels),
    ]  # fmt: skip
    entries, after, begin = struct.pack(order + "H", len(tags)), b"", end + 6 + 12 * len(tags)
    for tag, kind, numbers in tags:
        raw = struct.pack(f"{order}{len(numbers)}{kind}", *numbers)
        if len(raw) > 4:
            after, raw = (
                after + raw.ljust(len(raw) + len(raw) % 2, b"\0"),
                struct.pack(order + "I", begin + len(after)),
            )
        entries += struct.pack(order + "HHI", tag, {"H": 3, "I": 4}[kind], len(numbers)) + raw.ljust(4, b"\0")
    start = (b"II*\0" if order == "<" else b"MM\0*") + struct.pack(order + "I", end)
    return start + pixels.ljust(end - 8, b"\0") + entries + bytes(4) + after


def of_several(codec, mode="RGB"):
    pages = [Image.new(mode, (64, 64), 40 * number if mode == "L" else (40 * number,) * 3) for number in range(3)]
    stream = io.BytesIO()
    pages[0].save(stream, codec, save_all=True, append_images=pages[1:])
    return stream.getvalue()


def in_colour(values):
    return np.dstack([values] * 3)


def short(value):
    """The name of a file in the name of a test."""
    return value[:2].decode(errors="replace") if isinstance(value, bytes) else None


@pytest.fixture
def images_of(tmp_path):
    """A function that converts files in one class folder; returns all images and the notes."""

    def convert(*files, **options):
        (tmp_path / "s" / "c").mkdir(parents=True)
        for number, content in enumerate(files):
            (tmp_path / "s" / "c" / f"{number}.png").write_bytes(content)
        report = gdsload.convert(tmp_path / "s", tmp_path / "out", kind="images", workers=1, **options)
        return [sample["image"].numpy() for sample in gdsload.ShardDataset(tmp_path / "out")], report.notes

    return convert


WIDE = GREY.astype("u2")


@pytest.mark.parametrize("mode", ["auto", "keep", "RGB", "RGBA", "L"])
@pytest.mark.parametrize(
    "content",
    [
        *(png(np.dstack([WIDE] * channels), 16) for channels in (1, 2, 3, 4)),
        *(tiff(values, kind, order=o) for values, kind in ((WIDE, 1), (in_colour(WIDE), 2)) for o in "<>"),
        *(tiff(GREY.astype("i2"), 1, 2), tiff(GREY.astype("f4"), 1, 3)),
        *(b"P5\n2 1\n256\n\0\0\0\0", b"P6\n1 1\n65535\n\0\0\0\0\0\0"),
        *(b"P2\n2 1\n1000\n7 1000\n", b"P3\n1 1\n1000\n7 8 9\n"),
    ],
    ids=short,
)
def test_more_than_8_bits_are_refused_whatever_pillow_makes_of_them(content, mode):
    with pytest.raises(FormatError, match="more than 8 bits a channel .*Pass a torch dataset that returns arrays"):
        decode_image(content, ImageForm(mode), "it")


@pytest.mark.parametrize(("channels", "order"), [(3, "BGR2RGB"), (2, "BGRA2RGBA"), (4, "BGRA2RGBA")])
def test_the_way_out_of_16_bits_has_red_first(channels, order):
    with pytest.raises(FormatError, match=rf"cv2.cvtColor\(cv2.imread\(file, .*\), cv2.COLOR_{order}\) has all"):
        decode_image(png(np.dstack([WIDE] * channels), 16), ImageForm(), "it")


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (tiff(GREY.astype("i1"), 1, 2), "values below 0"),
        (tiff(np.dstack([GREY] * 5), 2, extra=(0, 0)), "more channels than the RGB"),
        (tiff(np.dstack([GREY] * 2), 1, extra=(0,)), "more channels than the L|cannot be decoded"),
        (tiff(in_colour(GREY.astype("f4")), 2, 3), "cannot be decoded"),
        *[(of_several(codec), r"has 3 pictures \(pages or frames\).*Iterator") for codec in ("TIFF", "PNG", "WEBP")],
    ],
    ids=short,
)
def test_what_pillow_would_leave_out_is_refused(content, says):
    with pytest.raises(FormatError, match=says):
        decode_image(content, ImageForm("keep"), "it")


def test_smaller_copies_in_a_tiff_are_no_pages(tmp_path):
    with TiffImagePlugin.AppendingTiffWriter(str(tmp_path / "a.tif"), new=True) as writer:
        for size, kind in ((8, 0), (4, 1)):
            Image.new("L", (size, size), size).save(writer, "TIFF", tiffinfo={254: kind})
            writer.newFrame()
    with open(tmp_path / "a.tif", "rb") as file:
        assert decode_image(file, ImageForm("keep"), "it").shape == (1, 8, 8)


NUMBERS = [
    (png(GREY % 4, 2), [0, 1, 2, 3], [0, 85, 170, 255]),
    (png(GREY, 4), [0, 1, 2, 3], [0, 17, 34, 51]),
    (b"P5\n4 1\n20\n" + bytes([0, 1, 7, 20]), [0, 1, 7, 20], [0, 13, 89, 255]),
    (b"P2\n4 1\n20\n0 1 7 20\n", [0, 1, 7, 20], [0, 13, 89, 255]),
    (tiff(GREY, photometric=0), [0, 1, 2, 3], [255, 254, 253, 252]),
]


@pytest.mark.parametrize(("content", "stored", "shown"), NUMBERS, ids=short)
def test_grey_whose_numbers_may_be_classes_is_kept_or_scaled_as_is_asked_for(images_of, content, stored, shown):
    with pytest.raises(ConversionError, match=r"numbers from 0 to .*`mode={'image': 'RGB'}` or 'L'; or 'keep'"):
        images_of(content)
    for mode, wanted in (("keep", stored), ("L", shown)):
        assert decode_image(content, ImageForm(mode), "it").flatten().tolist() == wanted


def test_numbers_of_a_file_are_not_mixed_where_it_is_resized():
    content = b"P5\n4 4\n20\n" + bytes([0, 0, 20, 20] * 4)
    assert set(decode_image(content, ImageForm("keep", size=6), "it").flatten().tolist()) == {0, 20}
    assert len(set(decode_image(content, ImageForm("L", size=6), "it").flatten().tolist())) > 2


@pytest.mark.parametrize("top", [2, 3, 20, 100, 127, 254])
def test_every_number_of_a_file_is_restored(top):
    content = b"P5\n%d 1\n%d\n" % (top + 1, top) + bytes(range(top + 1))
    assert decode_image(content, ImageForm("keep"), "it").flatten().tolist() == list(range(top + 1))


RAMP = bytes(value for value in range(4) for _ in "RGB")
ALPHA = "alpha (transparency) of 'image' is left out; `mode={'image': 'RGBA'}` keeps it"
INDICES = "'image' has indices into the palette of its pictures; `mode={'image': 'RGB'}` gives colours"


@pytest.mark.parametrize(
    ("files", "last", "said"),
    [
        ([png(in_colour(GREY)), png(GREY, 4)], [0, 17, 34, 51] * 3, ()),
        ([png(GREY[:, :2], palette=COLOURS[:6]), png(GREY[:, :2], palette=COLOURS)], [0, 1], (INDICES,)),
        ([png(GREY[:, :2], palette=COLOURS), png(GREY[:, :2], palette=COLOURS[:6])], [0, 1], (INDICES,)),
        ([png(np.dstack([GREY] * 4))], [0, 1, 2, 3] * 3, (ALPHA,)),
        ([png(GREY), png(GREY, palette=RAMP)], [0, 1, 2, 3], ()),
        ([png(GREY, palette=RAMP), png(GREY)], [0, 1, 2, 3], ()),
    ],
    ids=["few bits among colours", "first colours", "first colours last", "alpha", "greys last", "greys"],
)
def test_what_pictures_of_several_forms_become_is_said(images_of, files, last, said):
    images, notes = images_of(*files)
    assert (images[-1].flatten().tolist(), notes) == (last, said)


@pytest.mark.parametrize("codec", ["PNG", "BMP", "TIFF"])
def test_pictures_whose_palettes_differ_have_their_colours(images_of, codec):
    files = []
    for place in (5, 9):
        image = Image.new("P", (4, 4), place)
        image.putpalette(bytes(3 * place) + bytes([200, 30, 30]) + bytes(3 * (255 - place)))
        files.append(picture(image, codec))
    images, notes = images_of(*files)
    assert [image[:, 0, 0].tolist() for image in images] == [[200, 30, 30]] * 2
    assert notes == ()


@pytest.mark.parametrize("other", [png(GREY, palette=bytes(12)), png(GREY)], ids=short)
def test_another_palette_after_the_first_pictures_is_refused(images_of, other):
    with pytest.raises(ConversionError, match="or another palette.*`mode={'image': 'RGB'}` or"):
        images_of(*[png(GREY, palette=COLOURS)] * 21, other)  # every second one is looked at first


def test_animations_are_not_kept(images_of):
    with pytest.raises(ConversionError, match="is an animation.*Save each picture of it as a file"):
        images_of(of_several("PNG"), keep_encoded=True)


CORNERS = st.tuples(*[st.integers(0, 50)] * 4)


def written(low, high, form, width, height):
    if form == "cxcywh":
        return np.concatenate([(low + high) / 2, high - low], 1) / (width, height, width, height)
    return np.concatenate([low, high if form == "xyxy" else high - low], 1).astype(float)


@given(
    st.lists(CORNERS, max_size=5),
    st.sampled_from(["xywh", "cxcywh"]),
    st.sampled_from(get_args(Boxes)),
    st.sampled_from([None, 1, 24, 500]),
)
def test_every_form_is_made_of_every_other_for_the_image_as_it_is_made(corners, has, wanted, size):
    points = np.array(corners).reshape(-1, 2, 2)
    low, high = points.min(1), points.max(1)
    look = ImageForm() if size is None else ImageForm(size=size, resize="squash")
    made = BoxForm(wanted, look).made(written(low, high, has, 60, 50), has, 60, 50)
    width, height = (60, 50) if size is None else (size, size)
    scale = np.array([width / 60, height / 50])
    assert (made.dtype, made.shape) == (np.float32, (len(corners), 4))
    assert np.allclose(made, written(low * scale, high * scale, wanted, width, height), atol=1e-4)
