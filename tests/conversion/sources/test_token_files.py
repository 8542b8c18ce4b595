"""Files of tokens, and blocks packed of them and of what other libraries wrote."""

import os
import pickle
import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gdsload
from gdsload.conversion.recognise import recognise
from gdsload.conversion.sources.token_files import TokenSource
from gdsload.errors import FormatError, OptionError
from gdsload.tools.cli import main
from tests.conversion.reading import rows_of

END = 7


def documents_of(source, target=2**20):
    return [row["tokens"].tolist() for row in rows_of(source, target)]


def check_documents(source, expected, target, read):
    """However it is cut into parts and batches; a file without a token is refused."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("gdsload.conversion.sources.token_files.BATCH_BYTES", read)
        if any(expected):
            assert documents_of(source, target) == expected
        else:
            with pytest.raises(FormatError, match="not one token"):
                source.parts(target)


@settings(max_examples=50)
@given(
    documents=st.lists(st.lists(st.integers(0, 6), max_size=8), min_size=1, max_size=20),
    whole=st.booleans(),
    target=st.integers(1, 40),
    read=st.integers(2, 40),
)
def test_flat_files_are_cut_where_documents_end(tmp_path_factory, documents, whole, target, read):
    row = [token for document in documents for token in (*document, END)]
    row = row if whole else row[:-1]
    path = tmp_path_factory.mktemp("tokens") / "t.bin"
    np.array(row, np.uint16).tofile(path)
    expected = [[*document, END] for document in documents]
    expected[-1] = expected[-1] if whole else expected[-1][:-1]
    expected = [document for document in expected if document]
    source = pickle.loads(pickle.dumps(TokenSource(str(path), dtype="uint16", end=END)))
    check_documents(source, expected, target, read)


def test_documents_of_other_kinds_beside_it_are_noted(tmp_path):
    np.arange(9, dtype=np.uint16).tofile(tmp_path / "a.bin")
    np.save(tmp_path / "b.npy", np.arange(3))
    (tmp_path / "c.jsonl").write_text("[1, 2]\n")
    notes = TokenSource(str(tmp_path), dtype="uint16", each="document").notes()
    assert [note.split(":")[0] for note in notes] == [
        "1 file is left out, 'b.npy' first",
        "1 file is left out, 'c.jsonl' first",
    ]


def test_a_flat_file_without_ends_is_packed_as_one_document(tmp_path):
    np.arange(100, dtype=np.uint32).tofile(tmp_path / "t.bin")
    source = TokenSource(str(tmp_path / "t.bin"), dtype="uint32", each="document")
    assert documents_of(source, 8) == [list(range(100))]
    pack = {"field": "tokens", "length": 30}
    how = {"source_options": {"dtype": "uint32"}, "workers": 1, "shuffle_seed": None}
    assert gdsload.convert(tmp_path / "t.bin", tmp_path / "out", pack=pack, **how).notes == ()
    dataset = gdsload.ShardDataset(tmp_path / "out")
    assert [dataset[n]["tokens"].tolist() for n in range(3)] == [list(range(n, n + 30)) for n in (0, 30, 60)]
    assert [dataset[n]["cu_seqlens"].tolist() for n in range(3)] == [[0, 30]] * 3


def test_a_flat_file_without_ends_is_a_row_of_tokens(tmp_path):
    """nanoGPT's train.bin, out of which `Windows` takes stretches."""
    tokens = np.random.default_rng(0).integers(0, 50_257, 1000).astype(np.uint16)
    tokens.tofile(tmp_path / "train.bin")
    how = {"dtype": "uint16", "shard_bytes": 600, "workers": 1}
    with pytest.raises(OptionError, match="shuffle_seed would put single tokens in random order. Leave it out"):
        gdsload.convert(tmp_path / "train.bin", tmp_path / "out", shuffle_seed=1, **how)
    report = gdsload.convert(tmp_path / "train.bin", tmp_path / "out", **how)
    assert [note[:21] for note in report.notes] == ["each token is a sampl"]
    assert (report.samples, report.shards > 1) == (1000, True)
    assert gdsload.ShardDataset(tmp_path / "out").column("tokens").tolist() == tokens.tolist()


def test_rows_of_several_files_follow_each_other_and_documents_stay_documents(tmp_path):
    for number in range(3):
        np.arange(10 * number, 10 * number + 10, dtype=np.int32).tofile(tmp_path / f"{number}.bin")
    source = TokenSource(str(tmp_path), dtype="int32")
    assert documents_of(source, 12) == list(range(30))
    assert {part.samples for part in source.parts(12)} == {3, 1}


@pytest.mark.parametrize("name", ["a.npy", "a.npz", "a.txt", "a.json"])
def test_what_is_no_tokens_is_refused_whatever_the_kind_says(tmp_path, name):
    (tmp_path / name).write_text('{"a": 1}\n')
    for options in ({"dtype": "uint16"}, {"on_error": "skip"}):
        with pytest.raises(FormatError, match="an array or a text, no flat file of tokens. Pass the kind"):
            gdsload.convert(tmp_path / name, tmp_path / "out", kind="tokens", workers=1, **options)


# Megatron-LM, megatron/core/datasets/indexed_dataset.py: class DType.
CODES = {"uint8": 1, "int8": 2, "int16": 3, "int32": 4, "int64": 5, "uint16": 8}


def megatron(path, documents, dtype="int32"):
    """Write documents, lists of sequences, as Megatron-LM does: path.bin and path.idx."""
    sequences = [np.array(sequence, dtype) for document in documents for sequence in document]
    path.with_suffix(".bin").write_bytes(b"".join(sequence.tobytes() for sequence in sequences))
    lengths = np.array([len(sequence) for sequence in sequences], np.int32)
    starts = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)[:-1]])[: len(lengths)] * np.dtype(dtype).itemsize
    edges = np.cumsum([0, *map(len, documents)])
    path.with_suffix(".idx").write_bytes(
        b"MMIDIDX\0\0"
        + struct.pack("<QBQQ", 1, CODES[dtype], len(lengths), len(edges))
        + lengths.tobytes()
        + starts.astype(np.int64).tobytes()
        + edges.astype(np.int64).tobytes()
    )
    return path.with_suffix(".bin")


def llmc(path, tokens, dtype="uint16", version=None, count=None):
    """Write tokens as llm.c does, dev/data/data_common.py."""
    header = np.zeros(256, np.int32)
    magic, known = {"uint16": (20240520, 1), "uint32": (20240801, 7)}[dtype]
    header[:3] = magic, known if version is None else version, len(tokens) if count is None else count
    path.write_bytes(header.tobytes() + np.array(tokens, dtype).tobytes())
    return path


@settings(max_examples=50)
@given(
    documents=st.lists(st.lists(st.lists(st.integers(0, 127), max_size=5), max_size=4), min_size=1, max_size=12),
    dtype=st.sampled_from(sorted(CODES)),
    target=st.integers(1, 60),
    read=st.integers(2, 40),
)
def test_an_index_tells_type_and_documents(tmp_path_factory, documents, dtype, target, read):
    path = megatron(tmp_path_factory.mktemp("tokens") / "t", documents, dtype)
    expected = [[token for sequence in document for token in sequence] for document in documents]
    assert recognise(str(path)) == recognise(str(path.parent)) == "tokens"
    source = TokenSource(str(path))
    check_documents(source, expected, target, read)


def test_options_that_contradict_an_index(tmp_path):
    path = str(megatron(tmp_path / "t", [[[1, 2]]]))
    assert documents_of(TokenSource(path, dtype="int32")) == [[1, 2]]
    with pytest.raises(OptionError, match="dtype is uint16, but the file itself says int32"):
        TokenSource(path, dtype="uint16").parts(1)
    with pytest.raises(OptionError, match="end is given, but the file has an index"):
        TokenSource(path, end=2).parts(1)


LENGTHS, STARTS, EDGES = 34, 34 + 4 * 3, 34 + 12 * 3


@pytest.mark.parametrize(
    ("offset", "value", "match"),
    [
        (9, struct.pack("<Q", 2), "of version 2"),
        (17, b"\x06", "element type 6"),
        (18, struct.pack("<Q", 4), "counts 4 sequences"),
        (18, struct.pack("<Q", 2**63), "counts 9223372036854775808 sequences"),
        (26, struct.pack("<Q", 0), "0 edges"),
        (LENGTHS, struct.pack("<i", -1), "its sequences do not follow"),
        (LENGTHS + 8, struct.pack("<i", 9), "its sequences have"),
        (STARTS + 8, struct.pack("<q", 4), "its sequences do not follow"),
        (EDGES, struct.pack("<q", 1), "its documents do not rise"),
    ],
)
def test_damaged_indexes(tmp_path, offset, value, match):
    path = megatron(tmp_path / "t", [[[1, 2, 3], [4]], [[5, 6, 7]]])
    content = (tmp_path / "t.idx").read_bytes()
    (tmp_path / "t.idx").write_bytes(content[:offset] + value + content[offset + len(value) :])
    with pytest.raises(FormatError, match=match):
        TokenSource(str(path)).parts(1)


def test_an_index_cut_short_anywhere_is_refused(tmp_path):
    path = megatron(tmp_path / "t", [[[1, 2, 3], [4]], [[5, 6, 7]]])
    whole = (tmp_path / "t.idx").read_bytes()
    for nbytes in range(9, len(whole)):  # shorter ones are no indexes
        (tmp_path / "t.idx").write_bytes(whole[:nbytes])
        with pytest.raises(FormatError, match="ends after|in all, but it has"):
            TokenSource(str(path)).parts(1)
    (tmp_path / "t.idx").write_bytes(whole)
    for nbytes in (0, 4, 27, 29, 32):
        os.truncate(path, nbytes)
        with pytest.raises(FormatError, match="its sequences have|no whole number"):
            TokenSource(str(path)).parts(1)


def test_another_idx_file_is_none_of_ours(tmp_path):
    np.arange(4, dtype=np.uint16).tofile(tmp_path / "t.bin")
    (tmp_path / "t.idx").write_bytes(b"something else")
    assert documents_of(TokenSource(str(tmp_path / "t.bin"), dtype="uint16")) == [0, 1, 2, 3]
    (tmp_path / "t.idx").write_bytes(b"TNTIDX\0\0")
    with pytest.raises(FormatError, match="an index of an older form"):
        TokenSource(str(tmp_path / "t.bin")).parts(1)


@pytest.mark.parametrize(("dtype", "most"), [("uint16", 50_256), ("uint32", 128_255)])
def test_headers_are_no_tokens(tmp_path, dtype, most):
    path = llmc(tmp_path / "t.bin", [most, 1, 2, most, 3], dtype)
    assert documents_of(TokenSource(str(path)), 4) == [most, 1, 2, most, 3]
    assert documents_of(TokenSource(str(path), each="document")) == [[most, 1, 2, most, 3]]
    assert documents_of(TokenSource(str(path), end=most), 2) == [[most], [1, 2, most], [3]]
    with pytest.raises(OptionError, match=f"dtype is int64, but the file itself says {dtype}"):
        TokenSource(str(path), dtype="int64").parts(1)


@pytest.mark.parametrize(
    ("content", "match"),
    [
        (bytes(3), "no whole number of uint16"),
        (b"", "not one token"),
        (struct.pack("<3i", 20240522, 1, 0) + bytes(2000), "evaluates with"),
        ({"version": 3}, "is of version 3"),
        *(({"count": count}, f"promises {count}") for count in (6, -1, 4)),
    ],
)
def test_files_that_are_no_tokens_and_damaged_headers(tmp_path, content, match):
    path = tmp_path / "t.bin"
    if isinstance(content, dict):
        llmc(path, [1, 2, 3, 4, 5], **content)
    else:
        path.write_bytes(content)
    with pytest.raises(FormatError, match=match):
        TokenSource(str(tmp_path), dtype="uint16").parts(1)


def test_a_bare_file_wants_its_type(tmp_path, capsys):
    """Four tokens of uint32 were eight of uint16."""
    np.array([1, 70_000, 128_255, 5], np.uint32).tofile(tmp_path / "t.bin")
    for command in ([], ["--dry-run"]):
        assert main(["convert", str(tmp_path / "t.bin"), str(tmp_path / "out"), "--workers", "1", *command]) == 2
        assert "Pass --dtype uint16, say: " in capsys.readouterr().err
    gdsload.convert(tmp_path / "t.bin", tmp_path / "out", dtype="uint32", workers=1)
    assert gdsload.ShardDataset(tmp_path / "out").column("tokens").tolist() == [1, 70_000, 128_255, 5]
