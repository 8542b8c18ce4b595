"""Each README shows the records that are there."""

import json
from pathlib import Path

import pytest

import benchmarks
from benchmarks import table
from benchmarks.convert import table as convert
from benchmarks.gpu import tables
from benchmarks.gpu.suite import chart
from benchmarks.gpu.suite import table as suite

FOLDER = Path(benchmarks.__file__).parent
RECORDS = [
    ("README.md", "cpu", table.render, "table"),
    ("convert/README.md", "convert", convert.render, "table"),
    ("convert/README.md", "convert-csv", convert.render, "csv"),
    ("gpu/README.md", "gpu-loaders", suite.render, suite.MARK),
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


def test_the_chart_is_that_of_its_record():
    path = FOLDER / "results/gpu-loaders.json"
    if path.exists():
        drawn = chart.draw(json.loads(path.read_text(encoding="utf-8")))
        assert path.with_suffix(".svg").read_text(encoding="utf-8") == drawn


def test_the_small_tables_are_those_of_their_records():
    text = tables.README.read_text(encoding="utf-8")
    assert tables.with_tables(text) == text, "run: python -m benchmarks.gpu.tables --write"
