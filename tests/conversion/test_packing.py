"""Packed blocks are the row of all tokens, cut: whatever the parts, the workers and the documents that cannot be read."""

import itertools
import json
import pickle
from concurrent.futures import ThreadPoolExecutor
from unittest import mock

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import gdsload
from gdsload.conversion.packing import PackedSource, Packing
from gdsload.conversion.part import samples_of
from gdsload.conversion.source import Item, Part
from gdsload.errors import FormatError, OptionError, ReadError
from tests.conversion.reading import content

BAD = "bad"


class Documents:
    """Documents in parts, one by one or as batches; some cannot be read."""

    kind, threads = "documents", True

    def __init__(self, parts, batches=False, dtype=np.int32):
        self.documents, self.batches, self.dtype = parts, batches, dtype

    def describe(self):
        return {"documents": repr(self.documents)}

    def parts(self, target_bytes):
        return [Part(f"part {number}", (number,)) for number in range(len(self.documents))]

    def read(self, part):
        documents = self.documents[part.where[0]]
        if self.batches and BAD not in documents:
            if documents:
                yield Item("all", lambda: self.batch(documents), len(documents))
            return
        for number, document in enumerate(documents):
            yield Item(f"document {number}", lambda document=document: self.one(document))

    def one(self, document):
        if document == BAD:
            raise ValueError("no text")
        return {"ids": np.array(document, self.dtype), "other": 1}

    def batch(self, documents):
        values = np.array(list(itertools.chain(*documents)), self.dtype)
        return {"ids": (values, np.cumsum([0, *map(len, documents)])), "other": np.ones(len(documents))}


def reference(parts, length, eos, pad):
    """All documents one after the other, cut, and where they begin."""
    row, starts = [], []
    for document in itertools.chain(*parts):
        if document != BAD:
            tokens = document + ([] if eos is None else [eos])
            starts += [len(row)] if tokens else []
            row += tokens
    total = len(row)
    if pad is not None and total % length:
        starts.append(total)
        row += [pad] * (-total % length)
    blocks = []
    for low in range(0, len(row) - length + 1, length):
        inside = [start - low for start in starts if low < start < low + length]
        blocks.append((row[low : low + length], [0, *inside, length]))
    return blocks


def blocks_of(source, most):
    """Blocks and bad documents of each part, and that each part knows how many blocks it has."""
    blocks, bad = [], []
    for part in source.parts(1):
        before = len(blocks)
        for item in source.read(Part(part.name, tuple(json.loads(json.dumps(part.where))))):
            try:
                assert item.count is None or item.count <= most
                for one in samples_of(item) if item.count is not None else [item]:
                    sample = one.make()
                    blocks.append((sample["ids"].tolist(), sample["cu_seqlens"].tolist()))
            except ValueError as error:
                assert str(error) == "no text"
                bad.append(item.key)
        assert part.samples == len(blocks) - before
        assert part.samples
    return blocks, bad


documents = st.one_of(st.lists(st.integers(0, 9), max_size=12), st.just(BAD))


@given(
    parts=st.lists(st.lists(documents, max_size=5), max_size=6),
    length=st.integers(1, 9),
    eos=st.sampled_from([None, 7]),
    pad=st.sampled_from([None, 5]),
    batches=st.booleans(),
    at_once=st.integers(1, 30),
)
@example(parts=[[], [BAD], [[1]], [BAD], [[2, 3, 4]], [BAD]], length=2, eos=None, pad=None, batches=False, at_once=9)
@example(parts=[[[1], [1], [1]], [[1]], [[1]], [[1] * 5]], length=4, eos=None, pad=0, batches=True, at_once=9)
def test_blocks_are_the_row_of_all_tokens_cut(parts, length, eos, pad, batches, at_once):
    expected = reference(parts, length, eos, pad)
    source = pickle.loads(pickle.dumps(PackedSource(Documents(parts, batches), Packing("ids", length, eos, pad))))
    if not expected:
        with pytest.raises(FormatError, match="too few for a block|not one document"):
            source.parts(1)
        return
    with mock.patch("gdsload.conversion.packing._BATCH_TOKENS", at_once):
        blocks, bad = blocks_of(source, max(at_once // length, 1))
    assert blocks == expected
    listed = [f"document {n} of part {k}" for k, part in enumerate(parts) for n, one in enumerate(part) if one == BAD]
    assert bad == listed


@pytest.fixture(scope="module")
def corpus():
    rng = np.random.default_rng(0)
    return [[rng.integers(0, 1000, rng.integers(0, 60)).tolist() for _ in range(9)] for _ in range(20)]


def test_the_same_bytes_whatever_the_workers(tmp_path, corpus):
    pack = {"field": "ids", "length": 32, "eos": 0, "pad": 0}
    report = gdsload.convert(Documents(corpus), tmp_path / "one", pack=pack, workers=1, shard_bytes=2000)
    with ThreadPoolExecutor(5) as executor:
        gdsload.convert(Documents(corpus), tmp_path / "five", pack=pack, executor=executor, shard_bytes=2000)
    assert content(tmp_path / "one") == content(tmp_path / "five")
    dataset = gdsload.ShardDataset(tmp_path / "one")
    assert str(dataset.schema["ids"].dtype.name) == "int32"
    assert dataset.schema["ids"].shape == (32,)
    assert dataset.schema["cu_seqlens"].ragged
    found = [(one["ids"].tolist(), one["cu_seqlens"].tolist()) for one in dataset.__getitems__(range(report.samples))]
    assert found == reference(corpus, 32, 0, 0)


def test_an_interrupted_run_goes_on_and_bad_documents_can_be_skipped(tmp_path, corpus):
    spoiled = [*corpus[:10], [[1, 2], BAD, [3]], *corpus[10:]]
    pack, how = {"field": "ids", "length": 32}, {"workers": 1, "shard_bytes": 128}
    with pytest.raises(ReadError, match="document 1 of part 10 of blocks .* cannot be converted: ValueError: no text"):
        gdsload.convert(Documents(spoiled), tmp_path / "out", pack=pack, **how)
    with pytest.raises(OptionError, match="its source or its options were others"):
        gdsload.convert(Documents(spoiled), tmp_path / "out", pack=pack | {"eos": 1}, **how)
    report = gdsload.convert(Documents(spoiled), tmp_path / "out", pack=pack, **how, on_error="skip")
    assert report.resumed
    assert [one.key for one in report.skipped] == ["document 1 of part 10"]
    dataset = gdsload.ShardDataset(tmp_path / "out")
    found = [(one["ids"].tolist(), one["cu_seqlens"].tolist()) for one in dataset.__getitems__(range(len(dataset)))]
    assert found == reference(spoiled, 32, None, None)


def test_documents_that_are_no_tokens_are_alone(left_out):
    class Mixed(Documents):
        def one(self, document):
            made = super().one([1, 2, 3])["ids"]
            others = {"wide": made.astype(np.int64), "real": made / 2, "text": "abc", "grid": made[None]}
            return {"ids": others.get(document, made)}

    source = Mixed([["int", "wide", "real", "int", "text", "grid", "int"]])
    reasons = {1: "tokens are int64, those before int32", 2: "are float64", 4: "of shape ()", 5: "of shape (1, 3)"}
    named = {f"document {number} of part 0": reason for number, reason in reasons.items()}
    dataset = left_out(source, named, pack={"field": "ids", "length": 9})
    assert dataset.column("ids").tolist() == [[1, 2, 3] * 3]


@pytest.mark.parametrize("change", ["more", "fewer"])
def test_documents_that_changed_since_they_were_counted(corpus, change):
    source = PackedSource(Documents(corpus), Packing("ids", 32))
    parts = source.parts(1)
    if change == "more":
        source.inner = Documents([part + part for part in corpus])
    else:
        source.inner = Documents([part[:-1] for part in corpus])
    with pytest.raises(FormatError, match="when they were counted"):
        for part in parts:
            list(source.read(part))


def test_describes_source_and_options():
    one = PackedSource(Documents([[[1]]]), Packing("ids", 4)).describe()
    assert json.loads(json.dumps(one)) == one
    assert one != PackedSource(Documents([[[2]]]), Packing("ids", 4)).describe()
    for other in (Packing("ids", 5), Packing("id", 4), Packing("ids", 4, eos=0), Packing("ids", 4, pad=0)):
        assert one != PackedSource(Documents([[[1]]]), other).describe()


class Packed(Documents):
    """Documents as bytes of int32."""

    def one(self, document):
        return {"ids": document if isinstance(document, bytes) else super().one(document)["ids"].tobytes()}


def test_bytes_are_tokens_of_the_type_that_is_said(tmp_path, converted, left_out):
    documents = [[1, 2, 3], [4, 5], [6, 7, 8, 9]]
    pack = {"field": "ids", "length": 4}
    reasons = {"document 3 of part 0": "3 bytes are no tokens of type int32"}
    dataset = left_out(Packed([[*documents, b"odd"]]), reasons, pack={**pack, "dtype": "int32"})
    assert dataset.digest == converted(Documents([documents]), pack=pack).digest
    said = "If these bytes are numbers, say of which type: `pack={.*'dtype': 'int64'}`, say"
    with pytest.raises(FormatError, match=said):
        gdsload.convert(Packed([documents]), tmp_path / "c", pack=pack, workers=1)
