"""Datasets in the layout of YOLO, in both orders of folders, and label files that are something else."""

from __future__ import annotations

import numpy as np
import pytest

import gdsload
from gdsload.conversion.recognise import recognise
from gdsload.conversion.sources.yolo_files import YoloSource
from gdsload.errors import FormatError, OptionError

pictures = pytest.importorskip("PIL.Image")
pytest.importorskip("yaml")
YAML = "path: .\ntrain: images/train\nval: images/val\nnames:\n  0: cat\n  1: dog\n"


def write(root, pattern="{kind}/train", yaml=YAML, count=3):
    """Images without, with one and with two objects."""
    for kind in ("images", "labels"):
        (root / pattern.format(kind=kind)).mkdir(parents=True, exist_ok=True)
    pixels = []
    for number in range(count):
        pixels.append(np.full((6, 8, 3), number, np.uint8))
        pictures.fromarray(pixels[-1]).save(root / pattern.format(kind="images") / f"{number}.png")
        lines = [f"{one} 0.5 0.25 0.125 {0.5 / (one + 1)}" for one in range(number)]
        if number:
            (root / pattern.format(kind="labels") / f"{number}.txt").write_text("\n".join(lines) + "\n\n")
    if yaml is not None:
        (root / "data.yaml").write_text(yaml)
    return pixels


@pytest.mark.parametrize("pattern", ["{kind}/train", "train/{kind}", "{kind}"])
def test_what_the_label_files_say(tmp_path, samples_in, pattern):
    pixels = write(tmp_path, pattern)
    assert recognise(str(tmp_path)) == "yolo"
    source = YoloSource(str(tmp_path))
    assert source.metadata() == {"classes": {"labels": ["cat", "dog"]}, "boxes": "cxcywh"}
    found = samples_in(source, 200)
    assert len(source.parts(200)) == 3
    assert [
        np.array_equal(one["image"], array.transpose(2, 0, 1)) for one, array in zip(found, pixels, strict=True)
    ] == [True] * 3
    assert [one["labels"].tolist() for one in found] == [[], [0], [0, 1]]
    assert [one["boxes"].tolist() for one in found] == [
        [], [[0.5, 0.25, 0.125, 0.5]], [[0.5, 0.25, 0.125, 0.5], [0.5, 0.25, 0.125, 0.25]],
    ]  # fmt: skip
    assert found[0]["boxes"].shape == (0, 4)


@pytest.mark.parametrize("pattern", ["{kind}/train", "train/{kind}", "{kind}"])
def test_label_files_tell_what_it_is_where_no_yaml_file_does(tmp_path, pattern):
    write(tmp_path, pattern, yaml=None)
    labels = tmp_path / pattern.format(kind="labels")
    (labels / "classes.txt").write_text("cat\ndog\n")
    (labels / "0.txt").write_text("")
    assert recognise(str(tmp_path)) == "yolo"
    (labels / "0.txt").write_text("a cat on a mat, and another\n")
    assert recognise(str(tmp_path)) == "images"


@pytest.mark.parametrize("codec", ["JPEG", "TIFF"])
@pytest.mark.parametrize("orientation", [1, 3, 6, 8])
def test_boxes_are_those_of_the_turned_image(tmp_path, samples_in, orientation, codec):
    write(tmp_path)
    exif = pictures.Exif()
    exif[0x0112] = orientation
    how = {"tiffinfo": {0x0112: orientation}} if codec == "TIFF" else {"exif": exif}
    pictures.fromarray(np.zeros((6, 8, 3), np.uint8)).save(tmp_path / "images/train/1.png", codec, **how)
    found = samples_in(YoloSource(str(tmp_path), boxes="xywh"))[1]
    height, width = found["image"].shape[1:]
    assert (width, height) == ((6, 8) if orientation >= 5 else (8, 6))
    assert found["boxes"].tolist() == [[0.4375 * width, 0, 0.125 * width, 0.5 * height]]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"boxes": "xyxy"}, [3.5, 0, 4.5, 3]),
        ({"boxes": "xywh"}, [3.5, 0, 1, 3]),
        ({"boxes": "xyxy", "size": 16, "resize": "squash"}, [7, 0, 9, 8]),
        ({"size": 16, "resize": "squash"}, [0.5, 0.25, 0.125, 0.5]),
    ],
)
def test_forms_of_boxes(tmp_path, samples_in, options, expected):
    write(tmp_path)
    assert np.allclose(samples_in(YoloSource(str(tmp_path), **options))[1]["boxes"], [expected])


def test_images_kept_as_they_are(tmp_path, out):
    write(tmp_path)
    gdsload.convert(tmp_path, out, keep_encoded=True, workers=1)
    dataset = gdsload.ShardDataset(out)
    assert dataset.column("image") == [(tmp_path / f"images/train/{number}.png").read_bytes() for number in range(3)]
    assert dataset[2]["labels"].tolist() == [0, 1]


def test_the_yaml_file_itself_is_no_folder(tmp_path):
    write(tmp_path)
    (file,) = tmp_path.glob("*.yaml")
    with pytest.raises(FormatError, match="it is no folder. Pass the folder that has `images`"):
        YoloSource(str(file)).describe()


def test_ways_out_of_several_sizes_cut_no_object_off(tmp_path):
    assert "resize='squash'" in YoloSource(str(tmp_path)).ways_out
    YoloSource(str(tmp_path), size=224, resize="squash")


def test_splits_and_shards(tmp_path, out):
    for split in ("train", "val"):
        write(tmp_path, f"{{kind}}/{split}")
    with pytest.raises(OptionError, match="several splits: 'train', 'val'"):
        YoloSource(str(tmp_path)).parts(1)
    gdsload.convert(tmp_path, out, workers=1, split="val")
    dataset = gdsload.ShardDataset(out)
    assert [dataset[number]["labels"].tolist() for number in range(3)] == [[], [0], [0, 1]]
    assert dataset.schema["boxes"].shape == (None, 4)


@pytest.mark.parametrize(
    ("line", "match"),
    [
        ("0 0.5 0.5 0.5", "a line has 4 values, not class, centre, width and height"),
        ("0 0.1 0.1 0.2 0.2 0.3 0.3", "a line has 7 values"),
        ("cat 0.5 0.5 0.1 0.1", "a line is no box"),
        ("0 0.5 0.5 0.1 1.5", "not between 0 and 1"),
        ("0 0.5 nan 0.1 0.1", "not between 0 and 1"),
        ("2 0.5 0.5 0.1 0.1", "a class is none of the 2"),
        ("0.5 0.5 0.5 0.1 0.1", "a class is none of the 2"),
        ("-1 0.5 0.5 0.1 0.1", "a class is none of the 2"),
    ],
)
def test_a_label_file_that_is_something_else_is_one_samples_fault(tmp_path, line, match):
    write(tmp_path)
    (tmp_path / "labels" / "train" / "1.txt").write_text(line)
    source = YoloSource(str(tmp_path))
    items = [item for part in source.parts(1) for item in source.read(part)]
    items[2].make()
    with pytest.raises(FormatError, match=match):
        items[1].make()


@pytest.mark.parametrize(
    ("yaml", "match"),
    [
        ("train: train.txt\nnames: [a]\n", "names lists of images"),
        ("train: [a, b]\nnames: [a]\n", "names lists of images"),
        ("names: {1: a, 2: b}\n", "not numbered from 0 on"),
        ("names: 7\n", "has no list of names"),
        ("[1, 2]", "no YAML file of a dataset"),
        ("a: [", "it is no YAML"),
        ("!!python/object/apply:os.mkdir [x]", "it is no YAML"),
        ("[" * 1000, "it is no YAML"),
    ],
)
def test_yaml_files(tmp_path, yaml, match):
    write(tmp_path, yaml=yaml)
    source = YoloSource(str(tmp_path))
    with pytest.raises(FormatError, match=match):
        source.describe()


def test_classes_in_a_list_or_none(tmp_path, samples_in):
    write(tmp_path / "a", yaml="names: [x, y, z]\n")
    assert YoloSource(str(tmp_path / "a")).classes == ["x", "y", "z"]
    write(tmp_path / "b", yaml=None)
    assert YoloSource(str(tmp_path / "b")).classes == []
    assert len(samples_in(YoloSource(str(tmp_path / "b")))) == 3
    with pytest.raises(FormatError, match="no image in a folder `images`"):
        YoloSource(str(tmp_path / "b" / "labels")).parts(1)
