"""The command convert."""

import json
import re
import shlex

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import gdsload
from gdsload.tools.cli import main


@pytest.fixture
def source(tmp_path):
    np.save(tmp_path / "x.npy", np.arange(1200, dtype=np.int32).reshape(300, 4))
    return tmp_path / "x.npy"


def test_convert(source, tmp_path, capsys):
    assert main(["convert", str(source), str(tmp_path / "out"), "--shard-bytes", "2kB", "--workers", "1"]) == 0
    said = capsys.readouterr()
    assert "300 samples in 3 shards" in said.out
    assert said.err == ""
    assert gdsload.ShardDataset(tmp_path / "out")[299]["x"].tolist() == [1196, 1197, 1198, 1199]


def test_dry_run(source, tmp_path, capsys):
    arguments = ["convert", str(source), str(tmp_path / "out"), "--dry-run", "--cast", "x=float16"]
    assert main(arguments) == 0
    said = capsys.readouterr().out
    assert "NumPy arrays, 1 part" in said
    assert "samples: 300" in said
    assert "  x: float16 [4]" in said
    assert not (tmp_path / "out").exists()


def test_a_cast_without_a_type_is_refused(source, tmp_path, capsys):
    assert main(["convert", str(source), str(tmp_path / "out"), "--cast", "x"]) == 2
    assert "'x' is not NAME=VALUE" in capsys.readouterr().err


def test_pack(tmp_path, capsys):
    (tmp_path / "t.jsonl").write_text("[1, 2, 3]\n[4, 5]\n[6]\n")
    arguments = ["convert", str(tmp_path / "t.jsonl"), str(tmp_path / "out"), "--workers", "1"]
    assert main([*arguments, "--pack", "tokens:4", "--eos", "0", "--pad", "9"]) == 0
    assert "3 samples in 1 shard," in capsys.readouterr().out
    dataset = gdsload.ShardDataset(tmp_path / "out")
    assert [dataset[n]["tokens"].tolist() for n in range(3)] == [[1, 2, 3, 0], [4, 5, 0, 6], [0, 9, 9, 9]]
    assert [dataset[n]["cu_seqlens"].tolist() for n in range(3)] == [[0, 4], [0, 3, 4], [0, 1, 4]]
    for wrong in ("tokens", "tokens:4:float32"):
        assert main([*arguments, "--pack", wrong]) == 2
    assert "not FIELD:LENGTH" in capsys.readouterr().err
    assert main([*arguments, "--eos", "1"]) == 2
    assert "are for --pack" in capsys.readouterr().err


def test_pack_of_bytes(tmp_path, capsys):
    with gdsload.ShardWriter(tmp_path / "d") as writer:
        for tokens in ([1, 2, 3], [4, 5, 6, 7, 8]):
            writer.write({"tokens": np.array(tokens).tobytes()})
    arguments = ["convert", str(tmp_path / "d"), str(tmp_path / "out"), "--workers", "1", "--pack"]
    assert main([*arguments, "tokens:4"]) == 1
    assert "say of which type: --pack tokens:4:int64" in capsys.readouterr().err
    assert main([*arguments, "tokens:4:int64"]) == 0
    assert [one["tokens"].tolist() for one in gdsload.ShardDataset(tmp_path / "out")] == [[1, 2, 3, 4], [5, 6, 7, 8]]


def test_skipped_samples_are_listed(source, tmp_path, capsys):
    report = tmp_path / "skipped.jsonl"
    arguments = ["convert", str(source), str(tmp_path / "out"), "--workers", "1", "--on-error", "skip"]
    arguments += ["--map", "math:sqrt", "--report", str(report)]  # which takes no sample
    assert main(arguments) == 1
    assert "not one sample" in capsys.readouterr().err
    assert not report.exists()


def test_the_report_of_skipped_samples(tmp_path, source, monkeypatch, capsys):
    import sys
    from types import ModuleType

    module = ModuleType("half")
    module.keep_even = lambda sample: sample if int(sample["x"][0]) % 8 == 0 else {}["odd"]
    monkeypatch.setitem(sys.modules, "half", module)
    report = tmp_path / "skipped.jsonl"
    arguments = ["convert", str(source), str(tmp_path / "out"), "--workers", "1", "--on-error", "skip"]
    arguments += ["--max-skipped", "50%", "--map", "half:keep_even", "--report", str(report)]
    assert main(arguments) == 0
    assert "150 samples were skipped" in capsys.readouterr().out
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


def test_keep_encoded(pictures, tmp_path, capsys):
    assert main(["convert", str(pictures), str(tmp_path / "out"), "--keep-encoded", "--workers", "1"]) == 0
    assert "note: class 'none' has no image that can be read. It keeps" in capsys.readouterr().out
    dataset = gdsload.ShardDataset(tmp_path / "out")
    files = [(pictures / name / "0.png").read_bytes() for name in ("cat", "dog")]
    assert (dataset.schema["image"].kind, dataset.column("image")) == ("image", files)
    assert dataset.metadata["source"]["options"] == {"keep_encoded": True}


def test_dry_run_of_images_either_way(pictures, tmp_path, capsys):
    for options in (["--size", "32"], ["--keep-encoded"]):
        assert main(["convert", str(pictures), str(tmp_path / "out"), "--dry-run", *options]) == 0
        said = capsys.readouterr().out
        assert "size: about " in said
        assert ("image: image\n" in said) == (options == ["--keep-encoded"])
        assert "note: class 'none'" in said


def test_images_of_several_sizes_are_refused_with_what_to_type(pictures, tmp_path, capsys):
    assert main(["convert", str(pictures), str(tmp_path / "out"), "--workers", "1"]) == 1
    said = capsys.readouterr().err
    assert "--size 224" in said
    assert "--keep-encoded" in said


def test_what_has_no_images_cannot_keep_them(source, tmp_path, capsys):
    assert main(["convert", str(source), str(tmp_path / "out"), "--keep-encoded"]) == 2
    assert "kind 'numpy' has no option 'keep_encoded'" in capsys.readouterr().err


def test_a_mode_for_a_field(pictures, tmp_path):
    arguments = ["--mode", "image=L,=RGBA", "--size", "4", "--workers", "1"]
    assert main(["convert", str(pictures), str(tmp_path / "out"), *arguments]) == 0
    assert gdsload.ShardDataset(tmp_path / "out").schema["image"].shape == (1, 4, 4)


def test_what_fills_and_what_should_be_known(tmp_path, capsys):
    (tmp_path / "t.csv").write_text("zip,age\n00501,3\n10001,\n")
    arguments = ["convert", str(tmp_path / "t.csv"), str(tmp_path / "out"), "--fill", "age=-1", "--workers", "1"]
    for more in (["--dry-run"], []):
        assert main([*arguments, *more]) == 0
        assert "note: 'zip' is taken for int, but '00501' begins with a zero" in capsys.readouterr().out
    assert [sample["age"].item() for sample in gdsload.ShardDataset(tmp_path / "out")] == [3, -1]
    assert main(["convert", str(tmp_path / "t.csv"), str(tmp_path / "a"), "--fields", "age", "--fill", "age=x"]) == 2
    assert "fill has 'x' for field 'age', which is int64" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["a,b", "a=b", "a b", "it's"])
def test_hints_are_pasted_whatever_the_column_is_called(name, tmp_path, capsys):
    (tmp_path / "t.csv").write_text(f'"{name}",c\n1,1\n,2\n')
    arguments = ["convert", str(tmp_path / "t.csv"), str(tmp_path / "out"), "--workers", "1", "--quiet"]
    assert main(arguments) == 1
    cause = " ".join(capsys.readouterr().err.partition("cause: ")[2].partition("hint: ")[0].split())
    hint = re.search(r"--fill .*(?=; or leave)", cause)
    casts = ["--cast", json.dumps({name: "int8"})]
    assert main([*arguments, *shlex.split(hint[0]), *casts]) == 0
    assert gdsload.ShardDataset(tmp_path / "out").column(name).tolist() == [1, 0]


def test_a_text_that_looks_like_a_number_stays_a_text(tmp_path, capsys):
    (tmp_path / "t.csv").write_text("a1b\n517\n")
    arguments = ["convert", str(tmp_path / "t.csv"), str(tmp_path / "out"), "--delimiter", "1", "--workers", "1"]
    assert main([*arguments, "--quiet"]) == 0
    assert gdsload.ShardDataset(tmp_path / "out").column("a").tolist() == [5]
    assert capsys.readouterr().err == ""


def test_what_fills_a_table_is_a_number_where_the_column_is(tmp_path):
    rows = pa.table({"age": [3, None], "name": [None, "b"]})
    pq.write_table(rows, tmp_path / "t.parquet")
    fill = ["--fill", "age=-1,name=none"]
    assert main(["convert", str(tmp_path / "t.parquet"), str(tmp_path / "out"), *fill, "--workers", "1"]) == 0
    samples = list(gdsload.ShardDataset(tmp_path / "out"))
    assert [(one["age"].item(), one["name"]) for one in samples] == [(3, "none"), (-1, "b")]


def test_python_and_the_command_line_name_options_each_in_its_own_words(tmp_path, capsys):
    (tmp_path / "t.csv").write_text("n,z\n1,007\noops,008\n" + "2,009\n" * 400)
    with pytest.raises(gdsload.errors.ConversionError, match=r"`on_error=\"skip\"`") as caught:
        gdsload.convert(tmp_path / "t.csv", tmp_path / "out", types={"n": "int"}, workers=1)
    assert "--" not in str(caught.value)
    arguments = ["convert", str(tmp_path / "t.csv"), str(tmp_path / "out"), "--types", "n=int", "--workers", "1"]
    assert main([*arguments, "--json"]) == 1
    said = capsys.readouterr()
    for text in (said.err, json.loads(said.out)["message"]):
        assert "--on-error skip" in text
        assert "on_error" not in text
    report = tmp_path / "bad.jsonl"
    assert main([*arguments, "--on-error", "skip", "--report", str(report)]) == 0
    said = capsys.readouterr().out
    assert "--types n=str" in said
    assert "--types z=str" in said
    assert "--types n=str" in json.loads(report.read_text())["reason"]


@pytest.mark.parametrize("report", ["no/bad.jsonl", "."])
def test_a_report_that_cannot_be_written_is_refused_first(source, tmp_path, capsys, report):
    assert main(["convert", str(source), str(tmp_path / "out"), "--report", str(tmp_path / report)]) == 1
    assert "the report cannot be written" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
