"""Datasets in the layout of YOLO, in both orders of folders, and label files that are something else."""

import numpy as np
import pytest
import yaml as yaml_library
from PIL import Image

import gdsload
from gdsload.conversion.recognise import recognise
from gdsload.conversion.sources.yolo_files import YoloSource
from gdsload.errors import FormatError, GdsloadError, OptionError
from tests.conversion.contents import picture
from tests.conversion.reading import items_of

BOX = "0 0.5 0.5 0.2 0.2\n"
LEFT = "1 label file is left out, of no image, or of one that has another: '{}' first"


def put(root, images=(), texts=(), yaml=None):
    """Images of their own grey, and texts by name: one box each, unless it is said otherwise."""
    for number, name in enumerate(images):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((6, 8, 3), number, np.uint8)).save(root / name)
    for name, text in (texts if isinstance(texts, dict) else dict.fromkeys(texts, BOX)).items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    if yaml is not None:
        (root / "data.yaml").write_text(yaml)
    return root


def test_the_yaml_file_is_read_once_until_it_changes(tmp_path, monkeypatch):
    put(tmp_path / "in", ["images/1.png"], ["labels/1.txt"], "names: [cat]\ntrain: images\n")
    calls, load = [], yaml_library.load
    monkeypatch.setattr(yaml_library, "load", lambda *given, **options: calls.append(1) or load(*given, **options))
    gdsload.convert(tmp_path / "in", tmp_path / "out", kind="yolo", workers=1)
    assert len(calls) == 1
    (tmp_path / "in" / "data.yaml").write_text("names: [dog, cat]\ntrain: images\n")
    gdsload.convert(tmp_path / "in", tmp_path / "new", kind="yolo", workers=1)
    assert gdsload.ShardDataset(tmp_path / "new").metadata["classes"] == {"labels": ["dog", "cat"]}


@pytest.mark.parametrize("yaml", ["names: {0: cat, 1: dog}\n", None])
@pytest.mark.parametrize("pattern", ["{}/train", "train/{}", "{}"])
def test_what_the_label_files_say(tmp_path, samples_in, pattern, yaml):
    images, labels = pattern.format("images"), pattern.format("labels")
    one, other = "0 0.5 0.25 0.125 0.5", "1 0.5 0.25 0.125 0.25"
    texts = {f"{labels}/1.txt": f"{one}\n\n", f"{labels}/2.txt": f"{one}\n{other}"}
    put(tmp_path, [f"{images}/{number}.png" for number in range(3)], texts, yaml)
    assert recognise(str(tmp_path)) == "yolo"
    source = YoloSource(str(tmp_path))
    classes = {"classes": {"labels": ["cat", "dog"]}} if yaml else {}
    assert source.metadata() == {"boxes": "cxcywh", **classes}
    found = samples_in(source, 200)
    assert len(source.parts(200)) == 3
    for number, sample in enumerate(found):
        assert (sample["image"].shape, np.unique(sample["image"]).tolist()) == ((3, 6, 8), [number])
    assert [sample["labels"].tolist() for sample in found] == [[], [0], [0, 1]]
    boxes = [[float(word) for word in line.split()[1:]] for line in (one, other)]
    assert [sample["boxes"].tolist() for sample in found] == [[], boxes[:1], boxes]
    assert found[0]["boxes"].shape == (0, 4)


@pytest.mark.parametrize("codec", ["JPEG", "TIFF"])
@pytest.mark.parametrize("orientation", [1, 3, 6, 8])
def test_boxes_are_those_of_the_turned_image(tmp_path, samples_in, orientation, codec):
    put(tmp_path, ["images/1.png"], {"labels/1.txt": "0 0.5 0.25 0.125 0.5"})
    (tmp_path / "images/1.png").write_bytes(picture(np.zeros((6, 8, 3), np.uint8), codec, orientation))
    (found,) = samples_in(YoloSource(str(tmp_path), boxes="xywh"))
    height, width = found["image"].shape[1:]
    assert (width, height) == ((6, 8) if orientation >= 5 else (8, 6))
    assert found["boxes"].tolist() == [[0.4375 * width, 0, 0.125 * width, 0.5 * height]]


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
    put(tmp_path, ["images/1.png", "images/2.png"], {"labels/1.txt": line, "labels/2.txt": BOX}, "names: [a, b]\n")
    bad, good = items_of(YoloSource(str(tmp_path)))
    good.make()
    with pytest.raises(FormatError, match=match):
        bad.make()


def test_label_files_of_windows(tmp_path, samples_in):
    put(tmp_path, ["images/a.png"], {"labels/a.txt": ""})
    (tmp_path / "labels/a.txt").write_bytes(b"\xef\xbb\xbf0 0.5 0.5 0.25 0.25\r\n")
    assert samples_in(YoloSource(str(tmp_path)))[0]["boxes"].tolist() == [[0.5, 0.5, 0.25, 0.25]]
    (tmp_path / "labels/a.txt").write_bytes("0 0.5".encode("utf-16"))
    with pytest.raises(FormatError, match="a text in it is no UTF-8"):
        samples_in(YoloSource(str(tmp_path)))


ALIASES = "".join(f"l{n}: &l{n} [{','.join([f'*l{n - 1}' if n else 'x'] * 10)}]\n" for n in range(12))


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
        *((ALIASES + key, "its YAML file") for key in ("names: [cat, *l11]", "names: *l11", "train: [*l11]")),
    ],
)
def test_yaml_files(tmp_path, yaml, match):
    """Also those that grow when they are unpacked."""
    source = YoloSource(str(put(tmp_path, ["images/a.png"], ["labels/a.txt"], yaml)))
    with pytest.raises(FormatError, match=match):
        source.describe()


@pytest.mark.parametrize(
    "names",
    ["[no, yes, on, 010, 1e3, null, ~, 2020-01-01, 0x1F, 1_000, 1:30, .inf, 'no']", '{0: no, 1: yes, "2": 010}'],
)
def test_names_of_classes_are_texts(tmp_path, names):
    put(tmp_path, ["images/a.png"], ["labels/a.txt"], f"names: {names}\n")
    inside = names.strip("[]{}").replace("'", "").split(", ")
    assert YoloSource(str(tmp_path)).classes() == [one.split(": ")[-1] for one in inside]


@pytest.mark.parametrize("place", ["classes.txt", "labels/classes.txt", "images/classes.txt"])
def test_names_of_classes_in_a_text(tmp_path, converted, place):
    put(tmp_path, ["images/a.png"], {"labels/a.txt": "1 0.5 0.5 0.2 0.2", place: "cat\nhot dog\n\n"})
    assert converted(tmp_path).metadata["classes"] == {"labels": ["cat", "hot dog"]}


@pytest.mark.parametrize(
    ("image", "label", "path"),
    [
        ("images/{}.png", "images/{}.txt", "."),
        ("images/train/{}.png", "images/train/{}.txt", "."),
        ("train/{}.png", "train/{}.txt", "."),
        ("{}.png", "{}.txt", "."),
        ("images/{}.png", "labels/{}.txt", "images"),
        ("images/x/{}.png", "labels/x/{}.txt", "images"),
        ("images/x/{}.png", "labels/x/{}.txt", "images/x"),
        ("train/images/{}.png", "train/labels/{}.txt", "train"),
        ("train/images/{}.png", "train/labels/{}.txt", "train/images"),
        ("images/{}.PNG", "labels/{}.TXT", "."),
    ],
)
def test_where_label_files_may_be(tmp_path, out, image, label, path):
    put(tmp_path / "d", map(image.format, "ab"), map(label.format, "ab"), "names: [cat]\n")
    assert recognise(str(tmp_path / "d" / path)) == "yolo"
    report = gdsload.convert(tmp_path / "d" / path, out, workers=1)
    dataset = gdsload.ShardDataset(out)
    assert dataset.schema["boxes"].shape == (None, 4)
    assert (report.notes, [len(dataset[number]["boxes"]) for number in range(2)]) == ((), [1, 1])


@pytest.mark.parametrize("yaml", ["names: [cat]\n", None])
@pytest.mark.parametrize(
    ("image", "texts", "match"),
    [
        ("images/a.png", ["labels/frame_a.txt"], "fits: 'images/a.png' has none at 'labels/a.txt' or 'images/a.txt'"),
        ("images/a.png", ["Labels/a.txt"], "no label file fits.*Put label files there.*or pass `kind='images'`"),
        ("Images/a.png", ["Labels/a.txt"], "no label file fits: 'Images/a.png' has none at 'Images/a.txt'"),
        ("images/a.png", ["labels/a.png.txt"], "no label file fits"),
        ("images/a.png", {"labels/a.json": "{}"}, "no label file fits"),
        ("images/a.png", {"labels/a.txt": "0.5 0.5 0.5 0.5 0.5"}, "a class is no(ne of the 1| whole number)"),
        ("images/train/a.png", ["labels/train/b.txt"], "no label file fits"),
    ],
)
def test_folders_called_images_and_labels_that_do_not_fit(tmp_path, out, image, texts, match, yaml):
    """They are no classes of images."""
    with pytest.raises(GdsloadError, match=match):
        gdsload.convert(put(tmp_path, [image], texts, yaml), out, workers=1)


def test_the_yaml_file_itself_is_no_folder(tmp_path):
    put(tmp_path, yaml="names: [cat]\n")
    with pytest.raises(FormatError, match="it is no folder. Pass the folder that has `images`"):
        YoloSource(str(tmp_path / "data.yaml")).describe()


def test_a_second_label_file_of_an_image_is_said(tmp_path, samples_in):
    texts = {"labels/a.txt": BOX, "labels/b.txt": BOX, "images/b.txt": "a caption\n"}
    source = YoloSource(str(put(tmp_path, ["images/a.png", "images/b.png"], texts)))
    assert source.notes() == []
    (tmp_path / "images" / "a.txt").write_text(BOX * 2)
    assert [len(one["boxes"]) for one in samples_in(source)] == [1, 1]
    assert source.notes() == [LEFT.format("images/a.txt")]


def test_what_is_passed_over_is_said(tmp_path, samples_in):
    texts = {"labels/a.txt": BOX, "labels/b.txt": "", "labels/classes.txt": "cat\n", "labels/gone.txt": BOX}
    images = ["images/a.png", "images/b.png", "images/c.png", "runs/plot.png"]
    source = YoloSource(str(put(tmp_path, images, texts, "names: [cat]\n")))
    assert [len(one["boxes"]) for one in samples_in(source)] == [1, 0, 0]
    assert source.notes() == [
        "1 image is without a label file: taken for images of no object",
        LEFT.format("labels/gone.txt"),
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
        ("train: images/x\nval: images/y", None, "it holds several splits: 'train', 'val'"),
        ("train: images/x\nval: images/y", "test", "there is no split 'test'"),
        ("train: lists/bad.txt", None, r"line 2 names '\.\./secret\.png', which is no image of the folder"),
    ],
)
def test_the_yaml_file_tells_of_splits(tmp_path, yaml, split, expected):
    images = [f"images/{name}.png" for name in ("x/a", "y/b", "y/c")]
    lists = {
        "list.txt": f"./images/y/c.png\n\n{tmp_path}/images/x/a.png\n",
        "lists/win.txt": "..\\images\\y\\b.png\r\n",
    }
    labels = dict.fromkeys([f"labels/{name}.txt" for name in ("x/a", "y/b", "y/c")], BOX)
    texts = {**labels, **lists, "lists/bad.txt": "../images/x/a.png\n../secret.png\n"}
    put(tmp_path, images, texts, f"names: [cat]\n{yaml.replace('{root}', str(tmp_path))}\n")
    source = YoloSource(str(tmp_path), **({} if split is None else {"split": split}))
    if isinstance(expected, str):
        with pytest.raises((FormatError, OptionError), match=expected):
            source.parts(1)
        return
    assert [item.key[:-4] for item in items_of(source)] == expected
    assert bool(source.notes()) == (len(expected) < 3 and split is None)


def test_a_split_is_called_as_in_the_yaml_file_or_as_its_folder(tmp_path):
    for split in ("train", "valid"):
        put(tmp_path, [f"{split}/images/{split}.png"], [f"{split}/labels/{split}.txt"])
    with pytest.raises(OptionError, match="several splits: 'train', 'valid'"):
        YoloSource(str(tmp_path)).parts(1)
    put(tmp_path, yaml="names: [cat]\ntrain: ../train/images\nval: ../valid/images\n")
    for split in ("val", "valid"):
        (item,) = items_of(YoloSource(str(tmp_path), split=split))
        assert item.key == "valid/images/valid.png"
