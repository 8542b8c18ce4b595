"""The kind of a source, by the files there; and the errors for files that no kind reads."""

import os
import subprocess
import sys

import pytest

import gdsload
from gdsload.conversion.folders import PICTURES, expanded
from gdsload.conversion.recognise import recognise, source_for
from gdsload.errors import DatasetNotFoundError, FormatError, OptionError

BOX = "0 0.5 0.5 0.2 0.2\n"
FOLDERS = [
    ("numpy", ["x.npy", "y.npy", "notes.txt"]),
    ("numpy", ["images/1.npy", "labels/1.npy"]),
    ("webdataset", ["part-0.tar", "part-1.tar"]),
    ("parquet", ["a.parquet"]),
    ("safetensors", ["shard-00000.safetensors", "index.json"]),
    ("hdf5", ["all.h5"]),
    ("zarr", ["zarr.json", "c.npy"]),
    ("huggingface", ["data-00000.arrow", "state.json", "dataset_info.json"]),
    ("images", ["cat/1.JPG", "dog/2.png"]),
    ("images", ["images/1.png", "labels/1.png"]),
    ("images", ["images/1.png", "labels"]),
    ("yolo", ["images/1.png", "labels/1.json"]),
    ("yolo", ["Images/1.png", "LABELS/a/1.txt"]),
    *(
        ("yolo", [f"{place}/{name}" for name in ("0.png", "1.png", "0.txt", "1.txt")])
        for place in (".", "images", "train")
    ),
    ("mds", ["index.json", "shard.00000.mds.zstd"]),
    ("litdata", ["index.json", "chunk-0-0.bin"]),
    ("tokens", ["train.bin", "more.bin"]),
    ("jsonl", ["year=2024/month=1/day=1/hour=1/a.jsonl.gz", "year=2024/month=1/day=2/hour=1/a.jsonl.gz"]),
    ("csv", ["part-0.csv", "part-1.tsv"]),
]


@pytest.mark.parametrize(("kind", "names"), FOLDERS)
def test_folders(tmp_path, put, kind, names):
    put(*names, text=BOX)
    assert recognise(str(tmp_path)) == kind


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("A.TAR", "webdataset"),
        ("x.tar.gz", "webdataset"),
        ("t.npz", "numpy"),
        ("T.CSV", "csv"),
        ("a.hdf", "hdf5"),
        ("train-images-idx3-float.gz", "idx"),
        ("x.idx1-int", "idx"),
        ("t10k-labels-idx1-ubyte", "idx"),
        ("a.text", "text"),
        ("b.AIFF", "audio"),
        ("a.h5ad", "h5ad"),
        ("a.jsonl", "jsonl"),
        ("a.mat", "mat"),
        ("a.pt", "pt"),
    ],
)
def test_files(tmp_path, put, name, kind):
    put(name)
    assert recognise(str(tmp_path / name)) == kind


@pytest.mark.parametrize(
    ("names", "kinds"),
    [
        (["a.tar", "b.parquet"], "parquet, webdataset"),
        # A table may be notes; and pictures are never left out for other files, nor these for them.
        (["train.csv", "x.npy"], "csv, numpy"),
        (["train.csv", "images/1.png"], "csv, images"),
        (["train.csv", "parts/1.parquet"], "csv, parquet"),
        *(
            ([f"{folder}/0.jpg", other], kinds)
            for folder in (".", "train", "train/cat")
            for other, kinds in (
                ("a.jsonl", "images, jsonl"), ("data/a.parquet", "images, parquet"), ("a/b/x.npy", "images, numpy")
            )
        ),
    ],
)  # fmt: skip
def test_what_could_be_two_things_is_asked_for(tmp_path, put, names, kinds):
    put(*names)
    with pytest.raises(OptionError, match=f"it could be any of {kinds}. Pass `kind=`"):
        recognise(str(tmp_path))
    if names[0] == "train.csv":
        assert recognise(str(tmp_path / "train.csv")) == "csv"


def test_nothing_and_a_name_of_python(tmp_path):
    with pytest.raises(DatasetNotFoundError, match="nothing"):
        recognise(str(tmp_path / "none"))
    assert recognise("package.module:dataset") == "torch"


@pytest.mark.parametrize(
    ("folder", "kind"),
    [
        *((folder, None) for folder in ("", "cat", "cat/more", "annotations")),
        *(("", kind) for kind in ("numpy", "yolo", "images", "coco", "zarr")),
        ("cat", "webdataset"),
    ],
)
def test_folders_that_cannot_be_read_are_named(tmp_path, monkeypatch, folder, kind):
    """By root as well, whom no permissions stop."""
    real = os.scandir

    def scandir(path):
        if os.path.realpath(path) == os.path.realpath(tmp_path / folder):
            raise PermissionError(13, "Permission denied", path)
        return real(path)

    for name in ("cat/more", "annotations"):
        (tmp_path / name).mkdir(parents=True)
    monkeypatch.setattr(os, "scandir", scandir)
    with pytest.raises(FormatError, match="the folder cannot be read: Permission denied") as raised:
        source_for(tmp_path, kind).describe()
    assert raised.value.file == str(tmp_path / folder).rstrip("/")


@pytest.mark.parametrize("ending", PICTURES)
@pytest.mark.parametrize("place", ["cat", "."])
def test_pictures_that_are_read_are_recognised(tmp_path, put, ending, place):
    put(f"{place}/1{ending}", f"{place}/2{ending.upper()}")
    assert recognise(str(tmp_path)) == "images"


def test_pictures_beside_a_table_that_names_them_are_of_the_table(tmp_path, put):
    put("1.jpg", "t.csv", text="file,label\n1.jpg,2\n")
    assert recognise(str(tmp_path)) == "csv"
    put("t.csv", text="a,b\n1,2\n")
    with pytest.raises(OptionError, match="it could be any of csv, images"):
        recognise(str(tmp_path))


@pytest.mark.parametrize(
    ("names", "match"),
    [
        (["clips/a.mp4", "clips/b.MP4", "c.gif"], r"it has \.mp4 \(2\), \.gif \(1\)"),
        (["a.json"], r"\.json \(1\); an array of JSON is read as a line for each sample"),
        (["LICENSE"], r"names without an ending \(1\)"),
        ([], "it is empty"),
        ([f"a.x{number}" for number in range(20)], "…"),
    ],
)
def test_what_lies_there_and_the_ways_out(tmp_path, put, names, match):
    put(*names)
    paths = [tmp_path, *(tmp_path / name for name in names if "/" not in name and len(names) == 1)]
    for path in paths:
        with pytest.raises(OptionError, match=f"{match}.*Pass `kind=`.*'package.module:name'.*a Source of your own"):
            recognise(str(path))


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
    ran = subprocess.run([*command, *arguments], cwd=tmp_path, capture_output=True, text=True, check=False)
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
