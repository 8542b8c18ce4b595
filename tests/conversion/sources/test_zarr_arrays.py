"""Zarr arrays, written by zarr, and hostile ones."""

import json
import pickle

import numpy as np
import pytest

from gdsload.conversion.sources.zarr_arrays import ZarrSource
from gdsload.errors import FormatError
from tests.conversion.contents import Evil
from tests.conversion.reading import items_of, made_by

zarr = pytest.importorskip("zarr")
COUNT = 50


@pytest.mark.parametrize("version", [2, 3])
def test_equals_what_zarr_reads(tmp_path, version):
    rng = np.random.default_rng(0)
    group = zarr.open_group(str(tmp_path / "a.zarr"), mode="w", zarr_format=version)
    columns = {"y": rng.integers(0, 9, COUNT), "x": rng.random((COUNT, 2, 3), np.float32)}
    for name, column in columns.items():
        zarr.create_array(group.store, name=name, data=column, chunks=(7, *column.shape[1:]), zarr_format=version)
    source = pickle.loads(pickle.dumps(ZarrSource(str(tmp_path / "a.zarr"))))
    parts = source.parts(14 * 40)
    assert [part.where[0] % 7 for part in parts] == [0] * len(parts)
    assert sum(part.samples for part in parts) == COUNT
    found = made_by(source, 14 * 40)
    assert len(found) > 2
    for name, column in columns.items():
        assert np.array_equal(np.concatenate([one[name] for one in found]), column)
        assert found[0][name].dtype == column.dtype


def test_groups_beside_arrays_are_said_to_be_left_out(tmp_path):
    group = zarr.open_group(str(tmp_path / "a.zarr"), mode="w")
    for name in ("x", "test/x"):
        zarr.create_array(group.store, name=name, data=np.arange(3))
    source, path = ZarrSource(str(tmp_path / "a.zarr")), str(tmp_path / "a.zarr" / "test")
    assert source.notes() == ["1 group is left out, 'test': the path of one takes it alone"]
    assert source.only(["x"]).notes() == ZarrSource(path).notes() == []
    assert made_by(ZarrSource(path))[0]["x"].tolist() == [0, 1, 2]


def test_a_single_array_is_called_after_its_folder(tmp_path):
    """Its attributes may be about pickles."""
    array, about = np.arange(6).reshape(3, 2), {"about": "Pickles, and a pickle jar"}
    zarr.create_array(str(tmp_path / "depth.zarr"), data=array, attributes=about)
    (found,) = made_by(ZarrSource(str(tmp_path / "depth.zarr")))
    assert np.array_equal(found["depth"], array)


@pytest.mark.parametrize(
    "change",
    [
        {"filters": [{"id": "pickle", "protocol": 5}]},
        {"compressor": {"id": "pickle"}},
        {"dtype": "|O", "filters": [{"id": "pickle"}]},
    ],
    ids=["filter", "compressor", "objects"],
)
def test_pickles_are_never_loaded(tmp_path, change):
    path = tmp_path / "a.zarr"
    zarr.create_array(str(path), data=np.arange(3), zarr_format=2, compressors=None)
    (path / ".zarray").write_text(json.dumps({**json.loads((path / ".zarray").read_text()), **change}))
    (path / "0").write_bytes(pickle.dumps(Evil()))
    with pytest.raises(FormatError, match="never loaded|cannot be opened|no field can have"):
        made_by(ZarrSource(str(path)))


def test_damaged(tmp_path):
    path = tmp_path / "a.zarr"
    zarr.create_array(str(path), data=np.arange(300), chunks=(100,))
    chunk = path / "c" / "1"
    chunk.write_bytes(chunk.read_bytes()[:-9])
    source = ZarrSource(str(path))
    items = items_of(source, 1)
    assert np.array_equal(items[0].make()["a"], np.arange(100))
    with pytest.raises(FormatError, match="rows 100 to 199 cannot be read"):
        items[1].make()
    (path / "zarr.json").write_text("{")
    with pytest.raises(FormatError, match="cannot be opened"):
        source.parts(1)


def test_refused(tmp_path):
    group = zarr.open_group(str(tmp_path / "g"), mode="w")
    with pytest.raises(FormatError, match="no array"):
        ZarrSource(str(tmp_path / "g")).parts(1)
    zarr.create_array(group.create_group("deep").store, name="deep/x", data=np.arange(2))
    with pytest.raises(FormatError, match="In it are the groups 'deep': pass the path of one"):
        ZarrSource(str(tmp_path / "g")).parts(1)
    assert len(ZarrSource(str(tmp_path / "g" / "deep")).parts(1)) == 1
    zarr.create_array(group.store, name="a", data=np.arange(3))
    zarr.create_array(group.store, name="b", data=np.arange(4))
    with pytest.raises(FormatError, match="different lengths"):
        ZarrSource(str(tmp_path / "g")).parts(1)
    zarr.save_array(str(tmp_path / "none"), np.zeros((0, 3)))
    with pytest.raises(FormatError, match="not one row"):
        ZarrSource(str(tmp_path / "none")).parts(1)


@pytest.mark.parametrize("shape", [(2**50,), (10, 2**50), (2**50, 0), (2**40, 0), (4, *[2] * 40)])
def test_more_chunks_or_rows_than_a_store_can_hold_are_refused(tmp_path, shape):
    chunks = (2**39, 1) if shape == (2**40, 0) else (1,) * len(shape)
    zarr.create_array(str(tmp_path / "a.zarr"), shape=shape, chunks=chunks, dtype="f4")
    with pytest.raises(FormatError, match="promises [0-9]+ chunks, but the store has 1 files|rows of no bytes"):
        ZarrSource(str(tmp_path / "a.zarr")).parts(2**20)


def test_chunks_that_were_never_written_are_the_fill_value(tmp_path):
    array = zarr.create_array(str(tmp_path / "a.zarr"), shape=(2000,), chunks=(1,), dtype="i4", fill_value=7)
    array[1999] = 1
    assert made_by(ZarrSource(str(tmp_path / "a.zarr")))[0]["a"].tolist() == [7] * 1999 + [1]
