"""One rule for EXIF's orientation: a picture is the same by every way into a batch, as Pillow shows it."""

from __future__ import annotations

import io
import json
import tarfile

import numpy as np
import pytest
import torch

import gdsload
from gdsload.transforms import DecodeImage

Image = pytest.importorskip("PIL.Image")
ImageOps = pytest.importorskip("PIL.ImageOps")
CODECS = ("JPEG", "PNG", "WEBP", "TIFF")


def encoded(codec, orientation):
    """A square picture, of which no two turned ones are alike."""
    exif = Image.Exif()
    exif[0x0112] = orientation
    how = {"tiffinfo": {0x0112: orientation}} if codec == "TIFF" else {"exif": exif}
    stream = io.BytesIO()
    noise = np.random.default_rng(orientation).integers(0, 256, (16, 16, 3), np.uint8)
    Image.fromarray(noise).save(stream, codec, **how)
    return stream.getvalue()


def shown(raw):
    return np.asarray(ImageOps.exif_transpose(Image.open(io.BytesIO(raw)))).transpose(2, 0, 1)


def folder(root, files):
    for number, raw in enumerate(files):
        (root / f"{number}.jpg").write_bytes(raw)
    return root, "image", {"kind": "images"}


def csv(root, files):
    folder(root, files)
    (root / "a.csv").write_text("\n".join(["image", *(f"{number}.jpg" for number in range(len(files)))]))
    return root / "a.csv", "image", {}


def tar(root, files):
    with tarfile.open(root / "a.tar", "w") as made:
        for number, raw in enumerate(files):
            info = tarfile.TarInfo(f"{number}.jpg")
            info.size = len(raw)
            made.addfile(info, io.BytesIO(raw))
    return root / "a.tar", "jpg", {}


def parquet(root, files):
    arrow, tables = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    tables.write_table(arrow.table({"image": [{"bytes": raw, "path": None} for raw in files]}), root / "a.parquet")
    return root / "a.parquet", "image", {}


def in_memory(_root, files):
    library = pytest.importorskip("datasets")
    features = library.Features({"image": library.Image()})
    rows = {"image": [{"bytes": raw, "path": None} for raw in files]}
    return library.Dataset.from_dict(rows, features), "image", {}


def saved(root, files):
    pytest.importorskip("datasets").disable_progress_bars()
    in_memory(root, files)[0].save_to_disk(str(root / "d"))
    return root / "d", "image", {}


def parquet_of_datasets(root, files):
    in_memory(root, files)[0].to_parquet(str(root / "a.parquet"))
    return root / "a.parquet", "image", {}


def made_by_datasets(root, files):
    """What `datasets` itself decodes."""
    source = in_memory(root, files)[0]
    return source.with_transform(lambda rows: rows), "image", {}


def lmdb(root, files):
    library = pytest.importorskip("lmdb")
    with library.open(str(root / "l"), map_size=2**20) as environment, environment.begin(write=True) as transaction:
        for number, raw in enumerate(files):
            transaction.put(b"%03d" % number, raw)
    return root / "l", "value", {"decode": "image", "kind": "lmdb"}


def coco(root, files):
    folder(root, files)
    images = [{"id": n, "file_name": f"{n}.jpg", "width": 16, "height": 16} for n in range(len(files))]
    tree = {"categories": [], "annotations": [], "images": images}
    (root / "_annotations.coco.json").write_text(json.dumps(tree))
    return root, "image", {}


WAYS = [folder, csv, tar, parquet, in_memory, saved, parquet_of_datasets, made_by_datasets, lmdb, coco]


@pytest.fixture
def root(tmp_path):
    (tmp_path / "s").mkdir()
    return tmp_path / "s"


@pytest.mark.parametrize("way", WAYS)
def test_converted_to_pixels(root, out, way):
    files = [encoded(codec, orientation) for codec in CODECS for orientation in range(1, 9)]
    source, field, options = way(root, files)
    gdsload.convert(source, out, workers=1, **options)
    found = gdsload.ShardDataset(out)
    assert [np.array_equal(sample[field], shown(raw)) for sample, raw in zip(found, files, strict=True)] == [
        True
    ] * len(files)


@pytest.mark.parametrize("way", [one for one in WAYS if one is not made_by_datasets])
def test_kept_and_decoded_by_the_loader(root, out, way):
    files = [encoded(codec, orientation) for codec in CODECS[:3] for orientation in range(1, 9)]
    source, field, options = way(root, files)
    gdsload.convert(source, out, workers=1, keep_encoded=True, **options)
    loader = gdsload.DataLoader(out, batch_size=len(files), decode={field: DecodeImage()}, device="cpu")
    (batch,) = loader
    assert [np.array_equal(image, shown(raw)) for image, raw in zip(batch[field], files, strict=True)] == [True] * 24
    loader.close()


class Opened(torch.utils.data.Dataset):
    """A user's dataset, which turns images itself or does not."""

    def __init__(self, turn):
        self.turn = turn

    def __len__(self):
        return 8

    def __getitem__(self, index):
        image = Image.open(io.BytesIO(encoded("JPEG", index + 1)))
        return {"x": ImageOps.exif_transpose(image) if self.turn else image.convert("RGB")}


@pytest.mark.parametrize("turn", [True, False])
def test_images_of_a_users_dataset_are_as_it_returns_them(out, turn):
    """It may have turned them by hand; that they are not turned is said."""
    notes = gdsload.convert(Opened(turn), out, workers=1).notes
    wanted = [np.asarray(Opened(turn)[index]["x"]).transpose(2, 0, 1) for index in range(8)]
    assert [np.array_equal(one["x"], other) for one, other in zip(gdsload.ShardDataset(out), wanted, strict=True)] == [
        True
    ] * 8
    assert [("exif_transpose" in note) for note in notes] == ([] if turn else [True])
    listed = [Opened(turn)[5]["x"]] * 2
    notes = gdsload.convert({"x": listed}, out, overwrite=True, workers=1).notes
    assert [("exif_transpose" in note) for note in notes] == ([] if turn else [True])


XMP = b'http://ns.adobe.com/xap/1.0/\0<x tiff:Orientation="6"/>'


def in_a_segment(content):
    """A JPEG of 16 × 8 pixels with a segment of an application at its start."""
    stream = io.BytesIO()
    Image.new("RGB", (16, 8)).save(stream, "JPEG")
    return b"\xff\xd8\xff\xe1" + (len(content) + 2).to_bytes(2, "big") + content + stream.getvalue()[2:]


@pytest.mark.parametrize("content", [XMP, b"Exif\0\0no such thing", b"Exif\0\0II*\0\xff\xff\xff\xff", b"Exif\0\0"])
def test_what_is_no_exif_turns_nothing_by_any_way(root, out, content):
    folder(root, [in_a_segment(content)])
    gdsload.convert(root, out, workers=1)
    assert gdsload.ShardDataset(out).schema["image"].shape == (3, 8, 16)
    gdsload.convert(root, out, workers=1, keep_encoded=True, overwrite=True)
    with gdsload.DataLoader(out, decode={"image": DecodeImage()}, device="cpu") as loader:
        assert next(iter(loader))["image"][0].shape == (3, 8, 16)


def test_a_png_may_have_it_after_its_pixels(root, out):
    raw = encoded("PNG", 6)
    at = raw.index(b"eXIf") - 4
    end = at + 12 + int.from_bytes(raw[at : at + 4], "big")
    last = len(raw) - 12
    moved = raw[:at] + raw[end:last] + raw[at:end] + raw[last:]
    folder(root, [raw, moved])
    gdsload.convert(root, out, workers=1)
    images = [sample["image"] for sample in gdsload.ShardDataset(out)]
    assert torch.equal(*images)
    assert np.array_equal(images[0], shown(raw))
