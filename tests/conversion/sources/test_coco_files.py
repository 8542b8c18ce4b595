"""Datasets in the layout of COCO: boxes as the file of annotations has them, and files that do not hold together."""

import copy
import json

import numpy as np
import pytest
from PIL import Image, ImageOps

from gdsload.conversion.recognise import recognise
from gdsload.conversion.sources.coco_files import CocoSource
from gdsload.errors import FormatError, OptionError
from tests.conversion.contents import picture as encoded
from tests.conversion.reading import items_of

CATEGORIES = [{"id": 90, "name": "zebra"}, {"id": 2, "name": "cat"}]


def picture(path, width, height, **options):
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(width).integers(0, 256, (height, width, 3), np.uint8)
    Image.fromarray(pixels).save(path, **options)
    return pixels.transpose(2, 0, 1)


def write(root, name="instances_val2017.json", images="val2017", folder="annotations", change=None):
    """Three images, of which the second has no objects, and the third a crowd."""
    pixels = {
        number: picture(root / images / f"{number:012}.png", width, height)
        for number, width, height in ((5, 8, 6), (3, 9, 7), (4, 8, 6))
    }
    annotations = [
        {"id": 1, "image_id": 4, "category_id": 2, "bbox": [0.5, 1, 2.25, 3], "area": 6.5, "iscrowd": 1},
        {"id": 2, "image_id": 5, "category_id": 90, "bbox": [1, 2, 3, 4], "area": 11, "iscrowd": 0},
        {"id": 3, "image_id": 4, "category_id": 90, "bbox": [0, 0, 8, 6]},
    ]
    tree = {
        "info": {}, "licenses": [], "categories": CATEGORIES, "annotations": annotations,
        "images": [
            {"id": number, "file_name": f"{number:012}.png", "height": array.shape[1], "width": array.shape[2]}
            for number, array in pixels.items()
        ],
    }  # fmt: skip
    if change is not None:
        tree = copy.deepcopy(tree)
        change(tree)
    (root / folder).mkdir(parents=True, exist_ok=True)
    (root / folder / name).write_text(json.dumps(tree))
    return pixels


def rows(sample):
    return {name: np.asarray(sample[name]).tolist() for name in sample if name != "image"}


@pytest.mark.parametrize(
    ("name", "images", "folder"),
    [
        ("instances_val2017.json", "val2017", "annotations"),
        ("instances_val2017.json", "images/val2017", "annotations"),
        ("instances_all.json", "images", "annotations"),
        ("_annotations.coco.json", ".", "."),
        ("_annotations.coco.json", "valid", "valid"),
    ],
)
def test_what_the_annotations_say(tmp_path, samples_in, name, images, folder):
    pixels = write(tmp_path, name, images, folder)
    assert recognise(str(tmp_path)) == "coco"
    source = CocoSource(str(tmp_path))
    assert source.classes == ["cat", "zebra"]
    assert source.metadata() == {"classes": {"labels": ["cat", "zebra"]}, "boxes": "xywh"}
    found = samples_in(source, 300)
    assert len(source.parts(300)) == 3
    assert all(np.array_equal(one["image"], pixels[int(one["image_id"])]) for one in found)
    assert [rows(one) for one in found] == [
        {"image_id": 5, "boxes": [[1, 2, 3, 4]], "labels": [1], "area": [11], "iscrowd": [False]},
        {"image_id": 3, "boxes": [], "labels": [], "area": [], "iscrowd": []},
        {"image_id": 4, "boxes": [[0.5, 1, 2.25, 3], [0, 0, 8, 6]], "labels": [0, 1], "area": [6.5, 48],
         "iscrowd": [True, False]},
    ]  # fmt: skip


def test_shards_have_ragged_boxes_whatever_the_first_images_have(tmp_path, converted):
    def one_box_each(tree):
        tree["annotations"] = tree["annotations"][:1]
        tree["images"] = tree["images"][2:]

    write(tmp_path, change=one_box_each)
    dataset = converted(tmp_path)
    shapes = {name: (field.dtype.name, field.shape) for name, field in dataset.schema.items()}
    assert shapes == {
        "image": ("uint8", (3, 6, 8)), "image_id": ("int64", ()), "boxes": ("float32", (None, 4)),
        "labels": ("int64", (None,)), "area": ("float32", (None,)), "iscrowd": ("bool", (None,)),
    }  # fmt: skip
    assert dataset[0]["boxes"].tolist() == [[0.5, 1, 2.25, 3]]


def of_one_image(root, orientation, stored, said, codec="PNG"):
    """A picture with a white rectangle of 3 × 2 pixels as stored, and the box of that in the stored or turned one."""
    width, height = stored
    pixels = np.zeros((height, width, 3), np.uint8)
    pixels[1:3, 2:5] = 255
    image = Image.fromarray(pixels)
    (root / "val2017").mkdir(parents=True)
    (root / "val2017" / "t.png").write_bytes(encoded(image, codec, orientation))
    if said == "turned":
        image = ImageOps.exif_transpose(Image.open(root / "val2017" / "t.png"))
    left, top, right, bottom = image.getbbox()
    image.close()

    def change(tree):
        tree["images"] = [{"id": 5, "file_name": "t.png", "width": image.width, "height": image.height}]
        box = [left, top, right - left, bottom - top]
        tree["annotations"] = [{"id": 1, "image_id": 5, "category_id": 2, "bbox": box}]

    write(root, images="others", change=change)
    return root


def agrees(sample):
    """Return whether the one box of a sample is around what is white."""
    rows, columns = np.nonzero(np.asarray(sample["image"])[0])
    wanted = [columns.min(), rows.min(), np.ptp(columns) + 1, np.ptp(rows) + 1]
    return np.asarray(sample["boxes"])[0].tolist() == wanted


@pytest.mark.parametrize("codec", ["PNG", "TIFF"])
@pytest.mark.parametrize("said", ["stored", "turned"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_images_that_exif_turns_have_their_boxes_turned_with_them(tmp_path, samples_in, orientation, said, codec):
    root = of_one_image(tmp_path, orientation, (8, 6), said, codec)
    given = {} if orientation in (1, 5, 6, 7, 8) else {"upright": said == "turned"}
    (found,) = samples_in(CocoSource(str(root), **given))
    assert found["image"].shape == ((3, 8, 6) if orientation >= 5 else (3, 6, 8))
    assert agrees(found)


@pytest.mark.parametrize(("orientation", "stored"), [(2, (8, 6)), (3, (8, 6)), (4, (8, 6)), (5, (8, 8)), (6, (8, 8))])
def test_boxes_of_which_nothing_says_in_which_image_they_are_are_refused(tmp_path, samples_in, orientation, stored):
    root = of_one_image(tmp_path, orientation, stored, "turned")
    with pytest.raises(FormatError, match=r"EXIF data turn it, and width and height do not say .*`upright=True` if"):
        samples_in(CocoSource(str(root)))
    assert agrees(samples_in(CocoSource(str(root), upright=True))[0])


def test_images_that_are_kept_have_their_boxes_turned_as_a_loader_turns_them(tmp_path, samples_in):
    root = of_one_image(tmp_path, 6, (8, 6), "stored")
    kept, made = (
        samples_in(CocoSource(str(root), keep_encoded=one, boxes="xyxy"))[0]["boxes"] for one in (True, False)
    )
    assert kept.tolist() == made.tolist()
    (small,) = samples_in(CocoSource(str(root), size=24, resize="squash"))
    assert (small["image"].shape, small["boxes"].tolist()) == ((3, 24, 24), [[12, 6, 8, 9]])


def test_splits(tmp_path, samples_in):
    for split in ("train2017", "val2017"):
        write(tmp_path, f"instances_{split}.json", split)
    (tmp_path / "annotations" / "captions_train2017.json").write_text("{}")
    assert recognise(str(tmp_path)) == "coco"
    with pytest.raises(OptionError, match="several splits: 'train', 'val'"):
        CocoSource(str(tmp_path)).parts(1)
    assert len(samples_in(CocoSource(str(tmp_path), split="train"))) == 3
    assert len(samples_in(CocoSource(str(tmp_path), split="all"))) == 6


def _set(key, value, number=0, **fields):
    def change(tree):
        tree[key][number] = {**tree[key][number], **fields} if value is None else value

    return change


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (_set("annotations", None, image_id=99), "annotation 1 is of image 99, which is not there"),
        (_set("annotations", None, category_id=5), "annotation 1 is of category 5, which is not there"),
        (_set("annotations", {"image_id": 4}), "the category_id of annotation None is None, no whole number"),
        (_set("images", None, number=1, id=5), "image 5 is listed twice. Give each another id, or remove one"),
        (_set("images", None, id="a"), "the id of image 'a' is 'a', no whole number"),
        (_set("images", None, height=None), "the height of image 5 is None, no whole number"),
        (_set("images", None, file_name=None), "image 5 has the file_name None, no name of a file"),
        (_set("images", None, number=1, file_name="./000000000005.png"), "images 5 and 3 are one file"),
        (_set("categories", {"id": 90}), "as COCO has them: it has no 'name'"),
        (lambda tree: tree.pop("images"), "as COCO has them: it has no 'images'"),
        (lambda tree: tree.update(annotations={"id": 1}), "a value in it is not of the kind that it must be"),
    ],
)
def test_annotations_that_do_not_hold_together(tmp_path, change, match):
    write(tmp_path, change=change)
    with pytest.raises(FormatError, match=match):
        CocoSource(str(tmp_path)).parts(1)


def test_an_image_that_is_not_as_it_is_said_to_be_is_at_fault_alone(tmp_path):
    write(tmp_path, change=_set("images", None, number=1, width=50))
    (tmp_path / "val2017" / "000000000005.png").unlink()
    gone, other, good = items_of(CocoSource(str(tmp_path)))
    with pytest.raises(FormatError, match="has 9 × 7 pixels, but 50 × 7 where its boxes are"):
        other.make()
    with pytest.raises(FormatError, match="there is no file '000000000005.png'"):
        gone.make()
    good.make()
    with pytest.raises(FormatError, match="none of the folders where images usually are.*images="):
        CocoSource(str(tmp_path), images="elsewhere").parts(1)


@pytest.mark.parametrize("name", ["../secret.png", "{root}/secret.png"])
def test_an_image_out_of_the_folder_is_not_read(tmp_path, name):
    picture(tmp_path / "secret.png", 9, 7)
    write(tmp_path, change=_set("images", None, number=1, file_name=name.format(root=tmp_path)))
    source = CocoSource(str(tmp_path))
    source.describe()
    with pytest.raises(FormatError, match="leads out of the folder"):
        items_of(source)[1].make()


@pytest.mark.parametrize(
    ("fields", "box"),
    [
        ({"bbox": [1, 2, 0, 4], "area": None}, [1, 2, 0, 4]),
        ({"category_id": 90.0, "image_id": 5.0, "iscrowd": True}, [1, 2, 3, 4]),
        ({"bbox": None, "segmentation": [[1, 1, 3, 1, 3, 4]]}, "has the bbox None, not left"),
        ({"bbox": [1, 2, 3]}, r"has the bbox \[1, 2, 3\], not left, top, width and height"),
        ({"bbox": [1, 2, -3, 4]}, r"has the bbox \[1, 2, -3, 4\], not left"),
        ({"bbox": [1, 2, 3, float("nan")]}, "has the bbox .* not left"),
        ({"bbox": [1, 2, 3, 10**400]}, "has the bbox .* not left"),
        ({"bbox": ["1", "2", "3", "4"]}, "has the bbox .* not left"),
        ({"area": "large"}, "has the area 'large', no number"),
        ({"iscrowd": "0"}, "has iscrowd '0', not 0 or 1"),
    ],
)
def test_an_object_that_is_not_as_it_should_be_is_its_images_fault_alone(tmp_path, fields, box):
    """The error names the annotation and the image."""
    write(tmp_path, change=_set("annotations", None, number=1, **fields))
    source = CocoSource(str(tmp_path))
    first, second, _ = items_of(source)
    second.make()
    if isinstance(box, str):
        with pytest.raises(FormatError, match=f"000000000005.png: annotation 2 of image 5 {box}"):
            first.make()
        return
    assert first.make()["boxes"][0].tolist() == [box]


def test_lvis(tmp_path, samples_in):
    """It has addresses of images."""

    def lvis(tree):
        for image in tree["images"]:
            name = image.pop("file_name")
            image["coco_url"] = f"http://images.cocodataset.org/val2017/{name}"

    pixels = write(tmp_path, name="lvis_v1_val.json", change=lvis)
    assert recognise(str(tmp_path)) == "coco"
    source = CocoSource(str(tmp_path))
    assert all(np.array_equal(one["image"], pixels[int(one["image_id"])]) for one in samples_in(source))


def test_a_test_set_has_images_alone(tmp_path, samples_in):
    write(tmp_path, name="image_info_test2017.json", images="test2017", change=lambda tree: tree.pop("annotations"))
    assert recognise(str(tmp_path)) == "coco"
    source = CocoSource(str(tmp_path))
    assert source.classes == ["cat", "zebra"]
    assert [one["boxes"].shape for one in samples_in(source)] == [(0, 4)] * 3
    assert source.notes() == ["the file has no annotations: no image has an object"]
    write(tmp_path, images="val2017")  # then the other is no split of it
    assert len(samples_in(CocoSource(str(tmp_path)))) == 3


def test_images_that_two_files_name(tmp_path):
    write(tmp_path, name="instances_val2017.json")
    write(tmp_path, name="instances_val2017_more.json")
    with pytest.raises(FormatError, match="image '000000000005.png' is also in instances_val2017.json"):
        CocoSource(str(tmp_path), images="val2017").parts(1)


def test_damaged_files(tmp_path, survives_damage):
    write(tmp_path)
    path = tmp_path / "annotations" / "instances_val2017.json"
    assert survives_damage(path, lambda: CocoSource(str(tmp_path)), 40) > 10
    for text, match in (
        ("{", "as COCO has them: Expecting"),
        ("[" * 9999, "nested too"),
        ("7", "not of the kind that"),
    ):
        path.write_text(text)
        with pytest.raises(FormatError, match=match):
            CocoSource(str(tmp_path)).parts(1)
