"""NumPy arrays: which of them are fields."""

from __future__ import annotations

import numpy as np
import pytest

import gdsload
from gdsload.errors import FormatError, OptionError


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
