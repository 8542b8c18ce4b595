"""Image folders, written by Pillow, and hostile images."""

import io
import os
import pickle
import struct
import zlib

import numpy as np
import pytest
from PIL import Image

from gdsload.conversion.sources.image_folders import ImageFolderSource
from gdsload.conversion.sources.pictures import ImageForm, decode_image
from gdsload.errors import FormatError
from tests.conversion.contents import picture
from tests.conversion.reading import items_of, made_by


def save(path, array, **options):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(array).save(path, **options)


@pytest.fixture
def folder(tmp_path):
    rng = np.random.default_rng(0)
    for name in ("dog", "cat", "10", "2"):
        for number in (1, 2, 10):
            save(tmp_path / name / f"im-{number}.png", rng.integers(0, 256, (8, 12, 3), np.uint8))
    save(tmp_path / "cat" / "more" / "deep.BMP".lower(), rng.integers(0, 256, (8, 12, 3), np.uint8))
    (tmp_path / "cat" / "notes.txt").write_text("no image")
    (tmp_path / ".cache").mkdir()
    return tmp_path


def test_classes_order_and_pixels(folder):
    source = pickle.loads(pickle.dumps(ImageFolderSource(str(folder))))
    assert source.classes == ["10", "2", "cat", "dog"]
    items = items_of(source)
    assert [item.key for item in items][:3] == ["10/im-1.png", "10/im-2.png", "10/im-10.png"]
    assert [item.make()["label"] for item in items] == [0] * 3 + [1] * 3 + [2] * 4 + [3] * 3
    for item in items:
        image = item.make()["image"]
        assert image.dtype == np.uint8
        assert np.array_equal(image, np.asarray(Image.open(folder / item.key)).transpose(2, 0, 1))


def test_images_of_another_size_are_refused_where_none_is_resized(folder):
    with pytest.raises(FormatError, match="8 × 12 pixels, not 8 × 8.*resize"):
        made_by(ImageFolderSource(str(folder), size=8, resize="none"))


@pytest.mark.parametrize("how", [{}, {"resize": "crop"}])
def test_a_crop_which_a_size_alone_means_keeps_the_middle(tmp_path, how):
    array = np.zeros((4, 12, 3), np.uint8)
    array[:, 4:8] = 255
    save(tmp_path / "a" / "0.png", array)
    assert (items_of(ImageFolderSource(str(tmp_path), size=4, **how))[0].make()["image"] == 255).all()


def bomb(width, height):
    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", zlib.compress(bytes(1000))) + chunk(b"IEND", b"")


@pytest.mark.parametrize("pixels", [1.2, 3])
def test_a_bomb_is_an_error(tmp_path, pixels):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "0.png").write_bytes(bomb(10_000, int(Image.MAX_IMAGE_PIXELS * pixels / 10_000)))
    save(tmp_path / "a" / "1.png", np.zeros((2, 2, 3), np.uint8))
    bad, good = items_of(ImageFolderSource(str(tmp_path)))
    with pytest.raises(FormatError, match="bomb"):
        bad.make()
    assert good.make()["image"].shape == (3, 2, 2)


def test_damaged_anywhere_is_decoded_or_refused():
    whole = picture(np.random.default_rng(0).integers(0, 256, (9, 9, 3), np.uint8), "JPEG")
    for position in range(0, len(whole), 17):
        for hurt in (whole[:position], whole[:position] + b"\xff" + whole[position + 1 :]):
            try:
                assert decode_image(io.BytesIO(hurt), ImageForm(), "it").dtype == np.uint8
            except FormatError as error:
                assert error.file == "it"


def test_an_image_that_is_gone(tmp_path):
    save(tmp_path / "a" / "0.png", np.zeros((2, 2, 3), np.uint8))
    (item,) = items_of(ImageFolderSource(str(tmp_path)))
    os.unlink(tmp_path / "a" / "0.png")
    with pytest.raises(FormatError, match="No such file"):
        item.make()


@pytest.mark.parametrize(
    ("names", "noted"), [(("images", "masks"), True), (("Labels", "IMG"), True), (("images",), False), ("ab", False)]
)
def test_folders_that_may_be_pictures_and_their_masks_are_noted(tmp_path, names, noted):
    for name in names:
        save(tmp_path / name / "0.png", np.zeros((2, 2, 3), np.uint8))
    assert [("is taken for a class" in note) for note in ImageFolderSource(str(tmp_path)).notes()] == [True] * noted
