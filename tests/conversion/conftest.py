"""A small source of every kind whose samples are in files, written by the libraries that own the formats."""

import json
import pickle
import random
import re
import shutil
import wave
from itertools import islice
from pathlib import Path

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as tables
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from scipy.io import savemat

import gdsload
from gdsload.errors import GdsloadError
from tests.conversion import contents
from tests.conversion.reading import rows_of
from tests.syncing import no_sync  # noqa: F401 - a fixture

DATA = Path(__file__).parent.parent / "data"


@pytest.fixture
def out(tmp_path_factory):
    """Where a dataset may be made that is not in `tmp_path`."""
    return tmp_path_factory.mktemp("out") / "out"


@pytest.fixture
def put(tmp_path):
    """Writes files of these names, in folders that are made for them."""

    def put_all(*names, text=""):
        for name in names:
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(text)

    return put_all


@pytest.fixture
def converted(tmp_path_factory):
    """Converts a source in this process, and returns the dataset that is made of it."""

    def convert(source, **options):
        out = tmp_path_factory.mktemp("converted") / "out"
        gdsload.convert(source, out, workers=1, **options)
        return gdsload.ShardDataset(out)

    return convert


@pytest.fixture
def left_out(tmp_path_factory):
    """Checks that samples are refused for these reasons, by their keys, or left out if asked; returns the others."""

    def check(source, reasons, **options):
        places = tmp_path_factory.mktemp("left-out")
        with pytest.raises(GdsloadError, match=re.escape(next(iter(reasons.values())))):
            gdsload.convert(source, places / "none", workers=1, **options)
        how = {"on_error": "skip", "max_skipped": len(reasons), "workers": 1}
        report = gdsload.convert(source, places / "some", **how, **options)
        assert [one.key for one in report.skipped] == [*reasons]
        assert [one.reason for one in report.skipped if reasons[one.key] not in one.reason] == []
        return gdsload.ShardDataset(report.path)

    return check


def numpy_arrays(folder):
    np.save(folder / "x.npy", np.arange(6).reshape(3, 2))
    return ["x.npy"], {}


def images(folder):
    for name in ("cat", "dog"):
        (folder / name).mkdir()
        Image.fromarray(np.zeros((4, 4, 3), np.uint8)).save(folder / name / "1.png")
    return ["cat/1.png", "dog"], {}


def webdataset(folder):
    contents.pack(folder / "a.tar", [(f"{number}.cls", b"%d" % number) for number in range(3)])
    return ["a.tar"], {}


def parquet(folder):
    tables.write_table(pa.table({"x": [1, 2, 3]}), folder / "a.parquet")
    return ["a.parquet"], {}


def csv(folder):
    np.save(folder / "0.npy", np.arange(3))
    (folder / "a.csv").write_text("file,label\n0.npy,1\n")
    return ["a.csv", "0.npy"], {}


def mds(folder):
    shutil.copytree(DATA / "mds" / "numbers", folder, dirs_exist_ok=True)
    return ["index.json", "shard.00000.mds"], {}


def litdata(folder):
    shutil.copytree(DATA / "litdata" / "leaves", folder, dirs_exist_ok=True)
    return ["index.json", "chunk-0-0.bin"], {}


def tokens(folder):
    np.arange(9, dtype=np.uint16).tofile(folder / "a.bin")
    return ["a.bin"], {"dtype": "uint16"}


def huggingface(folder):
    library = pytest.importorskip("datasets")
    library.disable_progress_bars()
    library.Dataset.from_dict({"x": [1, 2, 3]}).save_to_disk(str(folder))
    return ["state.json", "dataset_info.json", "data-00000-of-00001.arrow"], {}


def safetensors(folder):
    save_file({"x": torch.arange(6).reshape(3, 2)}, folder / "a.safetensors")
    return ["a.safetensors"], {}


def hdf5(folder):
    with h5py.File(folder / "a.h5", "w") as file:
        file["x"] = np.arange(6).reshape(3, 2)
    return ["a.h5"], {}


def zarr(folder):
    library = pytest.importorskip("zarr")
    group = library.open_group(folder, mode="w")
    library.create_array(group.store, name="x", data=np.arange(6).reshape(3, 2))
    return ["zarr.json", "x/c/0/0"], {}


def lmdb(folder):
    library = pytest.importorskip("lmdb")
    with library.open(str(folder), map_size=2**20) as env, env.begin(write=True) as transaction:
        for number in range(3):
            transaction.put(b"%d" % number, bytes(number))
    (folder / "lock.mdb").unlink()
    return ["data.mdb"], {}


def tfrecord(folder):
    pytest.importorskip("google.protobuf")
    example = bytes.fromhex("0a0c0a0a0a0178 12051a030a0107".replace(" ", ""))  # x: [7]
    (folder / "a.tfrecord").write_bytes(contents.tfrecord(example) * 3)
    return ["a.tfrecord"], {}


def pt(folder):
    torch.save({"x": torch.arange(6).reshape(3, 2)}, folder / "a.pt")
    return ["a.pt"], {}


def idx(folder):
    (folder / "train-labels-idx1-ubyte").write_bytes(bytes([0, 0, 8, 1, 0, 0, 0, 3, 7, 8, 9]))
    return ["train-labels-idx1-ubyte"], {}


def mat(folder):
    savemat(folder / "a.mat", {"x": np.arange(6).reshape(3, 2)})
    return ["a.mat"], {}


def text(folder):
    (folder / "a.txt").write_text("one\ntwo\n")
    return ["a.txt"], {}


def coco(folder):
    (folder / "annotations").mkdir()
    Image.fromarray(np.zeros((4, 6, 3), np.uint8)).save(folder / "1.png")
    tree = {
        "images": [{"id": 7, "file_name": "1.png", "width": 6, "height": 4}],
        "annotations": [{"id": 1, "image_id": 7, "category_id": 3, "bbox": [1, 1, 2, 3], "area": 5, "iscrowd": 0}],
        "categories": [{"id": 3, "name": "cat"}],
    }
    (folder / "annotations" / "instances_all.json").write_text(json.dumps(tree))
    return ["annotations/instances_all.json", "annotations"], {}


def yolo(folder):
    for name in ("images", "labels"):
        (folder / name).mkdir()
    Image.fromarray(np.zeros((4, 6, 3), np.uint8)).save(folder / "images" / "1.png")
    (folder / "labels" / "1.txt").write_text("0 0.5 0.5 0.25 0.5\n")
    (folder / "data.yaml").write_text("names: [cat]\ntrain: images\n")
    return ["images/1.png", "data.yaml", "labels/1.txt"], {}


def h5ad(folder):
    with h5py.File(folder / "a.h5ad", "w") as file:
        file["X"] = np.arange(6.0).reshape(3, 2)
        file.create_group("obs").attrs.update({"encoding-type": "dataframe", "column-order": [], "_index": "_index"})
    return ["a.h5ad"], {}


def lerobot(folder):
    for name in ("meta", "data/chunk-000"):
        (folder / name).mkdir(parents=True)
    tables.write_table(pa.table({"action": [[1.0, 2.0], [3.0, 4.0]]}), folder / "data/chunk-000/file-000.parquet")
    described = {"codebase_version": "v3.0", "features": {"action": {"dtype": "float64", "shape": [2]}}}
    (folder / "meta" / "info.json").write_text(json.dumps(described))
    return ["meta/info.json", "data/chunk-000/file-000.parquet"], {}


def jsonl(folder):
    (folder / "a.jsonl").write_text('{"text": "a", "n": 1}\n')
    (folder / "b.jsonl").write_text('{"text": "b", "n": 2}\n')
    return ["a.jsonl", "b.jsonl"], {}


def audio(folder):
    pytest.importorskip("soundfile", reason="gdsload[audio] decodes sounds")
    for name in ("a.wav", "b.wav"):
        with wave.open(str(folder / name), "wb") as file:
            file.setparams((1, 2, 8000, 4, "NONE", ""))
            file.writeframes(bytes(8))
    return ["a.wav", "b.wav"], {}


MAKERS = {
    "numpy": numpy_arrays, "images": images, "webdataset": webdataset, "parquet": parquet, "csv": csv, "mds": mds,
    "litdata": litdata, "tokens": tokens, "huggingface": huggingface, "safetensors": safetensors, "hdf5": hdf5,
    "zarr": zarr, "lmdb": lmdb, "tfrecord": tfrecord, "pt": pt, "idx": idx, "mat": mat, "text": text,
    "coco": coco, "yolo": yolo, "h5ad": h5ad, "lerobot": lerobot, "jsonl": jsonl,
    "audio": audio,
}  # fmt: skip


@pytest.fixture(params=MAKERS)
def source_of_files(request, tmp_path):
    """Kind, folder, names of files (and folders) that are its samples, and options of a source."""
    folder = tmp_path / "source"
    folder.mkdir()
    names, options = MAKERS[request.param](folder)
    return request.param, folder, names, options


@pytest.fixture
def make_source():
    """Writes a source of a kind into a folder; names and options as above."""

    def made(kind, folder):
        folder.mkdir(parents=True, exist_ok=True)
        return MAKERS[kind](folder)

    return made


@pytest.fixture(scope="session")
def samples_in():
    """Reads all samples of a source, cut into parts of about so many bytes, as numpy arrays, texts and bytes."""

    def read(source, target=2**20):
        source = pickle.loads(pickle.dumps(source))  # as in another process
        return [
            {name: np.asarray(value) if hasattr(value, "shape") else value for name, value in row.items()}
            for row in rows_of(source, target)
        ]

    return read


@pytest.fixture
def damaged_in_a_process(tmp_path_factory):
    """Damages a file whose reader may crash: a conversion of its source ends, or an error of gdsload's says why not."""

    def check(file, source, rounds=6):
        whole, refused = Path(file).read_bytes(), 0
        for number in range(rounds):
            place = len(whole) * number // rounds + 40
            damaged = whole[:place] if number % 2 else whole[:place] + b"\xff\xff\xff\xff" + whole[place + 4 :]
            Path(file).write_bytes(damaged)
            try:
                gdsload.convert(source, tmp_path_factory.mktemp("damaged") / "out", workers=1)
            except GdsloadError:
                refused += 1
        Path(file).write_bytes(whole)
        assert refused >= rounds // 2

    return check


@pytest.fixture(scope="session")
def survives_damage():
    """Damages a file again and again: each time all of it is read, or an error of gdsload's says what is wrong."""

    def check(file, make, rounds=80):
        whole, rng, refused = Path(file).read_bytes(), random.Random(0), 0
        for number in range(rounds):
            damaged = bytearray(whole)
            if number % 4 == 0:
                damaged = damaged[: rng.randrange(len(whole))]
            for _ in range(rng.choice([1, 1, 1, 8]) if number % 4 else 0):
                damaged[rng.randrange(len(whole))] = rng.choice([0, 255, rng.randrange(256)])
            Path(file).write_bytes(damaged)
            try:
                source = make()
                source.describe()
                for part in source.parts(2**12):
                    for item in islice(source.read(part), 10_000):
                        item.make()
            except GdsloadError as error:
                assert str(error)
                refused += 1
        Path(file).write_bytes(whole)
        return refused

    return check
