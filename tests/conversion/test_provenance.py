"""The metadata of converted datasets: names of classes, and their sources."""

from __future__ import annotations

import importlib
import os
import shutil
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image

from gdsload import Field, ShardDataset, ShardWriter, convert, merge, reshard, split
from gdsload.conversion.runner import plan
from gdsload.errors import OptionError
from gdsload.system.version import __version__

SCHEMA = {"x": Field("float32", (2,)), "label": Field("int64")}


def written(path, names=None, count=10, **more):
    metadata = {**({"classes": {"label": names}} if names else {}), **more}
    with ShardWriter(path, SCHEMA, metadata=metadata) as writer:
        writer.write_batch({"x": np.zeros((count, 2), np.float32), "label": np.arange(count) % 2})
    return path


def metadata_of(path):
    return ShardDataset(path).metadata


def rows():
    return [{"x": number} for number in range(12)]


def documents():
    return [{"x": [1, 2, number]} for number in range(4)]


@pytest.mark.parametrize(
    ("name", "kind", "pack"),
    [("rows", "torch dataset", None), ("documents", "torch dataset, packed", {"field": "x", "length": 2})],
)
def test_datasets_of_ones_own_are_called_by_their_names(converted, name, kind, pack):
    found = converted(f"{__name__}:{name}", pack=pack).metadata
    assert found["source"] == {"kind": kind, "name": f"{__name__}:{name}"}


@pytest.fixture
def folder(tmp_path):
    for name in ("dog", "cat", "empty"):
        (tmp_path / "images" / name).mkdir(parents=True)
    for number in range(3):
        for name in ("cat", "dog"):
            Image.fromarray(np.full((4, 4, 3), number, np.uint8)).save(tmp_path / "images" / name / f"{number}.png")
    return tmp_path / "images"


@pytest.mark.parametrize("shuffle_seed", [None, 3])
def test_classes_of_folders_and_where_they_are(folder, tmp_path, shuffle_seed):
    convert(folder, tmp_path / "d", size=2, with_key=True, workers=1, shuffle_seed=shuffle_seed)
    assert metadata_of(tmp_path / "d") == {
        "classes": {"label": ["cat", "dog", "empty"]},
        "key": "key",
        "source": {"kind": "image folder", "path": str(folder), "options": {"size": 2, "with_key": True}},
        **({"options": {"shuffle_seed": 3}} if shuffle_seed else {}),
        "gdsload": __version__,
    }
    keys = ["cat/0.png", "cat/1.png", "cat/2.png", "dog/0.png", "dog/1.png", "dog/2.png"]
    dataset = ShardDataset(tmp_path / "d")
    assert sorted(dataset.column("key")) == keys
    assert [key[:3] for key in dataset.column("key")] == [["cat", "dog"][n] for n in dataset.column("label")]


def test_a_source_may_have_a_name_of_any_bytes(folder, tmp_path, converted):
    named = folder.rename(tmp_path / os.fsdecode(b"caf\xe9"))
    assert converted(named).metadata["source"]["path"] == f"{tmp_path}/caf\ufffd"


def test_a_class_has_a_name_that_is_a_text(folder, tmp_path):
    (folder / "dog").rename(folder / os.fsdecode(b"caf\xe9"))
    with pytest.raises(OptionError, match=r"a text that is no valid Unicode: 'caf.udce9'"):
        convert(folder, tmp_path / "d", workers=1)
    convert(folder, tmp_path / "d", workers=1, metadata={"classes": {"label": ["coffee", "cat", "empty"]}})
    convert(folder, tmp_path / "e", workers=1, fields=["image"])


def test_what_bad_samples_do_changes_nothing(folder, tmp_path):
    for name, options in (("a", {"workers": 1}), ("b", {"workers": 1, "on_error": "skip"})):
        convert(folder, tmp_path / name, shard_bytes=100, **options)
    assert (tmp_path / "a" / "index.json").read_bytes() == (tmp_path / "b" / "index.json").read_bytes()


def test_classes_of_datasets_and_parquet_files(tmp_path, converted):
    library = pytest.importorskip("datasets")
    library.disable_progress_bars()
    features = library.Features({"y": library.ClassLabel(names=["no", "yes"]), "x": library.Value("int64")})
    dataset = library.Dataset.from_dict({"y": [0, 1], "x": [3, 4]}, features)
    dataset.save_to_disk(str(tmp_path / "disk"))
    dataset.to_parquet(str(tmp_path / "a.parquet"))
    for source in (dataset, tmp_path / "disk", tmp_path / "a.parquet"):
        assert converted(source).metadata["classes"] == {"y": ["no", "yes"]}


def test_units_of_what_were_times_or_decimals(tmp_path, converted):
    times = pa.array([1, 2], pa.timestamp("us"))
    prices = pa.array([Decimal("1.25"), Decimal("2.50")], pa.decimal128(9, 2))
    table = pa.table({"t": times, "day": pa.array([1, 2], pa.date32()), "price": prices, "x": [1, 2]})
    importlib.import_module("pyarrow.parquet").write_table(table, tmp_path / "a.parquet")
    units = {"t": "microseconds since 1970-01-01 (no time zone)", "price": "units of 10 to the power of -2"}
    for source in (table, tmp_path / "a.parquet"):
        dataset = converted(source, decimals="scaled", fields=["t", "price", "x"])
        assert dataset.metadata["units"] == units
    reshard(dataset.path, tmp_path / "r", fields=["t"])
    assert metadata_of(tmp_path / "r")["units"] == {"t": units["t"]}
    assert "units" not in converted(table, as_json=["t"], decimals="scaled", fields=["t", "x"]).metadata


def test_what_users_call_units_is_kept(tmp_path, converted):
    for name in "ab":
        written(tmp_path / name, part=name, units="SI", classes=["cat", "dog"])
    merge([tmp_path / "a", tmp_path / "b"], tmp_path / "m")
    assert metadata_of(tmp_path / "m") == {"units": "SI", "classes": ["cat", "dog"], "gdsload": __version__}
    told = {"units": {"x": "m", "height of the station": "km"}, "key": "none"}
    assert converted({"x": np.arange(3)}, metadata=told).metadata.items() >= told.items()


def test_keys_of_tars(tmp_path, make_source, converted):
    make_source("webdataset", tmp_path)
    assert converted(tmp_path / "a.tar").metadata["key"] == "key"
    assert "key" not in converted(tmp_path / "a.tar", fields=["cls"]).metadata


def test_packing_keeps_what_is_known_of_the_documents(tmp_path, converted):
    told = {"tokenizer": "bytes", "classes": {"text": ["a", "b"], "label": ["no", "yes"]}}
    schema = {"text": Field("int32", (None,)), "label": "int64"}
    with ShardWriter(tmp_path / "d", schema, metadata=told) as writer:
        writer.write({"text": np.arange(9, dtype=np.int32), "label": 1})
    pack = {"field": "text", "length": 4}
    assert converted(tmp_path / "d", pack=pack).metadata == {
        "tokenizer": "bytes",
        "classes": {"text": ["a", "b"]},  # of the fields that blocks have
        "source": {"kind": "safetensors files, packed", "path": str(tmp_path / "d")},
        "options": {"pack": pack},
        "gdsload": __version__,
    }


# --- shards made of shards ---


def test_reshard_and_split_keep_them(tmp_path):
    written(tmp_path / "d", ["cat", "dog"], licence="CC0")
    wanted = metadata_of(tmp_path / "d")
    reshard(tmp_path / "d", tmp_path / "r", shard_bytes=100)
    split(tmp_path / "d", [tmp_path / "a", tmp_path / "b"], [0.5, 0.5], seed=1)
    convert(tmp_path / "d", tmp_path / "c")
    assert [metadata_of(tmp_path / name) for name in "rabc"] == [wanted] * 4
    reshard(tmp_path / "d", tmp_path / "f", fields=["x"])
    assert metadata_of(tmp_path / "f") == {"licence": "CC0"}
    written(tmp_path / "none")
    reshard(tmp_path / "none", tmp_path / "n")
    merge([tmp_path / "none", tmp_path / "n"], tmp_path / "m")
    assert metadata_of(tmp_path / "n") == metadata_of(tmp_path / "m") == {}


def test_merge_keeps_what_all_agree_in_and_lists_where_they_come_from(tmp_path):
    sources = [{"source": {"kind": "k", "path": name}, "gdsload": "0"} for name in "ab"]
    written(tmp_path / "a", ["cat", "dog"], licence="CC0", part=1, **sources[0])
    written(tmp_path / "b", ["cat", "dog"], licence="CC0", part=2, **sources[1])
    written(tmp_path / "c", None, licence="CC0", **sources[0])
    merge([tmp_path / name for name in "abc"], tmp_path / "m")
    wanted = {"classes": {"label": ["cat", "dog"]}, "licence": "CC0", "merged": sources, "gdsload": __version__}
    assert metadata_of(tmp_path / "m") == wanted
    merge([tmp_path / "m", tmp_path / "m"], tmp_path / "again")
    assert metadata_of(tmp_path / "again") == wanted
    merge([tmp_path / "m", tmp_path / "a"], tmp_path / "more")
    assert metadata_of(tmp_path / "more")["merged"] == [{"merged": sources, "gdsload": __version__}, sources[0]]


@pytest.mark.parametrize(
    ("about", "one", "other"),
    [
        ("classes", ["cat", "dog"], ["dog", "cat"]),
        ("classes", ["cat", "dog"], ["cat", "dog", "cow"]),
        ("units", "seconds", "milliseconds"),
    ],
)
def test_classes_and_units_that_disagree_are_never_merged(tmp_path, about, one, other):
    for name, value in (("a", one), ("b", other), ("c", None)):
        written(tmp_path / name, **({about: {"label": value}} if value else {}))
    a, b, m = (tmp_path / name for name in "abm")
    with pytest.raises(OptionError, match=f"have different {about}.*metadata=") as caught:
        merge([a, b], m)
    assert (caught.value.field, m.exists()) == ("label", False)
    merge([a, b], m, metadata={about: {"label": "said"}})
    assert metadata_of(m)[about] == {"label": "said"}
    merge([a, b], m, fields=["x"], overwrite=True)
    assert about not in metadata_of(m)
    merge([a, tmp_path / "c"], m, overwrite=True)
    assert metadata_of(m)[about] == {"label": one}


# --- class folders ---


def test_folders_without_images_are_said_and_keep_their_number(folder, tmp_path):
    (folder / "a gif").mkdir()
    (folder / "a gif" / "0.GIF").write_bytes(b"GIF89a")
    shutil.copy(folder / "cat" / "0.png", folder / "preview.png")
    found = plan(folder, workers=1)
    assert found.samples == 6
    said = "\n".join(found.notes)
    for name in ("a gif", "empty"):
        assert f"class {name!r} has no image that can be read. It keeps its number." in said
    assert "2 files are left out, 'preview.png' first (.gif, .png)" in said
    report = convert(folder, tmp_path / "d", workers=1)
    assert report.notes == found.notes
    assert metadata_of(tmp_path / "d")["classes"]["label"] == ["a gif", "cat", "dog", "empty"]
    assert ShardDataset(tmp_path / "d").column("label").tolist() == [1, 1, 1, 2, 2, 2]


def test_a_flat_folder_has_no_labels(folder, tmp_path, converted):
    flat = tmp_path / "flat"
    shutil.copytree(folder / "cat", flat)
    dataset = converted(flat, with_key=True)
    assert list(dataset.schema) == ["key", "image"]
    assert dataset.column("key") == ["0.png", "1.png", "2.png"]
    assert [sample["image"].unique().item() for sample in dataset] == [0, 1, 2]
    assert "classes" not in dataset.metadata


@pytest.mark.parametrize("name", ["metadata.jsonl", "1.txt", "0.JSON", "labels.csv"])
def test_what_may_tell_more_of_images_is_not_left_out_without_a_word(folder, name):
    (folder / "cat" / name).write_text("")
    (note,) = [one for one in plan(folder, kind="images", workers=1).notes if "empty" not in one]
    assert note.startswith(f"1 file is left out, 'cat/{name}' first")
