"""AnnData files, laid out as anndata 0.12 writes them, and damaged ones."""

import h5py
import numpy as np
import pytest

import gdsload
from gdsload.conversion.sources.h5ad_files import H5adSource
from gdsload.errors import FormatError, OptionError

CELLS, GENES = 9, 7
RNG = np.random.default_rng(0)
MATRIX = (RNG.random((CELLS, GENES)) * (RNG.random((CELLS, GENES)) > 0.6)).astype(np.float32)
MATRIX[2] = 0
STRINGS = h5py.string_dtype()


def csr(file, name, matrix, index_type=np.int32, kind="csr_matrix"):
    group = file.create_group(name)
    group.attrs.update({"encoding-type": kind, "encoding-version": "0.1.0", "shape": matrix.shape})
    group["data"] = matrix[matrix != 0]
    group["indices"] = np.nonzero(matrix)[1].astype(index_type)
    group["indptr"] = np.concatenate([[0], np.cumsum((matrix != 0).sum(1))]).astype(index_type)


def frame(file, name, columns, index):
    group = file.create_group(name)
    order = np.array(list(columns), STRINGS) if columns else np.zeros(0)
    group.attrs.update({"encoding-type": "dataframe", "_index": "_index", "column-order": order})
    group.create_dataset("_index", data=index, dtype=STRINGS)
    for key, value in columns.items():
        if isinstance(value, dict):
            inner = group.create_group(key)
            inner.attrs["encoding-type"] = value["type"]
            for part, array in value.items():
                if part != "type":
                    inner[part] = array
        else:
            group[key] = value


COLUMNS = {
    "count": np.arange(CELLS),
    "score": np.linspace(0, 1, CELLS),
    "good": np.arange(CELLS) % 2 == 0,
    "batch": np.array([f"é{n}" for n in range(CELLS)], STRINGS),
    "type": {
        "type": "categorical", "codes": np.array([0, 1, 1, 0, 1, 0, 1, 0, 1], np.int8),
        "categories": np.array(["T", "B"], STRINGS),
    },
}  # fmt: skip


def write(path, *, sparse=True, columns=COLUMNS, matrix=MATRIX, **options):
    with h5py.File(path, "w") as file:
        if sparse:
            csr(file, "X", matrix, **options)
        else:
            file["X"] = matrix
        frame(file, "obs", columns, [f"cell{n}" for n in range(CELLS)])
        frame(file, "var", {}, [f"gene{n}" for n in range(matrix.shape[1])])
        csr(file, "layers/counts", matrix * 2)
    return str(path)


def rebuilt(found):
    dense = np.zeros((len(found), GENES), np.float32)
    for row, one in zip(dense, found, strict=True):
        row[one["indices"]] = one["values"]
    return dense


@pytest.mark.parametrize("index_type", [np.int32, np.int64])
def test_sparse_rows_and_columns(tmp_path, samples_in, index_type):
    path = write(tmp_path / "a.h5ad", index_type=index_type)
    source = H5adSource(path, with_key=True)
    assert len(source.parts(300)) > 2
    found = samples_in(source, 300)
    assert np.array_equal(rebuilt(found), MATRIX)
    assert (found[0]["indices"].dtype, found[0]["values"].dtype) == (index_type, np.float32)
    for name in ("count", "score", "good"):
        assert [one[name] for one in found] == COLUMNS[name].tolist()
    assert [one["batch"] for one in found] == [f"é{n}" for n in range(CELLS)]
    assert [one["key"] for one in found] == [f"cell{n}" for n in range(CELLS)]
    assert [one["type"] for one in found] == COLUMNS["type"]["codes"].tolist()
    assert source.categories == {"type": ["T", "B"]}
    assert source.genes == [f"gene{n}" for n in range(GENES)]
    assert source.metadata() == {"genes": source.genes, "classes": source.categories}


@pytest.mark.parametrize("order", "<>")
def test_numbers_of_either_order_of_bytes(tmp_path, converted, order):
    columns = {"n": np.arange(CELLS, dtype=order + "i4"), "x": np.linspace(0, 1, CELLS, dtype=order + "f8")}
    columns["kind"] = {**COLUMNS["type"], "codes": COLUMNS["type"]["codes"].astype(order + "i2")}
    path = write(tmp_path / "a.h5ad", columns=columns, matrix=MATRIX.astype(order + "f4"), index_type=order + "i8")
    dataset = converted(path)
    assert np.array_equal(rebuilt([{k: v.numpy() for k, v in one.items()} for one in dataset]), MATRIX)
    assert dataset.column("n").tolist() == list(range(CELLS))
    assert dataset.column("x").tolist() == np.linspace(0, 1, CELLS).tolist()
    assert dataset.column("kind").tolist() == COLUMNS["type"]["codes"].tolist()


def test_dense_rows_and_other_matrices(tmp_path, samples_in):
    sparse, dense = write(tmp_path / "a.h5ad"), write(tmp_path / "b.h5ad", sparse=False)
    for source in (H5adSource(sparse, dense=True).only(["X"]), H5adSource(dense).only(["X"])):
        found = samples_in(source, 100)
        assert np.array_equal(np.stack([one["X"] for one in found]), MATRIX)
        assert list(found[0]) == ["X"]
    layer = samples_in(H5adSource(sparse, matrix="layers/counts").only(["score", "indices", "values"]))
    assert np.array_equal(rebuilt(layer), MATRIX * 2)
    assert list(layer[0]) == ["indices", "values", "score"]


def test_what_is_wrong_with_other_columns_does_not_matter(tmp_path, converted, samples_in):
    path = write(tmp_path / "a.h5ad")
    with h5py.File(path, "a") as file:
        file["X"].attrs["encoding-type"] = "csc_matrix"
        del file["obs/score"]
    with pytest.raises(FormatError, match="csc_matrix"):
        samples_in(H5adSource(path))
    dataset = converted(path, fields=["type", "count"])
    assert (list(dataset.schema), len(dataset)) == (["type", "count"], CELLS)
    assert list(dataset.metadata["classes"]) == ["type"]


def test_files_follow_each_other_if_they_have_the_same_genes(tmp_path, samples_in):
    for number in (2, 10):
        write(tmp_path / f"{number}.h5ad", columns={"n": np.full(CELLS, number)})
    assert [int(one["n"]) for one in samples_in(H5adSource(str(tmp_path)))] == [2] * CELLS + [10] * CELLS
    write(tmp_path / "3.h5ad", matrix=MATRIX[:, :5], columns={"n": np.full(CELLS, 3)})
    with pytest.raises(FormatError, match="different numbers of genes: 7 in 2.h5ad, 5 in 3.h5ad"):
        H5adSource(str(tmp_path)).parts(1)


MISSING = {
    "kind": ({"type": "categorical", "codes": np.array([0, -1] * 4 + [1], np.int8),
              "categories": np.array(["T", "B"], STRINGS)}, -1, [0, -1] * 4 + [1]),
    "n": ({"type": "nullable-integer", "values": np.full(CELLS, 2**53 + 1), "mask": np.arange(CELLS) == 1}, -1,
          [2**53 + 1, -1] + [2**53 + 1] * 7),
    "on": ({"type": "nullable-boolean", "values": np.ones(CELLS, bool), "mask": np.arange(CELLS) == 1}, False,
           [True, False] + [True] * 7),
    "text": ({"type": "nullable-string-array", "values": np.array(["a"] * CELLS, STRINGS),
              "mask": np.arange(CELLS) == 1}, "", ["a", ""] + ["a"] * 7),
}  # fmt: skip
"""Columns in which a cell has no value: as they are stored, what the error proposes, what is then there."""


@pytest.mark.parametrize("name", MISSING)
def test_a_missing_value_is_refused_or_filled_as_the_error_says(tmp_path, converted, name):
    column, proposed, wanted = MISSING[name]
    path = write(tmp_path / "a.h5ad", columns={name: column})
    said = rf"row 1: column '{name}' has no value, .*{{'{name}': {proposed!r}}}"
    with pytest.raises(gdsload.errors.ConversionError, match=said):
        gdsload.convert(path, tmp_path / "out", workers=1)
    found = converted(path, fill={name: proposed}).column(name)
    assert (found if isinstance(found, list) else found.tolist()) == wanted


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda file: file["X"].attrs.update({"encoding-type": "csc_matrix"}), "a csc_matrix.*tocsr"),
        (lambda file: file["X"].attrs.update({"shape": (CELLS + 1, GENES)}), "other lengths than its shape"),
        (lambda file: file["X/indptr"].__setitem__(3, 1000), "outside of the sparse matrix' values"),
        (lambda file: file["X/indices"].__setitem__(0, 7), "values outside of 7 columns"),
        (lambda file: file["X/indices"].__setitem__(0, -1), "values outside of 7 columns"),
        (lambda file: file["obs"].attrs.__delitem__("encoding-type"), "no table as anndata 0.8"),
        (lambda file: file["obs"].__delitem__("count"), "column 'count' of obs is a NoneType"),
        (lambda file: file.move("obs/_index", "obs/values") or file["obs"].attrs.update({"column-order": ["values"]}),
         "called 'values', too"),
        (lambda file: file.__delitem__("obs"), "there is no 'obs'"),
        (lambda file: file["obs"].__setitem__("link", h5py.ExternalLink("b.h5ad", "obs/count"))
         or file["obs"].attrs.update({"column-order": ["link"]}), "a link to another file"),
    ],
)  # fmt: skip
def test_files_that_do_not_hold_together(tmp_path, samples_in, change, match):
    path = write(tmp_path / "a.h5ad")
    with h5py.File(path, "a") as file:
        change(file)
    with pytest.raises((FormatError, OptionError), match=match):
        samples_in(H5adSource(path))


def test_damaged_files(tmp_path, survives_damage):
    path = write(tmp_path / "a.h5ad", columns={"n": np.arange(CELLS)})
    assert survives_damage(path, lambda: H5adSource(path)) > 15
