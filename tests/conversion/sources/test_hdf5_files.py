"""HDF5 files, written by h5py, and hostile ones."""

import pickle

import numpy as np
import pytest

from gdsload.conversion.sources.hdf5_files import Hdf5Source
from gdsload.errors import FormatError
from tests.conversion.reading import made_by

h5py = pytest.importorskip("h5py")
COUNT = 20


def write(path, **datasets):
    with h5py.File(path, "w") as file:
        for name, value in datasets.items():
            file[name] = value
    return str(path)


def test_equals_what_h5py_reads(tmp_path):
    rng = np.random.default_rng(0)
    x, y = rng.random((COUNT, 2, 3), np.float32), rng.integers(0, 9, COUNT)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        group = file.create_group("some/group")
        group.create_dataset("x", data=x, chunks=(3, 2, 3), compression="gzip")
        group["y"], group["flag"] = y, y > 4
        group["text"] = [f"é{n}" for n in range(COUNT)]
        ragged = group.create_dataset("r", COUNT, h5py.vlen_dtype(np.int32))
        for n in range(COUNT):
            ragged[n] = np.arange(n % 4)
        group.create_group("deeper")
    source = pickle.loads(pickle.dumps(Hdf5Source(str(tmp_path), group="/some/group")))
    assert sum(part.samples for part in source.parts(3000)) == COUNT
    found = made_by(source, 3000)
    assert len(found) > 2
    assert np.array_equal(np.concatenate([one["x"] for one in found]), x)
    assert np.array_equal(np.concatenate([one["y"] for one in found]), y)
    assert np.array_equal(np.concatenate([one["flag"] for one in found]), y > 4)
    assert [text for one in found for text in one["text"]] == [f"é{n}" for n in range(COUNT)]
    lists = [part.tolist() for one in found for part in np.split(one["r"][0], one["r"][1][1:-1])]
    assert lists == [list(range(n % 4)) for n in range(COUNT)]
    assert found[0]["r"][0].dtype == np.int32


def test_groups_beside_datasets_are_said_to_be_left_out(tmp_path):
    """Of many groups the first ones are named."""
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for name in ("x", "train/more/x", *(f"train/{number:02}/x" for number in range(11)), "test/x", "train/x"):
            file[name] = np.arange(3)
        file.create_group("empty")
    source = Hdf5Source(str(tmp_path))
    said = "{} groups are left out, {}: `group=` takes one alone"
    assert source.notes() == [said.format(2, "'/test', '/train'")]
    first = ", ".join(f"'/train/{number:02}'" for number in range(8))
    assert Hdf5Source(str(tmp_path), group="train").notes() == [said.format(12, f"{first} and 4 more")]
    assert source.only(["x"]).notes() == Hdf5Source(str(tmp_path), group="/train/more").notes() == []


@pytest.mark.parametrize(
    "put",
    [
        lambda file, secret: file.__setitem__("x", h5py.ExternalLink(secret, "x")),
        lambda file, secret: file.create_virtual_dataset("x", virtual(secret)),
        lambda file, secret: file.create_dataset("x", (8,), "i8", external=[(secret, 0, 64)]),
        lambda file, secret: file.update({"deep/out": h5py.ExternalLink(secret, "x"), "x": h5py.SoftLink("/deep/out")}),
    ],
    ids=["link", "virtual", "external", "link to a link"],
)
def test_nothing_of_other_files_is_read(tmp_path, put):
    secret = write(tmp_path / "secret", x=[1])
    with h5py.File(tmp_path / "a.h5", "w") as file:
        put(file, secret)
    with pytest.raises(FormatError, match="'x' is a link to another file"):
        Hdf5Source(str(tmp_path / "a.h5")).parts(1)


def virtual(secret):
    layout = h5py.VirtualLayout((1,), "i8")
    layout[:] = h5py.VirtualSource(secret, "x", (1,))
    return layout


@pytest.mark.parametrize(
    ("datasets", "match"),
    [
        ({"x": [1], "y": [1, 2]}, "different lengths"),
        ({"x": 5}, "different lengths, or none"),
        ({"x": np.zeros(2, [("a", "i4")])}, "no field can have"),
        ({}, "no dataset in group"),
        ({"x": np.zeros((0, 2))}, "not one row"),
    ],
)
def test_refused(tmp_path, datasets, match):
    with pytest.raises(FormatError, match=match):
        Hdf5Source(write(tmp_path / "a.h5", **datasets)).parts(1)


def test_groups_that_may_have_datasets_are_named(tmp_path):
    path = write(tmp_path / "a.h5", **{"data/demo_0/x": [1, 2], "data/demo_1/x": [3]})
    with pytest.raises(FormatError, match=r"no dataset in group '/'. Pass one of .* in it as `group=`: '/data'\."):
        Hdf5Source(path).parts(1)
    with pytest.raises(FormatError, match="`group=`: '/data/demo_0', '/data/demo_1'"):
        Hdf5Source(path, group="data").parts(1)
    assert made_by(Hdf5Source(path, group="/data/demo_0"))[0]["x"].tolist() == [1, 2]


def test_cut_short_anywhere(tmp_path):
    path = tmp_path / "a.h5"
    write(path, x=np.arange(500))
    whole = path.read_bytes()
    for end in range(0, len(whole), 601):
        path.write_bytes(whole[:end])
        with pytest.raises(FormatError, match="cannot be read"):
            made_by(Hdf5Source(str(path)))


def test_what_is_beside_the_fields_that_are_wanted_does_not_matter(tmp_path):
    with h5py.File(tmp_path / "t.h5", "w") as file:
        file["x"], file["y"], file["mean"], file["names"] = np.arange(3), np.ones((3, 2)), 0.5, [b"a"]
        file["elsewhere"] = h5py.ExternalLink("other.h5", "x")
    source = Hdf5Source(str(tmp_path / "t.h5"))
    assert [one["y"].shape for one in made_by(source.only(["y", "x"]))] == [(3, 2)]
    with h5py.File(tmp_path / "t.h5", "a") as file:
        del file["elsewhere"]
    with pytest.raises(FormatError, match="'x' 3, 'y' 3. .* choose those of one length, `fields="):
        source.parts(1)


def test_rows_of_no_bytes_are_refused(tmp_path):
    with h5py.File(tmp_path / "t.h5", "w") as file:
        file.create_dataset("x", (2**40, 0), "f4", chunks=(1024, 1), maxshape=(None, None))
    with pytest.raises(FormatError, match="rows of no bytes"):
        Hdf5Source(str(tmp_path / "t.h5")).parts(2**20)


def test_netcdf_3_is_named(tmp_path):
    (tmp_path / "x.nc").write_bytes(b"CDF\1" + bytes(28))
    with pytest.raises(FormatError, match="a file of netCDF 3, which is not HDF5.*nccopy -k netCDF-4 /"):
        Hdf5Source(str(tmp_path / "x.nc")).parts(100)
