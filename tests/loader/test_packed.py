"""Packed fields: whatever is stored together, a dataset and its batches are those of fields that are not."""

import copy
import io
import pickle
import random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from torch.utils.data import ConcatDataset

import gdsload
from gdsload import DataLoader, Field, OptionError, ShardDataset, ShardWriter
from gdsload.shards.format.shard import PADDING_PREFIX
from gdsload.testing import fingerprint
from tests.loader.taking import ORDERS
from tests.shards.format.shard_files import fields as any_fields
from tests.shards.test_roundtrip import value_of

SETTINGS = settings(derandomize=True, max_examples=20)
SCALARS = {f"s{number:02}": Field("int32") for number in range(12)}


@st.composite
def datasets(draw):
    """Fields of all kinds in any order, and which of them are packed."""
    names = st.sampled_from([f"f{number}" for number in range(10)])
    fields = draw(st.dictionaries(names, any_fields(), min_size=1))
    able = [name for name, field in fields.items() if not field.ragged and field.row_bytes]
    rule = draw(st.just("auto") | (st.lists(st.sampled_from(able), unique=True) if able else st.just([])))
    wanted = draw(st.none() | st.lists(st.sampled_from(list(fields)), unique=True, min_size=1))
    return fields, rule, wanted, draw(st.integers(1, 60))


def written(path, fields, samples, **options):
    """Any values, the same for the same fields."""
    chosen = random.Random(samples)
    with ShardWriter(path, fields, shard_bytes=300, **options) as writer:
        for _ in range(samples):
            writer.write({name: value_of(field, chosen) for name, field in fields.items()})
    return path


@SETTINGS
@given(datasets(), st.sampled_from(ORDERS), st.booleans())
def test_all_ways_of_reading_give_what_unpacked_fields_give(tmp_path_factory, drawn, order, mmap):
    fields, rule, wanted, samples = drawn
    folder = tmp_path_factory.mktemp("packed")
    packed = written(folder / "packed", fields, samples, pack_fields=rule)
    plain = written(folder / "plain", fields, samples, pack_fields=())
    dataset, reference = ShardDataset(packed, mmap=mmap), ShardDataset(plain)
    assert not reference.stored.packed
    assert (dataset.schema, len(dataset)) == (reference.schema, samples)
    assert list(dataset.counts) == list(reference.counts)
    indices = list(range(samples - 1, -1, -2))
    assert fingerprint(dataset.read_batch(indices)) == fingerprint(reference.read_batch(indices))
    assert fingerprint(dataset[samples // 2]) == fingerprint(reference[samples // 2])
    assert fingerprint(dataset.__getitems__(indices)) == fingerprint(reference.__getitems__(indices))
    assert dataset.sample_bytes(indices).tolist() == reference.sample_bytes(indices).tolist()
    options = {"batch_size": 7, "fields": wanted, "ragged": "offsets", "with_index": True, "device": "cpu", **order}
    with DataLoader(dataset, **options) as ours, DataLoader(reference, **options) as theirs:
        for mine, other in zip(ours, theirs, strict=True):
            assert list(mine) == list(other)
            assert fingerprint(mine) == fingerprint(other)
    ours, theirs = dataset.verify(deep=True), reference.verify(deep=True)
    assert (ours.nan, ours.infinite) == (theirs.nan, theirs.infinite)


@SETTINGS
@given(datasets())
def test_a_batch_is_written_as_its_samples_are(tmp_path_factory, drawn):
    fields, rule, _, samples = drawn
    folder = tmp_path_factory.mktemp("packed")
    dataset = ShardDataset(written(folder / "samples", fields, samples, pack_fields=rule))
    with ShardWriter(folder / "batch", fields, shard_bytes=300, pack_fields=rule) as writer:
        writer.write_batch(dataset.read_batch(range(samples)))
    assert ShardDataset(folder / "batch").digest == dataset.digest


@pytest.fixture(scope="session")
def narrow(tmp_path_factory):
    """100 samples, most of whose fields are packed, between some that are not."""
    fields = {
        "text": Field("str"),
        **SCALARS,
        "image": Field("uint8", (40,)),
        "flag": Field("bool"),
        "v": Field("int64", (2,)),
    }
    return written(tmp_path_factory.mktemp("narrow") / "narrow", fields, 100)


def test_a_whole_row_is_one_read(load, narrow):
    """The purpose of packing: a sample costs as many reads as it has columns, not fields."""
    dataset = ShardDataset(narrow)
    assert list(dataset.stored.columns) == ["gdsload:rows:0", "text", "image"]
    assert list(dataset.schema) == ["text", *SCALARS, "image", "flag", "v"]
    loader = load(dataset, 10, fields=["s03", "flag"])
    for batch in loader:
        assert list(batch) == ["s03", "flag"]
    assert sum(loader.backend.bytes_by_path.values()) == 100 * dataset.stored.columns["gdsload:rows:0"].row_bytes


def test_fields_of_a_batch_are_tensors_of_their_own_but_for_the_memory(load, narrow):
    """A change to one does not change another: neither to its values nor to its gradients."""
    batch = next(iter(load(narrow, 10, fields=list(SCALARS))))
    before = {name: value.clone() for name, value in batch.items()}
    for name in list(batch)[::2]:
        batch[name].fill_(7)
    assert all(torch.equal(batch[name], before[name]) for name in list(batch)[1::2])
    assert all((batch[name] == 7).all() for name in list(batch)[::2])
    assert len({value.untyped_storage().data_ptr() for value in batch.values()}) == 1
    assert all(value.stride() == (value.untyped_storage().nbytes() // 10 // 4,) for value in batch.values())


def test_gradients_may_flow_through_a_field_that_is_changed_in_place(load, tmp_path):
    with ShardWriter(tmp_path / "x") as writer:
        writer.write_batch({name: np.arange(8, dtype=np.float32) for name in "abcd"})
    batch, weight = next(iter(load(tmp_path / "x", 8))), torch.ones(8, requires_grad=True)
    loss = (batch["a"] * weight).sum()
    batch["b"].add_(1)
    loss.backward()
    assert torch.equal(weight.grad, torch.arange(8.0))
    batch["c"].mul_(weight)
    assert batch["c"].requires_grad


@pytest.mark.parametrize("batch_size", [1, 10])
def test_batches_can_be_saved_copied_and_pickled(load, narrow, batch_size):
    """Torch saves no tensors of different types that share memory."""
    batch = next(iter(load(narrow, batch_size)))
    saved = io.BytesIO()
    torch.save(batch, saved)
    saved.seek(0)
    found = [torch.load(saved), copy.deepcopy(batch), pickle.loads(pickle.dumps(batch))]
    assert [fingerprint(one) for one in found] == [fingerprint(batch)] * 3


def test_datasets_of_other_columns_are_refused_as_one(load, tmp_path):
    for name, rule in (("a", "auto"), ("b", ())):
        written(tmp_path / name, SCALARS, 10, pack_fields=rule)
    both = ConcatDataset([ShardDataset(tmp_path / name) for name in "ab"])
    with pytest.raises(OptionError, match=r"store their fields differently: packed are \[\['s00'.*none in the other"):
        load(both, 4)
    gdsload.reshard(tmp_path / "b", tmp_path / "c", workers=1)
    both = ConcatDataset([ShardDataset(tmp_path / name) for name in "ac"])
    assert sum(len(batch["s00"]) for batch in load(both, 4)) == 20


def test_safetensors_opens_the_shards(narrow):
    dataset = ShardDataset(narrow)
    places = dataset.stored.places["gdsload:rows:0"]
    first = 0
    for shard in dataset.shards:
        found = load_file(shard.file)
        fields = {name for name in found if not name.startswith(PADDING_PREFIX)}
        assert fields == {"gdsload:offsets:text", "gdsload:rows:0", "text", "image"}
        batch = dataset.read_batch(range(first, first + shard.samples))
        for name, begin in places.items():
            nbytes = dataset.schema[name].row_bytes
            rows = found["gdsload:rows:0"][:, begin : begin + nbytes].contiguous().view(batch[name].dtype)
            assert torch.equal(rows.view(batch[name].shape), batch[name])
        first += shard.samples
