"""`gdsload inspect --sample`, and values as pixels of a card."""

import numpy as np
import pytest
import torch

import gdsload
from gdsload.tools.cli.samples import facts, lines
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


def test_pictures_of_other_element_types():
    ramp = torch.tensor([[0.0, 0.5], [1.0, float("nan")]])
    assert as_picture(ramp, (0, 1)).tolist() == [[0, 128], [255, 0]]
    assert as_picture(torch.tensor([[[-2, 0, 2]]]), (-2, 2)).tolist() == [[0, 128, 255]]
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


def test_a_card_replaces_nothing_unasked_and_has_random_samples_alone(dataset, tmp_path, cli):
    card = tmp_path / "card.html"
    card.write_text("mine")
    said = cli("inspect", dataset, "--html", card, code=2).err
    assert said.endswith("card.html: the file already exists\nhint: Name another one, or pass --overwrite.\n")
    assert "--html takes no --sample" in cli("inspect", dataset, "--html", card, "--sample", "1", code=2).err
    assert card.read_text() == "mine"
