"""`gdsload inspect --html`: what the page says is so, and nothing in a dataset becomes markup."""

import base64
import io
import re
import sys
import tempfile
from collections import Counter
from xml.etree import ElementTree as ET

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from PIL import Image

import gdsload
from gdsload.tools.cli.card import make_card
from gdsload.tools.cli.card_facts import cached_share, classes_of, field_facts, lengths_of
from gdsload.tools.cli.samples import BINS, spread_of
from tests.page_cache import chill

HOSTILE = "<script>alert(1)</script>\"'><img src=x onerror=y>\x1b[31m & </title>"
IMAGE = r'src="data:image/\w+;base64,([^"]+)" alt="(\d+)'
ELEMENTS = {
    "html", "head", "body", "meta", "title", "style", "h1", "h2", "h3", "div", "span", "b", "ul", "li", "p", "section", "code",
    "svg", "rect", "table", "tr", "th", "td", "i", "figure", "img", "figcaption", "pre", "footer",
}  # fmt: skip


class Page:
    """The text of a page, its elements, and its attributes by name. It is XML, too."""

    def __init__(self, html):
        tree = ET.fromstring(html.removeprefix("<!DOCTYPE html>"))
        self.elements, self.attributes = [one.tag for one in tree.iter()], {}
        assert set(self.elements) <= ELEMENTS
        for name, value in (pair for one in tree.iter() for pair in one.items()):
            self.attributes.setdefault(name, []).append(value)
        tree.find("head").remove(tree.find("head/style"))
        self.text = " ".join(" ".join(tree.itertext()).split())


@pytest.fixture
def page(cli, tmp_path):
    def make(path):
        cli("inspect", path, "--html", tmp_path / "card.html", "--overwrite")
        return Page((tmp_path / "card.html").read_text(encoding="utf-8"))

    return make


@pytest.fixture
def dataset(tmp_path):
    """Three classes, of which one is empty, and texts, lengths and pictures."""
    metadata = {"classes": {"label": ["cat", HOSTILE, "dog"]}, "licence": HOSTILE}
    schema = {
        "image": gdsload.Field("uint8", (16, 20, 3)), "label": "int64", "text": "str", HOSTILE: "float32",
        "tokens": gdsload.Field("int16", (None,)),
    }  # fmt: skip
    with gdsload.ShardWriter(tmp_path / "d", schema, metadata=metadata) as writer:
        for number in range(40):
            writer.write({
                "image": np.full((16, 20, 3), number, np.uint8), "label": 2 * (number % 4 == 0), "text": HOSTILE * number,
                HOSTILE: np.nan if number == 7 else number, "tokens": np.zeros(number + 1, np.int16),
            })  # fmt: skip
    return tmp_path / "d"


def test_the_page_holds_everything_and_nothing_of_a_dataset_is_markup(dataset, page):
    found = page(dataset)
    for said in (
        "40 samples", f"digest: {gdsload.ShardDataset(dataset).digest}", "Values are from all 40 samples.",
        "uint8 [16, 20, 3]", "mean 19.82, 1 NaN of 40 values", "1 to 40 rows, median 20, 99 % up to 40",
        "3 classes; imbalance 3 : 1 (30 samples in the largest, 10 in the smallest); 1 without samples: <script>",
        "Of up to 8 random samples of each of the 2 largest of 3 classes.", "Of 24 random samples.", "DataLoader(",
    ):  # fmt: skip
        assert said in found.text
    assert found.text.count(HOSTILE.replace("\x1b", " ")) > 5
    assert found.elements.count("img") == 24 + 2 * 8
    assert all(re.fullmatch(r"data:image/(png|jpeg);base64,[\w+/=]+", one) for one in found.attributes["src"])
    assert found.attributes.keys() <= {
        "lang", "charset", "name", "content", "class", "style", "viewBox", "preserveAspectRatio", "role", "x", "y",
        "width", "height", "scope", "title", "src", "alt",
    }  # fmt: skip


def test_cards_of_one_dataset_are_equal(dataset, page):
    first, second = (re.sub(r"\d+% ?in the page| \d\d:\d\d UTC", "", page(dataset).text) for _ in range(2))
    assert first == second


@pytest.mark.parametrize("samples", [0, 1])
def test_of_next_to_nothing(tmp_path, page, samples):
    schema = {"x": "float32", "text": "str", "photo": gdsload.Field("image"), "z": gdsload.Field("complex64", (2,)),
              "label": "int64", "r": gdsload.Field("float16", (None, 2))}  # fmt: skip
    with gdsload.ShardWriter(tmp_path / "d", schema) as writer:
        for _ in range(samples):
            none = {"x": np.inf, "text": "", "photo": b"\xff\xd8\xff nothing more", "z": np.zeros(2, np.complex64)}
            writer.write({**none, "label": 3, "r": np.zeros((0, 2), np.float16)})
    text = page(tmp_path / "d").text
    assert f"{samples} samples" in text
    assert ("1 infinite of 1 values" in text) == bool(samples)


SHADES = np.arange(25) * 10
"""The colour of each class's images."""


@settings(max_examples=15)
@given(st.lists(st.integers(0, 24), min_size=1, max_size=60), st.booleans(), st.sampled_from([12, 100]))
@example([*range(25)] * 2 + [24] * 10, True, 100)
def test_each_class_has_a_row_of_its_images(labels, floats, side):
    shades = np.broadcast_to(SHADES[labels].astype(np.uint8)[:, None, None, None], (len(labels), 3, side, side))
    with tempfile.TemporaryDirectory() as folder:
        with gdsload.ShardWriter(
            f"{folder}/d", metadata={"classes": {"label": [f"c{one}" for one in range(25)]}}
        ) as writer:
            writer.write_batch({"image": shades / np.float32(255) if floats else shades, "label": np.array(labels)})
        html = make_card(gdsload.ShardDataset(f"{folder}/d"))
    found = {
        int(label): [(int(sample), base64.b64decode(image)) for image, sample in re.findall(IMAGE, row)]
        for label, row in re.findall(r'title="c(\d+)">c\d+</th><td>(<img.*?)</td>', html)
    }
    largest = Counter(labels).most_common(20)
    assert sorted(len(found[label]) for label in found) == sorted(min(count, 8) for _, count in largest)
    assert sum(labels.count(label) for label in found) == sum(count for _, count in largest)
    for label, row in found.items():
        assert len({sample for sample, _ in row}) == len(row)
        for sample, image in row:
            picture = np.asarray(Image.open(io.BytesIO(image)))
            assert picture.shape == (min(side, 96), min(side, 96), 3)
            assert labels[sample] == label
            assert np.abs(picture.astype(int) - SHADES[label]).max() <= 2


def test_without_pillow_there_are_no_pictures(dataset, page, monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL", None)
    assert "img" not in page(dataset).elements


numbers = st.floats(width=64) | st.integers(-5, 5).map(float) | st.sampled_from([1.7e308, -1.7e308, 2.0**63])


@given(st.lists(numbers, min_size=1, max_size=60))
@example([0.0, 2e-311])
def test_every_finite_number_is_in_one_bar(values):
    found = spread_of(torch.tensor(values, dtype=torch.float64))
    finite = [one for one in values if np.isfinite(one)]
    assert (found.nan, found.infinite) == (int(np.isnan(values).sum()), len(values) - len(finite) - found.nan)
    assert sum(found.bars) == len(finite)
    if finite:
        assert (found.least, found.greatest) == (min(finite), max(finite))


@given(st.lists(st.integers(-9, 9), min_size=1))
def test_whole_numbers_have_a_bar_each(values):
    found = spread_of(torch.tensor(values))
    every = range(min(values), max(values) + 1)
    assert len(every) <= BINS
    assert found.bars == tuple(values.count(one) for one in every)


@given(st.lists(st.integers(0, 500), min_size=1, max_size=200))
def test_lengths_and_what_padding_would_cost(values):
    found = lengths_of(np.array(values))
    longest = max(values)
    assert (found.quantiles[0], found.quantiles[3]) == (min(values), longest)
    assert sum(one <= found.quantiles[1] for one in values) >= len(values) / 2
    assert found.padding_to_longest == pytest.approx(1 - sum(values) / (longest * len(values)) if longest else 0)
    assert -1e-9 <= found.padding <= found.padding_to_longest + 1e-9


def test_classes_are_counted_and_other_numbers_are_none(tmp_path):
    def classes(label, **metadata):
        path = tmp_path / str(len(list(tmp_path.iterdir())))
        with gdsload.ShardWriter(path, metadata=metadata) as writer:
            writer.write_batch({"label": np.array(label), "y": np.array(label) * 0})
        return classes_of(gdsload.ShardDataset(path))

    assert classes([2, 2, 0, 7, 7, 7]).counts == (("0", 1), ("2", 2), ("7", 3))
    assert classes([2, 2, 0, 7], classes={"label": ["a", "b", "c"]}).counts == (("a", 1), ("b", 0), ("c", 2), ("7", 1))
    assert classes([2, 2], classes={"y": ["a"]}).counts == (("a", 2),)
    assert classes(range(100)) is None
    assert classes([0.5, 1.0]) is None


def test_of_a_very_large_dataset_some_labels_are_read(tmp_path, monkeypatch):
    labels = np.random.default_rng(0).integers(0, 4, 3000)
    with gdsload.ShardWriter(tmp_path / "d") as writer:
        writer.write_batch({"label": labels})
    monkeypatch.setattr("gdsload.tools.cli.card_facts.MOST_EXACT", 2999)
    found = classes_of(gdsload.ShardDataset(tmp_path / "d"))
    assert found.samples == sum(count for _, count in found.counts) == 29
    assert found.rows
    for name, numbers in found.rows:
        assert set(labels[numbers]) == {int(name)}


def test_of_a_large_dataset_some_samples_are_looked_at(tmp_path):
    with gdsload.ShardWriter(tmp_path / "d") as writer:
        writer.write_batch({"x": np.zeros((3000, 100), np.float32), "y": np.ones(3000, np.int8)})
    facts, looked_at = field_facts(gdsload.ShardDataset(tmp_path / "d"))
    assert looked_at == 2000
    assert [(one.name, one.nbytes, one.values.count) for one in facts] == [("x", 1_200_000, 200_000), ("y", 3000, 2000)]


def test_the_share_in_the_page_cache(tmp_path, bring_in):
    with gdsload.ShardWriter(tmp_path / "d", shard_bytes="8MiB") as writer:
        writer.write_batch({"x": np.zeros((32, 2**19), np.uint8)})
    dataset = gdsload.ShardDataset(tmp_path / "d")
    there, gone = (tmp_path / "d" / one.file for one in dataset.shards)
    bring_in(there)
    chill(gone)
    assert cached_share(dataset) == pytest.approx(0.5, abs=0.1)
