"""The values of fields in batches, made of stored rows."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.fx import _symbolic_trace as symbolic_trace

from gdsload import DataLoader, Field, OptionError, ShardWriter
from gdsload.engine.assemble import Assembler, BatchForm
from gdsload.engine.codecs import codecs_of
from gdsload.engine.group_lengths import GroupLengths
from gdsload.engine.jagged import maker
from gdsload.shards.format.schema import Schema
from gdsload.shards.format.stored import StoredSchema, packed_by
from gdsload.system.memory import BatchPool

PROPERTY = settings(derandomize=True, max_examples=50)
LENGTHS = st.lists(st.integers(0, 5), max_size=7)
SCHEMA = Schema({"x": Field("int16", (3,)), "r": Field("float32", (None, 2)), "t": "str", "b": "bytes"})


def lengths_of(*batches):
    maker = Assembler(BatchForm({}), BatchPool(0))
    return GroupLengths(np.concatenate([np.zeros(0, np.int64), *batches]), list(map(len, batches)), maker.tensors)


def stored(lengths):
    values = torch.arange(2.0 * sum(lengths)).view(-1, 2)
    return values, np.array(lengths, np.int64), values.split(lengths)


def codec(name, ragged):
    return codecs_of(StoredSchema(SCHEMA), (name,), ragged)[name]


@PROPERTY
@given(LENGTHS)
def test_ragged_forms_hold_each_samples_rows(lengths):
    values, known, samples = stored(lengths)
    group = lengths_of(np.array([2, 0]), known, np.array([9]))
    jagged = codec("r", "jagged").decode(values, group, 1)
    assert all(torch.equal(one, other) for one, other in zip(jagged.unbind(), samples, strict=True))
    rows, offsets = codec("r", "offsets").decode(values, group, 1)
    assert rows is values
    assert offsets.tolist() == [0, *np.cumsum(lengths).tolist()]
    assert offsets is jagged.offsets(), "fields of equal lengths share their offsets"
    assert offsets.untyped_storage().nbytes() == offsets.nbytes, "saving a batch does not save its neighbours"
    packed = codec("r", "varlen").decode(values, group, 1)
    assert packed.values is values
    assert packed.cu_seqlens.dtype == torch.int32
    assert packed.cu_seqlens.tolist() == offsets.tolist()
    assert packed.cu_seqlens is codec("r", "varlen").decode(values, group, 1).cu_seqlens, "equal lengths share it"
    assert (type(packed.max_seqlen), packed.max_seqlen) == (int, max(lengths, default=0))
    assert packed.position_ids().dtype == torch.int64
    assert packed.position_ids().tolist() == [row for sample in samples for row in range(len(sample))]


def test_what_makes_nested_tensors_is_imported_with_the_codec():
    """In a thread of the loader, the import would wait for what its user is importing meanwhile, and block it."""
    maker.cache_clear()
    codec("r", "jagged")
    assert maker.cache_info().currsize == 1


def test_more_rows_than_int32_counts_are_refused():
    group = lengths_of(np.array([2**30, 2**30 - 1]), np.array([2**30, 2**30]))
    assert group.offsets[0].tolist() == [0, 2**30, 2**31 - 1]
    with pytest.raises(OptionError, match=f"but a batch has {2**31} rows, more than {2**31 - 1}"):
        _ = group.cu_seqlens


@PROPERTY
@given(st.lists(st.text("a\0é€𝄞", max_size=6), max_size=6))
def test_texts_and_bytes(texts):
    data = [text.encode() for text in texts]
    lengths = np.array([len(one) for one in data], np.int64)
    values = torch.frombuffer(bytearray(b"".join(data) or b"\0"), dtype=torch.uint8)[: lengths.sum()]
    assert codec("t", "jagged").decode(values, lengths_of(lengths), 0) == texts
    assert codec("b", "jagged").decode(values, lengths_of(lengths), 0) == data


def test_where_they_want_their_bytes_and_which_need_no_decoding():
    codecs = codecs_of(StoredSchema(SCHEMA), tuple(SCHEMA), "jagged")
    assert {name: (one.wants, one.as_stored) for name, one in codecs.items()} == {
        "x": ("device", True),
        "r": ("device", False),
        "t": ("host", False),
        "b": ("host", False),
    }


def test_jagged_batches_say_nothing_in_the_terminal(tmp_path, caplog):
    """torch warns of its own call, once in a process; users of batches could not mend that."""
    with ShardWriter(tmp_path / "shards", {"r": Field("float32", (None,))}) as writer:
        writer.write_batch({"r": [np.zeros(2, np.float32), np.zeros(3, np.float32)]})
    maker.cache_clear()
    symbolic_trace.is_fx_tracing_warning.cache_clear()
    with DataLoader(tmp_path / "shards", 2, device="cpu") as loader:
        assert next(iter(loader))["r"].is_nested
    assert symbolic_trace.is_fx_tracing_warning.cache_info().currsize == 1
    assert caplog.text == ""


def test_neighbours_of_one_type_and_shape_are_one_call_of_torch(monkeypatch):
    """However many they are: forty calls for each batch would take longer than to gather it."""
    fields = {f"i{number:02}": Field("int32") for number in range(30)}
    fields |= {f"f{number}": Field("float32", (2,)) for number in range(3)} | {"n": Field("int64")}
    stored = packed_by(Schema(fields), "auto")
    rows = torch.arange(5 * stored.columns["gdsload:rows:0"].row_bytes).to(torch.uint8).view(5, -1)
    calls, real = [], torch.Tensor.unbind
    monkeypatch.setattr(torch.Tensor, "unbind", lambda self, dim: calls.append(dim) or real(self, dim))
    for wanted, runs in ((list(fields), 3), (["i00", "i01", "i05"], 2), (["n"], 1), (["f0", "f2"], 2)):
        batch = dict.fromkeys(wanted)
        codecs_of(stored, wanted, "offsets")["gdsload:rows:0"].put(batch, rows)
        assert (len(calls), list(batch)) == (runs, wanted)
        calls.clear()
        for name, value in batch.items():
            begin = stored.places["gdsload:rows:0"][name]
            part = rows[:, begin : begin + stored.schema[name].row_bytes].contiguous().view(value.dtype)
            assert torch.equal(part.view(value.shape), value)


def test_of_several_types_the_one_with_most_bytes_is_not_copied():
    stored = packed_by(Schema({"n": Field("int64"), **{f"f{number}": Field("float32") for number in range(4)}}), "auto")
    rows, batch = torch.zeros(5, stored.columns["gdsload:rows:0"].row_bytes, dtype=torch.uint8), {}
    codecs_of(stored, tuple(stored.schema), "offsets")["gdsload:rows:0"].put(batch, rows)
    rows.fill_(1)
    assert {name for name, value in batch.items() if value.any()} == {"f0", "f1", "f2", "f3"}
