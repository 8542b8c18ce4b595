"""The command convert."""

import json
import re
import shlex
import sys
from types import ModuleType

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import gdsload


@pytest.fixture
def source(tmp_path):
    np.save(tmp_path / "x.npy", np.arange(1200, dtype=np.int32).reshape(300, 4))
    return tmp_path / "x.npy"


@pytest.fixture
def out(tmp_path):
    return tmp_path / "out"


@pytest.fixture
def convert(cli, out):
    """Converts a source to ``out`` by one worker, and gives what was said."""

    def run(source, *options, code=0):
        return cli("convert", source, out, "--workers", "1", *options, code=code)

    return run


def test_options_of_packing_that_do_not_fit_are_refused(source, convert):
    assert "not FIELD:LENGTH" in convert(source, "--pack", "tokens:4:float32", code=2).err
    assert "are for --pack" in convert(source, "--eos", "1", code=2).err


def test_pack(tmp_path, out, convert):
    (tmp_path / "t.jsonl").write_text("[1, 2, 3]\n[4, 5]\n[6]\n")
    said = convert(tmp_path / "t.jsonl", "--pack", "tokens:4", "--eos", "0", "--pad", "9").out
    assert "3 samples, 16 KiB in 1 shard" in said
    dataset = gdsload.ShardDataset(out)
    assert [dataset[n]["tokens"].tolist() for n in range(3)] == [[1, 2, 3, 0], [4, 5, 0, 6], [0, 9, 9, 9]]
    assert [dataset[n]["cu_seqlens"].tolist() for n in range(3)] == [[0, 4], [0, 3, 4], [0, 1, 4]]


def test_the_report_of_skipped_samples(tmp_path, source, monkeypatch, convert):
    module = ModuleType("half")
    module.keep_even = lambda sample: sample if int(sample["x"][0]) % 8 == 0 else {}["odd"]
    monkeypatch.setitem(sys.modules, "half", module)
    report = tmp_path / "skipped.jsonl"
    options = ["--on-error", "skip", "--max-skipped", "50%", "--map", "half:keep_even", "--report", report]
    assert "150 samples were skipped" in convert(source, *options).out
    listed = [json.loads(line) for line in report.read_text().splitlines()]
    assert len(listed) == 150
    assert "KeyError" in listed[0]["reason"]


@pytest.fixture
def pictures(tmp_path):
    images = pytest.importorskip("PIL.Image")
    for name, size in (("cat", (7, 5)), ("dog", (6, 9))):
        (tmp_path / "s" / name).mkdir(parents=True)
        images.fromarray(np.full((size[1], size[0], 3), 9, np.uint8)).save(tmp_path / "s" / name / "0.png")
    (tmp_path / "s" / "none").mkdir()
    return tmp_path / "s"


def test_dry_run_of_images_either_way(pictures, convert):
    for options in (["--size", "32"], ["--keep-encoded"]):
        said = convert(pictures, "--dry-run", *options).out
        assert "size: about " in said
        assert ("image: image\n" in said) == (options == ["--keep-encoded"])
        assert "note: class 'none'" in said


def test_what_fills_and_what_should_be_known(tmp_path, out, convert):
    (tmp_path / "t.csv").write_text("zip,age\n00501,3\n10001,\n")
    for more in (["--dry-run"], []):
        said = convert(tmp_path / "t.csv", "--fill", "age=-1", *more).out
        assert "note: 'zip' is taken for int, but '00501' begins with a zero" in said
    assert [sample["age"].item() for sample in gdsload.ShardDataset(out)] == [3, -1]
    said = convert(tmp_path / "t.csv", "--overwrite", "--fields", "age", "--fill", "age=x", code=2).err
    assert "fill has 'x' for field 'age', which is int64" in said


@pytest.mark.parametrize("name", ["a,b", "a=b", "a b", "it's"])
def test_hints_are_pasted_whatever_the_column_is_called(name, tmp_path, out, convert):
    (tmp_path / "t.csv").write_text(f'"{name}",c\n1,1\n,2\n')
    said = convert(tmp_path / "t.csv", "--quiet", code=1).err
    cause = " ".join(said.partition("cause: ")[2].partition("hint: ")[0].split())
    hint = re.search(r"--fill .*(?=; or leave)", cause)
    casts = ["--cast", json.dumps({name: "int8"})]
    convert(tmp_path / "t.csv", "--quiet", *shlex.split(hint[0]), *casts)
    assert gdsload.ShardDataset(out).column(name).tolist() == [1, -1]


def test_a_text_that_looks_like_a_number_stays_a_text(tmp_path, out, convert):
    (tmp_path / "t.csv").write_text("a1b\n517\n")
    said = convert(tmp_path / "t.csv", "--delimiter", "1", "--quiet")
    assert gdsload.ShardDataset(out).column("a").tolist() == [5]
    assert said.err == ""


def test_what_fills_a_table_is_a_number_where_the_column_is(tmp_path, out, convert):
    rows = pa.table({"age": [3, None], "name": [None, "b"]})
    pq.write_table(rows, tmp_path / "t.parquet")
    convert(tmp_path / "t.parquet", "--fill", "age=-1,name=none")
    samples = list(gdsload.ShardDataset(out))
    assert [(one["age"].item(), one["name"]) for one in samples] == [(3, "none"), (-1, "b")]


def test_python_and_the_command_line_name_options_each_in_its_own_words(tmp_path, out, convert):
    (tmp_path / "t.csv").write_text("n,z\n1,007\noops,008\n" + "2,009\n" * 400)
    with pytest.raises(gdsload.errors.ConversionError, match=r"`on_error=\"skip\"`") as caught:
        gdsload.convert(tmp_path / "t.csv", out, types={"n": "int"}, workers=1)
    assert "--" not in str(caught.value)
    said = convert(tmp_path / "t.csv", "--types", "n=int", "--json", code=1)
    for text in (said.err, said.tree["message"]):
        assert "--on-error skip" in text
        assert "on_error" not in text
    report = tmp_path / "bad.jsonl"
    said = convert(tmp_path / "t.csv", "--types", "n=int", "--on-error", "skip", "--report", report).out
    assert "--types n=str" in said
    assert "--types z=str" in said
    assert "--types n=str" in json.loads(report.read_text())["reason"]
