"""Pictures of Pillow's that users write: as a conversion of a dataset that returns them stores them."""

import pickle
import subprocess
import sys

import numpy as np
import pytest

import gdsload
from gdsload import SchemaError

Image = pytest.importorskip("PIL.Image")


def picture(mode, number=0):
    pixels = np.random.default_rng(number).integers(0, 256, (5, 7, 3), np.uint8)
    return Image.fromarray(pixels).convert({"La": "LA", "RGBa": "RGBA"}.get(mode, mode)).convert(mode)


@pytest.mark.parametrize(
    ("mode", "channels"),
    [
        *[("RGB", 3), ("L", 1), ("1", 1), ("P", 1), ("LA", 2), ("RGBA", 4), ("CMYK", 3)],
        *[("La", 2), ("PA", 4), ("RGBa", 4)],
    ],
)
def test_they_are_what_convert_makes_of_them(tmp_path, mode, channels):
    pictures = [picture(mode, number) for number in range(3)]
    gdsload.convert([{"x": one} for one in pictures], tmp_path / "converted", workers=1)
    wanted = [sample["x"].tolist() for sample in gdsload.ShardDataset(tmp_path / "converted")]
    with gdsload.ShardWriter(tmp_path / "written") as writer:
        writer.write({"x": pictures[0]})
        writer.write_batch({"x": pictures[1:]})
    with gdsload.ShardWriter(tmp_path / "batch") as writer:
        writer.write_batch({"x": pictures})
    for name in ("written", "batch"):
        dataset = gdsload.ShardDataset(tmp_path / name)
        assert dataset.schema["x"] == gdsload.Field("uint8", (channels, 5, 7))
        assert [sample["x"].tolist() for sample in dataset] == wanted


def test_what_does_not_fit_is_refused(tmp_path):
    with gdsload.ShardWriter(tmp_path / "d", {"x": gdsload.Field("uint8", (3, 5, 7))}) as writer:
        with pytest.raises(SchemaError, match=r"more than 8 bits a channel \(mode F\).*np.asarray\(image\)"):
            writer.write({"x": picture("F")})
        with pytest.raises(SchemaError, match=r"shape \[1, 5, 7\], but \[3, 5, 7\] was expected"):
            writer.write({"x": picture("L")})
        with pytest.raises(SchemaError, match="the list cannot be made one tensor"):
            writer.write_batch({"x": [picture("RGB"), picture("L")]})
        writer.write({"x": np.asarray(picture("RGB")).transpose(2, 0, 1)})
    with gdsload.ShardWriter(tmp_path / "e") as writer:
        with pytest.raises(SchemaError, match="more than 8 bits"):
            writer.write({"x": picture("I")})
        writer.write({"x": np.asarray(picture("I"))})  # as the error says


def test_a_file_that_has_more_than_pillow_reads_is_refused(tmp_path):
    """A picture that is opened, and not loaded, is one of a file; another is what a user has made."""
    pages = [picture("L", number) for number in range(3)]
    pages[0].save(tmp_path / "a.tif", save_all=True, append_images=pages[1:])
    with gdsload.ShardWriter(tmp_path / "d") as writer, Image.open(tmp_path / "a.tif") as image:
        with pytest.raises(SchemaError, match=r"3 pictures .*Pass it as an array, np.stack\(\[np.array\(page\)"):
            writer.write({"x": image})
        writer.write({"x": image.convert("L")})
        image.seek(1)
        writer.write({"x": image})
    wanted = [np.asarray(pages[number])[None].tolist() for number in (0, 1)]
    assert [sample["x"].tolist() for sample in gdsload.ShardDataset(tmp_path / "d")] == wanted


@pytest.mark.parametrize("codec", ["TIFF", "PNG", "WEBP", "JPEG"])
def test_pictures_that_were_pickled_are_taken(tmp_path, codec):
    """They have the class of a file's, and not what that has."""
    picture("RGB").save(tmp_path / "a", codec)
    with Image.open(tmp_path / "a") as image:
        pickled = pickle.loads(pickle.dumps(image))
        wanted = np.asarray(image).transpose(2, 0, 1)
    with gdsload.ShardWriter(tmp_path / "d") as writer:
        writer.write({"x": pickled})
    assert np.array_equal(gdsload.ShardDataset(tmp_path / "d")[0]["x"], wanted)


def test_pillow_is_not_imported_for_them(tmp_path):
    program = f"import gdsload, sys\nwith gdsload.ShardWriter({str(tmp_path / 'd')!r}) as w: w.write({{'x': [1]}})\n"
    subprocess.run([sys.executable, "-c", f"{program}assert 'PIL' not in sys.modules"], check=True)
