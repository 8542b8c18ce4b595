"""Datasets return the samples that a writer was given, in any form."""

import random
import tempfile
from pathlib import Path

import numpy as np
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file

from gdsload import Schema, ShardDataset, ShardWriter
from gdsload.shards.values import torch_dtype
from tests.shards.format.shard_files import SIGNATURES, fields
from tests.shards.small_dataset import ODD_NAMES

SETTINGS = settings(derandomize=True, max_examples=40)

TEXTS = ["", "a", "ß", "\0", "日本", "👩‍👩‍👧", "x" * 300]
SHARD_BYTES = [1, 100, 1000, 2**20]
NUMPY = {"bool", "uint8", "int8", "uint16", "int16", "float16", "uint32", "int32", "float32"} | {
    "uint64", "int64", "float64", "complex64"
}  # fmt: skip
SCHEMAS = st.builds(Schema, st.dictionaries(st.sampled_from(ODD_NAMES), fields(), min_size=1, max_size=4))


def value_of(field, rng):
    """A random sample of a field: a tensor of any bits, or text."""
    if field.kind == "str":
        return rng.choice(TEXTS)
    if field.kind in ("bytes", "image"):
        return (SIGNATURES[field.codecs[0]] if field.codecs else b"") + rng.randbytes(rng.choice([0, 1, 50]))
    shape = (rng.choice([0, 1, 2, 5]), *field.row_shape) if field.ragged else field.row_shape
    raw = torch.tensor(list(rng.randbytes(int(np.prod(shape)) * field.dtype.itemsize)), dtype=torch.uint8)
    raw = raw & 1 if field.dtype.name == "bool" else raw
    return raw.view(torch_dtype(field.dtype)).reshape(shape)


def same(wanted, found):
    """Equality bit by bit: a NaN is itself."""
    if not isinstance(wanted, torch.Tensor):
        return type(wanted) is type(found) and wanted == found
    return (wanted.dtype, wanted.shape, raw_bytes(wanted)) == (found.dtype, found.shape, raw_bytes(found))


def raw_bytes(tensor):
    return tensor.detach().contiguous().as_strided((tensor.numel(),), (1,)).view(torch.uint8).numpy().tobytes()


def same_sample(wanted, found):
    return list(wanted) == list(found) and all(same(wanted[name], found[name]) for name in wanted)


def disguised(tensor, rng):
    """The same numbers in one of the forms that people have them in."""
    name = str(tensor.dtype).removeprefix("torch.")
    forms = ["plain", "strided", "graph"]
    if name in NUMPY:
        forms += ["numpy", "swapped", "strided numpy"]
    if tensor.numel() and torch.isfinite(tensor if tensor.is_complex() else tensor.double()).all():
        forms += ["list"]
    form = rng.choice(forms)
    if form == "strided":
        return torch.stack([tensor, tensor], -1)[..., 0]
    if form == "graph" and (tensor.is_floating_point() or tensor.is_complex()):
        return tensor.clone().requires_grad_()
    if form == "numpy":
        return tensor.numpy() if tensor.ndim else tensor.numpy()[()]
    if form == "swapped":
        return tensor.numpy().astype(tensor.numpy().dtype.newbyteorder(">"))
    if form == "strided numpy":
        return np.stack([tensor.numpy(), tensor.numpy()], -1)[..., 1]
    return tensor.tolist() if form == "list" else tensor


def sample_as(schema, sample, rng):
    """One sample as `write` takes it."""
    items = [
        (name, disguised(value, rng) if isinstance(value, torch.Tensor) else value) for name, value in sample.items()
    ]
    rng.shuffle(items)
    return dict(items)


def column_as(field, values, rng):
    """A field of some samples as `write_batch` takes it."""
    if field.is_string:
        return values
    if not field.ragged:
        return rng.choice([lambda: disguised(torch.stack(values), rng), lambda: values])()
    lengths = torch.tensor([len(value) for value in values])
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
    joined = torch.cat(values)
    return rng.choice(
        [
            lambda: values,
            lambda: [disguised(value, rng) for value in values],
            lambda: (joined, offsets),
            lambda: (joined, offsets.int().numpy()),
            lambda: (disguised(joined, rng), offsets.tolist()),
            lambda: torch.nested.nested_tensor_from_jagged(joined, offsets),
        ]
    )()


def write(path, schema, samples, rng, shard_bytes):
    with ShardWriter(path, schema, shard_bytes=shard_bytes) as writer:
        rest = list(samples)
        while rest:
            count = rng.randint(1, len(rest))
            if rng.random() < 0.5:
                columns = {name: [sample[name] for sample in rest[:count]] for name in schema}
                writer.write_batch({name: column_as(schema[name], columns[name], rng) for name in schema})
            else:
                for sample in rest[:count]:
                    writer.write(sample_as(schema, sample, rng))
            del rest[:count]
            assert len(samples) - len(rest) == writer.samples
    return ShardDataset(path)


@SETTINGS
@given(SCHEMAS, st.integers(0, 12), st.sampled_from(SHARD_BYTES), st.integers(0, 2**32))
def test_samples_come_back(schema, count, shard_bytes, seed):
    """And the same samples make the same bytes, whatever they are given as."""
    rng = random.Random(seed)
    samples = [{name: value_of(field, rng) for name, field in schema.items()} for _ in range(count)]
    with tempfile.TemporaryDirectory() as folder:
        dataset = write(f"{folder}/d", schema, samples, rng, shard_bytes)
        assert (count, schema) == (len(dataset), dataset.schema)
        for reader in (dataset, ShardDataset(f"{folder}/d", mmap=False)):
            order = [rng.randrange(-count, count) for _ in range(20)] if count else []
            for index in order:
                assert same_sample(samples[index], reader[index])
            assert all(map(same_sample, [samples[index] for index in order], reader.__getitems__(order)))
        assert len(dataset.shards) == dataset.verify().shards
        assert count == sum(len(load_file(shard.file)[next(iter(schema))]) for shard in dataset.shards) or any(
            field.ragged for field in schema.values()
        )
        with ShardWriter(f"{folder}/other", schema, shard_bytes=shard_bytes) as writer:
            for sample in samples:
                writer.write(sample)
        first, other = ({one.name: one.read_bytes() for one in Path(folder, name).iterdir()} for name in ("d", "other"))
        assert first == other


@settings(SETTINGS, max_examples=30)
@given(st.lists(st.integers(0, 400), min_size=1, max_size=30), st.integers(1, 1000))
@example([0], 1)
@example([1000, 0, 1000], 1000)
def test_shards_are_as_full_as_they_can_be(sizes, shard_bytes):
    """The next sample would not have fitted; and only a single sample is larger than a shard."""
    with tempfile.TemporaryDirectory() as folder:
        with ShardWriter(f"{folder}/d", {"x": "bytes"}, shard_bytes=shard_bytes) as writer:
            writer.write_batch({"x": [bytes(size) for size in sizes]})
        counts = ShardDataset(f"{folder}/d").counts.tolist()
    rest = [size + 8 for size in sizes]
    for count in counts:
        here, rest = rest[:count], rest[count:]
        assert sum(here) <= shard_bytes or count == 1
        assert not rest or sum(here) + rest[0] > shard_bytes
    assert rest == []


def test_samples_read_twice_share_no_memory(tmp_path):
    with ShardWriter(tmp_path / "d") as writer:
        writer.write_batch({"x": torch.arange(8.0).reshape(2, 4)})
    dataset = ShardDataset(tmp_path / "d")
    first, second = dataset[0]["x"], dataset[0]["x"]
    first += 1
    twice = dataset.__getitems__([0, 0])
    twice[0]["x"] += 1
    assert [0, 1, 2, 3] == second.tolist() == twice[1]["x"].tolist() == dataset[0]["x"].tolist()
