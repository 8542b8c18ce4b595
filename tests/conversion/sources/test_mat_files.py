"""MATLAB files, of version 5 by scipy and of version 7.3 as MATLAB lays them out, and damaged ones."""

import numpy as np
import pytest

from gdsload.conversion.sources.mat_files import MatSource
from gdsload.errors import FormatError

io = pytest.importorskip("scipy.io")
h5py = pytest.importorskip("h5py")
COUNT = 12
RNG = np.random.default_rng(0)
ARRAYS = {
    "x": RNG.random((COUNT, 2, 3)),
    "single": RNG.random((COUNT, 1)).astype(np.float32),
    "flag": np.arange(COUNT)[:, None] > 4,
    **{name: RNG.integers(0, 100, (COUNT, 2)).astype(name) for name in ("int8", "uint8", "int16", "uint16")},
    **{name: RNG.integers(0, 100, (COUNT, 1)).astype(name) for name in ("int32", "uint32", "int64", "uint64")},
    "complex": np.array([1 + 1j, np.inf - 1j, complex(2, np.inf), 0] * 3).reshape(COUNT, 1),
}
CLASSES = {"float64": "double", "float32": "single", "bool": "logical"}


def write_v73(path, variables):
    """As `save -v7.3` does: HDF5 after a block of 512 bytes, dimensions in reverse, the class as an attribute."""
    with h5py.File(path, "w", userblock_size=512) as file:
        for name, array in variables.items():
            made = file.create_dataset(name, data=array.astype("u1").T if array.dtype == bool else array.T)
            made.attrs["MATLAB_class"] = np.bytes_(CLASSES.get(array.dtype.name, array.dtype.name))
    content = bytearray(path.read_bytes())
    content[:128] = b"MATLAB 7.3 MAT-file".ljust(124) + b"\0\2IM"
    path.write_bytes(content)
    return str(path)


@pytest.mark.parametrize("form", ["5", "5 packed", "7.3"])
def test_every_class_of_numbers(tmp_path, samples_in, form):
    arrays = {name: array for name, array in ARRAYS.items() if form != "7.3" or name != "complex"}
    path = tmp_path / "a.mat"
    if form == "7.3":
        write_v73(path, arrays)
    else:
        io.savemat(path, arrays, do_compression=form == "5 packed")
    source = MatSource(str(path)).only(list(arrays))
    assert len(source.parts(500)) > 2
    found = samples_in(source, 500)
    for name, array in arrays.items():
        assert np.array_equal(np.stack([one[name] for one in found]), array)
        assert found[0][name].dtype == array.dtype, name
    assert len(samples_in(MatSource(str(path)))) == COUNT


def test_doubles_that_matlab_has_stored_in_bytes_are_doubles(tmp_path, samples_in):
    """MATLAB packs them into fewer bytes in some files and not in others; the class of the variable stays."""
    path, stored, double = tmp_path / "a.mat", 9, 6  # MATLAB's numbers of uint8 and double
    io.savemat(path, {"x": np.arange(COUNT, dtype=np.uint8)[:, None]})
    content = bytearray(path.read_bytes())
    content[content.index(bytes([6, 0, 0, 0, 8, 0, 0, 0, stored])) + 8] = double
    path.write_bytes(content)
    first, *_ = samples_in(MatSource(str(path)))
    assert first["x"].dtype == np.float64


@pytest.mark.parametrize("form", ["5", "7.3"])
def test_the_last_dimension(tmp_path, samples_in, form):
    images, labels = RNG.integers(0, 256, (4, 4, 3, COUNT), np.uint8), RNG.integers(0, 9, (COUNT, 1), np.uint8)
    if form == "5":
        io.savemat(tmp_path / "a.mat", {"X": images, "y": labels})
    else:
        write_v73(tmp_path / "a.mat", {"X": images, "y": labels})
    found = samples_in(MatSource(str(tmp_path / "a.mat"), last=["X"]))
    assert np.array_equal(np.stack([one["X"] for one in found]), images.transpose(3, 0, 1, 2))
    assert [one["y"].tolist() for one in found] == labels.tolist()
    with pytest.raises(FormatError, match="different lengths"):
        MatSource(str(tmp_path / "a.mat")).parts(1)


@pytest.mark.parametrize(
    ("value", "kind"),
    [({"a": 1}, "struct"), (np.array([1, "x"], object), "cell"), ("text", "char"), (None, "sparse")],
)
def test_what_is_no_array_of_numbers(tmp_path, samples_in, value, kind):
    value = pytest.importorskip("scipy.sparse").eye(3).tocsc() if value is None else value
    io.savemat(tmp_path / "a.mat", {"x": np.zeros((3, 1)), "bad": value})
    with pytest.raises(FormatError, match=f"variable 'bad' is a {kind}, no array of numbers.*fields="):
        MatSource(str(tmp_path / "a.mat")).parts(1)
    assert len(samples_in(MatSource(str(tmp_path / "a.mat")).only(["x"]))) == 3


def test_nothing_of_other_files_is_read(tmp_path):
    secret = tmp_path / "secret.mat"
    write_v73(secret, {"x": np.zeros((3, 1))})
    write_v73(tmp_path / "a.mat", {"y": np.zeros((3, 1))})
    with h5py.File(tmp_path / "a.mat", "a") as file:
        file["x"] = h5py.ExternalLink(str(secret), "x")
    with pytest.raises(FormatError, match="'x' is a link to another file"):
        MatSource(str(tmp_path / "a.mat")).parts(1)


@pytest.mark.parametrize("packed", [False, True])
def test_damaged_files(tmp_path, damaged_in_a_process, packed):
    io.savemat(tmp_path / "a.mat", {"x": RNG.random((20, 3)), "y": np.arange(20)[:, None]}, do_compression=packed)
    damaged_in_a_process(tmp_path / "a.mat", tmp_path / "a.mat")


def test_what_is_no_file_of_version_5(tmp_path):
    for content, match in (
        (b"", "does not begin as a MATLAB file of version 5; save it with -v7"),
        (bytes(200), "does not begin as a MATLAB file"),
        (b"MATLAB 5.0".ljust(124) + b"\0\1IM" + bytes(7), "the MATLAB file cannot be read: "),
        (b"MATLAB 5.0".ljust(124) + b"\0\1IM" + b"\x0e\0\0\0\xff\xff\xff\xff", "the MATLAB file cannot be read: "),
        (b"MATLAB 5.0".ljust(124) + b"\0\1IM", "there is no variable in it"),
    ):
        (tmp_path / "a.mat").write_bytes(content)
        with pytest.raises(FormatError, match=match):
            MatSource(str(tmp_path / "a.mat")).parts(1)


def test_variables_that_come_twice(tmp_path, samples_in):
    io.savemat(tmp_path / "a.mat", {"x": np.zeros((3, 1)), "y": np.ones((3, 1))})
    with open(tmp_path / "a.mat", "rb+") as file:
        content = file.read()
        file.write(content[128:])
    with pytest.raises(FormatError, match="two variables have one name"):
        samples_in(MatSource(str(tmp_path / "a.mat")))


def test_a_row_of_labels_says_how_it_is_taken(tmp_path, samples_in):
    path = str(tmp_path / "a.mat")
    io.savemat(path, {"x": np.zeros((5, 2)), "y": np.arange(5)[None]})
    with pytest.raises(FormatError, match=r"variable 'y' is a row of 5 values, .* Pass `last=\['y'\]`"):
        MatSource(path).parts(1)
    assert [one["y"].tolist() for one in samples_in(MatSource(path, last=["y"]))] == [[n] for n in range(5)]
