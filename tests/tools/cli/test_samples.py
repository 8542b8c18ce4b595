"""`gdsload inspect --sample` and `--image`, and values as pixels."""

import sys

import numpy as np
import pytest
import torch

import gdsload
from gdsload.tools.cli.samples import facts, lines
from gdsload.tools.cli.sheet import pick_samples
from gdsload.tools.cli.thumbnails import as_picture, has_pictures, value_limits


@pytest.fixture
def dataset(tmp_path):
    random = np.random.default_rng(0)
    schema = {
        "chw": gdsload.Field("uint8", (3, 20, 30)),
        "hwc": gdsload.Field("float32", (20, 30, 4)),
        "grey": gdsload.Field("float16", (8, 8)),
        "ragged": gdsload.Field("uint8", (None, 30, 3)),
        "flat": gdsload.Field("int64", (3,)),
        "odd": gdsload.Field("uint8", (2, 2, 2)),
        "text": "str",
        "raw": "bytes",
    }
    batch = {
        "chw": random.integers(0, 256, (5, 3, 20, 30), np.uint8),
        "hwc": random.random((5, 20, 30, 4), np.float32),
        "grey": random.normal(size=(5, 8, 8)).astype(np.float16),
        "ragged": [random.integers(0, 256, (10 * number, 30, 3), np.uint8) for number in range(5)],
        "flat": np.array([[number, -7, 9] for number in range(5)]),
        "odd": np.zeros((5, 2, 2, 2), np.uint8),
        "text": ["\x1b[2Jé" * number for number in range(5)],
        "raw": [bytes(range(4 * number)) for number in range(5)],
    }
    with gdsload.ShardWriter(tmp_path / "d", schema) as writer:
        writer.write_batch(batch)
    return tmp_path / "d"


def test_a_sample_as_text(dataset, cli):
    out = cli("inspect", dataset, "--sample", "-2").out
    found = dict(line.split(maxsplit=1) for line in out.splitlines())
    assert found["flat"] == "int64 [3], -7 to 9, mean 1.667: 3 -7 9"
    assert found["raw"] == "bytes, 12: 00 01 02 03 04 05 06 07 …"
    assert found["text"] == r"str, 15 characters: '\x1b[2Jé\x1b[2Jé\x1b[2Jé'"
    assert found["ragged"].startswith("uint8 [30, 30, 3], 0 to 255, mean 12")


def test_a_sample_as_json(dataset, cli):
    tree = cli("inspect", dataset, "--sample", "3", "--json").tree
    sample = gdsload.ShardDataset(dataset)[3]
    assert tree["flat"] == {
        "type": "int64", "shape": [3], "min": -7, "max": 9, "mean": pytest.approx(5 / 3), "first": [3, -7, 9],
    }  # fmt: skip
    assert tree["hwc"]["mean"] == pytest.approx(sample["hwc"].double().mean().item())
    assert tree["text"]["text"] == sample["text"]


def test_what_numbers_are_like():
    values = torch.tensor([1.0, float("nan"), 3.0, -float("inf")])
    for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.float8_e5m2):
        found = facts({"x": values.to(dtype)})["x"]
        assert (found["min"], found["max"], found["mean"]) == (1, 3, 2)
        assert (found["nan"], found["infinite"]) == (1, 1)
        assert found["first"] == [1.0, "nan", 3.0, "-inf"]
    assert facts({"x": torch.tensor([True, False])})["x"]["max"] == 1
    large = facts({"x": torch.tensor([2**64 - 1], dtype=torch.uint64)})["x"]
    assert large["first"] == [large["min"]] == [2**64 - 1]
    assert lines({"x": torch.zeros(0, 3)}) == ["x  float32 [0, 3]: "]
    assert lines({"x": torch.tensor(1 + 2j), "label": torch.tensor(3)}) == [
        "x      complex64, (1+2j)",
        "label  int64, 3",
    ]


@pytest.mark.parametrize("field", ["chw", "hwc", "grey", "ragged"])
def test_a_sheet(dataset, tmp_path, cli, field):
    pillow = pytest.importorskip("PIL.Image")
    out = tmp_path / "sheet.png"
    said = cli("inspect", dataset, "--image", field, "--out", out, "--count", "3", "--sample", "1").out
    assert "3 images, samples 1 to 3" in said
    with pillow.open(out) as sheet:
        found = np.asarray(sheet)
    opened = gdsload.ShardDataset(dataset)
    if field in ("chw", "ragged"):  # what else is converted or blended
        for place, number in enumerate((1, 2, 3)):
            image = opened[number][field]
            image = (image.permute(1, 2, 0) if field == "chw" else image).numpy()
            factor = -(-96 // max(image.shape[:2]))
            large = image.repeat(factor, 0).repeat(factor, 1)
            height = -(-96 // 30) * (30 if field == "ragged" else 20)
            top, left = 4 + place // 2 * (height + 16), 4 + place % 2 * (120 + 4)
            assert np.array_equal(found[top : top + large.shape[0], left : left + large.shape[1]], large)


def test_which_samples_a_sheet_shows(tmp_path, cli):
    """Not the first ones, which in a dataset sorted by class are all of one."""
    with gdsload.ShardWriter(tmp_path / "d", metadata={"classes": {"y": ["a", "b", "c"]}}) as writer:
        writer.write_batch({"x": np.zeros((300, 8, 8), np.uint8), "y": np.repeat([0, 1, 2], [100, 195, 5])})
    dataset = gdsload.ShardDataset(tmp_path / "d")
    chosen = pick_samples(dataset, "random", 16)
    assert chosen == sorted(set(chosen)) == pick_samples(dataset, "random", 16)
    assert max(chosen) > 150
    assert len(pick_samples(dataset, "random", 1000)) == 300
    assert pick_samples(dataset, "first", 3, first=-2) == [298, 299]
    assert dataset.column("y")[pick_samples(dataset, "class", 17)].tolist() == [0] * 5 + [1] * 5 + [2] * 5
    assert dataset.column("y")[pick_samples(dataset, "class", 2)].tolist() == [0, 1]
    asked = ["inspect", tmp_path / "d", "--image", "x", "--out", tmp_path / "s.png", "--overwrite"]
    assert "16 images, random samples\n" in cli(*asked).out
    assert "15 images, random samples of each class\n" in cli(*asked, "--pick", "class").out


def test_pictures_of_other_element_types():
    ramp = torch.tensor([[0.0, 0.5], [1.0, float("nan")]])
    assert as_picture(ramp, (0, 1)).tolist() == [[0, 128], [255, 0]]
    assert as_picture(torch.tensor([[[-2], [0], [2]]]), (-2, 2)).tolist() == [[0, 128, 255]]
    assert as_picture(torch.tensor([[True, False]]), (0, 1)).tolist() == [[255, 0]]
    assert as_picture(torch.full((2, 2), 7.0), (7, 7)).tolist() == [[0, 0], [0, 0]]


def test_fields_of_images(dataset):
    schema = gdsload.ShardDataset(dataset).schema
    assert [name for name, field in schema.items() if has_pictures(field)] == ["chw", "hwc", "grey"]
    assert has_pictures(gdsload.Field("image"))


def test_black_and_white():
    for values, limits in (
        ([0.2, 0.9], (0, 1)),
        ([-2, 3, torch.nan], (-2, 3)),
        ([torch.inf], (0, 1)),
        ([0, 7], (0, 7)),
    ):
        assert value_limits(torch.tensor(values)) == limits


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--image", "no"], "there is no field 'no'"),
        (["--out", "a.png"], "--out is for a contact sheet"),
        (["--pick", "first"], "--pick is for a contact sheet"),
        (["--count", "16"], "--count is for a contact sheet"),
        (["--html", "a.html", "--sample", "1"], "--html takes no --sample"),
        (["--image", "chw", "--out", "a.xyz"], "'a.xyz' has no name of a picture"),
        (["--image", "text"], "no image"),
        (["--image", "chw", "--pick", "class"], "no field has class numbers"),
        (["--image", "odd"], "no 1, 3 or 4 channels, first or last"),
        (["--image", "chw", "--count", "0"], "no image to show"),
        (["--image", "ragged", "--count", "1", "--pick", "first"], "no image to show"),
    ],
)
def test_what_cannot_be_shown(dataset, cli, arguments, message):
    assert message in cli("inspect", dataset, *arguments, code=2).err


def test_a_sheet_is_what_its_name_says_and_it_and_a_card_replace_nothing_unasked(dataset, tmp_path, cli):
    pillow = pytest.importorskip("PIL.Image")
    asked = ["inspect", str(dataset), "--image", "chw", "--count", "1", "--out"]
    for name, form in (("a.jpg", "JPEG"), ("a.PNG", "PNG"), ("a.webp", "WEBP")):
        assert "1 image, " in cli(*asked, tmp_path / name).out
        with pillow.open(tmp_path / name) as sheet:
            assert sheet.format == form
    before = (tmp_path / "a.jpg").read_bytes()
    for words in (asked, ["inspect", dataset, "--html"]):
        said = cli(*words, tmp_path / "a.jpg", code=2).err
        assert said.endswith("a.jpg: the file already exists\nhint: Name another one, or pass --overwrite.\n")
    assert (tmp_path / "a.jpg").read_bytes() == before
    cli(*asked, tmp_path / "a.jpg", "--overwrite")
    assert "cannot be written" in cli(*asked, "/no/such/folder.png", code=1).err


def test_without_pillow(dataset, cli, monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    assert "a picture needs PIL" in cli("inspect", dataset, "--image", "chw", code=2).err
