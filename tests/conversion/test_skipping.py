"""Samples that cannot be converted: how many may be left out, and that their reasons are never hidden."""

import json
import os

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

import gdsload
from gdsload.conversion.allowance import Allowance
from gdsload.conversion.runner import convert, plan
from gdsload.errors import ConversionError, FormatError, OptionError, Skipped

ROWS = 400


def table(path, bad=(), rows=ROWS):
    """A CSV file whose bad rows have no number; which they are is found out only when they are read."""
    path.write_text("n,m\n" + "".join("oops,1\n" if n in bad else f"{n},1\n" for n in range(rows)))
    return path


HOW = {"source_options": {"types": {"n": "int"}}, "on_error": "skip", "workers": 1, "shard_bytes": 800}


def numbers(path):
    return [int(sample["n"]) for sample in gdsload.ShardDataset(path)]


def test_one_in_a_hundred_is_skipped_and_no_more(tmp_path):
    report = convert(table(tmp_path / "four.csv", bad=(0, 7, 200, 399)), tmp_path / "four", **HOW)
    assert [one.key for one in report.skipped] == ["line 2", "line 9", "line 202", "line 401"]
    assert numbers(tmp_path / "four") == [n for n in range(ROWS) if n not in (0, 7, 200, 399)]
    reasons = "line 2: .*'oops', which is no int.*line 9: .*line 10: "
    said = f"5 of 400 samples cannot be converted, more than the 4 that `max_skipped='1%'` allows.*{reasons}"
    with pytest.raises(ConversionError, match=said) as caught:
        convert(table(tmp_path / "five.csv", bad=(0, 7, 8, 200, 399)), tmp_path / "five", **HOW)
    assert not (tmp_path / "five").exists()
    assert [one.key for one in caught.value.skipped] == ["line 2", "line 9", "line 10", "line 202", "line 401"]
    assert "`max_skipped='5%'`" in caught.value.remedy
    assert "line 202" not in str(caught.value)  # three reasons will do


def test_what_is_finished_then_is_kept(tmp_path):
    source = table(tmp_path / "t.csv", bad=range(350, 360))
    with pytest.raises(ConversionError, match="samples cannot be converted"):
        convert(source, tmp_path / "out", **HOW)
    report = convert(source, tmp_path / "out", **HOW, max_skipped=10)
    assert report.resumed >= 7
    assert (report.samples, len(report.skipped)) == (390, 10)
    assert numbers(tmp_path / "out") == [n for n in range(ROWS) if not 350 <= n < 360]


def test_where_the_count_is_known_it_ends_early(tmp_path):
    seen, source = [], table(tmp_path / "t.csv", bad=range(100))
    with pytest.raises(ConversionError, match=" of 400 samples"):
        convert(source, tmp_path / "out", **HOW, progress=lambda *found: seen.append(found))
    assert max(parts for _samples, _bytes, parts, _all in seen) < 4


def test_a_wrong_option_is_no_samples_fault(tmp_path):
    """Every sample would be skipped for it."""
    np.save(tmp_path / "x.npy", np.arange(ROWS))
    how = {"schema": {"z": "int8"}, "on_error": "skip", "max_skipped": 1.0}
    for options in ({"fields": ["z"]}, {"casts": {"z": "int8"}}):
        with pytest.raises(OptionError, match="there is no field 'z'"):
            convert(tmp_path / "x.npy", tmp_path / "out", **how, **options)
    assert not (tmp_path / "out").exists()


def test_the_reason_is_never_hidden(tmp_path):
    source = table(tmp_path / "t.csv", bad=range(50), rows=50)
    for error, wanted in (("stop", ConversionError), ("skip", FormatError)):
        with pytest.raises(wanted, match=r"line 2 of t\.csv.*'oops', which is no int"):
            convert(source, tmp_path / "out", **{**HOW, "on_error": error})
        with pytest.raises(wanted, match=r"line 2 of t\.csv.*'oops', which is no int"):
            plan(source, **{**HOW, "on_error": error})
    for error in ("stop", "skip"):
        with pytest.raises(FormatError, match=r"not one document of the source can be read.*'oops', which is no int"):
            convert(source, tmp_path / "out", **{**HOW, "on_error": error}, pack={"field": "n", "length": 4})
    assert os.listdir(tmp_path) == ["t.csv"]


def test_documents_count_and_not_blocks(tmp_path):
    """Of 200 documents, 2 may be skipped, though they make 20 blocks."""
    lines = [json.dumps([n] * 10) if n % 100 else '["x"' for n in range(200)]
    (tmp_path / "t.jsonl").write_text("\n".join(lines) + "\n")
    pack = {"pack": {"field": "tokens", "length": 99}, "on_error": "skip", "workers": 1}
    report = convert(tmp_path / "t.jsonl", tmp_path / "out", **pack)
    assert (report.samples, len(report.skipped)) == (20, 2)
    with pytest.raises(ConversionError, match="2 of 200 samples cannot be converted, more than the 1"):
        convert(tmp_path / "t.jsonl", tmp_path / "none", **pack, max_skipped=1)


@pytest.mark.parametrize(
    ("given", "samples", "most"),
    [
        ("1%", 99, 0), ("1%", 100, 1), ("1%", 399, 3), ("0%", 10**9, 0), ("100%", 7, 7), ("0.5%", 1000, 5),
        (0.05, 100, 5), (0.07, 100, 7), (0.29, 100, 29), (1.0, 3, 3), (1e-5, 10**6, 10), ("0.05", 100, 5), (" 12.5 % ", 8, 1),
        (0, 10**9, 0), (20, 5, 20), ("20", 10**9, 20), (1, 10**9, 1),
    ],
)  # fmt: skip
def test_shares_and_numbers(given, samples, most):
    allowance = Allowance(given)
    allowance.check([Skipped("a", "b")] * most, samples)
    with pytest.raises(ConversionError, match=f"{most + 1} of {samples} samples .* more than the {most} that"):
        allowance.check([Skipped("a", "b")] * (most + 1), samples)


@pytest.mark.parametrize(
    ("first", "last", "good"),
    [
        (3, [[7, 8], [9]], 0),  # values and offsets have as many numbers as a row
        (5, [[7, 8], [9], [10], [11]], 0),
        (2, [[7, 8]], 1),
    ],
)
def test_offsets_of_lists_are_never_samples(tmp_path, first, last, good):
    """Rows of other lengths come as values and offsets, which may look like samples of a fixed field."""
    table = pa.table({"tokens": [list(range(first))] * 70 + last})
    parquet.write_table(table, tmp_path / "t.parquet", row_group_size=70)
    how = {"schema": {"tokens": gdsload.Field("int64", (first,))}, "on_error": "skip", "max_skipped": "10%"}
    report = convert(tmp_path / "t.parquet", tmp_path / "out", **how, workers=1)
    assert (report.samples, len(report.skipped)) == (70 + good, len(last) - good)
    found = [sample["tokens"].tolist() for sample in gdsload.ShardDataset(tmp_path / "out")]
    assert found == [list(range(first))] * 70 + last[:good]
