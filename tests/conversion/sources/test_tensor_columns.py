"""Columns of Arrow: its tensors, whose dimensions may be in another order in memory; holes in numbers; no class."""

from __future__ import annotations

import math

import numpy as np
import pytest

import gdsload
from gdsload.errors import FormatError

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")


def tensors(order, shape=(2, 3, 4)):
    """Two of Arrow's tensors, whose dimensions are in memory in another order."""
    size = math.prod(shape)
    storage = pa.array([list(range(size)), list(range(size, 2 * size))], pa.list_(pa.int32(), size))
    return pa.ExtensionArray.from_storage(pa.fixed_shape_tensor(pa.int32(), shape, permutation=order), storage)


@pytest.mark.parametrize("order", [[0, 1, 2], [0, 2, 1], [1, 0, 2], [2, 1, 0]])
def test_dimensions_of_arrows_tensors_are_in_the_order_that_these_have(tmp_path, order):
    array = tensors(order)
    pq.write_table(pa.table({"x": pa.chunked_array([array, array])}), tmp_path / "t.parquet")
    gdsload.convert(tmp_path / "t.parquet", tmp_path / "out", workers=1)
    wanted = np.concatenate([array.to_numpy_ndarray()] * 2)
    assert np.array_equal(gdsload.ShardDataset(tmp_path / "out").column("x").numpy(), wanted)


@pytest.mark.parametrize("order", [[1, 2, 0], [2, 0, 1]])
def test_orders_of_dimensions_that_pyarrow_reads_in_two_ways_are_refused(tmp_path, order):
    pq.write_table(pa.table({"x": tensors(order), "n": [1, 2]}), tmp_path / "t.parquet")
    with pytest.raises(FormatError, match=r"column 'x' .* is read in two ways. Leave it out: fields=\['n'\]"):
        gdsload.convert(tmp_path / "t.parquet", tmp_path / "out", workers=1)


LARGE = [2**53 + 1, None, -(2**53) - 1]


@pytest.mark.parametrize(
    "make",
    [
        lambda: pa.table({"n": LARGE}),
        lambda: pa.table({"n": pa.chunked_array([LARGE[:2], LARGE[2:]], pa.int64())}),
        lambda: pytest.importorskip("pandas").DataFrame({"n": LARGE}, dtype="Int64"),
        lambda: pytest.importorskip("pandas").DataFrame({"n": LARGE}, dtype="object"),
        lambda: pytest.importorskip("polars").DataFrame({"n": LARGE}),
    ],
    ids=["Arrow", "chunks", "pandas", "objects", "polars"],
)
def test_large_whole_numbers_with_holes_are_never_floats(converted, make):
    assert converted(make(), fill={"n": 2**62 + 1}).column("n").tolist() == [2**53 + 1, 2**62 + 1, -(2**53) - 1]


def test_large_whole_numbers_with_holes_in_lists(tmp_path, converted):
    pq.write_table(pa.table({"n": [LARGE, [None, 2**53 + 1]]}), tmp_path / "t.parquet")
    dataset = converted(tmp_path / "t.parquet", fill={"n": -1})
    assert [sample["n"].tolist() for sample in dataset] == [[2**53 + 1, -1, -(2**53) - 1], [-1, 2**53 + 1]]


@pytest.mark.parametrize("form", ["memory", "disk", "parquet"])
@pytest.mark.parametrize("labels", [[0, 1, 1], [0, -1, 1], [0, None, 1]])
def test_samples_without_a_class_are_said_or_refused(tmp_path, form, labels):
    """A negative number is how `datasets` has them; a missing one is a missing value as any other."""
    library = pytest.importorskip("datasets")
    features = library.Features({"label": library.ClassLabel(names=["a", "b"]), "n": library.Value("int64")})
    source = library.Dataset.from_dict({"label": labels, "n": [1, 2, -3]}, features=features)
    if form == "disk":
        source.save_to_disk(tmp_path / "in")
    elif form == "parquet":
        source.to_parquet(tmp_path / "in.parquet")
    place = {"memory": source, "disk": tmp_path / "in", "parquet": tmp_path / "in.parquet"}[form]
    if None in labels:
        with pytest.raises(gdsload.GdsloadError, match="column 'label' has no value"):
            gdsload.convert(place, tmp_path / "out", workers=1)
        return
    report = gdsload.convert(place, tmp_path / "out", workers=1)
    note = "'label' has negative numbers, which stand for samples without a class"
    assert report.notes == ((note,) if -1 in labels else ())
