"""Each README shows the records that are there."""

import json
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

import benchmarks
from benchmarks import panels, picture, table
from benchmarks.convert import table as convert
from benchmarks.gpu import tables
from benchmarks.gpu.suite import table as suite
from benchmarks.gpu.suite.chart import chart
from benchmarks.published import table as published

FOLDER = Path(benchmarks.__file__).parent
RECORDS = [
    ("README.md", "cpu", table.render, "table"),
    ("convert/README.md", "convert", convert.render, "table"),
    ("convert/README.md", "convert-csv", convert.render, "csv"),
    ("gpu/README.md", "gpu-loaders", suite.render, suite.MARK),
    ("published/README.md", "published-gpu", published.render, "published-gpu"),
]


@pytest.mark.parametrize(
    ("readme", "record", "render", "mark"), RECORDS, ids=lambda value: getattr(value, "__module__", value)
)
def test_a_readme_shows_a_record(readme, record, render, mark):
    """`make bench-cpu`, `make bench-convert` and `make bench-gpu` say which command writes it."""
    text, path = (FOLDER / readme).read_text(encoding="utf-8"), FOLDER / f"results/{record}.json"
    if path.exists():
        assert table.embed(text, render(json.loads(path.read_text(encoding="utf-8"))), mark) == text
    else:
        assert "No record" in text


def drawn():
    """Every picture of the records by its name."""
    record = FOLDER / "results/gpu-loaders.json"
    loaders = json.loads(record.read_text(encoding="utf-8"))
    return picture.pictures() | {f"{record.stem}-{theme}.svg": chart(loaders, theme) for theme in panels.THEMES}


def test_the_pictures_are_those_of_the_records():
    found = drawn()
    assert {path.name for path in FOLDER.glob("results/*.svg")} == set(found)
    for name, svg in found.items():
        assert (FOLDER / "results" / name).read_text(encoding="utf-8") == svg, (
            "run: python -m benchmarks.picture --write"
        )


def test_bars_are_as_long_as_their_rates_and_names_are_text():
    bars = [panels.Bar("a<b", 3, 3, 3, "ours"), panels.Bar("c", 1.5, 1.5, 1.5, "torch")]
    picture_of = panels.Picture("t & u", [panels.Panel("p", "n", "GB/s", bars, ("link", 2))], "f", 400, 1)
    root = ET.fromstring(panels.draw(picture_of, "dark"))
    long, short = (float(one.get("width")) for one in root.iterfind(".//{*}rect"))
    assert long == pytest.approx(2 * short, abs=0.1)
    assert root.get("role") == "img"
    assert root.find("{*}title").text == "t & u"
    assert "a<b" in [one.text for one in root.iterfind(".//{*}text")]
    assert "link 2, beaten: no limit" in [one.text for one in root.iterfind(".//{*}text")]


def test_the_small_tables_are_those_of_their_records():
    text = tables.README.read_text(encoding="utf-8")
    assert tables.with_tables(text) == text, "run: python -m benchmarks.gpu.tables --write"
