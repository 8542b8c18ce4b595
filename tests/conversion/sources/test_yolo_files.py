"""Datasets in the layout of YOLO, in both orders of folders, and label files that are something else."""

from __future__ import annotations

import numpy as np
import pytest

import gdsload
from gdsload.conversion.recognise import recognise
from gdsload.conversion.sources.yolo_files import YoloSource
from gdsload.errors import FormatError, GdsloadError, OptionError
from tests.conversion.reading import items_of

pictures = pytest.importorskip("PIL.Image")
pytest.importorskip("yaml")
LEFT = "{} label file {} left out, of no image, or of one that has another: '{}' first"
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
    for one, array in zip(found, pixels, strict=True):
        assert np.array_equal(one["image"], array.transpose(2, 0, 1))
    assert [one["labels"].tolist() for one in found] == [[], [0], [0, 1]]
    one, other = [0.5, 0.25, 0.125, 0.5], [0.5, 0.25, 0.125, 0.25]
    assert [one["boxes"].tolist() for one in found] == [[], [one], [one, other]]
    assert found[0]["boxes"].shape == (0, 4)


@pytest.mark.parametrize("pattern", ["{kind}/train", "train/{kind}", "{kind}"])
def test_label_files_tell_what_it_is_where_no_yaml_file_does(tmp_path, pattern):
    write(tmp_path, pattern, yaml=None)
    labels = tmp_path / pattern.format(kind="labels")
    (labels / "classes.txt").write_text("cat\ndog\n")
    (labels / "0.txt").write_text("")
    assert recognise(str(tmp_path)) == "yolo"
    (labels / "0.txt").write_text("a cat on a mat, and another\n")  # an error then, with the way out
    assert recognise(str(tmp_path)) == "yolo"


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


def test_the_yaml_file_itself_is_no_folder(tmp_path):
    write(tmp_path)
    (file,) = tmp_path.glob("*.yaml")
    with pytest.raises(FormatError, match="it is no folder. Pass the folder that has `images`"):
        YoloSource(str(file)).describe()


def test_splits_and_shards(tmp_path, converted):
    for split in ("train", "val"):
        write(tmp_path, f"{{kind}}/{split}")
    with pytest.raises(OptionError, match="several splits: 'train', 'val'"):
        YoloSource(str(tmp_path)).parts(1)
    dataset = converted(tmp_path, split="val")
    assert [dataset[number]["labels"].tolist() for number in range(3)] == [[], [0], [0, 1]]
    assert dataset.schema["boxes"].shape == (None, 4)


@pytest.mark.parametrize(
    ("line", "match"),
    [
        ("0 0.5 0.5 0.5", "a line has 4 values, not class, centre, width, height"),
        ("a cat on a mat", "a line is no box: 'a cat on a mat'. If no label file has boxes, pass `kind='images'`"),
        ("0 0.1 0.1 0.2 0.2 0.3 0.3", "a line has 7 values, as outlines, key points and turned boxes have them"),
        ("0 0.5 0.5 0.1 0.1\nx 0.5 0.5 0.1 0.1", "a line is no box: 'x 0.5"),
        ("0 0.5 0.5 0.1 1.5", "not between 0 and 1"),
        ("0 0.5 nan 0.1 0.1", "not between 0 and 1"),
        ("2 0.5 0.5 0.1 0.1", "a class is none of the 2"),
        ("0.5 0.5 0.5 0.1 0.1", "a class is none of the 2"),
    ],
)
def test_a_label_file_that_is_something_else_is_one_samples_fault(tmp_path, line, match):
    write(tmp_path)
    (tmp_path / "labels" / "train" / "1.txt").write_text(line)
    items = items_of(YoloSource(str(tmp_path)))
    items[2].make()
    with pytest.raises(FormatError, match=match):
        items[1].make()


@pytest.mark.parametrize(
    ("yaml", "match"),
    [
        ("train: train.txt\nnames: [a]\n", "names the list 'train.txt', which is not there"),
        ("train: {a: b}\nnames: [a]\n", "'train' in its YAML file is no folder or file, and no list of them"),
        ("names: [[a]]\n", "has no list of names. Write a list, names: "),
        ("&a [*a]\n", "it is no YAML"),
        ("names: {1: a, 2: b}\n", "not numbered from 0 on. Number them so"),
        ("[1, 2]", "no YAML file of a dataset"),
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


def put(root, images=(), texts=(), yaml=None):
    """Images, and texts by name: one box each, unless it is said otherwise."""
    for name in images:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        pictures.fromarray(np.zeros((6, 8, 3), np.uint8)).save(root / name)
    for name, text in (texts if isinstance(texts, dict) else dict.fromkeys(texts, "0 0.5 0.5 0.2 0.2\n")).items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    if yaml is not None:
        (root / "data.yaml").write_text(yaml)


@pytest.mark.parametrize(
    ("images", "labels", "path"),
    [
        (["images/a.png", "images/b.png"], ["images/a.txt", "images/b.txt"], "."),
        (["images/train/a.png", "images/train/b.png"], ["images/train/a.txt", "images/train/b.txt"], "."),
        (["train/a.png", "train/b.png"], ["train/a.txt", "train/b.txt"], "."),
        (["a.png", "b.png"], ["a.txt", "b.txt"], "."),
        (["images/a.png", "images/b.png"], ["labels/a.txt", "labels/b.txt"], "images"),
        (["images/x/a.png", "images/x/b.png"], ["labels/x/a.txt", "labels/x/b.txt"], "images"),
        (["images/x/a.png", "images/x/b.png"], ["labels/x/a.txt", "labels/x/b.txt"], "images/x"),
        (["train/images/a.png", "train/images/b.png"], ["train/labels/a.txt", "train/labels/b.txt"], "train"),
        (["train/images/a.png", "train/images/b.png"], ["train/labels/a.txt", "train/labels/b.txt"], "train/images"),
        (["images/a.PNG", "images/b.png"], ["labels/a.txt", "labels/b.TXT"], "."),
    ],
)
def test_where_label_files_may_be(tmp_path, out, images, labels, path):
    put(tmp_path / "d", images, labels, "names: [cat]\n")
    assert recognise(str(tmp_path / "d" / path)) == "yolo"
    report = gdsload.convert(tmp_path / "d" / path, out, workers=1)
    dataset = gdsload.ShardDataset(out)
    assert (report.notes, [len(dataset[number]["boxes"]) for number in range(2)]) == ((), [1, 1])


@pytest.mark.parametrize(
    ("texts", "match"),
    [
        ([], r"2 images are there, and no label file fits: 'images/a.png' has none at 'labels/a.txt' or 'images"),
        (["labels/frame_a.txt"], "no label file fits.*Put label files there.*or pass `kind='images'`"),
        (["labels/a.txt", "labels/c.txt", "labels/d.txt"], "2 label files without an image, 'labels/c.txt' first. Put"),
        (["labels/a.txt", "images/c.txt"], "1 label file without an image, 'images/c.txt' first"),
        ({"labels/classes.txt": "cat\n"}, "no label file fits"),
    ],
)
def test_label_files_and_images_that_do_not_fit(tmp_path, texts, match):
    put(tmp_path, ["images/a.png", "images/b.png"], texts, "names: [cat]\n")
    with pytest.raises(FormatError, match=match):
        YoloSource(str(tmp_path)).parts(1)


@pytest.mark.parametrize("yaml", ["names: [cat]\n", None])
@pytest.mark.parametrize(
    ("image", "texts", "match"),
    [
        ("images/a.png", ["Labels/a.txt"], "no label file fits: 'images/a.png' has none at 'labels/a.txt'"),
        ("Images/a.png", ["Labels/a.txt"], "no label file fits: 'Images/a.png' has none at 'Images/a.txt'"),
        ("images/a.png", ["labels/a.png.txt"], "no label file fits"),
        ("images/a.png", {"labels/a.json": "{}"}, "no label file fits"),
        ("images/a.png", {"labels/a.txt": "0.5 0.5 0.5 0.5 0.5"}, "a class is no(ne of the 1| whole number)"),
        ("images/train/a.png", ["labels/train/b.txt"], "no label file fits"),
        ("train/images/a.png", ["train/labels/b.txt"], "no label file fits"),
    ],
)
def test_folders_called_images_and_labels_are_no_classes_of_images(tmp_path, out, image, texts, match, yaml):
    put(tmp_path, [image], texts, yaml)
    with pytest.raises(GdsloadError, match=match):
        gdsload.convert(tmp_path, out, workers=1)


@pytest.mark.parametrize("place", ["classes.txt", "labels/classes.txt", "images/classes.txt"])
def test_names_of_classes_in_a_text(tmp_path, converted, place):
    put(tmp_path, ["images/a.png"], {"labels/a.txt": "1 0.5 0.5 0.2 0.2", place: "cat\nhot dog\n\n"})
    assert converted(tmp_path).metadata["classes"] == {"labels": ["cat", "hot dog"]}


def test_a_second_label_file_of_an_image_is_said(tmp_path, samples_in):
    box, text = "0 0.5 0.5 0.2 0.2\n", "a caption\n"
    put(tmp_path, ["images/a.png", "images/b.png"], {"labels/a.txt": box, "labels/b.txt": box, "images/b.txt": text})
    source = YoloSource(str(tmp_path))
    assert source.notes() == []
    (tmp_path / "images" / "a.txt").write_text(box * 2)
    assert [len(one["boxes"]) for one in samples_in(source)] == [1, 1]
    assert source.notes() == [LEFT.format(1, "is", "images/a.txt")]


def test_what_is_passed_over_is_said(tmp_path, samples_in):
    texts = {"labels/a.txt": "0 0.5 0.5 0.2 0.2", "labels/b.txt": "", "labels/classes.txt": "cat\n"}
    images = ["images/a.png", "images/b.png", "images/c.png", "runs/plot.png"]
    put(tmp_path, images, {**texts, "labels/val/a.txt": "0 0.5 0.5 0.2 0.2"}, "names: [cat]\n")
    source = YoloSource(str(tmp_path))
    assert [len(one["boxes"]) for one in samples_in(source)] == [1, 0, 0]
    assert source.notes() == [
        "1 image is without a label file: taken for images of no object",
        LEFT.format(1, "is", "labels/val/a.txt"),
        "1 image is in no folder 'images', and left out",
    ]


@pytest.mark.parametrize(
    ("yaml", "split", "expected"),
    [
        ("train: images/x", None, ["images/x/a"]),
        ("path: .\ntrain: ./images/x/\nval:\ntest: # none", None, ["images/x/a"]),
        ("path: ../datasets/gone\ntrain: images/x", None, ["images/x/a"]),
        ("path: {root}\ntrain: images/x", None, ["images/x/a"]),
        ("train: {root}/images/x", None, ["images/x/a"]),
        ("path: images\ntrain: x\nval: y", "val", ["images/y/b", "images/y/c"]),
        ("train: ../images/x\nval: ../images/y", "train", ["images/x/a"]),
        ("train: [images/y, images/x]", None, ["images/y/b", "images/y/c", "images/x/a"]),
        ("train: images/y\nval: images/y", None, ["images/y/b", "images/y/c"]),
        ("train: images/x\nval: images/y", "all", ["images/x/a", "images/y/b", "images/y/c"]),
        ("train: list.txt", None, ["images/y/c", "images/x/a"]),
        ("train: lists/win.txt\nval: images", "train", ["images/y/b"]),
        ("train: gone\nval: gone too", None, ["images/x/a", "images/y/b", "images/y/c"]),
    ],
)
def test_the_yaml_file_tells_of_splits(tmp_path, yaml, split, expected):
    images = [f"images/{name}.png" for name in ("x/a", "y/b", "y/c")]
    put(tmp_path, images, [name.replace("images", "labels")[:-3] + "txt" for name in images])
    put(tmp_path, yaml=f"names: [cat]\n{yaml.replace('{root}', str(tmp_path))}\n")
    (tmp_path / "list.txt").write_text(f"./images/y/c.png\n\n{tmp_path}/images/x/a.png\n")
    (tmp_path / "lists").mkdir()
    (tmp_path / "lists" / "win.txt").write_bytes(b"..\\images\\y\\b.png\r\n")
    source = YoloSource(str(tmp_path), **({} if split is None else {"split": split}))
    assert [item.key[:-4] for item in items_of(source)] == expected
    assert bool(source.notes()) == (len(expected) < 3 and split is None)


def test_a_split_is_called_as_in_the_yaml_file_or_as_its_folder(tmp_path):
    for split in ("train", "valid"):
        put(tmp_path, [f"{split}/images/{split}.png"], [f"{split}/labels/{split}.txt"])
    put(tmp_path, yaml="names: [cat]\ntrain: ../train/images\nval: ../valid/images\n")
    for split in ("val", "valid"):
        (item,) = items_of(YoloSource(str(tmp_path), split=split))
        assert item.key == "valid/images/valid.png"


def test_splits_of_a_yaml_file_are_not_mixed_unasked(tmp_path):
    images = [f"images/{name}.png" for name in ("x/a", "y/b")]
    put(tmp_path, images, [name.replace("images", "labels")[:-3] + "txt" for name in images])
    put(tmp_path, yaml="names: [cat]\ntrain: images/x\nval: images/y\n")
    with pytest.raises(OptionError, match="it holds several splits: 'train', 'val'"):
        YoloSource(str(tmp_path)).parts(1)
    with pytest.raises(OptionError, match="there is no split 'test'"):
        YoloSource(str(tmp_path), split="test").parts(1)
    put(tmp_path, yaml="names: [cat]\ntrain: list.txt\n")
    (tmp_path / "list.txt").write_text("images/x/a.png\n../secret.png\n")
    with pytest.raises(FormatError, match=r"line 2 names '\.\./secret\.png', which is no image of the folder"):
        YoloSource(str(tmp_path)).parts(1)


@pytest.mark.parametrize(
    "names",
    ["[no, yes, on, 010, 1e3, null, ~, 2020-01-01, 0x1F, 1_000, 1:30, .inf, 'no']", '{0: no, 1: yes, "2": 010}'],
)
def test_names_of_classes_are_texts(tmp_path, names):
    put(tmp_path, ["images/a.png"], ["labels/a.txt"], f"names: {names}\n")
    inside = names.strip("[]{}").replace("'", "").split(", ")
    assert YoloSource(str(tmp_path)).classes == [one.split(": ")[-1] for one in inside]


@pytest.mark.parametrize("key", ["names: [cat, *l11]", "names: *l11", "train: {p: *l11}", "train: *l11", "path: *l11"])
def test_a_yaml_file_that_grows_when_it_is_unpacked(tmp_path, key):
    levels = [
        "l0: &l0 [x,x,x,x,x,x,x,x,x,x]",
        *(f"l{n}: &l{n} [{','.join([f'*l{n - 1}'] * 10)}]" for n in range(1, 12)),
    ]
    put(tmp_path, ["images/a.png"], ["labels/a.txt"], "\n".join([*levels, key]) + "\n")
    source = YoloSource(str(tmp_path))
    if key.startswith("path"):
        source.describe()
        return
    with pytest.raises(FormatError, match="its YAML file"):
        source.describe()


def test_label_files_of_windows(tmp_path, samples_in):
    put(tmp_path, ["images/a.png"], {"labels/a.txt": ""}, "names: [cat]\n")
    (tmp_path / "labels/a.txt").write_bytes(b"\xef\xbb\xbf0 0.5 0.5 0.25 0.25\r\n")
    assert samples_in(YoloSource(str(tmp_path)))[0]["boxes"].tolist() == [[0.5, 0.5, 0.25, 0.25]]
    (tmp_path / "labels/a.txt").write_bytes("0 0.5".encode("utf-16"))
    with pytest.raises(FormatError, match="a text in it is no UTF-8"):
        samples_in(YoloSource(str(tmp_path)))
