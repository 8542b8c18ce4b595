"""One rule for EXIF's orientation: a picture is the same by every way into a batch, as Pillow shows it."""

import io

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps

import gdsload
from gdsload.transforms import DecodeImage
from tests.conversion.contents import picture
from tests.conversion.picture_sources import WAYS, folder, in_memory

CODECS = ("JPEG", "PNG", "WEBP", "TIFF")


def encoded(codec, orientation):
    """A square picture, of which no two turned ones are alike."""
    noise = np.random.default_rng(orientation).integers(0, 256, (16, 16, 3), np.uint8)
    return picture(noise, codec, orientation)


def shown(raw):
    return np.asarray(ImageOps.exif_transpose(Image.open(io.BytesIO(raw)))).transpose(2, 0, 1)


def made_by_datasets(root, files):
    """The images that `datasets` itself decodes."""
    source = in_memory(root, files)[0]
    return source.with_transform(lambda rows: rows), "image", {}


@pytest.fixture
def root(tmp_path):
    (tmp_path / "s").mkdir()
    return tmp_path / "s"


@pytest.mark.parametrize("way", [*WAYS, made_by_datasets])
def test_converted_to_pixels(converted, root, way):
    files = [encoded(codec, orientation) for codec in CODECS for orientation in range(1, 9)]
    source, field, options = way(root, files)
    found = converted(source, **options)
    for sample, raw in zip(found, files, strict=True):
        assert np.array_equal(sample[field], shown(raw))


@pytest.mark.parametrize("way", WAYS)
def test_kept_and_decoded_by_the_loader(root, out, way):
    files = [encoded(codec, orientation) for codec in CODECS[:3] for orientation in range(1, 9)]
    source, field, options = way(root, files)
    gdsload.convert(source, out, workers=1, keep_encoded=True, **options)
    loader = gdsload.DataLoader(out, batch_size=len(files), decode={field: DecodeImage()}, device="cpu")
    (batch,) = loader
    assert [np.array_equal(image, shown(raw)) for image, raw in zip(batch[field], files, strict=True)] == [True] * 24
    loader.close()


@pytest.mark.parametrize("turn", [True, False])
def test_images_of_a_users_dataset_are_as_it_returns_them(converted, turn):
    """It may have turned them by hand."""
    images = [Image.open(io.BytesIO(encoded("JPEG", number))) for number in range(1, 9)]
    images = [ImageOps.exif_transpose(image) if turn else image.convert("RGB") for image in images]
    for one, image in zip(converted([{"x": image} for image in images]), images, strict=True):
        assert np.array_equal(one["x"], np.asarray(image).transpose(2, 0, 1))


XMP = b'http://ns.adobe.com/xap/1.0/\0<x tiff:Orientation="6"/>'


def in_a_segment(content):
    """A JPEG of 16 × 8 pixels with a segment of an application at its start."""
    whole = picture(Image.new("RGB", (16, 8)), "JPEG")
    return b"\xff\xd8\xff\xe1" + (len(content) + 2).to_bytes(2, "big") + content + whole[2:]


@pytest.mark.parametrize("content", [XMP, b"Exif\0\0no such thing", b"Exif\0\0II*\0\xff\xff\xff\xff", b"Exif\0\0"])
def test_what_is_no_exif_turns_nothing_by_any_way(root, out, content):
    folder(root, [in_a_segment(content)])
    gdsload.convert(root, out, workers=1)
    assert gdsload.ShardDataset(out).schema["image"].shape == (3, 8, 16)
    gdsload.convert(root, out, workers=1, keep_encoded=True, overwrite=True)
    with gdsload.DataLoader(out, decode={"image": DecodeImage()}, device="cpu") as loader:
        assert next(iter(loader))["image"][0].shape == (3, 8, 16)


def test_a_png_may_have_it_after_its_pixels(converted, root):
    raw = encoded("PNG", 6)
    at = raw.index(b"eXIf") - 4
    end = at + 12 + int.from_bytes(raw[at : at + 4], "big")
    last = len(raw) - 12
    moved = raw[:at] + raw[end:last] + raw[at:end] + raw[last:]
    folder(root, [raw, moved])
    images = [sample["image"] for sample in converted(root)]
    assert torch.equal(*images)
    assert np.array_equal(images[0], shown(raw))
