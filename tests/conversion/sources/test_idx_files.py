"""IDX files as MNIST has them, packed and not, and damaged ones."""

import gzip
import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from gdsload.conversion.recognise import recognise
from gdsload.conversion.sources.idx_files import IdxSource
from gdsload.errors import FormatError, OptionError

CODES = {"u1": (8, "ubyte"), "i1": (9, "byte"), ">i2": (11, "short"), ">i4": (12, "int"), ">f4": (13, "float"), ">f8": (14, "double")}  # fmt: skip


def write(folder, name, array, gz=False):
    """A file of an array; its element type and dimensions are the end of its name."""
    code, word = CODES[array.dtype.str.lstrip("|")]
    header = struct.pack(f">BBBB{array.ndim}I", 0, 0, code, array.ndim, *array.shape)
    content = header + array.tobytes()
    folder.mkdir(exist_ok=True)
    path = folder / f"{name}-idx{array.ndim}-{word}{'.gz' if gz else ''}"
    path.write_bytes(gzip.compress(content) if gz else content)
    return str(path)


@pytest.fixture
def mnist(tmp_path):
    """The four files, of fewer digits."""
    rng, found = np.random.default_rng(0), {}
    for split, count in (("train", 30), ("t10k", 10)):
        images, labels = rng.integers(0, 256, (count, 28, 28), np.uint8), rng.integers(0, 10, count, np.uint8)
        write(tmp_path / "raw", f"{split}-images", images, gz=True)
        write(tmp_path / "raw", f"{split}-labels", labels, gz=True)
        found[split] = images, labels
    return tmp_path / "raw", found


def test_mnist(mnist, samples_in):
    folder, expected = mnist
    assert recognise(str(folder)) == recognise(str(folder.parent)) == "idx"
    with pytest.raises(OptionError, match="several splits: 'train', 't10k'"):
        IdxSource(str(folder)).parts(1)
    for split, (images, labels) in expected.items():
        found = samples_in(IdxSource(str(folder), split=split), 2000)
        assert np.array_equal(np.stack([one["image"] for one in found])[:, 0], images)
        assert [one["label"] for one in found] == labels.tolist()
        assert found[0]["image"].shape == (1, 28, 28)
    assert len(samples_in(IdxSource(str(folder), split="all"))) == 40


def test_packed_and_unpacked_side_by_side(mnist, samples_in):
    folder, (_, (images, labels)) = mnist[0], mnist[1].values()
    write(folder, "t10k-images", images)
    write(folder, "t10k-labels", labels)
    assert len(samples_in(IdxSource(str(folder), split="t10k"))) == 10


@settings(max_examples=25)
@given(
    st.sampled_from(sorted(CODES)).flatmap(
        lambda dtype: arrays.arrays(dtype, arrays.array_shapes(min_dims=1, max_dims=4, max_side=5))
    ),
    st.booleans(),
)
def test_every_element_type(tmp_path_factory, samples_in, array, gz):
    path = write(tmp_path_factory.mktemp("i"), "train-things", array, gz)
    found = samples_in(IdxSource(path), 10)
    assert np.array_equal(np.stack([one["things"] for one in found]), array, equal_nan=array.dtype.kind == "f")


def test_several_datasets_are_never_merged(tmp_path, samples_in):
    for name in ("emnist-letters", "emnist-digits"):
        for split in ("train", "test"):
            write(tmp_path / "e", f"{name}-{split}-labels", np.full(3, len(name), np.uint8))
    with pytest.raises(OptionError, match="several datasets: emnist-digits-train, emnist-letters-train"):
        IdxSource(str(tmp_path / "e"), split="train").parts(1)
    found = samples_in(IdxSource(str(tmp_path / "e"), split="train", prefix="emnist-letters"))
    assert [one["label"] for one in found] == [14] * 3


@pytest.mark.parametrize("gz", [False, True])
def test_damaged_files(tmp_path, survives_damage, gz):
    path = write(tmp_path / "i", "train-images", np.zeros((9, 7, 5), np.uint8), gz)
    assert survives_damage(path, lambda: IdxSource(path)) > 15
    for content, match in (
        (b"\0\0\x08\x03" + b"\xff" * 12, "promises"),
        (b"", "ends too early"),
        (b"\0\0\x07\x01" + bytes(4), "does not begin as an IDX file"),
        (struct.pack(">BBBBI", 0, 0, 8, 1, 3) + bytes(4), "promises 3 bytes"),
    ):
        (tmp_path / "i").joinpath(path).write_bytes(gzip.compress(content) if gz else content)
        with pytest.raises(FormatError, match=f"{match}|more than the 3 bytes|ends too early"):
            IdxSource(path).parts(1)
