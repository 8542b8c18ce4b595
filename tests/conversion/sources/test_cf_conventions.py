"""Attributes of numbers and dimensions, in HDF5 as netCDF writes it, and in Zarr as xarray does."""

import base64
import struct

import numpy as np
import pytest

import gdsload
from gdsload.conversion.sources.cf_conventions import StoredNumbers
from gdsload.errors import FormatError, SchemaError

h5py = pytest.importorskip("h5py")
zarr = pytest.importorskip("zarr")

TEMPERATURES = np.array([[100, 200, 0, 1], [300, -32767, 2, 3], [5, 6, 7, 8], [9, 10, 11, 12]], np.int16)
PACKED = {"scale_factor": 0.01, "add_offset": 273.15, "_FillValue": np.int16(-32767), "units": "K"}
VALUES = np.where(TEMPERATURES == -32767, np.nan, TEMPERATURES * 0.01 + 273.15)
TIME = {"units": "days since 2000-01-01", "calendar": "standard"}


def netcdf(path, latitudes=4):
    """As netCDF-4 lays it out: variables whose dimensions are scales; one dimension has no values."""
    with h5py.File(path, "w") as file:
        file["time"], file["lat"] = np.arange(4), np.linspace(0, 1, latitudes)
        file["level"] = np.zeros(4)
        for name in ("time", "lat"):
            file[name].make_scale(name)
        file["level"].make_scale("This is a netCDF dimension but not a netCDF variable.         4")
        file["t2m"] = TEMPERATURES[:, :latitudes]
        file["count"] = np.arange(4, dtype=np.int32)
        for name, dimensions in (("t2m", ("time", "lat")), ("count", ("time",))):
            for place, dimension in enumerate(dimensions):
                file[name].dims[place].attach_scale(file[dimension])
        file["t2m"].attrs.update(PACKED)
        file["time"].attrs.update(TIME)
    return str(path)


def xarrays(path, version, latitudes=4):
    """As xarray writes it to Zarr."""
    group = zarr.open_group(str(path), mode="w", zarr_format=version)
    arrays = {
        "time": (np.arange(4), ["time"], TIME), "lat": (np.linspace(0, 1, latitudes), ["lat"], {}),
        "t2m": (TEMPERATURES[:, :latitudes], ["time", "lat"], {**PACKED, "_FillValue": -32767}),
        "count": (np.arange(4, dtype=np.int32), ["time"], {}),
    }  # fmt: skip
    for name, (values, dimensions, attributes) in arrays.items():
        named = {"dimension_names": dimensions} if version == 3 else {}
        attributes = dict(attributes) if version == 3 else {**attributes, "_ARRAY_DIMENSIONS": dimensions}  # noqa: PLW2901
        missing = attributes.pop("_FillValue", None) if version == 2 else 0  # that is where xarray has it
        options = {"shape": values.shape, "dtype": values.dtype, "chunks": values.shape, "fill_value": missing}
        made = group.create_array(name, attributes=attributes, **options, **named)
        made[...] = values
    return str(path)


KINDS = {
    "hdf5": lambda folder, **options: netcdf(folder / "x.nc", **options),
    "zarr 2": lambda folder, **options: xarrays(folder / "x.zarr", 2, **options),
    "zarr 3": lambda folder, **options: xarrays(folder / "x.zarr", 3, **options),
}


@pytest.mark.parametrize("latitudes", [4, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_stored_numbers_are_said_or_unpacked_and_other_coordinates_left_out(tmp_path, converted, kind, latitudes):
    """Also a coordinate that happens to be as long as there are samples."""
    path = KINDS[kind](tmp_path, latitudes=latitudes)
    report = gdsload.convert(path, tmp_path / "raw", workers=1)
    dataset = gdsload.ShardDataset(tmp_path / "raw")
    assert list(dataset.schema) == ["count", "t2m", "time"]
    assert np.array_equal(dataset.column("t2m").numpy(), TEMPERATURES[:, :latitudes])
    meaning = "the number * 0.01 + 273.15 and missing for -32767"
    stored = f"'t2m' has the numbers as they are stored; by its attributes a value is {meaning}"
    assert report.notes == (
        f"{stored}: `unpack=True` makes values of them",
        "'time' is in days since 2000-01-01 (standard)",
        "'lat' is left out: it belongs to another dimension than the first, and `metadata={...}` may keep it",
    )
    time = {"time": "days since 2000-01-01 (standard)"}
    assert dataset.metadata["units"] == {"t2m": f"K, where a value is {meaning}", **time}
    dataset = converted(path, unpack=True)
    assert np.array_equal(dataset.column("t2m").numpy(), VALUES[:, :latitudes], equal_nan=True)
    assert dataset.column("time").tolist() == [0, 1, 2, 3]
    assert dataset.metadata["units"] == {"t2m": "K", **time}


@pytest.mark.parametrize("kind", KINDS)
def test_arrays_whose_first_dimensions_differ_are_refused(tmp_path, converted, kind):
    path = KINDS[kind](tmp_path)
    if kind == "hdf5":
        with h5py.File(path, "a") as file:
            file["bounds"] = np.zeros((4, 2))
            file["bounds"].dims[0].attach_scale(file["lat"])
    else:
        names = ["lat", "b"]
        named = {"dimension_names": names} if kind == "zarr 3" else {"attributes": {"_ARRAY_DIMENSIONS": names}}
        zarr.open_group(path, mode="a").create_array("bounds", shape=(4, 2), dtype="f8", chunks=(4, 2), **named)
    said = r"first dimensions of the arrays differ: .*`fields=\['count', 't2m', 'time'\]`"
    with pytest.raises(FormatError, match=said):
        converted(path)
    assert len(converted(path, fields=["count", "t2m", "time"])) == 4


def test_files_that_are_packed_in_other_ways_are_each_unpacked_as_they_say(tmp_path, converted):
    (tmp_path / "in").mkdir()
    for number, scale in enumerate((0.5, 0.25)):
        with h5py.File(tmp_path / f"in/{number}.h5", "w") as file:
            file["x"] = np.array([4, 8], np.int16)
            file["x"].attrs["scale_factor"] = scale
    said = r"number \* 0.25 .*, but the number \* 0.5 .* two things. Pass `unpack=True`"
    with pytest.raises(FormatError, match=said):
        gdsload.convert(tmp_path / "in", tmp_path / "raw", workers=1)
    assert converted(tmp_path / "in", unpack=True).column("x").tolist() == [2.0, 4.0, 1.0, 2.0]


@pytest.mark.parametrize("unpack", [False, True])
def test_files_whose_numbers_count_other_things_are_refused(tmp_path, converted, unpack):
    for month in (1, 2):
        with h5py.File(tmp_path / f"{month}.h5", "w") as file:
            file["x"], file["time"] = np.arange(2), np.arange(2)
            file["time"].attrs["units"] = f"days since 2000-0{month}-01"
    with pytest.raises(FormatError, match=r"'time' a value is days since 2000-02-01, but .*-01-01 in .*`fields="):
        converted(tmp_path, unpack=unpack)
    assert len(converted(tmp_path, unpack=unpack, fields=["x"])) == 4


@pytest.mark.parametrize(
    ("attributes", "numbers", "wanted"),
    [
        ({"_FillValue": [-1]}, np.array([1, -1], np.int32), np.array([1, np.nan])),
        ({"missing_value": np.float32(1e20)}, np.array([1, 1e20], np.float32), np.array([1, np.nan], np.float32)),
        ({"_FillValue": np.nan}, np.array([1, np.nan], np.float32), np.array([1, np.nan], np.float32)),
        (
            {"_FillValue": base64.b64encode(struct.pack("<d", -9.0)).decode()},
            np.array([1, -9.0]),
            np.array([1, np.nan]),
        ),
        ({"_Unsigned": "true"}, np.array([1, -1], np.int8), np.array([1, 255], np.uint8)),
        ({"_Unsigned": b"true", "_FillValue": -1}, np.array([1, -1, -2], np.int8), np.array([1, np.nan, 254])),
        ({"_Unsigned": "false"}, np.array([1, 255], np.uint8), np.array([1, -1], np.int8)),
        ({"scale_factor": b"2", "add_offset": "1"}, np.array([1, 2], np.uint8), np.array([3.0, 5.0])),
        ({"scale_factor": 1.0, "add_offset": 0}, np.array([2**53 + 1]), np.array([2**53 + 1])),
        ({"_FillValue": -(2**63) + 2}, np.array([-(2**63) + 2, 5]), np.array([np.nan, 5])),
        ({"_FillValue": {}, "units": 5}, np.array([1, 2]), np.array([1, 2])),
        ({"scale_factor": 2.0}, np.array([True]), np.array([True])),
    ],
)
def test_what_attributes_say(attributes, numbers, wanted):
    found = StoredNumbers.of(attributes, numbers.dtype).unpacked(numbers, "x")
    assert (found.dtype, found.tolist()) == (wanted.dtype, pytest.approx(wanted.tolist(), rel=0, abs=0, nan_ok=True))


@pytest.mark.parametrize("given", [np.array([0.5, 2.0]), "a"])
def test_factors_that_are_no_number_are_refused(given):
    with pytest.raises(FormatError, match="the attribute scale_factor is .*, no single number"):
        StoredNumbers.of({"scale_factor": given}, np.dtype(np.int16))


def test_whole_numbers_that_float64_does_not_have_are_not_unpacked():
    with pytest.raises(SchemaError, match="9007199254740993 at"):
        StoredNumbers.of({"_FillValue": -1}, np.dtype(np.int64)).unpacked(np.array([2**53 + 1, -1]), "x")


def test_bytes_of_a_fixed_length_are_noted_and_opaque_ones_whole(tmp_path):
    raw = [b"a\0\0", b"bcd", b"\0e\0"]
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["s"], file["v"] = np.array(raw, "S3"), np.array(raw, "V3")
        file["text"] = np.array(["é".encode(), b"b", b"c"], h5py.string_dtype("utf-8", 5))
    report = gdsload.convert(tmp_path / "x.h5", tmp_path / "out", workers=1)
    dataset = gdsload.ShardDataset(tmp_path / "out")
    assert (dataset.column("v"), dataset.column("s")) == (raw, [b"a", b"bcd", b"\0e"])
    assert dataset.column("text") == ["é", "b", "c"]
    assert [note[:33] for note in report.notes] == ["'s' has bytes of a fixed length ("]
