"""NumPy arrays: which of them are fields."""

from __future__ import annotations

import numpy as np
import pytest

import gdsload
from gdsload.errors import FormatError, OptionError, ReadError


@pytest.mark.parametrize("archive", [True, False])
def test_fields_are_chosen_before_lengths_are_compared(tmp_path, archive):
    arrays = {"x": np.arange(6).reshape(3, 2), "y": np.arange(3.0), "mean": np.float64(0.5), "names": np.array([None])}
    place = tmp_path / ("t.npz" if archive else "d")
    if archive:
        np.savez(place, **arrays)
    else:
        place.mkdir()
        for name, array in arrays.items():
            np.save(place / f"{name}.npy", array)
    gdsload.convert(place, tmp_path / "out", fields=["y", "x"], workers=1)
    dataset = gdsload.ShardDataset(tmp_path / "out")
    assert list(dataset.schema) == ["y", "x"]
    assert dataset.read_batch([0, 1, 2])["x"].tolist() == arrays["x"].tolist()
    with pytest.raises(OptionError, match="there is no field 'means'. Did you mean 'mean'"):
        gdsload.convert(place, tmp_path / "no", fields=["means"])
    with pytest.raises(FormatError, match=r"different lengths.*fields=\['x', 'y'\]"):
        gdsload.convert(place, tmp_path / "no", fields=["x", "y", "mean"])
    with pytest.raises(FormatError, match="never loaded"):
        gdsload.convert(place, tmp_path / "no")


def per_sample(folder, count=12, **names):
    """A file for each sample, in the folders that `names` has for them."""
    arrays = [np.random.default_rng(n).random((3 + n % 2, 2), np.float32) for n in range(count)]
    for number, array in enumerate(arrays):
        place = folder / names.get("folders", [""])[number % len(names.get("folders", [""]))]
        place.mkdir(parents=True, exist_ok=True)
        np.save(place / f"{number:05d}.npy", array)
    return arrays


def test_a_file_for_each_sample_is_never_taken_for_fields(tmp_path):
    arrays = per_sample(tmp_path / "d")
    with pytest.raises(OptionError, match=r"12 arrays whose names differ in numbers alone\. Pass each='file'"):
        gdsload.convert(tmp_path / "d", tmp_path / "out", workers=1)
    gdsload.convert(tmp_path / "d", tmp_path / "out", each="file", workers=1, shard_bytes=200)
    dataset = gdsload.ShardDataset(tmp_path / "out")
    assert dataset.schema["array"].shape == (None, 2)
    assert all(np.array_equal(one["array"], array) for one, array in zip(dataset, arrays, strict=True))


def test_fields_that_are_numbered_may_be_meant(tmp_path):
    for name in ("x1", "x2"):
        np.save(tmp_path / f"{name}.npy", np.arange(5))
    gdsload.convert(tmp_path, tmp_path / "a", each="row", workers=1)
    gdsload.convert(tmp_path, tmp_path / "b", fields=["x1", "x2"], workers=1)
    for name in "ab":
        assert list(gdsload.ShardDataset(tmp_path / name).schema) == ["x1", "x2"]


def test_folders_of_files_are_classes(tmp_path):
    arrays = per_sample(tmp_path / "d", folders=["b", "a"])
    with pytest.raises(OptionError, match=r"its 12 arrays are archives, or lie in folders\. Pass each='file'"):
        gdsload.convert(tmp_path / "d", tmp_path / "out", workers=1)
    gdsload.convert(tmp_path / "d", tmp_path / "out", each="file", workers=1)
    dataset = gdsload.ShardDataset(tmp_path / "out")
    assert dataset.column("label").tolist() == [0] * 6 + [1] * 6
    assert dataset.metadata["classes"] == {"label": ["a", "b"]}
    assert all(
        np.array_equal(one["array"], array) for one, array in zip(dataset, arrays[1::2] + arrays[::2], strict=True)
    )


def test_an_archive_for_each_sample(tmp_path):
    (tmp_path / "d").mkdir()
    for number in range(5):
        np.savez_compressed(tmp_path / "d" / f"s{number}.npz", x=np.full((2, 2), number), y=number)
    gdsload.convert(tmp_path / "d", tmp_path / "out", each="file", workers=1, fields=["y", "x"])
    found = gdsload.ShardDataset(tmp_path / "out")
    assert (list(found.schema), found.column("y").tolist(), found[3]["x"].tolist()) == (
        ["y", "x"],
        list(range(5)),
        [[3, 3]] * 2,
    )
    content = bytearray((tmp_path / "d" / "s2.npz").read_bytes())
    content[60] ^= 1
    (tmp_path / "d" / "s2.npz").write_bytes(content)
    with pytest.raises(ReadError, match=r"s2.npz: the arrays cannot be read"):
        gdsload.convert(tmp_path / "d", tmp_path / "bad", each="file", workers=1)


def test_what_a_sample_is_has_two_words(tmp_path):
    np.save(tmp_path / "x.npy", np.arange(5))
    with pytest.raises(OptionError, match='each is \'sample\'. Supported are "row" and "file"'):
        gdsload.convert(tmp_path / "x.npy", tmp_path / "out", each="sample")
