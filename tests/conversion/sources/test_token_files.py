"""Files of tokens, and blocks packed of them and of what other libraries wrote."""

import pickle
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import gdsload
from gdsload.conversion.sources.token_files import TokenSource
from gdsload.errors import FormatError, OptionError
from tests.conversion.reading import plain

END = 7


@settings(max_examples=50)
@given(
    documents=st.lists(st.lists(st.integers(0, 6), max_size=8), min_size=1, max_size=20),
    whole=st.booleans(),
    target=st.integers(1, 40),
    read=st.integers(2, 40),
)
def test_flat_files_are_cut_where_documents_end(documents_of, tmp_path_factory, documents, whole, target, read):
    row = [token for document in documents for token in (*document, END)]
    row = row if whole else row[:-1]
    path = tmp_path_factory.mktemp("tokens") / "t.bin"
    np.array(row, np.uint16).tofile(path)
    expected = [[*document, END] for document in documents]
    expected[-1] = expected[-1] if whole else expected[-1][:-1]
    expected = [document for document in expected if document]
    source = pickle.loads(pickle.dumps(TokenSource(str(path), dtype="uint16", end=END)))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("gdsload.conversion.sources.token_files.BATCH_BYTES", read)
        if expected:
            assert documents_of(source, target) == expected
        else:
            with pytest.raises(FormatError, match="not one token"):
                source.parts(target)


def test_a_flat_file_without_ends_is_packed_as_one_document(documents_of, tmp_path):
    np.arange(100, dtype=np.uint32).tofile(tmp_path / "t.bin")
    source = TokenSource(str(tmp_path / "t.bin"), dtype="uint32", each="document")
    assert documents_of(source, 8) == [list(range(100))]
    pack = {"field": "tokens", "length": 30}
    how = {"source_options": {"dtype": "uint32"}, "workers": 1, "shuffle_seed": None}
    assert gdsload.convert(tmp_path / "t.bin", tmp_path / "out", pack=pack, **how).notes == ()
    dataset = gdsload.ShardDataset(tmp_path / "out")
    assert [dataset[n]["tokens"].tolist() for n in range(3)] == [list(range(n, n + 30)) for n in (0, 30, 60)]
    assert [dataset[n]["cu_seqlens"].tolist() for n in range(3)] == [[0, 30]] * 3


def test_documents_of_other_kinds_beside_it_are_noted(tmp_path):
    np.arange(9, dtype=np.uint16).tofile(tmp_path / "a.bin")
    np.save(tmp_path / "b.npy", np.arange(3))
    (tmp_path / "c.jsonl").write_text("[1, 2]\n")
    notes = TokenSource(str(tmp_path), dtype="uint16", each="document").notes()
    assert [note.split(":")[0] for note in notes] == [
        "1 file is left out, 'b.npy' first",
        "1 file is left out, 'c.jsonl' first",
    ]


def test_a_flat_file_without_ends_is_a_row_of_which_windows_take_every_stretch(tmp_path):
    """nanoGPT's train.bin: x is a stretch of it, y the same one token later."""
    tokens = np.random.default_rng(0).integers(0, 50_257, 1000).astype(np.uint16)
    tokens.tofile(tmp_path / "train.bin")
    how = {"dtype": "uint16", "shard_bytes": 600, "workers": 1}
    with pytest.raises(OptionError, match="shuffle_seed would put single tokens in random order. Leave it out"):
        gdsload.convert(tmp_path / "train.bin", tmp_path / "out", shuffle_seed=1, **how)
    report = gdsload.convert(tmp_path / "train.bin", tmp_path / "out", **how)
    assert [note[:21] for note in report.notes] == ["each token is a sampl"]
    assert (report.samples, report.shards > 1) == (1000, True)
    windows = gdsload.Windows(tmp_path / "out", 64 + 1)
    assert len(windows) == 1000 - 64
    cast = gdsload.transforms.Cast("tokens", torch.int64)
    loader = gdsload.DataLoader(windows, 100, shuffle=True, device="cpu", device_transform=cast, with_index=True)
    seen = []
    for batch in loader:
        x, y = batch["tokens"][:, :-1], batch["tokens"][:, 1:]
        assert (x.dtype, x[:, 1:].tolist()) == (torch.int64, y[:, :-1].tolist())
        seen += [tuple(row) for row in batch["tokens"].tolist()]
    assert sorted(seen) == sorted(tuple(tokens[n : n + 65].tolist()) for n in range(1000 - 64))


def test_rows_of_several_files_follow_each_other_and_documents_stay_documents(documents_of, tmp_path):
    for number in range(3):
        np.arange(10 * number, 10 * number + 10, dtype=np.int32).tofile(tmp_path / f"{number}.bin")
    source = TokenSource(str(tmp_path), dtype="int32")
    assert documents_of(source, 12) == list(range(30))
    assert {part.samples for part in source.parts(12)} == {3, 1}
    assert source.describe() != TokenSource(str(tmp_path), dtype="int32", each="document").describe()


def test_the_same_blocks_from_every_kind_of_source(tmp_path):
    """Whatever holds the documents, and however it is cut into parts."""
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    rng, end = np.random.default_rng(0), END + 100
    documents = [rng.integers(0, 99, rng.integers(0, 40)).astype(np.int32) for _ in range(30)]
    row = np.concatenate([np.append(document, end) for document in documents]).astype(np.int32)
    column = pa.array([document.tolist() for document in documents], pa.list_(pa.int32()))
    pq.write_table(pa.table({"tokens": column, "n": np.arange(30)}), tmp_path / "t.parquet", row_group_size=9)
    (tmp_path / "arrays").mkdir()
    for number, document in enumerate(documents):
        np.save(tmp_path / "arrays" / f"{number}.npy", document)
    (tmp_path / "t.jsonl").write_text("".join(f"{document.tolist()}\n" for document in documents))
    row.tofile(tmp_path / "t.bin")
    gdsload.convert(tmp_path / "t.parquet", tmp_path / "shards", workers=1)
    pack, found = {"field": "tokens", "length": 64, "pad": 0}, []
    for name, options in (
        ("t.bin", {"dtype": "int32", "end": end}),
        ("t.parquet", {}),
        ("arrays", {"kind": "numpy", "each": "file"}),
        ("t.jsonl", {}),
        ("shards", {}),
    ):
        ended = pack if "end" in options else {**pack, "eos": end}
        ended = {**ended, "field": "array"} if name == "arrays" else ended
        with ThreadPoolExecutor(3) as executor:
            how = {"pack": ended, "shard_bytes": 1500, "executor": executor, **options}
            gdsload.convert(tmp_path / name, tmp_path / f"packed {name}", **how)
        blocks = gdsload.ShardDataset(tmp_path / f"packed {name}")
        found.append([{one.replace("array", "tokens"): ids for one, ids in plain(block).items()} for block in blocks])
    assert found[1:] == [found[0]] * 4
    assert np.array_equal(np.concatenate([block["tokens"] for block in found[0]])[: len(row)], row)


@pytest.mark.parametrize(("content", "reason"), [(bytes(3), "no whole number of uint16"), (b"", "not one token")])
def test_files_that_are_no_tokens(tmp_path, content, reason):
    (tmp_path / "t.bin").write_bytes(content)
    with pytest.raises(FormatError, match=reason):
        TokenSource(str(tmp_path), dtype="uint16").parts(1)


@pytest.mark.parametrize("name", ["a.npy", "a.npz", "a.txt", "a.json"])
def test_what_is_no_tokens_is_refused_whatever_the_kind_says(tmp_path, name):
    (tmp_path / name).write_text('{"a": 1}\n')
    for options in ({"dtype": "uint16"}, {"on_error": "skip"}):
        with pytest.raises(FormatError, match="an array or a text, no flat file of tokens. Pass the kind"):
            gdsload.convert(tmp_path / name, tmp_path / "out", kind="tokens", workers=1, **options)
