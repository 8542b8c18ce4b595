"""What no kind reads: it is said what lies there, and how it can be converted all the same."""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys

import pytest

import gdsload
from gdsload.conversion.folders import expanded
from gdsload.conversion.recognise import WAYS_OUT, recognise
from gdsload.errors import FormatError, OptionError


@pytest.mark.parametrize(
    ("names", "match"),
    [
        (["clips/a.mp4", "clips/b.MP4", "c.json"], r"it has \.mp4 \(2\), \.json \(1\); video is not decoded"),
        (["a.m4a"], "audio of this form is not decoded"),
        (["images.zip"], "unpack them first"),
        (["x.zarr.zip"], r"\.zarr\.zip \(1\).*unpack them first"),
        (["a.rar", "b.rar"], r"\.rar \(2\).*unpack them first"),
        (["a.json.gz"], r"\.json\.gz \(1\); unpack it first"),
        (["a.jsonl.zst"], r"\.jsonl\.zst \(1\); unpack it first \(zstd"),
        (["a.json"], r"\.json \(1\); an array of JSON is read as a line for each sample"),
        (["LICENSE"], r"names without an ending \(1\)"),
        ([], "it is empty"),
        ([f"a.x{number}" for number in range(20)], "…"),
    ],
)
def test_what_lies_there_and_the_ways_out(tmp_path, names, match):
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"")
    paths = [tmp_path, *(tmp_path / name for name in names if "/" not in name and len(names) == 1)]
    for path in paths:
        with pytest.raises(OptionError, match=f"{match}.*Pass `kind=`.*'package.module:name'.*a Source of your own"):
            recognise(str(path))


def test_what_a_source_of_ones_own_is_told_by_is_there():
    place = re.search(r"see (\S+)\.$", WAYS_OUT)[1]
    assert importlib.import_module(place).Source


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("a-{000..002}.tar", ["a-000.tar", "a-001.tar", "a-002.tar"]),
        ("{8..10}", ["8", "9", "10"]),
        ("x{a,b,}.npy", ["xa.npy", "xb.npy", "x.npy"]),
        ("{a,b}/{1..2}.tar", ["a/1.tar", "a/2.tar", "b/1.tar", "b/2.tar"]),
        ("plain.tar", None),
        ("{a}.tar", None),
    ],
)
def test_patterns_of_braces(pattern, names):
    assert expanded(pattern) == names


@pytest.mark.parametrize("pattern", ["{0..999999999999}", "{0..9999}{0..9999}", "{5..3}"])
def test_patterns_of_too_many_files(pattern):
    with pytest.raises(OptionError, match="stands for no file, or for more than"):
        expanded(pattern)


def test_files_by_a_pattern(tmp_path, make_source):
    make_source("webdataset", tmp_path / "made")
    for number in range(4):
        os.link(tmp_path / "made" / "a.tar", tmp_path / f"part-{number:03}.tar")
    pattern = str(tmp_path / "part-{001..002}.tar")
    assert recognise(pattern) == "webdataset"
    assert gdsload.convert(pattern, tmp_path / "out", workers=1).samples == 6
    with pytest.raises(FormatError, match="part-004.tar: the file cannot be read: No such file"):
        gdsload.convert(str(tmp_path / "part-{002..004}.tar"), tmp_path / "more", workers=1)
    os.link(tmp_path / "made" / "a.tar", tmp_path / "train.tar")
    os.link(tmp_path / "made" / "a.tar", tmp_path / "val.tar")
    with pytest.raises(OptionError, match="several splits: 'train', 'val'"):
        gdsload.convert(str(tmp_path / "{train,val}.tar"), tmp_path / "more", workers=1)
    (tmp_path / "{a,b}.npy").write_bytes((tmp_path / "made" / "a.tar").read_bytes())  # a name, and no pattern
    assert expanded(str(tmp_path / "{a,b}.npy")) is None


@pytest.mark.slow
def test_modules_of_the_working_folder(tmp_path):
    """Found by the command as it is installed, which has not that folder on its path; they hide no other."""
    (tmp_path / "own.py").write_text(
        "def dataset():\n    return [{'x': 1.5}, {'x': 2.5}]\ndef double(sample):\n    return {'x': sample['x'] * 2}\n"
    )
    (tmp_path / "json.py").write_text("raise RuntimeError('of the working folder')\n")
    command = [sys.executable, "-P", "-c", "import sys; from gdsload.tools.cli import main; sys.exit(main())"]
    arguments = ["convert", "own:dataset", "out", "--map", "own:double", "--workers", "2"]
    environment = {**os.environ, "PYTHONPATH": os.path.dirname(os.path.dirname(gdsload.__file__))}
    ran = subprocess.run(
        [*command, *arguments], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    assert [float(one["x"]) for one in gdsload.ShardDataset(tmp_path / "out")] == [3, 5]


class TestSeveralPaths:
    @pytest.mark.parametrize("form", [list, tuple])
    @pytest.mark.parametrize("kind", [None, "csv"])
    def test_a_list_of_them_is_refused(self, tmp_path, form, kind):
        paths = [tmp_path / "1.csv", tmp_path / "2.csv"]
        with pytest.raises(OptionError, match="of 2 paths is no source, '.*1.csv' first.*a pattern of braces"):
            gdsload.convert(form(paths), tmp_path / "out", kind=kind)
        for path in paths:
            path.write_text("a\n1\n")
        with pytest.raises(OptionError, match="of 2 paths is no source"):
            gdsload.convert(form(map(str, paths)), tmp_path / "out", kind=kind)

    def test_a_list_of_texts_is_a_dataset_of_them(self, tmp_path):
        assert gdsload.convert(["a cat", "a dog"], tmp_path / "out", workers=1).samples == 2

    def test_patterns_have_braces(self, tmp_path):
        (tmp_path / "1.csv").write_text("a\n1\n")
        with pytest.raises(gdsload.DatasetNotFoundError, match="there is nothing. Patterns are written with braces"):
            gdsload.convert(tmp_path / "*.csv", tmp_path / "out")
